"""Models in half precision: they are inverted, and nothing is certified of them."""

import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from arch import LanguageModel
from eval.circuit import Circuit
from eval.errors import RequestError
from eval.inversion.problem import pose
from eval.inversion.questions import Question
from eval.inversion.run import plan
from eval.inversion.search.sweep import sweep
from eval.inversion.solvers import parse_solvers
from eval.models import Checkpoint
from eval.rows import Row
from eval.slices import Slice
from eval.summary import summarise
from eval.text import Prompt
from tests.eval.inversion.search_cases import lexicon, prompts, solve

METHODS = {
    "descent": {"steps": 5},
    "normed": {"method": "adam", "steps": 5, "decode": "normed"},
    "gcg": {"steps": 3},
    "sweep": {},
    "coarse": {"method": "sweep", "coarse": True},
    "propose": {},
    "expected": {},
    "alternating": {},
    "snap": {"steps": 5, "resolve": 5},
    "chance": {},
}


def rows_of(model: LanguageModel, tokenizer: Tokenizer, shown: Slice) -> list[Row]:
    """Every method's rows about two prompts at the last layer."""
    meta = {"name": "flat", "step": 0}
    checkpoint = Checkpoint(model, model.config, tokenizer, meta, Path("flat"))
    asked = [Prompt("random", i, tuple(row)) for i, row in enumerate(prompts(2, 7).tolist())]
    question = Question(parse_solvers(METHODS), (shown,), "last")
    return [row for job in plan(checkpoint, question, asked, "toy:2000") for row in job.rows()]


@pytest.mark.parametrize(
    ("mixer", "dtype", "shown"),
    [
        ("flat", torch.float16, Slice(0)),
        ("attention(heads=2)", torch.bfloat16, Slice(0)),
        ("attention(heads=2)", torch.float16, Slice(1)),
        ("flat", torch.bfloat16, Slice(1)),
    ],
)
def test_half_precision_is_inverted_and_certifies_nothing(
    small_model, small_tokenizer, mixer, dtype, shown
):
    model = small_model(mixers=(mixer,), d_model=64).to(dtype)
    rows = rows_of(model, small_tokenizer, shown)
    hidden = bool(shown.hidden_prefix(7))
    searches = {"alternating", "snap"} if hidden else {"sweep", "coarse", "propose", "expected"}
    assert {r["method"] for r in rows} == searches | {"descent", "normed", "gcg", "chance"}
    assert all(row["certificate"] is None for row in rows)
    name = str(dtype).removeprefix("torch.")
    assert {r["uncertified"] for r in rows} == {f"weights in {name}: no certificate below float32"}
    for row in rows:
        assert row["floor"] >= torch.finfo(dtype).eps  # of the model's rounding, not of fp32's
        if row["method"] in ("sweep", "coarse"):
            assert row["exact"]
        if row["method"] == "sweep":
            assert row["margin_bits"] < 12
    records = summarise(rows)
    assert all(record["at_floor"] == record["false_accepts"] == 0 for record in records)
    assert all(record["enumerated"] == record["tokens_accepted"] == 0 for record in records)


def test_full_precision_is_certified(small_model, small_tokenizer):
    rows = rows_of(small_model(d_model=64), small_tokenizer, Slice(0))
    certificates = {row["method"]: row["certificate"] for row in rows if row["family"] == "search"}
    assert certificates == {"sweep": "enumerated", "coarse": "screened", "propose": "residual"}
    assert {row["uncertified"] for row in rows} == {None}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_outputs_floors_and_inverses_are_in_single_precision(small_model, dtype):
    model = small_model().to(dtype)
    circuit, tokens = Circuit(model, 1), prompts(2, 5)
    outputs = circuit.of_tokens(tokens)
    assert outputs.dtype == circuit.embed(tokens).dtype == torch.float32
    assert outputs.equal(model.hidden(model.embed(tokens), 1).float())
    assert circuit.pseudo_inverse.dtype == lexicon(circuit).metric(0, None).dtype == torch.float32
    problem = pose(circuit, tokens, Slice(0))
    assert problem.target.dtype == problem.floor.dtype == torch.float32
    assert (problem.floor >= torch.finfo(dtype).eps * problem.target.norm(dim=-1)).all()


def test_a_method_that_only_proves_is_refused_in_half_precision(small_model, small_tokenizer):
    model = small_model().half()
    checkpoint = Checkpoint(model, model.config, small_tokenizer, {"name": "m"}, Path("m"))
    question = Question(parse_solvers(["enumerate"]), (Slice(2),), "last")
    with pytest.raises(RequestError, match="enumerate: it proves answers, and m has weights in fl"):
        plan(checkpoint, question, [Prompt("random", 0, tuple(range(6)))], "toy:2000")


def test_a_row_s_margin_is_the_worst_over_positions_of_margin_over_floor(
    small_model, small_tokenizer
):
    model, truth = small_model(d_model=64), prompts(2, 7)
    rows = {
        r["prompt"]: r for r in rows_of(model, small_tokenizer, Slice(0)) if r["method"] == "sweep"
    }
    problem = pose(Circuit(model, 2), truth, Slice(0))
    for p, answer in enumerate(solve(sweep, problem)):
        assert answer.runner_up is not None
        bits = [
            math.log2(margin / floor)
            for margin, floor in zip(
                answer.runner_up.tolist(), problem.floor[p].tolist(), strict=True
            )
        ]
        assert rows[p]["margin_bits"] == pytest.approx(min(bits), abs=0.2)
        least, whole = float(answer.runner_up.min()), float(problem.floor[p].norm())
        assert rows[p]["margin_bits"] > math.log2(least / whole) + 0.5
        t = bits.index(min(bits))
        assert rows[p]["margin"] == pytest.approx(float(answer.runner_up[t]), rel=1e-3)
