"""What the tests of models share: the family of mixers, small models, small tokenizers."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

from arch import LanguageModel, ModelConfig
from arch.mixers import build_mixer

# Every mixer by the settings that change its code. A new mixer is one more line here.
MIXERS = (
    "flat",
    "flat(bias=false)",
    "expanded(factor=3)",
    "expanded(factor=1, bias=false)",
    "rectangular(factor=2)",
    "rectangular(factor=1, bias=false)",
    "parallel(branches=3)",
    "parallel(branches=2, activation=gelu)",
    "parallel(branches=2, activation=gelu, bias=false)",
    "headed(heads=1, projection_bias=true)",
    "headed(heads=4, bias=false)",
    "kernel(size=4)",
    "kernel(size=3, bias=false)",
    "attention(heads=1, bias=true)",
    "attention(heads=4, kv_heads=2)",
    "attention(heads=2, qk_norm=true)",
    "depthwise(size=3)",
    "toeplitz",
    "toeplitz(heads=2, size=3, projections=true, bias=false)",
    "row",
    "row(heads=2, size=3, decay=learnt, bias=false)",
    "column(decay=learnt)",
    "column(size=4)",
    "combined(heads=4, decay=learnt)",
    "mixed(heads=4, decay=learnt, projections=true)",
    "identity",
    "attention(heads=2)+flat",
)


def random_mixer(entry: str, d_model: int, context: int, dtype=torch.float64) -> Any:
    """A TokenMixer with every number drawn, those above diagonals too."""
    return scramble(build_mixer(entry, d_model, context).to(dtype))


def scramble(module):
    """Draws every parameter, so that no start hides a mistake."""
    with torch.no_grad():
        for parameter in module.parameters():
            nn.init.uniform_(parameter, -1, 1)
    return module


def small_model(*mixers: str, **settings: Any) -> Any:
    """A LanguageModel of 11 tokens, 12 positions and 8 features, its weights of order one."""
    sizes = {"vocab_size": 11, "context": 12, "d_model": 8, "n_layers": 2, "d_ff": 16}
    torch.manual_seed(0)
    config = ModelConfig(**{**sizes, "mixers": mixers or ("flat",), **settings})  # pyright: ignore
    return LanguageModel(config).eval()


def random_tokens(model: LanguageModel, batch: int = 2, length: int | None = None) -> Tensor:
    length = model.config.context if length is None else length
    return torch.randint(model.config.vocab_size, (batch, length))


def assert_causal_model(model: Any, tokens: Tensor, positions: Iterable[int]) -> None:
    """Another token changes the logits at its position, and not one bit of any before."""
    before = model(tokens)
    for t in positions:
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % model.config.vocab_size
        after = model(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


def assert_model_continues(
    model: Any, tokens: Tensor, layer: int, cuts: tuple[int, int], **near: Any
) -> None:
    """Pieces through `prefix`, and two candidates each by `step`, give what `hidden` gives."""
    x, (a, b) = model.embed(tokens), cuts
    whole = model.hidden(x, layer)
    first, state = model.prefix(x[:, :a], layer=layer)
    model.prefix(x[:, a:b].flip(1), state)  # which leaves the state as it is
    second, state = model.prefix(x[:, a:b], state)
    assert state.length == b
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole[:, :b], **near)
    candidates = torch.stack([x[:, b:], -x[:, b:]], dim=1).flatten(0, 1)
    found = model.step(candidates, state)
    torch.testing.assert_close(found[::2], whole[:, b:], **near)
    other = model.hidden(torch.cat([x[:, :b], -x[:, b:]], dim=1), layer)
    torch.testing.assert_close(found[1::2], other[:, b:], **near)


def edit(directory: Path, **changes: Any) -> None:
    """Changes settings of a directory's config.json; `...` takes one out."""
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: v for name, v in config.items() if v is not ...}))


def tokenizer_json(size: int = 11) -> str:
    """The least that a model directory takes for a tokenizer."""
    vocabulary = {str(i): i for i in range(size)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "0"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model})


def byte_tokenizer() -> Tokenizer:
    """A real tokenizer of the 256 bytes and the two special tokens."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|pad|>"])
    return tokenizer
