"""What ours is compared with: that it is what it says it is."""

import json

import pytest
import torch
from torch import nn

from arch import export_transformers, load_model
from arch.convert import from_reference
from scripts import learn_baselines
from scripts.baselines.llama import llama
from scripts.baselines.loop import Recipe, train
from scripts.baselines.reference import ReferenceMixer
from tests.train_cases import fit, pack_toy
from tokenizer.pack import Layout

SIZES = {"vocab_size": 11, "length": 12, "width": 8, "layers": 2}
LLAMA = """--model.mixers=[attention(heads=2)] --model.channel_mixer swiglu --model.norm rmsnorm
--model.d_ff 24"""


@pytest.fixture(scope="session")
def packed(small_tokenizer, tmp_path_factory):
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("packed") / "toy", 60)


def learn(kind, data, out, *words):
    """The exit code of a tiny run."""
    sizes = "--batch 4 --context 16 --d-model 16 --layers 2 --heads 2 --log-every 1 --lr 0.01"
    return learn_baselines.main(
        [kind, "--data", str(data), "--out", str(out), *sizes.split(), *map(str, words)]
    )


def batches(count, seed=0):
    random = torch.Generator().manual_seed(seed)
    for _ in range(count):
        tokens = torch.randint(11, (3, 12), generator=random)
        yield {"input_ids": tokens, "labels": tokens}


@pytest.mark.parametrize("kind", ["flat", "expanded"])
def test_restated_mixer_computes_what_its_import_does(kind):
    theirs = ReferenceMixer(kind, **SIZES)
    train(theirs, batches(2), Recipe(lr=0.1, steps=2))
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    tokens = torch.randint(11, (3, 12))
    torch.testing.assert_close(theirs(tokens)["logits"], from_reference(state)(tokens))


@pytest.mark.parametrize("kind", ["flat", "expanded", "parallel", "headed"])
def test_restated_mixer_is_causal_and_learns_above_the_diagonal(kind):
    model = ReferenceMixer(kind, **SIZES)
    tokens = torch.randint(11, (3, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 11
    before, after = (model(t)["logits"][:, :7] for t in (tokens, changed))
    torch.testing.assert_close(before, after)
    train(model, batches(1), Recipe(lr=0.1, steps=1))
    convs = [m for m in model.modules() if isinstance(m, nn.Conv1d)]
    assert convs
    assert all(conv.weight[..., 0].triu(1).abs().sum() > 0 for conv in convs)


def test_loss_is_that_of_transformers():
    """The labels are shifted, or given shifted, as `ForCausalLMLoss` does it."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    model = ReferenceMixer("flat", **SIZES)
    tokens = torch.randint(11, (3, 12))
    labels = tokens.masked_fill(tokens == 3, -100)
    found = model(tokens, labels=labels)
    torch.testing.assert_close(found["loss"], ForCausalLMLoss(found["logits"], labels, 11))
    following = torch.randint(11, (3, 12))
    given = model(tokens, labels=following, shift_labels=following)["loss"]
    same = ForCausalLMLoss(found["logits"], following, 11, shift_labels=following)
    torch.testing.assert_close(given, same)


@pytest.mark.parametrize("warmup", [0, 3])
def test_rate_is_that_of_transformers(warmup):
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    theirs = get_linear_schedule_with_warmup(optimizer, warmup, 10)
    recipe = Recipe(lr=0.5, steps=10, warmup=warmup)
    for step in range(11):
        assert recipe.rate(step) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_loop_is_that_of_trainer(tmp_path):
    """The same losses and weights as the `Trainer` that it stands for."""
    pytest.importorskip("accelerate")
    from scripts.baselines.contenders import trainer

    ours = llama(**SIZES, d_ff=24, heads=2)
    theirs = llama(**SIZES, d_ff=24, heads=2)
    theirs.load_state_dict(ours.state_dict())
    train(ours, batches(4), Recipe(lr=0.01, steps=4, warmup=1))
    rows = [{k: v[i] for k, v in b.items()} for b in batches(4) for i in range(3)]
    settings = {"learning_rate": 0.01, "warmup_steps": 1, "use_cpu": True, "seed": 0}
    same_order = {"train_sampling_strategy": "sequential"}
    trainer(theirs, rows, tmp_path, batch=3, steps=4, **settings, **same_order).train()
    torch.testing.assert_close(theirs.state_dict(), ours.state_dict())


def test_validation_is_that_of_training(packed, tmp_path):
    assert fit(packed.path, tmp_path / "run", *LLAMA.split(), "--trainer.max_steps", "2") == 0
    ours = load_model(tmp_path / "run/models/step-000002")
    export_transformers(tmp_path / "theirs", ours.model, ours.tokenizer_json)
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "theirs")
    words = ["trainer-llama", "--data", str(packed.path), "--out", "-", "--steps", "1"]
    sizes = ["--context", "16", "--batch", "4", "--validate-tokens", "320"]
    options = learn_baselines._options(words + sizes)
    nats, tokens = learn_baselines.validation_loss(theirs, packed, options)
    assert tokens == ours.meta["val_tokens"]
    assert nats == pytest.approx(ours.meta["val_loss"], rel=1e-5)


@pytest.mark.parametrize("kind", learn_baselines.KINDS)
def test_every_kind_learns_and_is_written_down(kind, packed, tmp_path):
    out = tmp_path / "found.json"
    assert learn(kind, packed.path, out, "--steps", 30, "--validate-at", 0) == 0
    found = json.loads(out.read_text())
    first, last = found["validations"]
    assert (first["step"], last["step"]) == (0, 30)
    assert last["val_loss"] == found["val_loss"] < first["val_loss"] - 0.5
    nats_per_byte = found["val_loss"] / packed.bytes_per_token("valid")
    assert found["val_bits_per_byte"] * 0.6931 == pytest.approx(nats_per_byte, rel=1e-3)
    assert [row["step"] for row in found["metrics"]] == list(range(1, 31))
    assert found["tokens_seen"] == 30 * 4 * 16
    assert found["warmup"] == (0 if kind == "trainer-llama" else 3)
    assert found["metrics"][0]["lr"] == (0.01 if kind == "trainer-llama" else 0)
    assert found["broken_at"] is None


def test_rows_as_the_reference_pads_them(small_tokenizer, packed, tmp_path):
    layout = Layout("rows", 16, "left")
    rows = pack_toy(small_tokenizer, tmp_path / "rows", 60, layout)
    out = tmp_path / "found.json"
    both = ("--validate", rows.path, packed.path)
    assert learn("reference-flat", rows.path, out, "--steps", 2, *both) == 0
    found = json.loads(out.read_text())
    assert found["layout"] == "rows"
    assert found["tokens_seen"] <= 2 * 4 * 15
    assert [v["data"] for v in found["validations"]] == [str(rows.path), str(packed.path)]
    assert found["val_loss"] == found["validations"][0]["val_loss"]


def test_a_loss_that_is_no_number_ends_the_run(packed, tmp_path):
    out = tmp_path / "found.json"
    assert learn("reference-flat", packed.path, out, "--steps", 30, "--lr", "1e30") == 0
    found = json.loads(out.read_text())
    assert found["broken_at"] < 30
    assert found["val_loss"] is None


def test_bad_input(packed, tmp_path, capsys):
    out = tmp_path / "found.json"
    assert learn("reference-flat", tmp_path / "none", out, "--steps", 2) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert learn("reference-flat", packed.path, out, "--steps", 2, "--batch", 100000) == 2
    assert "are fewer than one --batch of 100000" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        learn("reference-flat", packed.path, out, "--steps", 0)
    assert "--steps is 0; at least 1" in capsys.readouterr().err
    for flag, value, said in (
        ("--validate-tokens", 0, "--validate-tokens is 0; at least 1"),
        ("--warmup", -1, "--warmup is -1; at least 0"),
        ("--heads", 3, "--heads is 3; it must divide --d-model 16"),
    ):
        with pytest.raises(SystemExit):
            learn("trainer-llama", packed.path, out, "--steps", 2, flag, value)
        assert said in capsys.readouterr().err
    assert not out.exists()
