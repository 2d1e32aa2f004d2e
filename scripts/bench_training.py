"""How fast training is: ours beside other people's trainers, in one run on the same tokens.

    python -m scripts.bench_training --data DIR
    python -m scripts.bench_training --device cuda --seconds 400 --out gpu-check

Races: llama (against transformers' Trainer, eager and compiled), flat, expanded, parallel and
headed (against the reference's block under the same Trainer), kernels (ours with and without them,
CUDA only). Without --data all train on toy stories, packed first.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from arch import ModelConfig, describe
from scripts import pages
from scripts.baselines import Training, our_run, trainer_run
from scripts.pages import BenchmarkError, By, group
from scripts.turns import Entrant, end, race
from tokenizer import CorpusError, PackedData, open_corpus, pack, train_tokenizer
from train.settings import RunError
from train.speed import peak_flops

TOGETHER = {"cpu": 3, "cuda": 12}  # contenders that exist at once
STORIES = 16000  # of the toy corpus: 3.6 M tokens
OURS = "python -m train"
TRAINER = "transformers' Trainer"
REFERENCE = "the reference under Trainer"
COMPILED = ", compiled"
OFF = OURS + ", kernels off"
MIXERS = {
    "flat": "flat",
    "expanded": "expanded(factor=1)",  # as the reference trains it
    "parallel": "parallel(branches=2)",
    "headed": "headed(heads=4)",
}
LLAMA: dict[str, Any] = {
    "mixers": ("attention(heads=4)",),
    "channel_mixer": "swiglu",
    "norm": "rmsnorm",
}
KERNELS = ((512, 512), (512, 2048), (256, 2048))  # width and length
RACES = ("llama", "flat", "kernels", *list(MIXERS)[1:])
FLAGS = {
    **pages.DEVICE,
    **pages.THREADS,
    "--only": ("races", [*RACES], RACES),
    "--eager": ("leave out the compiled contenders", False),
    "--data": ("packed data, of 4096 tokens; default: toy stories", None),
    "--seconds": ("in all", By(900.0, 400.0)),
    "--widths": ("d_model", By([128, 256], [512])),
    "--layers": ("blocks", By(4, 8)),
    "--length": ("tokens in a window", By(128, 512)),
    "--batch": ("windows a step", By(16, 128)),
    "--turn": ("seconds of a turn", By(3.0, 1.0)),
    "--rounds": ("at most", By(15, 20)),
}


class Contender(NamedTuple):
    """Who trains a race's model, called with the turns, what to train, and `arguments`.

    Precisions are fp32, bf16 and fp16, the latter two under autocast. Unless compiled is asked for,
    ours is as its recipe has it: on a GPU compiled.
    """

    work: Callable[..., None]
    arguments: tuple[Any, ...]
    precision: str
    compiled: bool = False


class Race(NamedTuple):
    """One model, windows of its context a step, and the contenders by name, ours first."""

    name: str
    model: ModelConfig
    batch: int
    contenders: dict[str, Contender]

    @property
    def size(self) -> str:
        """In words."""
        m = self.model
        return (
            f"d={m.d_model} n={m.n_layers} T={m.context}, {self.batch} windows a step,"
            f" feed-forward {m.hidden_width}"
        )


def main(words: list[str] | None = None) -> int:
    """Measures and writes the page; the exit code, 1 where a contender failed."""
    rows: list[dict[str, Any]] = []
    code = pages.run(
        "training", __doc__, FLAGS, lambda o: measure(o, rows), words, RunError, CorpusError
    )
    return code or int(any(row["failed"] for row in rows))


def races(options: argparse.Namespace, vocab_size: int) -> Iterator[Race]:
    """What to run on data of so many tokens, the most important first."""
    cuda = options.device == "cuda"

    def model(width: int, length: int, **more: Any) -> ModelConfig:
        sizes = {"vocab_size": vocab_size, "context": length, "n_layers": options.layers}
        return ModelConfig(d_model=width, **sizes, **more)

    for name in options.only:
        if name == "kernels":
            for width, length in KERNELS if cuda else ():
                batch = max(1, options.batch * options.length // length)
                on, off = (
                    Contender(our_run, ("flat", kernels), "bf16") for kernels in (True, False)
                )
                yield Race("flat, kernels", model(width, length), batch, {OURS: on, OFF: off})
            continue
        for width in options.widths:
            if name == "llama":
                more = {"d_ff": 4 * width if cuda else width * 11 // 4, **LLAMA}
            else:
                more = {"mixers": (MIXERS[name],)}
            entered = _contenders(name, cuda)
            if options.eager:
                entered = {k: v for k, v in entered.items() if not v.compiled}
            yield Race(name, model(width, options.length, **more), options.batch, entered)


def _contenders(name: str, cuda: bool) -> dict[str, Contender]:
    recipe = "llama" if name == "llama" else "flat"
    precision = "bf16" if cuda else "fp32"
    entered = {OURS: Contender(our_run, (recipe if cuda else f"{recipe}-small",), precision)}
    if not cuda:
        entered[OURS + COMPILED] = Contender(our_run, (f"{recipe}-small",), precision, True)
    peer = TRAINER if name == "llama" else REFERENCE
    if cuda and name != "llama":
        precision = "fp16"  # as it is published
    entered[peer] = Contender(trainer_run, (name,), precision)
    entered[peer + COMPILED] = Contender(trainer_run, (name,), precision, True)
    return entered


def measure(options: argparse.Namespace, rows: list[dict[str, Any]]) -> pages.Pages:
    """Runs the races, filling in the rows; yields the page after each group of them.

    Raises:
        CorpusError, BenchmarkError: the data cannot be read, or there was no time at all.
    """
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="bench-training-") as name:
        folder = Path(name)
        data = PackedData(options.data or _toy(folder))
        peak = _peak(options)
        groups: list[list[Race]] = [[]]
        for one in races(options, data.meta["vocab_size"]):
            together = sum(len(each.contenders) for each in [*groups[-1], one])
            if groups[-1] and together > TOGETHER[options.device]:
                groups.append([])
            groups[-1].append(one)
        if not groups[0]:
            raise BenchmarkError("--only kernels: needs --device cuda")
        left_out: list[str] = []
        for number, some in enumerate(groups):
            remaining = deadline - time.monotonic()
            if remaining > 0:
                until = time.monotonic() + remaining / (len(groups) - number)
                rows += _run(some, data.path, folder / str(number), until, options)
            else:
                left_out += [f"{one.name}: {one.size}" for one in some]
            yield training_page(rows, left_out, options, peak), rows


def _run(
    some: list[Race], data: Path, folder: Path, until: float, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """The rows of races that take place together."""
    entrants: list[Entrant] = []
    try:
        for one in some:
            print(f"{one.name}: {one.size} ...", file=sys.stderr, flush=True)
            for contender in one.contenders.values():
                place = folder / str(len(entrants))
                place.mkdir(parents=True)
                about = (options.device, contender.precision, contender.compiled, data, place)
                start = (options.device, options.threads, place / "log", contender.work)
                work = Training(one.model, one.batch, *about)
                entrants.append(Entrant(*start, work, *contender.arguments))
        race(entrants, options.turn, until, (min(3, options.rounds), options.rounds))
    finally:
        end(entrants)
    order = iter(entrants)
    return [row for one in some for row in figures(one, [next(order) for _ in one.contenders])]


def figures(one: Race, entrants: list[Entrant]) -> Iterator[dict[str, Any]]:
    """The row of each contender: tokens and FLOP/s are medians over its turns, ratios over rounds.

    A ratio is our tokens a second over its, by the clock, and by processor time as `ratio_work`.
    """
    flops = describe(one.model).cost.training_flops
    ours = entrants[0].readings
    for (name, contender), entrant in zip(one.contenders.items(), entrants, strict=True):
        row: dict[str, Any] = dict.fromkeys(FIELDS, 0.0)
        row |= {"race": one.name, "size": one.size, "contender": name}
        row |= {"precision": contender.precision, "failed": entrant.failed}
        if entrant.failed is not None or not entrant.readings:
            yield row | {"failed": entrant.failed or "no turn was timed"}
            continue
        speeds = [one.batch * one.model.context * t.steps / t.seconds for t in entrant.readings]
        row |= {"turns": len(speeds), "memory": max(turn.memory for turn in entrant.readings)}
        row |= {"tokens": median(speeds), "least": min(speeds), "most": max(speeds)}
        row["flops"] = median(speeds) * flops
        pairs = [(a, b, b.steps / a.steps) for a, b in zip(entrant.readings, ours, strict=False)]
        if pairs:
            ratios = [a.seconds / b.seconds * steps for a, b, steps in pairs]
            row |= {"ratio": median(ratios), "ratio_least": min(ratios), "ratio_most": max(ratios)}
            row["ratio_work"] = median(a.work / b.work * steps for a, b, steps in pairs)
        yield row


FIELDS = (
    *("race", "size", "contender", "precision", "turns", "tokens", "least", "most", "memory"),
    *("flops", "ratio", "ratio_least", "ratio_most", "ratio_work", "failed"),
)


def training_page(
    rows: Sequence[dict[str, Any]],
    left_out: list[str],
    options: argparse.Namespace,
    peak: tuple[float, str],
) -> str:
    """The page in Markdown: rows of all races, ours first in each; the peak of the device."""
    cpu = options.device == "cpu"
    packages = ("triton", "lightning", "transformers", "accelerate")
    lines = [
        f"# Training on {'a CPU' if cpu else 'a GPU'}: tokens per second beside other trainers\n",
        f"Measured by `{options.command}`",
        f"on {pages.hardware(options.device, options.threads, *packages)}.\n",
        f"- **{OURS}**: a run as `python -m train fit` makes it, Lightning, memory-mapped data,"
        f" progress lines and all, on the recipe that comes with the project; "
        + ("eager unless it says compiled." if cpu else "compiled, as the recipes are, in bf16."),
        "- **transformers' Trainer**: its defaults, on its own `LlamaForCausalLM` of the same"
        " shape; `torch_compile=True` where it says compiled.",
        "- **the reference under Trainer**: its block restated (`scripts/baselines.py`):"
        " a `Conv1d` over the positions, masked in place in every forward pass; "
        + ("fp32." if cpu else "fp16 autocast, as it is published."),
        *([] if cpu else ["- **kernels off**: ours, with `tril(W) @ x + b` for every mixing."]),
        "\nAll train on the same packed stories, with fused AdamW and the gradient's norm clipped"
        " to 1, each in a process of its own. They took turns of some steps, round after round; the"
        " first steps of a turn do not count, nor does compiling. Tokens/s is the median over the"
        " turns with the least and the most; `ours / it` is our tokens/s over the line's, round by"
        " round. Memory is the most that "
        + ("the process held, its libraries included." if cpu else "PyTorch held of the GPU."),
        "\nTFLOP/s count the products that the model needs (`arch.costs`; of causal and triangular"
        " ones the lower half), three times for training. MFU is their share of"
        f" {peak[0] / 1e12:.4g} TFLOP/s, {peak[1]}.",
    ]
    for title, some in group(rows, lambda row: f"{row['race']}: {row['size']}").items():
        lines += [f"\n## {title}\n", _table(some, peak[0], cpu).rstrip()]
    if left_out:
        lines += ["\n## Not measured: no time left\n", *(f"- {name}" for name in left_out)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[dict[str, Any]], peak: float, cpu: bool) -> str:
    titles = ["", "tokens/s", "least to most", "peak memory, GiB", "TFLOP/s", "MFU"]
    titles += ["ours / it", "least to most", *(["by processor time"] if cpu else [])]
    lines = []
    for row in rows:
        cells = [row["contender"], f"failed: {row['failed']}"]
        if not row["failed"]:
            cells = [f"{row['contender']} ({row['precision']})", f"{row['tokens']:,.0f}"]
            cells += [f"{row['least']:,.0f} to {row['most']:,.0f}", f"{row['memory'] / 2**30:.2f}"]
            cells += [f"{row['flops'] / 1e12:.3g}", f"{row['flops'] / peak:.1%}"]
            if row["contender"] != OURS and row["ratio"]:
                cells += [f"{row['ratio']:.2f}"]
                cells += [f"{row['ratio_least']:.2f} to {row['ratio_most']:.2f}"]
                cells += [f"{row['ratio_work']:.2f}"] * cpu
            elif row["contender"] != OURS:
                cells.append("not measured")  # ours failed
        lines.append(cells + [""] * (len(titles) - len(cells)))
    return pages.table(titles, lines)


def _toy(folder: Path) -> Path:
    """Packed stories of the built-in corpus."""
    tokenizer = train_tokenizer(open_corpus("toy:4000", "train"), vocab_size=4096)
    tokenizer.save(str(folder / "tokenizer.json"))
    return pack(f"toy:{STORIES}", folder / "tokenizer.json", folder / "data").path


def _peak(options: argparse.Namespace) -> tuple[float, str]:
    """FLOP/s of the device, and where that number comes from."""
    cuda = options.device == "cuda"
    if cuda and (stated := peak_flops(torch.device("cuda"), "bf16-mixed")):
        return stated, "the data sheet's for bf16"
    side, best = 8192 if cuda else 1024, float("inf")
    a = torch.randn(side, side, device=options.device).to(torch.bfloat16 if cuda else None)
    for _ in range(8):
        start = time.perf_counter()
        product = a @ a
        product[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best, f"reached here in a product of two {side}-square matrices"


if __name__ == "__main__":
    sys.exit(main())
