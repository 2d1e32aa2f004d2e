"""Exact search on small models where all is shown: the sweep, propose and verify."""

from dataclasses import replace

import pytest
import torch

from eval.circuit import Circuit
from eval.inversion.answer import Answer, tally, verdicts
from eval.inversion.problem import ACCEPT, Problem, pose
from eval.inversion.search.alternating import alternating
from eval.inversion.search.propose import propose
from eval.inversion.search.sweep import sweep
from eval.ranks import token_ranks
from eval.slices import Slice
from tests.eval.inversion.search_cases import (
    MIXERS,
    chance,
    found,
    lexicon,
    prompts,
    readback,
    sharpened,
    solve,
    useless,
    with_twins,
)

ALL_MIXERS = [*MIXERS, "expanded(factor=2)", "parallel(branches=2)", "headed(heads=2)", "toeplitz"]


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_sweep_recovers_every_token(small_model, mixer, layer):
    circuit, truth = Circuit(small_model(mixers=(mixer,)), layer), prompts()
    problem = pose(circuit, truth, Slice(0))
    answers = solve(sweep, problem)
    assert found(answers).equal(truth)
    for p, answer in enumerate(answers):
        assert answer.certificate == "enumerated"
        assert answer.evaluations == 8 * 400
        assert not answer.collisions
        assert answer.runner_up is not None
        assert (answer.runner_up > ACCEPT * problem.floor[p]).all()
        assert torch.equal(answer.tokens, truth[p])
    residual, at_floor = problem.residual(found(answers))
    assert at_floor.all()
    assert (residual <= ACCEPT * problem.floor.norm(dim=-1)).all()


def test_the_sweep_is_brute_force(small_model):
    """Each token's distance at each position, against one whole pass per candidate."""
    circuit, truth = Circuit(small_model(mixers=("attention+flat",)), 2), prompts(2, 4)
    problem = pose(circuit, truth, Slice.parse("[:, :, 3:20]"))
    for p, answer in enumerate(solve(sweep, problem)):
        for t in range(4):
            tried = truth[p].repeat(400, 1)
            tried[:, t] = torch.arange(400)
            apart = problem.slice.select(circuit.of_tokens(tried))[:, t] - problem.target[p, t]
            torch.testing.assert_close(-answer.scores[t], apart.norm(dim=1), atol=1e-4, rtol=1e-4)
            assert answer.runner_up is not None
            second = apart.norm(dim=1).sort().values[1]
            assert float(answer.runner_up[t]) == pytest.approx(float(second), rel=1e-4)


def by_layer(problems: list[Problem], coarse: bool = False) -> list[list[Answer]]:
    """The answers of one sweep over all layers, for each of them."""
    answers = iter(solve(sweep, problems, coarse=coarse))
    return [[next(answers) for _ in problem.target] for problem in problems]


@pytest.mark.parametrize("text", ["[:, :, :]", "[:, :, 4:12]"])
def test_layers_swept_together_are_layers_swept_alone(small_model, text):
    model, truth = small_model(mixers=("flat", "attention"), n_layers=3), prompts()
    layers = [2, 0, (1, 3), 3]
    problems = [pose(Circuit(model, layer), truth, Slice.parse(text)) for layer in layers]
    for together, problem in zip(by_layer(problems), problems, strict=True):
        alone = solve(sweep, problem)
        assert found(together).equal(found(alone))
        assert found(together).equal(truth)
        for a, b in zip(together, alone, strict=True):
            assert a.certificate == b.certificate == "enumerated"
            torch.testing.assert_close(a.scores, b.scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_sweep_screened_in_low_precision_finds_the_same(small_model, mixer):
    model, truth = sharpened(small_model(mixers=(mixer,)), 3.0), prompts(4)
    problems = [pose(Circuit(model, layer), truth, Slice()) for layer in (1, 2)]
    for answers, problem in zip(by_layer(problems, coarse=True), problems, strict=True):
        assert found(answers).equal(truth)
        for answer, exact in zip(answers, solve(sweep, problem), strict=True):
            assert (answer.certificate, exact.certificate) == ("screened", "enumerated")
            assert answer.runner_up is not None
            assert exact.runner_up is not None
            torch.testing.assert_close(answer.runner_up, exact.runner_up, atol=1e-4, rtol=1e-4)


def test_layers_that_disagree_are_swept_alone(small_model):
    """With noise, layers find different tokens: each goes on with its own."""
    model, truth = small_model(), prompts()
    problems = [
        pose(Circuit(model, layer), truth, Slice(), noise=3.0, generators=chance(3, layer))
        for layer in (1, 2)
    ]
    together = by_layer(problems)
    assert not found(together[0]).equal(found(together[1]))
    for own, problem in zip(together, problems, strict=True):
        assert found(own).equal(found(solve(sweep, problem)))


@pytest.mark.parametrize(
    ("mixer", "guesses"),
    [*((mixer, lexicon) for mixer in ALL_MIXERS), *((mixer, useless) for mixer in MIXERS)],
)
def test_proposals_are_exact_whatever_the_guesses(small_model, mixer, guesses):
    """Untrained and with large weights, at every layer: every token, each proved."""
    for factor in (1.0, 4.0):
        model, truth = sharpened(small_model(mixers=(mixer,)), factor), prompts(6)
        for layer in (0, 1, 2):
            circuit = Circuit(model, layer)
            problem = pose(circuit, truth, Slice(0))
            answers = solve(propose, problem, guesses(circuit))
            assert found(answers).equal(truth)
            assert all(answer.certificate == "residual" for answer in answers)
            assert all(answer.scores.shape == (8, 400) for answer in answers)


def test_proposals_cost_a_few_passes_where_guesses_hit(small_model):
    circuit, truth = Circuit(small_model(d_model=64), 2), prompts(6)
    answers = solve(propose, pose(circuit, truth, Slice(0)), lexicon(circuit))
    assert found(answers).equal(truth)
    assert all(answer.notes["swept"] == 0 for answer in answers)
    assert max(answer.evaluations for answer in answers) < 400


@pytest.mark.parametrize("part", ["mixer", "stream"])
@pytest.mark.parametrize("text", ["[:, :, :]", "[:, :, :12]", "[:, :, 5:20]"])
def test_proposals_of_parts_and_channels(small_model, part, text):
    for layers in (2, (1, 2)):
        circuit = Circuit(small_model(mixers=("attention+flat",)), layers, part)
        problem = pose(circuit, prompts(), Slice.parse(text))
        answers = solve(propose, problem, lexicon(circuit))
        assert found(answers).equal(found(solve(sweep, problem)))
        assert found(answers).equal(prompts())


def test_under_noise_proposals_are_within_the_limit_or_not_certified(small_model):
    circuit, truth = Circuit(small_model(), 2), prompts(8)
    for noise in (0.1, 1.0, 4.0):
        problem = pose(circuit, truth, Slice(), noise=noise, generators=chance(8))
        answers = solve(propose, problem, lexicon(circuit))
        within = problem.residual(found(answers))[1]
        assert within.tolist() == [answer.certificate == "residual" for answer in answers]


def test_what_cannot_be_explained_is_not_certified(small_model):
    """Targets that no tokens give: an answer all the same, and nothing that vouches for it."""
    circuit = Circuit(small_model(), 2)
    real = pose(circuit, prompts(4, 7), Slice(0))
    noise = torch.randn(real.target.shape, generator=torch.Generator().manual_seed(0))
    problem = replace(real, target=noise * real.target.std())
    hidden: Problem = replace(problem, slice=Slice(2), target=problem.target[:, 2:])
    hidden = replace(hidden, floor=real.floor[:, 2:], limit=real.limit[:, 2:])
    guesses = lexicon(circuit)
    answers: dict[str, list[Answer]] = {
        "sweep": solve(sweep, problem),
        "propose": solve(propose, problem, guesses),
        "alternating": solve(alternating, hidden, readback(circuit), chance(4), starts=1, rounds=1),
    }
    for name, own in answers.items():
        assert found(own).shape == (4, 7), name
        assert [answer.certificate for answer in own] == [None] * 4, name
    assert all(answer.notes["swept"] > 0 for answer in answers["propose"])


def test_a_wrong_answer_is_not_at_the_floor(small_model):
    truth = prompts(16)
    problem = pose(Circuit(small_model(), 2), truth, Slice(1))
    for t in range(8):
        wrong = truth.clone()
        wrong[:, t] = (wrong[:, t] + 1) % 400
        residual, at_floor = problem.residual(wrong)
        assert not at_floor.any()
        assert (residual > 1e3 * problem.floor.norm(dim=-1)).all()


@pytest.mark.parametrize("mixer", MIXERS)
def test_equal_embedding_rows_are_reported_as_collisions(small_model, mixer):
    truth = prompts()
    one = int(truth[0, 3])
    problem = pose(Circuit(with_twins(small_model(mixers=(mixer,)), one, 11), 2), truth, Slice(0))
    answer = solve(sweep, problem)[0]
    assert answer.collisions[3] == sorted({11, one})
    assert int(answer.tokens[3]) in (11, one)
    assert answer.certificate == "enumerated"
    said = verdicts(answer, truth[0], at_floor=True)
    assert said[3] == "ambiguous"
    assert said[2] == "recovered"


def test_ranks_and_tallies():
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1], [0.0, 0.0, 1.0]])
    rank = token_ranks(scores, torch.tensor([2, 0, 0]), torch.tensor([1, 0, 2])).tolist()
    assert rank == [1, 0, 1.5]
    assert tally(rank, [0, 1, 2]) == {
        "count": 3,
        "top1": pytest.approx(1 / 3),
        "top5": 1.0,
        "median_rank": 1.0,
    }
    assert tally(rank, []) is None
