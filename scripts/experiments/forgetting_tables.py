"""Tables and the figure of E8, the forgetting curve of SmolLM2, from the rows it left.

    python -m scripts.experiments.forgetting_tables             # prints the tables of the page
    python -m scripts.experiments.forgetting_tables --figures   # and draws its chart anew

`docs/results/experiments/e8b.yaml` fixes what is computed. The unit is a passage: intervals and p
are Student's over ten, p by Holm over the five hypotheses.
"""

import json
import sys
from typing import Any

import pandas
from scipy import stats

from scripts.experiments.tables import CODES, FOLDER, LOG, QUARTER, draw, holm, interval, show
from scripts.experiments.training_tables import FULL

pd: Any = pandas
Frame = Any
Series = Any

FAR, NEAR, LAST = 64, 8, 512
"""Positions on, at which the hypotheses ask."""
ALIKE = 1e-4
"""Bits, a spread below which passages are alike, and a test has nothing to divide by."""


def read() -> Frame:
    """A line for each model, layer, passage, precision and distance."""
    lines = []
    for row in map(json.loads, pd.read_parquet(FOLDER / "e8b.parquet").row):
        about = {name: row[name] for name in ("model", "layer", "passage")}
        for precision, kinds in row["bits"].items():
            lines += [
                about | {"distance": distance, "precision": precision, "alone": alone, "all": whole}
                for distance, alone, whole in zip(
                    row["distances"], kinds["alone"], kinds["cumulative"], strict=True
                )
            ]
    return pd.DataFrame(lines)


def bits(known: Frame, precision: str, distance: int, kind: str = "alone", layer: int = 30,
         model: str = "trained") -> Series:  # fmt: skip
    """Of each passage the bits at one place."""
    some = known[(known.model == model) & (known.layer == layer) & (known.distance == distance)]
    return some[some.precision == precision].set_index("passage")[kind].sort_index()


def judged(known: Frame) -> Frame:
    """Each hypothesis: what it is about, against which bound, and p."""
    far = bits(known, QUARTER, FAR)
    asked = {
        "H1": ("4-bit codes, 64 on", bits(known, CODES, FAR), 5.4),
        "H2": ("noise 1 RMS, 64 on", bits(known, FULL, FAR), 3),
        "H3": ("noise 1/4 RMS, 64 on, trained less untrained",
               far - bits(known, QUARTER, FAR, model="untrained"), 0),
        "H4": ("noise 1 RMS, all 512 less the first 8",
               bits(known, FULL, LAST, "all") - bits(known, FULL, NEAR, "all"), 0),
        "H5": ("noise 1/4 RMS, 64 on, layer 30 less layer 5",
               far - bits(known, QUARTER, FAR, layer=5), 0),
    }  # fmt: skip
    lines = []
    for name, (what, values, bound) in asked.items():
        test: Any = stats.ttest_1samp(values, bound) if values.std() > ALIKE else None
        lines.append({"hypothesis": name, "bits": what, "found": interval(values), "bound": bound,
                      "p": test.pvalue if test else 0.0, "passages": len(values)})  # fmt: skip
    found = pd.DataFrame(lines).set_index("hypothesis")
    return found.assign(p=holm(found.p).round(4))


def main(figures: bool) -> None:
    """Prints the tables, and draws the figure."""
    known = read()
    show("E8: hypotheses", judged(known))
    for kind in ("alone", "all"):
        table = known.pivot_table(
            index=["model", "layer", "precision"], columns="distance", values=kind
        )
        show(f"E8: mean bits of 6, {kind}", table.round(2))
    if figures:
        readings = [
            known[known.precision == precision].assign(bits=known[kind], reading=reading)
            for precision, kind, reading in (
                (CODES, "alone", "4-bit codes"), (QUARTER, "alone", "noise 1/4 RMS"),
                (FULL, "alone", "noise 1 RMS"), (FULL, "all", "noise 1 RMS, all"))
        ]  # fmt: skip
        back = "positions back"
        drawn = pd.concat(readings).rename(columns={"passage": "seed", "distance": back})
        drawn["panel"] = drawn.model + ", layer " + drawn.layer.map("{:>2}".format)
        draw("e8b", drawn, back, "bits", "reading", "panel", "bits", scale=LOG,
             values=[1, 8, 64, 512])  # fmt: skip


if __name__ == "__main__":
    main("--figures" in sys.argv[1:])
