"""What looking inside a model costs: CPU seconds and peak memory of every lens.

    python -m scripts.bench_lenses --out docs/benchmarks

    python -m scripts.bench_lenses --models runs/flat/models/step-001000 --corpus data/stories.txt

Each lens looks at one prompt in a process of its own; the last line is all of them in one process,
where lenses share what they ask the model. Fits are counted, imports of the command itself are not.
Without --models, an untrained flat mixer and an untrained Llama-style transformer are looked at.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from arch import LanguageModel, ModelConfig, ModelError, save_model
from eval import RequestError
from eval.lenses.lens import ALL, TOKENS, Request, parse_lenses
from eval.lenses.trace import gather
from eval.models import open_checkpoint
from eval.text import drawn_prompts, held_out_text
from scripts import pages
from scripts.pages import BenchmarkError, Rows, natural
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
    parser = pages.parser(__doc__)
    parser.add_argument("--models", nargs="+", type=Path, metavar="DIR", help="model directories")
    parser.add_argument("--lens", nargs="+", default=[ALL], metavar="NAME", help="default: all")
    parser.add_argument("--corpus", default="toy", help="stories")
    parser.add_argument("--length", type=natural, default=128, help="tokens of the prompt")
    parser.add_argument("--tokens", type=natural, default=TOKENS, help="of text to fit on")
    parser.add_argument("--d-model", type=natural, default=256)
    parser.add_argument("--layers", type=natural, default=8)
    parser.add_argument("--context", type=natural, default=512)
    parser.add_argument("--threads", type=natural, default=os.cpu_count())
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.command = pages.command("scripts.bench_lenses", words)
    work = look if options.one else measure
    return pages.run("lenses", options, work, ModelError, CorpusError, RequestError)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Rows]]:
    """The whole page."""
    with tempfile.TemporaryDirectory() as directory:
        models = options.models or _untrained(Path(directory), options)
        lenses = [lens.name for lens in parse_lenses(options.lens)]
        names = [_name(path) for path in models]
        rows = [[name, *(_measured(options, path, [name]) for path in models)] for name in lenses]
        rows.append(["all in one process", *(_measured(options, path, lenses) for path in models)])
    lines = [
        "# Lenses",
        "",
        f"`{options.command}`",
        "",
        f"{pages.hardware(options.device, options.threads)}, float32."
        f" One prompt of {options.length} tokens, {options.tokens:,} tokens of text to fit and "
        "count on. CPU seconds, and the peak memory of the whole process.",
        "",
        *pages.markdown_table(["lens", *names], rows),
        "",
    ]
    yield "\n".join(lines), []


def look(options: argparse.Namespace) -> Iterator[tuple[str, Rows]]:
    """Looks through the lenses of `--lens` at one checkpoint, here and now: its costs, as JSON."""
    (path,) = options.models
    checkpoint = open_checkpoint(path, options.device)
    prompts = drawn_prompts("story", held_out_text(checkpoint, options.corpus), 1, options.length)
    request = Request(tuple(prompts), corpus=options.corpus, tokens=options.tokens)
    checkpoint.model(gather(checkpoint, prompts).tokens)  # the first pass imports and prepares
    used, refused = time.process_time(), ""
    for lens in parse_lenses(options.lens):
        try:
            lens.find(checkpoint, request)
        except RequestError as refusal:
            refused = str(refusal)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.device != "cpu":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    refused = refused if len(options.lens) == 1 else ""
    seconds = time.process_time() - used
    yield json.dumps({"refused": refused, "seconds": seconds, "bytes": peak}), []


def _measured(options: argparse.Namespace, path: Path, lenses: list[str]) -> str:
    """A cell of the table, by a process of its own."""
    print(f"{path.name}: {' '.join(lenses)} ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "scripts.bench_lenses", "--one", "--models", str(path)]
    for flag in ("device", "threads", "length", "tokens", "corpus"):
        command += [f"--{flag}", str(getattr(options, flag))]
    done = subprocess.run([*command, "--lens", *lenses], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(done.stderr.strip().removeprefix("error: "))
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


def _name(path: Path) -> str:
    checkpoint = open_checkpoint(path)
    about = checkpoint.provenance
    size = f"d {about['d_model']}, n {about['n_layers']}, V {checkpoint.config.vocab_size}"
    return f"{about['name']}, step {about['step']} ({size})"


if __name__ == "__main__":
    sys.exit(main())
