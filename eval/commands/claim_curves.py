"""Recovery against width, depth, layer, training step, channels, observed positions and noise.

What is asked stands in eval/claims/curves.yaml. Untrained models are drawn from their seeds,
trained ones are looked for by their shape and step. What is answered already is not asked again.
"""

import argparse
import os
import sys
from pathlib import Path

from eval import shards
from eval.claims import curves
from eval.claims.curves_ask import Asker, tasks
from eval.claims.curves_page import markdown, write
from eval.claims.curves_records import load, records, store
from eval.claims.sources import Shelf
from eval.commands.options import device_of, positive
from eval.errors import RequestError
from eval.files import write_text
from eval.progress import track
from eval.results import Results, read_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--axis", action="append", metavar="NAME", help="one curve, several times; default: all"
    )
    parser.add_argument("--limit", type=positive, metavar="K", help="the first K models")
    parser.add_argument(
        "--models", type=Path, metavar="DIR", help="holds trained models, at any depth"
    )
    parser.add_argument("--corpus", default="toy", metavar="SOURCE", help="of the stories asked")
    parser.add_argument(
        "--out", default="results/curves", metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument("--store", metavar="FILE", help="write the records, a line each")
    parser.add_argument(
        "--records", metavar="FILE", help="what --store wrote: nothing is asked, only drawn"
    )
    parser.add_argument("--figures", metavar="DIR", help="write the figures, as SVG")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables")


def run(options: argparse.Namespace) -> None:
    """Asks what is not answered yet, then draws; with --records only draws."""
    plan = curves.plan()
    plan.points(options.axis)  # refuses what is no axis before anything is done
    if options.records:
        for flag in ("models", "limit", "store"):
            if getattr(options, flag):
                raise RequestError(f"--records: nothing is asked then; leave --{flag} out")
        if not (options.figures or options.markdown):
            raise RequestError("--records: nothing to make of them; give --figures or --markdown")
        _draw(options, load(options.records))
        return
    with shards.together():
        if shards.rank() == 0:
            Results(options.out).merge()
        shards.wait()
        _ask(options, plan)
        shards.wait()
        if shards.rank():
            return
        results = Results(options.out)
        results.merge()
    found, notes = records(plan, read_rows([results.path]))
    if options.store:
        store(options.store, found)
    if options.figures or options.markdown:
        _draw(options, found)
    print("\n".join([*notes, f"rows: {results.path}"]))


def _ask(options: argparse.Namespace, plan: curves.Plan) -> None:
    device = device_of(options.device)
    shelf = Shelf(Path(options.out), options.models)
    tokenizer = shelf.tokenizer
    asks = plan.points(options.axis)
    todo, missing = tasks(plan, asks, tokenizer.get_vocab_size(), options.models)
    if shards.rank() == 0:
        for line in missing:
            print(line, file=sys.stderr)
    mine = shards.share(todo[: options.limit])
    number = shards.rank() if shards.world() > 1 else None
    asker = Asker(Results(options.out, number), options.corpus, tokenizer, device)
    for _ in track(map(asker.ask, mine), [task.cost for task in mine], "models"):
        pass


def _draw(options: argparse.Namespace, found: list[dict[str, object]]) -> None:
    if options.axis:
        found = [r for r in found if r["axis"] in (curves.BASE, *options.axis)]
    if options.figures:
        for path in write(options.figures, found):
            print(path)
    if options.markdown:
        page = Path(options.markdown)
        beside = os.path.relpath(options.figures, page.parent) if options.figures else ""
        write_text(page, markdown(found, beside))
        print(page)
