"""Verdicts, tables and the figure of E12, from its stored rows."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
from scipy import stats
from tyro.conf import Positional

from eval.drawing.figures import write_chart
from eval.drawing.plots import lines, open_altair
from scripts.experiments.shared import read_stored

pd: Any = pandas
Frame = Any
NOISE, CODES = "noise 0.25 rms", "int8"
DISTANCES = 1, 4, 16, 64
DIPPED = "flat", "headed", "llama"
TOKENS, LAST = 2048, 3125
"""Of a step; the last step."""
LEVEL = 0.05


class Estimate(NamedTuple):
    """A mean over seeds, its 95 % interval and its two-sided p against 0."""

    mean: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


class Verdict(NamedTuple):
    """What became of a hypothesis, and what was found."""

    verdict: str
    found: str


def of_seeds(values: Any) -> Estimate:
    """Student's estimate of a mean over two seeds or more."""
    values = np.asarray(values, float)
    mean, error = values.mean(), stats.sem(values)
    if error == 0:
        return Estimate(mean, mean, mean, float(mean == 0))
    low, high = stats.t.interval(0.95, len(values) - 1, mean, error)
    tested: Any = stats.ttest_1samp(values, 0)
    return Estimate(*map(float, (mean, low, high, tested.pvalue)))


def of_difference(values: Any, others: Any) -> Estimate:
    """Welch's estimate of how much higher one mean over seeds is than another."""
    tested: Any = stats.ttest_ind(values, others, equal_var=False)
    low, high = tested.confidence_interval(0.95)
    mean = np.mean(values) - np.mean(others)
    return Estimate(*map(float, (mean, low, high, tested.pvalue)))


def correct(estimates: dict[str, Estimate]) -> dict[str, Estimate]:
    """With p by Holm over all of them."""
    least, corrected = 0.0, {}
    order = sorted(estimates, key=lambda name: estimates[name].p)
    for number, name in enumerate(order):
        least = max(least, min(1.0, (len(order) - number) * estimates[name].p))
        corrected[name] = estimates[name]._replace(p=least)
    return {name: corrected[name] for name in estimates}


def read_frame(rows: Iterable[dict[str, Any]]) -> Frame:
    """The rows, with the family and the seed of each model."""
    frame = pd.DataFrame(list(rows))
    frame[["family", "seed"]] = frame.model.str.split("-s", expand=True)
    return frame


def bits_at(frame: Frame, distance: int, precision: str = NOISE, by: str = "seed") -> Frame:
    """The mean bits of one output at a distance: a row for each family and seed, a column a step.

    `by` is the column that stands for the seed, for example `passage`.
    """
    found = frame[frame.kind == "bits"].copy()
    found = found[[distance in distances for distances in found.distances]]
    found["value"] = [
        bits[precision]["alone"][distances.index(distance)]
        for bits, distances in zip(found.bits, found.distances, strict=True)
    ]
    return found.pivot_table("value", ["family", by], "step")


def figure_of(frame: Frame, kind: str, name: str) -> Frame:
    """Of each family and seed the mean of a figure, a column a step."""
    found = frame[frame.kind == kind]
    return found.assign(value=found[name].astype(float)).pivot_table(
        "value", ["family", "seed"], "step"
    )


def found_by_decoders(frame: Frame) -> Frame:
    """Of each model, step and decoder the fraction of the exact bits that it finds.

    And both by distance: `bits` that it finds, and `exact`.
    """
    found = []
    for row in frame[frame.kind == "decoder"].to_dict("records"):
        for name, bits in row["decoder"].items():
            exact = row["exact"][NOISE if "noisy" in name else CODES]
            found.append(
                {key: row[key] for key in ("family", "seed", "step")}
                | {"decoder": name, "fraction": sum(bits) / sum(exact), "bits": bits}
                | {"exact": exact, "distances": row["distances"]}
            )
    return pd.DataFrame(found)


def judge_dip(frame: Frame) -> Verdict:
    """H1."""
    bits, ranks = bits_at(frame, 8), figure_of(frame, "geometry", "rankme")
    steps = list(bits.columns)
    both = [model for model in bits.index if model[0] in DIPPED]
    apart = {model: steps.index(bits.loc[model].idxmin()) - steps.index(ranks.loc[model].idxmin())
             for model in both}  # fmt: skip
    count = sum(abs(steps) <= 1 for steps in apart.values())
    by_family = {family: [n for (of, _), n in apart.items() if of == family] for family in DIPPED}
    verdict = "confirmed" if count >= 12 else "refuted" if count <= 7 else "open"
    return Verdict(verdict, f"{count} of {len(both)}; saved steps from RankMe's to bits': "
                            f"{by_family}")  # fmt: skip


def judge_differences(estimates: dict[str, Estimate]) -> Verdict:
    """All positive with p below .05 is confirmed, one negative refuted; p by Holm."""
    estimates = correct(estimates)
    signs = [np.sign(e.mean) if e.p < LEVEL else 0 for e in estimates.values()]
    verdict = "refuted" if -1 in signs else "confirmed" if all(signs) else "open"
    said = "; ".join(f"{name} {e}, p {e.p:.3f}" for name, e in estimates.items())
    return Verdict(verdict, said)


def judge_information(frame: Frame) -> Verdict:
    """H2."""
    means = pd.concat([bits_at(frame, distance)[LAST] for distance in DISTANCES], axis=1).mean(
        axis=1
    )
    return judge_differences(
        {f"{a} - {b}": of_difference(means[a], means[b])
         for a, b in (("toeplitz", "flat"), ("mixed", "headed"))}
    )  # fmt: skip


def judge_decoder(frame: Frame, name: str, limit: float) -> Verdict:
    """H3 and H4: whether a decoder finds less than a fraction, in each family."""
    found = found_by_decoders(frame).query("step == @LAST and decoder == @name")
    if found.empty:
        raise KeyError(name)
    by_family = {family: of_seeds(of.fraction) for family, of in found.groupby("family")}
    if all(of.high < limit for of in by_family.values()):
        verdict = "confirmed"
    else:
        verdict = "refuted" if any(of.low > limit for of in by_family.values()) else "open"
    return Verdict(verdict, "; ".join(f"{family} {of}" for family, of in by_family.items()))


def judge_invertibility(frame: Frame) -> Verdict:
    """H5."""
    found = frame[frame.kind == "toeplitz"].copy()
    found["log10"] = np.log10(found.largest / found.least)
    last = found[found.step == LAST]
    zero, layers = int((last.winding == 0).sum()), len(last)
    ratio = found.pivot_table("log10", "seed", "step")
    change = of_seeds(ratio[LAST] - ratio[0])
    down, up = change.p < LEVEL and change.mean < 0, change.p < LEVEL and change.mean > 0
    verdict = "refuted" if zero < 10 or up else "confirmed" if zero >= 18 and down else "open"
    return Verdict(verdict, f"winding number 0 in {zero} of {layers} layers; log10 of the ratio "
                            f"{change}, p {change.p:.3f}")  # fmt: skip


def named(frame: Frame, kind: str, tokens: str) -> Any:
    """Of each answer to a recovery the fraction of its tokens that were named."""
    found = frame[frame.kind == kind].dropna(subset=tokens)
    return found.assign(value=found[tokens].map(lambda tally: tally["top1"]))


def judge_recovery(frame: Frame) -> Verdict:
    """H6."""
    shown = named(frame, "recovery", "self").query("solver == 'propose'")
    hidden = named(frame, "recovery", "nonself").query("solver == 'alternating'")
    by = ["family", "step"]
    least = shown.value.min(), hidden.groupby(by).value.mean().min()
    verdict = "confirmed" if least[0] == 1 and least[1] >= 0.95 else "refuted"
    return Verdict(verdict, f"shown at least {least[0]:.3f}, hidden at least {least[1]:.3f}")


def judge_inverse(frame: Frame) -> Verdict:
    """H7."""
    found = frame[frame.kind == "inverse"]
    least = (found.named / found.tokens).min()
    return Verdict("confirmed" if least >= 0.99 else "refuted",
                   f"at least {least:.4f} in {len(found)} cases")  # fmt: skip


def judge_order(frame: Frame) -> Verdict:
    """H8."""
    found = named(frame, "order", "nonself").query("hidden == 3")
    whole = (found.value == 1).groupby([found.family, found.layer]).mean()
    any_order = (found.set_recall == 1).groupby([found.family, found.layer]).mean()
    wanted = {("column", layer): whole["column", layer] - 0.9 for layer in (2, 3, 4)}
    wanted |= {(family, layer): whole[family, layer] - 0.9
               for family in ("flat", "toeplitz", "mixed") for layer in (1, 2, 3, 4)}  # fmt: skip
    wanted |= {"column, any order": any_order["column", 1] - 0.9,
               "column, right order": 0.5 - whole["column", 1]}  # fmt: skip
    missed = [name for name, margin in wanted.items() if margin < 0]
    said = f"any order {any_order['column', 1]:.2f}, right order {whole['column', 1]:.2f}"
    return Verdict(_by_margin(wanted.values()), f"column, block 1: {said}; missed: {missed}")


def judge_copying(frame: Frame) -> Verdict:
    """H9."""
    found = frame.query("kind == 'copying' and copy_step == 1000")
    means = found.groupby("family").right.mean()
    wanted = {family: means[family] - 0.95 for family in ("flat", "headed", "llama", "toeplitz")}
    wanted |= {family: 0.5 - means[family] for family in ("column", "combined")}
    return Verdict(_by_margin(wanted.values()), str(means.round(3).to_dict()))


def _by_margin(margins: Iterable[float]) -> str:
    """Confirmed where all margins are met, refuted where one is missed by 0.1 or more."""
    least = min(margins)
    return "confirmed" if least >= 0 else "refuted" if least <= -0.1 else "open"


def judge_loss(frame: Frame) -> Verdict:
    """H10."""
    nats = figure_of(frame, "geometry", "nats")[LAST]
    return judge_differences({
        "flat - toeplitz": of_difference(nats["flat"], nats["toeplitz"]),
        "column - flat": of_difference(nats["column"], nats["flat"]),
    })  # fmt: skip


HYPOTHESES: dict[str, Callable[[Frame], Verdict]] = {
    "H1": judge_dip,
    "H2": judge_information,
    "H3": lambda frame: judge_decoder(frame, "blind clean", 0.3),
    "H4": lambda frame: judge_decoder(frame, "informed clean", 0.6),
    "H5": judge_invertibility,
    "H6": judge_recovery,
    "H7": judge_inverse,
    "H8": judge_order,
    "H9": judge_copying,
    "H10": judge_loss,
}
Tables = Iterable[tuple[str, Frame]]


def print_tables(frame: Frame) -> None:
    """Verdicts, then means over seeds of every figure that was measured."""
    for name, judge in HYPOTHESES.items():
        verdict, found = judge(frame)
        print(f"{name}: {verdict}: {found}")
    print(frame.groupby(["kind", "family"]).model.nunique().unstack("family").to_string())
    for tabulate in TABLES:
        for title, table in tabulate(frame):
            print(f"\n{title}\n{table.round(3).to_string()}")


def bits_tables(frame: Frame) -> Tables:
    """Bits by step."""
    for distance in (1, 4, 8, 16, 64):
        yield f"bits, {distance} on, {NOISE}", bits_at(frame, distance).groupby("family").mean()
    yield f"bits, 8 on, {CODES}", bits_at(frame, 8, CODES).groupby("family").mean()


def geometry_tables(frame: Frame) -> Tables:
    """The spectrum and the loss by step."""
    for name in ("rankme", "alpha", "nats"):
        yield name, figure_of(frame, "geometry", name).groupby("family").mean()


def toeplitz_tables(frame: Frame) -> Tables:
    """Figures of Toeplitz triangles by layer and step."""
    found = frame[frame.kind == "toeplitz"]
    found = found.assign(log10=np.log10(found.largest / found.least), size=found.w0.abs())
    wanted = ["winding", "log10", "least", "size"]
    yield "Toeplitz layers", found.groupby(["layer", "step"])[wanted].mean()


def inverse_tables(frame: Frame) -> Tables:
    """What two neighbouring outputs name."""
    found = frame[frame.kind == "inverse"]
    found = found.assign(fraction=found.named / found.tokens)
    wanted = ["fraction", "outside", "median_error", "largest_error"]
    yield "two neighbours", found.groupby(["family", "step"])[wanted].mean()


def decoder_tables(frame: Frame) -> Tables:
    """What decoders find, and what is there by distance."""
    found, by = found_by_decoders(frame), ["decoder", "step", "family"]
    yield "fraction that decoders find", found.groupby(by).fraction.mean().unstack("family")
    for name in ("bits", "exact"):
        spread = found[name].apply(pd.Series).set_axis(found.distances.iloc[0], axis=1)
        yield name, spread.groupby([found[key] for key in by]).mean()


def recovery_tables(frame: Frame) -> Tables:
    """Fractions of shown and hidden tokens that are named."""
    for tokens in ("self", "nonself"):
        found, by = named(frame, "recovery", tokens), ["hidden", "solver", "step", "family"]
        yield f"recovery, {tokens}", found.groupby(by).value.mean().unstack("family")


def order_tables(frame: Frame) -> Tables:
    """Prompts whose hidden tokens are right in order, and tokens that are right in any order."""
    found = named(frame, "order", "nonself")
    found = found.assign(whole=found.value == 1, any_order=found.set_recall)
    for name in ("whole", "any_order"):
        of = found.groupby(["hidden", "layer", "family"])[name]
        yield f"order, {name}", of.mean().unstack("family")


def copying_tables(frame: Frame) -> Tables:
    """Copied tokens by step."""
    found = frame[frame.kind == "copying"]
    yield "copying", found.groupby(["copy_step", "family"]).right.mean().unstack("family")


TABLES: tuple[Callable[[Frame], Tables], ...] = (
    bits_tables, geometry_tables, toeplitz_tables, inverse_tables, decoder_tables,
    recovery_tables, order_tables, copying_tables,
)  # fmt: skip


def draw(frame: Frame) -> Any:
    """Bits eight on and RankMe over training, a line for each family."""
    panels = []
    for title, found in (
        ("bits about the token eight before", bits_at(frame, 8)),
        ("RankMe of the last block", figure_of(frame, "geometry", "rankme")),
    ):
        records = [
            {"million tokens": step * TOKENS / 1e6, "mixer": family, "value": value, "tip": ""}
            for family, line in found.groupby("family").mean().iterrows()
            for step, value in line.items()
            if step
        ]
        scale = {"type": "log"}
        panels.append(lines(records, "million tokens", title, "mixer", scale=scale,
                            size=(260, 200)))  # fmt: skip
    return open_altair().hconcat(*panels)


def show(rows: Positional[Path], figure: Positional[Path]) -> None:
    """Prints the tables of stored rows, and draws the figure."""
    frame = read_frame(read_stored(rows))
    print_tables(frame)
    write_chart(figure, draw(frame))
