"""Experiments about recovery: which prompts are asked of which model, and figures of the rows.

    recovered:
      prompts: {count: 10, skip: 512, before: 9, after: 4}  # passages, cut around one place
      cells:                     # each the product of what it lists
        - {hidden: [1, 3], shown: [1, 4], methods: {alternating: {budget: 200000}}}
        - {of: {llama: [0]}, hidden: 1, shown: 8, filled: [pads, stories, random], upto: 32,
           prompts: 5, starts: 8, methods: {descent: {steps: 500}}}

A cell hides the last `hidden` tokens before a passage's place and shows the last block's outputs
at the `shown` positions after it, then at as many more as make `upto`, which are filled with pads,
with what stands there, or with random tokens. `of` names architectures and their steps; all are
asked where it is missing. `prompts` are the first so many, if not all.
"""

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from eval import RequestError
from eval.drawing import Figure
from eval.information.hypotheses import mean_of, records
from eval.information.page import panels
from eval.inversion.questions import LAST, Question
from eval.inversion.run import plan
from eval.inversion.solvers import parse_solvers
from eval.models import Checkpoint
from eval.recovery import Slice
from eval.schema import Row
from eval.tables import Table, group
from eval.tasks import Task
from eval.text import Prompt, drawn_prompts, held_out_text, padded

NOTHING = "none"
FILLED = "pads", "stories", "random"
FACTORS = ("hidden", "shown", "filled", "upto")
COMPARED = (3, 4)  # tokens hidden and states shown, at which methods are compared
SEARCH, DESCENT = "alternating", "descent"
LOG = {"type": "log", "base": 2, "nice": False}
PANELS = 620  # the width of all together, at most, in pixels


def jobs(
    recovered: Mapping[str, Any], corpus: str, checkpoint: Checkpoint, architecture: str
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """The jobs of one model at one step, with the cell that each is of.

    Raises:
        RequestError: a cell that the model's context or the corpus has no room for.
    """
    wanted = recovered["prompts"]
    text = held_out_text(checkpoint, corpus)
    length = wanted["before"] + wanted["after"]
    passages = drawn_prompts("inside", text, wanted["count"], length, wanted["skip"])
    step = int(checkpoint.meta.get("step", 0))
    for cell in recovered["cells"]:
        if step not in cell.get("of", {architecture: [step]}).get(architecture, []):
            continue
        for place in places(cell):
            asked = passages[: cell.get("prompts")]
            prompts = [cut(passage, wanted["before"], place, checkpoint) for passage in asked]
            question = Question(
                parse_solvers(cell["methods"]),
                slices=(Slice(place["hidden"]),),
                layers=LAST,
                seeds=tuple(range(cell.get("starts", 1))),
            )
            about = {"filled": place.get("filled", NOTHING)}
            about["upto"] = place.get("upto", place["shown"])
            for job in plan(checkpoint, question, prompts, corpus):
                yield job, about


def places(cell: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The product of what a cell lists."""
    given = {name: cell[name] for name in FACTORS if name in cell}
    listed = [value if isinstance(value, list) else [value] for value in given.values()]
    for values in product(*listed):
        yield dict(zip(given, values, strict=True))


def cut(passage: Prompt, before: int, place: Mapping[str, Any], checkpoint: Checkpoint) -> Prompt:
    """A passage's tokens around its place, and what they are filled up with.

    Raises:
        RequestError: no such filling, or more positions than the passage has.
    """
    hidden, shown = place["hidden"], place["shown"]
    tokens = passage.tokens[before - hidden : before + shown]
    prompt = replace(passage, tokens=tokens)
    filled, length = place.get("filled"), hidden + place.get("upto", shown)
    if filled is None:
        return prompt
    if filled not in FILLED or length > hidden + len(passage.tokens) - before:
        raise RequestError(f"cell {dict(place)}: filled is one of {FILLED}, up to a passage's end")
    if filled == "pads":
        return padded([prompt], checkpoint.tokenizer, length)[0]
    more = passage.tokens[before + shown : before - hidden + length]
    if filled == "random":
        draw = random.Random(passage.index)
        more = tuple(draw.randrange(checkpoint.config.vocab_size) for _ in more)
    return replace(prompt, tokens=tokens + more, pads=len(more))


def figures(registration: Mapping[str, Any], rows: Sequence[Row]) -> list[Figure]:
    """Recovery against work and hidden positions; or, of descents, against the positions shown."""
    flat = [{**r, "model": f"{r['architecture']}, step {r['step']}"} for r in records(rows)]
    if filled := [r for r in flat if r["filled"] != NOTHING]:
        models, kinds = {r["model"] for r in filled}, dict.fromkeys(r["filled"] for r in filled)
        bare = [r for r in flat if r["filled"] == NOTHING and r["model"] in models]
        alike = [*filled, *({**r, "filled": kind} for kind in kinds for r in bare)]
        points = [
            {**point, "positions after": upto}
            for upto in sorted({r["upto"] for r in alike})
            for point in _points(alike, "named", "filled", upto=upto, method=DESCENT)
        ]
        said = "Hidden first tokens that the published descent names, by positions after them"
        return [
            _lines("positions", said, points, "positions after", "filled", LOG | {"padding": 6})
        ]
    budget, (hidden, shown) = registration["design"]["budget"], COMPARED
    by_work = [
        {**point, "tokens": spent}
        for spent in [*(2**power for power in range(10, budget.bit_length())), budget]
        for point in _points(
            [{**r, "within": r["whole"] and r["spent"] <= spent} for r in flat],
            *("within", "method"), hidden=hidden, shown=shown,
        )
    ]  # fmt: skip
    searched = [r for r in flat if r["method"] == SEARCH]
    by_hidden = [
        {**point, "tokens hidden": n, "states": "1 state" if states == 1 else f"{states} states"}
        for n, states in dict.fromkeys((r["hidden"], r["shown"]) for r in searched)
        for point in _points(searched, "whole", "method", hidden=n, shown=states)
    ]
    by_hidden.sort(key=lambda point: point["states"])
    work = f"Prompts found whole, {hidden} tokens from {shown} states, within so many tokens run"
    whole = "Prompts that alternating search finds whole within the budget, by tokens hidden"
    return [
        _lines("work", work, by_work, "tokens", "method", LOG),
        _lines("hidden", whole, by_hidden, "tokens hidden", "states"),
    ]


def every_cell(rows: Sequence[Row]) -> Table:
    """Every cell's shares in per cent with their intervals, its work and its pairs."""
    places = ("architecture", "step", "hidden", "shown", "filled", "upto", "method")
    shares = {"whole": "whole", "named": "hidden named", "seen": "shown named",
              "arrived": "arrived"}  # fmt: skip
    cells = group(records(rows), lambda record: tuple(record[name] for name in places))
    lines = []
    for place, several in sorted(cells.items()):
        known = [mean_of(several, value) for value in shares]
        means = [
            "–" if each is None else "{:.0f} ({:.0f} to {:.0f})".format(*(100 * x for x in each))
            for each in known
        ]
        work = statistics.median(record["spent"] for record in several)
        lines.append([*map(str, place), *means, f"{work:,.0f}", str(len(several))])
    return Table([*places, *shares.values(), "tokens, median", "pairs"], lines)


def _points(
    flat: Sequence[dict[str, Any]], value: str, colour: str, **where: Any
) -> Iterator[dict[str, Any]]:
    """A mean in per cent for each model and each of what lines are coloured by."""
    for model, name in dict.fromkeys((r["model"], r[colour]) for r in flat):
        if known := mean_of(flat, value, **{**where, "model": model, colour: name}):
            limits = zip(("value", "low", "high"), known, strict=True)
            yield {"model": model, colour: name, **{end: 100 * share for end, share in limits}}


def _lines(
    name: str, title: str, points: list[dict[str, Any]], x: str, colour: str, scale: Any = None
) -> Figure:
    label = "datum.value < 1000 ? datum.value : format(datum.value, '.2~s')"
    width = min(300, PANELS // len({point["model"] for point in points}))
    about = ". Bands are 95 % intervals over prompts and seeds."
    return panels(name, title, points, x, "%", colour, column="model", about=about, x_scale=scale,
                  share=True, size=(width, 160), axis={"labelExpr": label})  # fmt: skip
