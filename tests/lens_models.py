"""A small model whose tokenizer knows the words of the contrast stories."""

from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer

from arch import LanguageModel, ModelConfig
from eval.checkpoints import Checkpoint
from eval.lenses.contrast import CUES, FRAMES, WORDS
from tokenizer import train_tokenizer

VOCAB = 370


@lru_cache(maxsize=1)
def story_tokenizer() -> Tokenizer:
    """A byte-level BPE in which the first four words of each attribute are one token."""
    texts = []
    for i in range(4):
        chosen = {attribute: words.split()[i] for attribute, words in WORDS.items()}
        texts += [(frame + cue).format(**chosen) for frame in FRAMES for cue in CUES.values()]
    return train_tokenizer(texts * 3, vocab_size=VOCAB)


def story_checkpoint(**settings: object) -> Checkpoint:
    """An untrained model of that tokenizer."""
    chosen = {"context": 64, "d_model": 32, "n_layers": 2, "embedding_std": 1.0} | settings
    torch.manual_seed(1)
    size = story_tokenizer().get_vocab_size()
    config = ModelConfig(vocab_size=size, **chosen)  # pyright: ignore[reportArgumentType]
    model = LanguageModel(config).eval().requires_grad_(False)
    return Checkpoint(model, config, story_tokenizer(), {"name": "small"}, Path("small"))
