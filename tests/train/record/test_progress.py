"""What a run shows while it trains."""

import json
import os
import re
import signal
import sys
from types import SimpleNamespace

from tests.train.cases import fit, interrupt, names
from train.record import progress
from train.steps.module import LanguageModule


def test_a_pipe_shows_a_line_every_so_many_steps(data, tmp_path, monkeypatch, capsys):
    """By a clock on which the first step takes ten minutes, others a second, validations 100."""
    now, original = 0.0, LanguageModule.training_step
    validate = LanguageModule.on_validation_epoch_start

    def training_step(self, batch, batch_idx):
        nonlocal now
        now += 600 if self.trainer.global_step == 0 else 1
        return original(self, batch, batch_idx)

    def on_validation_epoch_start(self):
        nonlocal now
        now += 100
        validate(self)

    monkeypatch.setattr(LanguageModule, "training_step", training_step)
    monkeypatch.setattr(LanguageModule, "on_validation_epoch_start", on_validation_epoch_start)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now))
    assert fit(data, tmp_path / "run", "--log_every", "2", "--validate_every", "3") == 0
    figures = r"  loss \d\.\d{3}  bits/byte \d\.\d{3}  lr \S+  (\d+) tokens/s  (.+)"
    found = re.findall(rf"^step (\d)/6{figures}$", capsys.readouterr().out, re.MULTILINE)
    assert found == [
        *(("1", "0", "time left not known yet"), ("2", "64", "00:04 left")),
        *(("4", "64", "01:08 left"), ("6", "64", "00:00 left")),
    ]
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    seconds = [(row["step"], row["seconds"]) for row in rows if "val_loss" in row]
    assert seconds == [(0, 0), (3, 602), (6, 605)]  # step 3 is none of a line of progress


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
    assert " parameters on 1 cpu" in shown  # no bar is drawn yet
    assert "step 0  valid loss " in shown


def test_closed_streams_are_no_error(data, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, None)
        assert fit(data, tmp_path / "run", "--trainer.max_steps", "1") == 0
        sys.stdout.close()
        sys.stderr.close()
    assert names(tmp_path / "run" / "checkpoints") == ["step-000001.ckpt"]


def test_a_run_whose_reader_has_gone_stops_with_a_checkpoint(data, tmp_path, monkeypatch, at_step):
    """Ctrl-C ends the other side of a pipe, such as `tee`, too."""
    run = tmp_path / "run"
    at_step(3, interrupt(signal.SIGINT))
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patch, open(writer, "w") as pipe:
        patch.setattr(sys, "stdout", pipe)
        assert fit(data, run) == 128 + signal.SIGINT
    assert names(run / "checkpoints") == ["step-000003.ckpt"]
