"""What a run shows while it trains: a bar on a terminal, lines on a pipe, samples, figures."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer

from tests.train_cases import fit, pack_toy
from train import progress
from train.module import LanguageModule
from train.windows import Batch


@pytest.fixture(scope="module")
def data(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "packed", 4).path


def test_a_pipe_shows_a_line_every_so_many_steps(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert fit(data, tmp_path / "run", "--log_every", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    steps = [found[1] for line in lines if (found := re.match(r"step (\d)/6  loss", line))]
    assert steps == ["1", "2", "4", "6"]
    pattern = (
        r"step 2/6  loss \d\.\d{3}  bits/byte \d\.\d{3}  lr \S+  [\d,]+ tokens/s  \d:\d\d left"
    )
    assert any(re.fullmatch(pattern, line) for line in lines)


def test_the_time_left_leaves_the_compiling_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A clock on which the first step takes ten minutes and any other a second."""
    now, original = 0.0, LanguageModule.training_step

    def training_step(self: LanguageModule, batch: Batch, batch_idx: int) -> torch.Tensor:
        nonlocal now
        now += 600 if self.trainer.global_step == 0 else 1
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModule, "training_step", training_step)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now))
    assert fit(data, tmp_path / "run") == 0
    shown = capsys.readouterr().out
    assert re.findall(r"step (\d)/6 .*  (\S+) left\n", shown) == [
        *(("2", "0:04"), ("3", "0:03"), ("4", "0:02"), ("5", "0:01"), ("6", "0:00"))
    ]
    assert re.search(r"step 1/6 .*  time left not known yet\n", shown)


def test_a_terminal_shows_a_bar_below_the_lines(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    assert fit(data, tmp_path / "run") == 0
    shown = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", capsys.readouterr().out)
    assert re.search(r"step 3/6 \S+ +0:\d\d left *\n *loss \d\.\d{3}  bits/byte", shown)
    valid = f"step 6  valid loss 6.167  bits/byte 4.702 over 320 tokens  -> {tmp_path}/run/models/"
    assert valid in shown  # longer than the terminal is wide, and not cut


def test_samples_are_shown_kept_and_change_no_weight(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert fit(data, tmp_path / "with", "--sample_prompts", "[Tom, Once upon]") == 0
    shown = capsys.readouterr().out
    assert fit(data, tmp_path / "without", "--sample_prompts", "[]") == 0
    rows = [
        json.loads(line) for line in (tmp_path / "with" / "samples.jsonl").read_text().splitlines()
    ]
    assert [(row["step"], row["prompt"]) for row in rows] == [
        (step, prompt) for step in (0, 6) for prompt in ("Tom", "Once upon")
    ]
    assert "step 6  Tom" in shown
    assert all(row["text"] for row in rows)
    assert (tmp_path / "without" / "samples.jsonl").read_text() == ""
    weights = [
        tmp_path / run / "models" / "step-000006" / "model.safetensors"
        for run in ("with", "without")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
