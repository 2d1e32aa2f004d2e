"""E14: whether bits fall again in a long training, from its stored rows."""

from pathlib import Path
from typing import Any, NamedTuple

from tyro.conf import Positional

from scripts.experiments.shared import read_stored
from scripts.experiments.structured.table import (
    LEVEL,
    NOISE,
    Estimate,
    Verdict,
    bits_at,
    correct,
    figure_of,
    of_seeds,
    read_frame,
)

DISTANCES = 4, 8, 16
Frame = Any


class Fall(NamedTuple):
    """Of a training the step of the most bits, and how many more the last step has."""

    step: int
    change: Estimate


def bits_of_passages(frame: Frame) -> Frame:
    """Mean bits over the distances, a row for each family and passage, a column for each step."""
    passages = frame.key.str.extract(r" (\d+)$", expand=False).astype(float)
    frame = frame.assign(passage=passages)
    found = [bits_at(frame, distance, by="passage") for distance in DISTANCES]
    return sum(found[1:], found[0]) / len(found)


def measure_falls(frame: Frame) -> dict[str, Fall]:
    """The fall of each family: its step by the even passages, its size by the odd ones."""
    falls = {}
    for family, values in bits_of_passages(frame).groupby("family"):
        odd = values.index.get_level_values("passage") % 2 == 1
        step = values[~odd].mean().idxmax()
        falls[family] = Fall(step, of_seeds(values[odd][values.columns[-1]] - values[odd][step]))
    changes = correct({family: fall.change for family, fall in falls.items()})
    return {family: Fall(fall.step, changes[family]) for family, fall in falls.items()}


def judge_fall(falls: dict[str, Fall], last: int) -> Verdict:
    """H1."""
    down = [of for of in falls.values() if of.change.mean < 0 and of.change.p < LEVEL]
    up = [of for of in falls.values() if of.change.mean > 0 and of.change.p < LEVEL]
    never = [of for of in falls.values() if of.step == last]
    verdict = "refuted" if len(up) + len(never) >= 2 else "open"
    if len(down) == len(falls):
        verdict = "confirmed"
    said = (f"{name}: most at step {of.step}, then {of.change}, p {of.change.p:.3f}"
            for name, of in falls.items())  # fmt: skip
    return Verdict(verdict, "; ".join(said))


def judge_rank(falls: dict[str, Fall], ranks: Frame) -> Verdict:
    """H2."""
    falling = {name for name, of in falls.items() if of.change.mean < 0 and of.change.p < LEVEL}
    changes = {name: float(ranks.loc[name].iloc[0, -1] - ranks.loc[name].iloc[0][falls[name].step])
               for name in falls}  # fmt: skip
    down = {name for name in falling if changes[name] < 0}
    verdict = "confirmed" if falling and down == falling else "open"
    if falling and not down:
        verdict = "refuted"
    return Verdict(verdict, ", ".join(f"{name} {of:+.1f}" for name, of in changes.items()))


def show_falls(rows: Positional[Path]) -> None:
    """Prints E14's verdicts, and its figures by step."""
    frame = read_frame(read_stored(rows))
    falls, ranks = measure_falls(frame), figure_of(frame, "geometry", "rankme")
    print("H1:", *judge_fall(falls, int(frame.step.max())))
    print("H2:", *judge_rank(falls, ranks))
    for title, table in {
        f"bits, {NOISE}, mean of {DISTANCES} on": bits_of_passages(frame).groupby("family").mean(),
        "rankme": ranks, "nats": figure_of(frame, "geometry", "nats"),
    }.items():  # fmt: skip
        print(f"\n{title}\n{table.round(3).to_string()}")
