"""A first look at a GPU, in five minutes: are the kernels right, and what are they worth in `fit`?

    python -m scripts.bench.quick --out gpu-check

Four parts: the masked convolution in bfloat16 against dense products in float64; `python -m train
fit --config flat` on toy stories by Triton kernels, by compiled dense products and by eager ones;
the test that a training step never waits for the device; one prompt that `eval.invert` recovers.

The rule, written before anything was measured: Triton stays the default for a device where it gives
at least 3 % tokens/s of `fit` at T = 512, or 8 % at 2,048 (one of the two is enough); dense becomes
it otherwise. Until a device was measured, Triton is the default in half precision on every NVIDIA
GPU from sm_80 on. `fit` is compiled by default, so what Triton gives is over the faster dense way.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import eval as evals
from arch import LanguageModel, ModelConfig, save_model
from arch.kernels.masked_conv import implementation, masked_convolution
from eval.models.checkpoint import open_checkpoint
from scripts.bench import shared as bench
from scripts.bench.baselines import Training, endless, train_in_turns
from scripts.bench.kernels import DENSE, Form
from scripts.bench.training import Contender, Race, pack_toy, run_race
from scripts.bench.turns import Turns
from tokenizer import CorpusError
from train.settings import RunError

RULE = {512: 0.03, 2048: 0.08}
"""By T, what Triton has to give of dense tokens/s, at least; one of them is enough."""
TRITON = "Triton kernels"
HALF, TEXT, ROOT = torch.bfloat16, "The dog was sad.", Path(__file__).parents[2]
WAITS = [sys.executable, "-m", "pytest", "-m", "gpu", "-W", "default", "--no-showlocals"]
WAITS += ["tests/train/steps/test_speed.py::test_a_step_never_waits_for_the_device"]
FIELDS = ("part", "what", "T", "tokens/s", "least", "most", "gain", "memory, GiB", "error")
FIELDS += ("error of dense", "result")
Row = dict[str, Any]


def main(words: list[str] | None = None) -> int:
    """Measures and writes the page; the exit code, 1 where something is not as it should be."""
    parser = bench.parser(__doc__, device="cuda")
    add, rows = parser.add_argument, list[Row]()
    add("--lengths", type=bench.natural, nargs="+", default=[*RULE], help="T; 512 and 2048")
    add("--tokens", type=bench.natural, default=32768, help="of a step (%(default)s)")
    add("--seconds", type=float, default=260.0, help="in all, about (%(default)s)")
    parser.set_defaults(turn=0.5, rounds=20)  # seconds; at most
    work, errors = partial(measure, rows=rows), (evals.RequestError, RunError, CorpusError)
    code = bench.run("quick", bench.parse(parser, words), work, *errors, stem="quick")
    return code or int(any(not entry["result"].startswith("ok") for entry in rows))


def measure(options: argparse.Namespace, rows: list[Row]) -> bench.Pages:
    """Fills in the rows; yields the page after each part."""
    deadline, device = time.monotonic() + options.seconds, torch.device(options.device)
    with tempfile.TemporaryDirectory(prefix="bench-quick-") as name:
        folder, log = Path(name), Path(name, "log")
        with log.open("w") as to, subprocess.Popen(WAITS, cwd=ROOT, stdout=to, stderr=to) as test:
            for length in options.lengths:
                rows += kernel_errors(length, device)
            data = pack_toy(folder)
            rows.append(inverted(folder, device))
            yield quick_page(rows, options), rows
            for number, length in enumerate(options.lengths):
                now = time.monotonic()
                until = now + (deadline - now) / (len(options.lengths) - number)
                rows += fitted(length, data, folder / str(length), until, options, test)
                yield quick_page(rows, options), rows
        rows.append(waited(test.returncode, log.read_text(encoding="utf-8")))
        yield quick_page(rows, options), rows


def row(part: str, what: str, result: str, **figures: Any) -> Row:
    """A row; `result` begins with ok, or says what is wrong."""
    return dict.fromkeys(FIELDS) | {"part": part, "what": what, "result": result} | figures


def kernel_errors(length: int, device: torch.device, width: int = 512) -> Iterator[Row]:
    """Errors of y, dx and dw in bfloat16, by float64's norms: at most twice those of PyTorch's."""
    name, why = implementation(device, HALF)
    x, slope = torch.randn(2, 4, length, width, device=device, dtype=HALF)
    w = (torch.randn(length, length, device=device) / length**0.5).to(HALF)

    def gradients(form: Form, *operands: torch.Tensor) -> list[torch.Tensor]:
        of = [operand.detach().requires_grad_() for operand in operands]
        y = form(*of)
        return [y.detach(), *torch.autograd.grad(y, of, slope.to(y.dtype))]

    dense = DENSE["tril(W) @ x"]
    ours, theirs = gradients(masked_convolution, x, w.float()), gradients(dense, x, w)
    exact = gradients(dense, x.double(), w.double())
    for what, own, other, true in zip(("y", "dx", "dw"), ours, theirs, exact, strict=True):
        error, its = (float((a.double() - true).norm() / true.norm()) for a in (own, other))
        right = error <= 2 * max(its, torch.finfo(HALF).eps / 2)
        figures = {"T": length, "error": error, "error of dense": its}
        yield row("kernels", what, f"{'ok' if right else 'wrong'}: {name}, {why}", **figures)


def fit_way(turns: Turns, work: Training, kernels: str) -> None:
    """Trains as `python -m train fit --config flat` does, by some kernels, compiled or eager."""
    os.environ["REMNANT_KERNELS"] = kernels
    length = work.model.context
    sizes = {"model.context": length, "batch.size": work.batch, "batch.micro": work.batch}
    more = {"compile": str(work.compiled).lower(), "validate_tokens": length}
    train_in_turns(turns, endless("flat", work.data, work.folder, work.device, **sizes, **more))


WAYS = {
    TRITON: Contender(fit_way, ("triton",), "auto", True),
    "compiled dense": Contender(fit_way, ("dense",), "auto", True),
    "eager dense": Contender(fit_way, ("dense",), "auto"),
}


def fitted(
    length: int, data: Path, folder: Path, until: float, options: argparse.Namespace, test: Any
) -> Iterator[Row]:
    """The rows of all ways; Triton is left out where it cannot run.

    They compile side by side, and take turns when the process `test` has ended. `gain` is Triton's
    tokens/s over the faster dense way's less 1, round by round.
    """
    name, why = implementation(torch.device(options.device), HALF)
    ways = {way: made for way, made in WAYS.items() if made.arguments[0] in (name, "dense")}
    if TRITON not in ways:
        yield row("fit", TRITON, f"ok: left out, {why}", T=length)
    model = endless("flat", data, folder, options.device, **{"model.context": length}).model
    race = Race("flat", model, max(1, options.tokens // length), ways)
    found = run_race(race, data, folder, until, options, fewest=14, ready=test.wait)
    ratios = [entry["ratio"] for entry in found if entry["contender"] != TRITON and entry["ratio"]]
    for entry in found:
        way, failed = entry["contender"], entry["failed"]
        figures = {"tokens/s": entry["tokens"], "least": entry["least"], "most": entry["most"]}
        figures["memory, GiB"] = entry["memory"] / 2**30
        figures |= {"gain": min(ratios) - 1} if way == TRITON and ratios else {}
        result = f"failed: {failed}" if failed else f"ok: {entry['turns']} turns"
        yield row("fit", way, result, T=length, **({} if failed else figures))


def waited(code: int, said: str) -> Row:
    """How the test went: skipped is not passed."""
    last = said.strip().rpartition("\n")[2]
    passed = code == 0 and re.match(r"\d+ passed(?!.*skipped)", last)
    print("" if passed else said, file=sys.stderr)
    result = f"{'ok' if passed else 'failed'}: {last}"
    return row("test", "a training step never waits for the device", result)


def inverted(folder: Path, device: torch.device) -> Row:
    """Whether the tokens of a prompt are recovered from the last layer of an untrained model."""
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig(4096, context=64, d_model=256, n_layers=4)).eval()
    tokenizer = (folder / "tokenizer.json").read_text()
    saved = save_model(folder / "model", model, tokenizer, {"name": "flat", "step": 0})
    request: Any = {"text": TEXT, "layers": "last", "solvers": "sweep", "corpus": "toy"}
    (found,) = evals.invert(open_checkpoint(saved, device), **request).rows
    result = f"ok: {TEXT}" if found["exact"] else f"wrong: {''.join(found['found_text'])}"
    return row("invert", "a prompt, from the last layer", result)


def verdict(rows: list[Row]) -> str:
    """What the rule says of the lengths measured so far."""
    gains = {entry["T"]: entry["gain"] for entry in rows if entry["gain"] is not None}
    said = [f"{gains[T]:+.1%} at T = {T:,}" if T in gains else f"T = {T:,} unknown" for T in RULE]
    enough = any(gains.get(length, -1.0) >= least for length, least in RULE.items())
    return f"**{'triton' if enough else 'dense'}** ({', '.join(said)})"


def quick_page(rows: list[Row], options: argparse.Namespace) -> str:
    """The page in Markdown."""
    rule = " ".join(str(__doc__).partition("measured: ")[2].partition(" `fit` is")[0].split())

    def shown(value: object) -> object:
        if isinstance(value, float):
            return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        return "" if value is None else value

    cells = [[shown(value) for value in entry.values()] for entry in rows]
    return (
        f"# A first look at a GPU\n\nMeasured by `{options.command}`\n"
        f"on {bench.hardware(options, 'triton', 'lightning')}.\n\n"
        f"{rule}\n\nThe verdict: {verdict(rows)}.\n\n{bench.table(FIELDS, cells)}"
    )


if __name__ == "__main__":
    sys.exit(main())
