"""Key/value caches of transformers, class by class: read as what they hold, or refused by name."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eval import RequestError, open_model, recover
from eval.captured.files.axes import choose_tensors
from eval.captured.files.recognise import read_capture
from eval.models.checkpoint import Checkpoint
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_pretrained import GROUPED, random_model
from tests.eval.inversion.search_cases import TEXTS
from tests.said import one_line

transformers = pytest.importorskip("transformers")

TEXT = TEXTS[0][:14]


@pytest.fixture(scope="module")
def opened() -> tuple[Checkpoint, Any]:
    """A model with a window of 8 positions."""
    theirs = random_model("Mistral", torch.float32, GROUPED | {"sliding_window": 8})
    return open_model(theirs, tokenizer=byte_tokenizer()), theirs


def fill(theirs: Any, text: str, cache: Any = None, pieces: int = 1) -> Any:
    """The cache after a text, which is written in pieces."""
    for part in torch.tensor([byte_tokenizer().encode(text).ids]).chunk(pieces, dim=1):
        cache = theirs(part, past_key_values=cache, use_cache=True).past_key_values
    return cache


def as_pairs(cache: Any) -> Any:
    return tuple((layer.keys, layer.values) for layer in cache.layers)


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("part", "make", "pieces", "first"),
    [
        ("value", lambda config: transformers.DynamicCache(), 1, 0),
        ("rotated_key", lambda config: transformers.DynamicCache(config=config), 1, 7),
        ("value", lambda config: transformers.DynamicCache(config=config), 14, 7),
        ("value", lambda config: transformers.StaticCache(config=config, max_cache_len=20), 1, 6),
        ("rotated_key", lambda c: transformers.StaticCache(config=c, max_cache_len=20), 14, 6),
    ],
)
def test_a_window_holds_the_last_positions(opened, part, make, pieces, first):
    checkpoint, theirs = opened
    cache = fill(theirs, TEXT, make(theirs.config), pieces)
    found = recover(checkpoint, cache, layer=1, part=part, corpus="toy:400")
    assert found.positions == list(range(first, 14))
    assert found.tokens[0, first:].tolist() == byte_tokenizer().encode(TEXT).ids[first:]
    assert all(found.certificates[0][first:])


def test_the_first_position_may_be_given(opened):
    checkpoint, theirs = opened
    keys = fill(theirs, TEXT, transformers.DynamicCache()).layers[0].keys[:, :, 5:]
    asked = {"layer": 1, "part": "rotated_key", "first": 5, "corpus": "toy:400"}
    found = recover(checkpoint, keys, **asked)
    assert found.positions == list(range(5, 14))
    assert found.texts[0][5:] == TEXT[5:]
    shown = recover(checkpoint, keys, **asked, shown=[6, 8])
    assert shown.positions == [6, 8]
    with one_line(RequestError, "5 to 13"):
        recover(checkpoint, keys, **asked, shown=[4, 8])
    with one_line(RequestError, "first: -1"):
        recover(checkpoint, keys, **{**asked, "first": -1})


@pytest.mark.first(1)
@pytest.mark.parametrize("form", [lambda cache: cache, as_pairs, list])
def test_a_short_cache_is_read_whole(opened, form, capsys):
    """In each form; an empty tail of a static cache is cut, and said."""
    checkpoint, theirs = opened
    text = TEXT[:6]
    cache = form(fill(theirs, text, transformers.DynamicCache()))
    found = recover(checkpoint, cache, layer=2, part="value", corpus="toy:400")
    assert found.texts == [text]
    assert all(found.certificates[0])
    static = transformers.StaticCache(config=theirs.config, max_cache_len=20)
    found = recover(
        checkpoint, fill(theirs, text, static), layer=2, part="rotated_key", corpus="toy:400"
    )
    assert found.texts == [text]
    assert all(found.certificates[0])


def test_pairs_of_a_file_are_chosen_by_their_layer(opened, tmp_path, capsys):
    """All were taken for the site that was given."""
    _, theirs = opened
    pairs = as_pairs(fill(theirs, TEXT[:6], transformers.DynamicCache()))
    torch.save(pairs, tmp_path / "past_key_values.pt")
    held = read_capture(tmp_path / "past_key_values.pt", torch_file=True).outputs
    assert [*choose_tensors(held, [2], "value")] == ["past_key_values.1.1"]
    assert [*choose_tensors(held, [], "rotated_key")] == [
        f"past_key_values.{layer}.0" for layer in range(len(pairs))
    ]


def test_keys_with_heads_behind_positions_are_read_without_a_site(opened, capsys):
    checkpoint, theirs = opened
    keys = fill(theirs, TEXT[:6], transformers.DynamicCache()).layers[1].keys
    found = recover(checkpoint, keys.transpose(1, 2), corpus="toy:400")
    assert (found.site, found.texts) == ("rotated_key.2", [TEXT[:6]])
    assert "read as (B, T, heads, width)" in capsys.readouterr().err


def make_quantised(theirs):
    config = transformers.LlamaConfig(num_hidden_layers=3)
    return fill(random_model("Llama", torch.float32, GROUPED), TEXT,
                transformers.QuantizedCache("fp8", config))  # fmt: skip


def make_own_class(theirs):
    cache = fill(theirs, TEXT, transformers.DynamicCache())
    cache.layers[0] = SimpleNamespace(**vars(cache.layers[0]))
    return cache


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (make_quantised, "Fp8QuantizedLayer"),
        (make_own_class, "SimpleNamespace"),
        (lambda theirs: transformers.DynamicCache(config=theirs.config), "nothing was written"),
        (lambda theirs: transformers.EncoderDecoderCache(
            transformers.DynamicCache(), transformers.DynamicCache()), "EncoderDecoderCache"),
        (lambda theirs: (torch.zeros(1, 4, 32), torch.zeros(1, 4, 32)), "tuple of 2 tensors"),
        (lambda theirs: [(torch.zeros(1, 2, 4, 8),) * 4], "4 entries"),
        (lambda theirs: SimpleNamespace(layers=[]), "layers 1 to 0"),
        (lambda theirs: {"keys": torch.zeros(1, 4, 32)}, "a dict"),
        (lambda theirs: "cache", "a str"),
        (lambda theirs: [(torch.ones(1, 2, 4, 8), torch.ones(1, 2, 3, 8))], "unlike positions"),
        (lambda theirs: torch.zeros(4, 32).to_sparse(), "a sparse"),
        (lambda theirs: torch.zeros(4, 32, device="meta"), "without numbers"),
        (lambda theirs: torch.nested.nested_tensor([torch.zeros(4, 32)], layout=torch.jagged),
         "NestedTensor: a sparse, nested"),
        (lambda theirs: [(torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 4, 8).to_sparse())], "sparse"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_its_name(opened, make, seen):
    checkpoint, theirs = opened
    with one_line(RequestError, seen):
        recover(checkpoint, make(theirs), layer=1, part="value", corpus="toy:400")
