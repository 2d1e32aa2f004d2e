"""How fast training is: ours beside other people's trainers, in one run on the same tokens.

    python -m scripts.bench.training --data DIR
    python -m scripts.bench.training --device cuda --seconds 400 --out gpu-check

Races: llama (against transformers' Trainer, eager and compiled) and flat (against the reference's
block under the same Trainer). Without --data all train on toy stories, packed first.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from arch import ModelConfig, describe
from scripts.bench import shared as bench
from scripts.bench.baselines import Training, our_run, trainer_run
from scripts.bench.turns import Entrant, race
from tokenizer import CorpusError, PackedData, open_corpus, pack, train_tokenizer
from train.settings import RunError

STORIES = 16000
"""Of the toy corpus: 3.6 M tokens."""
OURS = "python -m train"
PEERS = {"llama": "transformers' Trainer", "flat": "the reference under Trainer"}
COMPILED = ", compiled"
KEPT = ", freed memory kept"
LLAMA: dict[str, Any] = {
    "mixers": ("attention(heads=4)",),
    "channel_mixer": "swiglu",
    "norm": "rmsnorm",
}
ABOUT = """\
- **python -m train**: a run as `python -m train fit` makes it, Lightning, packed data,
  progress lines and all, on the recipe that comes with the project; on a GPU compiled, in bf16.
- **transformers' Trainer**: its defaults, on its own `LlamaForCausalLM` of the same shape;
  `torch_compile=True` where it says compiled.
- **the reference under Trainer**: its block restated (`scripts/bench/baselines.py`): a `Conv1d`
  over the positions, masked in place in every forward pass; on a GPU in fp16, as it is published.
- **freed memory kept**: it is started as our commands start themselves (`arch.kernels.process`);
  else as it is.

All train on the same packed stories, with fused AdamW and the gradient's norm clipped to 1, each in
a process of its own. They took turns of some steps, round after round; the first steps of a turn do
not count, nor does compiling. Tokens/s is the median over the turns with the least and the most;
`ours / it` is our tokens/s over the line's, round by round. Memory is the most that the process
held, its libraries included, or PyTorch of a GPU. TFLOP/s count the products that the model needs
(`arch.costs`; of causal and triangular ones the lower half), three times for training."""


class Contender(NamedTuple):
    """Who trains a race's model, called with the turns, what to train, and `arguments`.

    Precisions are fp32, bf16 and fp16, the latter two under autocast. Unless compiled is asked for,
    ours is as its recipe has it: on a GPU compiled.
    """

    work: Callable[..., None]
    arguments: tuple[Any, ...]
    precision: str
    compiled: bool = False
    keeps_memory: bool = False
    """Whether the process keeps freed memory, as commands of ours do (`arch.kernels.process`)."""


class Race(NamedTuple):
    """One model, windows of its context a step, and the contenders by name, ours first."""

    name: str
    model: ModelConfig
    batch: int
    contenders: dict[str, Contender]

    @property
    def size(self) -> str:
        """The model's sizes in words."""
        m = self.model
        return (
            f"d={m.d_model} n={m.n_layers} T={m.context}, {self.batch} windows a step,"
            f" feed-forward {m.hidden_width}"
        )


def main(words: list[str] | None = None) -> int:
    """Measures and writes the page; the exit code, 1 where a contender failed."""
    rows: list[dict[str, Any]] = []
    options = read_flags(words)
    code = bench.run("training", options, lambda o: measure(o, rows), RunError, CorpusError)
    return code or int(any(row["failed"] for row in rows))


def read_flags(words: list[str] | None) -> argparse.Namespace:
    """Reads the flags of a race."""
    parser, natural = bench.parser(__doc__), bench.natural
    add = parser.add_argument
    add("--only", nargs="+", choices=[*PEERS], default=[*PEERS], help="races")
    add("--eager", action="store_true", help="leave out the compiled contenders")
    add("--data", help="packed data, of 4096 tokens; toy stories unless given")
    add("--seconds", type=float, help="in all; 900, on CUDA 400")
    add("--widths", type=natural, nargs="+", help="d_model; 128 and 256, on CUDA 512")
    add("--layers", type=natural, help="blocks; 4, on CUDA 8")
    add("--length", type=natural, help="tokens in a window; 128, on CUDA 512")
    add("--batch", type=natural, help="windows a step; 16, on CUDA 128")
    add("--turn", type=float, help="seconds of a turn; 3, on CUDA 1")
    add("--rounds", type=natural, help="at most; 15, on CUDA 20")
    sizes = {"widths": ([128, 256], [512]), "layers": (4, 8), "length": (128, 512)}
    times = {"seconds": (900.0, 400.0), "turn": (3.0, 1.0), "rounds": (15, 20)}
    return bench.parse(parser, words, batch=(16, 128), **sizes, **times)


def races(options: argparse.Namespace, vocab_size: int) -> Iterator[Race]:
    """What to run on data of so many tokens."""
    cuda = options.device == "cuda"
    for name in options.only:
        recipe, precision = (name, "bf16") if cuda else (f"{name}-small", "fp32")
        theirs = "fp16" if cuda and name == "flat" else precision  # as it is published
        entered = {OURS: Contender(our_run, (recipe,), precision, keeps_memory=True)}
        if not (cuda or options.eager):
            entered[OURS + COMPILED] = Contender(our_run, (recipe,), precision, True, True)
        entered[PEERS[name]] = Contender(trainer_run, (name,), theirs)
        if not cuda:
            entered[PEERS[name] + KEPT] = Contender(trainer_run, (name,), theirs, keeps_memory=True)
        if not options.eager:
            entered[PEERS[name] + COMPILED] = Contender(trainer_run, (name,), theirs, True)
        for width in options.widths:
            more = {"d_ff": 4 * width if cuda else width * 11 // 4, **LLAMA}
            sizes = {"context": options.length, "d_model": width, "n_layers": options.layers}
            model = ModelConfig(vocab_size, **sizes, **(more if name == "llama" else {}))
            yield Race(name, model, options.batch, entered)


def measure(options: argparse.Namespace, rows: list[dict[str, Any]]) -> bench.Pages:
    """Runs the races, filling in the rows; yields the page after each of them.

    Raises:
        CorpusError: the data cannot be read.
    """
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="bench-training-") as name:
        folder = Path(name)
        data = PackedData(options.data or pack_toy(folder))
        left_out: list[str] = []
        planned = [*races(options, data.meta["vocab_size"])]
        for number, race in enumerate(planned):
            remaining = deadline - time.monotonic()
            if remaining > 0:
                until = time.monotonic() + remaining / (len(planned) - number)
                rows += run_race(race, data.path, folder / str(number), until, options)
            else:
                left_out.append(f"{race.name}: {race.size}")
            yield training_page(rows, left_out, options), rows


def run_race(
    contest: Race, data: Path, folder: Path, until: float, options: argparse.Namespace, **more: Any
) -> list[dict[str, Any]]:
    """The rows of a race on packed data, within `folder`; `more` is for `turns.race`."""
    print(f"{contest.name}: {contest.size} ...", file=sys.stderr, flush=True)
    entrants: list[Entrant] = []
    try:
        for number, contender in enumerate(contest.contenders.values()):
            directory = folder / str(number)
            directory.mkdir(parents=True)
            about = (options.device, contender.precision, contender.compiled, data, directory)
            start = (options.device, options.threads, directory / "log", contender.work)
            work = Training(contest.model, contest.batch, *about)
            # where a user chose, none of ours is made
            chosen = {} if contender.keeps_memory else {"GLIBC_TUNABLES": ""}
            entrants.append(Entrant(*start, work, *contender.arguments, variables=chosen))
        race(entrants, options.turn, until, (min(3, options.rounds), options.rounds), **more)
    finally:
        for entrant in entrants:
            entrant.end()
    return [*figures(contest, entrants)]


def figures(contest: Race, entrants: list[Entrant]) -> Iterator[dict[str, Any]]:
    """The row of each contender: tokens and FLOP/s are medians over its turns, ratios over rounds.

    A ratio is our tokens a second over its, by the clock, and by processor time as `ratio_work`.
    """
    flops = describe(contest.model).cost.training_flops
    ours = entrants[0].readings
    for (name, contender), entrant in zip(contest.contenders.items(), entrants, strict=True):
        row: dict[str, Any] = dict.fromkeys(FIELDS, 0.0)
        row |= {"race": contest.name, "size": contest.size, "contender": name}
        row |= {"precision": contender.precision, "failed": entrant.failed}
        if entrant.failed is not None or not entrant.readings:
            yield row | {"failed": entrant.failed or "no turn was timed"}
            continue
        tokens = contest.batch * contest.model.context
        speeds = [tokens * turn.steps / turn.seconds for turn in entrant.readings]
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
TITLES = ("", "tokens/s", "least to most", "peak memory, GiB", "TFLOP/s", "ours / it")
TITLES += ("least to most", "by processor time")


def training_page(
    rows: Sequence[dict[str, Any]], left_out: list[str], options: argparse.Namespace
) -> str:
    """The page in Markdown: rows of all races, ours first in each."""
    where = "a CPU" if options.device == "cpu" else "a GPU"
    packages = ("triton", "lightning", "transformers", "accelerate")
    lines = [
        f"# Training on {where}: tokens per second beside other trainers\n",
        f"Measured by `{options.command}`",
        f"on {bench.hardware(options, *packages)}.\n\n{ABOUT}",
    ]
    for (name, size), group in groupby(rows, lambda row: (row["race"], row["size"])):
        lines.append(f"\n## {name}: {size}\n")
        lines.append(bench.table(TITLES, [[*_cells(row), *[""] * 8][:8] for row in group]).rstrip())
    if left_out:
        lines += ["\n## Not measured: no time left\n", *(f"- {name}" for name in left_out)]
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    if row["failed"]:
        return [row["contender"], f"failed: {row['failed']}"]
    cells = [f"{row['contender']} ({row['precision']})", f"{row['tokens']:,.0f}"]
    cells += [f"{row['least']:,.0f} to {row['most']:,.0f}", f"{row['memory'] / 2**30:.2f}"]
    cells.append(f"{row['flops'] / 1e12:.3g}")
    if row["contender"] == OURS or not row["ratio"]:
        return cells
    limits = f"{row['ratio_least']:.2f} to {row['ratio_most']:.2f}"
    return [*cells, f"{row['ratio']:.2f}", limits, f"{row['ratio_work']:.2f}"]


def pack_toy(folder: Path) -> Path:
    """Packs `STORIES` of the built-in corpus, of 4096 tokens, into a folder; where they are."""
    tokenizer = train_tokenizer(open_corpus("toy:4000", "train"), vocab_size=4096)
    tokenizer.save(str(folder / "tokenizer.json"))
    return pack(f"toy:{STORIES}", folder / "tokenizer.json", folder / "data").path


if __name__ == "__main__":
    sys.exit(main())
