"""Figures of the page on a long training (E14), counted again from its rows."""

from typing import Any

import numpy as np
import pytest

from tests.test_experiment_results import RESULTS, lines_after, student, table

Frame = Any


def e14_bits() -> Frame:
    """Of each model and passage the mean bits over three distances, a column for each step."""
    found = table("experiments/e14").query("kind == 'bits'")
    alone = np.array(found["bits.noise 0.25 rms.alone"].tolist())[:, 1:]
    passage = found.key.str.extract(r" (\d+)$", expand=False).astype(int)
    found = found.assign(bits=alone.mean(axis=1), passage=passage)
    return found.pivot_table("bits", ["name", "passage"], "step")


def e14_fall(name: str) -> str:
    """What the last step has less than that of the most bits, which the other passages choose."""
    bits = e14_bits().loc[name]
    odd = bits.index % 2 == 1
    return student(bits[odd].iloc[:, -1] - bits[odd][bits[~odd].mean().idxmax()])


LONG = {
    "Means over the distances 4, 8 and 16": ("bits", 2),
    "RankMe is the effective rank": ("rankme", 1),
    "The held-out loss falls": ("nats", 3),
}
"""What long-training.md says before a table: the figure, and its decimals."""


@pytest.mark.parametrize("said", LONG)
def test_each_point_of_the_long_training_is_that_of_the_rows(said: str) -> None:
    field, digits = LONG[said]
    found = e14_bits() if field == "bits" else table("experiments/e14").pivot_table(
        field, "name", "step")  # fmt: skip
    for mixer, line in lines_after("long-training.md", said).items():
        means = found.loc[[mixer.lower()]].mean()
        assert line == [f"{value:.{digits}f}" for value in means], mixer


@pytest.mark.parametrize(
    ("mixer", "p"), [("flat", "p < .001"), ("Llama", "p .03"), ("mixed", "p .24")]
)
def test_each_fall_is_that_of_the_rows(mixer: str, p: str) -> None:
    page = (RESULTS / "long-training.md").read_text(encoding="utf-8")
    assert f"{mixer} {e14_fall(mixer.lower())}, {p}" in page
