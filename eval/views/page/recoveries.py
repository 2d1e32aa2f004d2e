"""Recoveries in figures: what the page and the terminal show of them, from one summary.

Of each recovery one share counts: that of its hidden tokens, or of the shown ones where none is
hidden. A question is plain where all channels are shown, without noise, ablations, controls or
pads.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from arch.errors import printable
from eval.analysis.frame import Frame, coordinates, frame
from eval.analysis.summary import summarise, tell_prompts_apart
from eval.drawing.markup import visible
from eval.drawing.tables import Record, across, terminal
from eval.messages import RequestError
from eval.rows.schema import Row
from eval.sites.slices import Slice

BEFORE, BETWEEN, AFTER = PHASES = ("before", "between", "after")
"""Of training: untrained, and the last step of each run."""
QUESTION = ("model", "d_model", "layer", "part", "slice", "hidden", "prompt_kind", "without",
            "noise", "control", "padded", "solver", "family", "settings")  # fmt: skip
"""The coordinates that tell figures apart, beside the phase or the step."""
POOLED = ("step", "trained", "phase", "observed")
ANSWERS = 15
"""Answers that a terminal shows in full, at most."""


def select_lines(lines: Frame) -> Frame:
    """The share of each recovery that counts: a line each, with its `phase` of training.

    Args:
        lines: of `eval.analysis.frame.frame`.

    Raises:
        RequestError: there are no recoveries, or none with a token.
    """
    lines = lines if lines.empty else lines[lines["kind"] == "recovery"]
    if lines.empty:
        raise RequestError("no rows: there is nothing to report; run `python -m eval invert` first")
    count, lines = lines["key"].nunique(), lines[lines["quantity"].isin(["self", "nonself"])]
    if lines.empty:
        raise RequestError(f"{count} rows, but none has a scored token; run the eval anew")
    lines = lines.sort_values("quantity", kind="stable").drop_duplicates("row").sort_values("row")
    lines = tell_prompts_apart(lines)
    trained = lines["trained"].astype(bool)
    last = lines["step"].where(trained).groupby([lines["model_id"], lines["name"]])
    ended = lines["step"] == last.transform("max")
    lines["phase"] = BETWEEN
    lines.loc[ended, "phase"] = AFTER
    lines.loc[~trained, "phase"] = BEFORE
    return lines


def recoveries(lines: Frame, over: str = "phase") -> list[Record]:
    """The figures of recoveries, in the order of reading.

    Each has the coordinates of `QUESTION` and `over`; `top1` with `_low` and `_high`; the numbers
    of `prompts` and training seeds (`models`); and in words `tokens` (those asked for), `site`,
    `departs` (in what the question is not plain) and `solver`, with its settings where it was asked
    with several; `solver_name` is without them.

    Args:
        lines: of `select_lines`.
        over: the phase of training, or the step.
    """
    from eval.inversion.solver import FAMILIES, solvers

    by = [*QUESTION, over]
    found = summarise(lines, by, [name for name in POOLED if name not in by])
    models, known = list(dict.fromkeys(lines["model"])), list(solvers())

    def rank(record: Record) -> tuple[int, int, str]:
        name, family = record["solver"], record["family"]
        number = known.index(name) if name in known else len(known)
        return FAMILIES.index(family) if family in FAMILIES else 1, number, record["settings"]

    records, summed = [], found.to_dict("records")
    for record, name in zip(summed, solver_names(summed), strict=True):
        departs = departures(record)
        records.append(record | {
            "top1": record["value"], "top1_low": record["low"], "top1_high": record["high"],
            "prompts": record["n"], "tokens": _tokens(record), "departures": departs,
            "departs": ", ".join(departs.values()), "site": site(record),
            "channels": _first_channels(record),
            "solver": name, "solver_name": record["solver"],
            "rank": rank(record),
        })  # fmt: skip

    def order(record: Record) -> tuple[Any, ...]:
        where = ("noise", "departs", "prompt_kind", "hidden", "slice", "part", "layer", "rank")
        when = PHASES.index(record[over]) if over == "phase" else record[over]
        return (models.index(record["model"]), *(record[name] for name in where), when)

    return sorted(records, key=order)


def deepest(records: Sequence[Record]) -> list[Record]:
    """The records of each question at its deepest site, blocks before other parts."""
    sites: dict[tuple[Any, ...], tuple[bool, int]] = {}
    placed = []
    for record in records:
        key = tuple(record[name] for name in ("model", "tokens", "departs"))
        site = (record["part"] == "block", record["layer"])
        sites[key] = max(sites.get(key, site), site)
        placed.append((record, key, site))
    return [record for record, key, site in placed if sites[key] == site]


def solver_names(records: Sequence[Record]) -> list[str]:
    """The solver of each record, with its settings where one was asked with several."""
    pairs = {(record["solver"], record["settings"]) for record in records}
    ambiguous = {name for name, count in Counter(name for name, _ in pairs).items() if count > 1}
    return [f"{r['solver']} {r['settings']}" if r["solver"] in ambiguous else r["solver"]
            for r in records]  # fmt: skip


def solvers_in_order(records: Sequence[Record]) -> list[str]:
    """The solvers of `recoveries`, each once, by their families and as `solvers` lists them."""
    return list(dict.fromkeys(r["solver"] for r in sorted(records, key=lambda r: r["rank"])))


def site(record: Record) -> str:
    """`4` for a block's output, `4 mixer` and the like for its parts."""
    return str(record["layer"]) + f" {record['part']}" * (record["part"] != "block")


def departures(record: Record) -> dict[str, str]:
    """In what a question is not plain, in words."""
    shown = Slice.parse(record["slice"])
    words = {
        "channels": f"channels {shown.low or ''}:{'' if shown.high is None else shown.high}",
        "without": f"without {record.get('without')}",
        "noise": f"noise {record.get('noise', 0):g}",
        "control": f"control: {record.get('control')}",
        "padded": "padded",
    }
    departs = {"channels": not shown.has_all_channels} | record
    return {name: said for name, said in words.items() if departs.get(name)}


def terminal_text(rows: Sequence[Row]) -> str:
    """Recoveries for a terminal: the answers of few rows, then shares by solver.

    Raises:
        RequestError: there are no recoveries, or none with a token.
    """
    records = recoveries(select_lines(frame(rows)), over="step")
    fields = {"tokens": "tokens asked for", "site": "layer", "departs": "with"}
    renamed = [record | {words: record[name] for name, words in fields.items()}
               for record in records]  # fmt: skip
    shown = ["model", "step", "layer", "tokens asked for", "with", "prompts"]
    title, order = "Tokens recovered, % (top-1)", solvers_in_order(records)
    table = across(renamed, shown, "solver", [("top1", "", True)], title, order)
    answers = "\n".join(answer_lines(rows))
    return terminal(*[answers] * bool(answers), table)


def answer_lines(rows: Sequence[Row]) -> list[str]:
    """Each prompt, and below it what was recovered of it, wrong tokens in brackets; of few rows."""
    prompts: dict[str, list[str]] = {}
    for row in rows if len(rows) <= ANSWERS else ():
        about = row["checkpoint"]
        said = "".join(
            (piece and visible(piece)) if found == true else f"[{visible(piece)}]"
            for piece, found, true in zip(
                row["found_text"], row["found"], row["truth"], strict=True
            )
        )
        prompt = f"{printable(about['name'])}, step {about['step']}: {visible(row['text'])}"
        question = coordinates(row)
        which = "  ".join([f"layer {site(question)}", row["slice"], *departures(question).values()])
        where = f"  {which}  {row['solver']:12}"
        prompts.setdefault(prompt, []).append(f"{where}  {said}")
    return [line for prompt, lines in prompts.items() for line in (prompt, *lines)]


def _tokens(record: Record) -> str:
    """The tokens asked for, in words: `3 hidden tokens`, `all tokens shown`."""
    count, shown = record["hidden"], Slice.parse(record["slice"])
    plain = (shown.start, shown.stop, shown.more) == (count, None, ())
    where = "" if plain else f" of {Slice(shown.start, shown.stop, more=shown.more)}"
    of = "" if record["prompt_kind"] == "story" else f", {record['prompt_kind']}"
    if record["quantity"] == "nonself":
        return f"{count} hidden token{'s' * (count > 1)}{where}{of}"
    return f"all tokens shown{where}{of}"


def _first_channels(record: Record) -> int | None:
    """How many channels are shown, where they are the first ones; None where that is not known."""
    shown, width = Slice.parse(record["slice"]), record["d_model"]
    joined = record["part"].count("+") + 1  # layers, whose channels stand side by side
    return None if shown.low else len(range(joined * width)[: shown.high])
