"""How well models predict text: nats for each token, bits for each byte."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Literal

from arch.errors import printable
from eval.messages import RequestError, say_once
from eval.rows.store import Results, Row, row_key

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer
    from torch import Tensor

    from arch import LanguageModel
    from eval.models.checkpoint import Checkpoint

PARTS = 500
"""Stories are kept apart in at most so many parts, for intervals."""
LOGITS = 1 << 24
"""Logits held at once, in entries."""
Windows = Literal["joined", "lm-eval"]
"""How text is cut: `measure_loss` joins stories, `measure_documents` does as lm-eval."""


@dataclass(frozen=True)
class Measurement:
    """A task: the loss of a checkpoint on a corpus, or on texts in its place (`measure_loss`)."""

    checkpoint: "Checkpoint"
    corpus: str
    stories: int | None
    batch_size: int | None
    texts: tuple[str, ...] | None
    windows: Windows = "joined"
    length: int | None = None

    @property
    def keys(self) -> list[str]:
        """The key of the one row."""
        question = [self.corpus, self.stories] if self.texts is None else [list(self.texts)]
        if self.windows != "joined":
            begin = _begin(self.checkpoint)
            question += [self.windows, *([begin] if begin != "<|endoftext|>" else [])]
        if self.length:
            question += [f"length {self.length}"]
        return [row_key(*self.checkpoint.identity, "loss", *question)]

    def run(self, results: Results) -> list[Row]:
        """Measures the loss: one row."""
        from eval.models.corpora import corpus_hash
        from eval.models.memory import windows_at_once

        model, context = self.checkpoint.model, self.checkpoint.config.context
        batch = self.batch_size or windows_at_once(model, self.length or context)
        measure = measure_loss if self.windows == "joined" else measure_documents
        loss = measure(self.checkpoint, self.corpus, self.stories, batch, self.texts, self.length)
        if self.texts is None:
            known = {"corpus_hash": corpus_hash(self.corpus)}
        else:
            known = {"texts": row_key(*self.texts)}
        about = {
            "key": self.keys[0],
            "kind": "loss",
            "checkpoint": self.checkpoint.provenance,
            "corpus": self.corpus if self.texts is None else None,
            **known,
            "windows": self.windows + (f", {self.length} tokens" if self.length else ""),
            "device": model.embedding.weight.device.type,
            "batch": batch,
        }
        return [about | loss]


def measure_loss(
    checkpoint: "Checkpoint",
    corpus: str,
    stories: int | None = None,
    batch_size: int | None = None,
    texts: Sequence[str] | None = None,
    length: int | None = None,
) -> dict[str, Any]:
    """Loss of a checkpoint on all held-out stories of a corpus, or on texts in their place.

    Stories are joined by ends of text. Every token but the first is predicted once, from at most
    one window of tokens before it. Windows do not overlap.

    Args:
        corpus: a source that `tokenizer.open_corpus` reads.
        stories: only the first so many; all when not given.
        batch_size: windows sent through the model together; as many as the device's memory bears
            when not given.
        texts: predicted in the place of a corpus's stories.
        length: tokens of a window, at most the context; the context when not given.

    Returns:
        Fields of a row (`eval.rows.schema.LossRow`): `tokens` predicted, ends of stories included;
        UTF-8 `bytes` of the `stories`; `nats_per_token`, `bits_per_byte`, `perplexity`,
        `tokens_per_second`; `parts`, the sums of each story or of several that follow each other.

    Raises:
        RequestError: fewer than two tokens, a window that memory does not hold, or a loss that is
            not finite.
        CorpusError: the corpus cannot be read.
    """
    tokens, owner, sizes = _tokens(checkpoint, corpus, stories, texts)
    T = length or _whole_context(checkpoint, len(tokens) - 1)
    windows = [tokens[start : start + T + 1] for start in range(0, len(tokens) - 1, T)]
    whole, started = (len(tokens) - 1) // T, time.perf_counter()
    nats = _predict(checkpoint, windows[:whole], batch_size, T)
    nats += _predict(checkpoint, windows[whole:], batch_size, T)
    return _figures(checkpoint, nats, owner[1:], sizes, started)


def measure_documents(
    checkpoint: "Checkpoint",
    corpus: str,
    stories: int | None = None,
    batch_size: int | None = None,
    texts: Sequence[str] | None = None,
    length: int | None = None,
) -> dict[str, Any]:
    """Loss of a checkpoint as lm-evaluation-harness measures it on rolling log-likelihoods.

    Each story stands alone, behind the token that begins a text (the BOS, else the EOS, as files
    of transformers name them; else the end of text), and its own end is not predicted. Tokens that
    the tokenizer adds to a story are predicted with it, as a second BOS, but for a story that
    spells the first. A special token that is spelt in it is that token, and its bytes count.
    Windows do not overlap in what they predict; the last of a story keeps as many tokens before it
    as a window holds. The softmax of a model of transformers counts the rows of its head that no
    token has.

    Args, returns and raises: as `measure_loss`; also a `RequestError` where the tokenizer has no
    such token.
    """
    import numpy as np

    from eval.models.pieces import encode_text
    from eval.models.text import held_out_text

    text = held_out_text(checkpoint, corpus)
    tokenizer, named = checkpoint.tokenizer, _begin(checkpoint)
    if (begin := tokenizer.token_to_id(named)) is None:
        raise RequestError(
            f"--windows lm-eval: the tokenizer has no {named} to start behind; name its bos_token "
            "in a tokenizer_config.json, or take --windows joined"
        )
    given = text.held_out(stories, bare=False) if texts is None else islice(texts, stories)
    held_out = [str(story) for story in given]
    bare = [encode_text(tokenizer, story) for story in held_out]
    sizes = np.array([len(story.encode()) for story in held_out])
    _refuse_empty(held_out, sizes)
    _say_changes(checkpoint, held_out, bare)
    adds = tokenizer.num_special_tokens_to_add(is_pair=False) > 0
    encoded = [
        [begin, *(encode_text(tokenizer, story, with_added=True) if whole else ids)]
        for story, ids in zip(held_out, bare, strict=True)
        for whole in [adds and not story.startswith(named)]
    ]
    if more := sum(map(len, encoded)) - sum(map(len, bare)) - len(bare):
        say_once(
            f"{checkpoint.path}: as lm-eval does, bits/byte counts the {more} tokens that the "
            f"tokenizer adds to {len(bare)} texts"
        )
    T = length or _whole_context(checkpoint, max(map(len, encoded), default=1) - 1)
    cut = [(part, count, i) for i, ids in enumerate(encoded) for part, count in _cut(ids, T)]
    if not cut:
        raise RequestError("there is nothing to predict; give stories with a token in them")
    cut.sort(key=lambda window: len(window[0]))  # those of a batch are alike in length
    (windows, counts, of), started = zip(*cut, strict=True), time.perf_counter()
    nats = _predict(checkpoint, windows, batch_size, T, _counts_padding(checkpoint))
    nats = [row[-count:] for row, count in zip(nats, counts, strict=True)]
    return _figures(checkpoint, nats, np.repeat(of, counts), sizes, started)


def _counts_padding(checkpoint: "Checkpoint") -> bool:
    """Whether lm-eval's softmax has rows that no token has; exports of our models have none."""
    from arch import LanguageModel

    return bool(checkpoint.model.padding_rows) and type(checkpoint.model) is not LanguageModel


def _begin(checkpoint: "Checkpoint") -> str:
    """The token that lm-evaluation-harness puts before a text."""
    return checkpoint.meta.get("begin") or "<|endoftext|>"


def _whole_context(checkpoint: "Checkpoint", longest: int) -> int:
    """The context, as the length of windows; a text has `longest` tokens to predict, at most.

    Raises:
        RequestError: memory does not hold such a window.
    """
    from eval.models.memory import holds_row

    context = checkpoint.config.context
    if not holds_row(checkpoint.model, min(context, longest)):
        raise RequestError(
            f"--length: memory does not hold a window of {min(context, longest)} tokens (the "
            f"context of {checkpoint.path} is {context}); give a shorter one, such as --length 1024"
        )
    return context


def _cut(ids: list[int], T: int) -> Iterator[tuple[list[int], int]]:
    """Windows of a text behind its first token: up to T + 1 tokens, how many are predicted."""
    for start in range(0, len(ids) - 1, T):
        end = min(start + T, len(ids) - 1)
        yield ids[max(0, end - T) : end + 1], end - start


def _predict(
    checkpoint: "Checkpoint",
    windows: "Sequence[Sequence[int] | np.ndarray]",
    batch_size: int | None,
    length: int,
    padded: bool = False,
) -> "list[np.ndarray]":
    """Cross entropy of each token of each window but its first, in nats, in float64.

    Windows of up to `length` + 1 tokens are padded at their ends to the longest of a batch. Logits
    are made of a few positions at a time, so that a large vocabulary needs no more memory; where
    the head is `padded`, the softmax counts the rows that were left out of it.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils.rnn import pad_sequence

    from eval.models.memory import windows_at_once

    model, found = checkpoint.model, []
    device, size = model.embedding.weight.device, batch_size or windows_at_once(model, length)
    positions = max(1, LOGITS // (model.config.vocab_size + padded * model.padding_rows))
    for i in range(0, len(windows), size):
        batch = windows[i : i + size]
        tokens = pad_sequence([torch.tensor(part) for part in batch], batch_first=True).to(device)
        with torch.no_grad():
            hidden = model.hidden(model.embed(tokens[:, :-1]), len(model.blocks)).flatten(0, 1)
            parts = (x.split(positions) for x in (hidden, tokens[:, 1:].flatten()))
            nats = [
                cross_entropy(_logits(model, x, padded), y, reduction="none").double()
                for x, y in zip(*parts, strict=True)
            ]
        by_window = torch.cat(nats).view(len(batch), -1).cpu().numpy()
        found += [row[: len(part) - 1] for row, part in zip(by_window, batch, strict=True)]
    return found


def _logits(model: "LanguageModel", hidden: "Tensor", padded: bool) -> "Tensor":
    """The logits `(N, V)` of outputs `(N, D)`, with those of the rows that were left out."""
    import torch
    from torch.nn import Parameter

    logits = [model.logits(hidden[None])[0].float()]
    if not padded:
        return logits[0]
    tokens = {name: getattr(model.head, name) for name in model.padding_head}
    size = model.config.vocab_size  # of so many rows the model gives logits, at most
    try:
        for start in range(0, model.padding_rows, size):
            for name, rows in model.padding_head.items():
                part = rows[start : start + size].to(tokens[name])
                setattr(model.head, name, Parameter(part, requires_grad=False))
            logits.append(model.logits(hidden[None])[0].float())
        return torch.cat(logits, dim=-1)
    finally:
        for name, parameter in tokens.items():
            setattr(model.head, name, parameter)


def _figures(
    checkpoint: "Checkpoint",
    rows: "Sequence[np.ndarray]",
    owner: "np.ndarray",
    sizes: "np.ndarray",
    started: float,
) -> dict[str, Any]:
    """The fields of a row: nats of each predicted token, its `owner`, each story's bytes.

    Parts of the text are of equally many stories each, at most `PARTS`.

    Raises:
        RequestError: a loss that is not finite.
    """
    import numpy as np

    nats = np.concatenate(rows)
    if not np.isfinite(nats).all():
        raise RequestError(
            f"{checkpoint.path} gives probabilities that are not finite; its loss has no value"
        )
    total, mean, size = float(nats.sum()), float(nats.mean()), int(sizes.sum())
    count = min(PARTS, len(sizes))
    part = np.arange(len(sizes)) * count // len(sizes)
    return {
        "tokens": len(nats),
        "bytes": size,
        "nats_per_token": mean,
        "bits_per_byte": total / math.log(2) / size,
        "perplexity": math.exp(min(mean, 700.0)),
        "tokens_per_second": len(nats) / (time.perf_counter() - started),
        "stories": len(sizes),
        "parts": {
            "nats": [round(x, 4) for x in np.bincount(part[owner], nats, count).tolist()],
            "tokens": np.bincount(part[owner], minlength=count).tolist(),
            "bytes": np.bincount(part, sizes, count).astype(int).tolist(),
        },
    }


def _tokens(
    checkpoint: "Checkpoint", corpus: str, limit: int | None, given: Sequence[str] | None
) -> "tuple[np.ndarray, np.ndarray, np.ndarray]":
    """The tokens, the story of each, and the bytes of each story; special tokens have none."""
    import numpy as np

    from eval.models.pieces import encode_text
    from eval.models.text import held_out_text
    from tokenizer import token_bytes

    text, tokenizer = held_out_text(checkpoint, corpus), checkpoint.tokenizer
    if given is None:
        held_out = list(text.held_out(limit))
        stories = text.encode(held_out)
        if held_out and held_out[0].ids is not None:  # as they were packed
            lengths = np.array(list(map(len, token_bytes(tokenizer))))
            sizes = [int(lengths[ids].sum()) for ids in stories]
        else:
            bare = [ids[: len(ids) - len(text.ends)] for ids in stories]
            _say_changes(checkpoint, held_out, bare)
            sizes = [len(story.encode()) for story in held_out]
    else:
        texts = list(islice(given, limit))
        bare = [encode_text(tokenizer, story) for story in texts]
        sizes = [len(_without_special(story, tokenizer).encode()) for story in texts]
        _refuse_empty(texts, sizes)
        _say_changes(checkpoint, texts, bare)
        stories = [[*ids, *text.ends] for ids in bare]
    if not text.ends and len(stories) > 1:
        said = "no file of its tokenizer names a token that ends a text"
        say_once(f"{checkpoint.path}: {said}; nothing parts the stories")
    owner = np.repeat(np.arange(len(stories)), [len(story) for story in stories])
    if len(owner) < 2:
        source = f"--corpus {corpus}: it has" if given is None else "--text: there is"
        raise RequestError(f"{source} nothing to predict")
    tokens = np.array([token for story in stories for token in story], dtype=np.int64)
    return tokens, owner, np.array(sizes)


def _refuse_empty(texts: Sequence[str], sizes: "Sequence[int] | np.ndarray") -> None:
    """Raises RequestError for a text of no bytes, which has no bits/byte."""
    for text, size in zip(texts, sizes, strict=True):
        if not size:
            raise RequestError(f"--text {text!r}: there is no letter in it; leave it out")


def _say_changes(
    checkpoint: "Checkpoint", texts: Sequence[str], encoded: Sequence[Sequence[int]]
) -> None:
    """Says on stderr where tokens do not spell a text, as where a tokenizer lacks its letters.

    Or joins its blanks and lines; a decoder may add or drop blanks at its ends.
    """
    read = checkpoint.tokenizer.decode_batch([*map(list, encoded)], skip_special_tokens=False)
    pairs = [(a.strip(), b.strip()) for a, b in zip(texts, read, strict=True)]
    if changed := [pair for pair in pairs if pair[0] != pair[1]]:
        alike = takewhile(lambda letters: letters[0] == letters[1], zip(*changed[0], strict=False))
        start = max(0, sum(1 for _ in alike) - 20)
        text, found = (printable(words[start : start + 40]) for words in changed[0])
        say_once(
            f"{checkpoint.path}: the tokens of {len(changed)} of {len(pairs)} texts do not spell "
            f"them ({text} is {found}); bits/byte counts the bytes of the texts"
        )


def _without_special(text: str, tokenizer: "Tokenizer") -> str:
    """A text without the special tokens that it spells."""
    for token in tokenizer.get_added_tokens_decoder().values():
        text = text.replace(token.content, "") if token.special else text
    return text
