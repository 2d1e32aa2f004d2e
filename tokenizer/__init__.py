"""Stories in, packed token files out.

python -m tokenizer train | pack | inspect
"""

import sys

if sys.argv[:1] == ["-m"] and not getattr(sys.flags, "safe_path", False):
    # `python -m` looks for the command: a library's name in the working directory comes last.
    sys.path.append(sys.path.pop(0))

from tokenizer.bpe import (
    END_OF_TEXT,
    PAD,
    CorpusError,
    encode_alike,
    encoding_hash,
    load_tokenizer,
    token_bytes,
    tokenizer_hash,
    train_tokenizer,
)
from tokenizer.corpus import Corpus, open_corpus
from tokenizer.data import PackedData
from tokenizer.pack import VALID_FRACTION, pack

__all__ = [
    "END_OF_TEXT", "PAD", "VALID_FRACTION", "Corpus", "CorpusError", "PackedData",
    "encode_alike", "encoding_hash", "load_tokenizer", "open_corpus", "pack", "token_bytes",
    "tokenizer_hash", "train_tokenizer",
]  # fmt: skip
