"""The kernels' benchmark, tuner and GPU check, as far as they go without a GPU."""

import argparse
import ast
import csv
import itertools
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from triton.runtime.errors import OutOfResources

from arch.kernels import table
from scripts import bench_kernels, tune_kernels
from scripts.kernel_report import OURS, Row, page
from scripts.kernel_timing import Peak

ROOT = Path(__file__).parents[1]
IMPORTS = (ast.Import, ast.ImportFrom)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def arguments(monkeypatch):
    """Sets the command line; gives torch its threads back."""
    threads = torch.get_num_threads()
    yield lambda *words: monkeypatch.setattr(sys, "argv", ["command", *words])
    torch.set_num_threads(threads)


def test_benchmark_measures_every_form_on_a_cpu(arguments, tmp_path, capsys):
    sizes = ("--lengths", "8", "16", "--widths", "4", "--tokens", "32", "--rounds", "2")
    arguments("--device", "cpu", *sizes, "--out", str(tmp_path))
    assert bench_kernels.main() == 0
    with open(tmp_path / "kernels-cpu.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    forms = [OURS, *bench_kernels.DENSE]
    assert [row["form"] for row in rows] == forms * 4
    assert all(float(row["microseconds"]) > 0 for row in rows)
    assert all(float(row["ratio"]) == 1 for row in rows if row["form"] == OURS)
    text = (tmp_path / "kernels-cpu.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert str(tmp_path) not in text


def test_benchmark_says_what_it_had_no_time_for(arguments, tmp_path):
    arguments("--device", "cpu", "--lengths", "8", "--seconds", "-1", "--out", str(tmp_path))
    assert bench_kernels.main() == 0
    text = (tmp_path / "kernels-cpu.md").read_text(encoding="utf-8")
    assert "- T=8, D=256: float32, forward + backward: for want of time" in text


def too_large(*_: object, **__: object) -> torch.Tensor:
    raise OutOfResources(300_000, 200_000, "shared memory")


@pytest.mark.parametrize("ours", [True, False])
def test_benchmark_leaves_out_what_does_not_run(ours, arguments, monkeypatch, tmp_path, capsys):
    if ours:
        monkeypatch.setattr(bench_kernels, "masked_convolution", too_large)
    else:
        monkeypatch.setitem(bench_kernels.DENSE, "bmm", too_large)
    sizes = ("--lengths", "8", "--widths", "4", "--tokens", "32", "--rounds", "1")
    arguments("--device", "cpu", *sizes, "--out", str(tmp_path))
    assert bench_kernels.main() == 0
    form = OURS if ours else "bmm"
    assert f"not timed: {form} eager: OutOfResources: out of" in capsys.readouterr().out
    text = (tmp_path / "kernels-cpu.md").read_text(encoding="utf-8")
    assert ("D=4: float32, forward: masked_convolution does not run here" in text) == ours
    with open(tmp_path / "kernels-cpu.csv", encoding="utf-8") as file:
        forms = {row["form"] for row in csv.DictReader(file)}
    assert forms == (set() if ours else {OURS, *bench_kernels.DENSE} - {"bmm"})


@pytest.mark.parametrize("rule", [True, False])
def test_tuner_leaves_out_what_does_not_run(rule, monkeypatch, capsys):
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *s, device, dtype: randn(*s, dtype=dtype))
    monkeypatch.setattr("arch.kernels.operands.architecture", lambda x: "sm_90")
    monkeypatch.setattr(table, "TUNED", {})

    def work(number: int) -> list[torch.Tensor]:
        if rule or table.TUNED:
            too_large()
        return [torch.zeros(1)]

    monkeypatch.setattr(tune_kernels, "_work", lambda *_: work)
    tune_kernels.tune("product", 64, 64, 1, torch.bfloat16)
    said = "the rule's tile does not run here: OutOfResources" if rule else "no tile could be timed"
    assert f"product         T=   64 D=   64 left out, {said}" in capsys.readouterr().out
    assert not table.TUNED


def test_tuner_keeps_the_old_table_where_it_cannot_write(monkeypatch, tmp_path):
    old = tmp_path / "tuned.py"
    old.write_text("TUNED = {}")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(tune_kernels, "compile_all", lambda *_: None)
    monkeypatch.setattr(tune_kernels, "tune", lambda *_: None)
    sizes = {"kernels": ["product"], "dtype": "float32", "lengths": [8], "widths": [8]}
    options = argparse.Namespace(out=old, tokens=8, seconds=60, **sizes)
    with pytest.raises(OSError, match="No space"):
        tune_kernels._tune_all(options)
    assert old.read_text() == "TUNED = {}"
    assert list(tmp_path.iterdir()) == [old]


def test_table_of_tiles_that_is_none(arguments, tmp_path, capsys):
    (tmp_path / "other.py").write_text("TILES = {}")
    for name, said in (
        ("nowhere.py", "nowhere.py"),
        ("other.py", "has no TUNED; python -m scripts.tune_kernels writes it"),
    ):
        arguments("--device", "cpu", "--tuned", str(tmp_path / name), "--out", str(tmp_path / "o"))
        assert bench_kernels.main() == 2
        line = capsys.readouterr().err
        assert line.startswith("error: ")
        assert said in line
        assert line.count("\n") == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("kind", [{}, {"epilogue": True}, {"norm": True}])
def test_forms_agree(kind):
    """What is timed computes the same thing, gradients included."""
    task = bench_kernels.Task("float32", 40, 6, 3, backward=True, **kind)
    torch.manual_seed(0)
    found: dict[str, Any] = {n: call(0) for n, _, call, _ in bench_kernels.calls(task, "cpu")}
    for name, gradients in found.items():
        turned = name.endswith(bench_kernels.POSITION_MAJOR)
        same = [g.transpose(0, 1) if turned and g.dim() == 3 else g for g in gradients]
        torch.testing.assert_close(same, list(found[OURS]), rtol=1e-4, atol=1e-5)


def test_reference_agrees():
    task = bench_kernels.Task("bfloat16", 40, 6, 3, backward=True, autocast=True)
    torch.manual_seed(0)
    ours, theirs = (call(0) for _, _, call, _ in bench_kernels.calls(task, "cpu"))
    (dx, dw), (same_dx, same_dw) = cast(Any, ours), cast(Any, theirs)
    torch.testing.assert_close(dx, same_dx, rtol=1e-2, atol=1e-2)
    # The reference leaves gradients above the diagonal of a weight that it then sets to zero.
    torch.testing.assert_close(dw, same_dw.tril(), rtol=2e-2, atol=2e-2)


def test_page_of_a_gpu_sets_what_was_found_beside_what_was_asked():
    ours = Row(
        *("bfloat16", 512, 512, 128, True),
        form=OURS,
        microseconds=100.0,
        ratio=1.0,
        tflops=1.0,
        tbs=2.0,
        roofline=0.8,
    )
    rows = [ours, *(replace(ours, form="bmm", ratio=ratio) for ratio in (1.625, 1.375))]
    text = page(rows, {}, "command", Peak(8e14, 4e12))
    assert "| 512 | 1.4 | 1.25 | 1.38 | not measured |" in text
    assert "| 1024 | 1.55 | 1.35 | not measured | not measured |" in text
    assert "| 512 | 512 | 128 | 100.0 | 1 | 2 | 80% | 1.38 | 1.62 / 1.38 |" in text


@no_gpu
@pytest.mark.parametrize(
    ("main", "words", "line"),
    [
        (
            bench_kernels.main,
            ("--device", "cuda"),
            "error: --device cuda: there is no CUDA device here; use cpu\n",
        ),
        (
            tune_kernels.main,
            (),
            "error: there is no CUDA device here; run this where there is one\n",
        ),
    ],
)
def test_without_a_gpu(main, words, line, arguments, capsys):
    arguments(*words)
    assert main() == 2
    assert capsys.readouterr().err == line


def test_tuned_table_is_read_back_as_it_was_written(monkeypatch, tmp_path):
    entry = table.key("outer", "sm_90", torch.bfloat16, 300, 512)
    assert entry == ("outer", "sm_90", "bfloat16", 512, 512)
    monkeypatch.setattr(table, "TUNED", {entry: (64, 64, 32, 4, 5, 264)})
    (tmp_path / "tuned.py").write_text(tune_kernels.written(), encoding="utf-8")
    assert runpy.run_path(str(tmp_path / "tuned.py"))["TUNED"] == table.TUNED
    found = table.tile("outer", "sm_90", torch.bfloat16, 400, 384)
    assert (found.rows, found.stages, found.programs) == (64, 5, 264)
    assert table.tile("outer", "sm_80", torch.bfloat16, 400, 384) != found


def test_table_in_the_tree_is_described_as_a_new_one_would_be():
    kept = (ROOT / "arch/kernels/tuned.py").read_text(encoding="utf-8")
    new = ast.get_docstring(ast.parse(tune_kernels.written()))
    assert ast.get_docstring(ast.parse(kept)) == new


@pytest.mark.parametrize("kernel", table.KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_candidates_divide_as_the_kernels_need(kernel, dtype):
    tiles = list(tune_kernels.candidates(kernel, dtype))
    assert len(tiles) == len(set(tiles)) > 4
    for tile in tiles:
        assert tile.rows % tile.depth == 0
        assert kernel.endswith("outer") == (tile.programs > 0)
        assert not tile.programs or tile.rows == tile.columns


@pytest.mark.parametrize("kernel", table.KERNELS)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_120"])
def test_rule_divides_as_the_kernels_need(kernel, architecture):
    for dtype, length, width in itertools.product(
        (torch.float16, torch.float32), (1, 16, 100, 512, 8192), (1, 24, 512)
    ):
        tile = table.tile(kernel, architecture, dtype, length, width)
        assert min(tile.rows, tile.columns, tile.depth) >= 16
        assert kernel.endswith("outer") == (tile.programs > 0)
        assert tile.rows == tile.columns if tile.programs else tile.rows % tile.depth == 0


def gpu_check(*words: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHON": sys.executable}
    command = ["bash", "scripts/gpu_check.sh", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_gpu_check_names_a_part_it_does_not_know(tmp_path):
    done = gpu_check(str(tmp_path / "out"), "kernel")
    assert done.returncode == 2
    parts = "tests tune kernels inversion training claims"
    assert done.stderr == f"error: part 'kernel': expected one of: {parts}\n"
    assert not (tmp_path / "out").exists()


def test_gpu_check_fits_in_one_call():
    text = (ROOT / "scripts/gpu_check.sh").read_text()
    limits = {part: int(n) for part, n in re.findall(r"^(\w+)_seconds=(\d+)$", text, re.M)}
    usual = re.findall(r"^USUAL=\((.*)\)$", text, re.M)[0].split()
    start, killed = 15, 10
    assert sum(limits[part] for part in usual) + start + killed <= 600
    assert max(limits.values()) <= 600 - start


def test_gpu_tests_can_be_collected_without_what_is_optional():
    optional = {"accelerate", "altair", "captum", "datasets", "pyarrow", "transformers", "wandb"}
    files = [p for p in (ROOT / "tests").glob("test_*.py") if "mark.gpu" in p.read_text()]
    assert len(files) > 3
    for path in files:
        found = [node for node in ast.parse(path.read_text()).body if isinstance(node, IMPORTS)]
        words = {w for node in found for w in re.findall(r"[\w]+", ast.unparse(node))}
        assert not words & optional, path.name


@no_gpu
def test_gpu_check_without_a_gpu(tmp_path):
    done = gpu_check(str(tmp_path / "out"), "kernels")
    assert done.returncode == 2
    assert "finds no CUDA device; set PYTHON to one that does" in done.stderr
