"""How long a new token takes: remembered prefix, full recomputation, transformers with its cache.

    python -m scripts.bench_generate --out docs/benchmarks

All figures of a table come from one run in one process, the ways taken in turn. Time is that of the
processor, on one thread, so that other work on the machine counts little. A token's time is the
difference between generating n + 1 tokens and one, divided by n: what the prompt takes is not in
it. Of several runs the fastest counts. Greedy decoding, float32.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel, ModelConfig, export_transformers, generate
from scripts import pages
from scripts.pages import BenchmarkError

MIXERS = (
    "flat",
    "expanded(factor=2)",
    "parallel(branches=2, activation=gelu)",
    "headed(heads=4)",
    "kernel(size=4)",
    "attention(heads=4)",
)
FLAGS = {
    "--d-model": ("width", 256),
    "--layers": ("blocks", 4),
    "--context": ("the longest text", 512),
    "--batch": ("texts at once", 1),
    "--new": ("tokens timed after each prompt", 32),
    "--repeats": ("runs, of which the fastest counts", 5),
}
Decode = Callable[[Tensor, int], Tensor]


def main(words: list[str] | None = None) -> int:
    """Measures and prints the table, and saves it where asked; the exit code."""
    return pages.run("generate", __doc__, FLAGS, measure, words)


def measure(options: argparse.Namespace) -> pages.Pages:
    """The whole page, measured."""
    most = 7 * options.context // 8 - 1  # the longer prompt is to be longer than the shorter
    if options.context < 8 or options.new >= most:
        raise BenchmarkError(
            f"--new is {options.new}; with --context {options.context}, less than {most}"
        )
    short, long = lengths = options.context // 8, options.context - options.new - 1
    models = {mixer: make_model(mixer, options) for mixer in MIXERS}  # before any takes its time
    rows, beside = [], ""
    for mixer, model in models.items():
        ways: dict[str, Decode] = {
            "remembered": lambda tokens, new, m=model: generate(m, tokens, new, temperature=0),
            "recomputed": lambda tokens, new, m=model: recompute(m, tokens, new),
        }
        if mixer.startswith("attention"):
            ways["transformers"] = transformers_decode(model)
        taken = [time_ways(ways, length, options) for length in lengths]
        ours, again = ([times[way] for times in taken] for way in list(ways)[:2])
        print(mixer, taken, file=sys.stderr)
        shown = [f"{ms:.2f}" for ms in (*ours, *again)]
        rows.append([mixer, *shown, f"{again[1] / ours[1]:.1f}"])
        if "transformers" in ways:
            them = [times["transformers"] for times in taken]
            beside += (
                f"\n`{mixer}` with the same weights in transformers, `generate` with its cache: "
                f"{them[0]:.2f} and {them[1]:.2f} ms, {them[0] / ours[0]:.1f} and "
                f"{them[1] / ours[1]:.1f} times ours. Both give the same text.\n"
            )
    titles = ["mixer", f"remembered, {short}", long, f"recomputed, {short}", long, "ratio"]
    yield (
        "# Generation on a CPU: the time of a new token\n\n"
        f"{pages.hardware('cpu', 1, 'transformers')}; float32, batch {options.batch}, V = 4096, "
        f"D = {options.d_model}, {options.layers} blocks (RMSNorm, SwiGLU), context "
        f"{options.context}.\n\n```sh\n{options.command}\n```\n\n"
        f"Milliseconds of processor time for a token, after {short} and after {long} tokens; the "
        f"fastest of {options.repeats} runs. Ratio: recomputed by remembered, after {long}.\n\n"
        f"{pages.table(titles, rows)}{beside}",
        [],
    )


def make_model(mixer: str, options: argparse.Namespace) -> LanguageModel:
    """A model that transformers could run too, where its mixer is attention."""
    torch.manual_seed(0)
    config = ModelConfig(
        context=options.context,
        d_model=options.d_model,
        n_layers=options.layers,
        mixers=(mixer,),
        channel_mixer="swiglu",
        norm="rmsnorm",
        embedding_std=1.0,
    )
    return LanguageModel(config).eval()


@torch.no_grad()
def recompute(model: LanguageModel, tokens: Tensor, new: int) -> Tensor:
    """Greedy decoding that remembers nothing; logits of the last position only."""
    for _ in range(new):
        hidden = model.hidden(model.embed(tokens), len(model.blocks))
        likeliest = model.logits(hidden[:, -1:]).argmax(dim=-1)
        tokens = torch.cat([tokens, likeliest], dim=1)
    return tokens


def transformers_decode(model: LanguageModel) -> Decode:
    """The same weights in transformers, generating with its cache."""
    from transformers import LlamaForCausalLM

    tokenizer = '{"added_tokens": [], "model": {"vocab": {}}}'
    with tempfile.TemporaryDirectory() as directory:
        path = export_transformers(Path(directory) / "model", model, tokenizer)
        llama: Any = LlamaForCausalLM.from_pretrained(path).eval()
    return lambda tokens, new: llama.generate(
        tokens, max_new_tokens=new, do_sample=False, use_cache=True, eos_token_id=None
    )


def time_ways(
    ways: dict[str, Decode], length: int, options: argparse.Namespace
) -> dict[str, float]:
    """Milliseconds per new token of each way, after a prompt of `length` random tokens.

    Raises:
        BenchmarkError: the ways do not all give one text.
    """
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4096, (options.batch, length), generator=generator)
    texts = [way(tokens, options.new) for way in ways.values()]  # warms up, too
    if not all(torch.equal(text, texts[0]) for text in texts):
        raise BenchmarkError("the ways of generating do not give the same text")

    def seconds(way: Decode, new: int) -> float:
        started = time.process_time()
        way(tokens, new)
        return time.process_time() - started

    times = {name: ([], []) for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            for kept, new in zip(times[name], (options.new + 1, 1), strict=True):
                kept.append(seconds(way, new))
    return {
        name: 1000 * (min(several) - min(one)) / options.new
        for name, (several, one) in times.items()
    }


if __name__ == "__main__":
    sys.exit(main())
