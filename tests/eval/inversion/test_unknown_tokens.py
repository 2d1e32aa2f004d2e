"""What a solver cannot know, and what one that diverged says: at chance in the rows, never NaN."""

import json
import math

import pytest
import torch

from eval.__main__ import main
from eval.rows import Results, read_rows
from eval.summary import summarise

RANDOM = ["--prompts", "random", "--count", "8", "--length", "16", "--layers", "2"]
CHANCE = 399 / 2  # the mean rank among 400 tokens


def invert(*words: object) -> int:
    return main(["invert", *map(str, words)])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sweep", []),
        ("propose", []),
        ("gcg", ["gcg.steps=2"]),
        ("arca", ["arca.sweeps=1", "arca.samples=2", "arca.top=8"]),
    ],
)
def test_tokens_after_the_last_shown_are_at_chance(model_directory, tmp_path, method, settings):
    """Ten tokens of each prompt leave no trace in the six outputs shown."""
    asked = ["--slices", "[:, :6, :]", "--methods", method]
    asked += ["--set", *settings] if settings else []
    assert invert(model_directory(), "--out", tmp_path, *RANDOM, *asked) == 0
    rows = read_rows([tmp_path])
    assert len(rows) == 8
    unknown = [rank for row in rows for rank in row["rank"][6:]]
    assert len(unknown) == 80
    assert sum(rank < 5 for rank in unknown) <= 8
    if method in ("sweep", "propose"):
        assert {rank for rank in unknown if rank} == {200.0}  # one answer, 399 that tie
    assert all(100 < row["nonself"]["median_rank"] < 300 for row in rows)
    summary = summarise(rows)[0]
    assert summary["nonself_top5"] <= 0.1
    assert summary["nonself_rank"] == pytest.approx(CHANCE, rel=0.2)


def test_a_descent_that_diverged_says_so_and_nothing_else(model_directory, tmp_path, capsys):
    asked = ["--methods", "descent", "--set", "descent.steps=60", "descent.rate=1e38"]
    shown = ["--slices", "[:, 0:, :]"]
    assert invert(model_directory(), "--out", tmp_path, *RANDOM, *asked, *shown) == 0
    rows = read_rows([tmp_path])
    assert all(row["diverged"] for row in rows)
    assert all(row["notes"]["loss"] is None and row["criterion"] is False for row in rows)
    (record,) = summarise(rows)
    assert record["diverged"] == len(rows) == 8
    assert record["self_top5"] <= 0.05
    assert record["self_rank"] == 200
    assert main(["summary", str(tmp_path)]) == 0
    assert "diverged" in capsys.readouterr().out


def test_rows_hold_no_numbers_that_json_has_not(tmp_path):
    results = Results(tmp_path)
    for value, name in ((math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")):
        row = {"key": "a", "kind": "claim", "self": {"rank": [0.0, value]}, "seconds": 1.0}
        with pytest.raises(ValueError, match=rf"row a: self.rank\[1\] is {name}, not finite"):
            results.append([row])
    assert results.keys == set()
    results.append([{"key": "a", "kind": "claim", "self": None}])
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert json.loads(line)["self"] is None


def test_missing_figures_are_left_out_of_medians_and_counted(model_directory, tmp_path):
    shown = ["--slices", "[:, 0:, :]", "--methods", "adam", "--set", "adam.steps=50"]
    assert invert(model_directory(), "--out", tmp_path, *RANDOM, *shown) == 0
    rows = read_rows([tmp_path])
    for row, steps in zip(rows, [10, None, 30, None, 20, None, None, None], strict=True):
        row["steps_to_solve"] = steps
    found = summarise(rows)[0]
    assert (found["steps_to_solve"], found["solved"], found["diverged"]) == (20, 3, 0)
    assert torch.tensor(found["self"]).isfinite()
