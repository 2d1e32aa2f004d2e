"""The solvers on small models: exact search finds all, descent equals its plain restatement."""

from collections.abc import Callable

import pytest
import torch

from arch import LanguageModel
from eval.circuit import Circuit
from eval.errors import RequestError
from eval.inversion.alternating import alternating
from eval.inversion.answer import Answer
from eval.inversion.metrics import ranks, tally, verdicts
from eval.inversion.problem import ACCEPT, pose
from eval.inversion.slices import Slice
from eval.inversion.sweep import sweep

MIXERS = ["flat", "attention(heads=2, kv_heads=1)", "attention+flat"]
Make = Callable[..., LanguageModel]


def chance(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(100 * seed + i) for i in range(count)]


def prompts(count: int = 3, length: int = 8, vocab: int = 400) -> torch.Tensor:
    return torch.randint(vocab, (count, length), generator=torch.Generator().manual_seed(7))


def found(answers: list[Answer]) -> torch.Tensor:
    return torch.stack([answer.tokens for answer in answers])


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_sweep_recovers_every_token(small_model: Make, mixer: str, layer: int) -> None:
    circuit, truth = Circuit(small_model(mixers=(mixer,)), layer), prompts()
    problem = pose(circuit, truth, Slice(0))
    answers = sweep(problem)
    assert found(answers).equal(truth)
    for p, answer in enumerate(answers):
        assert not answer.collisions
        assert answer.runner_up is not None
        assert (answer.runner_up > ACCEPT * problem.floor[p]).all()
        assert ranks(answer, truth[p]) == [0] * truth.shape[1]
    residual, at_floor = problem.residual(found(answers))
    assert at_floor.all()
    assert (residual <= ACCEPT * problem.floor.norm(dim=-1)).all()


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("k", [1, 3])
def test_alternating_finds_hidden_tokens_with_nothing_given(
    small_model: Make, mixer: str, k: int
) -> None:
    circuit, truth = Circuit(small_model(mixers=(mixer,)), 2), prompts(length=10)
    problem = pose(circuit, truth, Slice(k))
    assert problem.target.shape == (3, 10 - k, 32)
    answers = alternating(problem, chance(3))
    assert found(answers).equal(truth)
    assert problem.residual(found(answers))[1].all()
    assert all(answer.scores[:k].argmax(dim=-1).equal(answer.tokens[:k]) for answer in answers)


def test_a_wrong_answer_is_not_at_the_floor(small_model: Make) -> None:
    truth = prompts()
    problem = pose(Circuit(small_model(), 2), truth, Slice(1))
    wrong = truth.clone()
    wrong[:, 0] = (wrong[:, 0] + 1) % 400
    residual, at_floor = problem.residual(wrong)
    assert not at_floor.any()
    assert (residual > 1e3 * problem.floor.norm(dim=-1)).all()


def test_equal_embedding_rows_are_reported_as_collisions(small_model: Make) -> None:
    model = small_model()
    truth = prompts()
    with torch.no_grad():
        model.embedding.weight[11] = model.embedding.weight[truth[0, 3]]
    problem = pose(Circuit(model, 2), truth, Slice(0))
    answer = sweep(problem)[0]
    assert answer.collisions[3] == sorted({11, int(truth[0, 3])})
    said = verdicts(answer, truth[0], at_floor=True)
    assert said[3] == "ambiguous"
    assert said[2] == "recovered"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[:, :, :]", [0, 1, 2, 3, 4]),
        ("[:, 2:, :]", [2, 3, 4]),
        ("[:,:2,:]", [0, 1]),
        ("[:, 1:3, :]", [1, 2]),
        ("[:, -1, :]", [4]),
        ("[:, 2, :]", [2]),
        ("[:, -2:, :]", [3, 4]),
    ],
)
def test_slices_are_pythons(text: str, shown: list[int]) -> None:
    parsed = Slice.parse(text)
    assert parsed.positions(5) == shown
    assert parsed.select(torch.arange(5)[None, :, None])[0, :, 0].tolist() == shown
    assert Slice.parse(str(parsed)) == parsed


@pytest.mark.parametrize("text", ["", "3:", "[3:]", "[:, a:, :]", "[:, 1:2:3, :]", "[:, , :]"])
def test_unknown_slices_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"slice .* cannot be read; allowed: \[:, k:, :\]"):
        Slice.parse(text)


def test_slice_that_shows_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="shows nothing of a prompt of 5 tokens"):
        Slice(5).positions(5)


def test_outputs_that_are_not_numbers_are_named(small_model: Make) -> None:
    model = small_model()
    with torch.no_grad():
        model.blocks[1].norm_token.weight[0] = torch.nan  # pyright: ignore
    with pytest.raises(RequestError, match="layer 2 gives numbers that are not finite"):
        pose(Circuit(model, 2), prompts(), Slice(0))


def test_ranks_and_tallies() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1], [0.0, 0.0, 1.0]])
    answer = Answer(tokens=torch.tensor([1, 0, 2]), scores=scores)
    rank = ranks(answer, torch.tensor([2, 0, 0]))
    assert rank == [1, 0, 1]
    assert tally(rank, [0, 1, 2]) == {
        "count": 3,
        "top1": pytest.approx(1 / 3),
        "top5": 1.0,
        "median_rank": 1.0,
    }
    assert tally(rank, []) is None
