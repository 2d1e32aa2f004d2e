"""What cannot be known: no certificate in half precision, no tokens after those shown, no NaN."""

import json
import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from arch import LanguageModel
from eval.__main__ import main
from eval.analysis.accepts import hidden_positions
from eval.analysis.summary import summarise_rows
from eval.inversion.request import Inversion
from eval.inversion.task import plan
from eval.messages import RequestError
from eval.models.checkpoint import Checkpoint, open_checkpoint
from eval.models.text import Prompt, random_prompts
from eval.rows.store import Results, Row, read_rows
from eval.sites.slices import Slice
from tests.eval.inversion.search_cases import prompts
from tests.eval.views.page.cases import make_row

STEPS = {"descent": 5, "adam": 5, "gcg": 3, "snap": 5}
SOLVERS = (*STEPS, "sweep", "propose", "alternating", "chance")


def rows_of(model: LanguageModel, tokenizer: Tokenizer, shown: Slice) -> list[Row]:
    """Every solver's rows about two prompts at the last layer."""
    meta = {"name": "flat", "step": 0}
    checkpoint = Checkpoint(model, model.config, tokenizer, meta, Path("flat"))
    asked = [Prompt("random", i, tuple(row)) for i, row in enumerate(prompts(2, 7).tolist())]
    request = Inversion(
        solvers=SOLVERS,
        set_=("snap.resolve=5", *(f"{name}.steps={steps}" for name, steps in STEPS.items())),
        slices=(str(shown),),
        layers=("last",),
    )
    return [row for job in plan(checkpoint, request, asked, "toy:2000") for row in job.rows()]


@pytest.mark.parametrize(
    ("mixer", "dtype", "shown"),
    [
        ("flat", torch.float16, Slice(0)),
        ("attention(heads=2)", torch.bfloat16, Slice(1)),
    ],
)
def test_half_precision_is_inverted_and_certifies_nothing(
    small_model, small_tokenizer, mixer, dtype, shown
):
    model = small_model(mixers=(mixer,), d_model=64).to(dtype)
    rows = rows_of(model, small_tokenizer, shown)
    hidden = bool(shown.hidden(7))
    searches = {"alternating", "snap"} if hidden else {"sweep", "propose"}
    assert {r["solver"] for r in rows} == searches | {"descent", "adam", "gcg", "chance"}
    assert all(row["certificate"] is None for row in rows)
    name = str(dtype).removeprefix("torch.")
    assert {r["uncertified"] for r in rows} == {f"weights in {name}: no certificate below float32"}
    for row in rows:
        assert row["floor"] >= torch.finfo(dtype).eps  # of the model's rounding, not of fp32's
        if row["solver"] == "sweep":
            assert row["exact"]
            assert row["margin_bits"] < 12
    records = summarise_rows(rows)
    assert all(record["at_floor"] == record["false_accepts"] == 0 for record in records)
    assert all(record["enumerated"] == record["tokens_accepted"] == 0 for record in records)


RANDOM = ["--prompts", "random", "--count", "4", "--length", "16", "--layers", "2"]


def invert(*words: object) -> int:
    return main(["invert", *map(str, words)])


@pytest.mark.parametrize("shown", ["[:, :6, :]", "[:, 1:3+4:-10, :]"])
def test_tokens_after_the_last_shown_are_no_part_of_the_question(model_directory, tmp_path, shown):
    """Ten tokens of each prompt leave no trace in the outputs shown: no solver is asked of them."""
    hidden = {"[:, :6, :]": set(), "[:, 1:3+4:-10, :]": {0, 3}}[shown]
    search = "alternating" if hidden else "sweep"
    asked = ["--slices", shown, "--solvers", search, "adam", "gcg", "descent", "chance"]
    asked += ["--set", "adam.steps=100", "gcg.steps=2", "descent.steps=2"]
    model = model_directory()
    assert invert(model, "--out", tmp_path, *RANDOM, *asked) == 0
    rows = read_rows([tmp_path])
    assert len(rows) == 5 * 4
    whole = [prompt.tokens for prompt in random_prompts(open_checkpoint(model).tokenizer, 4, 16)]
    for row in rows:
        assert row["truth"] == list(whole[row["prompt"]][:6])
        assert {len(row[name]) for name in ("truth", "found", "rank", "verdict")} == {6}
        assert (row["length"], row["notes"]["cut"], row["slice"]) == (6, 10, shown)
        assert (row["hidden"], hidden_positions(row)) == (len(hidden), hidden)
        assert not row["collisions"]
        if row["solver"] == search:
            assert row["exact"]
            assert row["certificate"]
    assert any(row["exact"] for row in rows if row["solver"] == "adam") or hidden


def test_a_descent_that_diverged_says_so_and_nothing_else(model_directory, tmp_path, capsys):
    asked = ["--solvers", "descent", "--set", "descent.steps=60", "descent.rate=1e38"]
    shown = ["--slices", "[:, 0:, :]"]
    assert invert(model_directory(), "--out", tmp_path, *RANDOM, *asked, *shown) == 0
    rows = read_rows([tmp_path])
    assert all(row["diverged"] for row in rows)
    assert all(row["notes"]["loss"] is None and row["criterion"] is False for row in rows)
    (record,) = summarise_rows(rows)
    assert record["diverged"] == len(rows) == 4
    assert record["self_top5"] <= 0.05
    assert record["self_rank"] == 200
    assert main(["summary", str(tmp_path)]) == 0
    assert "diverged" in capsys.readouterr().out


def test_no_row_is_written_that_no_reader_takes(tmp_path):
    results = Results(tmp_path)
    for value in (math.nan, math.inf, -math.inf):
        for wrong in ({"residual": value}, {"notes": {"loss": [0.0, value]}}):
            with pytest.raises(RequestError, match="a row of recovery cannot be kept"):
                results.append([make_row() | wrong])
    with pytest.raises(RequestError, match="residual: None, expected float"):
        results.append([make_row(residual=None)])
    assert results.keys == set()
    results.append([make_row(notes={"loss": None})])
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert json.loads(line)["notes"] == {"loss": None}


def test_missing_figures_are_left_out_of_medians_and_counted(model_directory, tmp_path):
    shown = ["--slices", "[:, 0:, :]", "--solvers", "adam", "--set", "adam.steps=50"]
    assert invert(model_directory(), "--out", tmp_path, *RANDOM, *shown) == 0
    rows = read_rows([tmp_path])
    for row, steps in zip(rows, [10, None, 30, 20], strict=True):
        row["steps_to_solve"] = steps
    found = summarise_rows(rows)[0]
    assert (found["steps_to_solve"], found["solved"], found["diverged"]) == (20, 3, 0)
    assert torch.tensor(found["self"]).isfinite()
