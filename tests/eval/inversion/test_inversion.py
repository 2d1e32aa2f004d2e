"""Exact search on small models where all is shown: the sweep, SipIt, what searches share."""

from dataclasses import replace

import pytest
import torch

from eval.inversion.problem import ACCEPT
from eval.inversion.scoring import rank_tally, verdicts
from eval.inversion.solver import COLLISIONS
from eval.inversion.turns import SCREENS
from eval.ranks import token_ranks
from tests.eval.inversion.search_cases import (
    MIXERS,
    posed,
    prompts,
    solve,
    tokens_of,
    with_twins,
)

SHOWN, ONE = "[:, :, :]", "[:, 1:, :]"


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_sweep_recovers_every_token(small_model, mixer, layer):
    truth = prompts()
    problem = posed(small_model(mixers=(mixer,)), truth, "[:, :, :]", layer)
    answers = solve("sweep", problem)
    assert tokens_of(answers).equal(truth)
    for p, answer in enumerate(answers):
        assert answer.certificate == "enumerated"
        assert answer.evaluations == 8 * 400
        assert not answer.collisions
        assert answer.runner_up is not None
        assert (answer.runner_up > ACCEPT * problem.floor[p]).all()
    residual, at_floor = problem.residual(truth)
    assert at_floor.all()
    assert (residual <= ACCEPT * problem.floor.norm(dim=-1)).all()
    for t in range(8):  # a wrong answer is not at the floor
        wrong = truth.clone()
        wrong[:, t] = (wrong[:, t] + 1) % 400
        residual, at_floor = problem.residual(wrong)
        assert not at_floor.any()
        assert (residual > 1e3 * problem.floor.norm(dim=-1)).all()


def test_the_sweep_is_brute_force(small_model):
    """Each token's distance at each position, against one whole pass per candidate."""
    truth = prompts(2, 4)
    problem = posed(small_model(mixers=("attention+flat",)), truth, "[:, :, 3:20]")
    for p, answer in enumerate(solve("sweep", problem)):
        for t in range(4):
            tried = truth[p].repeat(400, 1)
            tried[:, t] = torch.arange(400)
            outputs = problem.slice.select(problem.circuit.of_tokens(tried))
            apart = (outputs[:, t] - problem.target[p, t]).norm(dim=1)
            torch.testing.assert_close(-answer.scores[t], apart, atol=1e-4, rtol=1e-4)
            assert answer.runner_up is not None
            assert float(answer.runner_up[t]) == pytest.approx(float(apart.sort()[0][1]), rel=1e-4)


def test_under_noise_proposals_are_within_the_limit_or_not_certified(small_model):
    for noise in (0.1, 1.0, 4.0):
        problem = posed(small_model(), prompts(8), noise=noise)
        answers = solve("propose", problem)
        within = problem.residual(tokens_of(answers))[1]
        assert within.tolist() == [answer.certificate == "residual" for answer in answers]


def test_what_cannot_be_explained_is_not_certified(small_model):
    """Targets that no tokens give: an answer all the same, and nothing that vouches for it."""
    real = posed(small_model(), prompts(4, 7))
    noise = torch.randn(real.target.shape, generator=torch.Generator().manual_seed(0))
    problem = replace(real, target=noise * real.target.std())
    answers = {
        "sweep": solve("sweep", problem),
        "propose": solve("propose", problem),
        "alternating": solve("alternating", problem.showing(slice(2, None)), starts=1, rounds=1),
    }
    for name, given in answers.items():
        assert tokens_of(given).shape == (4, 7), name
        assert [answer.certificate for answer in given] == [None] * 4, name
    assert all(answer.notes["swept"] > 0 for answer in answers["propose"])


@pytest.mark.parametrize(
    ("name", "shown", "at"),
    [("sweep", SHOWN, 0), ("alternating", ONE, 0), ("alternating", "[:, :3+4:6+7:, :]", 3)],
)
def test_an_answer_that_is_not_alone_is_not_proved(small_model, name, shown, at):
    """A token with a twin is ambiguous; where it is hidden, what follows is unproved."""
    truth = prompts(3, 9)
    one = int(truth[0, at])
    model = with_twins(small_model(mixers=("flat",), d_model=64), one, 11)
    answers = solve(name, posed(model, truth, shown))
    assert [answer.collisions for answer in answers] == [{at: sorted({11, one})}, {}, {}]
    found, collisions = answers[0].tokens.tolist(), answers[0].collisions
    assert found[at] in (11, one)
    said = verdicts(found, truth[0].tolist(), collisions, True)
    assert said == ["ambiguous" if t == at else "recovered" for t in range(9)]
    proofs = [answer.certificate for answer in answers]
    assert proofs == ["residual", "enumerated", "enumerated"]


@pytest.mark.parametrize(("name", "shown"), [("sweep", SHOWN), ("alternating", ONE)])
def test_of_many_collisions_the_nearest_are_kept(small_model, name, shown):
    problem = posed(small_model(mixers=("flat",)), prompts(2, 6), shown)
    problem = replace(problem, limit=10 * problem.target.norm(dim=-1))  # everything lies within it
    for p, answer in enumerate(solve(name, problem)):
        assert answer.collisions.keys() == ({0} if problem.hidden else set(range(6)))
        assert all(len(tokens) == COLLISIONS for tokens in answer.collisions.values())
        whole = answer.tokens.repeat(400, 1)
        whole[:, 0] = torch.arange(400)
        distances = problem.of([p]).distances(problem.circuit.of_tokens(whole))
        relative = distances / problem.target[p].norm(dim=-1)
        seen = relative[:, : SCREENS[0] if problem.hidden else 1]
        nearest = seen.norm(dim=1).topk(COLLISIONS, largest=False).indices
        assert answer.collisions[0] == sorted(nearest.tolist())


@pytest.mark.parametrize("mixer", ["flat", "attention(heads=2)"])
def test_sipit_proves_every_token_and_gradients_save_work(mixer, small_model):
    truth = prompts(3, 5)
    answers = solve("sipit", posed(small_model(mixers=(mixer,)), truth), tried=4)
    assert tokens_of(answers).equal(truth)
    assert all(answer.certificate == "residual" for answer in answers)
    assert max(answer.evaluations for answer in answers) < 400 * truth.shape[1] / 2


def test_one_step_of_sipit_proves_little_and_says_so(small_model):
    truth = prompts(2, 4)
    problem = posed(small_model(n_layers=4), truth, "[:, :, :]", 4)
    for p, answer in enumerate(solve("sipit", problem, steps=1)):
        assert answer.evaluations <= 4 * 4
        assert answer.certificate is None or torch.equal(answer.tokens, truth[p])


def test_ranks_and_tallies():
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1], [0.0, 0.0, 1.0]])
    rank = token_ranks(scores, torch.tensor([2, 0, 0]), torch.tensor([1, 0, 2])).tolist()
    assert rank == [1, 0, 1.5]
    tops = {"top1": pytest.approx(1 / 3), "top5": 1.0, "median_rank": 1.0}
    assert rank_tally(rank, [0, 1, 2]) == {"count": 3, **tops}
    assert rank_tally(rank, []) is None
