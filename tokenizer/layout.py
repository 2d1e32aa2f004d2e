"""How tokens are laid out in a file: `packed`, all in a line, or `rows`, one story a row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tokenizer.bpe import END_OF_TEXT, PAD, encode_stories, token_bytes
from tokenizer.errors import CorpusError
from tokenizer.line import DTYPE


@dataclass(frozen=True)
class Layout:
    """How tokens are laid out.

    Attributes:
        name: `packed` or `rows`.
        context: Length of a row; only of `rows`.
        pad_side: `left` or `right`; only of `rows`, where it is `right` unless given.

    Raises:
        CorpusError: They do not fit together.
    """

    name: str = "packed"
    context: int | None = None
    pad_side: str | None = None

    def __post_init__(self) -> None:
        if self.name == "packed":
            if self.context is not None or self.pad_side is not None:
                raise CorpusError("--context and --pad-side: need --layout rows; add it")
            return
        if self.name != "rows":
            raise CorpusError(f"--layout {self.name}: must be packed or rows")
        if self.context is None or self.context < 2:
            raise CorpusError(f"--context {self.context}: --layout rows needs 2 or more")
        if self.pad_side not in (None, "left", "right"):
            raise CorpusError(f"--pad-side {self.pad_side}: must be left or right")
        object.__setattr__(self, "pad_side", self.pad_side or "right")


@dataclass(frozen=True)
class Laid:
    """Some stories, laid out.

    Attributes:
        content: Their ids: `(tokens,)` when packed, `(stories, context)` in rows.
        lengths: Tokens of each, its end-of-text included, pads not: `(stories,)`.
        sizes: UTF-8 bytes of each, as far as it is in: `(stories,)`.
        cut: Which of them were cut at the context: `(stories,)`.
    """

    content: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray
    cut: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def divided(self, stories: int) -> tuple[Laid, Laid]:
        """Return the first `stories`, and the others."""
        at = stories if self.content.ndim == 2 else int(self.lengths[:stories].sum())
        counts = (self.lengths, self.sizes, self.cut)
        return (
            Laid(self.content[:at], *(count[:stories] for count in counts)),
            Laid(self.content[at:], *(count[stories:] for count in counts)),
        )


class Encoder:
    """Encodes stories and lays them out.

    Args:
        tokenizer: A byte-level one.
        layout: Packed or rows.
    """

    def __init__(self, tokenizer: Tokenizer, layout: Layout) -> None:
        self._tokenizer, self._layout = tokenizer, layout
        vocabulary = tokenizer.get_vocab()
        self._end, self._pad = vocabulary[END_OF_TEXT], vocabulary[PAD]
        self._bytes = np.array([len(piece) for piece in token_bytes(tokenizer)])

    def __call__(self, stories: Iterable[str]) -> Iterator[Laid]:
        """Yield the stories batch by batch, in their order; all cores work on a batch."""
        for batch in encode_stories(self._tokenizer, stories):
            yield self._lay([[*ids, self._end][: self._layout.context] for ids in batch])

    def _lay(self, lines: list[list[int]]) -> Laid:
        lengths = np.array([len(line) for line in lines])
        tokens = np.fromiter(chain.from_iterable(lines), DTYPE, count=int(lengths.sum()))
        ends = np.cumsum(lengths)
        sizes = np.add.reduceat(self._bytes[tokens], ends - lengths)
        content, context = tokens, self._layout.context
        if context is not None:
            places = np.arange(context)
            if self._layout.pad_side == "left":
                places = places[::-1]
            content = np.full((len(lines), context), self._pad, DTYPE)
            content[places < lengths[:, None]] = tokens
        return Laid(content, lengths, sizes, tokens[ends - 1] != self._end)


@dataclass
class Counts:
    """What a file holds, counted while it is written."""

    stories: int = 0
    tokens: int = 0
    bytes: int = 0
    cut: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, laid: Laid) -> bytes:
        """Count some more stories; return what to write for them."""
        content = laid.content.tobytes()
        self.stories += len(laid)
        self.tokens += int(laid.lengths.sum())
        self.bytes += int(laid.sizes.sum())
        self.cut += int(laid.cut.sum())
        self.digest.update(content)
        return content

    def plain(self, layout: Layout) -> dict[str, Any]:
        """As `meta.json` holds them."""
        counts = {
            "stories": self.stories,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "sha256": self.digest.hexdigest(),
        }
        return (
            counts if layout.context is None else counts | {"rows": self.stories, "cut": self.cut}
        )
