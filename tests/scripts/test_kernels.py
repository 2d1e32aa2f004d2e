"""The benchmark of the masked convolution and the GPU check, as far as they go without a GPU."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts import bench_kernels
from scripts.bench_kernels import DENSE, OURS

ROOT = Path(__file__).parents[2]


def test_benchmark_measures_every_form_on_a_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--device", "cpu", "--lengths", "8", "16", "--widths", "4"]
    words += ["--tokens", "32", "--rounds", "2"]
    assert bench_kernels.main(words) == 0
    assert not list(tmp_path.iterdir())  # prints only
    assert bench_kernels.main([*words, "--out", str(tmp_path / "out")]) == 0
    with open(tmp_path / "out/kernels-cpu.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["form"] for row in rows] == [OURS, *DENSE] * 4
    assert all(float(row["microseconds"]) > 0 for row in rows)
    assert all(float(row["ratio"]) == 1 for row in rows if row["form"] == OURS)
    text = (tmp_path / "out/kernels-cpu.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert str(tmp_path) not in text


def test_benchmark_says_what_it_had_no_time_for(capsys):
    assert bench_kernels.main(["--device", "cpu", "--lengths", "8", "--seconds", "-1"]) == 0
    assert "T=8, D=256: no time left" in capsys.readouterr().out


def test_forms_agree():
    """What is timed computes the same thing, gradients included."""
    torch.manual_seed(0)
    calls = bench_kernels.calls("float32", 40, 6, 3, True, "cpu")
    results: dict[str, Any] = {name: call(0) for name, _, call, _ in calls}
    assert list(results) == [OURS, *DENSE]
    for gradients in results.values():
        torch.testing.assert_close(list(gradients), list(results[OURS]), rtol=1e-4, atol=1e-5)


def gpu_check(*words, python=sys.executable):
    command = ["bash", "scripts/gpu_check.sh", *words]
    environment = os.environ | {"PYTHON": python}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_check_refuses_a_part_it_does_not_know_and_no_gpu(tmp_path):
    for part, said in (("kernel", "part 'kernel'"), ("kernels", "finds no CUDA device")):
        done = gpu_check(str(tmp_path / "out"), part)
        assert done.returncode == 2
        assert said in done.stderr


def test_gpu_check_fits_in_one_call():
    """Its usual parts, the start and the end take ten minutes at most."""
    text = (ROOT / "scripts/gpu_check.sh").read_text()
    limits = {part: int(n) for part, n in re.findall(r"^(\w+)_seconds=(\d+)$", text, re.M)}
    usual = re.findall(r"^USUAL=\((.*)\)$", text, re.M)[0].split()
    assert sum(limits[part] for part in usual) + 25 <= 600


# Imported at the start of Python: of installed packages only those named, and what they need.
ALONE = r"""
import re, sys
from importlib import metadata

plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
allowed, todo = set(), ["torch", "triton", "numpy", "pytest", "remnant"]
while todo:
    name = plain(todo.pop())
    if name not in allowed and any(metadata.distributions(name=name)):
        allowed.add(name)
        needs = [] if name == "remnant" else metadata.requires(name) or []
        todo += [re.match(r"[\w.-]+", need)[0] for need in needs if "extra ==" not in need]
owners = metadata.packages_distributions()

class Refuse:
    def find_spec(self, name, path=None, target=None):
        own = owners.get(name.partition(".")[0])
        if own and not allowed & set(map(plain, own)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def test_gpu_check_needs_torch_triton_numpy_and_pytest_alone(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(ALONE)
    python = tmp_path / "python"  # one that finds a GPU
    python.write_text(f'#!/bin/sh\ncase "$2" in *cuda*) exit;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    done = gpu_check(str(tmp_path / "out"), "tests", python=str(python))
    log = (tmp_path / "out/tests.log").read_text()
    assert done.returncode == 0, log
    assert re.findall("^tests/.*::test_the_kernels_run", log, re.M)
    skipped = set(re.findall("^skipped (.*): needs", log, re.M))
    assert "tests/train/test_speed.py" in skipped
    subprocess.run([python, "-c", "import scripts.bench_kernels"], cwd=ROOT, check=True)
