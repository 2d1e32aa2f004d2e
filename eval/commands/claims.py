"""The commands `claims ...`: the claims of the sources, by number."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from eval.api import Result, command
from eval.cli import Device, Directory, File, Flag, Source, positive
from eval.errors import RequestError

if TYPE_CHECKING:
    from eval.claims.ask import Part
    from eval.claims.curves import Plan
    from eval.claims.entries import Claim
    from eval.claims.evidence import Record
    from eval.claims.judge import Judgement

PLACE = "results/claims"
GROUPS = ("mixers", "random-init", "gpt2", "large", "lenses")
PRECISIONS = ("float32", "bfloat16", "8 bit")

Numbers: TypeAlias = Annotated[Sequence[int], Flag(positive, "N", several=True)]
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
def show_claims(numbers: Numbers, records: File | None = None) -> Result:
    """All that a claim asks.

    Args:
        numbers: of claims
        records: what `table --store` wrote, for what was found; default: what is in results/claims
    """
    from eval.claims.cells import details
    from eval.claims.evidence import evidence, load
    from eval.claims.judge import judge
    from eval.claims.registry import choose, claims
    from eval.results import ROWS, read_rows

    chosen = choose(list(numbers))
    known: list[Record] = []
    if records:
        known, _ = load(records, claims())
    elif (Path(PLACE) / ROWS).is_file():
        known, _ = evidence(read_rows([PLACE]), claims())
    texts = []
    judgements = [judge(claim, known) for claim in chosen]
    for claim, found in zip(chosen, judgements, strict=True):
        answer = [f"  verdict: {found.verdict}{found.why and f': {found.why}'}"] if known else []
        lines = [*_lines(claim), *answer, *(f"    {line}" for line in details(found))]
        texts.append("\n".join(lines))
    return Result(_verdicts(judgements), "\n\n".join(texts))


def _verdicts(judgements: "list[Judgement]") -> list[dict[str, Any]]:
    """The verdicts as rows."""
    return [
        {"claim": j.claim.number, "group": j.claim.group, "says": j.claim.claim,
         "verdict": j.verdict, "why": j.why}
        for j in judgements
    ]  # fmt: skip


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
    any_size: bool = False,
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
        any_size: take --model whatever its width and depth
        precision: of pretrained models
        full_size: the sizes asked for on a CPU too, however long
        corpus: of the fair prompts
        device: where to compute; auto (default) takes a GPU that is in reach
    """
    from eval.checkpoints import device_of
    from eval.claims.ask import Asker, parts
    from eval.claims.evidence import evidence
    from eval.claims.judge import judge
    from eval.claims.pages import terminal
    from eval.claims.registry import choose, claims
    from eval.claims.sources import Shelf
    from eval.progress import track
    from eval.results import Results, read_rows

    chosen = choose(list(numbers), group)[:limit]
    place = device_of(device)
    results = Results(out)
    shelf = Shelf(
        Path(out),
        Path(models) if models else None,
        model,
        download,
        any_size,
        precision,
        place,
        full_size or place.type == "cuda",
    )
    todo: list[Part] = []
    for claim in chosen:
        possible, missing = parts(claim, shelf)
        todo += possible
        for line in missing:
            print(line, file=sys.stderr)
    asker = Asker(results, corpus)
    for _ in track(map(asker.ask, todo), [1.0] * len(todo), "asking"):
        pass
    if not todo:
        raise RequestError("nothing to run: none of these claims' models is here; see above")
    records, notes = evidence(read_rows([results.path]), claims(), asker.settings)
    judgements = [judge(claim, records) for claim in chosen]
    notes = "\n".join([*notes, f"rows: {results.path}"])
    return Result(_verdicts(judgements), f"{terminal(judgements)}\n{notes}")


@command()
def table_of_claims(
    places: Annotated[
        Sequence[str], Flag(metavar="DIR", several=True, least=0, in_place=True)
    ] = (),
    records: File | None = None,
    store: File | None = None,
    markdown: File | None = None,
    findings: File | None = None,
    curves: File | None = None,
    figures: Directory | None = None,
    readme: File | None = None,
    group: Group | None = None,
) -> Result:
    """The verdicts.

    Args:
        places: results; default: results/claims
        records: what --store wrote, instead of results
        store: write the records of evidence
        markdown: write the page: text and all claims
        findings: template of the page's text, or none; default: this project's, whose assertions
            the records must bear out
        curves: records of the curves, what `claims curves --store` wrote
        figures: the page shows the curves' figures that lie there
        readme: put the text's finding between this file's marks too
        group: these alone
    """
    from eval.claims.evidence import evidence, load
    from eval.claims.evidence import store as write_records
    from eval.claims.judge import judge
    from eval.claims.pages import terminal
    from eval.claims.registry import choose, claims
    from eval.files import write_text
    from eval.results import ROWS, read_rows

    if markdown and group:
        raise RequestError(f"--group {group}: a page is of all claims; leave it out")
    if readme and (not markdown or findings == "none"):
        raise RequestError(
            f"--readme {readme}: its finding is the page's, and points there; "
            "give --markdown FILE too, and leave --findings none out"
        )
    if (curves or figures) and not markdown:
        flag = "--curves" if curves else "--figures"
        raise RequestError(f"{flag}: is for the page; give --markdown FILE too, or leave it out")
    if figures and not curves:
        raise RequestError(f"--figures {figures}: are of the curves; give --curves FILE too")
    if not records and not places and not (Path(PLACE) / ROWS).is_file():
        raise RequestError(
            f"no results in {PLACE}; give their directory, --records FILE (this project's are "
            "docs/results/claims.jsonl), or ask: python -m eval claims run"
        )
    if records and places:
        raise RequestError("--records: takes the place of results; leave the directories out")
    if records:
        known, notes = load(records, claims())
    else:
        known, notes = evidence(read_rows(places or [PLACE]), claims())
    judgements = [judge(claim, known) for claim in choose([], group)]
    pages = {}
    if markdown:
        pages = _pages(judgements, notes, markdown, findings, curves, figures, readme)
    if store:
        write_records(store, known)
    for path, text in pages.items():
        write_text(path, text)
    return Result(_verdicts(judgements), "\n".join([terminal(judgements), *notes]))


def _pages(
    judgements: "list[Judgement]",
    notes: list[str],
    markdown: str,
    findings: str | None,
    curves: str | None,
    figures: str | None,
    readme: str | None,
) -> dict[str, str]:
    """Files to write, by path: the page, and the README that says its finding."""
    from eval.claims.curves_page import markdown as draw
    from eval.claims.curves_records import load
    from eval.claims.findings import TEMPLATE, fill
    from eval.claims.findings import readme as with_finding
    from eval.claims.findings_words import Known
    from eval.claims.pages import markdown as page_of

    page = Path(markdown)
    records = load(curves) if curves else []
    drawn = _beside(figures, page) if figures else ""
    shown = draw(records, drawn) if records else ""
    if findings == "none":
        return {markdown: page_of(judgements, notes, "", shown)}
    template = Path(findings) if findings else TEMPLATE
    text = fill(template, Known(judgements, records))
    pages = {markdown: page_of(judgements, notes, text, shown)}
    if readme:
        linked = Known(judgements, records, _beside(page, Path(readme)))
        pages[readme] = with_finding(readme, fill(template, linked))
    return pages


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
    store: File | None = None,
    records: File | None = None,
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
        store: write the records, a line each
        records: what --store wrote: nothing is asked, only drawn
        figures: write the figures, as SVG
        markdown: write the tables
    """
    from eval import shards
    from eval.claims import curves
    from eval.claims.curves_records import load
    from eval.claims.curves_records import records as records_of
    from eval.claims.curves_records import store as write_records
    from eval.results import Results, read_rows

    plan, axes = curves.plan(), list(axis) if axis else None
    plan.points(axes)  # refuses what is no axis before anything is done
    if records:
        for flag, value in (("models", models), ("limit", limit), ("store", store)):
            if value:
                raise RequestError(f"--records: nothing is asked then; leave --{flag} out")
        if not (figures or markdown):
            raise RequestError("--records: nothing to make of them; give --figures or --markdown")
        known = load(records)
        return Result(known, "\n".join(_draw(known, axes, figures, markdown)))
    with shards.together():
        if shards.rank() == 0:
            Results(out).merge()
        shards.wait()
        _ask(plan, axes, out, models, limit, corpus, device)
        shards.wait()
        if shards.rank():
            return Result([], "")
        results = Results(out)
        results.merge()
    known, notes = records_of(plan, read_rows([results.path]))
    if store:
        write_records(store, known)
    written = _draw(known, axes, figures, markdown)
    return Result(known, "\n".join([*written, *notes, f"rows: {results.path}"]))


def _ask(
    plan: "Plan",
    axes: list[str] | None,
    out: str,
    models: str | None,
    limit: int | None,
    corpus: str,
    device: str,
) -> None:
    """Asks this process's share of the models."""
    from eval import shards
    from eval.checkpoints import device_of
    from eval.claims.curves_ask import Asker, tasks
    from eval.claims.sources import Shelf
    from eval.progress import track
    from eval.results import Results

    place, trained = device_of(device), Path(models) if models else None
    tokenizer = Shelf(Path(out), trained).tokenizer
    todo, missing = tasks(plan, plan.points(axes), tokenizer.get_vocab_size(), trained)
    if shards.rank() == 0:
        for line in missing:
            print(line, file=sys.stderr)
    share = shards.share(todo[:limit])
    number = shards.rank() if shards.world() > 1 else None
    asker = Asker(Results(out, number), corpus, tokenizer, place)
    for _ in track(map(asker.ask, share), [task.cost for task in share], "models"):
        pass


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
