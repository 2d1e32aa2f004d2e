"""SipIt: tokens in the order of gradients, exact if given the steps."""

import pytest
import torch

from eval.circuit import Circuit
from eval.inversion.problem import pose
from eval.inversion.search.sipit import sipit
from eval.slices import Slice
from tests.eval.inversion.search_cases import found, prompts, solve


@pytest.mark.parametrize("mixer", ["flat", "attention(heads=2)"])
def test_every_shown_token_is_proved_and_gradients_save_work(mixer, small_model):
    truth = prompts(3, 5)
    problem = pose(Circuit(small_model(mixers=(mixer,)), 2), truth, Slice())
    answers = solve(sipit, problem, tried=4)
    assert found(answers).equal(truth)
    assert all(answer.certificate == "residual" for answer in answers)
    assert max(answer.evaluations for answer in answers) < 400 * truth.shape[1] / 2


def test_one_step_proves_little_and_says_so(small_model):
    truth = prompts(2, 4)
    problem = pose(Circuit(small_model(n_layers=4), 4), truth, Slice())
    for p, answer in enumerate(solve(sipit, problem, steps=1)):
        assert answer.evaluations <= 4 * 4
        assert answer.certificate is None or torch.equal(answer.tokens, truth[p])
