"""The optimiser's groups, the schedule and the loss."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer

from arch import LanguageModel
from arch.mixers import Triangle
from train.settings import OptimizerSettings, ScheduleSettings
from train.steps.module import LanguageModule
from train.steps.optim import Muon, build_optimizer, orthogonalise, rate

SCHEDULE = ScheduleSettings(warmup_steps=10, decay="linear", floor=0.2)


def loss_of(model: LanguageModel, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def check_learning(model, optimizer):
    """Four steps on the same tokens lower their loss."""
    tokens, losses = torch.randint(400, (4, 33)), []
    for _ in range(4):
        loss = loss_of(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def gradient_norm(model: LanguageModel) -> torch.Tensor:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


@pytest.mark.parametrize(
    ("decay", "expected"),  # at steps 20, 60, 100 and 110
    [
        ("linear", [0.92, 0.6, 0.28, 0.2]),
        ("cosine", [0.980, 0.6, 0.220, 0.2]),
        ("none", [1, 1, 1, 1]),
        ("wsd", [1, 1, 0.434, 0.2]),  # of its 20 steps the first ones fall faster than a line
    ],
)
def test_the_rate_rises_and_falls_to_the_floor_and_stays_there(decay, expected):
    schedule = replace(SCHEDULE, decay=decay, decay_steps=20 if decay == "wsd" else None)
    rising = [rate(step, 110, schedule) for step in range(11)]
    assert rising == pytest.approx([step / 11 for step in range(1, 12)])
    found = [rate(step, 110, schedule) for step in (20, 60, 100, 110)]
    assert found == pytest.approx(expected, abs=1e-3)
    assert rate(200, 110, schedule) == pytest.approx(expected[-1])
    after = [rate(step, 110, schedule) for step in range(10, 111)]
    assert after == sorted(after, reverse=True)


def test_wsd_falls_over_a_fifth_of_all_steps():
    schedule = replace(SCHEDULE, decay="wsd")
    assert rate(88, 110, schedule) == 1 > rate(89, 110, schedule)


@pytest.mark.parametrize("total", [1, 2, 9, 10, 11, 100, 5000])
@pytest.mark.parametrize(("warmup", "fall"), [(0, None), (3, 1), (100, None), (999, 777)])
def test_within_a_time_the_warm_up_is_at_most_a_tenth_and_a_fall_has_room(warmup, fall, total):
    settings = ScheduleSettings(warmup_steps=warmup, decay="wsd", decay_steps=fall).within(total)
    assert settings.warmup_steps <= min(warmup, total / 10)
    assert settings.warmup_steps + settings.cooldown(total) <= total
    assert rate(total, total, settings) == pytest.approx(settings.floor)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("settings", "embedding", "hidden"),
    [
        (OptimizerSettings(lr=0.01, weight_decay=0.3), 0.01, 0.01),
        (OptimizerSettings("muon", lr=0.01, muon_lr=0.03, weight_decay=0.3), 0.01, 0.03),
        (OptimizerSettings("muon", 0.01, embedding_lr=0.05, weight_decay=0.3), 0.05, 0.01),
    ],
)
def test_rates_and_decay_go_by_the_kind_of_a_parameter(
    small_model, settings, embedding, hidden, tied
):
    """The matrices of linear layers decay and nothing else; Muon takes those of the blocks."""
    model = small_model(mixers=("flat+depthwise", "attention(heads=4, qk_norm=true)"), tied=tied)
    names = {id(p): name for name, p in model.requires_grad_(True).named_parameters()}
    groups = build_optimizer(model, settings).param_groups
    found = {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    linear = [n for n in found if n.endswith(("proj.weight", "up.weight", "down.weight"))]
    expected = dict.fromkeys(names.values(), (0.01, 0)) | dict.fromkeys(linear, (hidden, 0.3))
    expected["embedding.weight"] = (embedding, 0)
    assert found == expected | ({} if tied else {"head.weight": (0.01, 0.3)})
    assert sum(len(group["params"]) for group in groups) == len(names)


MUON = OptimizerSettings("muon", lr=0.02, muon_mixing=True)


@pytest.mark.parametrize(
    ("mixer", "settings", "count"),
    [
        ("flat", OptimizerSettings(lr=0.01), 2),
        ("headed(heads=2)", MUON, 2),
        ("expanded(factor=2)", MUON, 4),
    ],
)
def test_a_step_moves_mixing_matrices_and_nothing_above_their_diagonal(
    small_model, mixer, settings, count
):
    model = small_model(mixers=(mixer,)).requires_grad_(True)
    optimizer = build_optimizer(model, settings)
    triangles = [part.weight for part in model.modules() if isinstance(part, Triangle)]
    assert len(triangles) == count
    before = [p.detach().clone() for p in triangles]
    check_learning(model, optimizer)
    for start, end in zip(before, triangles, strict=True):
        assert torch.equal(end, end.tril())
        assert (end - start).tril().count_nonzero() > 0.9 * start.count_nonzero()


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_both_parts_of_complex_weights_learn(small_model, name):
    """AdamW failed at the first step; Muon dropped the imaginary part."""
    model = small_model(mixers=("tests.arch.leaks.Complex",)).requires_grad_(True)
    optimizer = build_optimizer(model, OptimizerSettings(name, lr=0.01))
    weights = [p for p in model.parameters() if p.is_complex()]
    before = [torch.view_as_real(p.detach().clone()) for p in weights]
    check_learning(model, optimizer)
    for start, end in zip(before, weights, strict=True):
        moved = (torch.view_as_real(end) - start).abs() > 1e-4
        assert moved.float().mean() > 0.9


def test_muon_is_that_of_torch_to_the_bit():
    shapes = [(8, 24), (24, 8), (16, 16), (8, 24)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    muon = Muon([{"params": ours}], lr=0.02, momentum=0.9, weight_decay=0.3)
    oracle = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.9, weight_decay=0.3, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        muon.step()
        oracle.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_orthogonalising_keeps_the_directions_and_evens_out_the_lengths():
    matrices = torch.randn(2, 3, 20, 12)
    found = orthogonalise(matrices).float()
    U, S, Vh = torch.linalg.svd(matrices, full_matrices=False)
    assert torch.linalg.svdvals(found).sub(1).abs().max() < 0.4 < (S.amax() / S.amin()).log()
    cosine = torch.cosine_similarity(found.flatten(2), (U @ Vh).flatten(2), dim=-1)
    assert cosine.min() > 0.97


@pytest.mark.parametrize("clip", [0.5, 0.0])
def test_gradients_are_clipped_to_a_norm_or_left_as_they_are(small_model, clip):
    model = small_model().requires_grad_(True)
    module = LanguageModule(model, OptimizerSettings(clip=clip), SCHEDULE, 10)
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    tokens = torch.randint(400, (4, 33))
    (100 * module.training_step((tokens[:, :-1], tokens[:, 1:], 128.0), 0)).backward()
    before = gradient_norm(model)
    module.configure_gradient_clipping(None)
    after = gradient_norm(model)
    assert before > 10
    assert module.gradient_norm == before
    assert after.item() == pytest.approx(clip or before.item(), rel=1e-4)
