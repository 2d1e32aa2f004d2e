"""Checkpoints of the reference code, against a plain restatement of what it computes."""

import contextlib
import os
import random

import pytest
import torch
from safetensors.torch import save_file

from arch import ModelError, import_reference, load_model, save_model
from arch.formats.maskedmixers import from_reference
from scripts.bench.baselines import MaskedConv, ReferenceMixer
from scripts.bench.baselines import expanded as two_stages
from tests.arch.cases import tokenizer_json
from tests.said import one_line

V, L, D, N = 11, 12, 8, 2
UP = "mixerblocks.0.patch_ff.0"


def model(mixers, d_ff=4 * D):
    """The reference's language model: no final norm, the head untied."""
    return ReferenceMixer(mixers, V, D, d_ff)


def logits(theirs, tokens):
    return theirs(tokens)["logits"]


def flat(size=1, bias=True):
    return MaskedConv(L, size=size, bias=bias)


def expanded(factor, bias=True):
    return two_stages(L, factor, bias)


CASES = {
    "flat": (lambda: flat(), "flat"),
    "flat without bias": (lambda: flat(bias=False), "flat(bias=false)"),
    "kernel 4": (lambda: flat(4), "kernel(size=4)"),
    "kernel 3 without bias": (lambda: flat(3, bias=False), "kernel(size=3, bias=false)"),
    "expanded 1": (lambda: expanded(1), "expanded(factor=1)"),
    "expanded 1 without bias": (lambda: expanded(1, False), "expanded(factor=1, bias=false)"),
    "expanded 2": (lambda: expanded(2), "rectangular(factor=2)"),
    "expanded 3 without bias": (lambda: expanded(3, False), "rectangular(factor=3, bias=false)"),
}


@pytest.fixture
def tokens():
    return torch.randint(V, (3, L))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("case", CASES)
def test_an_imported_checkpoint_computes_what_the_reference_does(case, tokens, tmp_path):
    conv, entry = CASES[case]
    theirs = model([conv() for _ in range(N)], d_ff=12)
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    ours = from_reference(theirs.state_dict())
    assert ours.config.mixers == (entry,)
    assert (ours.config.context, ours.config.final_norm, ours.config.tied) == (L, False, False)
    assert all(torch.equal(theirs.state_dict()[name], state[name]) for name in state)
    torch.testing.assert_close(ours(tokens), logits(theirs, tokens))
    save_model(tmp_path / "m", ours, tokenizer_json(V), {})
    assert torch.equal(load_model(tmp_path / "m").model(tokens), ours(tokens))


def test_the_upper_triangle_that_training_left_is_masked():
    theirs = model([flat()])
    assert theirs.mixerblocks[0].conv.weight[..., 0].triu(1).count_nonzero() > 0  # pyright: ignore
    weight = from_reference(theirs.state_dict()).state_dict()["blocks.0.token_mixer.mix.weight"]
    assert weight.triu(1).count_nonzero() == 0
    assert weight.tril().count_nonzero() == L * (L + 1) // 2


def test_shorter_texts_run(tokens):
    theirs = model([expanded(2), flat()])
    padded = torch.cat([tokens[:, :5], torch.zeros(3, L - 5, dtype=torch.long)], dim=1)
    found = from_reference(theirs.state_dict())(tokens[:, :5])
    torch.testing.assert_close(found, logits(theirs, padded)[:, :5])


def test_blocks_may_differ_and_a_head_may_be_tied(tokens):
    theirs = model([flat(), expanded(1)])
    theirs.lm_head.weight = theirs.wte.weight
    state = theirs.state_dict()  # the head is there twice
    for held in (state, {name: t for name, t in state.items() if name != "lm_head.weight"}):
        ours = from_reference(held)
        assert ours.config.mixers == ("flat", "expanded(factor=1)")
        assert ours.config.tied
        torch.testing.assert_close(ours(tokens), logits(theirs, tokens))


def test_blocks_that_are_one_block_are_saved(tokens, tmp_path):
    theirs = model([flat(), flat()])
    theirs.mixerblocks[1] = theirs.mixerblocks[0]
    held = {f"_orig_mod.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save(held, tmp_path / "last.pt")
    ours = import_reference(tmp_path / "last.pt")
    save_model(tmp_path / "m", ours, tokenizer_json(V), {})
    assert torch.equal(load_model(tmp_path / "m").model(tokens), ours(tokens))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "last.pt"])
def test_a_checkpoint_is_a_file_or_the_directory_that_holds_it(name, tokens, tmp_path):
    theirs = model([flat(), flat()])
    if name.endswith(".safetensors"):
        save_file(theirs.state_dict(), tmp_path / name)
    else:
        torch.save(theirs.state_dict(), tmp_path / name)
    torch.testing.assert_close(import_reference(tmp_path / name)(tokens), logits(theirs, tokens))
    if name != "last.pt":
        torch.testing.assert_close(import_reference(tmp_path)(tokens), logits(theirs, tokens))


def test_a_pickle_that_is_newer_than_what_is_read_is_said(tmp_path, capsys):
    state = model([flat()]).state_dict()
    save_file(state, tmp_path / "model.safetensors")
    torch.save(state, tmp_path / "pytorch_model.bin")
    os.utime(tmp_path / "model.safetensors", (1, 1))
    import_reference(tmp_path)
    assert "pytorch_model.bin is newer than model.safetensors" in capsys.readouterr().err


ODD = {
    "an embedding of one axis": lambda held: held | {"wte.weight": torch.ones(5)},
    "a number for a matrix": lambda held: held | {f"{UP}.weight": torch.ones(())},
    "a number for a name": lambda held: held | {3: torch.ones(2)},
    "a sparse tensor": lambda held: held | {"wte.weight": torch.eye(V, D).to_sparse()},
    "a convolution of another part": lambda held: held | {"front.conv.weight": torch.ones(L, L, 1)},
    "a mask in a convolution": lambda held: held | {"mixerblocks.0.conv.mask": torch.ones(L, L)},
    "a name of ours": lambda held: held | {"embedding.weight": torch.ones(V, D)},
    "integers": lambda held: held | {f"{UP}.bias": torch.ones(4 * D, dtype=torch.int32)},
    "no numbers": lambda held: held | {"wte.weight": torch.empty(V, D, device="meta")},
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_checkpoint_is_one_line(name, tmp_path):
    torch.save(ODD[name](dict(model([flat(), flat()]).state_dict())), tmp_path / "odd.pt")
    with one_line(ModelError, "odd.pt"):
        import_reference(tmp_path / "odd.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_damaged_checkpoint_is_read_or_refused_in_one_line(zipped, tmp_path):
    path, rng = tmp_path / "damaged.pt", random.Random(0)
    torch.save(model([flat(), flat()]).state_dict(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for number in range(60):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[rng.randrange(3000)] = rng.randrange(256)
        path.write_bytes(damaged[: rng.randrange(len(whole))] if number % 3 else damaged)
        with contextlib.suppress(ModelError):
            import_reference(path)
