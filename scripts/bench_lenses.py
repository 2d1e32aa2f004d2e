"""What looking inside a model costs: CPU seconds and peak memory of every lens.

    python -m scripts.bench_lenses --out docs/benchmarks

    python -m scripts.bench_lenses --models runs/flat/models/step-001000 --corpus data/stories.txt

Each lens looks at one prompt in a process of its own; the last line is all of them in one process,
where lenses share what they ask the model. Fits are counted, imports of the command itself are not.
Without --models, an untrained flat mixer and an untrained Llama-style transformer are looked at.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from arch import LanguageModel, ModelConfig, save_model
from eval import RequestError
from eval.lenses.lens import ALL, TOKENS, Request, parse_lenses
from eval.lenses.trace import gather
from eval.models import open_checkpoint
from eval.text import drawn_prompts, held_out_text
from scripts import pages
from tokenizer import CorpusError, open_corpus, train_tokenizer

VOCABULARY = 4096
LLAMA = {"mixers": ("attention(heads=4)",), "channel_mixer": "swiglu", "norm": "rmsnorm"}
KINDS: dict[str, dict[str, Any]] = {"flat": {"mixers": ("flat",)}, "Llama-style": LLAMA}
FLAGS = {
    **pages.DEVICE,
    **pages.THREADS,
    "--models": ("model directories", []),
    "--lens": ("names", [ALL]),
    "--corpus": ("stories", "toy"),
    "--length": ("tokens of the prompt", 128),
    "--tokens": ("of text to fit on", TOKENS),
    "--d-model": ("width", 256),
    "--layers": ("blocks", 8),
    "--context": ("the longest text", 512),
    "--one": (argparse.SUPPRESS, False),
}


def main(words: list[str] | None = None) -> int:
    """Measures and prints the page, and saves it where asked; the exit code."""
    return pages.run("lenses", __doc__, FLAGS, measure, words, CorpusError)


def measure(options: argparse.Namespace) -> pages.Pages:
    """The whole page; with --one what one process takes, as JSON."""
    if options.one:
        yield json.dumps(look(options)), []
        return
    with tempfile.TemporaryDirectory() as directory:
        models = options.models or _untrained(Path(directory), options)
        lenses = [lens.name for lens in parse_lenses(options.lens)]
        names = [_name(path) for path in models]
        asked = {**{name: [name] for name in lenses}, "all in one process": lenses}
        rows = [
            [line, *(_measured(options, str(path), some) for path in models)]
            for line, some in asked.items()
        ]
    yield (
        f"# Lenses\n\n`{options.command}`\n\n"
        f"{pages.hardware(options.device, options.threads)}, float32."
        f" One prompt of {options.length} tokens, {options.tokens:,} tokens of text to fit and "
        "count on. CPU seconds, and the peak memory of the whole process.\n\n"
        f"{pages.table(['lens', *names], rows)}",
        [],
    )


def look(options: argparse.Namespace) -> dict[str, Any]:
    """Looks through the lenses of `--lens` at one checkpoint, here and now: its costs."""
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
            refused = str(refusal) if len(options.lens) == 1 else ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.device != "cpu":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    return {"refused": refused, "seconds": time.process_time() - used, "bytes": peak}


def _measured(options: argparse.Namespace, path: str, lenses: list[str]) -> str:
    """A cell of the table, by a process of its own."""
    print(f"{Path(path).name}: {' '.join(lenses)} ...", file=sys.stderr, flush=True)
    given = (f"--{name}={getattr(options, name)}" for name in ("length", "tokens", "corpus"))
    words = ("--one", "--models", path, *given, "--lens", *lenses)
    result = json.loads(pages.elsewhere("lenses", options, *words))
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


def _name(path: Path | str) -> str:
    checkpoint = open_checkpoint(path)
    about = checkpoint.provenance
    size = f"d {about['d_model']}, n {about['n_layers']}, V {checkpoint.config.vocab_size}"
    return f"{about['name']}, step {about['step']} ({size})"


if __name__ == "__main__":
    sys.exit(main())
