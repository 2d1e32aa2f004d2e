"""Which story does a sentence belong to? Top-1 by hidden states, before and after a short fit."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eval.checkpoints import Checkpoint
from eval.commands.options import add_models, natural, open_models, positive
from eval.errors import RequestError
from eval.progress import track
from eval.results import Results, Row, read_rows, row_key
from eval.retrieval import POOLS, SENTENCES, Fit, Pairs, fit, nearer, states, story_pairs, top1
from eval.text import Use, held_out_text

LEAST = 32  # candidates; then doubled as long as there are stories


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="results directory")
    parser.add_argument(
        "--corpus",
        default="toy",
        metavar="SOURCE",
        help="sentences to be placed are from its held-out stories for evaluation, the fit is on "
        "those for fitting; other candidates are from both",
    )
    parser.add_argument(
        "--sentence", nargs="+", choices=SENTENCES, default=["last"], help="taken out of its story"
    )
    parser.add_argument("--queries", type=positive, default=1000, help="sentences, at most")
    parser.add_argument("--candidates", type=positive, default=8192, help="stories, at most")
    parser.add_argument("--pool", nargs="+", choices=POOLS, default=list(POOLS))
    fitting = parser.add_argument_group("fit of the whole model (InfoNCE)")
    fitting.add_argument("--fit-steps", type=natural, default=100, help="0: states as they are")
    fitting.add_argument("--fit-pairs", type=positive, default=4096, help="stories, at most")
    fitting.add_argument("--batch", type=positive, default=32, help="pairs of a step")
    fitting.add_argument("--rate", type=float, default=1e-3, help="the highest rate")
    fitting.add_argument("--temperature", type=float, default=0.05)
    fitting.add_argument("--seed", type=natural, default=0)


def run(options: argparse.Namespace) -> None:
    """Asks every checkpoint about every sentence; what is there is not redone."""
    for flag in ("rate", "temperature"):
        if not getattr(options, flag) > 0:
            raise RequestError(f"--{flag} {getattr(options, flag)}: it must be above 0")
    settings = Fit(
        options.fit_steps, options.batch, options.rate, options.temperature, options.seed
    )
    checkpoints = open_models(options)
    results = Results(options.out)
    tasks = [(c, s) for c in checkpoints for s in sorted(set(options.sentence))]
    for _ in track(_run_all(tasks, settings, options, results), [1.0] * len(tasks), "matching"):
        pass
    print(table([row for row in read_rows([results.directory]) if row.get("kind") == "retrieval"]))
    print(f"\nrows: {results.path}")


def _run_all(
    tasks: list[tuple[Checkpoint, str]],
    settings: Fit,
    options: argparse.Namespace,
    results: Results,
) -> Iterator[None]:
    for checkpoint, sentence in tasks:
        asked = {
            "corpus": options.corpus,
            "sentence": sentence,
            "limits": [options.queries, options.candidates, options.fit_pairs],
            "pools": sorted(set(options.pool)),
            "fit": asdict(settings),
        }
        done = row_key("retrieval", checkpoint.weights_sha256, checkpoint.control, asked)
        if done in results.keys:
            print(f"{checkpoint.path}, {sentence} sentences: there already", file=sys.stderr)
        else:
            rows = list(_rows(checkpoint, sentence, settings, options))
            # the last, so that a write cut short is taken up again
            keys = [*(row_key(done, i) for i in range(1, len(rows))), done]
            results.append(
                {
                    "key": key,
                    "kind": "retrieval",
                    "checkpoint": checkpoint.provenance,
                    **asked,
                    **row,
                }
                for key, row in zip(keys, rows, strict=True)
            )
        yield


def _rows(
    checkpoint: Checkpoint, sentence: str, settings: Fit, options: argparse.Namespace
) -> Iterator[Row]:
    own, others, fitted_on = _collect(checkpoint, sentence, options)
    stories, total = own.stories + others, len(own) + len(others)
    counts = [n for n in (LEAST << i for i in range(20)) if n <= min(total, options.candidates)]
    for pool in sorted(set(options.pool)):
        model = checkpoint.model
        at_sentences = states(model, own.sentences, pool)
        at_stories = states(model, stories, pool)
        readings: list[tuple[str, int, Tensor, Tensor]] = []
        for layer, (s, t) in enumerate(zip(at_sentences, at_stories, strict=True)):
            readings.append(("as it is", layer, s, t))
            readings.append(("centred", layer, s - s.mean(0), t - t.mean(0)))
        if settings.steps:
            model = fit(model, fitted_on, pool, settings)
            s, t = (states(model, texts, pool)[-1] for texts in (own.sentences, stories))
            readings.append(("fitted", len(model.blocks), s, t))
        for method, layer, s, t in readings:
            better = nearer(s, t)
            for n in counts:
                share = top1(better, total, n)
                yield {
                    "layer": layer,
                    "pool": pool,
                    "method": method,
                    "candidates": n,
                    "queries": len(own),
                    "top1": share.estimate,
                    "low": share.low,
                    "high": share.high,
                    "chance": 1 / n,
                }


def _collect(
    checkpoint: Checkpoint, sentence: str, options: argparse.Namespace
) -> tuple[Pairs, list[list[int]], Pairs]:
    """Pairs that are asked about, stories beside theirs, and pairs to fit on: no story twice."""

    text = held_out_text(checkpoint, options.corpus)

    def pairs(use: Use, count: int, unlike: Pairs | None = None) -> Pairs:
        return story_pairs(text, use, sentence, checkpoint.config.context, count, unlike)

    judged = pairs("evaluation", options.candidates)
    asked = min(len(judged), options.queries)
    if len(judged) < LEAST:
        raise RequestError(
            f"--corpus {options.corpus}: its held-out stories for evaluation give {len(judged)} "
            f"pairs; {LEAST} are needed at least; give more stories"
        )
    more = max(0, options.candidates - len(judged))
    others = pairs("fitting", options.fit_pairs + more, judged)
    to_fit = min(len(others), options.fit_pairs)
    return (
        Pairs(judged.sentences[:asked], judged.stories[:asked]),
        judged.stories[asked:] + others.stories[to_fit:],
        Pairs(others.sentences[:to_fit], others.stories[:to_fit]),
    )


def table(rows: list[Row]) -> str:
    """Top-1 by number of candidates, a line for each reading; of unfitted ones the best layer."""
    lines: dict[tuple, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        c = row["checkpoint"]
        place = (
            c["name"],
            c["step"],
            row["sentence"],
            row["method"],
            row["pool"],
            row["layer"],
            str(row["fit"]),
        )
        lines[place][row["candidates"]] = row
    best: dict[tuple, tuple] = {}
    for place, cells in lines.items():
        group, score = (*place[:5], place[6]), cells[min(cells)]["top1"]
        if group not in best or score > lines[best[group]][min(cells)]["top1"]:
            best[group] = place
    counts = sorted({n for cells in lines.values() for n in cells})
    shown = Table("model", "step", "sentence", "reading", "pool", "layer", box=box.SIMPLE)
    for n in counts:
        shown.add_column(f"{n}", justify="right")
    for place in best.values():
        cells = lines[place]
        shown.add_row(
            *map(str, place[:6]),
            *(
                f"{100 * cells[n]['top1']:.1f} "
                f"({100 * cells[n]['low']:.0f}-{100 * cells[n]['high']:.0f})"
                if n in cells
                else ""
                for n in counts
            ),
        )
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(shown)
    title = "Top-1 % by number of candidates (95 % interval over sentences); unfitted: best layer"
    return f"{title}\n{capture.get().rstrip()}"
