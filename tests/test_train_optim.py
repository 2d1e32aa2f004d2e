"""The optimiser's groups, the schedule and the loss."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from arch import LanguageModel
from train.module import LanguageModule, bits_per_byte, cross_entropy
from train.optim import build_optimizer, rate
from train.settings import OptimizerSettings, ScheduleSettings
from train.windows import IGNORE

SCHEDULE = ScheduleSettings(warmup_steps=10, decay="linear", floor=0.2)
MakeModel = Callable[..., LanguageModel]


def gradient_norm(model: LanguageModel) -> torch.Tensor:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def test_the_rate_rises_in_equal_steps_to_the_highest_and_never_starts_at_zero():
    rates = [rate(step, 110, SCHEDULE) for step in range(11)]
    assert rates[0] == pytest.approx(1 / 11)
    assert rates[10] == 1
    assert all(b - a == pytest.approx(1 / 11) for a, b in itertools.pairwise(rates))


@pytest.mark.parametrize(("decay", "middle"), [("linear", 0.6), ("cosine", 0.6), ("none", 1.0)])
def test_the_rate_falls_to_the_floor_and_stays_there(decay: str, middle: float):
    schedule = replace(SCHEDULE, decay=decay)
    end = 1.0 if decay == "none" else 0.2
    assert rate(60, 110, schedule) == pytest.approx(middle)
    assert rate(110, 110, schedule) == rate(200, 110, schedule) == pytest.approx(end)
    after = [rate(step, 110, schedule) for step in range(10, 111)]
    assert after == sorted(after, reverse=True)


def test_a_cosine_starts_and_ends_flatter_than_a_line():
    cosine = replace(SCHEDULE, decay="cosine")
    assert rate(20, 110, cosine) > rate(20, 110, SCHEDULE)
    assert rate(100, 110, cosine) < rate(100, 110, SCHEDULE)


@pytest.mark.parametrize("tied", [False, True])
def test_only_linear_layers_decay(small_model: MakeModel, tied: bool):
    model = small_model(mixers=("flat", "attention(heads=4)"), tied=tied).requires_grad_(True)
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, others = build_optimizer(model, OptimizerSettings(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    found = {names[id(p)] for p in decayed["params"]}
    expected = {
        n for n in names.values() if n.endswith(("proj.weight", "up.weight", "down.weight"))
    }
    assert found == expected | (set() if tied else {"head.weight"})
    assert len(decayed["params"]) + len(others["params"]) == len(names)


def test_weights_above_the_diagonal_stay_zero_in_training(small_model: MakeModel):
    model = small_model().requires_grad_(True)
    optimizer = build_optimizer(model, OptimizerSettings(lr=0.01))
    tokens = torch.randint(400, (4, 33))
    for _ in range(3):
        cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], "mean").backward()
        optimizer.step()
    weight = model.state_dict()["blocks.0.token_mixer.mix.weight"]
    assert torch.equal(weight, weight.tril())


@pytest.mark.parametrize("clip", [0.5, 0.0])
def test_gradients_are_clipped_to_a_norm_or_left_as_they_are(small_model: MakeModel, clip: float):
    model = small_model().requires_grad_(True)
    module = LanguageModule(model, OptimizerSettings(clip=clip), SCHEDULE, 10)
    tokens = torch.randint(400, (4, 33))
    (100 * module.training_step((tokens[:, :-1], tokens[:, 1:]), 0)).backward()
    before = gradient_norm(model)
    module.configure_gradient_clipping(None)
    after = gradient_norm(model)
    assert before > 10
    assert module.gradient_norm == before
    assert after.item() == pytest.approx(clip or before.item(), rel=1e-4)


def test_the_loss_is_the_mean_over_targets_that_count():
    logits = torch.randn(2, 5, 7, dtype=torch.float64)
    targets = torch.tensor([[1, 2, IGNORE, 3, 0], [IGNORE, IGNORE, 6, 5, 4]])
    log_p = logits.log_softmax(-1)
    kept = [(b, t) for b in range(2) for t in range(5) if targets[b, t] != IGNORE]
    expected = -sum(log_p[b, t, targets[b, t]] for b, t in kept) / len(kept)
    assert cross_entropy(logits, targets, "mean").item() == pytest.approx(float(expected), rel=1e-6)


def test_validation_sums_nats_and_counts_targets(small_model: MakeModel):
    module = LanguageModule(small_model(), OptimizerSettings(), SCHEDULE, 10)
    inputs = torch.randint(400, (3, 8))
    targets = inputs.masked_fill(torch.rand(3, 8) < 0.5, IGNORE)
    nats, count = module.validation_step((inputs, targets), 0).unbind()
    assert count == (targets != IGNORE).sum()
    assert (nats / count).item() == pytest.approx(
        module.training_step((inputs, targets), 0).item(), rel=1e-5
    )


def test_one_bit_per_byte_is_ln_2_nats_per_byte():
    assert bits_per_byte(4 * 0.6931471805599453, 4.0) == pytest.approx(1.0)
