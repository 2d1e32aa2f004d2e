"""Tables and figures of E6, bits over a real training, from the rows beside its registration.

    python -m scripts.experiments.training_tables             # prints the figures of the page
    python -m scripts.experiments.training_tables --figures   # and draws its charts anew

`docs/results/experiments/e6.yaml` fixes what is computed. The unit is a training seed: the mean of
its passages or prompts; intervals and p are Student's over seeds, p by Holm over a table's lines.
"""

import json
import sys
from typing import Any

import numpy as np
import pandas
from scipy import stats

from scripts.experiments.tables import (
    CODES,
    FOLDER,
    LOG,
    QUARTER,
    by_seed,
    changes,
    draw,
    interval,
    show,
)

pd: Any = pandas
Frame = Any
Series = Any

FULL = "noise 1 rms"
READINGS = {CODES: "4-bit codes", "int8": "8-bit codes", QUARTER: "noise 1/4 RMS",
            FULL: "noise 1 RMS"}  # fmt: skip
LATER = 391, 781, 1563, 3125
"""Steps of 0.8 to 6.4 million tokens, over which slopes are taken."""


def read() -> tuple[Frame, Frame, Frame]:
    """Bits, a line for each passage, site, precision and distance; losses; and searches."""
    stored = [json.loads(row) for row in pd.read_parquet(FOLDER / "e6.parquet").row]
    lines, losses, searches = [], [], []
    for row in stored:
        if row["kind"] == "recovery":
            asked = row["checkpoint"]
            searches.append(place(asked["name"], asked["step"])
                            | {"whole": float(row["exact"] and row["at_floor"]),
                               "spent": row["evaluations"]})  # fmt: skip
            continue
        at = place(row["model"], row["step"]) | {"tokens": row["tokens_seen"]}
        if row["kind"] == "loss":
            losses.append(at | {"nats": row["nats"]})
            continue
        for i, distance in enumerate(row["distances"]):
            here = {"site": row["site"], "distance": distance, "prompt": row["prompt"],
                    "size": np.log2(row["effect"][i])}  # fmt: skip
            lines += [at | here | {"precision": precision, "alone": kinds["alone"][i],
                                   "cumulative": kinds["cumulative"][i]}
                      for precision, kinds in row["bits"].items()]  # fmt: skip
    return pd.DataFrame(lines), pd.DataFrame(losses), pd.DataFrame(searches)


def place(name: str, step: int) -> dict[str, Any]:
    """Which model a row is of, from the name of its run: llama-s50."""
    architecture, _, seed = name.partition("-s")
    return {"architecture": architecture, "seed": int(seed), "step": step}


def outputs(known: Frame, distance: int, precision: str, site: str = "block") -> Frame:
    """The lines of one site so many positions on, at one precision."""
    return known.query("site == @site and distance == @distance and precision == @precision")


def slopes(frame: Frame, value: str) -> Frame:
    """Of each architecture and seed the slope on log2 of tokens from 0.8 million on."""
    frame = frame[frame.step.isin(LATER)]
    means = frame.groupby(["architecture", "seed", "tokens"])[value].mean().reset_index()
    fits = {
        key: np.polyfit(np.log2(one.tokens), one[value], 1)[0]
        for key, one in means.groupby(["architecture", "seed"])
    }
    return pd.Series(fits).unstack()


def longer(known: Frame, losses: Frame) -> Frame:
    """Of seeds with more than 6.4 million tokens: loss and bits by step, from 0.4 million on."""
    on = known[known.step > LATER[-1]][["architecture", "seed"]].drop_duplicates()
    tables = {"loss, nats a token": losses.merge(on).assign(value=lambda rows: rows.nats)}
    for title, distance, precision, value in (
        ("alone, 8 on, noise 1/4 RMS", 8, QUARTER, "alone"),
        ("alone, 8 on, 4-bit codes", 8, CODES, "alone"),
        ("all 15 together, noise 1 RMS", 15, FULL, "cumulative"),
    ):
        some = outputs(known.merge(on), distance, precision)
        tables[title] = some.assign(value=some[value])
    means = {
        title: some[some.step >= 195].groupby(["architecture", "step"]).value.mean().unstack("step")
        for title, some in tables.items()
    }
    return pd.concat(means, names=["figure"]).round(2)


def judged(known: Frame, searches: Frame) -> Frame:
    """Each hypothesis but H3 and H4: of each architecture the change over seeds, p by Holm."""
    together = by_seed(outputs(known, 15, FULL), "cumulative", "step", "architecture")
    whole = by_seed(searches, "whole", "step", "architecture")
    asked = {
        "H1": together.loc[LATER[-1]] - together.loc[98],
        "H2": slopes(outputs(known, 8, QUARTER), "alone").loc[["llama"]],
        "H5": slopes(outputs(known, 8, QUARTER, "head"), "alone").loc[["llama"]],
        "H6": slopes(outputs(known, 8, CODES), "size").loc[["llama"]],
        "H7, share of prompts": whole.loc[LATER[-1]] - whole.loc[195],
    }
    found = {name: changes(seeds) for name, seeds in asked.items()}
    return pd.concat(found, names=["hypothesis", "architecture"])


def main(figures: bool) -> None:
    """Prints the tables, and draws the figures."""
    known, losses, searches = read()
    asked = known[known.step <= LATER[-1]].drop_duplicates(
        ["architecture", "seed", "step", "prompt"]
    )
    show("Passages of all nine steps, 180 where complete", asked.pivot_table(
        index="architecture", columns="seed", values="prompt", aggfunc="count", fill_value=0,
    ))  # fmt: skip
    if (known.step > LATER[-1]).any():
        show("E6, the seed that goes on: bits by step", longer(known, losses))
    known, losses = (each[each.step <= LATER[-1]] for each in (known, losses))
    eight, last = outputs(known, 8, QUARTER), outputs(known, 15, FULL)
    show("Loss, nats a token", losses.pivot_table(
        index="architecture", columns="step", values="nats").round(3))  # fmt: skip
    for title, frame, value in (
        ("alone, 8 on, noise 1/4 RMS", eight, "alone"),
        ("the same of the normed output", outputs(known, 8, QUARTER, "head"), "alone"),
        ("alone, 8 on, 4-bit codes", outputs(known, 8, CODES), "alone"),
        ("all 15 together, noise 1 RMS", last, "cumulative"),
        ("log2 of the relative effect, 8 on", outputs(known, 8, CODES), "size"),
    ):
        means = frame.groupby(["architecture", "step"])[value].mean().unstack("step").round(2)
        show(f"E6, {title}", means)
    show("Hypotheses", judged(known, searches))
    bits = slopes(eight, "alone")
    flat, llama = bits.loc["flat"].dropna(), bits.loc["llama"].dropna()
    test: Any = stats.ttest_ind(flat, llama, equal_var=False)
    low, high = test.confidence_interval()
    less = f"{flat.mean() - llama.mean():.2f} ({low:.2f} to {high:.2f}), p {test.pvalue:.4f}"
    print(f"\nH3: flat's slope {interval(flat)}, less the Llama's {less}; half of the Llama's "
          f"{llama.mean() / 2:.2f}")  # fmt: skip
    codes = outputs(known, 15, CODES).assign(one=lambda rows: rows.cumulative > 9.9999)
    show("H4: rows singled out by 4-bit codes of all 15, of how many", codes.groupby(
        "architecture").one.agg(["sum", "count"]))  # fmt: skip
    show("Search: prompts found whole, of how many, and median of tokens run", searches.groupby(
        ["architecture", "step"]).agg(
            found=("whole", "sum"), of=("whole", "count"), run=("spent", "median")))  # fmt: skip
    if figures:
        along = "million tokens of training"
        block = known[known.site == "block"]
        drawn = block.assign(**{along: (block.tokens / 1e6).clip(lower=0.025)})
        ticks = {"values": [0.025, 0.1, 0.4, 1.6, 6.4],
                 "labelExpr": "datum.value < 0.03 ? 'none' : datum.label"}  # fmt: skip
        near = drawn[drawn.precision == QUARTER]
        near = near.assign(distance=near.distance.map("{:>2} on".format))
        draw("e6-alone", near, along, "alone", "distance", "architecture", "bits", scale=LOG,
             **ticks)  # fmt: skip
        every = drawn[drawn.distance == 15]
        every = every.assign(precision=every.precision.map(READINGS))
        draw("e6-together", every, along, "cumulative", "precision", "architecture", "bits",
             scale=LOG, **ticks)  # fmt: skip


if __name__ == "__main__":
    main("--figures" in sys.argv[1:])
