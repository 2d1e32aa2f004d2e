"""The commands of this room.

python -m tokenizer train | pack | check | inspect | sample
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tokenizer.bpe import (
    END_OF_TEXT,
    VOCAB_SIZE,
    CorpusError,
    load_tokenizer,
    tokenizer_hash,
    train_tokenizer,
)
from tokenizer.corpus import open_corpus
from tokenizer.data import PackedData
from tokenizer.files import whole_file
from tokenizer.pack import SHARD, VALID_FRACTION, Layout, pack, shards_kept
from tokenizer.progress import Progress
from tokenizer.report import describe, split_text
from tokenizer.splits import SPLITS
from tokenizer.toy import toy_stories

SOURCES = """
a SOURCE is one of:
  toy, toy:20000, toy:20000:7     the built-in generator: number of stories, seed
  stories.txt, .jsonl, .parquet   a file: stories ended by <|endoftext|>, or a field "text"
  folder                          with train.* and valid.* (or validation.*), or with any number of
                                  files of one kind, also in folders in it
  hub:roneneldan/TinyStories      a dataset of the hub, or hub:FOLDER of the same shape
  hub:HuggingFaceFW/fineweb-edu:sample-10BT        one of its subsets

examples:
"""
TRAIN = """\
  python -m tokenizer train toy --out tokenizer.json
  python -m tokenizer train hub:roneneldan/TinyStories --limit 200000 --out tokenizer.json
"""
PACK = """\
  python -m tokenizer pack toy --tokenizer tokenizer.json --out data
  python -m tokenizer pack stories.txt --tokenizer tokenizer.json --out data --valid-fraction 0.1
  python -m tokenizer pack toy --tokenizer tokenizer.json --out rows --layout rows --context 512

a corpus larger than memory; the same command continues it after an interruption:
  python -m tokenizer pack hub:HuggingFaceFW/fineweb-edu:sample-10BT --valid-fraction 0.001 \
      --tokenizer tokenizer.json --out fineweb
"""
CHECK = """\
  python -m tokenizer check data
"""
INSPECT = """\
  python -m tokenizer inspect tokenizer.json
  python -m tokenizer inspect tokenizer.json --corpus stories.txt --text "Once upon a time"
"""
SAMPLE = """\
  python -m tokenizer sample --count 3
  python -m tokenizer sample --count 1000 --seed 7 > stories.txt
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code: 0, or 2 for bad input, told in one line."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (CorpusError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _train(options: argparse.Namespace) -> None:
    with whole_file(options.out) as temporary:
        stories = open_corpus(
            options.source,
            "train",
            limit=options.limit,
            field=options.field,
            stream=options.limit is not None,  # a few stories are not worth a whole download
        )
        tokenizer = train_tokenizer(stories, options.vocab_size)
        temporary.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    size = tokenizer.get_vocab_size()
    print(f"{options.out}: {size:,} entries, sha256 {tokenizer_hash(tokenizer)}")


def _pack(options: argparse.Namespace) -> None:
    if options.workers is not None:
        _at_least_one("--workers", options.workers)
        os.environ["RAYON_NUM_THREADS"] = str(options.workers)  # read when threads first start
    if kept := shards_kept(options.out):
        print(f"{options.out}: continuing after {kept} complete shards", file=sys.stderr)
    progress = Progress()
    data = pack(
        options.source,
        options.tokenizer,
        options.out,
        Layout(options.layout, options.context, options.pad_side),
        valid_fraction=options.valid_fraction,
        limit=options.limit,
        field=options.field,
        force=options.force,
        shards=options.shards,
        report=lambda corpus, done: progress(corpus.split, done, corpus.expected),
    )
    progress.close()
    for split in SPLITS:
        counts = data.meta["splits"][split]
        print(
            f"{data.path / split}: {counts['stories']:,} stories, {counts['tokens']:,} tokens,"
            f" {data.bytes_per_token(split):.3f} bytes per token, {len(counts['shards']):,} files"
        )


def _check(options: argparse.Namespace) -> None:
    data, progress = PackedData(options.data), Progress()
    for split in SPLITS:
        shards = data.shards(split)
        for done, shard in enumerate(shards, 1):
            shard.verify()
            progress(split, done, partial(len, shards))
    progress.close()
    number = sum(len(data.shards(split)) for split in SPLITS)
    print(f"{data.path}: {number:,} files hold what was packed")


def _inspect(options: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(options.tokenizer)
    corpus = open_corpus(options.corpus, "valid", limit=options.limit, field=options.field)
    print(describe(tokenizer, corpus))
    if options.text is not None:
        print(f"\ntext\n{split_text(load_tokenizer(options.tokenizer), options.text)}")


def _sample(options: argparse.Namespace) -> None:
    _at_least_one("--count", options.count)
    for story in toy_stories(options.count, options.seed):
        print(f"{story}\n{END_OF_TEXT}")


def _at_least_one(flag: str, value: int) -> None:
    if value < 1:
        raise CorpusError(f"{flag} {value}: must be 1 or more")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tokenizer",
        description="Stories in, packed token files out.",
        epilog="python -m tokenizer COMMAND --help tells more, with examples.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run, about: str, examples: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=about,
            description=about,
            epilog=SOURCES + examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    train = command("train", _train, "learn a byte-level BPE from stories", TRAIN)
    train.add_argument("source", metavar="SOURCE", help="where the stories come from, see below")
    train.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    train.add_argument(
        "--vocab-size", type=int, default=VOCAB_SIZE, metavar="N", help="entries (%(default)s)"
    )
    _add_reading(train)

    packing = command("pack", _pack, "encode stories into files that training reads", PACK)
    packing.add_argument("source", metavar="SOURCE", help="where the stories come from, see below")
    packing.add_argument("--tokenizer", required=True, metavar="FILE", help="a tokenizer.json")
    packing.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to make")
    packing.add_argument(
        "--layout",
        choices=("packed", "rows"),
        default="packed",
        help="all stories in a line, or one a row (%(default)s)",
    )
    packing.add_argument("--context", type=int, metavar="N", help="tokens in a row")
    packing.add_argument("--pad-side", choices=("left", "right"), help="of a row (right)")
    packing.add_argument(
        "--valid-fraction",
        type=float,
        default=VALID_FRACTION,
        metavar="F",
        help="share set aside for validation if the source sets none aside itself (%(default)s)",
    )
    packing.add_argument(
        "--shards", type=int, default=SHARD, metavar="N", help="tokens in a file (%(default)s)"
    )
    packing.add_argument("--workers", type=int, metavar="N", help="threads (all cores)")
    packing.add_argument("--force", action="store_true", help="replace packed data that is there")
    _add_reading(packing)

    check = command(
        "check", _check, "compare packed data with the hashes it was written with", CHECK
    )
    check.add_argument("data", metavar="DIR", help="a directory of packed data")

    inspect = command("inspect", _inspect, "show what a tokenizer has learnt", INSPECT)
    inspect.add_argument("tokenizer", metavar="FILE", help="a tokenizer.json")
    inspect.add_argument(
        "--corpus",
        default="toy",
        metavar="SOURCE",
        help="measured on its valid split (%(default)s)",
    )
    inspect.add_argument("--text", help="a text to split")
    _add_reading(inspect)

    sample = command("sample", _sample, "print stories of the built-in generator", SAMPLE)
    sample.add_argument("--count", type=int, default=3, metavar="N", help="stories (%(default)s)")
    sample.add_argument("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    return parser


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, metavar="N", help="stop after N stories of a split")
    parser.add_argument(
        "--field", default="text", metavar="NAME", help="the stories' column (%(default)s)"
    )


if __name__ == "__main__":
    sys.exit(main())
