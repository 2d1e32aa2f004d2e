"""What a tokenizer has learnt, as plain aligned text.

python -m tokenizer inspect tokenizer.json --text "Once upon a time"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from tokenizers import Tokenizer

from tokenizer.bpe import SMALLEST, SPECIAL, encode_stories, token_bytes, tokenizer_hash
from tokenizer.corpus import Corpus

VISIBLE = {" ": "·", "\n": "↵", "\t": "→"}


def describe(tokenizer: Tokenizer, corpus: Corpus, rows: int = 10) -> str:
    """Describe a tokenizer by its use on a corpus: compression, longest and rarest tokens."""
    pieces = token_bytes(tokenizer)
    used: Counter[int] = Counter()
    stories = 0
    for batch in encode_stories(tokenizer, corpus):
        stories += len(batch)
        used.update(chain.from_iterable(batch))
    size = sum(len(pieces[token]) * count for token, count in used.items())
    tokens = used.total() + stories  # each story ends with end-of-text
    learnt = range(SMALLEST, len(pieces))
    longest = sorted(learnt, key=lambda token: (-len(pieces[token]), token))[:rows]
    rarest = sorted((t for t in learnt if used[t]), key=lambda token: (used[token], token))[:rows]
    unused = sum(not used[token] for token in learnt)
    return "\n".join(
        [
            f"entries          {len(pieces):,} ({len(SPECIAL)} special, 256 bytes,"
            f" {len(learnt):,} merges)",
            f"sha256           {tokenizer_hash(tokenizer)}",
            f"measured on      {corpus.source}, {corpus.split}: {stories:,} stories,"
            f" {size:,} bytes, {tokens:,} tokens",
            f"bytes per token  {size / tokens:.3f}",
            f"tokens per story {tokens / stories:.1f}",
            f"merges not used  {unused:,}",
            "",
            "longest tokens",
            *_table(longest, pieces, used),
            "",
            "rarest tokens",
            *_table(rarest, pieces, used),
        ]
    )


def split_text(tokenizer: Tokenizer, text: str) -> str:
    """Show where a text is split: a space between tokens, `·` for a space inside one."""
    ids = tokenizer.encode(text).ids
    pieces = token_bytes(tokenizer)
    shown = [show(pieces[token]) or str(tokenizer.id_to_token(token)) for token in ids]
    size = len(text.encode())
    ratio = f", {size / len(ids):.2f} bytes per token" if ids else ""
    return f"{' '.join(shown)}\n{len(ids)} tokens, {size} bytes{ratio}"


def show(piece: bytes) -> str:
    """Write the bytes of a token so that each can be seen: `·upon`, `<0xf0>`."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:  # a part of a character
        return "".join(chr(byte) if 32 < byte < 127 else f"<0x{byte:02x}>" for byte in piece)
    return "".join(VISIBLE.get(c) or (c if c.isprintable() else f"<0x{ord(c):02x}>") for c in text)


def _table(tokens: Iterable[int], pieces: list[bytes], used: Counter[int]) -> list[str]:
    lines = [f"{'id':>6}{'bytes':>7}{'count':>10}  token"]
    lines += [
        f"{token:>6}{len(pieces[token]):>7}{used[token]:>10,}  {show(pieces[token])}"
        for token in tokens
    ]
    return lines
