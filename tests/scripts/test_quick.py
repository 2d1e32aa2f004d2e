"""The first look at a GPU, as far as it goes without one and without timings."""

import csv
import os
import shutil
import sys
from functools import partial
from typing import Any

import pytest
import torch

from arch import ModelConfig
from scripts.bench import quick
from scripts.bench import training as bench_training
from scripts.bench.quick import TRITON, fit_way, kernel_errors, row, verdict, waited
from scripts.bench.turns import Turn
from tokenizer import open_corpus

ENDED = [sys.executable, "-c", "print('3 passed in 0.1s')"]


def gains(**found: float) -> list[dict[str, Any]]:
    return [row("fit", TRITON, "ok", T=int(name[1:]), gain=gain) for name, gain in found.items()]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (gains(T512=0.03), "**triton** (+3.0% at T = 512, T = 2,048 unknown)"),
        (gains(T512=0.029, T2048=0.079), "**dense** (+2.9% at T = 512, +7.9% at T = 2,048)"),
        (gains(T512=-0.2, T2048=0.08), "**triton** (-20.0% at T = 512, +8.0% at T = 2,048)"),
        (gains(T1024=0.5), "**dense** (T = 512 unknown, T = 2,048 unknown)"),
    ],
)
def test_the_verdict_is_the_rule_that_stood_before(rows, said):
    assert verdict(rows) == said
    text = " ".join(str(quick.__doc__).split())
    assert (
        "at least 3 % tokens/s of `fit` at T = 512, or 8 % at 2,048 (one of the two is enough)"
        in text
    )


def test_kernels_are_compared_with_float64_and_wrong_ones_are_found(monkeypatch):
    found = list(kernel_errors(65, torch.device("cpu"), width=8))
    assert [one["what"] for one in found] == ["y", "dx", "dw"]
    assert all(one["result"].startswith("ok: dense, ") for one in found)
    assert all(1e-4 < one["error"] < 1e-2 for one in found)
    monkeypatch.setattr(quick, "masked_convolution", lambda x, w: w.to(x.dtype) @ x)  # no triangle
    assert {one["result"][:5] for one in kernel_errors(65, torch.device("cpu"))} == {"wrong"}


def test_skipped_is_not_passed(capsys):
    assert waited(0, "...\n3 passed in 20.1s\n")["result"] == "ok: 3 passed in 20.1s"
    for code, said in (
        (0, "1 passed, 2 skipped in 1s"),
        (0, "3 skipped"),
        (1, "3 failed"),
        (1, ""),
    ):
        assert waited(code, said)["result"].startswith("failed: ")
    assert "3 failed" in capsys.readouterr().err


class Simulated:
    """Stands for an entrant: a step takes longer by compiled dense products, and the eager fail."""

    def __init__(self, device, threads, log, work, training, kernels, variables):
        assert work is fit_way
        self.readings: list[Turn] = []
        self.failed = None if training.compiled else "out of memory"
        self.second = {"triton": 1.0, "dense": 1.25}[kernels]

    def turn(self, steps):
        assert steps in (2, 14)  # three turns of it are more than 40 steps
        return None if self.failed else Turn(steps, self.second * steps, 1.0, 2**30)

    def end(self):
        pass


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The data that the benchmark packs, of few stories and by a vocabulary of few."""
    folder = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_training, "STORIES", 60)
        patch.setattr(bench_training, "open_corpus", lambda _, split: open_corpus("toy:400", split))
        bench_training.pack_toy(folder)
    return folder


@pytest.mark.first(1)
@pytest.mark.parametrize("kernels", ["triton", "dense"])
def test_a_page_and_its_rows(kernels, toy, tmp_path, monkeypatch, capsys):
    def pack_toy(folder):
        return shutil.copytree(toy, folder, dirs_exist_ok=True) / "data"

    monkeypatch.setattr(quick, "pack_toy", pack_toy)
    monkeypatch.setattr(quick, "WAITS", ENDED)
    monkeypatch.setattr(quick, "kernel_errors", partial(kernel_errors, width=16))
    monkeypatch.setattr(quick, "ModelConfig", lambda size, **_: ModelConfig(size, 64, 32, 1))
    monkeypatch.setattr(bench_training, "Entrant", Simulated)
    monkeypatch.setattr(quick, "implementation", lambda *_: (kernels, "so it is"))
    out = tmp_path / "out"
    words = f"--device cpu --threads 1 --lengths 512 --tokens 1100 --seconds 0 --out {out}"
    assert quick.main(words.split()) == 1  # one way failed
    *_, invert, triton, dense, eager, test = csv.DictReader(
        (out / "quick.csv").read_text().splitlines()
    )
    assert invert["result"] == "ok: The dog was sad."
    assert test["result"] == "ok: 3 passed in 0.1s"
    assert eager["result"] == "failed: out of memory"
    assert float(dense["tokens/s"]) == pytest.approx(2 * 512 / 1.25)
    assert float(dense["memory, GiB"]) == 1
    text = (out / "quick.md").read_text(encoding="utf-8")
    if kernels == "triton":
        assert float(triton["gain"]) == pytest.approx(0.25)
        assert "**triton** (+25.0% at T = 512, T = 2,048 unknown)" in text
    else:
        assert triton["result"] == "ok: left out, so it is"
        assert "**dense** (T = 512 unknown" in text
    assert str(tmp_path) not in text
    assert text in capsys.readouterr().out


def test_a_way_trains_by_its_kernels(packed, tmp_path, monkeypatch):
    """As the recipe flat has it, but for windows, their number, and what is measured."""
    monkeypatch.setenv("REMNANT_KERNELS", "auto")
    asked = []
    monkeypatch.setattr(quick, "train_in_turns", lambda turns, recipe: asked.append(recipe))
    model: Any = type("Model", (), {"context": 2048})
    about = (model, 16, "cpu", "auto", False, packed.path, tmp_path)
    fit_way(None, quick.Training(*about), "dense")  # pyright: ignore[reportArgumentType]
    (recipe,) = asked
    assert (recipe.model.context, recipe.batch.size, recipe.batch.micro) == (2048, 16, 16)
    assert (recipe.run.compile, recipe.run.precision) == (False, "auto")
    assert (recipe.optimizer.name, recipe.model.d_model) == ("muon", 512)
    assert os.environ["REMNANT_KERNELS"] == "dense"
