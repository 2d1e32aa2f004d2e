"""Hidden tokens with nothing given: the alternating search on small models."""

import itertools
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from arch import LanguageModel
from eval.circuit import Circuit
from eval.inversion.answer import verdicts
from eval.inversion.problem import pose
from eval.inversion.search.alternating import COMBINED, CROSSED, _End, _Search, alternating
from eval.slices import Slice
from tests.eval.inversion.search_cases import (
    MIXERS,
    chance,
    found,
    misread,
    prompts,
    readback,
    sharpened,
    solve,
    with_twins,
)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("k", [1, 3])
def test_alternating_finds_hidden_tokens_with_nothing_given(small_model, mixer, k):
    circuit, truth = Circuit(small_model(mixers=(mixer,), d_model=64), 2), prompts(2, 10)
    problem = pose(circuit, truth, Slice(k))
    assert problem.target.shape == (2, 10 - k, 64)
    answers = solve(alternating, problem, readback(circuit), chance(2))
    assert found(answers).equal(truth)
    assert problem.residual(found(answers))[1].all()
    for answer in answers:
        assert answer.certificate == ("enumerated" if k == 1 else "residual")
        assert answer.scores[:k].argmax(dim=-1).equal(answer.tokens[:k])
        assert answer.evaluations > 400
        assert answer.notes["distance"] == 0


def test_a_search_ends_at_its_budget(small_model):
    """Of outputs that no tokens have, so that only the budget or the starts end it."""
    circuit, truth = Circuit(small_model(mixers=("flat",), d_model=64), 2), prompts(1, 10)
    problem = pose(circuit, truth, Slice(3))
    problem, guesses = replace(problem, target=problem.target.flip(1)), readback(circuit)
    spent = []
    for budget in (1, 20_000, 1 << 40):
        (answer,) = solve(alternating, problem, guesses, chance(1), starts=3, budget=budget)
        assert answer.certificate is None
        spent.append((answer.notes["starts"], answer.evaluations))
    assert spent == sorted(spent)
    assert spent[0][0] == 1
    assert spent[2][0] == 6  # and those with one more token hidden


@pytest.mark.parametrize("mixer", ["flat", "attention(heads=2)"])
@pytest.mark.parametrize(
    ("shown", "proof"),
    [("[:, :3+4:7+8:, :]", "enumerated"), ("[:, 1:4+6:, :]", "residual"),
     ("[:, :1+3:9, :]", "residual")],
)  # fmt: skip
def test_alternating_finds_tokens_hidden_anywhere(small_model, mixer, shown, proof):
    circuit, truth = Circuit(small_model(mixers=(mixer,), d_model=64), 2), prompts(2, 10)
    problem = pose(circuit, truth, Slice.parse(shown)).shortened()
    answers = solve(alternating, problem, readback(circuit), chance(2))
    assert found(answers).equal(truth[:, : problem.length])
    assert {answer.certificate for answer in answers} == {proof}
    hidden = [t for t in range(problem.length) if t not in problem.slice.positions(problem.length)]
    for answer in answers:
        assert answer.scores[hidden].argmax(dim=-1).equal(answer.tokens[hidden])
        assert answer.notes["starts"] >= len(problem.runs()) - (problem.runs()[0].hidden == 0)


def test_twins_in_a_hole_are_ambiguous_and_leave_what_follows_unproved(small_model):
    truth = prompts(1, 9)
    one = int(truth[0, 3])
    circuit = Circuit(with_twins(small_model(d_model=64), one, 11), 2)
    problem = pose(circuit, truth, Slice.parse("[:, :3+4:6+7:, :]"))
    (answer,) = solve(alternating, problem, readback(circuit), chance(1))
    assert answer.collisions == {3: sorted({11, one})}
    assert answer.certificate == "residual"
    others = [t for t in range(9) if t != 3]
    assert answer.tokens[others].equal(truth[0, others])


@pytest.mark.parametrize(
    "mixer", ["flat", pytest.param("attention(heads=2)", marks=pytest.mark.slow)]
)
def test_alternating_finds_five(small_model, mixer):
    circuit, truth = Circuit(small_model(mixers=(mixer,), d_model=64), 2), prompts(1, 12)
    answers = solve(alternating, pose(circuit, truth, Slice(5)), readback(circuit), chance(1))
    assert found(answers).equal(truth)
    assert answers[0].certificate == "residual"


@pytest.mark.parametrize(
    ("model", "site", "shown", "size", "guesses"),
    [
        ({}, (2,), "[:, 2:, :]", (2, 9), misread),
        ({"factor": 2.0}, (2,), "[:, 2:, :]", (2, 9), readback),
        ({}, (2,), "[:, -1, :]", (2, 3), readback),
        ({"mixers": ("attention",)}, (2, "mixer"), "[:, 1:, :]", (1, 8), readback),
        ({"mixers": ("attention",)}, ((1, 2), "block"), "[:, 1:, :]", (1, 8), readback),
    ],
    ids=["without good guesses", "large weights", "the last position alone", "part", "layers"],
)
def test_hidden_tokens_are_found(small_model, model, site, shown, size, guesses):
    factor = model.get("factor", 1.0)
    settings = {name: value for name, value in model.items() if name != "factor"}
    made = sharpened(small_model(d_model=64, **settings), factor)
    circuit, truth = Circuit(made, *site), prompts(*size)
    problem = pose(circuit, truth, Slice.parse(shown))
    answers = solve(alternating, problem, guesses(circuit), chance(len(truth)))
    assert found(answers).equal(truth)
    assert all(answer.certificate for answer in answers)


def test_a_hidden_token_and_the_next_one_held_wrong_together(small_model):
    """One start comes to rest beside the truth; with one more token hidden it does not."""
    circuit, truth = (
        Circuit(sharpened(small_model(mixers=("flat",), d_model=64), 4.0), 2),
        prompts(4, 8, seed=8),
    )
    answers = solve(
        alternating,
        pose(circuit, truth, Slice(1)),
        readback(circuit),
        chance(4),
        starts=1,
        rounds=2,
    )
    assert [answer.notes["starts"] for answer in answers] == [2] * 4
    assert found(answers).equal(truth)
    assert all(answer.certificate == "enumerated" for answer in answers)


@pytest.mark.parametrize("blurred", [0, 4, 7])
def test_rivals_of_a_single_hidden_token_are_checked_at_every_position(small_model, blurred):
    """At the first positions nothing tells tokens apart, as if noise hid it; at the others all."""
    circuit, truth = Circuit(small_model(d_model=64), 2), prompts(2, 8)
    problem = pose(circuit, truth, Slice(1))
    limit = problem.limit.clone()
    limit[:, :blurred] = 1.0 * problem.target[:, :blurred].norm(dim=-1)
    problem = replace(problem, limit=limit)
    answers = solve(alternating, problem, readback(circuit), chance(2))
    several = 0
    for p, answer in enumerate(answers):
        assert answer.certificate == "enumerated"
        vocabulary = torch.arange(len(circuit.vocabulary))[:, None]
        whole = torch.cat([vocabulary, answer.tokens[1:].expand(len(vocabulary), -1)], dim=1)
        fitting = vocabulary[problem.of([p]).residual(whole)[1], 0].tolist()
        assert int(answer.tokens[0]) in fitting
        assert answer.collisions == ({0: fitting} if len(fitting) > 1 else {})
        several += len(fitting) > 1
    assert several == (len(answers) if blurred == 7 else 0)


def test_the_same_seed_gives_the_same_answer(small_model):
    circuit, truth = Circuit(small_model(), 2), prompts(1, 8)
    problem = pose(circuit, truth, Slice(4))
    both = [
        solve(alternating, problem, readback(circuit), chance(1), starts=1, rounds=2)[0]
        for _ in range(2)
    ]
    assert both[0].tokens.equal(both[1].tokens)
    assert both[0].evaluations == both[1].evaluations


@pytest.mark.parametrize(
    ("mixers", "count"), [(["flat"], 4), pytest.param(MIXERS, 16, marks=pytest.mark.slow)]
)
def test_no_false_accept(small_model, mixers, count):
    """A search cut short is often wrong: whatever it certifies is the truth."""
    certified = wrong = 0
    for mixer in mixers:
        model = sharpened(small_model(mixers=(mixer,)), 3.0)
        for layer, k in ((1, 1), (2, 3)):
            circuit, truth = Circuit(model, layer), prompts(count, 9, seed=layer)
            problem = pose(circuit, truth, Slice(k))
            short: dict[str, Any] = {"starts": 1, "rounds": 1, "beams": 16}
            answers = solve(alternating, problem, readback(circuit), chance(count), **short)
            right = (found(answers) == truth).all(dim=1).tolist()
            said = [answer.certificate is not None for answer in answers]
            assert not any(s and not r for s, r in zip(said, right, strict=True))
            assert said == problem.residual(found(answers))[1].tolist()
            certified += sum(said)
            wrong += len(right) - sum(right)
    assert certified > 0
    assert wrong > 0  # or nothing was tested


def test_one_hidden_token_with_a_twin_is_ambiguous(small_model):
    truth = prompts(1, 6)
    one = int(truth[0, 0])
    circuit = Circuit(with_twins(small_model(d_model=64), one, 11), 2)
    (answer,) = solve(alternating, pose(circuit, truth, Slice(1)), readback(circuit), chance(1))
    assert answer.collisions[0] == sorted({11, one})
    assert answer.tokens[1:].equal(truth[0, 1:])
    assert verdicts(answer, truth[0], at_floor=True) == ["ambiguous", *["recovered"] * 5]


def crossed(
    model: LanguageModel, k: int, ends: Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, int]:
    """The hidden tokens that are run where some starts ended at `(n, k)`; the memory it took."""
    circuit, truth = Circuit(model, 1), prompts(1, k + 2)
    problem = pose(circuit, truth, Slice(k))
    search = _Search(problem, truth[:, :0], readback(circuit), chance(1)[0], 1, 8)
    tried: list[Tensor] = []

    def nearest(guesses: Tensor, visible: Tensor) -> tuple[Tensor, float]:
        tried.append(guesses)
        return guesses[:1], 0.0

    monkeypatch.setattr(search, "_nearest", nearest)
    rests = [_End(end[None], float(i), False) for i, end in enumerate(ends)]
    tracemalloc.start()
    search._cross(rests)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return tried[0], peak


def test_ends_of_few_hidden_tokens_are_combined_in_every_way(small_model, monkeypatch):
    ends = torch.tensor([[5, 7, 9, 1], [4, 7, 2, 0], [5, 3, 8, 6]])
    tried, _ = crossed(small_model(), 4, ends, monkeypatch)
    ways = itertools.product([4, 5], [3, 7], [2, 8, 9], [0, 1, 6])
    assert tried.tolist() == [*ends.tolist(), *map(list, ways)]


def test_combining_many_hidden_tokens_takes_little_memory(small_model, monkeypatch):
    k = 9
    ends = torch.arange(CROSSED * k).view(CROSSED, k)
    tried, peak = crossed(small_model(), k, ends, monkeypatch)
    assert peak < 20e6  # all of them, as tuples, would be more than 200
    assert len(tried) == CROSSED + COMBINED
    assert all(set(column.tolist()) == set(ends[:, j].tolist()) for j, column in enumerate(tried.T))
    assert len(tried.unique(dim=0)) > COMBINED / 2
