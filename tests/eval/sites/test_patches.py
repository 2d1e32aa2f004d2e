"""An open model is called, and its sites are patched: torch's own hooks are the judge."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from eval import RequestError, activations, generate, loss, open_model
from tests.said import one_line

TEXT = "Tom had a red ball."
MIXERS = ("row", "attention+flat")  # the forward of a row calls its own prefix


@pytest.fixture
def model(model_directory):
    return open_model(model_directory(mixers=MIXERS), "cpu")


def outputs_of(model, *sites):
    (batch,) = activations(model, [TEXT], sites, device="cpu")
    return [batch.outputs[site] for site in sites]


def test_a_call_gives_the_logits_and_every_stream(model):
    found = model(TEXT)
    assert torch.equal(found.logits, model.model(found.tokens))
    assert found.tokens.tolist() == [model.tokenizer.encode(TEXT).ids]
    blocks = outputs_of(model, "block.0", "block.1", "block.2")
    assert all(torch.equal(*pair) for pair in zip(found.streams, blocks, strict=True))
    pair = model(found.tokens.repeat(2, 1))
    assert pair.logits.shape == (2, *found.logits.shape[1:])
    for wrong in ("", "a \ud800", torch.zeros(3, dtype=torch.long), "a b " * 40):
        with one_line(RequestError, "text"):
            model(wrong)


def hooked(model, module, change):
    """Logits while a hook of torch changes a module's output."""
    handle = module.register_forward_hook(lambda _, __, output: change(output))
    try:
        return model.model(model(TEXT).tokens)
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("site", "module"),
    [
        ("block.0", lambda m: m.embedding),
        ("mixer.1", lambda m: m.blocks[0].token_mixer),
        ("block.1", lambda m: m.blocks[0]),
        ("block.2", lambda m: m.blocks[1]),
        ("final.2", lambda m: m.norm),
    ],
)
def test_a_patch_is_what_a_hook_does(model, site, module):
    def change(x):
        return torch.cat([x[:, :3], -x[:, 3:]], dim=1)

    plain, (untouched,) = model(TEXT).logits, outputs_of(model, site)
    expected = hooked(model, module(model.model), change)
    assert not torch.equal(expected, plain)
    with model.patched({site: change}):
        found = model(TEXT)
        assert torch.equal(found.logits, expected)
        assert torch.equal(model.model(found.tokens), expected)
        (there,) = outputs_of(model, site)
        with model.patched({site: change}):  # twice is not at all
            assert torch.equal(model(TEXT).logits, plain)
        assert torch.equal(model(TEXT).logits, expected)
    assert torch.equal(there, change(untouched))
    assert torch.equal(model(TEXT).logits, plain)


def test_a_patched_stream_reaches_what_comes_after_it(model):
    parts = ("stream.1", "mixer.1", "block.1")
    stream, mixed, after = outputs_of(model, *parts)
    block = model.model.blocks[0]
    with model.patched({"stream.1": torch.zeros_like}):
        seen = outputs_of(model, *parts)
    zeros = torch.zeros_like(stream)
    expected = zeros, mixed, block.channel_mixer(block.norm_channel(zeros))
    assert all(torch.equal(*pair) for pair in zip(seen, expected, strict=True))
    assert all(map(torch.equal, outputs_of(model, *parts), (stream, mixed, after)))


def test_activations_are_of_the_patches_that_they_were_asked_under(model):
    """They are computed when a batch is reached: then the patches were gone, in silence."""
    patched = {"block.1": torch.zeros_like}
    before = activations(model, [TEXT], 1, device="cpu")
    with model.patched(patched):
        within = activations(model, [TEXT], 1, device="cpu")
        with one_line(RequestError, "activations"):
            next(before)
    with one_line(RequestError, "activations"):
        next(within)


def test_behind_a_text_all_is_zero_though_the_model_gives_no_number(model):
    """As in half precision, where padding may overflow."""

    def overflow(x):
        return torch.where(torch.arange(x.shape[1])[:, None] < 2, x, torch.nan)

    with model.patched({"block.1": overflow}):
        (batch,) = activations(model, [TEXT, "a"], 1, device="cpu")
    assert batch.lengths[1] < 2
    assert not batch.outputs["block.1"][1, batch.lengths[1] :].any()


def test_a_text_alone_is_one_text(model):
    """It was as many as it has letters."""
    held: Any = [TEXT, "a"]
    given: Any = TEXT, torch.utils.data.Subset(held, [0])  # which is not Iterable
    for texts in given:
        (batch,) = activations(model, texts, device="cpu")
        assert batch.tokens.tolist() == [model.tokenizer.encode(TEXT).ids]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(({"texts": texts}, "texts") for texts in ({"a": TEXT}, None, 5, b"Tom", Path("a.txt"))),
        *(({"batch_size": size}, "batch_size") for size in (0, -1, 2.5)),
        ({"sites": []}, "sites"),
        ({"sites": ["mixer.0"]}, "part 'mixer'"),
        ({"sites": "stream.0+1"}, "part 'stream'"),
    ],
)
def test_activations_of_what_is_no_request_are_one_line(model, given, said):
    """They were tracebacks, or an answer to something else."""
    with one_line(RequestError, said):
        activations(model, **{"texts": TEXT, **given})


def test_rows_of_a_patched_model_are_of_another_model(model, tmp_path):
    (plain,) = loss(model, text=[TEXT], out=str(tmp_path)).rows
    with model.patched({"block.1": torch.zeros_like}):
        (changed,) = loss(model, text=[TEXT], out=str(tmp_path)).rows
    (again,) = loss(model, text=[TEXT], out=str(tmp_path)).rows
    assert again == plain
    assert changed["bits_per_byte"] != plain["bits_per_byte"]
    assert changed["checkpoint"]["model_id"] != plain["checkpoint"]["model_id"]
    assert "block.1" in changed["checkpoint"]["name"]


def test_an_open_model_can_be_pickled(model, small_model, small_tokenizer):
    """As for other processes."""
    for opened in (model, open_model(small_model(), tokenizer=small_tokenizer)):
        again = pickle.loads(pickle.dumps(opened))
        assert again.identity == opened.identity
        with again.patched({"block.1": torch.zeros_like}):
            assert loss(again, text=[TEXT]).rows
        assert torch.equal(again(TEXT).logits, opened(TEXT).logits)


def test_what_cannot_be_patched_is_refused_and_nothing_stays(model):
    plain, before = model(TEXT).logits, [dict(vars(m)) for m in model.model.modules()]
    with one_line(RequestError, "'mixer.3'"), model.patched({"block.1": abs, "mixer.3": abs}):
        pass
    for wrong in (lambda x: None, lambda x: x[:, 1:], torch.Tensor.double, torch.zeros(32)):
        patches: Any = {"mixer.2": wrong}
        with one_line(RequestError, "patch of mixer.2"), model.patched(patches):
            model(TEXT)
    with model.patched({"block.1": torch.zeros_like}):
        for _ in range(2):  # before and after a whole pass
            with one_line(RequestError, "prefix"):
                generate(model, prompt=TEXT)
            model(TEXT)
    with pytest.raises(ZeroDivisionError), model.patched({"block.0": lambda x: x / (1 // 0)}):
        model(TEXT)
    after = [dict(vars(m)) for m in model.model.modules()]
    assert [set(one) for one in after] == [set(one) for one in before]
    assert not any(m._forward_hooks for m in model.model.modules())
    assert torch.equal(model(TEXT).logits, plain)
