"""Tables and figures of the registered experiments E1 to E5, from the rows beside them.

    python -m scripts.experiments.tables              # prints the figures of the five pages
    python -m scripts.experiments.tables --figures    # and draws their charts anew

The unit is a training seed: a figure is the mean of each seed's prompts, passages or windows, and
its interval is Student's over the three seeds. Where every seed is at 0 or at 1, a share has
Wilson's interval with the seeds as its trials. p is of the mean against 0, corrected by Holm over
the lines of its table. Charts show the mean and each seed.
"""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from scipy import stats

from eval.drawing.figures import write_chart

pd: Any = pandas  # whose annotations leave open what an index or a column gives
Frame = Any
Series = Any

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "experiments"
QUARTER, CODES = "noise 0.25 rms", "int4"
LOG = {"type": "log", "base": 2, "nice": False}


def rows(name: str, kind: str) -> list[dict[str, Any]]:
    """The rows of a kind, with their place in the experiment beside their own fields."""
    read = (json.loads(row) for row in pd.read_parquet(FOLDER / f"{name}.parquet").row)
    chosen = (row for row in read if row["kind"] == kind)
    return [{**row, **row["experiment"], "step": row["checkpoint"]["step"]} for row in chosen]


def bits(name: str) -> Frame:
    """A line for each passage, distance and precision.

    `size` is log2 of the relative effect, `trace` log2 of the effect itself.
    """
    lines = []
    for row in rows(name, "bits"):
        plain = {k: v for k, v in row.items() if not isinstance(v, dict | list)}
        found = row["bits"]["uniform"].items()
        for (precision, kinds), (i, distance) in product(found, enumerate(row["distances"])):
            place = {"distance": distance, "precision": precision}
            place |= {name: row[name][i] for name in ("effect", "rms")}
            lines.append(plain | place | {kind: values[i] for kind, values in kinds.items()})
    known = pd.DataFrame(lines)
    return known.assign(size=np.log2(known.effect), trace=np.log2(known.effect * known.rms))


def recoveries(name: str) -> Frame:
    """A line for each prompt and method, all its starts together.

    `whole`: a start found every token, at the rounding floor, within the budget. `spent`: tokens
    run until then. `named`, `seen`: shares of hidden and shown tokens, of the nearest start.
    """
    starts = pd.DataFrame(rows(name, "recovery"))
    starts["rate"] = [each.get("hidden_rate", 1) for each in starts.settings]
    place = ["architecture", "step", "seed", "hidden", "observed", "filled", "upto", "solver"]
    place += ["rate", "prompt"]
    lines = []
    for where, several in starts.groupby(place):
        spent, whole = 0, False
        for row in several.to_dict("records"):
            budget = row["settings"].get("budget", np.inf)
            spent += min(row["evaluations"], budget)
            whole = row["exact"] and row["at_floor"] and row["evaluations"] <= budget
            if whole:
                break
        best = several.loc[several.residual.idxmin()]
        found = {"named": best.nonself["top1"], "seen": best.self["top1"], "whole": float(whole)}
        lines.append(dict(zip(place, where, strict=True)) | found | {"spent": spent})
    model = pd.DataFrame(lines).assign(work=lambda found: np.log2(found.spent))
    return model.assign(model=lambda found: found.architecture + " " + found.step.astype(str))


def by_seed(frame: Frame, value: str, *by: str) -> Frame:
    """The mean of each seed: seeds along the columns."""
    return frame.groupby([*by, "seed"])[value].mean().unstack("seed")


def interval(seeds: Series, least: float | None = None, digits: int = 2) -> str:
    """The mean over seeds and its 95 % limits; no limits where seeds are alike.

    Args:
        seeds: of each seed its mean.
        least: of a share 0, of a difference of shares -1: given in per cent, limits cut there.
        digits: after the point, of what is no share.
    """
    n, mean = len(seeds), float(seeds.mean())
    if least == 0 and mean in (0, 1):
        low, high = stats.binomtest(round(n * mean), n).proportion_ci(0.95, "wilson")
    else:
        low, high = mean + stats.sem(seeds) * np.array(stats.t.interval(0.95, n - 1))
    share = least is not None
    found = np.clip([mean, low, high], least, 1) * 100 if share else [mean, low, high]
    said, *limits = (f"{x:.{0 if share else digits}f}" for x in found)
    return said if low == high else f"{said} ({' to '.join(limits)})"


def holm(p: Any) -> Any:
    """Values of p, `(n,)`, corrected by Holm (1979)."""
    p = np.asarray(p)
    order, corrected = p.argsort(), np.empty(len(p))
    corrected[order] = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    return corrected.clip(max=1)


def changes(seeds: Frame, least: float | None = None, digits: int = 2) -> Frame:
    """Of each line: the mean of its seeds with its limits, p corrected by Holm, and the seeds."""
    lines = [line.dropna() for _, line in seeds.iterrows()]
    p = holm([stats.ttest_1samp(line, 0)[1] for line in lines])
    each = [" ".join(f"{x:+.{digits}f}" for x in line) for line in lines]
    means = [interval(line, least, digits) for line in lines]
    return pd.DataFrame({"change": means, "p": p.round(4), "seeds": each}, index=seeds.index)


def show(title: str, table: Frame) -> None:
    """Prints a table as Markdown, its index first."""
    table = table.reset_index()
    cells = [table.columns, ["---"] * len(table.columns), *table.to_numpy()]
    print(f"\n{title}\n\n" + "\n".join(f"| {' | '.join(map(str, line))} |" for line in cells))


def draw(
    name: str, frame: Frame, x: str, y: str, colour: str, panel: str, title: str, **axis: Any
) -> None:
    """Draws the mean over seeds as a line and each seed as a point, a panel for each model."""
    points = frame.groupby([panel, colour, x, "seed"])[y].mean().reset_index(name="value")
    scale, ticks = axis.pop("scale", {}), sorted({*points[x].tolist()})
    along = {"field": x, "type": "quantitative", "scale": scale, "axis": {"values": ticks, **axis}}
    lines = {"field": colour, "type": "nominal", "title": None, "legend": {"orient": "top"}}
    both = {"x": along, "color": lines}
    up = {"field": "value", "type": "quantitative", "title": title}
    layers = [
        {"mark": "line", "encoding": both | {"y": up | {"aggregate": "mean"}}},
        {"mark": {"type": "point", "filled": True, "size": 14}, "encoding": both | {"y": up}},
    ]
    chart = {
        "data": {"values": points.to_dict("records")},
        "facet": {"field": panel, "type": "nominal", "title": None},
        "columns": 2 if points[panel].nunique() == 4 else 3,
        "spec": {"layer": layers, "width": 180, "height": 140},
    }
    write_chart(FOLDER / f"{name}.svg", chart)


def e1(figures: bool) -> None:
    """Bits before, during and after training."""
    known = bits("e1")
    for title, precision, distance, value in (
        ("H1, H2: noise of 1/4 RMS, 8 on", QUARTER, 8, "alone"),
        ("H3: 4-bit codes, 8 on", CODES, 8, "alone"),
        ("H4: noise of 1 RMS, 1 on", "noise 1 rms", 1, "alone"),
        ("H5: log2 of the relative effect, 8 on", CODES, 8, "size"),
        ("log2 of the effect itself, 8 on", CODES, 8, "trace"),
        ("H6: noise of 4 effects, 8 on", "noise 4 effect", 8, "alone"),
        ("all eight outputs, noise of 1 RMS", "noise 1 rms", 8, "cumulative"),
    ):
        some = known[(known.precision == precision) & (known.distance == distance)]
        seeds = by_seed(some, value, "step", "architecture")
        means = seeds.mean(axis=1).unstack("step").round(2)
        for first in (0, 100):
            later = changes(seeds.loc[400] - seeds.loc[first])
            means = means.join(later.add_prefix(f"{first} to 400: "))
        show(f"E1, {title}", means)
    codes = known[(known.precision == CODES) & (known.distance == 8)]
    single = codes.assign(one=codes.cumulative > 9.9999).groupby(["architecture", "step"]).one
    show(
        "E1, tokens singled out by 4-bit codes of all eight outputs, of 120", single.sum().unstack()
    )
    if figures:
        known = known.assign(training="step " + known.step.astype(str))
        noise = known[(known.distance == 8) & known.precision.str.match(r"noise .* rms")]
        noise = noise.assign(noise=noise.precision.str.split().str[1].astype(float))
        draw("e1-noise", noise, "noise", "alone", "training", "architecture", "bits", scale=LOG)
        near = known[known.precision == QUARTER]
        draw(
            "e1-distance", near, "distance", "alone", "training", "architecture", "bits", scale=LOG
        )


def e2(figures: bool) -> None:
    """Prompts found whole from few states."""
    found = recoveries("e2b")
    search = found[found.solver == "alternating"]
    whole = by_seed(search, "whole", "observed", "model", "hidden").apply(interval, axis=1, least=0)
    spent = search.groupby(["observed", "model", "hidden"]).spent.median().map("{:,.0f}".format)
    show("E2, search: % found whole; median of tokens run", (whole + "; " + spent).unstack())
    equal = found[(found.hidden == 3) & (found.observed == 4)]
    whole = by_seed(equal, "whole", "solver", "model").apply(interval, axis=1, least=0)
    show("E2, 3 hidden, 4 shown: % found whole", whole.unstack())
    wide = equal.pivot_table(index=["model", "seed", "prompt"], columns="solver", values="whole")
    less = wide.drop(columns="alternating").rsub(wide.alternating, axis=0).dropna()
    show("E2, H2: alternating less another", changes(less.groupby("seed").mean().T, -1))
    work = by_seed(equal[equal.solver == "alternating"], "work", "step", "architecture")
    show("E2, H3: log2 of tokens run", changes(work.loc[400] - work.loc[0]))
    if figures:
        limits = [*(2**power for power in range(10, 15)), 24000]
        done = equal.whole > 0
        within = [equal.assign(tokens=n, found=100 * (done & (equal.spent <= n))) for n in limits]
        draw("e2b-work", pd.concat(within), "tokens", "found", "solver", "model", "% found whole",
             scale=LOG, format=".2~s")  # fmt: skip
        search = search.assign(found=100 * search.whole, of=search.observed.astype(str) + " shown")
        draw("e2b-hidden", search, "hidden", "found", "of", "model", "% found whole")


def e3(_: bool) -> None:
    """Recall, and what readers make of the output at the query."""
    recall, read, cells = (
        pd.DataFrame(rows("e3b", "recall")),
        bits("e3b"),
        ["architecture", "pairs"],
    )
    quarter = read[read.precision == QUARTER].astype({"descended": "Float64"})
    means = recall.groupby(cells)[["recall", "probe"]].mean()
    means = means.join(quarter.groupby(cells)[["alone", "effect", "descended"]].mean()).astype(
        float
    )
    seeds = by_seed(recall, "recall", *cells).apply(interval, axis=1)
    show("E3, every cell", means.round(2).assign(recall=seeds))
    ranks = [each.corr("spearman").recall.round(2) for each in (means, means.drop("llama"))]
    show("E3, rank correlation with recall", pd.DataFrame(ranks, ["12 cells", "9, no Llama"]).T)


def e4(figures: bool) -> None:
    """Hidden and shown tokens that descent names."""
    found = recoveries("e4b")
    place = ["architecture", "rate", "filled", "upto"]
    seeds = {value: by_seed(found, value, *place) for value in ("named", "seen")}
    table = {value: of.apply(interval, axis=1, least=0) for value, of in seeds.items()}
    show("E4, % of hidden tokens named, of shown tokens seen", pd.DataFrame(table))
    one, small, large = (
        seeds["named"].loc["one-block"],
        *(seeds["seen"].loc[f"llama-std{std}"].iloc[0] for std in ("002", "1")),
    )
    bare, full = one.loc[(1, "none", 8)], one.loc[1].xs(128, level="upto")
    less = {"stories less pads, 128": full.loc["stories"] - full.loc["pads"],
            "any 128 less none": full.mean() - bare, "std 1 less .02": large - small,
            "rate 64 less 1": one.loc[(64, "none", 8)] - bare}  # fmt: skip
    show("E4, differences", changes(pd.DataFrame(less).T, -1))
    if figures:
        bare = found[(found.architecture == "one-block") & (found.rate == 1)]
        none, kinds = bare[bare.filled == "none"], ("pads", "random", "stories")
        alike = pd.concat([bare[bare.filled != "none"], *(none.assign(filled=k) for k in kinds)])
        alike = alike.assign(found=100 * alike.named)
        draw("e4b-positions", alike, "upto", "found", "filled", "architecture",
             "% of hidden tokens named", scale=LOG)  # fmt: skip


def e5(figures: bool) -> None:
    """What a second loss changes."""
    read = rows("e5b", "repeats")
    windows = pd.DataFrame([{**row, **each} for row in read for each in row["windows"]])
    known = bits("e5b")
    asked = {f"{precision}, {distance} on": (known[(known.precision == precision)
             & (known.distance == distance)], "alone")
             for precision, distance in product((QUARTER, CODES), (1, 2, 4, 8))}  # fmt: skip
    for value in ("bits_per_byte", "repeated", "others", "excess"):
        asked[value] = windows, value
    for title, (frame, value) in asked.items():
        seeds = by_seed(frame, value, "weight", "architecture")
        change = (seeds.loc[0.1] - seeds.loc[0.0]).dropna()
        means = seeds.mean(axis=1).unstack("weight").round(3)
        show(f"E5, {title}", means.join(changes(change, digits=3), how="inner"))
        if value in ("bits_per_byte", "excess"):
            price = {"the Llama's less the flat mixer's": change.loc["llama"] - change.loc["flat"]}
            plain = seeds.loc[0.0].drop("hybrid")
            gap = (
                (plain - plain.loc["llama"]).drop("llama").rename(index="H6, {} less Llama".format)
            )
            show(f"E5, {title}", changes(pd.DataFrame(price).T, digits=3))
            show(f"E5, {title}", changes(gap, digits=3))
    if figures:
        near = known[known.precision == QUARTER]
        near = near.assign(loss="weight " + near.weight.astype(str))
        draw("e5b-bits", near, "distance", "alone", "loss", "architecture", "bits", scale=LOG)


if __name__ == "__main__":
    for each in (e1, e2, e3, e4, e5):
        each("--figures" in sys.argv[1:])
