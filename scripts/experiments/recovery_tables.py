"""Tables and the figure of E7, which solver names which tokens, and tables of E9 and E10.

    python -m scripts.experiments.recovery_tables             # prints the tables of the page
    python -m scripts.experiments.recovery_tables --figures   # and draws its chart anew

`e7b.yaml`, `e9.yaml` and `e10.yaml` beside the rows fix what is computed: shares of the tokens
asked for, over 20 prompts that are dealt out to three seeds; contrasts are paired by prompt.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import pandas

from eval.analysis.statistics import equivalent, paired_difference, share
from eval.drawing.figures import write_chart
from scripts.experiments.tables import FOLDER, holm, show
from scripts.experiments.training_tables import place

pd: Any = pandas
Frame = Any

ARCHITECTURES = "flat", "parallel", "llama"
TRAINING = {False: "untrained", True: "trained"}
SOLVERS = "descent", "adam", "soda", "snap", "gcg", "search", "chance"
SEARCHES = "propose", "alternating"
FILLINGS = "nothing", "pads", "stories", "random"
MARGIN = 0.15
"""Points within which two shares are called alike."""


def read(name: str, tokens: str = "nonself") -> Frame:
    """A line for each answer: tokens named, of how many, and tokens run.

    Args:
        name: of the experiment.
        tokens: nonself (the hidden ones, or all where none is hidden), or self.
    """
    lines = []
    for row in map(json.loads, pd.read_parquet(FOLDER / f"{name}.parquet").row):
        about = row["checkpoint"]
        asked = row[tokens] or row["self"]
        lines.append(place(about["name"], about["step"]) | {
            "training": TRAINING[about["step"] > 0], "hidden": row["hidden"],
            "filling": row.get("filling"), "settings": row["settings"],
            "solver": "search" if row["solver"] in SEARCHES else row["solver"],
            "prompt": row["prompt"], "hits": asked["top1"] * asked["count"],
            "count": asked["count"], "spent": row["evaluations"],
        })  # fmt: skip
    return pd.DataFrame(lines)


def cell(some: Frame) -> str:
    """A share in per cent with its limits; without them where all or none are named."""
    found = [100 * x for x in share(some.hits, some["count"], some.prompt, some.seed)]
    said, low, high = (f"{x:.0f}" if x in (0, 100) else f"{min(x, 99):.0f}" for x in found)
    return said if found[0] in (0, 100) else f"{said} ({low}–{high})"


def shares(known: Frame) -> Frame:
    """Of one question: a line for each solver, a column for each model, and the tokens run."""
    cells = {key: cell(some) for key, some in known.groupby(["solver", "architecture", "training"])}
    table = pd.Series(cells).unstack([1, 2])
    spent = known.groupby(["solver", "training"]).spent.median().map("{:,.0f}".format).unstack()
    columns = [(name, when) for name in ARCHITECTURES for when in TRAINING.values()]
    table = table[columns].join(pd.concat({"tokens run": spent[list(TRAINING.values())]}, axis=1))
    table.columns = [f"{name}, {when}" for name, when in table.columns]
    return table.loc[[name for name in SOLVERS if name in table.index]].rename_axis("solver")


def contrast(one: Frame, other: Frame, confidence: float = 0.95) -> Any:
    """Of the same prompts the difference of two shares."""
    both = one.merge(other, on="prompt", validate="1:1", suffixes=("", "_of_other"))
    assert len(both) == len(one) == len(other)
    return paired_difference(
        both.hits, both.hits_of_other, both["count"], share=True, confidence=confidence
    )


def chosen(known: Frame, **where: Any) -> Frame:
    """The answers at one place."""
    for name, value in where.items():
        known = known[known[name] == value]
    return known


Asked = tuple[str, str, dict[str, Any], dict[str, Any]]
"""A registered contrast: its hypothesis, what it says, and the two places that it compares."""


def solver_contrasts() -> list[Asked]:
    """Those of E7."""
    asked: list[Asked] = []
    for name in ARCHITECTURES:
        for training in TRAINING.values():
            three = {"architecture": name, "training": training, "hidden": 3}
            adam = three | {"solver": "adam"}
            asked.append(("H1", "search less adam", three | {"solver": "search"}, adam))
            if name == "flat":
                asked += [("H2", f"{solver} less adam", three | {"solver": solver}, adam)
                          for solver in ("snap", "soda")]  # fmt: skip
            gcg, soda = ({**three, "solver": solver} for solver in ("gcg", "soda"))
            asked.append(("H5", "gcg less soda", gcg, soda))
        if name != "parallel":
            ten = {"architecture": name, "hidden": 10, "solver": "search"}
            after, before = (ten | {"training": training} for training in ("trained", "untrained"))
            asked.append(("H4", "after less before", after, before))
    return asked


def filling_contrasts() -> list[Asked]:
    """Those of E9."""
    compared = {"H1": ("pads", "nothing"), "H2": ("stories", "pads"), "H3": ("random", "pads")}
    return [
        (hypothesis, f"{more} less {less}", {"architecture": name, "filling": more},
         {"architecture": name, "filling": less})
        for hypothesis, (more, less) in compared.items() for name in ("flat", "parallel")
    ]  # fmt: skip


def judge(known: Frame, asked: list[Asked], among: str) -> Frame:
    """Contrasts with their intervals, p by Holm among `all` of them, or within a `hypothesis`."""
    lines = []
    for hypothesis, what, first, second in asked:
        one, other = chosen(known, **first), chosen(known, **second)
        difference, narrow = contrast(one, other), contrast(one, other, 0.9)
        where = " ".join(str(first[key]) for key in ("architecture", "training") if key in first)
        lines.append({"hypothesis": hypothesis, "contrast": f"{what}, {where}",
                      "points": "{:.0f} ({:.0f} to {:.0f})".format(
                          *(100 * max(-1, min(x, 1)) for x in difference[:3])),
                      "p": difference.p, "alike": equivalent(narrow.low, narrow.high, MARGIN),
                      })  # fmt: skip
    found = pd.DataFrame(lines)
    by = found.groupby("hypothesis").p
    found["p"] = (holm(found.p) if among == "all" else by.transform(holm)).round(4)
    found = found.sort_values("hypothesis", kind="stable")
    return found.set_index(["hypothesis", "contrast"])


def shares_of_descent(known: Frame, by: str, columns: Sequence[str]) -> Frame:
    """Of each architecture the share by a column's values."""
    cells = {key: cell(some) for key, some in known.groupby(["architecture", by])}
    table = pd.Series(cells).unstack()[list(columns)]
    return table.loc[[name for name in ARCHITECTURES if name in table.index]].rename_axis("mixer")


def draw(known: Frame) -> None:
    """Shares by hidden tokens, a line for each solver and a panel for each model."""
    place_of = ["architecture", "training", "hidden", "solver"]
    sums = known.groupby(place_of)[["hits", "count"]].sum()
    points = (100 * sums.hits / sums["count"]).reset_index(name="share")
    points = points[points.solver != "chance"]
    axis = {"values": [0, 1, 3, 10], "labelAngle": 0}
    chart = {
        "data": {"values": points.to_dict("records")},
        "facet": {
            "row": {"field": "training", "type": "nominal", "title": None, "sort": "descending"},
            "column": {"field": "architecture", "type": "nominal", "title": None,
                       "sort": list(ARCHITECTURES)},
        },
        "spec": {
            "width": 180, "height": 140, "mark": {"type": "line", "point": True},
            "encoding": {
                "x": {"field": "hidden", "type": "ordinal", "axis": axis, "title": "hidden tokens"},
                "y": {"field": "share", "type": "quantitative", "title": "% named"},
                "color": {"field": "solver", "type": "nominal", "title": None,
                          "sort": list(SOLVERS), "legend": {"orient": "top"}},
            },
        },
    }  # fmt: skip
    write_chart(FOLDER / "e7b.svg", chart)


def main(figures: bool) -> None:
    """Prints the tables, and draws the figure."""
    known = read("e7b")
    for hidden, some in known.groupby("hidden"):
        title = f"hidden tokens, of {hidden}" if hidden else "shown tokens"
        show(f"E7: % named of {title}; median of tokens run", shares(some))
    whole = known[(known.solver == "search") & (known.hidden == 0)]
    show("H3: shown tokens named by search", whole.groupby(["architecture", "training"])[
        ["hits", "count"]].sum().unstack())  # fmt: skip
    show("E7: contrasts", judge(known, solver_contrasts(), "all"))
    wrong = known[(known.solver == "search") & (known.hits < known["count"])]
    show("Search: wrong answers, and the fewest tokens run of one", wrong.groupby(
        ["architecture", "training", "hidden"]).spent.agg(["count", "min"]))  # fmt: skip
    hidden = read("e9")
    for title, some in (("three hidden tokens", hidden), ("the 21 shown", read("e9", "self"))):
        show(f"E9: % named of {title}", shares_of_descent(some, "filling", FILLINGS))
    show("E9: contrasts", judge(hidden, filling_contrasts(), "hypothesis"))
    for title, tokens in (("three hidden tokens", "nonself"), ("the 21 shown", "self")):
        some = read("e10", tokens)
        some["setting"] = some.settings.map("rate {0[rate]:g}, {0[steps]} steps".format)
        show(f"E10: % named of {title}", shares_of_descent(
            some, "setting", sorted({*some.setting})))  # fmt: skip
    if figures:
        draw(known)


if __name__ == "__main__":
    main("--figures" in sys.argv[1:])
