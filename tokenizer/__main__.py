"""The commands of this room.

python -m tokenizer train toy --out tokenizer.json
python -m tokenizer pack toy --tokenizer tokenizer.json --out data
python -m tokenizer inspect tokenizer.json --text "Once upon a time"
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__":
    # The working directory may have a folder of our name: it comes last, see __init__.py.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.modules.pop("tokenizer", None)

from tokenizers import Tokenizer
from tqdm import tqdm

from tokenizer import corpus as sources
from tokenizer.bpe import (
    VOCAB_SIZE,
    CorpusError,
    check_text,
    encode_stories,
    load_tokenizer,
    printable,
    token_bytes,
    tokenizer_hash,
    train_tokenizer,
)
from tokenizer.corpus import Corpus, open_corpus
from tokenizer.files import SPLITS, complete_shards, whole_file
from tokenizer.pack import SHARD, VALID_FRACTION, Layout, pack

SHOWN = 10  # tokens in a table of `inspect`


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code.

    0; 2 for bad input, reported in one line; 130 after Ctrl-C, with what is kept.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - to the end
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a console cannot show is shown by its code
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if options.run is _inspect or options.out.exists() else 2
    except (CorpusError, OSError) as error:
        print(f"error: {printable(error)}", file=sys.stderr)  # names of columns may hold anything
        return 2
    except KeyboardInterrupt:
        shards = complete_shards(options.out) if options.run is _pack else 0
        kept = f"{shards} complete shards are kept: the same command continues"
        print(f"interrupted: {kept if shards else 'nothing is kept'}", file=sys.stderr)
        return 130
    return 0


def _train(options: argparse.Namespace) -> None:
    with whole_file(options.out) as temporary:
        stories = open_corpus(
            options.source,
            "train",
            valid_fraction=VALID_FRACTION,  # what packing holds out is not learnt from
            limit=options.limit,
            field=options.field,
            stream=options.limit is not None,  # a few stories are not worth a whole download
        )
        tokenizer = train_tokenizer(stories, options.vocab_size)
        written = tokenizer.to_str(pretty=True)
        if options.out.is_file() and options.out.read_bytes() != written.encode():
            beside = options.out.with_name(f"{options.out.name}.new")
            with whole_file(beside) as other:
                other.write_text(written, encoding="utf-8")
            raise CorpusError(
                f"--out {options.out}: another file is there already; the new tokenizer is in "
                f"{beside}: rename it, or remove one of the two"
            )
        temporary.write_text(written, encoding="utf-8")
    size = tokenizer.get_vocab_size()
    print(f"{options.out}: {size:,} entries, sha256 {tokenizer_hash(tokenizer)}")


def _pack(options: argparse.Namespace) -> None:
    if shards := complete_shards(options.out):
        print(f"{options.out}: continuing after {shards} complete shards", file=sys.stderr)
    packed = dict.fromkeys(SPLITS, 0)
    with tqdm(unit=" stories", disable=None) as bar:  # None: none in a pipe

        def report(split: str, done: int) -> None:
            packed[split] = done
            bar.update(sum(packed.values()) - bar.n)

        data = pack(
            options.source,
            options.tokenizer,
            options.out,
            Layout(options.layout, options.context, options.pad_side),
            valid_fraction=options.valid_fraction,
            limit=options.limit,
            field=options.field,
            shard_tokens=options.shard_tokens,
            story_tokens=options.story_tokens,
            report=report,
        )
    for split in SPLITS:
        counts = data.meta["splits"][split]
        print(
            f"{data.path / split}: {counts['stories']:,} stories, {counts['tokens']:,} tokens,"
            f" {data.bytes_per_token(split):.3f} bytes per token, {len(counts['shards']):,} files"
        )


def _inspect(options: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(options.tokenizer)
    if options.text is not None:
        check_text(f"--text {options.text!a:.80}:", options.text)
    corpus = open_corpus(
        options.corpus,
        "valid",
        valid_fraction=VALID_FRACTION,
        limit=options.limit,
        field=options.field,
        stream=options.limit is not None,
    )
    print(_describe(tokenizer, corpus, options.tokenizer))
    if options.text is not None:
        spelt = load_tokenizer(options.tokenizer)  # here a special token that is spelt is one
        text = spelt.encode(options.text, add_special_tokens=False)
        size, count = len(options.text.encode()), len(text.ids)
        print(f"\ntext\n{printable(' '.join(text.tokens))}")
        print(f"{count} tokens, {size} bytes, {size / max(1, count):.2f} bytes per token")


def _describe(tokenizer: Tokenizer, corpus: Corpus, name: str) -> str:
    """Describe a tokenizer by its use on a corpus: compression, longest and rarest tokens.

    Tokens are shown as the library writes them: `Ġ` for a space, `Ċ` for the end of a line.
    """
    pieces, used, stories = token_bytes(tokenizer, name), Counter[int](), 0
    for batch in encode_stories(tokenizer, ((None, story) for story in corpus), name):
        stories += len(batch)
        used.update(chain.from_iterable(ids for _, ids in batch))
    size = sum(len(pieces[token]) * count for token, count in used.items())
    tokens = used.total() + stories  # each story ends with end-of-text
    special = sum(token.special for token in tokenizer.get_added_tokens_decoder().values())
    alone = sum(len(piece) == 1 for piece in pieces)
    learnt = [token for token, piece in enumerate(pieces) if len(piece) > 1]
    longest = sorted(learnt, key=lambda token: (-len(pieces[token]), token))
    rarest = sorted((t for t in learnt if used[t]), key=lambda token: (used[token], token))
    lines = [
        f"entries          {len(pieces):,} ({special} special, {alone} bytes,"
        f" {len(learnt):,} merges)",
        f"sha256           {tokenizer_hash(tokenizer)}",
        f"measured on      {printable(corpus.source)}, {corpus.split}: {stories:,} stories,"
        f" {size:,} bytes, {tokens:,} tokens",
        f"bytes per token  {size / tokens:.3f}",
        f"tokens per story {tokens / stories:.1f}",
        f"merges not used  {sum(not used[token] for token in learnt):,}",
    ]
    for title, listed in (("longest tokens", longest), ("rarest tokens", rarest)):
        lines.append(f"\n{title}\n{'id':>6}{'bytes':>7}{'count':>10}  token")
        for t in listed[:SHOWN]:
            word = printable(tokenizer.id_to_token(t))  # an added one may hold anything
            lines.append(f"{t:>6}{len(pieces[t]):>7}{used[t]:>10,}  {word}")
    return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """Reports what it cannot parse in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends with code 2."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _given(word: str) -> str:
    """A word; an empty one is refused, which as a path would be the working directory."""
    if not word:
        raise argparse.ArgumentTypeError("the value is empty; give one")
    return word


def _path(word: str) -> Path:
    return Path(_given(word))


def _parser() -> Parser:
    parser = Parser(
        prog="python -m tokenizer",
        description="Stories in, packed token files out.",
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    kinds = (sources.__doc__ or "").split("\n\n")[1].replace("\n  ", "\n")[2:]
    where = "where the stories come from, see below"
    count = {"type": int, "metavar": "N"}

    def command(name: str, run: Callable, about: str) -> Callable:
        added = commands.add_parser(
            name,
            help=about,
            description=about,
            epilog=f"a SOURCE is one of:\n{kinds}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        beside = "; of a text that is not divided, valid gets its fraction of as many"
        about = "stop after N stories of a split" + beside * (name == "pack")
        added.add_argument("--limit", help=about, **count)
        column = "the stories' column (%(default)s)"
        added.add_argument("--field", default="text", metavar="NAME", help=column)
        return added.add_argument

    learn = "learn a byte-level BPE from stories, but those that pack holds out by default"
    add = command("train", _train, learn)
    add("source", type=_given, metavar="SOURCE", help=where)
    add("--out", type=_path, required=True, metavar="FILE", help="the file to write")
    add("--vocab-size", default=VOCAB_SIZE, help="entries of the vocabulary (%(default)s)", **count)

    add = command(
        "pack", _pack, "encode stories into files that training reads; run again to continue"
    )
    add("source", type=_given, metavar="SOURCE", help=where)
    add("--tokenizer", type=_given, required=True, metavar="FILE", help="a tokenizer.json")
    add("--out", type=_path, required=True, metavar="DIR", help="directory to make")
    layouts = "packed: stories follow each other; rows: one story a row (%(default)s)"
    add("--layout", choices=("packed", "rows"), default="packed", help=layouts)
    rows = "tokens in a row; a model is trained on all but the last: for 512 positions, 513"
    add("--context", help=rows, **count)
    add("--pad-side", choices=("left", "right"), help="padded side of a row (right)")
    fraction = (
        "fraction set aside for validation if the source sets none aside itself (%(default)s)"
    )
    add("--valid-fraction", type=float, default=VALID_FRACTION, metavar="F", help=fraction)
    joined = "join neighbours of a split, such as paragraphs, to stories of N tokens or more"
    add("--story-tokens", help=joined, **count)
    add("--shard-tokens", default=SHARD, help="tokens in a file (%(default)s)", **count)

    add = command("inspect", _inspect, "show what a tokenizer has learnt")
    add("tokenizer", type=_given, metavar="FILE", help="a tokenizer.json")
    corpora = "measured on what pack holds out of it by default (%(default)s)"
    add("--corpus", type=_given, default="toy", metavar="SOURCE", help=corpora)
    add("--text", help="a text to split")
    return parser


if __name__ == "__main__":
    sys.exit(main())
