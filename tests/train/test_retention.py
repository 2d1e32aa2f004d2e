"""A second loss for earlier tokens: what it asks, whom it teaches, and what it leaves behind."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load

from arch import LanguageModel, ModelConfig
from tests.train.cases import fit, weights
from train.data import IGNORE
from train.module import LanguageModule
from train.retention import Retention
from train.rundir import read_checkpoint
from train.settings import OptimizerSettings, RetentionSettings, ScheduleSettings

FLAGS = ("--retention.weight", "0.5", "--retention.distance", "3")


def module(**retention):
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig(vocab_size=30, context=12, d_model=8, n_layers=2))
    chosen = OptimizerSettings(), ScheduleSettings(), 10, RetentionSettings(**retention)
    return LanguageModule(model, *chosen)


def test_each_position_is_asked_for_a_token_before_it_at_every_distance_alike():
    inputs = torch.arange(400).expand(50, -1)
    retention, counts = Retention(4, 400, 1.0, 4), torch.zeros(5)
    for draw in range(3):
        targets = retention.targets(inputs, draw)
        assert torch.equal(targets, retention.targets(inputs, draw))
        back = (inputs - targets)[targets != IGNORE]
        counts += torch.bincount(back, minlength=5)
        early = targets[:, :4] == IGNORE
        assert early[:, 0].all()
        assert abs(early[:, 2].float().mean() - 0.5) < 0.25  # of 1 to 4, two are too far
    assert counts[0] == 0
    assert (counts[1:] / counts.sum() - 0.25).abs().max() < 0.01
    assert not torch.equal(retention.targets(inputs, 0), retention.targets(inputs, 1))


def test_the_loss_is_the_sum_of_both_and_its_slope_reaches_every_block():
    tokens = torch.randint(30, (4, 13), generator=torch.Generator().manual_seed(1))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), 48.0
    plain, asked = module(), module(weight=0.5, distance=3)
    assert asked.retention is not None
    for a, b in zip(plain.model.parameters(), asked.model.parameters(), strict=True):
        assert torch.equal(a, b)  # the layer is drawn after the model
    model, earlier = asked.model, asked.retention.targets(batch[0], 7)
    stream = model.hidden(model.embed(batch[0]), 2)
    expected = F.cross_entropy(
        asked.retention.reader(stream).flatten(0, 1), earlier.flatten(), reduction="sum"
    )
    loss, without = asked.training_step(batch, 7), plain.training_step(batch, 7)
    assert loss.item() == pytest.approx((without + 0.5 * expected / 48).item(), rel=1e-5)
    assert torch.equal(asked.validation_step(batch, 7), plain.validation_step(batch, 7))
    slopes = torch.autograd.grad(loss - without.detach(), list(model.blocks.parameters()))
    before = torch.autograd.grad(without, list(plain.model.blocks.parameters()))
    assert all(not torch.allclose(a, b) for a, b in zip(slopes, before, strict=True))


def test_a_model_is_another_for_it_and_does_not_hold_the_layer(data, whole, tmp_path, refused):
    run = tmp_path / "run"
    assert fit(data, run, *FLAGS) == 0
    found, expected = load(weights(run)), load(weights(whole))
    assert found.keys() == expected.keys()
    assert not torch.equal(found["head.weight"], expected["head.weight"])
    state = read_checkpoint(run / "checkpoints" / "step-000006.ckpt")["state_dict"]
    assert "retention.reader.weight" in state
    assert fit(data, tmp_path / "off", "--retention.weight", "0") == 0
    assert weights(tmp_path / "off") == weights(whole)


def test_a_run_does_not_go_on_with_another_weight(data, whole, tmp_path, refused):
    last = whole / "checkpoints" / "step-000006.ckpt"
    more = ("--trainer.max_steps", "8", "--resume", last)
    message = refused(fit(data, tmp_path / "run", *FLAGS, *more))
    assert "retention.weight is 0.5, the checkpoint has 0.0" in message
    message = refused(fit(data, tmp_path / "run", "--retention.weight", "-1"))
    assert "--retention.weight is -1.0; it must be at least 0" in message
