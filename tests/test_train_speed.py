"""What makes training faster or smaller, and changes nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch._subclasses.fake_tensor import FakeTensorMode

from arch import LanguageModel
from arch.describe import describe
from tests.train_cases import TINY, fit, pack_toy
from train.__main__ import main
from train.loss import head_loss, sum_over_tokens
from train.mfu import peak_flops, utilisation
from train.module import LanguageModule
from train.settings import OptimizerSettings, ScheduleSettings
from train.windows import IGNORE

MakeModel = Callable[..., LanguageModel]


@pytest.fixture(scope="module")
def data(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "packed", 4).path


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = (hidden @ weight.T).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")


def case(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(3, 7, 5, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 5, dtype=dtype, requires_grad=True)
    targets = torch.randint(11, (3, 7)).masked_fill(torch.rand(3, 7) < 0.3, IGNORE)
    return hidden, weight, targets


@pytest.mark.parametrize("chunks", [None, 1, 2, 4, 21, 50])
def test_the_loss_and_its_gradients_are_those_of_torch(chunks: int | None):
    hidden, weight, targets = case()
    ours = head_loss(hidden, weight, targets, chunks)
    found = torch.autograd.grad(0.3 * ours, (hidden, weight))
    expected = plain(hidden, weight, targets)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(found, torch.autograd.grad(0.3 * expected, (hidden, weight)))
    with torch.no_grad():
        torch.testing.assert_close(head_loss(hidden, weight, targets, chunks), expected)


def test_no_target_is_no_loss_and_large_logits_are_no_trouble():
    hidden, weight, targets = case(torch.float32)
    nothing = head_loss(hidden, weight, torch.full_like(targets, IGNORE), 2)
    assert nothing == 0
    assert torch.autograd.grad(nothing, weight)[0].count_nonzero() == 0
    expected = plain(1000 * hidden.double(), weight.double(), targets)
    torch.testing.assert_close(head_loss(1000 * hidden, weight, targets).double(), expected)


@pytest.mark.parametrize("chunks", [1, 3])
def test_in_bfloat16_it_is_no_worse_than_torch_in_bfloat16(chunks: int):
    hidden, weight, targets = case(torch.float32)
    exact = torch.autograd.grad(plain(hidden, weight, targets), (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        ours = torch.autograd.grad(head_loss(hidden, weight, targets, chunks), (hidden, weight))
        theirs = torch.autograd.grad(plain(hidden, weight, targets), (hidden, weight))
    for a, b, truth in zip(ours, theirs, exact, strict=True):
        assert a.dtype == torch.float32
        assert 0 < (a - truth).norm() < 1.5 * (b - truth).norm()


@pytest.mark.parametrize("chunks", [1, 2])
def test_in_float16_the_heads_gradient_may_be_above_what_float16_holds(chunks: int):
    tokens = 32768
    hidden, weight = torch.full((1, tokens, 4), 8.0), torch.randn(9, 4).requires_grad_()
    targets = torch.zeros(1, tokens, dtype=torch.long)
    exact = torch.autograd.grad(plain(hidden, weight, targets) / tokens, weight)[0]
    with torch.autocast("cpu", torch.float16):
        loss = head_loss(hidden, weight, targets, chunks) / tokens
    found = torch.autograd.grad(1024 * loss, weight)[0] / 1024
    torch.testing.assert_close(found, exact, rtol=0.01, atol=0.01)


def test_on_a_gpu_float16_is_summed_in_float32():
    with FakeTensorMode():
        part = torch.empty(6, 4, dtype=torch.float16, device="cuda")
        assert sum_over_tokens(part, part).dtype == torch.float32
        assert sum_over_tokens(part.bfloat16(), part.bfloat16()).dtype == torch.bfloat16


@pytest.mark.gpu
def test_on_a_gpu_the_heads_gradient_in_float16_is_finite():
    hidden = torch.full((1, 32768, 64), 8.0, device="cuda")
    weight = torch.randn(128, 64, device="cuda", requires_grad=True)
    targets = torch.zeros(1, 32768, dtype=torch.long, device="cuda")
    exact = torch.autograd.grad(plain(hidden, weight, targets) / 32768, weight)[0]
    with torch.autocast("cuda", torch.float16):
        loss = head_loss(hidden, weight, targets) / 32768
    found = torch.autograd.grad(1024 * loss, weight)[0] / 1024
    torch.testing.assert_close(found, exact, rtol=0.01, atol=0.01)


def test_logits_are_never_whole_in_memory():
    hidden = torch.randn(4, 64, 8, requires_grad=True)
    weight = torch.randn(1000, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        head_loss(hidden, weight, torch.randint(1000, (4, 64)), 8)
    assert sorted(tuple(tensor.shape) for tensor in kept) == [(256, 8), (1000, 8)]


def rows(run: Path) -> list[dict[str, float]]:
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in found if "loss" in row]


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in rows(run)]


@pytest.mark.parametrize("flags", ["--checkpoint_activations true", "--loss_chunks 3"])
def test_a_smaller_run_learns_the_same(data: Path, tmp_path: Path, flags: str):
    assert fit(data, tmp_path / "plain") == 0
    assert fit(data, tmp_path / "small", *flags.split()) == 0
    plain, small = losses(tmp_path / "plain"), losses(tmp_path / "small")
    assert small == pytest.approx(plain, rel=1e-5)
    assert (small == plain) == ("checkpoint" in flags)


def test_a_bfloat16_stream_learns_nearly_the_same(data: Path, tmp_path: Path):
    found = {}
    for name, flags in (("mixed", []), ("stream", ["--bf16_stream", "true"])):
        chosen = ["--precision", "bf16-mixed", "--trainer.max_steps", "20", *flags]
        assert fit(data, tmp_path / name, *chosen) == 0
        found[name] = losses(tmp_path / name)
    assert found["stream"] == pytest.approx(found["mixed"], rel=0.01)
    assert found["stream"] != found["mixed"]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's own doing
@pytest.mark.parametrize("mixer", ["flat", "attention(heads=4)"])
def test_model_and_loss_compile_to_one_graph_that_learns_the_same(
    small_model: MakeModel, mixer: str, monkeypatch: pytest.MonkeyPatch
):
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
    batch = tokens[:, :-1], tokens[:, 1:].masked_fill(tokens[:, 1:] < 40, IGNORE)

    def step() -> tuple[torch.Tensor, ...]:
        loss = module.training_step(batch, 0)
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    expected, names = step(), list(module.state_dict())
    valid = [module.validation_step(part, 0) for part in (batch, (batch[0][:1], batch[1][:1]))]
    torch.compiler.reset()
    module.compile_loss()
    torch.testing.assert_close(step(), expected)
    module.eval()
    again = [module.validation_step(part, 0) for part in (batch, (batch[0][:1], batch[1][:1]))]
    torch.testing.assert_close(again, valid)
    assert list(module.state_dict()) == names


def test_the_share_of_the_peak_is_in_the_step_line_where_the_peak_is_known(
    data: Path, tmp_path: Path, small_model: MakeModel, capsys: pytest.CaptureFixture[str]
):
    assert fit(data, tmp_path / "run", "--peak_flops", "1e9") == 0
    config = small_model(context=16, d_model=16, embedding_std=None).config
    work = describe(config).cost.training_flops
    for row in rows(tmp_path / "run"):
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] * work / 1e9)
    assert "  MFU " in capsys.readouterr().out
    assert utilisation(1e9, torch.device("cpu"), "32-true") is None


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16-mixed", 989e12),
        ("NVIDIA H100 80GB HBM3", "bf16-true", 989e12),
        ("NVIDIA H100 PCIe", "bf16-mixed", 756e12),
        ("NVIDIA A100-SXM4-80GB", "32-true", 19.5e12),
        ("NVIDIA L4", "bf16-mixed", 121e12),
        ("NVIDIA GeForce RTX 4090", "bf16-mixed", 165e12),
        ("NVIDIA H200", "64-true", None),
        ("NVIDIA L400", "bf16-mixed", None),
        ("", "32-true", None),
    ],
)
def test_peaks_go_by_the_name_of_the_device(name: str, precision: str, peak: float | None):
    assert peak_flops(name, precision) == peak


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--cuda_graphs true", "--cuda_graphs true needs a GPU, and this run is on a cpu; leave"),
        ("--loss_chunks some", "--loss_chunks is some; expected: int, null"),
        ("--loss_chunks 0", "--loss_chunks is 0; it must be at least 1"),
        ("--peak_flops 0", "--peak_flops is 0.0; it must be above 0"),
        ("--bf16_stream true", "--bf16_stream true needs --precision bf16-mixed, and this run is"),
        ("--compile maybe", "--compile is maybe; expected: bool, 'auto'"),
    ],
)
def test_a_bad_setting(
    data: Path, tmp_path: Path, flags: str, message: str, capsys: pytest.CaptureFixture[str]
):
    assert fit(data, tmp_path / "run", *flags.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: " + message)
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_compiling_for_a_cpu_needs_a_compiler(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert fit(data, tmp_path / "run", "--compile", "true") == 2
    assert "--compile true needs a C++ compiler on a CPU; install" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler about torch
def test_a_run_that_is_compiled_for_a_cpu_learns_the_same(data: Path, tmp_path: Path):
    assert fit(data, tmp_path / "plain") == 0
    torch.compiler.reset()
    assert fit(data, tmp_path / "compiled", "--compile", "true") == 0
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)


GPU = """--trainer.accelerator gpu --model.d_model 64 --trainer.max_steps 8 --log_every 100
--checkpoint_every 100 --validate_every 100 --sample_prompts []"""


def test_the_flags_of_the_tests_on_a_gpu_are_settings(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as done:
        main(["fit", *TINY.split(), *GPU.split(), "--print_config"])
    assert done.value.code == 0
    assert "sample_prompts: []" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("micro", ["4", "2"])
@pytest.mark.parametrize("mixer", ["flat", "attention(heads=4)"])
def test_cuda_graphs_learn_the_same(data: Path, tmp_path: Path, micro: str, mixer: str):
    pytest.importorskip("jsonargparse")
    chosen = [*GPU.split(), "--batch.micro", micro, "--model.mixers", f"[{mixer}]"]
    chosen += ["--precision", "32-true", "--log_every", "1"]
    assert fit(data, tmp_path / "eager", *chosen, "--compile", "false") == 0
    torch.compiler.reset()
    assert fit(data, tmp_path / "graphs", *chosen, "--cuda_graphs", "true") == 0
    assert losses(tmp_path / "graphs") == pytest.approx(losses(tmp_path / "eager"), rel=1e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("flags", ["--compile false", "--compile true", "--optimizer.name muon"])
def test_a_step_never_waits_for_the_device(
    data: Path, tmp_path: Path, flags: str, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("jsonargparse")
    watched = []

    def start(self: LanguageModule, batch: object, batch_idx: int) -> None:
        if 3 <= batch_idx <= 6:  # neither the first steps, which compile, nor those that report
            torch.cuda.set_sync_debug_mode("error")
            watched.append(batch_idx)

    def end(self: LanguageModule, outputs: object, batch: object, batch_idx: int) -> None:
        torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(LanguageModule, "on_train_batch_start", start, raising=False)
    monkeypatch.setattr(LanguageModule, "on_train_batch_end", end, raising=False)
    torch.compiler.reset()
    assert fit(data, tmp_path / "run", *GPU.split(), *flags.split()) == 0
    assert watched == [3, 4, 5, 6]
