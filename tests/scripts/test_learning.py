"""What ours is compared with: that it is what it says it is."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from arch import export_transformers, load_model
from arch.formats.maskedmixers import from_reference
from scripts.bench import learning as bench_learning
from scripts.bench.baselines import reference
from tests.train.cases import fit, pack_toy
from tokenizer.pack import Layout

SIZES = {"vocab_size": 11, "length": 12, "width": 8, "layers": 2}
LLAMA = """--model.mixers=[attention(heads=2)] --model.channel_mixer swiglu --model.norm rmsnorm
--model.d_ff 24 --trainer.max_steps 2"""


@pytest.fixture(autouse=True)
def _accelerate():
    pytest.importorskip("accelerate")


def learn(kind, data, out, *words):
    """The exit code of a tiny run."""
    sizes = "--batch 4 --context 16 --d-model 16 --layers 2 --lr 0.01 --validate-tokens 320"
    given = [kind, "--data", str(data), "--out", str(out), *sizes.split(), *map(str, words)]
    try:
        return bench_learning.main(given)
    except SystemExit as stopped:
        return stopped.code


@pytest.mark.parametrize("kind", ["flat", "expanded"])
def test_restated_mixer_is_causal_learns_above_the_diagonal_and_computes_what_its_import_does(kind):
    model = reference(kind, **SIZES)
    tokens = torch.randint(11, (3, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 11
    before, after = (model(t)["logits"][:, :7] for t in (tokens, changed))
    torch.testing.assert_close(before, after)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(tokens, labels=tokens)["loss"].backward()
        optimizer.step()
    convs = [m for m in model.modules() if isinstance(m, nn.Conv1d)]
    assert convs
    assert all(conv.weight[..., 0].triu(1).abs().sum() > 0 for conv in convs)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.testing.assert_close(model(tokens)["logits"], from_reference(state)(tokens))


def test_loss_is_that_of_transformers():
    """The labels are shifted, or given shifted, as `ForCausalLMLoss` does it."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    model = reference("flat", **SIZES)
    tokens = torch.randint(11, (3, 12))
    labels = tokens.masked_fill(tokens == 3, -100)
    result = model(tokens, labels=labels)
    torch.testing.assert_close(result["loss"], ForCausalLMLoss(result["logits"], labels, 11))
    following = torch.randint(11, (3, 12))
    given = model(tokens, labels=following, shift_labels=following)["loss"]
    same = ForCausalLMLoss(result["logits"], following, 11, shift_labels=following)
    torch.testing.assert_close(given, same)


def test_validation_is_that_of_training(packed, tmp_path):
    assert fit(packed.path, tmp_path / "run", *LLAMA.split()) == 0
    ours = load_model(tmp_path / "run/models/step-000002")
    export_transformers(tmp_path / "theirs", ours.model, ours.tokenizer_json)
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "theirs")
    options = SimpleNamespace(context=16, batch=4, validate_tokens=320)
    nats, bits, tokens = bench_learning.held_out_loss(theirs, packed, options)  # pyright: ignore
    assert tokens == ours.meta["val_tokens"]
    assert nats == pytest.approx(ours.meta["val_loss"], rel=1e-5)
    assert bits == pytest.approx(ours.meta["val_bits_per_byte"], rel=1e-5)


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", bench_learning.KINDS)
def test_every_kind_learns_and_is_written_down(kind, packed, tmp_path):
    out = tmp_path / "result.json"
    assert learn(kind, packed.path, out, "--steps", 20) == 0
    result = json.loads(out.read_text())
    assert 0 < result["val_bits_per_byte"] < result["val_loss"]
    first, *_, last = result["metrics"]
    assert last["loss"] < first["loss"] - 0.3
    assert [row["step"] for row in result["metrics"]] == list(range(1, 21))
    assert result["tokens_seen"] == 20 * 4 * 16
    warmup = 0 if kind == "trainer-llama" else 2
    decay = [(20 - step) / (20 - warmup) for step in range(20)]
    rates = [0.01 * min(i / warmup if warmup else 1, left) for i, left in enumerate(decay)]
    assert [row["lr"] for row in result["metrics"]] == pytest.approx(rates)


def test_the_windows_are_those_of_training_in_its_order(packed):
    options = SimpleNamespace(context=16, batch=4, steps=3, seed=0)
    steps = bench_learning.Steps(packed, options)  # pyright: ignore
    inputs, targets = steps._windows.batch(0, 12)
    assert torch.equal(torch.stack([steps[i]["input_ids"] for i in range(12)]), inputs)
    assert torch.equal(torch.stack([steps[i]["shift_labels"] for i in range(12)]), targets)


def test_rows_as_the_reference_pads_them_and_a_loss_that_is_no_number(small_tokenizer, tmp_path):
    layout, out = Layout("rows", 16, "left"), tmp_path / "result.json"
    rows = pack_toy(small_tokenizer, tmp_path / "rows", 60, layout)
    assert learn("reference-flat", rows.path, out, "--steps", 3, "--lr", "1e30") == 0
    result = json.loads(out.read_text())
    assert (result["layout"], result["val_loss"]) == ("rows", None)
    assert result["tokens_seen"] <= 3 * 4 * 15


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data nowhere", "nowhere"),
        ("--batch 100000", "--batch of 100000"),
        ("--lr 0", "--lr is 0.0"),
        ("", "needs accelerate"),
    ],
)
def test_bad_input(words, message, packed, tmp_path, capsys, monkeypatch):
    if not words:
        monkeypatch.setattr("scripts.bench.baselines.find_spec", lambda name: name != "accelerate")
    out = tmp_path / "result.json"
    assert learn("trainer-llama", packed.path, out, "--steps", 2, *words.split()) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
