"""Recovery against the channels shown and against noise, bisected where it crosses one half."""

import argparse
import io
import sys
from collections.abc import Callable, Hashable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from eval.commands.options import add_corpus, add_models, open_models, positive
from eval.errors import RequestError
from eval.inversion.curves import plan_curves, run_curves
from eval.inversion.methods import parse_methods
from eval.inversion.run import Runner
from eval.progress import track
from eval.results import Results, Row, read_rows
from eval.text import held_out_text, story_prompts

WIDTH = 150
CHANNELS = "Tokens recovered, %, by channels shown, [:, :, :c]; the cliff is the fewest for half."
NOISE = "Tokens recovered, %, by noise / root mean square; SNR50 is where half are, in dB."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser)
    add_corpus(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="results directory")
    parser.add_argument(
        "--layers", nargs="+", default=["last"], metavar="L", help="last (default), all, or numbers"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["sweep", "adam", "expected"],
        metavar="NAME",
        help="gradient methods, sweep, propose, and expected (noise alone); "
        "default: sweep adam expected",
    )
    parser.add_argument("--channels", action="store_true", help="the curve over channels alone")
    parser.add_argument("--noise", action="store_true", help="the curve over noise alone")
    parser.add_argument("--count", type=positive, default=8, help="story prompts")
    parser.add_argument("--length", type=positive, default=16, help="tokens of each prompt")


def run(options: argparse.Namespace) -> None:
    """Checks everything first, then traces curve by curve; what is there is not redone."""
    axes = [name for name in ("channels", "noise") if getattr(options, name)]
    axes = axes or ["channels", "noise"]
    layers, asked = _layers(options.layers), _methods(options.methods, axes)
    checkpoints = open_models(options)
    results = Results(options.out)
    curves, prompts, texts = [], {}, {}
    for checkpoint in checkpoints:
        context = checkpoint.config.context
        if options.length > context:
            raise RequestError(
                f"--length {options.length}: the context of {checkpoint.path} is {context}; "
                "give a shorter one"
            )
        text = held_out_text(checkpoint, options.corpus)
        own = story_prompts(text, options.count, options.length)
        name = checkpoint.provenance["name"]
        if prompts.setdefault(name, own) != own:
            raise RequestError(
                f"{checkpoint.path}: another model is named {name} too, and reads text otherwise; "
                "ask them apart"
            )
        texts[name] = text.background()
        curves += plan_curves(checkpoint, layers, axes, asked, own, results.keys)
    if not curves:
        print(f"{results.path}: every curve is there already", file=sys.stderr)
    work = run_curves(curves, Runner(prompts, texts), results)
    for _ in track(work, [curve.cost for curve in curves], "curves"):
        pass
    print(curve_tables(read_rows([results.directory])))
    print(f"\nrows: {results.path}\nnext: python -m eval report {options.out} --out page.html")


def curve_tables(rows: list[Row]) -> str:
    """The rows of kind "curve" as tables for a terminal, one for each axis."""
    curves = [row for row in rows if row.get("kind") == "curve"]
    parts = []
    for axis, title in (("channels", CHANNELS), ("noise", NOISE)):
        own = [row for row in curves if row["axis"] == axis]
        if own:
            parts += [title, _table(own, axis)]
    return "\n".join(parts)


def _table(curves: list[Row], axis: str) -> str:
    grid = sorted(set.intersection(*(set(row["values"]) for row in curves)))
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("model", "step", "layer", "method"):
        table.add_column(name, no_wrap=True)
    read = ["cliff", "asked beside"] if axis == "channels" else ["SNR50, dB", "noise"]
    for name in [*(f"{value:.3g}" for value in grid), *read]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in sorted(curves, key=_place):
        shares = dict(zip(row["values"], row["top1"], strict=True))
        cells = [f"{100 * shares[value]:.0f}" for value in grid]
        table.add_row(*map(str, _place(row)), *cells, *_CELLS[axis](row))
    out = io.StringIO()
    Console(file=out, width=WIDTH).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _place(row: Row) -> tuple[Hashable, ...]:
    about = row["checkpoint"]
    return about["name"], about["step"], row["site"]["layer"], row["method"]


def _channels(row: Row) -> list[str]:
    if row["value"] is None:
        return [f"more than {max(row['values'])}", ""]
    between = row["bracket"]
    return [
        f"{row['value']:.0f} ({_end(row['low'])} to {_end(row['high'])})",
        "" if between is None else f"{between[1]:.0f}",
    ]


def _noise(row: Row) -> list[str]:
    if row["value"] is None:
        return ["", f"more than {max(row['values']):g}"]
    if not row["value"]:
        return ["", "none is too much"]
    interval = f"({_end(row['snr50_low'])} to {_end(row['snr50_high'])})"
    return [f"{row['snr50']:.1f} {interval}", f"{row['value']:.3g}"]


_CELLS: dict[str, Callable[[Row], list[str]]] = {"channels": _channels, "noise": _noise}


def _end(value: float | None) -> str:
    """A limit; open where the curve does not reach it."""
    if value is None:
        return "open"
    return f"{value:.0f}" if isinstance(value, int) else f"{value:.1f}"


def _layers(words: list[str]) -> Any:
    if words in (["all"], ["last"]):
        return words[0]
    try:
        return tuple(dict.fromkeys(int(word) for word in words))
    except ValueError:
        raise RequestError(
            f"--layers {' '.join(words)}: must be last, all, or numbers, as in 0 4"
        ) from None


def _methods(names: list[str], axes: list[str]) -> dict[str, Any]:
    found = parse_methods(names)
    if "noise" not in axes and all(method.family == "prior" for method in found.values()):
        raise RequestError(
            f"--methods {' '.join(names)}: weighs a prior against noise, and --channels has none; "
            "add sweep or adam, or ask --noise"
        )
    return found
