"""What makes training faster or smaller, and the plan of what a run takes."""

import json
import re

import pytest
import torch
import torch.nn.functional as F

from arch import ModelConfig
from arch.costs import describe
from tests.train.cases import TINY, fit, rows
from tests.train.forked import measure_growth
from train import module as training
from train import progress, speed
from train.__main__ import main
from train.data import IGNORE
from train.module import LanguageModule, head_loss
from train.plan import memory
from train.run import build_trainer
from train.rundir import RunDirectory
from train.settings import (
    BatchSettings,
    OptimizerSettings,
    Recipe,
    ScheduleSettings,
    TrainerSettings,
)


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = (hidden @ weight.T).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")


def case(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(3, 7, 5, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 5, dtype=dtype, requires_grad=True)
    targets = torch.randint(11, (3, 7)).masked_fill(torch.rand(3, 7) < 0.3, IGNORE)
    return hidden, weight, targets


@pytest.mark.parametrize("chunked", [True, False])
def test_the_loss_and_its_gradients_are_those_of_torch(chunked, monkeypatch):
    monkeypatch.setattr(training, "CHUNK", 4)
    hidden, weight, targets = case()
    ours = head_loss(hidden, weight, targets, chunked)
    expected = plain(hidden, weight, targets)
    torch.testing.assert_close(ours, expected)
    expected_gradients = torch.autograd.grad(0.3 * expected, (hidden, weight))
    torch.testing.assert_close(
        torch.autograd.grad(0.3 * ours, (hidden, weight)), expected_gradients
    )
    with torch.no_grad():
        torch.testing.assert_close(head_loss(hidden, weight, targets, chunked), expected)


@pytest.mark.parametrize("chunked", [True, False])
def test_no_target_is_no_loss_and_large_logits_are_no_trouble(chunked):
    hidden, weight, targets = case(torch.float32)
    nothing = head_loss(hidden, weight, torch.full_like(targets, IGNORE), chunked)
    assert nothing == 0
    assert torch.autograd.grad(nothing, weight)[0].count_nonzero() == 0
    expected = plain(1000 * hidden.double(), weight.double(), targets)
    torch.testing.assert_close(
        head_loss(1000 * hidden, weight, targets, chunked).double(), expected
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_lower_precision_the_loss_is_fp32_and_a_sum_over_many_tokens_does_not_overflow(
    dtype, device
):
    tokens = 32768
    hidden = torch.full((1, tokens, 4), 8.0, device=device)
    weight = torch.randn(9, 4, device=device, requires_grad=True)
    targets = torch.zeros(1, tokens, dtype=torch.long, device=device)
    exact = torch.autograd.grad(plain(hidden, weight, targets) / tokens, weight)[0]
    with torch.autocast(device, dtype):
        mean = head_loss(hidden, weight, targets) / tokens
    assert mean.dtype == torch.float32
    gradient = torch.autograd.grad(1024 * mean, weight)[0] / 1024
    torch.testing.assert_close(gradient, exact, rtol=0.02, atol=0.02)


def losses(run):
    return [row["loss"] for row in rows(run, "loss")]


def test_recomputed_activations_learn_the_same(data, whole, tmp_path):
    assert fit(data, tmp_path / "small", "--checkpoint_activations", "true") == 0
    assert losses(tmp_path / "small") == losses(whole)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's own doing
@pytest.mark.parametrize("mixer", ["flat", "attention(heads=4)"])
def test_model_and_loss_compile_to_one_graph_that_learns_the_same(small_model, mixer, monkeypatch):
    compile_ = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda f, **how: compile_(
            f, backend="aot_eager", dynamic=False, fullgraph=how["fullgraph"]
        ),
    )
    model = small_model(mixers=(mixer,)).requires_grad_(True)
    module = LanguageModule(model, OptimizerSettings(), ScheduleSettings(), 10)
    tokens = torch.randint(400, (4, 33))
    batch = tokens[:, :-1], tokens[:, 1:].masked_fill(tokens[:, 1:] < 40, IGNORE), 100.0

    def step():
        loss = module.training_step(batch, 0)
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    expected, names = step(), list(module.state_dict())
    valid = [module.validation_step(part, 0) for part in (batch, (batch[0][:1], batch[1][:1], 1.0))]
    torch.compiler.reset()
    module.compile_loss()
    torch.testing.assert_close(step(), expected)
    module.eval()
    again = [module.validation_step(part, 0) for part in (batch, (batch[0][:1], batch[1][:1], 1.0))]
    torch.testing.assert_close(again, valid)
    assert list(module.state_dict()) == names


def test_the_share_of_the_peak_is_in_the_step_line_where_the_peak_is_known(
    data, tmp_path, small_model, monkeypatch, capsys
):
    monkeypatch.setattr(progress, "peak_flops", lambda device, precision: 1e9)
    assert fit(data, tmp_path / "run") == 0
    config = small_model(context=16, d_model=16, embedding_std=None).config
    work = describe(config).cost.training_flops
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    for row in (json.loads(line) for line in lines if '"loss"' in line):
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] * work / 1e9)
    assert "  MFU " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16-mixed", 989e12),
        ("NVIDIA H100 PCIe", "bf16-true", 756e12),
        ("NVIDIA A100-SXM4-80GB", "32-true", 19.5e12),
        ("NVIDIA L4", "bf16-mixed", 121e12),
        ("NVIDIA H200", "64-true", None),
        ("NVIDIA L400", "bf16-mixed", None),
        ("", "32-true", None),
    ],
)
def test_peaks_go_by_the_name_of_the_device(name, precision, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert speed.peak_flops(torch.device("cuda"), precision) == peak
    assert speed.peak_flops(torch.device("cpu"), precision) is None


def test_compiling_for_a_cpu_needs_a_compiler(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert fit(data, tmp_path / "run", "--compile", "true") == 2
    assert "--compile true needs a C++ compiler on a CPU; install" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler about torch
def test_a_run_that_is_compiled_for_a_cpu_learns_the_same(data, whole, tmp_path):
    torch.compiler.reset()
    assert fit(data, tmp_path / "compiled", "--compile", "true") == 0
    assert losses(tmp_path / "compiled") == pytest.approx(losses(whole), rel=1e-4)


GPU = """--trainer.accelerator gpu --model.d_model 64 --trainer.max_steps 8 --log_every 100
--checkpoint_every 100 --validate_every 100 --sample_prompts []"""


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("flags", ["--compile false", "--compile true", "--optimizer.name muon"])
def test_a_step_never_waits_for_the_device(data, tmp_path, flags, monkeypatch):
    pytest.importorskip("jsonargparse")
    watched = []

    def start(self, batch, batch_idx):
        if 3 <= batch_idx <= 6:  # neither the first steps, which compile, nor those that report
            torch.cuda.set_sync_debug_mode("error")
            watched.append(batch_idx)

    def end(self, outputs, batch, batch_idx):
        torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(LanguageModule, "on_train_batch_start", start, raising=False)
    monkeypatch.setattr(LanguageModule, "on_train_batch_end", end, raising=False)
    torch.compiler.reset()
    assert fit(data, tmp_path / "run", *GPU.split(), *flags.split()) == 0
    assert watched == [3, 4, 5, 6]


SMALL = f"{TINY} --save_steps [3]"

CASES = [("flat", False), ("flat", True), ("attention(heads=4)", False)]


@pytest.mark.parametrize(("mixer", "again"), CASES)
def test_the_memory_is_what_a_process_takes(mixer, again, forked, tmp_path):
    """Within a tenth of how much a process grows."""
    answer, other = forked.Pipe()
    process = forked.Process(target=measure_growth, args=(mixer, again, other), daemon=True)
    process.start()
    other.close()
    grown = answer.recv()  # EOFError: it did not end well
    process.join()
    recipe = Recipe(
        model=ModelConfig(400, 256, 256, 4, (mixer,)),
        batch=BatchSettings(16),
        trainer=TrainerSettings("cpu", max_steps=9),
    )
    trainer = build_trainer(recipe, RunDirectory(tmp_path), [])
    needs = memory(recipe, trainer, 16, 1, again)
    assert needs.peak / 1.1 < grown < needs.peak * 1.1
    assert needs.optimiser == pytest.approx(2 * needs.weights, rel=1e-4)


def test_ddp_keeps_the_gradients_once_more(capsys):
    """In its buckets, of which the gradients are no views unless it is asked for that."""
    assert plan("--measure", "false") == 0
    alone = capsys.readouterr().out
    devices = ("--trainer.devices", "2", "--batch.size", "8", "--trainer.strategy", "ddp")
    assert plan("--measure", "false", *devices) == 0
    several = capsys.readouterr().out
    assert "buckets" not in alone
    assert "weights 69.4 KiB" in alone
    assert "DDP's buckets 69.4 KiB" in several
    peaks = [float(re.findall(r"([\d.]+) KiB on each", text)[0]) for text in (alone, several)]
    assert peaks[1] - peaks[0] == pytest.approx(69.4, abs=0.2)


def plan(*words: str) -> int:
    return main(["plan", *SMALL.split(), *words])


def test_a_plan_says_what_the_run_then_does(data, tmp_path, capsys):
    assert plan("--data", str(data)) == 0
    shown = capsys.readouterr().out
    assert fit(data, tmp_path / "run", *SMALL.split()) == 0
    started = capsys.readouterr().out
    said = re.search(r"model +([\d,]+) parameters: flat, d 16, n 2, context 16, voc", shown)
    assert said
    assert f"{said[1]} parameters on 1 cpu" in started
    epochs = re.search(r"6 steps of 4 x 16 = 384 tokens, (\d\.\d\d) epochs of", shown)
    assert epochs
    assert f"{epochs[1]} epochs" in started
    assert re.search(r"memory +[\d.]+ [KM]iB on each of 1 cpu at the peak: weights 69.4 KiB", shown)
    assert re.search(r"speed +[\d,]+ tokens/s, measured over \d+ steps of 4 x 16 tokens on", shown)
    assert re.search(r"time +0:\d\d of training, about 0:\d\d for 3 validations", shown)
    size = (tmp_path / "run" / "models" / "step-000003" / "model.safetensors").stat().st_size
    found = re.search(
        r"disk .* 3 model directories of ([\d.]+) KiB, 2 checkpoints of ([\d.]+) Ki", shown
    )
    assert found
    assert float(found[1]) * 1024 == pytest.approx(size, rel=0.05)
    checkpoint = (tmp_path / "run" / "checkpoints" / "step-000006.ckpt").stat().st_size
    assert float(found[2]) * 1024 == pytest.approx(checkpoint, rel=0.25)


def test_a_plan_writes_nothing(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert plan("--run", str(tmp_path / "run"), "--precision", "bf16-mixed") == 0
    assert not list(tmp_path.iterdir())
    assert "validations not counted: give --data" in capsys.readouterr().out


def test_a_speed_that_is_not_measured_is_not_told(capsys):
    assert plan("--measure", "false", "--optimizer.name", "muon") == 0
    shown = capsys.readouterr().out
    assert "speed    not measured; leave out --measure false" in shown
    assert "tokens/s" not in shown
    assert "time  " not in shown
