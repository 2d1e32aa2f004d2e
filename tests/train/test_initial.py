"""Weights to start from, and when a run ends or keeps a model by its validations."""

import csv
import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from arch import add_to_meta, export_transformers, load_model
from tests.train.cases import TINY, fit, interrupt, names, rows, weights
from tokenizer import pack
from train import RunError, read_recipe
from train import fit as train_model
from train.record.log import Log
from train.record.saving import since_best
from train.run import Run
from train.steps.module import LanguageModule

LLAMA = "--model.mixers [attention(heads=2)] --model.channel_mixer swiglu --model.norm rmsnorm"
RISES = "--optimizer.lr 3 --optimizer.clip 0 --schedule.decay none --trainer.max_steps 40"
RISES += " --validate_every 2 --early_stopping 2 --save_best true"
"""A rate at which the loss falls first and then rises."""


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A small Llama of two steps."""
    run = tmp_path_factory.mktemp("llama") / "run"
    assert fit(data, run, *LLAMA.split(), "--trainer.max_steps", "2") == 0
    return run / "models" / "step-000002"


def step_0(run: Path) -> dict[str, torch.Tensor]:
    return load_model(run / "models" / "step-000000").model.state_dict()


@pytest.mark.parametrize("transformers", [False, True])
def test_a_run_starts_from_the_weights_of_another(data, trained, tmp_path, transformers, capsys):
    source, loaded = str(trained), load_model(trained)
    if transformers:
        saved = Tokenizer.from_str(loaded.tokenizer_json)  # as transformers saves it again
        saved.post_processor = TemplateProcessing(single="$A")
        export_transformers(tmp_path / "theirs", loaded.model, saved.to_str())
        source = f"hf:{tmp_path / 'theirs'}"
    flags = [*LLAMA.split(), "--seed", "5", "--model.vocab_multiple", "64", "--init_from", source]
    assert fit(data, tmp_path / "run", *flags, "--trainer.max_steps", "3") == 0
    state = loaded.model.state_dict()
    assert all(
        torch.equal(tensor, state[name]) for name, tensor in step_0(tmp_path / "run").items()
    )
    weights = sum(parameter.numel() for parameter in loaded.model.parameters())
    step = "" if transformers else ", step 2"
    line = f"from {source}{step}: {len(state)} tensors of {len(state)}, {weights:,} weights\n"
    assert line in capsys.readouterr().out
    # Going on reads the checkpoint, and not these weights again.
    flags[-1] = str(tmp_path / "gone")
    more = ["--resume", "auto", "--trainer.max_steps", "4"]
    assert fit(data, tmp_path / "run", *flags, *more) == 0


def test_a_hybrid_takes_what_fits(data, trained, tmp_path, capsys):
    flags = [*LLAMA.split(), "--model.mixers", "[attention(heads=2),flat]", "--seed", "5"]
    flags += ["--trainer.max_steps", "1"]
    assert fit(data, tmp_path / "run", *flags, "--init_from", trained) == 0
    assert "initial weights of their own: blocks.1.token_mixer." in capsys.readouterr().out
    state = load_model(trained).model.state_dict()
    hybrid = step_0(tmp_path / "run")
    mixing = "blocks.1.token_mixer."
    assert all(torch.equal(hybrid[name], state[name]) for name in state if mixing not in name)
    assert any(name.startswith(mixing) for name in hybrid)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("[attention(heads=4),flat]", "its mixers is"),
        ("[attention(heads=2,rope_base=100),flat]", "its mixers is"),
        ("[attention(heads=4,kv_heads=2)]", "its mixers is"),
        ("[attention(heads=2)] --model.n_layers 3 --model.norm_eps 0.1", "its norm_eps is 1e-05"),
        ("[flat] --model.channel_mixer swiglu(bias=true)", "its channel_mixer is"),
        ("[attention(heads=2,kv_heads=2,bias=false),flat]", ""),
        ("[identity,flat]", "its mixers is"),
    ],
)
def test_weights_of_which_some_fit_and_compute_something_else(
    data, trained, tmp_path, capsys, flags, said
):
    """Where one tensor kept its initial values, nothing was said of the others."""
    words = f"{LLAMA} --trainer.max_steps 1 --model.mixers {flags} --init_from".split()
    assert fit(data, tmp_path / "run", *words, trained) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "from /" in line)
    assert "initial weights of their own: " in line
    assert said in line
    assert ("computes otherwise" in line) == bool(said)


def test_a_model_is_known_by_the_weights_that_it_started_from(data, trained, tmp_path):
    """Two bases of one path were one model, and one base of two paths was two."""
    base, flags = tmp_path / "base", [*LLAMA.split(), "--trainer.max_steps", "1"]
    shutil.copytree(trained, base)
    assert fit(data, tmp_path / "a-s0", *flags, "--init_from", base) == 0
    assert fit(data, tmp_path / "a-s1", *flags, "--seed", "1", "--init_from", trained) == 0
    shutil.copytree(trained.with_name("step-000000"), base, dirs_exist_ok=True)
    assert fit(data, tmp_path / "a-s2", *flags, "--seed", "2", "--init_from", base) == 0
    flags[-1] = "2"
    assert fit(data, tmp_path / "a-s0", *flags, "--init_from", base, "--resume", "auto") == 0
    models = [load_model(tmp_path / f"a-s{n}" / "models" / f"step-{step:06d}").meta
              for n, step in ((0, 1), (0, 2), (1, 1), (2, 1))]  # fmt: skip
    first, later, alike, other = (meta["model_id"] for meta in models)
    assert first == later == alike != other
    assert "init_from" not in str(models[1]["history"])


def test_a_run_of_before_the_weights_were_recorded_stays_as_it_is(data, trained, tmp_path, capsys):
    """It was said to have had other settings, where its checkpoints were gone."""
    run, words = tmp_path / "old", [*LLAMA.split(), "--trainer.max_steps", "1"]
    flags = [*words, "--init_from", trained]
    assert fit(data, run, *flags) == 0
    for file in run.glob("models/*/meta.json"):
        meta = json.loads(file.read_text())
        del meta["recipe"]["init_from_sha256"]
        file.write_text(json.dumps(meta))
    shutil.rmtree(run / "checkpoints")
    assert fit(data, run, *flags, "--resume", "auto") == 0
    assert "is complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--model.tied true", "its tied is false, here true"),
        ("--model.mixers [attention(heads=4)]", 'its mixers is ["attention(heads=2)"], here ["att'),
        ("--model.n_layers 1", "its n_layers is 2, here 1"),
        ("--model.norm_eps 0.1", "its norm_eps is 1e-05, here 0.1"),
    ],
)
def test_weights_that_all_fit_and_compute_something_else(
    data, trained, tmp_path, capsys, flags, said
):
    """A tied model takes the embedding alone: the head took its place in silence."""
    words = f"{LLAMA} {flags} --trainer.max_steps 1 --init_from".split()
    assert fit(data, tmp_path / "run", *words, trained) == 0
    state, own = load_model(trained).model.state_dict(), step_0(tmp_path / "run")
    assert torch.equal(own["embedding.weight"], state["embedding.weight"])
    count = len(own) - ("tied" in flags)
    out = capsys.readouterr().out
    assert f" {count} tensors of {count}, " in out
    assert f"; that model computes otherwise by them: {said}" in out


def test_weights_that_cannot_be_taken(data, trained, small_tokenizer, tmp_path, capsys):
    other = Tokenizer.from_str(small_tokenizer.to_str())
    other.no_padding()
    other.add_tokens(["<|another|>"])
    other.save(str(tmp_path / "tokenizer.json"))
    more = pack("toy:4", tmp_path / "tokenizer.json", tmp_path / "more").path
    size = ["--model.vocab_size", str(other.get_vocab_size())]
    for place, flags, message in (
        (data, ["--init_from", tmp_path], f"{tmp_path}"),
        (data, ["--init_from", trained, "--model.d_model", "8"], "none of its weights fits; its"),
        (more, ["--init_from", trained, *size], "its tokenizer is not that of --data; pack the"),
    ):
        assert fit(place, tmp_path / "run", *LLAMA.split(), *flags) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_a_run_that_learns_no_more_ends_and_the_best_model_is_kept(data, tmp_path, capsys):
    run, flags = tmp_path / "run", f"{RISES} --loggers [csv]"
    assert fit(data, run, *flags.split()) == 0
    losses = {row["step"]: row["val_loss"] for row in rows(run, "val_loss")}
    last = max(losses)
    assert last < 40
    assert [since_best(each) for each in ([3.0, 2.0, 2.5], [3.0, 2.0, 1.9], [2.0, 2.0], [])] == [
        *(1, 0, 1, 0)
    ]
    best = min(losses, key=lambda step: losses[step])
    assert best <= last - 4
    assert load_model(run / "best").meta["step"] == best
    assert load_model(run / "models" / f"step-{last:06d}").meta["val_loss"] == losses[last]
    assert (run / "checkpoints" / f"step-{last:06d}.ckpt").is_file()
    assert f"step {last}  stopping early: 2 validations without" in capsys.readouterr().out
    with (run / "csv" / "version_0" / "metrics.csv").open() as file:
        logged = [row for row in csv.DictReader(file) if row["val_loss"]]
    assert [float(row["val_loss"]) for row in logged] == pytest.approx(list(losses.values()))
    assert fit(data, run, *flags.split(), "--resume", "auto") == 0
    assert "is complete: it stopped early, after" in capsys.readouterr().out


def test_a_validation_that_is_no_number_is_left_out(data, tmp_path, monkeypatch, capsys):
    """As where fp16 overflows; a meta.json with it could not be read."""
    run, validate = tmp_path / "run", LanguageModule.validation_step

    def validation_step(self, batch, batch_idx):
        sums = validate(self, batch, batch_idx)
        sums[0] *= torch.nan if self.trainer.global_step < 2 else 1
        return sums

    monkeypatch.setattr(LanguageModule, "validation_step", validation_step)
    flags = "--save_best true --validate_every 1 --trainer.max_steps 3"
    assert fit(data, run, *flags.split()) == 0
    assert "step 0  val_loss and val_bits_per_byte are not finite" in capsys.readouterr().out
    assert "val_loss" not in load_model(run / "models" / "step-000000").meta
    losses = {row["step"]: row["val_loss"] for row in rows(run, "val_loss")}
    assert [*losses] == [2, 3]
    assert load_model(run / "best").meta["step"] == min(losses, key=lambda step: losses[step])


def test_a_validation_that_is_no_number_ends_a_run_that_waits_for_a_lower_loss(
    data, tmp_path, monkeypatch, capsys
):
    """With exit code 0, as an early stop, or never."""
    run, validate = tmp_path / "run", LanguageModule.validation_step

    def validation_step(self, batch, batch_idx):
        sums = validate(self, batch, batch_idx)
        sums[0] *= torch.nan if self.trainer.global_step == 4 else 1
        return sums

    monkeypatch.setattr(LanguageModule, "validation_step", validation_step)
    assert fit(data, run, "--early_stopping", "3", "--validate_every", "2") == 2
    last = run / "checkpoints" / "step-000002.ckpt"
    said = capsys.readouterr().err
    assert f"validation loss is nan at step 4; the last good checkpoint is {last};" in said
    assert said.count("\n") == 1


def test_the_best_model_stays_the_best_where_the_record_is_gone(data, tmp_path):
    """As of a run that was copied without its logs: the next validation took its place."""
    run, flags = (
        tmp_path / "run",
        ["--save_best", "true", "--validate_every", "2", "--trainer.max_steps"],
    )
    assert fit(data, run, *flags, "4") == 0
    add_to_meta(run / "best", {"step": 2, "val_loss": 0.1})
    (run / "metrics.jsonl").unlink()
    before = load_model(run / "best").meta
    assert fit(data, run, *flags, "6", "--resume", "auto") == 0
    assert load_model(run / "best").meta == before


def test_a_run_that_is_interrupted_at_its_early_stop_ends_there(data, tmp_path, at_step, capsys):
    """The validation that a signal cut off is done when the run goes on, and is its last."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert fit(data, whole, *RISES.split()) == 0
    last = rows(whole)[-1]["step"]
    at_step(last, interrupt(signal.SIGUSR1))
    assert fit(data, run, *RISES.split()) == 128 + signal.SIGUSR1
    capsys.readouterr()
    assert fit(data, run, *RISES.split(), "--resume", "auto") == 0
    assert capsys.readouterr().out.count("stopping early") == 1
    assert rows(run) == rows(whole)
    assert names(run / "models") == names(whole / "models")
    assert weights(run, last) == weights(whole, last)


def test_a_run_that_is_killed_after_its_early_stop_has_its_last_model(data, tmp_path, monkeypatch):
    """The row of a validation says that its step is done with: nothing is written behind it."""
    run, added = tmp_path / "run", Log.add

    def add_and_end(self, row):
        added(self, row)
        if row.get("val_loss", 0) and row["step"] and stops(run):
            raise ZeroDivisionError

    def stops(run):
        return since_best([row["val_loss"] for row in rows(run, "val_loss")]) >= 2

    monkeypatch.setattr(Log, "add", add_and_end)
    with pytest.raises(ZeroDivisionError):
        fit(data, run, *RISES.split(), "--checkpoint_every", "2")
    last = rows(run)[-1]
    assert (
        load_model(run / "models" / f"step-{last['step']:06d}").meta["val_loss"] == last["val_loss"]
    )


def test_a_recipe_can_be_trained_from_python(data, tmp_path):
    words = [*TINY.split(), "--data", str(data), "--run", str(tmp_path / "run")]
    recipe = read_recipe("--config", "llama-small", *words, "--trainer.max_steps", "150")
    recipe.trainer.max_steps = 2
    assert recipe.model.norm == "rmsnorm"
    torch.set_default_dtype(torch.float64)  # of a notebook's own tensors
    try:
        with ThreadPoolExecutor(1) as elsewhere:  # signals are of the main thread alone
            assert elsewhere.submit(train_model, recipe).result() is None
    finally:
        torch.set_default_dtype(torch.float32)
    assert load_model(tmp_path / "run" / "models" / "step-000002").config == recipe.model
    with pytest.raises(RunError, match=r"--run \S+run: exists already"):
        train_model(recipe)


def test_two_threads_do_not_train_at_a_time(data, tmp_path, at_step):
    """Their weights were of no seed: each reseeded the numbers that the other drew."""
    words, errors = [*TINY.split(), "--data", str(data), "--trainer.max_steps", "1"], []

    def act(loss):
        other = read_recipe(*words, "--run", str(tmp_path / "other"))
        with ThreadPoolExecutor(1) as elsewhere:
            errors.extend(
                elsewhere.submit(begin, other).exception() for begin in (train_model, Run)
            )
        return loss

    at_step(1, act)
    train_model(read_recipe(*words, "--run", str(tmp_path / "run")))
    assert [type(error) for error in errors] == [RunError, RunError]
    assert not (tmp_path / "other").exists()
