"""Turns what eval writes into the golden table. A change of eval's commands or rows ends here.

A golden table maps a `Place` (what was asked) to its quantities by name. `ask` runs one step of the
suite; `facts` are the table's lines. Nothing else in this folder knows a flag or a field of a row.
"""

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eval.__main__ import main
from eval.schema import KINDS
from tokenizer.__main__ import main as pack

HERE = Path(__file__).parent
Row = dict[str, Any]


class Place(NamedTuple):
    """What a quantity is of; empty where it does not apply."""

    case: str
    model: str = ""
    site: str = ""
    slice: str = ""
    solver: str = ""
    prompt: str = ""
    seed: str = ""


Table = dict[Place, dict[str, Any]]

INVERSION = (
    "found", "rank", "verdict", "certificate", "exact", "at_floor", "criterion", "self", "nonself",
    "set_recall", "permuted", "observed", "hidden", "collisions", "margin_bits", "floor", "margin",
    "steps_to_solve", "evaluations",
)  # fmt: skip
"""Fields of an inversion's row that are pinned as they are."""
STEPPED = ("rank", "evaluations", "residual")
UNPROVED = (*STEPPED, "found", "verdict", "self", "nonself", "set_recall", "permuted")
"""Fields of an unproved answer, which rounding decides; it moves `STEPPED` by little."""
PLACES = {
    "probe": ("offset",),
    "geometry": ("hidden",),
}
"""By kind of row, the further fields that say what it is of."""
ASIDE = {
    "schema", "key", "kind", "checkpoint", "site", "slice", "method", "family", "settings", "seed",
    "prompts", "prompt", "lens", "look", "layer", "figure", "device", "seconds", "corpus", "fit",
    "limits", "pools", "tokens_per_second", "prompt_kind", "parts",
    "batch", "candidates_at_once", "tokens_at_once",
}  # fmt: skip
"""Fields of other rows that are no quantities: their place, and how and where they were made."""

SUMMARY = (
    "model", "mixers", "step", "layer", "part", "slice", "hidden", "prompt_kind", "without",
    "noise", "control", "padded", "method",
)  # fmt: skip
"""Columns of a summary that say what a line is of."""
UNSTABLE = ("seconds", "path", "corpus", "settings", "family", "weights_sha256")
"""Columns that hold times, places on a disk or a hash."""


class Refused(Exception):
    """A step of the suite that eval did not answer, with what it said."""


def ask(step: dict[str, Any], case: str, folder: Path) -> Table:
    """Runs one step of the suite and gives its part of the table.

    Args:
        step: `ask` (the command), `models` (directories), and its flags by name.
        case: the name of the step.
        folder: where results of the same part of the suite lie, each in a folder of its case.

    Raises:
        Refused: the command failed.
    """
    flags = {name: value for name, value in step.items() if name not in ("ask", "models", "of")}
    if step["ask"] in ("summary", "compare"):
        places, file = [str(folder / name) for name in step["of"]], folder / f"{case}.csv"
        _run(main, step["ask"], *step.get("models", ()), *places, *_words({**flags, "csv": file}))
        lines: Table = {}
        for place, numbers in _lines(case, file, step["ask"]):
            lines.setdefault(place, {}).update(numbers)
        return lines
    out = folder / case
    if step["ask"] == "pack":
        _run(pack, "pack", flags["stories"], "--tokenizer", flags["tokenizer"], "--out", out)
        return {}
    if "of" in step:
        flags["corpus"] = folder / step["of"]
    _run(main, step["ask"], *step["models"], *_words({**flags, "out": out}))
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        assert row.keys() >= KINDS[row["kind"]].__required_keys__, row
    table = dict(_pictures(case, out / "lenses"))
    for row in rows:
        place, quantities = (
            _inversion(case, row) if row["kind"] == "recovery" else _other(case, row)
        )
        table.setdefault(place, {}).update(quantities)
    return table


def _run(command: Callable[[list[str]], int], *words: object) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = command([str(word) for word in words])
    if code:
        raise Refused(f"{' '.join(map(str, words))}: {said.getvalue()}")


def _words(flags: dict[str, Any]) -> Iterator[object]:
    for name, value in flags.items():
        if value != []:
            yield f"--{name.replace('_', '-')}"
            yield from value if isinstance(value, list) else () if value is True else (value,)


def _inversion(case: str, row: Row) -> tuple[Place, Row]:
    quantities = {name: row[name] for name in INVERSION}
    quantities["found"] = "".join(row["found_text"]) if row["exact"] else row["found"]
    if not row["at_floor"]:  # at the floor it is rounding
        quantities["residual"] = row["residual"]
    if row["certificate"] is None and row["family"] in ("gradient", "search"):
        about = {name: quantities.pop(name) for name in UNPROVED if name in quantities}
        quantities["about right"] = about["verdict"].count("recovered")
        quantities |= {f"about {name}": about[name] for name in STEPPED if name in about}
    if row["prompts"] != "text":
        quantities["truth"] = "".join(row["truth_text"])
    return _place(case, row), dict(_flat(quantities))


def _other(case: str, row: Row) -> tuple[Place, Row]:
    aside, lens = ASIDE | set(PLACES.get(row["kind"], ())), row["kind"] == "lens"
    if lens:
        about = [row["figure"]]
        about += [
            f"{k} {v}" for k, v in row.items() if k not in ASIDE | {"value", "low", "high", "n"}
        ]
        # limits of two clusters are 12.7 times their difference, which may be rounding
        aside = set(row) - ({"value", "n"} if row.get("n") == 2 else {"value", "low", "high", "n"})
    else:
        about = [f"{name} {row[name]}" for name in PLACES.get(row["kind"], ()) if name in row]
    quantities = dict(_flat({k: v for k, v in row.items() if k not in aside}))
    name = ", ".join(about)
    return _place(case, row), {f"{name}: {k}" if name else k: v for k, v in quantities.items()}


def _place(case: str, row: Row) -> Place:
    about = row["checkpoint"]
    site = {"layer": row.get("layer"), "part": "", "without": [], **row.get("site", {})}
    layer = "" if site["layer"] is None else f"layer {site['layer']}"
    prompt = f"{row['prompts']} {row['prompt']}" if "prompt" in row else ""
    aside = [str(row[name]) for name in ("control", "noise") if row.get(name)]
    return Place(
        case,
        _inside(f"{about['name']} {about['step']}"),
        " ".join(filter(None, [layer, site["part"], *site["without"]])),
        row.get("slice", ""),
        str(row.get("lens") or row.get("method", row["kind"])),
        _inside(", ".join(filter(None, [prompt, *aside]))),
        str(row.get("seed", "")),
    )


def _inside(text: str) -> str:
    """Paths in it as seen from this folder."""
    return text.replace(f"{HERE}/", "")


def _pictures(case: str, folder: Path) -> Iterator[tuple[Place, Row]]:
    """What charts alone show: the size and the mean absolute value of each array."""
    for file in sorted(folder.glob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        about = document["checkpoint"]
        place = Place(case, f"{about['name']} {about['step']}", solver=document["lens"])
        charted: dict[str, list[float]] = {}
        for one in document["numbers"]:
            if not one["rows"]:
                numbers = [abs(x) for x in one["values"] if x is not None]
                charted.setdefault(one["name"], []).extend(numbers)
        digests = {
            f"array {name}": [len(numbers), sum(numbers) / max(1, len(numbers))]
            for name, numbers in charted.items()
        }
        yield place, digests


def _flat(values: Row, before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested fields as `outer.inner`; lists stay."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def _lines(case: str, file: Path, command: str) -> Iterator[tuple[Place, Row]]:
    """A CSV of figures, a place a line."""
    with file.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            places = ("model", "step") if command == "compare" else SUMMARY
            names = [name for name in line if name not in places]
            about = {k: v for k, v in line.items() if k not in names and v and k not in UNSTABLE}
            numbers = {k: _number(line[k]) for k in names if line[k] and k not in UNSTABLE}
            solver = about.pop("method", "")
            model = f"{about.pop('model')} {about.pop('step')}"
            words = ", ".join(f"{name} {value}" for name, value in about.items())
            yield Place(case, model, solver=solver, prompt=words), numbers


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
