"""Bad input: one line that names it, exit code 2, nothing written."""

import pytest
import torch

from tests.train.cases import TINY, fit
from train.__main__ import main


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model.vocab_size 401", "packed with a vocabulary of 400, --model.vocab_size is 401"),
        ("--batch.size 5000", "windows of 16 tokens, fewer than one batch of 5000; pack more"),
        ("--model.context 100000", "windows of 100000 tokens, fewer than one batch"),
        ("--batch.micro 3", "--batch.size 4 is not a multiple of 3 windows"),
        ("--trainer.max_steps 0", "--trainer.max_steps is 0; it must be at least 1"),
        ("--resume nowhere.ckpt", "--resume nowhere.ckpt: no such checkpoint; allowed: auto"),
        ("--model.mixers [flatt]", "there is no 'flatt', did you mean 'flat'?"),
        ("--model.mixers flat", "--model.mixers is flat; expected: a list such as [flat]"),
        ("--model.d_model 0", "d_model is 0"),
        ("--model.norm batchnorm", "--model.norm is batchnorm; expected: 'layernorm', 'rmsnorm'"),
        ("--model.d_modl 8", "there is no setting --model.d_modl; did you mean --model.d_model?"),
        ("--optimiser.lr 1", "did you mean --optimizer.lr? python -m train fit --help"),
        ("--optimizer.lr fast", "--optimizer.lr is fast; expected: float"),
        ("--optimizer.lr 0", "--optimizer.lr is 0.0; it must be above 0"),
        ("--optimizer.clip -1", "--optimizer.clip is -1.0; it must be at least 0"),
        ("--optimizer.clip .nan", "--optimizer.clip is nan; it must be at least 0"),
        ("--optimizer.weight_decay -1", "--optimizer.weight_decay is -1.0; it must be at least 0"),
        ("--optimizer.eps -1", "--optimizer.eps is -1.0; it must be at least 0"),
        ("--seed -1", "--seed is -1; it must be at least 0"),
        ("--seed 4294967296", "--seed is 4294967296; it must be at most 4294967295"),
        ("--optimizer.beta2 1", "--optimizer.beta2 is 1.0; it must be below 1"),
        ("--schedule.floor 2", "--schedule.floor is 2.0; it must be at most 1"),
        ("--schedule.warmup_steps -1", "--schedule.warmup_steps is -1; it must be at least 0"),
        ("--batch.size 0", "--batch.size is 0; it must be at least 1"),
        ("--keep_checkpoints 1", "--keep_checkpoints is 1; it must be at least 2"),
        ("--save_every 0", "--save_every is 0; it must be at least 1"),
        ("--save_steps 200", "--save_steps is 200; expected: a list such as [100, 200]"),
        ("--sample_prompts x", "--sample_prompts is x; expected: a list such as [first, second]"),
        ("--wandb_tags x", "--wandb_tags is x; expected: a list such as [first, second]"),
        ("--save_steps [-1]", "--save_steps is [-1]; it must be at least 0"),
        ("--stop_on_spike 0", "--stop_on_spike is 0.0; it must be above 0"),
        ("--sample_prompts ['']", "--sample_prompts: '' is 0 tokens; allowed: 1 to 15, so that"),
        ("--wandb maybe", "--wandb is maybe; expected: 'offline', 'online', 'disabled'"),
        ("--trainer.strategy none", "--trainer.strategy is none; allowed: auto, ddp"),
        ("--trainer.strategy ddp_spawn", "--trainer.strategy is ddp_spawn; allowed: auto, ddp"),
        ("--trainer.strategy deepspeed_stage_2", "is deepspeed_stage_2; allowed: auto, ddp"),
        ("--trainer.strategy fsdp", "--trainer.strategy is fsdp; allowed: auto, ddp"),
        ("--optimizer.name sgd", "--optimizer.name is sgd; expected: 'adamw', 'muon'"),
        ("--optimizer.name muon --optimizer.muon_lr 0", "--optimizer.muon_lr is 0.0; it must be"),
        (
            "--optimizer.name muon --optimizer.muon_momentum 1",
            "muon_momentum is 1.0; it must be below 1",
        ),
        ("--optimizer.muon_mixing true", "muon_mixing is True, --optimizer.name is adamw; only"),
        ("--optimizer.muon_lr 0.1", "muon_lr is 0.1, --optimizer.name is adamw; only muon uses"),
        ("--schedule.decay exp", "--schedule.decay is exp; expected: 'cosine', 'linear', 'wsd'"),
        ("--schedule.decay wsd --schedule.decay_steps 0", "decay_steps is 0; it must be at least"),
        ("--schedule.decay_steps 3", "decay_steps is 3, --schedule.decay is cosine; only wsd"),
        ("--schedule.decay wsd --schedule.decay_steps 5", "a fall of 5 steps are longer than --tr"),
        ("--compile maybe", "--compile is maybe; expected: bool, 'auto'"),
        ("--tf32 true", "--tf32 true needs a GPU, and this run is on a cpu; leave it"),
        ("--loggers [mlflow]", "--loggers"),
    ],
)
def test_a_bad_setting(data, tmp_path, flags, message, refused):
    assert message in refused(fit(data, tmp_path / "run", *flags.split()))
    assert not (tmp_path / "run").exists()


def test_no_data_directory(tmp_path, refused):
    line = refused(fit(tmp_path / "none", tmp_path / "run"))
    assert f"{tmp_path / 'none'}: no such directory of packed data; make one with:" in line
    line = refused(fit(tmp_path, tmp_path / "run"))
    assert f"{tmp_path}: not a directory of packed data (no meta.json)" in line


@pytest.mark.parametrize(("given", "missing"), [("data", "run"), ("run", "data")])
def test_data_and_run_have_to_be_given(data, given, missing, refused):
    code = main(["fit", "--config", "demo", f"--{given}", str(data)])
    assert f"--{missing} is missing; give a directory" in refused(code)


def test_a_run_directory_that_cannot_be_written(data, tmp_path, refused):
    (tmp_path / "file").touch()
    line = refused(fit(data, tmp_path / "file" / "run"))
    assert f"--run {tmp_path / 'file' / 'run'}: cannot be written (Not a directory)" in line
    line = refused(fit(data, tmp_path / "file"))
    assert f"--run {tmp_path / 'file'}: exists already" in line


def test_a_file_that_is_not_a_checkpoint(data, tmp_path, refused):
    (tmp_path / "some.ckpt").write_bytes(b"nothing")
    line = refused(fit(data, tmp_path / "run", "--resume", tmp_path / "some.ckpt"))
    assert "some.ckpt: cannot be read as a checkpoint" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such recipe or file; did you mean llama? recipes: "),
        ("model:\n  d_modl: 3\n", "there is no setting --model.d_modl; did you mean --model.d_mod"),
        ("optimizer:\n  lr: fast\n", "--optimizer.lr is fast; expected: float"),
        ("model: [\n", "not YAML ("),
        ("flat\n", "holds no settings"),
        ("", "holds no settings"),
    ],
)
def test_a_bad_recipe(data, tmp_path, content, message, refused):
    recipe = tmp_path / "lama.yaml"
    if content is not None:
        recipe.write_text(content)
    code = fit(data, tmp_path / "run", "--config", recipe)
    assert message in refused(code)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--config falt", "--config falt: no such recipe or file; did you mean flat? recipes: "),
        ("--model.d_modl 8", "there is no setting --model.d_modl; did you mean --model.d_model?"),
        ("--mesure false", "there is no setting --mesure; did you mean --measure?"),
        ("--measure maybe", "--measure is maybe; expected: bool"),
        ("--batch.micro 3", "--batch.size 4 is not a multiple of 3 windows"),
        ("--model.vocab_size 401 --data DATA", "packed with a vocabulary of 400, --model.vocab"),
        ("--data nowhere", "nowhere: no such directory of packed data"),
        ("--trainer.accelerator gpux", "--trainer: "),
        ("--trainer.max_steps 0", "--trainer.max_steps is 0; it must be at least 1"),
    ],
)
def test_a_bad_plan(data, words, message, refused):
    given = f"{TINY} {words}".replace("DATA", str(data))
    assert message in refused(main(["plan", *given.split()]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_half_precision_needs_a_gpu(data, tmp_path, refused):
    line = refused(fit(data, tmp_path / "run", "--precision", "16-mixed"))
    assert "--precision 16-mixed needs a GPU; without one use 32-true" in line


def test_an_unknown_command(refused):
    line = refused(main(["fitt"]))
    assert "there is no command 'fitt'; allowed: fit, plan, recipes" in line
