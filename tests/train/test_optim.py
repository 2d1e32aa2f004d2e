"""The optimiser's groups, the schedule and the loss."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer

from arch import LanguageModel
from train.data import IGNORE
from train.module import LanguageModule, bits_per_byte
from train.optim import Muon, build_optimizer, orthogonalise, rate
from train.settings import OptimizerSettings, ScheduleSettings

SCHEDULE = ScheduleSettings(warmup_steps=10, decay="linear", floor=0.2)


def loss_of(model: LanguageModel, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def gradient_norm(model: LanguageModel) -> torch.Tensor:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def test_the_rate_rises_in_equal_steps_to_the_highest_and_never_starts_at_zero():
    rates = [rate(step, 110, SCHEDULE) for step in range(11)]
    assert rates == pytest.approx([step / 11 for step in range(1, 12)])


@pytest.mark.parametrize(
    ("decay", "expected"),  # at steps 20, 60, 100 and 110
    [
        ("linear", [0.92, 0.6, 0.28, 0.2]),
        ("cosine", [0.980, 0.6, 0.220, 0.2]),
        ("none", [1, 1, 1, 1]),
        ("wsd", [1, 1, 0.434, 0.2]),  # of its 20 steps the first ones fall faster than a line
    ],
)
def test_the_rate_falls_to_the_floor_and_stays_there(decay, expected):
    schedule = replace(SCHEDULE, decay=decay, decay_steps=20 if decay == "wsd" else None)
    found = [rate(step, 110, schedule) for step in (20, 60, 100, 110)]
    assert found == pytest.approx(expected, abs=1e-3)
    assert rate(200, 110, schedule) == pytest.approx(expected[-1])
    after = [rate(step, 110, schedule) for step in range(10, 111)]
    assert after == sorted(after, reverse=True)


def test_wsd_falls_over_a_fifth_of_all_steps_unless_told_otherwise():
    schedule = replace(SCHEDULE, decay="wsd")
    assert rate(88, 110, schedule) == 1 > rate(89, 110, schedule)


@pytest.mark.parametrize("tied", [False, True])
def test_only_linear_layers_decay(small_model, tied):
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


def test_weights_above_the_diagonal_stay_zero_in_training(small_model):
    model = small_model().requires_grad_(True)
    optimizer = build_optimizer(model, OptimizerSettings(lr=0.01))
    tokens = torch.randint(400, (4, 33))
    for _ in range(3):
        loss_of(model, tokens).backward()
        optimizer.step()
    weight = model.state_dict()["blocks.0.token_mixer.mix.weight"]
    assert torch.equal(weight, weight.tril())


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


def test_muon_takes_the_hidden_matrices_and_leaves_the_rest(small_model):
    model = small_model(mixers=("flat", "attention(heads=4)")).requires_grad_(True)
    names = {id(p): name for name, p in model.named_parameters()}
    settings = OptimizerSettings(name="muon", lr=0.01, muon_lr=0.03)
    head, others, hidden, triangles = build_optimizer(model, settings).param_groups
    assert [names[id(p)] for p in head["params"]] == ["head.weight"]
    linear = {n for n in names.values() if n.endswith(("proj.weight", "up.weight", "down.weight"))}
    assert {names[id(p)] for p in hidden["params"]} == linear
    assert triangles["params"] == []
    assert [g["lr"] for g in (head, others, hidden, triangles)] == [0.01, 0.01, 0.03, 0.03]
    assert [g["weight_decay"] for g in (head, others, hidden, triangles)] == [0.1, 0, 0.1, 0]
    assert len(names) == sum(map(len, (head["params"], others["params"], hidden["params"])))


@pytest.mark.parametrize("tied", [False, True])
def test_the_embedding_may_have_a_rate_of_its_own(small_model, tied):
    model = small_model(mixers=("attention(qk_norm=true)",), tied=tied).requires_grad_(True)
    names = {id(p): name for name, p in model.named_parameters()}
    rates = OptimizerSettings(name="muon", lr=0.01, embedding_lr=0.05, muon_lr=0.03)
    groups = build_optimizer(model, rates).param_groups
    by_name = {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert set(by_name) == set(names.values())
    assert [n for n in by_name if by_name[n][0] == 0.05] == ["embedding.weight"]
    assert by_name["embedding.weight"][1] == 0
    assert all(by_name[n] == (0.01, 0) for n in by_name if "norm" in n)


@pytest.mark.parametrize("mixer", ["flat", "headed(heads=2)", "expanded(factor=2)"])
def test_muon_on_mixing_matrices_moves_nothing_above_the_diagonal(small_model, mixer):
    model = small_model(mixers=(mixer,)).requires_grad_(True)
    optimizer = build_optimizer(model, OptimizerSettings(name="muon", lr=0.02, muon_mixing=True))
    triangles = optimizer.param_groups[-1]["params"]
    before = [p.detach().clone() for p in triangles]
    tokens = torch.randint(400, (4, 33))
    losses = []
    for _ in range(4):
        loss = loss_of(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert len(triangles) == (4 if "expanded" in mixer else 2)
    for start, end in zip(before, triangles, strict=True):
        assert torch.equal(end, end.tril())
        assert (end - start).tril().count_nonzero() > 0.9 * start.count_nonzero()


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


def test_validation_sums_nats_and_counts_targets(small_model):
    module = LanguageModule(small_model(), OptimizerSettings(), SCHEDULE, 10)
    inputs = torch.randint(400, (3, 8))
    targets = inputs.masked_fill(torch.rand(3, 8) < 0.5, IGNORE)
    counted = int((targets != IGNORE).sum())
    nats, count = module.validation_step((inputs, targets, 1.0), 0).unbind()
    assert count == counted
    assert (nats / count).item() == pytest.approx(
        module.training_step((inputs, targets, counted), 0).item(), rel=1e-5
    )


def test_one_bit_per_byte_is_ln_2_nats_per_byte():
    assert bits_per_byte(4 * 0.6931471805599453, 4.0) == pytest.approx(1.0)
