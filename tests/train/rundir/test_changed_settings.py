"""A run that goes on with other settings says so, and records which steps had which."""

import ctypes
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from arch import add_to_meta, load_model
from arch.storage.runs import find_model, saved_steps
from eval.models.checkpoint import open_checkpoint
from tests.train.cases import fail, fit, weights


def resume(data, run, steps, *flags):
    return fit(data, run, "--resume", "auto", "--trainer.max_steps", str(steps), *flags)


def test_changed_settings_are_said_and_recorded(data, tmp_path, capsys):
    run = tmp_path / "run"
    assert fit(data, run, "--save_every", "3") == 0
    capsys.readouterr()
    assert resume(data, run, 8, "--optimizer.lr", "0.02", "--wandb_tags", "[a]") == 0
    shown = capsys.readouterr().out
    assert "resumed at step 6 with optimizer.lr 0.001 -> 0.02\n" in shown
    assert 'resumed at step 6 with wandb_tags [] -> ["a"]\n' in shown
    assert "resumed at step 6 with trainer.max_steps 6 -> 8\n" in shown
    assert "resumed at step 6 with save_every 3 -> null\n" in shown
    assert shown.count("resumed at") == 4
    assert resume(data, run, 10, "--optimizer.lr", "0.02", "--wandb_tags", "[a]") == 0
    metas = [load_model(run / "models" / f"step-{n:06d}").meta for n in (6, 8, 10)]
    assert metas[0]["recipe"] == metas[1]["recipe"] == metas[2]["recipe"]
    assert metas[0]["recipe"]["optimizer"]["lr"] == 0.001
    changed = metas[1]["history"][0]["changed"]
    assert (changed["optimizer.lr"], changed["trainer.max_steps"]) == ([0.001, 0.02], [6, 8])
    assert [[each["from_step"] for each in meta["history"]] for meta in metas] == [[], [6], [6, 8]]
    assert metas[2]["history"][1]["changed"] == {"trainer.max_steps": [8, 10]}
    assert len({open_checkpoint(path).model_id for path in (run / "models").iterdir()}) == 1
    text = (run / "config.yaml").read_text()
    assert yaml.safe_load(text)["optimizer"]["lr"] == 0.02
    assert "# resumed at step 6 with optimizer.lr 0.001 -> 0.02\n" in text


def test_steps_that_are_trained_again_are_recorded_as_they_were_last(data, finished, capsys):
    """Of a run that is killed before its next checkpoint, and goes on with the first settings."""
    run = finished()
    assert resume(data, run, 8, "--optimizer.lr", "0.02") == 0
    (run / "checkpoints" / "step-000008.ckpt").unlink()
    capsys.readouterr()
    assert resume(data, run, 7, "--checkpoint_every", "2", "--save_every", "1") == 0
    assert "optimizer.lr" not in capsys.readouterr().out
    (entry,) = load_model(run / "models" / "step-000007").meta["history"]
    assert entry["changed"] == {"trainer.max_steps": [6, 7]}


def test_models_of_another_course_are_hidden(data, finished, capsys):
    """They lay beside those of the run, the last of them as its last model, the best as its best.

    A run that saves or validates at other steps takes no other course.
    """
    run = finished()
    last = run / "checkpoints" / "step-000006.ckpt"
    last.unlink()
    shutil.copytree(run / "models" / "step-000006", run / "best")
    assert fit(data, run, "--resume", "auto", "--validate_every", "2") == 0
    assert "hidden" not in capsys.readouterr().out
    last.unlink()
    assert fit(data, run, "--resume", "auto", "--optimizer.lr", "0.02") == 0
    hidden = f"2 models after step 5, trained with other settings, are hidden now: {run}/models/."
    assert hidden in capsys.readouterr().out
    assert [path.name for path in (run / "models").glob(".*")] == [".step-000006.1"]
    assert (run / ".best.1" / "meta.json").is_file()
    assert not (run / "best").exists()
    assert find_model(run) == run / "models" / "step-000006"
    assert load_model(run).meta["history"][0]["changed"]["optimizer.lr"] == [0.001, 0.02]


def test_a_checkpoint_of_another_run_does_not_go_on_in_one_that_has_begun(data, finished, refused):
    """The record and the models were of both."""
    run, other = finished(), finished("other")
    shutil.rmtree(run / "checkpoints")
    checkpoint = other / "checkpoints" / "step-000006.ckpt"
    line = refused(fit(data, run, "--resume", checkpoint, "--trainer.max_steps", "8"))
    assert f"--resume {checkpoint}: {run} has files of a run already, and no checkpoint" in line
    fresh = run.with_name("fresh")
    assert fit(data, fresh, "--resume", checkpoint, "--trainer.max_steps", "8") == 0


def test_losses_over_other_tokens_are_not_compared(data, finished, capsys):
    """For the best model, for early stopping, and for `RUN@best`."""
    run = finished()
    flags = ("--validate_tokens", "16", "--save_best", "true", "--early_stopping", "9")
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    lowest = [row | {"val_loss": 0.1} if "val_loss" in row else row for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in lowest))
    assert resume(data, run, 8, "--validate_every", "1", *flags) == 0
    assert "0.100" not in capsys.readouterr().out
    tokens, kept = {}, load_model(run / "best").meta
    for path in (run / "models").iterdir():
        tokens.setdefault(load_model(path).meta["val_tokens"], []).append(path)
    assert len(tokens) == 2
    assert kept["val_tokens"] == min(tokens)
    assert kept["step"] in (7, 8)
    shutil.rmtree(run / "best")
    add_to_meta(run / "models" / "step-000006", {"val_loss": 0.1})
    assert find_model(f"{run}@best") == run / "models" / "step-000008"


def test_models_are_in_the_order_of_their_steps(tmp_path):
    """The millionth, whose name has a digit more, came before the others."""
    steps = [0, 999_999, 1_000_000]
    for step in steps:
        (tmp_path / "models" / f"step-{step:06d}").mkdir(parents=True)
    assert list(saved_steps(tmp_path)) == steps


def test_another_number_of_threads_is_said(data, finished, capsys):
    """Sums are then rounded differently."""
    run, threads = finished(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert resume(data, run, 7) == 0
    finally:
        torch.set_num_threads(threads)
    line = f"resumed at step 6 with machine.threads {threads} -> {threads + 1}\n"
    assert line in capsys.readouterr().out


def test_mkl_is_not_free_to_choose_its_threads(data, tmp_path):
    mkl = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    if not hasattr(mkl, "mkl_serv_get_dynamic"):
        pytest.skip("torch without MKL")
    mkl.mkl_serv_set_dynamic(1)
    assert fit(data, tmp_path / "run") == 0
    assert mkl.mkl_serv_get_dynamic() == 0


def test_a_model_directory_says_the_model_that_it_is_a_step_of(data, whole, finished):
    run = finished("another-s1")
    assert resume(data, run, 7, "--optimizer.lr", "0.02") == 0
    paths = [*(whole / "models").iterdir(), *(run / "models").iterdir()]
    opened = [open_checkpoint(path) for path in paths]
    assert [one.model_id for one in opened] == [one.meta["model_id"] for one in opened]
    assert len({one.model_id.rpartition("-")[2] for one in opened}) == 1


def test_a_run_that_is_killed_before_its_first_checkpoint_begins_from_another_ones_again(
    data, tmp_path, finished, at_step, refused, capsys
):
    """It began anew in silence, from random weights."""
    other = finished("other") / "checkpoints" / "step-000006.ckpt"
    run, flags = tmp_path / "run", ["--trainer.max_steps", "8", "--resume"]
    assert fit(data, tmp_path / "whole", *flags, other) == 0
    at_step(7, fail)
    for start in (other, "auto", other, "auto"):
        with pytest.raises(ZeroDivisionError):
            fit(data, run, *flags, start)
    at_step(0, fail)
    away = other.rename(tmp_path / "away.ckpt")
    capsys.readouterr()
    assert f"began from {other}" in refused(fit(data, run, *flags, "auto"))
    away.rename(other)
    assert fit(data, run, *flags, "auto") == 0
    assert weights(run, 8) == weights(tmp_path / "whole", 8)
    shutil.rmtree(run / "checkpoints")
    assert fit(data, run, *flags, "auto") == 0
    assert "is complete: its checkpoints are gone" in capsys.readouterr().out
