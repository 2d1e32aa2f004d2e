"""Registered hypotheses: what rows make of them, and that registrations stay as they were."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from eval import RequestError
from eval.information.hypotheses import (
    CONFIRMED,
    OPEN,
    REFUTED,
    Judged,
    findings_of,
    holm,
    pigeonhole,
    records,
)
from eval.information.page import state
from eval.rows import read_rows
from eval.statistics import clustered
from scripts.experiment import FOLDER, Registration, page_of

STORED = sorted(FOLDER.glob("*.parquet"))
PAGES = {
    "e1": "bits.md",
    "e2b": "states.md",
    "e3b": "recall.md",
    "e4b": "padding.md",
    "e5b": "retention.md",
}
DESIGN = {"steps": [0, 9]}
CHANGES = {"flat": 2.0, "llama": -1.0}


def rows(changes: dict[str, float] = CHANGES, scatter: float = 0.2) -> list[dict[str, Any]]:
    """Bits that change by so many; the effect is what the bits follow."""
    noise = np.random.default_rng(0)
    made = []
    for architecture, seed, step, prompt in product(changes, (1, 2), (0, 9), range(12)):
        change = changes[architecture] * (step > 0)
        value = 4 + (prompt % 5) + change + scatter * noise.standard_normal()
        kinds = {"alone": [value], "cumulative": [0.0]}
        about = {"experiment": {"architecture": architecture, "seed": seed}}
        about |= {"checkpoint": {"step": step}, "kind": "bits", "prompt": prompt}
        effects = {"effect": [value], "effect_sampled": [2.0**value]}
        made.append(about | effects | {"distances": [8], "bits": {"uniform": {"int4": kinds}}})
    return made


def asked(**hypothesis: Any) -> dict[str, Any]:
    figure = {"quantity": "bits", "precision": "int4", "distance": 8}
    return {"design": DESIGN, "hypotheses": [{"id": "H1", "figure": figure} | hypothesis]}


@pytest.mark.parametrize(
    ("expected", "changes", "answer"),
    [
        ({"flat": "up"}, CHANGES, CONFIRMED),
        ({"flat": "up", "llama": "down"}, CHANGES, CONFIRMED),
        ({"flat": "up", "llama": "up"}, CHANGES, REFUTED),
        ({"flat": "down"}, CHANGES, REFUTED),
        ({"flat": "up", "llama": "down"}, {"flat": 2.0}, OPEN),  # no rows of one
        ({"flat": "up"}, {"flat": 0.0}, OPEN),
    ],
)
def test_changes_are_judged_by_their_direction(expected, changes, answer):
    (finding,) = findings_of(asked(expected=expected), rows(changes))
    assert finding.answer == answer
    for change in finding.comparisons:
        assert change.mean.low <= change.mean.estimate <= change.mean.high
        assert change.mean.estimate == pytest.approx(changes[change.words], abs=0.2)
        assert change.before == pytest.approx(4 + np.mean([n % 5 for n in range(12)]), abs=0.2)
        assert (change.pairs, len(change.seeds)) == (24, 2)


@pytest.mark.parametrize(("bound", "answer"), [(3.0, CONFIRMED), (1.0, REFUTED), (2.0, OPEN)])
def test_a_change_is_within_a_bound_with_its_whole_interval(bound, answer):
    (finding,) = findings_of(asked(within=bound, expected={"flat": "same"}), rows())
    assert finding.answer == answer


@pytest.mark.parametrize(("error", "answer"), [(0.5, CONFIRMED), (0.0, REFUTED)])
def test_a_figure_predicts_another_or_not(error, answer):
    about = asked(predictor="effect_sampled", correlation=0.9, error=error)
    del about["hypotheses"][0]["figure"]["distance"]
    (finding,) = findings_of(about, rows())
    assert finding.prediction is not None
    assert finding.prediction[0].estimate == pytest.approx(1)
    assert finding.answer == answer


PROMPTS, SEEDS = 10, (1, 2, 3)


def tries(**shares: float) -> list[dict[str, Any]]:
    """Rows of methods that find such shares of the prompts, the same ones in all seeds."""
    return [
        {"method": method, "prompt": prompt, "whole": prompt < PROMPTS * share,
         "experiment": {"seed": seed}, "checkpoint": {"step": 0}}
        for method, share in shares.items()
        for seed in SEEDS
        for prompt in range(PROMPTS)
    ]  # fmt: skip


def compared(rows: list[dict[str, Any]], **asked: Any) -> Judged:
    """The finding of a hypothesis about the share of prompts found whole."""
    hypothesis = {"id": "H1", "contrasts": {"value": "whole"} | asked}
    (finding,) = findings_of({"design": {}, "hypotheses": [hypothesis]}, rows)
    return finding


@pytest.mark.parametrize(
    ("asked", "shares", "answer"),
    [
        ({"of": {"method": "a"}, "above": 0.5}, {"a": 1.0}, CONFIRMED),
        ({"of": {"method": "a"}, "above": 0.5}, {"a": 0.0}, REFUTED),
        ({"of": {"method": "a"}, "above": 0.5}, {"a": 0.6}, OPEN),
        ({"of": {"method": "a"}, "below": 0.5}, {"a": 0.0}, CONFIRMED),
        ({"of": {"method": "a"}, "above": 0.5}, {"b": 1.0}, OPEN),  # no records
        ({"of": {"method": "a"}, "minus": {"method": ["b", "c"]}, "above": 0},
         {"a": 1.0, "b": 0.0, "c": 0.1}, CONFIRMED),
        ({"of": {"method": "a"}, "minus": {"method": ["b", "c"]}, "above": 0},
         {"a": 1.0, "b": 0.0}, OPEN),
        ({"of": {"method": "a"}, "minus": {"method": "b"}, "above": 0}, {"a": 0.1, "b": 1.0},
         REFUTED),
        ({"of": {"method": "a"}, "minus": {"method": "b"}, "within": 0.2}, {"a": 1, "b": 1},
         CONFIRMED),
        ({"of": {"method": "a"}, "minus": {"method": "b"}, "within": 0.05}, {"a": 1, "b": 1},
         OPEN),  # as many pairs leave more than that possible
        ({"of": {"method": "a"}, "minus": {"method": "b"}, "within": 0.2}, {"a": 1, "b": 0.1},
         REFUTED),
        ({"each": {"method": ["a", "b"]}, "above": 0.5}, {"a": 1, "b": 0}, REFUTED),
    ],
)  # fmt: skip
def test_means_are_compared_with_a_bound(asked, shares, answer):
    finding = compared(tries(**shares), **asked)
    assert finding.answer == answer
    for each in finding.comparisons:
        assert each.mean.low <= each.mean.estimate <= each.mean.high
        assert (each.pairs, len(each.seeds)) == (30, 3)


def test_a_comparison_is_of_one_record_a_pair():
    with pytest.raises(RequestError, match="prompt 0 of seed 1 has several records"):
        compared(tries(a=1.0, b=0.0), above=0.5)


def recovery(seed: int, spent: int, exact: bool, **more: Any) -> dict[str, Any]:
    """A row of a prompt of one hidden and two shown tokens."""
    return {
        "kind": "recovery", "experiment": {"seed": 7, "architecture": "flat"},
        "checkpoint": {"step": 0}, "prompt": 4, "seed": seed, "method": "adam", "hidden": 1,
        "observed": 2, "settings": {"budget": 100}, "evaluations": spent, "exact": exact,
        "at_floor": exact, "residual": 0.0 if exact else 1.0, "criterion": None,
        "nonself": {"top1": float(exact)}, "self": {"top1": 0.5}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("starts", "whole", "spent"),
    [
        ([recovery(0, 60, True)], True, 60),
        ([recovery(0, 160, True)], False, 100),  # after its budget
        ([recovery(1, 40, True), recovery(0, 99, False), recovery(2, 10, True)], True, 139),
        ([recovery(0, 99, False), recovery(1, 99, False)], False, 198),
    ],
)
def test_starts_of_a_prompt_are_one_record(starts, whole, spent):
    (record,) = records(starts)
    assert (record["whole"], record["spent"], record["seed"]) == (whole, spent, 7)
    assert record["named"] == float(any(row["exact"] for row in starts))
    assert (record["hidden"], record["shown"], record["step"]) == (1, 2, 0)


def test_holm_corrects_for_the_number():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6]) == [0.6]


def test_draws_have_the_interval_of_the_bench():
    table = np.random.default_rng(1).normal(size=(30, 3))
    drawn = np.quantile(pigeonhole(table), [0.025, 0.975])
    passages, seeds = np.indices(table.shape)
    own = clustered(
        table.ravel().tolist(), [1.0] * 90, passages.ravel().tolist(), seeds.ravel().tolist()
    )
    assert drawn == pytest.approx([own.low, own.high], abs=0.03)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_registration_says_what_each_outcome_means(path):
    plain = Registration.read(path.stem).plain
    assert plain["name"] == path.stem
    assert all(plain[name] for name in ("title", "question", "background", "design", "analysis"))
    for hypothesis in plain["hypotheses"]:
        assert all(hypothesis[name] for name in ("id", "says", "confirmed", "refuted"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_rows_are_of_the_registration_as_it_is(path):
    """A registration is not edited after its data: rows hold its hash."""
    registration, stored = Registration.read(path.stem), read_rows([path])
    assert {row["experiment"]["registration"] for row in stored} == {registration.hash}
    made, _ = page_of(registration, stored, f"experiments/{path.stem}-")
    assert state(registration.plain, stored) in made
    assert made == (FOLDER.parent / PAGES[path.stem]).read_text(encoding="utf-8")
