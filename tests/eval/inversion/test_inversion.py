"""Exact search on small models where all is shown: the sweep, SipIt, what searches share."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from arch.pretrained.decoder import Decoder
from arch.pretrained.pretrained import PretrainedModel
from eval import RequestError, invert, open_model
from eval.inversion.scoring import verdicts
from eval.sites.circuit import Circuit
from eval.sites.rounding import ACCEPT
from tests.arch.pretrained import test_decoder
from tests.arch.pretrained.test_pretrained import FAMILIES, their_model
from tests.eval.inversion.search_cases import (
    MIXERS,
    posed,
    prompts,
    solve,
    tokens_of,
    with_twins,
)
from tests.said import one_line

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
        assert (answer.runner_up > ACCEPT * problem.tolerance.floor[p]).all()
    residual, at_floor = problem.residual(truth)
    assert at_floor.all()
    assert (residual <= ACCEPT * problem.tolerance.floor.norm(dim=-1)).all()
    for t in range(8):  # a wrong answer is not at the floor
        wrong = truth.clone()
        wrong[:, t] = (wrong[:, t] + 1) % 400
        residual, at_floor = problem.residual(wrong)
        assert not at_floor.any()
        assert (residual > 1e3 * problem.tolerance.floor.norm(dim=-1)).all()


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
    assert all(answer.notes["swept"] == 7 for answer in answers["propose"])
    assert all(answer.notes["swept"] == 0 for answer in solve("propose", real))


@pytest.mark.parametrize(
    ("name", "shown", "at"),
    [
        ("sweep", SHOWN, 0),
        *(("alternating", ONE, at) for at in (0, 5)),
        *(("alternating", "[:, :3+4:6+7:, :]", at) for at in (1, 3, 5)),
    ],
)
def test_an_answer_that_is_not_alone_is_not_proved(small_model, name, shown, at):
    """A token with a twin is ambiguous, hidden or shown; the answer is unproved."""
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


@pytest.mark.parametrize("mixer", ["flat", "attention(heads=2)"])
def test_sipit_proves_every_token_and_gradients_save_work(mixer, small_model):
    truth = prompts(3, 5)
    answers = solve("sipit", posed(small_model(mixers=(mixer,)), truth), tried=4)
    assert tokens_of(answers).equal(truth)
    assert all(answer.certificate == "residual" for answer in answers)
    assert max(answer.evaluations for answer in answers) < 400 * truth.shape[1] / 2


def test_a_rows_figures_are_those_of_its_site_by_hand(model_directory):
    """Whole passes in float64, layer by layer: distances, floors, and how strong the noise is."""
    model = open_model(model_directory(), "cpu")
    exact = copy.deepcopy(model.model).double()
    asked: dict[str, Any] = {"prompts": "random", "count": 4, "length": 12, "slices": SHOWN}

    def outputs(tokens: list[int], layer: int) -> Tensor:
        return exact.hidden(exact.embed(torch.tensor([tokens])), layer)

    for row in invert(model, solvers=["chance", "sweep"], layers=[1, 2], **asked).rows:
        target = outputs(row["truth"], row["site"]["layer"])
        apart = float((outputs(row["found"], row["site"]["layer"]) - target).norm())
        assert row["residual"] == pytest.approx(apart, rel=1e-4, abs=ACCEPT * row["floor"])
        rounding = torch.finfo(torch.float32).eps * float(target.norm())
        assert 0.99 * rounding <= row["floor"] <= 10 * rounding
    noisy = invert(model, solvers="sweep", layers=1, noise=0.1, **asked).rows
    assert all(row["exact"] for row in noisy)
    whole = sum(float(outputs(row["truth"], 1).square().sum()) for row in noisy)
    added = sum(row["residual"] ** 2 for row in noisy)
    assert (added / whole) ** 0.5 == pytest.approx(0.1, rel=0.06)  # of 1,536 draws


@pytest.mark.parametrize("kind", ["WrongStep", "StepInPlace", "PrefixInPlace", "NoNumbers"])
def test_what_a_wrong_step_changes_is_no_rounding(kind, small_model, small_tokenizer):
    """It was the floor, within which wrong tokens lie."""
    module = small_model(mixers=(f"tests.arch.leaks.{kind}",))
    model = open_model(module, tokenizer=small_tokenizer)
    with one_line(RequestError, "computed position by position"):
        invert(model, text="Tom sat.", solvers="sweep", layers=1, slices=SHOWN)


def test_a_jump_at_a_few_positions_is_no_wrong_step(small_model, small_tokenizer, monkeypatch):
    """Rounding may choose another expert at one of them, which ended the command."""
    model, wrong, step = open_model(small_model(), tokenizer=small_tokenizer), [3], Circuit.step

    def moved(self, x, state):
        return step(self, x, state) + 0.5 * (state is not None and state.length in wrong)

    monkeypatch.setattr(Circuit, "step", moved)
    asked: Any = {"text": "Tom had a red ball.", "layers": 1, "slices": SHOWN}
    assert invert(model, solvers="chance", **asked).rows
    wrong += range(32)
    model = open_model(small_model(), tokenizer=small_tokenizer)
    with one_line(RequestError, "computed position by position"):
        invert(model, solvers="chance", **asked)


def test_a_token_with_a_twin_is_ambiguous_in_its_row(small_model, small_tokenizer):
    text = "Tom had a red ball."
    ids = small_tokenizer.encode(text).ids
    model = open_model(with_twins(small_model(), ids[1], 11), tokenizer=small_tokenizer)
    (row,) = invert(model, text=text, solvers="sweep", layers=1, slices=SHOWN).rows
    assert row["verdict"] == ["ambiguous" if t == 1 else "recovered" for t in range(len(ids))]
    assert [known["position"] for known in row["collisions"]] == [1]


@pytest.mark.parametrize("name", FAMILIES)
def test_keys_and_values_are_those_of_transformers_cache(name):
    theirs = their_model(name)
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    cache = theirs(tokens, use_cache=True).past_key_values
    for layer, of_layer in enumerate(cache.layers, start=1):
        for part, expected in (("rotated_key", of_layer.keys), ("value", of_layer.values)):
            circuit = Circuit(PretrainedModel(theirs), layer, part)
            expected = expected.transpose(1, 2).flatten(2)
            assert circuit.width == expected.shape[-1]
            own = circuit.of_tokens(tokens)[:, -expected.shape[1] :]  # a window holds the last ones
            torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["bloom", "mamba", *FAMILIES])
def test_every_family_gives_up_its_tokens(name):
    whole = name not in FAMILIES  # any decoder: its blocks are known as a whole
    theirs = test_decoder.their_model(name) if whole else their_model(name, dtype=torch.float32)
    model = (Decoder if whole else PretrainedModel)(theirs)
    truth = prompts(2, 6 if whole else 10, 256)
    for layers in (0, 2, (1, 3)):
        answers = solve("propose", posed(model, truth, "[:, :, :]", layers))
        assert tokens_of(answers).equal(truth)
        assert all(answer.certificate == "residual" for answer in answers)
    for part, without in (("mixer", ()), ("stream", ()), ("block", ("norms",))) if whole else ():
        with pytest.raises(RequestError, match="whole blocks are known, not their parts"):
            Circuit(model, 2, part, frozenset(without))
