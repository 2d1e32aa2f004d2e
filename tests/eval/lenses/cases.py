"""Models that lenses are tried on: some of ours, small random ones of transformers, one of stories.

The last one's tokenizer knows the words of the built-in stories.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from arch import LanguageModel, ModelConfig
from arch.pretrained.pretrained import PretrainedModel
from eval.lenses.lens import Request, lenses
from eval.lenses.stories import CUES, FRAMES, WORDS
from eval.lenses.table import Table
from eval.models.checkpoint import Checkpoint
from eval.models.text import Prompt
from tests.arch.cases import byte_tokenizer
from tokenizer import train_tokenizer

VOCAB = 370
MODELS: dict[str, dict[str, Any]] = {
    "flat": {"mixers": ("flat",)},
    "llama": {
        "mixers": ("attention(heads=4, kv_heads=2)",),
        "channel_mixer": "swiglu",
        "norm": "rmsnorm",
    },
    "headed and attention in turn, tied": {
        "mixers": ("headed(heads=4)", "attention(heads=2)"),
        "n_layers": 4,
        "tied": True,
    },
    "side by side, no final norm": {
        "mixers": ("attention(heads=2, bias=true)+parallel(branches=2)",),
        "final_norm": False,
    },
    "gpt2": {},
}
"""The models of every test: ours, and of transformers with learnt positions."""


def any_model(name: str, small_model: Any) -> LanguageModel:
    """One of `MODELS` in float32, its norms and biases drawn, so that none is one or nothing."""
    if not MODELS[name]:
        return wrapped(name)
    model = small_model(**MODELS[name])
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


@lru_cache
def wrapped(family: str) -> LanguageModel:
    """A small random model of transformers, which takes seconds to import."""
    from tests.arch.pretrained.test_pretrained import their_model

    return PretrainedModel(their_model(family, dtype=torch.float32))


@lru_cache
def wrapped_checkpoint(family: str) -> Checkpoint:
    """The same, with a tokenizer of bytes."""
    model = wrapped(family)
    return Checkpoint(model, model.config, byte_tokenizer(), {"name": "x"}, Path("x"))


def some_tokens(model: LanguageModel, rows: int = 2, length: int = 12, seed: int = 3) -> Tensor:
    """Random ones, `(rows, length)`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (rows, length), generator=generator)


def ask(*prompts: Any, **settings: Any) -> Request:
    """A request for prompts of these tokens."""
    texts = tuple(Prompt("text", i, tuple(tokens)) for i, tokens in enumerate(prompts))
    return Request(texts, **{"corpus": "toy:900", **settings})


def look(lens: str, checkpoint: Checkpoint, *prompts: Any, **settings: Any) -> Table:
    """What a lens finds."""
    return lenses()[lens].find(checkpoint, ask(*prompts, **settings))


def of(table: Table, name: str, /, **labels: Any) -> Tensor:
    """The numbers of a name at one label of each axis named."""
    (numbers,) = table.of(name)
    places = (
        choices.index(labels[axis]) if axis in labels else slice(None)
        for axis, choices in numbers.axes.items()
    )
    return torch.as_tensor(numbers.values[tuple(places)]).float()


def figures(table: Table, name: str) -> list[dict[str, Any]]:
    """The rows of a name."""
    return [row for row in table.figures() if row["figure"] == name]


@lru_cache(maxsize=1)
def story_tokenizer() -> Tokenizer:
    """A byte-level BPE in which the first four words of each attribute are one token."""
    return train_tokenizer(told_stories() * 3, vocab_size=VOCAB)


def told_stories() -> list[str]:
    """The built-in stories of four words of each attribute."""
    texts = []
    for i in range(4):
        chosen = {attribute: words.split()[i] for attribute, words in WORDS.items()}
        texts += [(frame + cue).format(**chosen) for frame in FRAMES for cue in CUES.values()]
    return texts


def prepending_tokenizer() -> Tokenizer:
    """As Llama 2's: a BPE whose normalizer puts a space before a text that has one, too."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    spaces: Any = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(spaces)  # pyright: ignore
    words = [pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Punctuation()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)  # pyright: ignore
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(told_stories() * 3, trainer)
    tokenizer.pre_tokenizer = None  # pyright: ignore
    tokenizer.decoder = decoders.Metaspace()  # pyright: ignore
    return tokenizer


def story_checkpoint(mixers: tuple[str, ...] = ("flat",), context: int = 64) -> Checkpoint:
    """An untrained model of that tokenizer."""
    torch.manual_seed(1)
    config = ModelConfig(
        story_tokenizer().get_vocab_size(), context, 32, 2, mixers=mixers, embedding_std=1.0
    )
    model = LanguageModel(config).eval().requires_grad_(False)
    return Checkpoint(model, config, story_tokenizer(), {"name": "small"}, Path("small"))
