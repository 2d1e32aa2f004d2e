"""A run, from the command line to its files."""

import json
import math
import re
import shutil
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load

from arch import load_model
from tests.train.cases import fit, names, pack_toy, rows, weights
from tokenizer import PAD, PackedData
from tokenizer.pack import Layout
from train.__main__ import main
from train.cli import recipes


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


def test_a_run_directory_holds_what_it_says(run):
    assert names(run / "models") == ["step-000000", "step-000003", "step-000030"]
    assert names(run / "checkpoints") == ["step-000028.ckpt", "step-000030.ckpt"]
    files = "checkpoints config.yaml metrics.jsonl models samples.jsonl"
    assert names(run) == files.split()


def test_a_model_directory_says_where_it_comes_from(run, data):
    meta = load_model(run / "models" / "step-000003").meta
    assert meta["name"] == "first"
    assert meta["step"] == 3
    assert meta["tokens_seen"] == 3 * 4 * 16
    assert meta["data_sha256"] == PackedData(data).hash
    assert meta["data_source"] == "toy:40"
    assert meta["git_commit"] is None or re.fullmatch("[0-9a-f]{40}(-dirty)?", meta["git_commit"])


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


def test_training_lowers_the_loss(run):
    losses = [row["val_loss"] for row in rows(run, "val_loss")]
    assert losses[0] == pytest.approx(math.log(400), rel=0.1)
    assert losses[-1] < losses[0] - 0.5


def test_metrics_are_rows_by_step(run):
    found = rows(run, "loss")
    assert [row["step"] for row in found] == [1, 5, 10, 15, 20, 25, 30]
    assert found[-1]["tokens_seen"] == 30 * 4 * 16
    assert (run / "metrics.jsonl").read_text().count("tokens_per_second") == len(found)
    assert found[0]["lr"] == pytest.approx(0.02 / 3)


def test_config_yaml_repeats_the_run_to_the_bit(run, tmp_path):
    again = tmp_path / "again"
    assert main(["fit", "--config", str(run / "config.yaml"), "--run", str(again)]) == 0
    assert weights(again, 30) == weights(run, 30)


def test_another_seed_is_another_model_and_another_order(data, tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        assert fit(data, tmp_path / name, "--seed", str(seed), "--trainer.max_steps", "1") == 0
    assert weights(tmp_path / "a", 0) != weights(tmp_path / "b", 0)


def test_checkpoints_hold_tensors_and_plain_values_only(run):
    for path in (run / "checkpoints").iterdir():
        content = torch.load(path, weights_only=True)
        assert content["remnant"]["model"]["d_model"] == 16


def test_accumulated_parts_make_the_same_step(data, tmp_path):
    double = ["--precision", "64-true"]  # Adam blows the rounding of tiny gradients up
    assert fit(data, tmp_path / "whole", *double) == 0
    assert fit(data, tmp_path / "parts", *double, "--batch.micro", "1") == 0
    for a, b in zip(rows(tmp_path / "whole"), rows(tmp_path / "parts"), strict=True):
        assert b == pytest.approx(a, rel=1e-6)
    one, other = (load(weights(tmp_path / name)) for name in ("whole", "parts"))
    torch.testing.assert_close(other, one, atol=1e-9, rtol=1e-6)


def test_bfloat16_keeps_its_weights_in_fp32(data, tmp_path):
    assert fit(data, tmp_path / "run", "--precision", "bf16-mixed") == 0
    saved = load(weights(tmp_path / "run"))
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


def test_rows_count_their_tokens_without_pads(small_tokenizer, tmp_path):
    packed = pack_toy(small_tokenizer, tmp_path / "rows", 20, Layout("rows", 400, "left"))
    stories = packed.meta["splits"]["train"]["stories"]
    flags = ["--model.context", "400", "--batch.size", str(stories), "--trainer.max_steps", "1"]
    assert fit(packed.path, tmp_path / "run", *flags) == 0
    targets = packed.tokens("train")[:, 1:]
    expected = (targets != small_tokenizer.token_to_id(PAD)).sum()
    meta = load_model(tmp_path / "run" / "models" / "step-000001").meta
    assert meta["tokens_seen"] == expected < targets.size


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_one_that_can_be_run(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--config", name, "--print_config"])
    assert stopped.value.code == 0
    settings = yaml.safe_load(capsys.readouterr().out)
    assert settings["trainer"]["max_steps"] > settings["schedule"]["warmup_steps"]
    assert recipes()[name]


def test_recipes_are_listed(capsys):
    assert main(["recipes"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == set(recipes())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--help"], "python -m train fit --config"),
        (["fit", "--help"], "--model.d_model D_MODEL"),
        (["plan", "--help"], "--measure {true,false}"),
        (["recipes"], "flat-small "),
    ],
)
def test_help_waits_for_no_large_package(words, line):
    code = f"""
import sys, train.__main__ as m
try:
    m.main({words})
except SystemExit as done:
    assert not done.code
print("loaded:", [n for n in ("torch", "lightning", "wandb", "datasets") if n in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert line in shown.stdout
    assert shown.stdout.endswith("loaded: []\n")


def test_data_that_is_not_there_is_said_before_lightning_is_imported():
    code = "import sys, train.__main__ as m; code = m.main('fit --data nowhere --run x'.split()); "
    code += "sys.exit(1 if 'lightning' in sys.modules else code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere: no such directory of packed data; make one ")


def test_a_text_file_becomes_a_model_by_one_command(tmp_path, capsys):
    run, text = tmp_path / "run", tmp_path / "book.jsonl"
    stories = [f"Once upon a time there were {n} cats and {n + 1} dogs." for n in range(400)]
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
    assert fit(text, run, *flags, *more) == 0
    config = str(run / "config.yaml")
    assert main(["fit", "--config", config, "--resume", "auto", "--trainer.max_steps", "8"]) == 0
    assert names(run / "models")[-2:] == ["step-000007", "step-000008"]
    other = tmp_path / "other.jsonl"
    shutil.copy(text, other)
    assert fit(other, run, *flags, *more) == 2
    assert f"run/data was packed from {text}; choose" in capsys.readouterr().err
