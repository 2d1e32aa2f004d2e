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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel, ModelConfig, ModelError, export_transformers, generate
from scripts import pages
from scripts.pages import BenchmarkError, Rows, natural

MIXERS = (
    "flat",
    "expanded(factor=2)",
    "parallel(branches=2, activation=gelu)",
    "headed(heads=4)",
    "kernel(size=4)",
    "toeplitz",
    "softmax",
    "attention(heads=4)",
)
Decode = Callable[[Tensor, int], Tensor]


def main(words: list[str] | None = None) -> int:
    """Measures and prints the table, and saves it where asked; the exit code."""
    parser = pages.parser(__doc__, devices=False)
    parser.add_argument("--d-model", type=natural, default=256, help="width")
    parser.add_argument("--layers", type=natural, default=4, help="blocks")
    parser.add_argument("--context", type=natural, default=512, help="the longest text")
    parser.add_argument("--batch", type=natural, default=1, help="texts at once")
    parser.add_argument("--new", type=natural, default=32, help="tokens timed after each prompt")
    parser.add_argument(
        "--repeats", type=natural, default=5, help="runs, of which the fastest counts"
    )
    words = sys.argv[1:] if words is None else words
    options = parser.parse_args(words)
    most = 7 * options.context // 8 - 1  # the longer prompt is to be longer than the shorter
    if options.context < 8 or options.new >= most:
        parser.error(f"--new is {options.new}; with --context {options.context}, less than {most}")
    options.command, options.threads = pages.command("scripts.bench_generate", words), 1
    return pages.run("generate", options, measure, ModelError)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Rows]]:
    """The whole page, measured."""
    lengths = (options.context // 8, options.context - options.new - 1)
    models = {mixer: make_model(mixer, options) for mixer in MIXERS}  # before any takes its time
    rows = []
    for mixer, model in models.items():
        ways: dict[str, Decode] = {
            "remembered": lambda tokens, new, m=model: generate(m, tokens, new, temperature=0),
            "recomputed": lambda tokens, new, m=model: recompute(m, tokens, new),
        }
        if mixer.startswith("attention"):
            ways["transformers"] = transformers_decode(model)
        agree(ways, lengths[0], options)
        rows.append((mixer, {at: time_ways(ways, at, options) for at in lengths}))
        print(mixer, rows[-1][1], file=sys.stderr)
    yield render(rows, lengths, options), []


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


def agree(ways: dict[str, Decode], length: int, options: argparse.Namespace) -> None:
    """Warms every way up, and makes sure that all give one text."""
    tokens = prompt(length, options)
    texts = [way(tokens, options.new) for way in ways.values()]
    if not all(torch.equal(text, texts[0]) for text in texts):
        raise BenchmarkError("the ways of generating do not give the same text")


def time_ways(
    ways: dict[str, Decode], length: int, options: argparse.Namespace
) -> dict[str, float]:
    """Seconds per new token of each way, after a prompt of `length`."""
    tokens, times = prompt(length, options), {name: ([], []) for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            several, one = times[name]
            several.append(seconds(lambda way=way: way(tokens, options.new + 1)))
            one.append(seconds(lambda way=way: way(tokens, 1)))
    return {name: (min(several) - min(one)) / options.new for name, (several, one) in times.items()}


def prompt(length: int, options: argparse.Namespace) -> Tensor:
    """Random tokens, `(batch, length)`."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(4096, (options.batch, length), generator=generator)


def seconds(run: Callable[[], object]) -> float:
    """The processor's time that a call takes."""
    started = time.process_time()
    run()
    return time.process_time() - started


def render(
    rows: list[tuple[str, dict[int, dict[str, float]]]],
    lengths: tuple[int, int],
    options: argparse.Namespace,
) -> str:
    """The page as Markdown."""
    short, long = lengths
    lines = [
        "# Generation on a CPU: the time of a new token",
        "",
        f"{pages.hardware('cpu', 1, 'transformers')}; float32, batch {options.batch}, V = 4096, "
        f"D = {options.d_model}, {options.layers} blocks (RMSNorm, SwiGLU), context "
        f"{options.context}.",
        "",
        f"```sh\n{options.command}\n```",
        "",
        f"Milliseconds of processor time for a token, after {short} and after {long} tokens; the "
        f"fastest of {options.repeats} runs. Ratio: recomputed by remembered, after {long}.",
        "",
        *pages.markdown_table(
            ["mixer", f"remembered, {short}", long, f"recomputed, {short}", long, "ratio"],
            [[mixer, *_cells(times, lengths)] for mixer, times in rows],
        ),
    ]
    for mixer, times in rows:
        if "transformers" in times[long]:
            them = [1000 * times[at]["transformers"] for at in lengths]
            ours = [1000 * times[at]["remembered"] for at in lengths]
            lines += [
                "",
                f"`{mixer}` with the same weights in transformers, `generate` with its cache: "
                f"{them[0]:.2f} and {them[1]:.2f} ms, "
                f"{them[0] / ours[0]:.1f} and {them[1] / ours[1]:.1f} times ours. "
                "Both give the same text.",
            ]
    return "\n".join(lines) + "\n"


def _cells(times: dict[int, dict[str, float]], lengths: tuple[int, int]) -> list[str]:
    cells = [1000 * times[at][way] for way in ("remembered", "recomputed") for at in lengths]
    return [*(f"{cell:.2f}" for cell in cells), f"{cells[3] / cells[1]:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
