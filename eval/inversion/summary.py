"""Rows summed up: one line per model, training step, site, slice, method and kind of prompt.

Training seeds of one model (`eval.identity`) are pooled, and so are prompts and solver seeds;
shares carry 95 % intervals clustered on prompts and training seeds.
"""

from collections.abc import Callable, Hashable, Iterable
from statistics import fmean, median
from typing import Any, NamedTuple

from eval.errors import RequestError
from eval.identity import labels
from eval.inversion.answer import set_recall
from eval.inversion.fields import (
    SHUFFLED,
    accepted,
    family,
    hidden_positions,
    layers,
    margin_bits,
    model,
    part,
    prompt,
    recoveries,
    variation,
    weights,
)
from eval.inversion.verdicts import AMBIGUOUS, GRADIENT, NOT_FOUND, SEARCH, Joined, join, shares
from eval.results import Row
from eval.statistics import Interval, at_most, exact_share, share

Record = dict[str, Any]

PLACE = (
    "model", "mixers", "d_model", "n_layers", "context", "step", "trained", "layer", "part",
    "slice", "hidden", "observed", "prompt_kind", "without", "noise", "control", "padded",
    "method", "family", "settings",
)  # fmt: skip
"""The fields that say what a record is about; the others are figures."""
OF_METHOD = ("method", "family", "settings")
"""Those of them that say how it was asked."""
SHORT = {GRADIENT: "gradient", SEARCH: "search", AMBIGUOUS: "ambiguous", NOT_FOUND: "not_found"}
"""Names of the verdicts in fields."""


def summarise(rows: list[Row], pool_lengths: bool = False) -> list[Record]:
    """The summary, in the order of reading.

    A record's fields are `PLACE` and the figures of `figures`; those that do not apply are None.

    Args:
        rows: of any kinds.
        pool_lengths: make one line of prompts of all lengths; `lengths` is then the shortest and
            the longest, `hidden` and `observed` are those of the longest.

    Raises:
        RequestError: there are no rows.
    """
    rows = recoveries(rows)
    if not rows:
        raise RequestError("no rows: there is nothing to sum up; run `python -m eval invert` first")
    names = labels(rows)
    groups: dict[tuple[Hashable, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_cell(row, pool_lengths), []).append(row)
    records = []
    for group in groups.values():
        longest = max(group, key=lambda row: row["length"])
        record = _place(longest, names) | figures(group)
        if pool_lengths:
            record["lengths"] = (min(row["length"] for row in group), longest["length"])
        records.append(record)
    models = list(names.values())
    return sorted(records, key=lambda record: _reading_order(record, models))


def summarise_verdicts(rows: list[Row]) -> list[Record]:
    """Verdicts across methods, one line per question, where both families of methods were tried.

    A record's fields are `PLACE` without those of a method, and for `self` and `nonself` tokens
    the share of each verdict with its interval: `nonself_gradient`, `_search`, `_ambiguous`,
    `_not_found`, each with `_low` and `_high`.
    """
    rows = recoveries(rows)
    names = labels(rows)
    groups: dict[tuple[Hashable, ...], list[Joined]] = {}
    for joined in join(rows):
        if joined.decisive:
            groups.setdefault(_question(joined.rows[0]), []).append(joined)
    records = []
    for own in groups.values():
        place = _place(own[0].rows[0], names)
        record = {field: place[field] for field in PLACE if field not in OF_METHOD}
        for kind in ("self", "nonself"):
            record |= _verdicts(kind, own)
        asked = [joined.rows[0] for joined in own]
        record |= {
            "methods": len({row["method"] for joined in own for row in joined.rows}),
            "prompts": len({prompt(row) for row in asked}),
            "models": len({weights(row) for row in asked}),
        }
        records.append(record)
    models = list(names.values())
    return sorted(records, key=lambda record: _reading_order(record, models))


def figures(rows: list[Row]) -> Record:
    """The figures of rows of one cell.

    - `self`, `nonself`: token accuracy (top-1) of shown and hidden tokens, `_low`, `_high` its
      interval, `_tokens` their number, `_top5`, and `_rank`, the median over rows of the true
      token's median rank.
    - `exact`: share of prompts found whole, with `_low` and `_high`.
    - `set_recall`: hidden tokens found at any hidden position; `permuted`: share of prompts whose
      hidden tokens are all found, in another order.
    - `criterion`: share of rows that pass the published protocol's own test; crossed with
      finding the whole prompt: `criterion_exact`, `criterion_wrong`, `failed_exact`,
      `failed_wrong` (counts).
    - `residual_floors`: median of residual over floor; `margin_bits`: the smallest of the
      rows whose search arrived.
    - `at_floor`: rows whose answer explains the evidence to within rounding, of models in float32
      (below it, wrong answers do too); `enumerated`: rows
      that tried every input there is, without those that screened most of them;
      `false_accepts`: rows at the floor that are wrong at a position that the evidence depends on,
      and do not name the truth as one of several that fit; `tokens_accepted`: tokens of rows at
      the floor.
    - `evaluations`, `seconds`, `steps_to_solve`: medians; `solved`: rows that have steps to solve.
    - `diverged`: rows whose solver ended in numbers that are not finite; `rows`, `prompts`,
      `models`: counts.

    A figure that a row does not have (None) is left out of means, medians and minima.
    """
    prompts, models = [prompt(row) for row in rows], [weights(row) for row in rows]
    found: Record = {}
    for kind in ("self", "nonself"):
        found |= _tokens(kind, rows)
    found |= _interval("exact", exact_share([row["exact"] for row in rows], prompts, models))
    hidden = [(row, sorted(hidden_positions(row))) for row in rows]
    recalls = [set_recall(row["found"], row["truth"], places) for row, places in hidden]
    at_floor = [row for row in rows if accepted(row)]
    return (
        found
        | {
            "set_recall": _over(fmean, recalls),
            "permuted": _over(fmean, [row.get("permuted") for row in rows]),
        }
        | _criterion(rows)
        | {
            "residual_floors": _over(
                median, [row["residual"] / row["floor"] if row["floor"] else None for row in rows]
            ),
            "margin_bits": _over(min, map(margin_bits, rows)),
            "at_floor": len(at_floor),
            "enumerated": sum(row.get("certificate") == "enumerated" for row in rows),
            "false_accepts": sum(map(is_false_accept, rows)),
            "tokens_accepted": sum(row["length"] for row in at_floor),
            "evaluations": median(row["evaluations"] for row in rows),
            "seconds": median(row["seconds"] for row in rows),
            "steps_to_solve": _over(median, [row.get("steps_to_solve") for row in rows]),
            "solved": sum(row.get("steps_to_solve") is not None for row in rows),
            "diverged": sum(bool(row.get("diverged")) for row in rows),
            "rows": len(rows),
            "prompts": len(set(prompts)),
            "models": len(set(models)),
        }
    )


class Accepts(NamedTuple):
    """Answers at the floor, and the wrong ones among them; what they are of.

    Attributes:
        wrong: answers at the floor that are false accepts.
        answers: answers at the floor.
        tokens: of those answers.
        wrong_pairs: pairs of prompt and model with a false accept.
        pairs: pairs of prompt and model with an answer at the floor.
    """

    wrong: int
    answers: int
    tokens: int
    wrong_pairs: int
    pairs: int

    @property
    def bound(self) -> float:
        """The share of pairs with a false accept, at most, with 95 % confidence; pairs >= 1.

        Tokens, layers, methods and seeds of one pair stand or fall together: they are one trial.
        """
        return at_most(self.wrong_pairs, self.pairs)


def accepts(rows: Iterable[Row]) -> Accepts:
    """What was accepted, and how much of it wrongly; controls and noisy targets left out."""
    clean = [row for row in recoveries(rows) if not {"control", "noise"} & variation(row).keys()]
    answers = [row for row in clean if accepted(row)]
    wrong = [row for row in answers if is_false_accept(row)]
    return Accepts(
        wrong=len(wrong),
        answers=len(answers),
        tokens=sum(row["length"] for row in answers),
        wrong_pairs=len({(prompt(row), weights(row)) for row in wrong}),
        pairs=len({(prompt(row), weights(row)) for row in answers}),
    )


def is_false_accept(row: Row) -> bool:
    """Whether a row proves a wrong answer: at the floor, wrong, and no collision to tell of it.

    Positions after the last one shown leave no trace in what is shown, so they are not counted; nor
    is a target that belongs to another prompt, of which the truth is no explanation.
    """
    if not accepted(row) or row["exact"] or row.get("control") == SHUFFLED:
        return False
    shown = set(range(row["length"])) - hidden_positions(row)
    last = row["length"] - 1 if row.get("padded") else max(shown, default=-1)
    told = {collision["position"] for collision in row["collisions"]}
    return any(row["found"][t] != row["truth"][t] and t not in told for t in range(last + 1))


def _tokens(kind: str, rows: list[Row]) -> Record:
    scored = [row for row in rows if row[kind] and row[kind]["count"]]
    names = ("", "_low", "_high", "_tokens", "_top5", "_rank")
    if not scored:
        return {kind + name: None for name in names}
    counts = [row[kind]["count"] for row in scored]
    hits = [round(row[kind]["top1"] * row[kind]["count"]) for row in scored]
    interval = share(hits, counts, [prompt(r) for r in scored], [weights(r) for r in scored])
    top5 = sum(row[kind]["top5"] * row[kind]["count"] for row in scored) / sum(counts)
    rank = median(row[kind]["median_rank"] for row in scored)
    return dict(zip((kind + n for n in names), (*interval, sum(counts), top5, rank), strict=True))


def _verdicts(kind: str, own: list[Joined]) -> Record:
    found = shares(own, hidden=kind == "nonself")
    record: Record = {}
    for verdict, name in SHORT.items():
        field = f"{kind}_{name}"
        record |= (
            _interval(field, found[verdict])
            if found
            else dict.fromkeys((field, f"{field}_low", f"{field}_high"))
        )
    return record


def _interval(name: str, interval: Interval) -> Record:
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _criterion(rows: list[Row]) -> Record:
    tried = [row for row in rows if row.get("criterion") is not None]
    counts = {
        f"{'criterion' if passed else 'failed'}_{'exact' if exact else 'wrong'}": sum(
            (row["criterion"], row["exact"]) == (passed, exact) for row in tried
        )
        if tried
        else None
        for passed in (True, False)
        for exact in (True, False)
    }
    return {"criterion": _over(fmean, [row["criterion"] for row in tried])} | counts


def _over(pool: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    """The pooled known values; None if there are none."""
    known = [value for value in values if value is not None]
    return pool(known) if known else None


def _cell(row: Row, pool_lengths: bool) -> tuple[Hashable, ...]:
    return (*_question(row, pool_lengths), row["method"], _settings(row))


def _question(row: Row, pool_lengths: bool = False) -> tuple[Hashable, ...]:
    return (
        model(row),
        row["checkpoint"]["step"],
        row["checkpoint"]["trained"],
        layers(row),
        part(row),
        row["slice"],
        None if pool_lengths else (row["observed"], row["hidden"]),
        row["prompts"],
        tuple(variation(row).items()),
    )


def _place(row: Row, names: dict[str, str]) -> Record:
    checkpoint, departs = row["checkpoint"], variation(row)
    return {
        "model": names[model(row)],
        "mixers": ", ".join(checkpoint["mixers"]),
        **{field: checkpoint[field] for field in ("d_model", "n_layers", "context")},
        "step": checkpoint["step"],
        "trained": checkpoint["trained"],
        "layer": max(layers(row)),
        "part": part(row),
        "slice": row["slice"],
        "hidden": row["hidden"],
        "observed": row["observed"],
        "prompt_kind": row["prompts"],
        "without": departs.get("without", ""),
        "noise": departs.get("noise", 0.0),
        "control": departs.get("control", ""),
        "padded": departs.get("padded", False),
        "method": row["method"],
        "family": family(row),
        "settings": _settings(row),
    }


def _settings(row: Row) -> str:
    return " ".join(f"{name}={value}" for name, value in row["settings"].items())


def _reading_order(record: Record, models: list[str]) -> tuple[Any, ...]:
    plain = not (record["control"] or record["noise"] or record["without"] or record["padded"])
    place = ("prompt_kind", "without", "control", "noise", "padded", "step", "part", "layer")
    what = ("hidden", "slice", "observed", *(f for f in OF_METHOD if f in record))
    return (not plain, models.index(record["model"]), *(record[f] for f in (*place, *what)))
