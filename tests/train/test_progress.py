"""What a run shows while it trains."""

import re
import sys
from types import SimpleNamespace

from tests.train.cases import fit, rows, weights
from train import progress
from train.module import LanguageModule


def test_a_pipe_shows_a_line_every_so_many_steps(data, tmp_path, capsys):
    assert fit(data, tmp_path / "run", "--log_every", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    steps = [found[1] for line in lines if (found := re.match(r"step (\d)/6  loss", line))]
    assert steps == ["1", "2", "4", "6"]
    pattern = (
        r"step 2/6  loss \d\.\d{3}  bits/byte \d\.\d{3}  lr \S+  [\d,]+ tokens/s  \d:\d\d left"
    )
    assert any(re.fullmatch(pattern, line) for line in lines)


def test_the_time_left_leaves_the_compiling_out(data, tmp_path, monkeypatch, capsys):
    """A clock on which the first step takes ten minutes and any other a second."""
    now, original = 0.0, LanguageModule.training_step

    def training_step(self, batch, batch_idx):
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


def test_a_terminal_shows_a_bar_below_the_lines(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    assert fit(data, tmp_path / "run") == 0
    shown = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", capsys.readouterr().out)
    assert re.search(r"3/6 \[00:\d\d<00:\d\d, .*loss=\d\.\d+, bits_per_byte=\d\.\d+", shown)
    valid = r"step 6  valid loss \d\.\d{3}  bits/byte \d\.\d{3} over 320 tokens  -> "
    place = re.escape(f"{tmp_path}/run/models/")
    assert re.search(valid + place, shown)  # longer than the terminal is wide, and not cut


def test_samples_are_shown_kept_and_change_no_weight(data, tmp_path, capsys):
    assert fit(data, tmp_path / "with", "--sample_prompts", "[Tom, Once upon]") == 0
    shown = capsys.readouterr().out
    assert fit(data, tmp_path / "without", "--sample_prompts", "[]") == 0
    samples = rows(tmp_path / "with", file="samples")
    assert [(row["step"], row["prompt"]) for row in samples] == [
        (step, prompt) for step in (0, 6) for prompt in ("Tom", "Once upon")
    ]
    assert "step 6  Tom" in shown
    assert all(row["text"] for row in samples)
    assert (tmp_path / "without" / "samples.jsonl").read_text() == ""
    assert weights(tmp_path / "with") == weights(tmp_path / "without")
