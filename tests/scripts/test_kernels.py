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

from scripts.bench import kernels as bench_kernels
from scripts.bench.kernels import DENSE, OURS

ROOT = Path(__file__).parents[2]


def test_benchmark_measures_every_form_on_a_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--device", "cpu", "--lengths", "8", "16", "--widths", "4"]
    words += ["--tokens", "32", "--rounds", "2"]
    assert bench_kernels.main([*words, "--seconds", "-1"]) == 0
    assert "T=8, D=4: no time left" in capsys.readouterr().out
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


def test_forms_agree():
    """What is timed computes the same thing, gradients included."""
    torch.manual_seed(0)
    calls = bench_kernels.calls("float32", 40, 6, 3, True, "cpu")
    results: dict[str, Any] = {name: call(0) for name, _, call, _ in calls}
    assert list(results) == [OURS, *DENSE]
    for gradients in results.values():
        torch.testing.assert_close(list(gradients), list(results[OURS]), rtol=1e-4, atol=1e-5)


def test_gpu_check_refuses_a_part_it_does_not_know(tmp_path):
    command = ["bash", "scripts/gpu_check.sh", str(tmp_path / "out"), "kernel"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "part 'kernel'" in done.stderr


def test_gpu_check_fits_in_one_call():
    """Its usual parts, the start and the end take ten minutes at most."""
    text = (ROOT / "scripts/gpu_check.sh").read_text()
    limits = {part: int(n) for part, n in re.findall(r"^(\w+)_seconds=(\d+)$", text, re.M)}
    usual = re.findall(r"^USUAL=\((.*)\)$", text, re.M)[0].split()
    assert sum(limits[part] for part in usual) + 25 <= 600
    assert limits["quick"] == 300


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

for name, own in owners.items():
    if not allowed & set(map(plain, own)):
        sys.modules[name] = None  # as if it were not installed
installed = metadata.distribution

def distribution(name):
    if plain(name) not in allowed:
        raise metadata.PackageNotFoundError(name)
    return installed(name)

metadata.distribution = distribution
"""


def run_alone(code: str, folder: Path) -> str:
    """What Python prints of the code, which must pass, with the `sitecustomize` of a folder."""
    alone = {"PYTHONPATH": f"{folder}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command, environment = [sys.executable, "-c", code], os.environ | alone
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_gpu_check_needs_torch_triton_numpy_and_pytest_alone(tmp_path):
    """The tests of kernels are collected, the benchmark is imported, the others are skipped."""
    (tmp_path / "sitecustomize.py").write_text(ALONE)
    script = (ROOT / "scripts/gpu_check.sh").read_text()
    needs = re.findall(r"^needs\(\) \{.*?^\}", script, re.M | re.S)[0]
    found = subprocess.run(
        ["bash", "-c", f'{needs}\nfor f in $(grep -rl "mark[.]gpu" tests --include="test_*.py"); '
         'do echo "$f: $(needs $f)"; done'], cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    needed = dict(line.split(": ") for line in found)
    alone = [file for file, packages in needed.items() if packages == "pytest"]
    assert "tests/arch/kernels/test_kernels_gpu.py" in alone
    assert "lightning" in needed["tests/train/steps/test_speed.py"]
    words = ["-m", "gpu", "--collect-only", *alone]
    collect = f"import scripts.bench.kernels, pytest; raise SystemExit(pytest.main({words}))"
    assert "::test_the_kernels_run" in run_alone(collect, tmp_path)


@pytest.mark.slow
def test_the_quick_check_needs_what_its_header_names_alone(tmp_path):
    """All that it imports, and the test that it runs is collected, not skipped."""
    script = (ROOT / "scripts/gpu_check.sh").read_text()
    header = re.sub(r"\n# +", " ", script.partition("\n# Tests and usual")[0])
    named = re.findall(r"for (?:the others|quick) +(.*?)(?= for |$)", header)
    plain = re.sub(r"\[\w+\]", "", ", ".join(named)).split(", ")
    assert {"tokenizers", "safetensors", "lightning", "tyro"} <= set(plain)
    bare = '"pytest", "remnant"'
    (tmp_path / "sitecustomize.py").write_text(
        ALONE.replace(bare, f"{bare}, {', '.join(map(repr, plain))}")
    )
    needs = re.findall(r"^needs\(\) \{.*?^\}", script, re.M | re.S)[0]
    packages = subprocess.run(
        ["bash", "-c", f"{needs}\nneeds quick"], capture_output=True, text=True, check=True
    ).stdout.strip()
    run = f"import {packages}; from scripts.bench import quick; import pytest, train.run; " + (
        "raise SystemExit(pytest.main(['--collect-only', *quick.WAITS[3:]]))"
    )
    assert "3 tests collected" in run_alone(run, tmp_path)
