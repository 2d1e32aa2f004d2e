"""Hidden tokens with nothing given: the alternating search on small models."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from eval.inversion.solvers.alternating.search import alternating
from tests.eval.inversion.search_cases import (
    MIXERS,
    generators,
    misread,
    posed,
    prompts,
    readback,
    sharpened,
    solve,
    tokens_of,
)

HEADS = "attention(heads=2)"
CASES: list[Any] = [
    (("flat",), (2, 10), "[:, :3+4:7+8:, :]", "enumerated"),
    ((HEADS,), (2, 10), "[:, 1:4+6:, :]", "residual"),
    (("flat",), (2, 10), "[:, :1+3:9, :]", "residual"),
    (("flat",), (1, 12), "[:, 5:, :]", "residual"),
    pytest.param(((HEADS,), (1, 12), "[:, 5:, :]", "residual"), marks=pytest.mark.slow),
    (("attention",), (1, 8), "[:, 1:, :]", "enumerated", (2, "mixer")),
    (("attention",), (1, 8), "[:, 1:, :]", "enumerated", ((1, 2), "block")),
    (("flat",), (2, 9), "[:, 2:, :]", "residual", (2,), misread),
    (("flat",), (2, 9), "[:, 2:, :]", "residual", (2,), readback, 2.0),
    (("flat",), (2, 3), "[:, -1, :]", "residual"),
    *(((m,), (2, 10), "[:, 1:, :]", "enumerated") for m in MIXERS),
    *(((m,), (2, 10), "[:, 3:, :]", "residual") for m in MIXERS),
]  # fmt: skip
"""Mixers, prompts and tokens, what is shown, the certificate; site, guesses, size of weights."""


@pytest.mark.first(4)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[:4]))
def test_tokens_hidden_anywhere_are_proved(small_model, case):
    mixers, size, shown, proof, *more = case
    default: list[Any] = [(2,), readback, 1.0]
    site, guesses, factor = [*more, *default[len(more) :]]
    truth, model = prompts(*size), sharpened(small_model(mixers=mixers, d_model=64), factor)
    problem = posed(model, truth, shown, *site)
    answers = solve("alternating", problem, guesses)
    assert tokens_of(answers).equal(truth[:, : problem.length])
    assert problem.residual(tokens_of(answers))[1].all()
    seen, runs = problem.slice.positions(problem.length), problem.runs()
    hidden = [t for t in range(problem.length) if t not in seen]
    for answer in answers:
        assert answer.certificate == proof
        assert answer.scores[hidden].argmax(dim=-1).equal(answer.tokens[hidden])
        assert answer.evaluations > 400
        assert answer.notes["distance"] == 0
        assert answer.notes["starts"] >= len(runs) - (runs[0].hidden == 0)


@pytest.mark.slow
def test_a_search_ends_at_its_budget(small_model):
    """Of outputs that no tokens have, so that only the budget or the starts end it."""
    problem = posed(small_model(mixers=("flat",), d_model=64), prompts(1, 8), "[:, 3:, :]")
    problem, spent = replace(problem, target=problem.target.flip(1)), []
    for budget in (1, 10_000, 1 << 40):
        (answer,) = solve("alternating", problem, starts=2, rounds=2, budget=budget)
        assert answer.certificate is None
        spent.append((answer.notes["starts"], answer.evaluations))
    assert spent == sorted(spent)
    assert spent[0][0] == 1
    assert 8 * spent[0][1] < spent[2][1]  # its first turn is the last
    assert spent[2][0] == 4  # and those with one more token hidden
    again = solve("alternating", problem, starts=2, rounds=2)
    assert again[0].evaluations == spent[2][1]


def test_a_hidden_token_and_the_next_one_held_wrong_together(small_model):
    """One start comes to rest beside the truth; with one more token hidden it does not."""
    model, truth = sharpened(small_model(mixers=("flat",), d_model=64)), prompts(4, 8, seed=14)
    answers = solve("alternating", posed(model, truth, "[:, 1:, :]"), starts=1, rounds=2)
    assert [answer.notes["starts"] for answer in answers] == [2] * 4
    assert tokens_of(answers).equal(truth)
    assert all(answer.certificate == "enumerated" for answer in answers)


@pytest.mark.parametrize("blurred", [0, 4, 7])
def test_rivals_of_a_single_hidden_token_are_checked_at_every_position(small_model, blurred):
    """At the first positions nothing tells tokens apart, as if noise hid it; at the others all."""
    problem = posed(small_model(d_model=64), prompts(2, 8), "[:, 1:, :]")
    problem.tolerance.spread[:, :blurred] = 1.0 * problem.target[:, :blurred].norm(dim=-1)
    answers = solve("alternating", problem)
    several = 0
    for p, answer in enumerate(answers):
        assert answer.certificate == ("residual" if answer.collisions else "enumerated")
        vocabulary = torch.arange(400)[:, None]
        whole = torch.cat([vocabulary, answer.tokens[1:].expand(400, -1)], dim=1)
        fitting = vocabulary[problem.of([p]).residual(whole)[1], 0].tolist()
        assert int(answer.tokens[0]) in fitting
        listed = answer.collisions.get(0, [])
        assert set(listed) <= set(fitting)
        assert len(listed) == (min(16, len(fitting)) if len(fitting) > 1 else 0)
        several += len(fitting) > 1
    assert several == (len(answers) if blurred == 7 else 0)


@pytest.mark.parametrize(
    ("mixers", "count"), [(["flat"], 4), pytest.param(MIXERS, 16, marks=pytest.mark.slow)]
)
def test_no_false_accept(small_model, mixers, count):
    """A search cut short is often wrong: whatever it certifies is the truth."""
    certified, wrong = [], 0
    for mixer in mixers:
        model = sharpened(small_model(mixers=(mixer,)), 3.0)
        for layer, k in ((1, 1), (2, 3)):
            truth = prompts(count, 9, seed=layer)
            problem = posed(model, truth, f"[:, {k}:, :]", layer)
            answers = solve("alternating", problem, starts=1, rounds=1)
            right = (tokens_of(answers) == truth).all(dim=1)
            said = torch.tensor([answer.certificate is not None for answer in answers])
            assert right[said].all()
            assert said.equal(problem.residual(tokens_of(answers))[1])
            certified.append(bool(said.any()))
            wrong += int((~right).sum())
    assert any(certified)
    assert wrong > 0  # or nothing was tested


@pytest.mark.first(1)
@pytest.mark.parametrize(("shown", "factor"), [("[:, 1:, :]", 1.0), ("[:, 2:5+6:, :]", 4.0)])
def test_prompts_are_answered_together_as_alone(small_model, shown, factor):
    model = sharpened(small_model(mixers=(HEADS,), d_model=64), factor)
    problem = posed(model, prompts(3, 8), shown)
    fit = readback(problem.circuit)
    problem = replace(problem, readbacks=lambda _: [fit])
    short: dict[str, Any] = {"starts": 2, "rounds": 1}
    together = alternating(problem, generators(3), **short)
    for p, answer in enumerate(together):
        (alone,) = alternating(problem.of([p]), [generators(3)[p]], **short)
        assert alone.tokens.equal(answer.tokens)
        for name in ("enumerated", "collisions", "evaluations"):
            assert getattr(alone, name) == getattr(answer, name)
        assert alone.notes == pytest.approx(answer.notes, rel=1e-3)


def test_a_guess_of_the_hidden_tokens_is_where_the_search_begins(small_model):
    truth = prompts(3, 10)
    problem = posed(small_model(mixers=("attention",)), truth, "[:, 2:, :]")
    guess = truth[:, :2]
    for rows in ([0, 1, 2], [2, 0]):
        begun = replace(problem, guess=guess).of(rows)
        answers = solve("alternating", begun, starts=1, rounds=1)
        assert tokens_of(answers).equal(truth[rows])
        unguided = solve("alternating", problem.of(rows))
        for one, other in zip(answers, unguided, strict=True):
            assert one.evaluations < other.evaluations


def test_most_positions_of_an_answer_must_be_near(small_model):
    """Within the limit everywhere is not enough where a tighter distance is given."""
    truth = prompts(2, 10)
    problem = posed(small_model(), truth)
    tolerance = replace(problem.tolerance, spread=torch.full_like(problem.target[..., 0], 1e6))
    far = replace(problem, tolerance=tolerance)
    assert far.residual(truth + 1)[1].all()
    for share, accepted in ((4, False), (6, True)):
        usual = torch.where(torch.arange(10) < share, 0.0, -1e6 / 3).expand_as(tolerance.spread)
        strict = replace(far, tolerance=replace(tolerance, usual=usual))
        assert bool(strict.residual(truth + 1)[1].all()) == accepted
