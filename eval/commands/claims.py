"""The commands `claims ...`: the claims of the sources, by number."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from eval.cli import Device, Directory, File, Flag, Source, positive
from eval.commands import Result, command
from eval.errors import RequestError

if TYPE_CHECKING:
    from eval.claims.ask import Part
    from eval.claims.columns import Judgement
    from eval.claims.entries import Claim

PLACE = "results/claims"
GROUPS = ("mixers", "random-init", "gpt2", "large", "lenses")
PRECISIONS = ("float32", "bfloat16", "8 bit")

Numbers: TypeAlias = Annotated[Sequence[int], Flag(positive, "N", several=True)]
Place: TypeAlias = Annotated[str, Flag(metavar="PLACE")]
Group: TypeAlias = Annotated[str, Flag(choices=GROUPS)]


@command()
def list_claims(group: Group | None = None) -> Result:
    """Every claim in a line.

    Args:
        group: these alone
    """
    from eval.claims.registry import choose

    rows = [
        {"claim": c.number, "group": c.group, "says": c.claim, "expected": c.expected}
        for c in choose([], group)
    ]
    lines = [f"{r['claim']:3} {r['group']:12} {r['says']}. Expected: {r['expected']}" for r in rows]
    return Result(rows, "\n".join(lines))


@command()
def show_claims(numbers: Numbers, records: Place = PLACE) -> Result:
    """All that a claim asks.

    Args:
        numbers: of claims
        records: results for what was found, or what `table --store` wrote of them
    """
    from eval.claims.columns import judge
    from eval.claims.evidence import evidence
    from eval.claims.pages import details
    from eval.claims.registry import choose, claims
    from eval.rows import ROWS, read_rows

    chosen = choose(list(numbers))
    there = records != PLACE or (Path(PLACE) / ROWS).is_file()
    known, _ = evidence(read_rows([records]), claims()) if there else ([], [])
    texts = []
    judgements = [judge(claim, known) for claim in chosen]
    for claim, judgement in zip(chosen, judgements, strict=True):
        lines = [*_lines(claim), *(f"    {line}" for line in details(judgement))]
        texts.append("\n".join(lines))
    return Result(_columns(judgements), "\n\n".join(texts))


def _columns(judgements: "list[Judgement]") -> list[dict[str, Any]]:
    """The columns as rows."""
    return [
        {"claim": j.claim.number, "group": j.claim.group, "says": j.claim.claim}
        | {column: cell.answer for column, cell in j.cells.items()}
        for j in judgements
    ]


def _lines(claim: "Claim") -> list[str]:
    from eval.claims.entries import PROTOCOLS
    from eval.claims.pages import CHANGED
    from eval.claims.sources import needs

    lines = [
        f"claim {claim.number} ({claim.group}): {claim.claim}",
        f"  source: {claim.source}",
        f"  expected: {claim.expected}",
    ]
    for arm in claim.arms:
        models = arm.models
        settings = " ".join(f"{name}={value}" for name, value in models.config.items())
        state = ", trained" if models.trained else ", untrained"
        less = {
            name: value for name, value in models.cpu.items() if value != models.config.get(name)
        }
        small = "; on a CPU" + "".join(f" {n}={v}" for n, v in less.items()) if less else ""
        about = f"{settings}{state}{small}" if models.own else f"{needs(models)}, {models.weights}"
        site = f"lens {arm.lens}" if arm.lens else f"layer {arm.layer} {arm.part} {arm.slice}"
        without = f" without {' '.join(arm.without)}" if arm.without else ""
        lines.append(f"  {arm.name or 'asked'}: {about}; {site}{without}")
        for name in PROTOCOLS:
            if protocol := arm.protocol(name):
                lines.append(f"    {name}: {protocol}")
    lines += [f"  judged by: {criterion}" for criterion in claim.judge]
    lines += [f"  replicated only if: {criterion}" for criterion in claim.control]
    lines += [f"  note: {claim.note}"] if claim.note else []
    lines += [f"  {CHANGED}: {claim.changed}"] if claim.changed else []
    return [*lines, f"  {claim.command}"]


@command()
def run_claims(
    numbers: Annotated[
        Sequence[int], Flag(positive, "N", several=True, least=0, in_place=True)
    ] = (),
    group: Group | None = None,
    limit: Annotated[int | None, Flag(positive, "K")] = None,
    out: Directory = PLACE,
    models: Directory | None = None,
    model: Directory | None = None,
    download: bool = False,
    stand_in: Directory | None = None,
    precision: Annotated[str | None, Flag(choices=PRECISIONS)] = None,
    full_size: bool = False,
    corpus: Source = "toy",
    device: Device = "auto",
) -> Result:
    """Ask claims; goes on where it was stopped.

    Args:
        numbers: default: all
        group: these alone
        limit: the first K of them
        out: results directory
        models: holds trained models, at any depth
        model: weights of a pretrained model
        download: pretrained models, from the hub
        stand_in: a registered model (smollm2-135m), asked in place of claims' own; stands apart
        precision: of pretrained models
        full_size: the sizes asked for on a CPU too, however long
        corpus: of the fair prompts
        device: where to compute; auto (default) takes a GPU that is in reach
    """
    from eval.claims.ask import parts
    from eval.claims.columns import judge
    from eval.claims.evidence import evidence
    from eval.claims.pages import terminal
    from eval.claims.registry import choose, claims
    from eval.claims.sources import Shelf
    from eval.models import device_of
    from eval.tasks import open_results, run_tasks

    chosen = choose(list(numbers), group)[:limit]
    place = device_of(device)
    with open_results(out) as results:
        shelf = Shelf(
            Path(out),
            Path(models) if models else None,
            model,
            download,
            stand_in,
            precision,
            place,
            full_size or place.type == "cuda",
        )
        todo: list[Part] = []
        for claim in _of_stand_in(chosen, stand_in) if stand_in else chosen:
            possible, missing = parts(claim, shelf, corpus)
            todo += possible
            _say(missing)
        if not todo:
            raise RequestError("nothing to run: none of these claims' models is here; see above")
        run_tasks(todo, results, "asking")
        rows = results.rows()
    settings = {
        (part.claim.number, part.arm.name, part.name, part.stand_in): part.tags["setting"]
        for part in todo
    }
    records, notes = evidence(rows, claims(), settings)
    judgements = [judge(claim, records) for claim in chosen]
    notes = "\n".join([*notes, results.note])
    return Result(_columns(judgements), f"{terminal(judgements)}\n{notes}")


def _of_stand_in(chosen: "list[Claim]", directory: str) -> "list[Claim]":
    """The claims as a stand-in is asked them, those that it can speak to."""
    from eval.claims.registry import stand_ins

    meta, known = Path(directory) / "meta.json", stand_ins()
    name = json.loads(meta.read_text("utf-8")).get("name") if meta.is_file() else "not known"
    if name not in known:
        raise RequestError(
            f"--stand-in {directory}: its name is {name}; registered are {', '.join(known)} "
            "(eval/claims/registry/stand-ins.yaml)"
        )
    _say([f"claim {c.number} is not asked of {name}" for c in chosen if name not in c.stand_ins])
    return [claim.asked_of(name) for claim in chosen if name in claim.stand_ins]


def _say(lines: list[str]) -> None:
    """What is missing, said by the first of several processes."""
    from eval.tasks import rank

    for line in lines if not rank() else ():
        print(line, file=sys.stderr)


@command()
def table_of_claims(
    places: Annotated[
        Sequence[str], Flag(metavar="PLACE", several=True, least=0, in_place=True)
    ] = (),
    store: File | None = None,
    markdown: File | None = None,
    results: File | None = None,
    findings: File | None = None,
    figures: Directory | None = None,
    readme: File | None = None,
    group: Group | None = None,
) -> Result:
    """Each claim in three columns: replicated, gradients, information.

    Args:
        places: results of the claims and of their curves, or what --store wrote of them; default:
            results/claims
        store: write the rows that answer, as Parquet where FILE ends in .parquet, else as JSONL
        markdown: write the page, and in a folder of its name a page for each claim
        results: write the text of the results, which cites the page
        findings: template of that text; default: this project's, whose assertions the records must
            bear out
        figures: write the curves' figures, as SVG, which the page shows
        readme: put the text's finding between this file's marks too
        group: these alone
    """
    from eval.claims.columns import judge
    from eval.claims.curves import plan
    from eval.claims.curves_page import records as points_of
    from eval.claims.evidence import answers, evidence
    from eval.claims.pages import terminal
    from eval.claims.registry import choose, claims
    from eval.files import write_text
    from eval.rows import ROWS, read_rows, write_rows

    if markdown and group:
        raise RequestError(f"--group {group}: a page is of all claims; leave it out")
    for flag, value in (("results", results), ("readme", readme)):
        if value and not markdown:
            raise RequestError(f"--{flag} {value}: it points to the page; give --markdown FILE too")
    if not places and not (Path(PLACE) / ROWS).is_file():
        raise RequestError(
            f"no results in {PLACE}; give their directory, or what --store wrote (this project's "
            "are docs/results/claims.parquet), or ask: python -m eval claims run"
        )
    there = read_rows(places or [PLACE])
    rows = [row for row in there if "experiment" not in row]
    known, notes = evidence(rows, claims())
    points, more = points_of(plan(), rows)
    notes += more
    if figures and not points:
        raise RequestError(
            f"--figures {figures}: are of the curves, and no curve is in the results; ask: python "
            "-m eval claims curves"
        )
    judgements = [judge(claim, known) for claim in choose([], group)]
    texts = {name: path for name, path in (("results", results), ("readme", readme)) if path}
    experiment = _experiment(places, there) if texts else {}
    pages = _pages(judgements, points, notes, markdown, texts, findings, figures, experiment)
    if store:
        write_rows(store, answers(rows))
    for path, text in pages.items():
        write_text(path, text)
    drawn = _draw(points, None, figures, None)
    return Result(_columns(judgements), "\n".join([terminal(judgements), *notes, *drawn]))


def _pages(
    judgements: "list[Judgement]",
    points: list[dict[str, Any]],
    notes: list[str],
    markdown: str | None,
    texts: dict[str, str],
    findings: str | None,
    figures: str | None,
    experiment: dict[str, Any],
) -> dict[str, str]:
    """Files to write, by path: the page, each claim's, the results and the README's finding."""
    from eval.claims.curves_page import HEAD
    from eval.claims.curves_page import markdown as draw
    from eval.claims.findings import TEMPLATE, Known, fill
    from eval.claims.findings import readme as with_finding
    from eval.claims.pages import markdown as page_of
    from eval.claims.pages import page as own_page

    if not markdown:
        return {}
    page = Path(markdown)
    folder = page.with_suffix("")
    pages = {markdown: page_of(judgements, notes, folder.name)}
    if points:
        curves = folder / "curves.md"
        pages[str(curves)] = HEAD + "\n" + draw(points, _beside(figures, curves) if figures else "")
    for one in judgements:
        if one.asked or one.stand_ins:
            pages[str(folder / f"{one.claim.number}.md")] = own_page(one)
    template = Path(findings) if findings else TEMPLATE
    for name, path in texts.items():
        text = fill(template, Known(judgements, _beside(page, Path(path)), experiment))
        pages[path] = text if name == "results" else with_finding(path, text)
    return pages


def _experiment(places: Sequence[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a text can say of the experiments whose rows are given beside their registrations.

    By the name of each; what the first of them says needs no name.
    """
    import yaml

    from eval.information.page import placeholders

    said: dict[str, Any] = {}
    for path in (Path(place).with_suffix(".yaml") for place in places):
        chosen = [row for row in rows if row.get("experiment", {}).get("name") == path.stem]
        if chosen and path.is_file():
            figures = placeholders(yaml.safe_load(path.read_text(encoding="utf-8")), chosen)
            said = {**figures, **said, path.stem: figures}
    return said


def _beside(path: str | Path, page: Path) -> str:
    """A path as a page links to it."""
    return Path(os.path.relpath(path, page.parent)).as_posix()


@command()
def curves_of_claims(
    axis: Annotated[Sequence[str] | None, Flag(metavar="NAME", several=True, repeated=True)] = None,
    limit: Annotated[int | None, Flag(positive, "K")] = None,
    models: Directory | None = None,
    corpus: Source = "toy",
    out: Directory = "results/curves",
    device: Device = "auto",
    figures: Directory | None = None,
    markdown: File | None = None,
) -> Result:
    """Recovery against width, depth, layer, training step, channels, observed positions and noise.

    What is asked stands in eval/claims/curves.yaml. Untrained models are drawn from their seeds,
    trained ones are looked for by their shape and step. What is answered already is not asked
    again.

    Args:
        axis: one curve, several times; default: all
        limit: the first K models
        models: holds trained models, at any depth
        corpus: of the stories asked
        out: results directory
        device: where to compute; auto (default) takes a GPU that is in reach
        figures: write the figures, as SVG
        markdown: write the tables
    """
    from eval.claims import curves
    from eval.claims.curves_page import records
    from eval.claims.sources import Shelf
    from eval.models import device_of
    from eval.tasks import open_results, run_tasks

    plan, axes = curves.plan(), list(axis) if axis else None
    points = plan.points(axes)  # refuses what is no axis before anything is done
    with open_results(out) as results:
        trained = Path(models) if models else None
        tokenizer = Shelf(results.directory, trained).tokenizer
        todo, missing = curves.tasks(plan, points, trained, corpus, tokenizer, device_of(device))
        _say(missing)
        run_tasks(todo[:limit], results, "models")
        known, notes = records(plan, results.rows())
    written = _draw(known, axes, figures, markdown)
    return Result(known, "\n".join([*written, *notes, results.note]))


def _draw(
    records: list[dict[str, Any]], axes: list[str] | None, figures: str | None, markdown: str | None
) -> list[str]:
    """Writes figures and tables, and returns their paths."""
    from eval.claims.curves import BASE
    from eval.claims.curves_page import markdown as page_of
    from eval.claims.curves_page import write
    from eval.files import write_text

    shown = [r for r in records if r["axis"] in (BASE, *axes)] if axes else records
    written = [str(path) for path in write(figures, shown)] if figures else []
    if markdown:
        beside = os.path.relpath(figures, Path(markdown).parent) if figures else ""
        write_text(markdown, page_of(shown, beside))
        written.append(markdown)
    return written
