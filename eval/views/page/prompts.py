"""Prompts of the page as they were, and below each what every solver recovered of it."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from eval.analysis.accepts import hidden_positions
from eval.analysis.frame import Frame
from eval.drawing.markup import visible
from eval.drawing.tables import Record
from eval.rows.schema import Row
from eval.views.page.recoveries import AFTER, QUESTION

TOKENS = 15_000
"""Tokens that a page draws, so that it stays under a megabyte."""
SETS = ("story", "inside", "random", "text")
"""The sets of prompts, in the order of reading."""


class Strip(NamedTuple):
    """One answer: its tokens, each with its marks (w wrong, a ambiguous, k hidden)."""

    phase: str
    solver: str
    right: int
    tokens: list[tuple[str, str]]


class Sheet(NamedTuple):
    """All answers to one question of one prompt; `truth` are its tokens, with marks alike."""

    model: str
    site: str
    question: str
    hidden: int
    truth: list[tuple[str, str]]
    strips: list[Strip]


class Prompt(NamedTuple):
    """One prompt and its sheets."""

    name: str
    text: str
    sheets: list[Sheet]


def draw_prompts(
    rows: Iterable[Row], lines: Frame, records: Sequence[Record]
) -> tuple[list[Prompt], int]:
    """The prompts as far as there is room, and how many there are.

    Before and after training; of several seeds the first.

    Args:
        lines: of `eval.views.page.recoveries.select_lines`.
        records: of the questions that are drawn, by phase.
    """
    words = {_question(r | {"solver": r["solver_name"]}): r for r in records}
    by_key = {row["key"]: row for row in rows}
    prompts: dict[tuple[Any, ...], dict[tuple[Any, ...], list[tuple[Record, Row]]]] = {}
    numbers: dict[tuple[Any, ...], int] = {}  # the least that a prompt has in any command
    for line in lines.to_dict("records"):
        record, row = words.get(_question(line)), by_key[line["key"]]
        if record:
            kind = row["prompts"]
            order = SETS.index(kind) if kind in SETS else len(SETS)
            prompt = (order, kind, tuple(row["truth"]))
            numbers[prompt] = min(row["prompt"], numbers.get(prompt, row["prompt"]))
            sheet = tuple(record[name] for name in ("model", "site", "tokens", "departs"))
            prompts.setdefault(prompt, {}).setdefault(sheet, []).append((record, row))
    drawn: list[Prompt] = []
    room = TOKENS
    for prompt in sorted(prompts, key=lambda prompt: (numbers[prompt], prompt)):
        sheets, name = prompts[prompt], f"{prompt[1].capitalize()} {numbers[prompt]}"
        made = [_sheet(answers) for answers in sheets.values()]
        room -= sum(len(sheet.strips) * len(sheet.truth) for sheet in made)
        if drawn and room < 0:
            break
        text = next(iter(sheets.values()))[0][1]["text"]
        drawn.append(Prompt(name, text, made))
    return drawn, len(prompts)


def choose_example(prompts: Sequence[Prompt]) -> Sheet | None:
    """The first prompt's sheet with the most hidden tokens."""
    return max(prompts[0].sheets, key=lambda sheet: sheet.hidden) if prompts else None


def _question(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in (*QUESTION, "phase"))


def _sheet(answers: list[tuple[Record, Row]]) -> Sheet:
    """The answers to one question, before training first, by solver."""
    first, row = answers[0]
    hidden = hidden_positions(row)
    first_seeds: dict[tuple[bool, Any], tuple[Record, Row]] = {}
    for record, answer in sorted(answers, key=lambda answer: _seed(answer[1])):
        first_seeds.setdefault((record["phase"] == AFTER, record["rank"]), (record, answer))
    strips = [_strip(*answer, hidden) for _, answer in sorted(first_seeds.items())]
    truth = [(visible(token), "k" * (t in hidden)) for t, token in enumerate(row["truth_text"])]
    departs = f", {first['departs']}" * bool(first["departs"])
    return Sheet(first["model"], first["site"], first["tokens"] + departs, len(hidden), truth,
                 strips)  # fmt: skip


def _seed(row: Row) -> tuple[str, str, int]:
    """Orders rows by the seed of the model, then of the solver."""
    return row["checkpoint"]["name"], row["checkpoint"]["weights_sha256"], row["seed"]


def _strip(record: Record, row: Row, hidden: set[int]) -> Strip:
    right = [true == token for true, token in zip(row["truth"], row["found"], strict=True)]
    verdicts = row["verdict"] or [""] * row["length"]  # some stored rows of controls have none
    tokens = [
        (visible(text), ("a" if verdict == "ambiguous" else "w" * (not hit)) + " k" * (t in hidden))
        for t, (hit, text, verdict) in enumerate(
            zip(right, row["found_text"], verdicts, strict=True)
        )
    ]
    return Strip(record["phase"], record["solver"], sum(right), tokens)
