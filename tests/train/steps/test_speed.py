"""What makes training faster or smaller."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from arch import LanguageModel, ModelConfig
from arch.costs import describe
from arch.kernels.masked_conv import implementation, missing_for_triton
from eval.views.comparison.gather import gather_models
from tests.train.cases import fit, losses, pack_toy
from tokenizer.pack import Layout
from train.recipe import Recipe
from train.record import progress
from train.rundir.rundir import RunDirectory
from train.settings import OptimizerSettings, RunError, RunSettings, ScheduleSettings
from train.steps import module as training
from train.steps import speed
from train.steps.data import IGNORE
from train.steps.module import LanguageModule, head_loss
from train.trainer import build_trainer


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
    """Where no target counts, and with large logits, too."""
    monkeypatch.setattr(training, "CHUNK", 4)
    hidden, weight, targets = case()
    ours = head_loss(hidden, weight, targets, chunked)
    expected = plain(hidden, weight, targets)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(
        torch.autograd.grad(0.3 * ours, (hidden, weight)),
        torch.autograd.grad(0.3 * expected, (hidden, weight)),
    )
    with torch.no_grad():
        torch.testing.assert_close(head_loss(hidden, weight, targets, chunked), expected)
    hidden, weight, targets = case(torch.float32)
    nothing = head_loss(hidden, weight, torch.full_like(targets, IGNORE), chunked)
    assert nothing == 0
    assert torch.autograd.grad(nothing, weight)[0].count_nonzero() == 0
    torch.testing.assert_close(
        head_loss(1000 * hidden, weight, targets, chunked).double(),
        plain(1000 * hidden.double(), weight.double(), targets),
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


def test_recomputed_activations_learn_the_same(data, whole, tmp_path):
    assert fit(data, tmp_path / "small", "--checkpoint_activations", "true") == 0
    assert losses(tmp_path / "small") == losses(whole)


def test_the_share_of_the_peak_is_in_the_step_line_where_the_peak_is_known(
    data, tmp_path, small_model, monkeypatch, capsys
):
    monkeypatch.setattr(progress, "peak_flops", lambda device, precision: 1e9)
    assert fit(data, tmp_path / "run", "--trainer.max_steps", "4") == 0
    config = small_model(context=16, d_model=16, embedding_std=None).config
    work = describe(config).cost.training_flops
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    for row in (json.loads(line) for line in lines if '"loss"' in line):
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] * work / 1e9)
    assert "  MFU " in capsys.readouterr().out


def test_pads_are_work(small_tokenizer, tmp_path, small_model, monkeypatch):
    """They were left out of the share of the peak, and of the FLOPs of a comparison."""
    monkeypatch.setattr(progress, "peak_flops", lambda device, precision: 1e9)
    data = pack_toy(small_tokenizer, tmp_path / "toy", 40, Layout("rows", 501)).path
    assert fit(data, tmp_path / "run", "--model.context", "500", "--trainer.max_steps", "4") == 0
    config = small_model(context=500, d_model=16, embedding_std=None).config
    work = describe(config).cost.training_flops
    found = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    rows = [row for row in found if "loss" in row]
    for before, row in itertools.pairwise([{"tokens_seen": 0}, *rows]):
        speed = row["tokens_per_second"] * 4 * 500 / (row["tokens_seen"] - before["tokens_seen"])
        assert row["mfu"] == pytest.approx(speed * work / 1e9)
    assert rows[-1]["tokens_seen"] < 4 * 4 * 500
    assert [entry.flops for entry in gather_models([tmp_path / "run"])] == [0, 4 * 4 * 500 * work]


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16-mixed", 989e12),
        ("NVIDIA H100 PCIe", "bf16-true", 756e12),
        ("NVIDIA A100-SXM4-80GB", "32-true", 19.5e12),
        ("NVIDIA L4", "bf16-mixed", 121e12),
        ("NVIDIA H200", "64-true", None),
        ("NVIDIA GeForce RTX 4090", "bf16-mixed", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16-mixed", None),
        ("NVIDIA GeForce RTX 4090 D", "bf16-mixed", None),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16-mixed", None),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "bf16-mixed", None),
        ("NVIDIA L400", "bf16-mixed", None),
        ("", "32-true", None),
    ],
)
def test_peaks_go_by_the_name_of_the_device(name, precision, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert speed.peak_flops(torch.device("cuda"), precision) == peak
    assert speed.peak_flops(torch.device("cpu"), precision) is None


@pytest.mark.parametrize(
    ("cxx", "there", "lacking"),
    [
        (None, "", "g++"),
        (None, "c++", "g++"),  # which torch does not take
        ("clang++-18", "g++", "clang++-18"),
        (None, "g++", "Python.h"),
    ],
)
def test_compiling_for_a_cpu_needs_torchs_compiler_and_headers(
    data, tmp_path, monkeypatch, refused, cxx, there, lacking
):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    if cxx:
        monkeypatch.setenv("CXX", cxx)
    if there:
        (tmp_path / there).touch(mode=0o755)
    if lacking == "Python.h":
        monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    line = refused(fit(data, tmp_path / "run", "--compile", "true"))
    assert "--compile true needs " in line
    assert lacking in line


def compile_by(monkeypatch, backend):
    """Has torch compile by another backend: its own needs C++."""
    compile_ = torch.compile
    by = {"backend": backend}
    monkeypatch.setattr(torch, "compile", lambda f, **how: compile_(f, **{**how, **by}))


def _no_compiler(*_):
    raise RuntimeError("no compiler\nhere")


@pytest.fixture(params=["no compiler here", "data-dependent"])
def uncompilable(request, monkeypatch):
    """What the compiler says, of a machine that lacks one or of a model that branches by values."""
    embed = LanguageModel.embed
    backend = _no_compiler
    if request.param == "data-dependent":
        backend = "eager"

        def branch(self, tokens):
            x = embed(self, tokens)
            return x if float(x.detach().max()) < 1e4 else x / 2

        monkeypatch.setattr(LanguageModel, "embed", branch)
    compile_by(monkeypatch, backend)
    monkeypatch.setattr(speed, "missing_for_cpp", lambda: None)
    return request.param


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler about torch
@pytest.mark.parametrize("asked", [False, True])
def test_a_model_that_cannot_be_compiled_trains_without_unless_it_is_asked_for(
    data, whole, tmp_path, monkeypatch, caplog, capsys, uncompilable, asked
):
    """It was a traceback of 100 lines."""
    run = tmp_path / "run"
    if asked:
        assert fit(data, run, "--compile", "true") == 2
        said = capsys.readouterr().err
        assert said.startswith("error: --compile true: ")
        assert said.count("\n") == 1
        assert uncompilable in said.lower()
        return
    monkeypatch.setattr(speed, "compiles", lambda *_: True)  # as on a GPU
    assert fit(data, run) == 0
    (line,) = (each.getMessage() for each in caplog.records if each.name.startswith("train"))
    assert line.startswith("not compiled, and slower: ")
    assert uncompilable in line.lower()
    assert "\n" not in line
    assert losses(run) == losses(whole)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_many_shapes_are_compiled_in_one_process(monkeypatch):
    """The fifth run failed: torch counts what it compiles of one function, here to two."""
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
    compile_by(monkeypatch, "eager")
    tokens = torch.zeros(2, 4, dtype=torch.long)
    for width in range(4, 7):
        model = LanguageModel(ModelConfig(16, 4, width, 1))
        module = LanguageModule(model, OptimizerSettings(), ScheduleSettings(), 1)
        module.compile_loss(required=True)
        module.training_step((tokens, tokens, 8.0), 0)


@pytest.fixture
def turing(monkeypatch):
    """A card that computes bfloat16 by emulation only."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))

    def supported(including_emulation=True):
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)


@pytest.mark.usefixtures("turing")
def test_no_gpu_emulates_bfloat16_unless_it_is_told_to(monkeypatch):
    given = {}
    loop, strategy = SimpleNamespace(epoch_loop=None), SimpleNamespace(launcher=None)

    def trainer(**settings):
        given.update(settings)
        return SimpleNamespace(fit_loop=loop, max_steps=1, strategy=strategy)

    monkeypatch.setattr("train.trainer.Trainer", trainer)
    monkeypatch.setattr("train.trainer.EpochLoop", lambda *_, **__: None)
    cases: Any = (("auto", "32-true"), ("bf16-mixed", "bf16-mixed"))
    for asked, chosen in cases:
        build_trainer(Recipe(run=RunSettings(precision=asked)), RunDirectory(Path()), [])
        assert given["precision"] == chosen


@pytest.mark.usefixtures("turing")
def test_a_gpu_without_bfloat16_is_advised_of_fp16(monkeypatch):
    card, auto = torch.device("cuda", 0), RunSettings()
    line = speed.advise_precision(auto, card)
    assert line
    assert "sm_75) has no bfloat16" in line
    assert "--precision 16-mixed" in line
    assert speed.advise_precision(auto, torch.device("cpu")) is None
    assert speed.advise_precision(RunSettings(precision="32-true"), card) is None
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert speed.advise_precision(auto, card) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_weights_in_bfloat16_are_said_to_lose_small_steps(device):
    line = speed.advise_precision(RunSettings(precision="bf16-true"), torch.device(device))
    assert line
    assert "bf16-mixed" in line
    assert "1/500" in line


def test_fit_prints_the_advice(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("train.run.advise_precision", lambda *_: "try another precision")
    assert fit(data, tmp_path / "run", "--trainer.max_steps", "1") == 0
    assert capsys.readouterr().out.splitlines().count("try another precision") == 1


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            "triton",
            "triton, which cannot run on cpu in torch.float32: the Triton kernels are for N",
        ),
        ("fast", "'fast'; allowed: auto, dense, triton; "),
    ],
)
def test_kernels_that_cannot_run_are_refused_before_a_run_begins(
    chosen, message, data, tmp_path, monkeypatch, refused
):
    implementation.cache_clear()  # of earlier tests, under no such variable
    monkeypatch.setenv("REMNANT_KERNELS", chosen)
    assert f"REMNANT_KERNELS is {message}" in refused(fit(data, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@torch.compiler.config.patch(cache_key_tag="")  # pyright: ignore[reportAttributeAccessIssue]
def test_code_that_is_compiled_for_other_kernels_is_kept_apart(monkeypatch):
    """By torch's cache on disk, which sees an operator but not what it chose."""
    monkeypatch.setenv("REMNANT_KERNELS", "dense")
    trainer = build_trainer(Recipe(), RunDirectory(Path()), [])
    module: Any = LanguageModule(
        LanguageModel(ModelConfig(16, 4, 4, 1)), OptimizerSettings(), ScheduleSettings(), 1
    )
    speed.prepare(module, RunSettings(), trainer)
    assert torch.compiler.config.cache_key_tag == "REMNANT_KERNELS=dense"


@pytest.mark.parametrize("lacking", ["a C compiler", "Python.h"])
def test_without_a_compiler_a_gpu_goes_on_without_compiling(lacking, tmp_path, monkeypatch, caplog):
    missing_for_triton.cache_clear()
    if lacking == "Python.h":
        (tmp_path / "gcc").touch(mode=0o755)
        monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    device = torch.device("cuda")
    assert not speed.compiles(RunSettings(), device)
    assert lacking in caplog.text
    with pytest.raises(RunError, match=f"--compile true needs {lacking}"):
        speed.compiles(RunSettings(compile=True), device)
    missing_for_triton.cache_clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler about torch
def test_a_run_that_is_compiled_for_a_cpu_learns_the_same(data, whole, tmp_path):
    torch.compiler.reset()
    assert fit(data, tmp_path / "compiled", "--compile", "true") == 0
    assert losses(tmp_path / "compiled") == pytest.approx(losses(whole), rel=1e-4)


GPU = """--trainer.accelerator gpu --model.d_model 64 --trainer.max_steps 8 --log_every 100
--checkpoint_every 100 --validate_every 100"""


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
