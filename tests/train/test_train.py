"""A run, from the command line to its files."""

import json
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load

from arch import load_model
from tests.train.cases import fit, losses, names, pack_toy, rows, weights
from tokenizer import PAD, PackedData
from tokenizer.pack import Layout
from train.__main__ import main
from train.commands.cli import list_recipes
from train.rundir.rundir import RunDirectory


@pytest.fixture(scope="module")
def data(stories):
    return stories.path


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A finished run that many tests look at and none changes."""
    path = tmp_path_factory.mktemp("runs") / "first"
    flags = "--save_steps [3] --checkpoint_every 2 --validate_every 4 --trainer.max_steps 30"
    flags += " --validate_tokens 100000 --optimizer.lr 0.02 --log_every 5"
    assert fit(data, path, *flags.split()) == 0
    return path


def test_a_run_directory_holds_what_it_says(run, data):
    assert names(run) == ["checkpoints", "config.yaml", "metrics.jsonl", "models"]
    assert names(run / "models") == ["step-000000", "step-000003", "step-000030"]
    assert names(run / "checkpoints") == ["step-000028.ckpt", "step-000030.ckpt"]
    for path in (run / "checkpoints").iterdir():  # tensors and plain values only
        content = torch.load(path, weights_only=True)
        assert content["remnant"]["model"]["d_model"] == 16
    meta = load_model(run / "models" / "step-000003").meta
    assert (meta["name"], meta["step"], meta["tokens_seen"]) == ("first", 3, 3 * 4 * 16)
    assert (meta["data_sha256"], meta["data_source"]) == (PackedData(data).hash, "toy:40")
    assert meta["field"] == "text"
    found = rows(run, "loss")
    assert [row["step"] for row in found] == [1, 5, 10, 15, 20, 25, 30]
    assert found[-1]["tokens_seen"] == 30 * 4 * 16
    assert (run / "metrics.jsonl").read_text().count("tokens_per_second") == len(found)
    assert found[0]["lr"] == pytest.approx(0.02 / 3)


def test_the_saved_loss_is_that_of_the_saved_model_on_the_whole_split(run, data):
    loaded = load_model(run / "models" / "step-000030")
    packed = PackedData(data)
    line = torch.from_numpy(packed.tokens("valid").astype("int64"))
    model, nats = loaded.model.double(), 0.0
    for start in range(0, len(line) - 1, 16):
        window = line[start : start + 17][None]
        logits = model(window[:, :-1])
        nats += F.cross_entropy(logits[0], window[0, 1:], reduction="sum").item()
    counts = packed.meta["splits"]["valid"]
    expected = nats / (len(line) - 1)
    assert loaded.meta["val_loss"] == pytest.approx(expected, rel=1e-5)
    bits = expected * counts["tokens"] / counts["bytes"] / math.log(2)
    assert loaded.meta["val_bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert loaded.meta["val_tokens"] == len(line) - 1
    first, *_, last = (row["val_loss"] for row in rows(run, "val_loss"))
    assert first == pytest.approx(math.log(400), rel=0.1)
    assert last < first - 0.5


def test_rows_that_no_token_has_are_trained_and_not_judged(data, tmp_path):
    run = tmp_path / "run"
    assert fit(data, run, "--model.vocab_multiple", "64", "--validate_tokens", "320") == 0
    saved = run / "models" / "step-000006"
    assert load(weights(run))["head.weight"].shape == (448, 16)
    loaded = load_model(saved)
    line = torch.from_numpy(PackedData(data).tokens("valid")[:321].astype("int64"))
    logits = loaded.model(line[:-1].view(-1, 16))
    assert logits.shape[-1] == 400
    loss = F.cross_entropy(logits.flatten(0, 1), line[1:])
    assert loaded.meta["val_loss"] == pytest.approx(loss.item(), abs=1e-5)
    more = ["--resume", "auto", "--trainer.max_steps", "7"]
    assert fit(data, run, *more) == 2  # another model
    assert fit(data, run, *more, "--model.vocab_multiple", "64") == 0


def test_config_yaml_repeats_the_run_to_the_bit_and_another_seed_does_not(run, tmp_path):
    flags = ["fit", "--config", str(run / "config.yaml"), "--run"]
    assert main([*flags, str(tmp_path / "again")]) == 0
    assert weights(tmp_path / "again", 30) == weights(run, 30)
    assert main([*flags, str(tmp_path / "other"), "--seed", "1", "--trainer.max_steps", "3"]) == 0
    assert weights(tmp_path / "other", 0) != weights(run, 0)


def test_a_run_leaves_the_callers_random_numbers(data, tmp_path):
    """A search at random that trains in a loop drew the same settings again."""

    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    before = states()
    assert fit(data, tmp_path / "run", "--trainer.max_steps", "1") == 0
    assert states() == before


def test_who_may_write_to_a_shared_run_may_lock_it(tmp_path):
    """Its owner alone could, whatever the umask."""
    directory, before = RunDirectory(tmp_path / "run"), os.umask(0o002)
    try:
        directory.prepare("", [], directory.content())
    finally:
        os.umask(before)
        directory.release()
    files = [path.stat().st_mode & 0o777 for path in directory.path.iterdir()]
    assert files == [0o664, 0o664]  # .lock and config.yaml


def test_rows_count_their_tokens_without_pads(small_tokenizer, tmp_path):
    """In the reference's recipe, which is trained on rows."""
    packed = pack_toy(small_tokenizer, tmp_path / "rows", 20, Layout("rows", 400, "left"))
    stories = packed.meta["splits"]["train"]["stories"]
    flags = f"""--config reference --data {packed.path} --run {tmp_path / "run"} --wandb disabled
        --model.vocab_size 400 --model.context 400 --model.d_model 8 --model.n_layers 1
        --batch.size {stories} --trainer.max_steps 1 --schedule.warmup_steps 0
        --precision bf16-mixed --trainer.accelerator cpu"""
    assert main(["fit", *flags.split()]) == 0
    targets = packed.tokens("train")[:, 1:]
    expected = (targets != small_tokenizer.token_to_id(PAD)).sum()
    saved = load_model(tmp_path / "run" / "models" / "step-000001")
    assert saved.meta["tokens_seen"] == expected < targets.size
    assert isinstance(saved.model.norm, torch.nn.Identity)
    assert saved.model.embedding.weight.detach().std() == pytest.approx(1, abs=0.05)
    assert {tensor.dtype for tensor in load(weights(tmp_path / "run", 1)).values()} == {
        torch.float32
    }


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_is_one_that_can_be_run(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--config", name, "--print_config"])
    assert stopped.value.code == 0
    settings = yaml.safe_load(capsys.readouterr().out)
    assert settings["trainer"]["max_steps"] > settings["schedule"]["warmup_steps"]
    assert main(["recipes"]) == 0
    assert f"{name:12}  {list_recipes()[name]}\n" in capsys.readouterr().out


def test_the_list_of_recipes_has_a_help(capsys):
    assert main(["recipes", "--help"]) == 0
    assert "usage: python -m train" in capsys.readouterr().out


def test_what_needs_no_large_package_waits_for_none():
    code = """
import sys, train.__main__ as m
for words in ("--help", "fit --help", "recipes", "fit --data nowhere --run x"):
    try:
        m.main(words.split())
    except SystemExit as done:
        assert not done.code
print("loaded:", [n for n in ("lightning", "wandb", "datasets") if n in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "--model.d_model D_MODEL" in done.stdout
    assert "error: nowhere: no such directory of packed data; make one " in done.stderr
    assert done.stdout.endswith("loaded: []\n")


def test_a_text_file_becomes_a_model_by_one_command(tmp_path, capsys):
    run, text = tmp_path / "run", tmp_path / "book.jsonl"
    stories = [f"Once upon a time there were {n} cats and {n + 1} dogs." for n in range(150)]
    text.write_text("\n".join(json.dumps({"text": story}) for story in stories))
    flags = ["--model.vocab_size", "4096"]
    assert fit(text, run, *flags) == 0
    shown = capsys.readouterr().out
    data, model = PackedData(run / "data"), load_model(run / "models" / "step-000006")
    assert set(data.stories("train")) | set(data.stories("valid")) == set(stories)
    size = data.meta["vocab_size"]
    assert 258 < size < 4096
    assert f"{size:,} entries in the vocabulary" in shown
    assert model.config.vocab_size == size
    assert model.meta["data_source"] == str(text)
    more = ["--resume", "auto", "--trainer.max_steps", "7"]
    capsys.readouterr()
    assert fit(text, run, *flags, *more) == 0
    assert "has changed" not in capsys.readouterr().err
    held, written = text.read_bytes(), text.stat().st_mtime
    for content, moment, changed in ((held, 9, False), (held[::-1], -9, True), (held, 9, False)):
        text.write_bytes(content)
        os.utime(text, (written + moment, written + moment))
        assert fit(text, run, *flags, *more) == 0
        assert (f"--data {text}: has changed" in capsys.readouterr().err) == changed
    assert fit(text, run, "--model.vocab_size", str(size - 9), *more) == 2
    said = f"run/data was packed with {size} entries, of 4096 asked for; choose another --run"
    assert said in capsys.readouterr().err
    assert fit(Path(os.path.relpath(text)), run, *flags, *more) == 0  # another path of the file
    config = str(run / "config.yaml")
    assert main(["fit", "--config", config, "--resume", "auto", "--trainer.max_steps", "8"]) == 0
    assert names(run / "models")[-2:] == ["step-000007", "step-000008"]
    assert fit(text, run, *flags, *more, "--valid_fraction", "0.2") == 2
    assert "--valid_fraction 0.2: " in capsys.readouterr().err
    assert fit(text, tmp_path / "fifth", *flags, "--valid_fraction", "0.2") == 0
    assert PackedData(tmp_path / "fifth" / "data").meta["valid_fraction"] == 0.2
    copy = shutil.copy(text, tmp_path / "copy.jsonl")
    assert fit(copy, run, *flags, *more) == 0
    for name, content in (("other.jsonl", held[::-1]), ("copy.json", held)):
        (tmp_path / name).write_bytes(content)
        assert fit(tmp_path / name, run, *flags, *more) == 2
        assert f"run/data was packed from {text}; choose" in capsys.readouterr().err


def test_a_start_that_waits_for_another_leaves_its_record(tmp_path, monkeypatch):
    """It was emptied before the lock was there, and no change of the text was said any more."""
    run, text, records = tmp_path / "run", tmp_path / "book.txt", []
    run.mkdir()
    (run / ".data.lock").write_text('{"a": "record"}')
    text.write_text("\n\n".join(f"Once upon a time there were {n} cats." for n in range(150)))
    monkeypatch.setattr("fcntl.lockf", lambda *_: records.append((run / ".data.lock").read_text()))
    assert fit(text, run, "--model.vocab_size", "300") == 0
    assert records[0] == '{"a": "record"}'
    assert json.loads((run / ".data.lock").read_text())["size"] == text.stat().st_size


def test_a_folder_of_text_is_packed_as_its_names_divide_it(tmp_path, monkeypatch, capsys):
    """A relative path of it is another one in another folder."""
    folder, run = tmp_path / "texts", tmp_path / "run"
    (folder / "train").mkdir(parents=True)
    for name, number in (("train/a.txt", 400), ("valid.txt", 40)):
        stories = (f"Once upon a time there were {n} cats." for n in range(number, 2 * number))
        (folder / name).write_text("\n\n".join(stories))
    monkeypatch.chdir(tmp_path)
    flags = ["--model.vocab_size", "400", "--resume", "auto"]
    assert fit(Path("texts"), run, *flags) == 0
    counts = PackedData(run / "data").meta["splits"]
    assert [counts[split]["stories"] for split in ("train", "valid")] == [400, 40]
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert fit(Path("../texts"), run, *flags) == 0
    assert "has changed" not in capsys.readouterr().err
    (folder / "valid.txt").write_text("Once.\n\nTwice.")
    assert fit(Path("../texts"), run, *flags) == 2
    assert "run/data was packed from texts; choose" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert fit(Path("texts"), run, *flags) == 0
    assert "--data texts: has changed" in capsys.readouterr().err
    for name in ("tokenizer.json", "data"):
        (run / name).rename(folder / name)  # where README has them, and no text
    assert fit(Path("texts"), tmp_path / "second", *flags) == 0
    counts = PackedData(tmp_path / "second" / "data").meta["splits"]
    assert [counts[split]["stories"] for split in ("train", "valid")] == [400, 2]
    (folder / "data").rename(run / "data")
    (run / "data" / "meta.json").unlink()
    for place in (run, run / "data", run / "models"):  # which have text, too
        assert fit(place, tmp_path / "other") == 2
        said = capsys.readouterr().err
        assert f"{place}: not a directory of packed data (no meta.json)" in said


def test_no_fraction_is_taken_of_a_text_that_is_divided(data, tmp_path, capsys):
    """It was packed, then refused, with advice that was refused, too."""
    folder, run = tmp_path / "texts", tmp_path / "run"
    folder.mkdir()
    for name in ("train.txt", "valid.txt"):
        stories = (f"Once upon a time there were {n} {name}." for n in range(9))
        (folder / name).write_text("\n\n".join(stories))
    for source in (Path("toy:40"), folder, data):
        assert fit(source, run, "--valid_fraction", "0.2") == 2
        said = capsys.readouterr().err
        assert f"--valid_fraction 0.2: {source} " in said
        assert said.endswith("leave it out\n")
        assert not run.exists()


def test_a_folder_of_text_may_hold_what_another_trainer_packed(tmp_path, capsys):
    """As nanoGPT prepares it; a .bin made it packed data, a model or a run."""
    folder = tmp_path / "shakespeare"
    folder.mkdir()
    for name in ("train.bin", "val.bin", "prepare.py", "readme.md"):
        (folder / name).write_bytes(b"binary")
    stories = (f"Once upon a time there were {n} cats." for n in range(400))
    (folder / "input.txt").write_text("\n\n".join(stories))
    assert fit(folder, tmp_path / "run", "--model.vocab_size", "400") == 0
    for name in ("config.json", "meta.json"):  # a model has it beside a .bin, or packed data
        (folder / name).write_text("{}")
        assert fit(folder, tmp_path / "other") == 2
        assert f"{folder}: not a directory of packed data" in capsys.readouterr().err
        (folder / name).unlink()


def test_rows_of_a_text_have_a_target_for_the_last_position(tmp_path, caplog):
    """They were as long as the context, which fit itself then advised against."""
    text = tmp_path / "book.txt"
    text.write_text("\n\n".join(f"Once upon a time there were {n} cats." for n in range(400)))
    assert fit(text, tmp_path / "run", "--layout", "rows", "--model.vocab_size", "400") == 0
    assert PackedData(tmp_path / "run" / "data").meta["context"] == 17
    assert not any("untrained" in record.getMessage() for record in caplog.records)


def test_dropout_is_of_training_alone(data, tmp_path):
    first, second = (tmp_path / name for name in ("0", "0.5"))
    for run in (first, second):
        assert fit(data, run, "--dropout", run.name) == 0
    assert rows(first, "val_loss")[0] == rows(second, "val_loss")[0]
    assert losses(first)[0] != losses(second)[0]


def test_the_end_says_which_step_was_best(data, tmp_path, capsys):
    flags = ["--save_every", "2", "--optimizer.lr", "3", "--trainer.max_steps", "4"]
    assert fit(data, tmp_path / "run", *flags) == 0
    found = {row["step"]: row["val_loss"] for row in rows(tmp_path / "run", "val_loss")}
    best = min(found, key=lambda step: found[step])
    assert best < 4
    assert f"at step {best}: {tmp_path}/run@{best} is that model" in capsys.readouterr().out
