"""Stories as windows of tokens: what probes are fitted on, and other stories to judge them on."""

from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from eval.errors import RequestError
from tokenizer import END_OF_TEXT, PackedData, open_corpus, tokenizer_hash

VALID_FRACTION = 0.05  # set aside where a source is one file, as in packing
STORIES = 256  # tokenized at a time


def story_windows(corpus: str, split: str, tokenizer: Tokenizer, count: int, length: int) -> Tensor:
    """The first `count` windows of stories joined by end-of-text, if any, `(count, length)`.

    Args:
        corpus: a source that `tokenizer.open_corpus` reads (a single file is divided by the
            stories' own hashes), or a directory that `python -m tokenizer pack` wrote.
        split: train or valid.
        tokenizer: the model's.
        count: how many windows.
        length: tokens of each.

    Raises:
        RequestError: too few tokens, or a directory packed by another tokenizer.
        CorpusError: the corpus cannot be read.
    """
    packed = (Path(corpus) / "meta.json").is_file()
    tokens = (_packed if packed else _encoded)(corpus, split, tokenizer, count * length)
    if len(tokens) < count * length:
        raise RequestError(
            f"--corpus {corpus}: its {split} stories have {len(tokens):,} tokens, "
            f"{count * length:,} are asked for; ask for fewer, or give more stories"
        )
    return torch.from_numpy(tokens[: count * length].astype(np.int64)).reshape(count, length)


def ends_of_text(tokenizer: Tokenizer) -> list[int]:
    """What stands between two stories: the end-of-text token, nothing where there is none."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    return [] if end is None else [end]


def _packed(corpus: str, split: str, tokenizer: Tokenizer, limit: int) -> np.ndarray:
    data = PackedData(corpus)
    if data.meta["layout"] != "packed":
        raise RequestError(
            f"--corpus {corpus}: its layout is {data.meta['layout']!r}, with padding; "
            "pack the stories with --layout packed"
        )
    if data.meta["tokenizer_sha256"] != tokenizer_hash(tokenizer):
        raise RequestError(
            f"--corpus {corpus}: packed with another tokenizer than the model's; "
            "give the data that the model was trained on, or the stories themselves"
        )
    return data.tokens(split, limit)


def _encoded(corpus: str, split: str, tokenizer: Tokenizer, limit: int) -> np.ndarray:
    end, ids = ends_of_text(tokenizer), []
    stories = iter(open_corpus(corpus, split, valid_fraction=VALID_FRACTION))
    while len(ids) < limit and (some := list(islice(stories, STORIES))):
        for encoded in tokenizer.encode_batch_fast(some, add_special_tokens=False):
            ids += [*encoded.ids, *end]
    return np.array(ids[:limit], dtype=np.int64)
