"""The claims of the sources, by number: what each says, asked anew, and what became of it."""

import argparse
import os
import sys
from pathlib import Path

from eval.claims.ask import Asker, Part, parts
from eval.claims.cells import details
from eval.claims.curves_page import markdown as draw
from eval.claims.curves_records import load as load_curves
from eval.claims.entries import PROTOCOLS, Claim
from eval.claims.evidence import Record, evidence, load, store
from eval.claims.findings import TEMPLATE, fill, readme
from eval.claims.findings_words import Known
from eval.claims.judge import Judgement, judge
from eval.claims.pages import CHANGED, markdown, terminal
from eval.claims.registry import GROUPS, choose, claims
from eval.claims.sources import PRECISIONS, Shelf, needs
from eval.commands import claim_curves
from eval.commands.options import device_of, positive
from eval.errors import RequestError
from eval.files import write_text
from eval.progress import track
from eval.results import ROWS, Results, read_rows

PLACE = "results/claims"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="list|show|run|table|curves"
    )
    listed = actions.add_parser("list", help="every claim in a line")
    listed.add_argument("--group", choices=GROUPS)
    shown = actions.add_parser("show", help="all that a claim asks")
    shown.add_argument("numbers", nargs="+", type=positive, metavar="N")
    shown.add_argument(
        "--records",
        metavar="FILE",
        help="what `table --store` wrote, for what was found; default: what is in " + PLACE,
    )
    ran = actions.add_parser("run", help="ask claims; goes on where it was stopped")
    ran.add_argument("numbers", nargs="*", type=positive, metavar="N", help="default: all")
    ran.add_argument("--group", choices=GROUPS)
    ran.add_argument("--limit", type=positive, metavar="K", help="the first K of them")
    ran.add_argument("--out", default=PLACE, metavar="DIR", help="default: %(default)s")
    ran.add_argument(
        "--models", type=Path, metavar="DIR", help="holds trained models, at any depth"
    )
    ran.add_argument("--model", metavar="DIR", help="weights of a pretrained model")
    ran.add_argument("--download", action="store_true", help="pretrained models, from the hub")
    ran.add_argument(
        "--any-size", action="store_true", help="take --model whatever its width and depth"
    )
    ran.add_argument("--precision", choices=PRECISIONS, help="of pretrained models")
    ran.add_argument(
        "--full-size", action="store_true", help="the sizes asked for on a CPU too, however long"
    )
    ran.add_argument("--corpus", default="toy", metavar="SOURCE", help="of the fair prompts")
    ran.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    table = actions.add_parser("table", help="the verdicts")
    table.add_argument("places", nargs="*", metavar="DIR", help=f"results; default: {PLACE}")
    table.add_argument("--records", metavar="FILE", help="what --store wrote, instead of results")
    table.add_argument("--store", metavar="FILE", help="write the records of evidence")
    table.add_argument("--markdown", metavar="FILE", help="write the page: text and all claims")
    table.add_argument(
        "--findings",
        default=TEMPLATE,
        metavar="FILE",
        help="template of the page's text, or none; default: this project's, whose assertions "
        "the records must bear out",
    )
    table.add_argument(
        "--curves", metavar="FILE", help="records of the curves, what `claims curves --store` wrote"
    )
    table.add_argument(
        "--figures", metavar="DIR", help="the page shows the curves' figures that lie there"
    )
    table.add_argument(
        "--readme", metavar="FILE", help="put the text's finding between this file's marks too"
    )
    table.add_argument("--group", choices=GROUPS)
    about = claim_curves.__doc__
    drawn = actions.add_parser("curves", help="recovery against seven things", description=about)
    claim_curves.add_arguments(drawn)


def run(options: argparse.Namespace) -> None:
    """Runs one action."""
    actions = {"list": _list, "show": _show, "run": _run, "table": _table}
    (actions | {"curves": claim_curves.run})[options.action](options)


def _list(options: argparse.Namespace) -> None:
    for claim in choose([], options.group):
        print(f"{claim.number:3} {claim.group:12} {claim.claim}. Expected: {claim.expected}")


def _show(options: argparse.Namespace) -> None:
    chosen = choose(options.numbers)
    records: list[Record] = []
    if options.records:
        records, _ = load(options.records, claims())
    elif (Path(PLACE) / ROWS).is_file():
        records, _ = evidence(read_rows([PLACE]), claims())
    for claim in chosen:
        found = judge(claim, records)
        answer = [f"  verdict: {found.verdict}{found.why and f': {found.why}'}"] if records else []
        lines = [*_lines(claim), *answer, *(f"    {line}" for line in details(found))]
        print("\n".join(lines) + "\n")


def _lines(claim: Claim) -> list[str]:
    lines = [
        f"claim {claim.number} ({claim.group}): {claim.claim}",
        f"  source: {claim.source}",
        f"  expected: {claim.expected}",
    ]
    for arm in claim.arms:
        models = arm.models
        own = " ".join(f"{name}={value}" for name, value in models.config.items())
        state = ", trained" if models.trained else ", untrained"
        less = {
            name: value for name, value in models.cpu.items() if value != models.config.get(name)
        }
        small = "; on a CPU" + "".join(f" {n}={v}" for n, v in less.items()) if less else ""
        about = f"{own}{state}{small}" if models.own else f"{needs(models)}, {models.weights}"
        site = f"lens {arm.lens}" if arm.lens else f"layer {arm.layer} {arm.part} {arm.slice}"
        without = f" without {' '.join(arm.without)}" if arm.without else ""
        lines.append(f"  {arm.name or 'asked'}: {about}; {site}{without}")
        for name in PROTOCOLS:
            if protocol := arm.protocol(name):
                lines.append(f"    {name}: {protocol}")
    lines += [f"  judged by: {criterion}" for criterion in claim.judge]
    lines += [f"  note: {claim.note}"] if claim.note else []
    lines += [f"  {CHANGED}: {claim.changed}"] if claim.changed else []
    return [*lines, f"  {claim.command}"]


def _run(options: argparse.Namespace) -> None:
    chosen = choose(options.numbers, options.group)[: options.limit]
    device = device_of(options.device)
    results = Results(options.out)
    shelf = Shelf(
        Path(options.out),
        options.models,
        options.model,
        options.download,
        options.any_size,
        options.precision,
        device,
        options.full_size or device.type == "cuda",
    )
    todo: list[Part] = []
    for claim in chosen:
        found, missing = parts(claim, shelf)
        todo += found
        for line in missing:
            print(line, file=sys.stderr)
    asker = Asker(results, options.corpus)
    for _ in track(map(asker.ask, todo), [1.0] * len(todo), "asking"):
        pass
    if not todo:
        raise RequestError("nothing to run: none of these claims' models is here; see above")
    records, notes = evidence(read_rows([results.path]), claims(), asker.settings)
    print(terminal([judge(claim, records) for claim in chosen]))
    print("\n".join([*notes, f"rows: {results.path}"]))


def _table(options: argparse.Namespace) -> None:
    if options.markdown and options.group:
        raise RequestError(f"--group {options.group}: a page is of all claims; leave it out")
    if options.readme and (not options.markdown or str(options.findings) == "none"):
        raise RequestError(
            f"--readme {options.readme}: its finding is the page's, and points there; "
            "give --markdown FILE too, and leave --findings none out"
        )
    if (options.curves or options.figures) and not options.markdown:
        flag = "--curves" if options.curves else "--figures"
        raise RequestError(f"{flag}: is for the page; give --markdown FILE too, or leave it out")
    if options.figures and not options.curves:
        raise RequestError(
            f"--figures {options.figures}: are of the curves; give --curves FILE too"
        )
    if not options.records and not options.places and not (Path(PLACE) / ROWS).is_file():
        raise RequestError(
            f"no results in {PLACE}; give their directory, --records FILE (this project's are "
            "docs/results/claims.jsonl), or ask: python -m eval claims run"
        )
    if options.records and options.places:
        raise RequestError("--records: takes the place of results; leave the directories out")
    if options.records:
        records, notes = load(options.records, claims())
    else:
        rows = read_rows(options.places or [PLACE])
        records, notes = evidence(rows, claims())
    judgements = [judge(claim, records) for claim in choose([], options.group)]
    pages = _pages(options, judgements, notes) if options.markdown else {}
    if options.store:
        store(options.store, records)
    for path, text in pages.items():
        write_text(path, text)
    print(terminal(judgements))
    for note in notes:
        print(note)


def _pages(
    options: argparse.Namespace, judgements: list[Judgement], notes: list[str]
) -> dict[str, str]:
    """Files to write, by path: the page, and the README that says its finding."""
    page = Path(options.markdown)
    curves = load_curves(options.curves) if options.curves else []
    drawn = _beside(options.figures, page) if options.figures else ""
    shown = draw(curves, drawn) if curves else ""
    if str(options.findings) == "none":
        return {options.markdown: markdown(judgements, notes, "", shown)}
    template = Path(options.findings)
    text = fill(template, Known(judgements, curves))
    pages = {options.markdown: markdown(judgements, notes, text, shown)}
    if options.readme:
        linked = Known(judgements, curves, _beside(page, Path(options.readme)))
        pages[options.readme] = readme(options.readme, fill(template, linked))
    return pages


def _beside(path: str | Path, page: Path) -> str:
    """A path as a page links to it."""
    return Path(os.path.relpath(path, page.parent)).as_posix()
