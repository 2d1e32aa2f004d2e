"""What looking inside a model costs: CPU seconds and peak memory of every lens.

    python -m scripts.bench_lenses --save docs/benchmarks/lenses-cpu.md

    python -m scripts.bench_lenses --models runs/flat/models/step-001000 --corpus data/stories.txt

Each lens looks at one prompt in a process of its own; the last line is all of them in one process,
where lenses share what they ask the model. Fits are counted, imports of the command itself are not.
Without --models, an untrained flat mixer and an untrained Llama-style transformer are looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from arch import LanguageModel, ModelConfig, ModelError, save_model
from arch.files import write_file
from eval.cli import positive
from eval.errors import RequestError
from eval.lenses.lens import ALL, TOKENS, Request, choose
from eval.lenses.trace import gather
from eval.models import Checkpoint, device_of, open_checkpoint
from eval.text import drawn_prompts, held_out_text
from scripts.pages import hardware
from tokenizer import CorpusError, open_corpus, train_tokenizer

VOCABULARY = 4096
KINDS: dict[str, dict[str, Any]] = {
    "flat": {"mixers": ("flat",)},
    "Llama-style": {
        "mixers": ("attention(heads=4)",),
        "channel_mixer": "swiglu",
        "norm": "rmsnorm",
    },
}


def main(words: list[str] | None = None) -> int:
    """Measures and prints the page, and saves it where asked; the exit code."""
    words = sys.argv[1:] if words is None else words
    options = _parser().parse_args(words)
    torch.set_num_threads(options.threads)
    try:
        options.device = device_of(options.device).type
        if options.one:
            print(json.dumps(look(options)))
            return 0
        page = measure(options, words)
        if options.save:
            write_file(options.save, page.encode())
    except (ModelError, CorpusError, RequestError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode  # it has said why
    print(page)
    return 0


def measure(options: argparse.Namespace, words: list[str]) -> str:
    """The whole page."""
    with tempfile.TemporaryDirectory() as directory:
        models = options.models or _untrained(Path(directory), options)
        names = [_name(open_checkpoint(path)) for path in models]
        lenses = [lens.name for lens in choose(options.lens)]
        rows = {name: [_measured(options, path, [name]) for path in models] for name in lenses}
        rows["all in one process"] = [_measured(options, path, lenses) for path in models]
    lines = [
        "# Lenses",
        "",
        f"`{shlex.join(['python', '-m', 'scripts.bench_lenses', *map(_short, words)])}`",
        "",
        f"{hardware(options.device, options.threads)}, float32."
        f" One prompt of {options.length} tokens, {options.tokens:,} tokens of text to fit and "
        "count on. CPU seconds, and the peak memory of the whole process.",
        "",
        "| lens | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    lines += [f"| {lens} | " + " | ".join(cells) + " |" for lens, cells in rows.items()]
    return "\n".join([*lines, ""])


def look(options: argparse.Namespace) -> dict[str, Any]:
    """Looks through the lenses of `--lens` at one checkpoint, here and now."""
    (path,) = options.models
    checkpoint = open_checkpoint(path, options.device)
    prompts = drawn_prompts("story", held_out_text(checkpoint, options.corpus), 1, options.length)
    request = Request(tuple(prompts), corpus=options.corpus, tokens=options.tokens)
    checkpoint.model(gather(checkpoint, prompts).tokens)  # the first pass imports and prepares
    used, refused = time.process_time(), ""
    for lens in choose(options.lens):
        try:
            lens.find(checkpoint, request)
        except RequestError as refusal:
            refused = str(refusal)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.device != "cpu":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    alone = len(options.lens) == 1
    seconds = time.process_time() - used
    return {"refused": refused if alone else "", "seconds": seconds, "bytes": peak}


def _measured(options: argparse.Namespace, path: Path, lenses: list[str]) -> str:
    """A cell of the table, by a process of its own."""
    print(f"{_short(path)}: {' '.join(lenses)} ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "scripts.bench_lenses", "--one", "--models", str(path)]
    for flag in ("device", "threads", "length", "tokens", "corpus"):
        command += [f"--{flag}", str(getattr(options, flag))]
    done = subprocess.run([*command, "--lens", *lenses], stdout=subprocess.PIPE, check=True)
    result = json.loads(done.stdout)
    if result["refused"]:
        return "has none"
    return f"{result['seconds']:.1f} s, {result['bytes'] / 2**30:.2f} GiB"


def _untrained(directory: Path, options: argparse.Namespace) -> list[Path]:
    tokenizer = train_tokenizer(open_corpus("toy:2000", "train"), vocab_size=VOCABULARY)
    paths = []
    for name, kind in KINDS.items():
        torch.manual_seed(0)
        config = ModelConfig(
            vocab_size=tokenizer.get_vocab_size(),
            context=options.context,
            d_model=options.d_model,
            n_layers=options.layers,
            **kind,
        )
        meta = {"name": f"{name}, untrained", "step": 0}
        path = directory / name
        paths.append(save_model(path, LanguageModel(config), tokenizer.to_str(), meta))
    return paths


def _name(checkpoint: Checkpoint) -> str:
    about = checkpoint.provenance
    size = f"d {about['d_model']}, n {about['n_layers']}, V {checkpoint.config.vocab_size}"
    return f"{about['name']}, step {about['step']} ({size})"


def _short(word: object) -> str:
    """Without where the files lie."""
    return "/".join(Path(str(word)).parts[-3:])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", type=Path, metavar="DIR", help="model directories")
    parser.add_argument("--lens", nargs="+", default=[ALL], metavar="NAME", help="default: all")
    parser.add_argument("--corpus", default="toy", help="stories")
    parser.add_argument("--length", type=positive, default=128, help="tokens of the prompt")
    parser.add_argument("--tokens", type=positive, default=TOKENS, help="of text to fit on")
    parser.add_argument("--d-model", type=positive, default=256)
    parser.add_argument("--layers", type=positive, default=8)
    parser.add_argument("--context", type=positive, default=512)
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument("--threads", type=positive, default=os.cpu_count())
    parser.add_argument("--save", type=Path, help="write the page here")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
