"""The commands `claims ...`: the claims of the sources, by number."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from eval import RequestError
from eval.commands import Device, Directory, File, Flag, Result, Source, command, positive

if TYPE_CHECKING:
    from eval.claims.ask import ClaimTask
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
    from eval.claims import columns, evidence, pages, registry
    from eval.rows import ROWS, read_rows

    chosen = registry.choose(list(numbers))
    there = records != PLACE or (Path(PLACE) / ROWS).is_file()
    rows = read_rows([records]) if there else []
    known, _ = evidence.evidence(rows, registry.claims())
    judgements = [columns.judge(claim, known) for claim in chosen]
    return Result(_columns(judgements), "\n\n".join(map(pages.description, judgements)))


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
    from eval.claims import ask, columns, evidence, pages, registry
    from eval.claims.sources import Shelf
    from eval.models import device_of
    from eval.tasks import open_results, run_tasks

    chosen = registry.choose(list(numbers), group)[:limit]
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
        todo: list[ClaimTask] = []
        for claim in _of_stand_in(chosen, stand_in) if stand_in else chosen:
            possible, missing = ask.parts(claim, shelf, corpus)
            todo += possible
            _say(missing)
        if not todo:
            raise RequestError("nothing to run: none of these claims' models is here; see above")
        run_tasks(todo, results, "asking")
        rows = results.rows()
    settings = {evidence.place_of(task.tags): task.tags["setting"] for task in todo}
    records, notes = evidence.evidence(rows, registry.claims(), settings)
    judgements = [columns.judge(claim, records) for claim in chosen]
    text = "\n".join([pages.claims_table(judgements), *notes, results.note])
    return Result(_columns(judgements), text)


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
    from arch.files import write_text
    from eval.claims import columns, curves, evidence, pages, registry
    from eval.claims import findings as text_of
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
    known, notes = evidence.evidence(rows, registry.claims())
    points, more = curves.curve_records(curves.plan(), rows)
    notes += more
    if figures and not points:
        raise RequestError(
            f"--figures {figures}: are of the curves, and no curve is in the results; ask: python "
            "-m eval claims curves"
        )
    judgements = [columns.judge(claim, known) for claim in registry.choose([], group)]
    texts: dict[str, str] = {}
    if markdown:
        folder = Path(markdown).with_suffix("")
        texts[markdown] = pages.claims_page(judgements, notes, folder.name)
        if points:
            drawn = _beside(figures, folder / "curves.md") if figures else ""
            tables = curves.curves_markdown(points, drawn)
            texts[str(folder / "curves.md")] = f"{curves.HEAD}\n{tables}"
        for one in judgements:
            if one.asked or one.stand_ins:
                texts[str(folder / f"{one.claim.number}.md")] = pages.claim_page(one)
        said = _experiments(places, there) if results or readme else {}
        template = Path(findings) if findings else text_of.TEMPLATE
        for path in filter(None, (results, readme)):
            words = text_of.Known(judgements, _beside(markdown, Path(path)), said)
            text = text_of.fill(template, words)
            texts[path] = text if path == results else text_of.readme(path, text)
    if store:
        write_rows(store, evidence.answers(rows))
    for path, text in texts.items():
        write_text(path, text)
    written = map(str, curves.write(figures, points) if figures else ())
    return Result(
        _columns(judgements), "\n".join([pages.claims_table(judgements), *notes, *written])
    )


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
    from arch.files import write_text
    from eval.claims import curves
    from eval.claims.ask import curve_tasks
    from eval.claims.sources import Shelf
    from eval.models import device_of
    from eval.tasks import open_results, run_tasks

    plan, axes = curves.plan(), list(axis) if axis else None
    points = plan.points(axes)  # refuses what is no axis before anything is done
    with open_results(out) as results:
        trained = Path(models) if models else None
        tokenizer = Shelf(results.directory, trained).tokenizer
        todo, missing = curve_tasks(plan, points, trained, corpus, tokenizer, device_of(device))
        _say(missing)
        run_tasks(todo[:limit], results, "models")
        known, notes = curves.curve_records(plan, results.rows())
    shown = [r for r in known if r["axis"] in (curves.BASE, *axes)] if axes else known
    written = [str(path) for path in curves.write(figures, shown)] if figures else []
    if markdown:
        beside = _beside(figures, Path(markdown)) if figures else ""
        write_text(markdown, curves.curves_markdown(shown, beside))
        written.append(markdown)
    return Result(known, "\n".join([*written, *notes, results.note]))


def _columns(judgements: "list[Judgement]") -> list[dict[str, Any]]:
    """The columns as rows."""
    return [
        {"claim": j.claim.number, "group": j.claim.group, "says": j.claim.claim}
        | {column: cell.answer for column, cell in j.cells.items()}
        for j in judgements
    ]


def _of_stand_in(chosen: "list[Claim]", directory: str) -> "list[Claim]":
    """The claims that a stand-in is asked, as it is asked them."""
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
    for line in lines:
        print(line, file=sys.stderr)


def _experiments(places: Sequence[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Functions of a text about the experiments whose rows are given beside their registrations.

    By the name of each experiment; those of the first one by themselves too.
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
