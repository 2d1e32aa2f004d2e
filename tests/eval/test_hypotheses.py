"""Registered hypotheses: what rows make of them, and that registrations stay as they were."""

from typing import Any

import numpy as np
import pytest

from eval.information.hypotheses import CONFIRMED, OPEN, REFUTED, holm, judge, pigeonhole
from eval.information.page import page, state
from eval.rows import read_rows
from eval.statistics import clustered
from scripts.experiment import FOLDER, Registration

STORED = sorted(FOLDER.glob("*.parquet"))
DESIGN = {
    "architectures": {"flat": "", "llama": ""},
    "seeds": [1, 2],
    "steps": [0, 9],
    "passages": {"count": 12},
}
CHANGES = {"flat": 2.0, "llama": -1.0}


def rows(changes: dict[str, float] = CHANGES, scatter: float = 0.2) -> list[dict[str, Any]]:
    """Bits that change by so many; the effect is what the bits follow."""
    noise = np.random.default_rng(0)
    made = []
    for architecture, change in changes.items():
        for seed in DESIGN["seeds"]:
            for step in DESIGN["steps"]:
                for prompt in range(DESIGN["passages"]["count"]):
                    value = (
                        4 + (prompt % 5) + change * (step > 0) + scatter * noise.standard_normal()
                    )
                    kinds = {"alone": [value], "cumulative": [0.0]}
                    made.append(
                        {
                            "experiment": {"architecture": architecture, "seed": seed},
                            "checkpoint": {"step": step},
                            "prompt": prompt,
                            "distances": [8],
                            "rms": [1.0],
                            "effect": [value],
                            "effect_sampled": [2.0**value],
                            "margin_bits": {},
                            "bits": {"uniform": {"int4": kinds}},
                            "channels": {},
                        }
                    )
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
    (finding,) = judge(asked(expected=expected), rows(changes))
    assert finding.answer == answer
    for change in finding.changes:
        assert change.mean.low <= change.mean.estimate <= change.mean.high
        assert change.mean.estimate == pytest.approx(changes[change.architecture], abs=0.2)
        assert (change.pairs, len(change.seeds)) == (24, 2)


@pytest.mark.parametrize(("bound", "answer"), [(3.0, CONFIRMED), (1.0, REFUTED), (2.0, OPEN)])
def test_a_change_is_within_a_bound_with_its_whole_interval(bound, answer):
    (finding,) = judge(asked(within=bound, expected={"flat": "same"}), rows())
    assert finding.answer == answer


@pytest.mark.parametrize(("error", "answer"), [(0.5, CONFIRMED), (0.0, REFUTED)])
def test_a_figure_predicts_another_or_not(error, answer):
    about = asked(predictor="effect_sampled", correlation=0.9, error=error)
    del about["hypotheses"][0]["figure"]["distance"]
    (finding,) = judge(about, rows())
    assert finding.prediction is not None
    assert finding.prediction[0].estimate == pytest.approx(1)
    assert finding.answer == answer


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
    made = page(registration.plain, registration.hash, stored, f"experiments/{path.stem}-")
    assert state(registration.plain, stored) in made
    assert made == (FOLDER.parent / "bits.md").read_text(encoding="utf-8")
