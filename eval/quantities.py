"""The quantities of each kind of row, and the places where they are measured.

A `Quantity` says how its value is read from a row and how rows of one place become one figure. The
`place` of a kind says which fields tell one place from another. Summaries, tables, pages and
comparisons read these declarations.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from eval.recovery import accepted, is_false_accept, margin_bits, recovery_coordinates
from eval.schema import Row

if TYPE_CHECKING:
    import pandas

Place = dict[str, Hashable]


class Estimate(NamedTuple):
    """A value, its 95 % interval where there is one, and how many measurements it is of.

    `lengths` are the tokens of the shortest and of the longest prompt, of figures that pool them.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    lengths: tuple[int, int] | None = None


@dataclass(frozen=True)
class Quantity:
    """One number that rows hold.

    Attributes:
        name: in records, files and frames.
        pool: how the rows of one place become one figure. `share`: hits over counts, clustered on
            prompts and training seeds; `mean`: clustered alike; `whole`: the share of pairs of
            prompt and model, by Wilson; `text`: bits per byte, from the parts of a text; `seeds`:
            the mean over models, by Student; `median`, `least`, `sum`: over rows, without an
            interval.
        of: reads it from a row, None where it does not apply: hits and counts for `share`, an
            `Estimate` for `seeds`, a text's parts for `text`, a number for the others.
        title: in tables; the name when not given.
        share: whether it is shown in per cent.
        main: whether `compare` shows it by default.
    """

    name: str
    pool: str
    of: Callable[[Row], Any]
    title: str = ""
    share: bool = False
    main: bool = True

    @property
    def words(self) -> str:
        """Its heading in tables."""
        return self.title or self.name.replace("_", " ")


class Kind(NamedTuple):
    """The quantities of a kind of rows, and the fields of their place.

    `parts` makes of a row that was measured at several places a row for each.
    """

    place: Callable[[Row], Place]
    quantities: tuple[Quantity, ...] = ()
    parts: Callable[[Row], Iterable[Row]] = lambda row: (row,)


def quantities(row: Row) -> tuple[Quantity, ...]:
    """The quantities of a row: those of its kind, or the one figure that the row itself names."""
    known = MEASURED.get(row["kind"], _OTHER).quantities
    return known or ((_figure(row["figure"]),) if "figure" in row else ())


def place(row: Row) -> Place:
    """Where and how a row was measured: equal for rows that differ in model, prompt or seed."""
    return MEASURED.get(row["kind"], _OTHER).place(row)


def split_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows of one place each."""
    for row in rows:
        yield from MEASURED.get(row["kind"], _OTHER).parts(row)


def frame(rows: Iterable[Row]) -> "pandas.DataFrame":
    """Rows as a tidy table: a line for each checkpoint, place, prompt, seed and quantity.

    Columns: model, model_id, step, trained, kind, the fields of the places, prompt, seed, quantity,
    value, and n, the count that a share is of.
    """
    import pandas

    return pandas.DataFrame(line for row in split_rows(rows) for line in _lines(row))


def _lines(row: Row) -> Iterator[dict[str, Any]]:
    about = row.get("checkpoint", {})
    where = {"model": about.get("name")} | {
        n: about.get(n) for n in ("model_id", "step", "trained")
    }
    where |= {"kind": row["kind"], **place(row)}
    where |= {name: row.get(name) for name in ("prompt", "seed")}
    for quantity in quantities(row):
        value, n = quantity.of(row), 1
        if value is None:
            continue
        if quantity.pool == "share":
            value, n = value[0] / value[1], value[1]
        elif quantity.pool == "seeds":
            value, n = value.value, value.n
        elif quantity.pool == "text":
            value, n = row[quantity.name], row["stories"]
        yield {**where, "quantity": quantity.name, "value": float(value), "n": n}


def one(value: float | None) -> tuple[float, int] | None:
    """A share of each row, as one trial of many."""
    return None if value is None else (float(value), 1)


def _fields(*names: str) -> Callable[[Row], Place]:
    """A place of plain fields, of the row or its site; fields that a row lacks are left out."""

    def of(row: Row) -> Place:
        values = {name: row.get(name, row.get("site", {}).get(name)) for name in names}
        return {
            name: "+".join(map(str, value)) if isinstance(value, list) else value
            for name, value in values.items()
            if value is not None
        }

    return of


def _lens(row: Row) -> Place:
    """Every short field of a lens's row is a place, but for those of every row."""
    names = [n for n, v in row.items() if isinstance(v, str | int | float) and n not in _NO_PLACE]
    return _fields("layer", "part", *(n for n in names if n not in ("layer", "part")))(row)


_NO_PLACE = {
    "schema", "key", "kind", "checkpoint", "site", "settings", "family", "figure", "value", "low",
    "high", "n", "text", "truth", "prompt", "seed", "seconds", "device", "look",
}  # fmt: skip


def _tokens(kind: str, words: str) -> tuple[Quantity, ...]:
    """Of the tokens whose own position is shown, or hidden."""

    def of(read: Callable[[dict[str, Any]], Any]) -> Callable[[Row], Any]:
        return lambda row: read(row[kind]) if row[kind] and row[kind]["count"] else None

    hits = of(lambda tally: (round(tally["top1"] * tally["count"]), tally["count"]))
    top5 = of(lambda tally: (tally["top5"] * tally["count"], tally["count"]))
    return (
        Quantity(kind, "share", hits, words, True),
        Quantity(f"{kind}_tokens", "sum", of(lambda tally: tally["count"]), f"{words} tokens"),
        Quantity(f"{kind}_top5", "share", top5, f"{words} top-5", True),
        Quantity(f"{kind}_rank", "median", of(lambda tally: tally["median_rank"]), f"{words} rank"),
    )


def _of_jacobian(name: str) -> Quantity:
    """A condition that is not bounded is None in a row, as JSON has no infinity."""
    main = name in ("sigma_min", "effective_rank")
    return Quantity(name, "median", lambda row: math.inf if row[name] is None else row[name],
                    main=main)  # fmt: skip


def _judged(passed: bool, exact: bool) -> Quantity:
    """Rows by the published protocol's test, and whether the whole prompt is right."""
    name = f"{'criterion' if passed else 'failed'}_{'exact' if exact else 'wrong'}"
    words = f"criterion {'passed' if passed else 'failed'}, {'right' if exact else 'wrong'}"
    return Quantity(name, "sum", lambda row: None if row["criterion"] is None
                    else (row["criterion"], row["exact"]) == (passed, exact), words)  # fmt: skip


def _seeds(
    name: str, title: str = "", share: bool = False, main: bool = True, fields: str = ""
) -> Quantity:
    """A figure that each model has once, with its own interval if the row has one.

    `fields` name the value, its limits and its n in a row, where they are not `name low high n`; a
    dot goes into a field.
    """
    path, low, high, n = (fields or f"{name} low high n").split()

    def of(row: Row) -> Estimate | None:
        value: Any = row
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return None
        return Estimate(float(value), row.get(low), row.get(high), row.get(n) or 1)

    return Quantity(name, "seeds", of, title, share, main)


def _figure(name: str) -> Quantity:
    """A lens figure, of the rows that name it alone; `measure` asks it of all rows of a place."""
    value = _seeds(name, fields="value low high n")
    return replace(value, of=lambda row: value.of(row) if row["figure"] == name else None)


def _bits(row: Row) -> Iterator[Row]:
    """A row for each figure: of one distance, prior and precision, alone or with those before."""
    names = ("key", "kind", "checkpoint", "site", "corpus", "place", "candidates")
    about = {n: row[n] for n in (*names, "prompts", "prompt", "truth")}
    for line in figure_lines(row):
        yield {**about, **line}


def figure_lines(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The figures of a row of bits, one a line.

    Each has `quantity` (bits, margin_bits, effect, effect_sampled, rms), `distance`, `value`, and
    where they apply `shown` (alone or cumulative), `precision` and `prior`.
    """
    several = [
        ({"quantity": name}, {None: row[name]}) for name in ("rms", "effect", "effect_sampled")
    ]
    several.append(({"quantity": "margin_bits"}, row["margin_bits"]))
    for prior, precisions in row["bits"].items():
        place = {"quantity": "bits", "prior": prior}
        several += [(place | {"precision": name}, kinds) for name, kinds in precisions.items()]
    for place, kinds in several:
        for shown, values in kinds.items():
            kind = {"shown": shown} if shown else {}
            for distance, value in zip(row["distances"], values, strict=True):
                yield place | kind | {"distance": distance, "value": value}


def _named(name: str, row: Row) -> float | None:
    return row["value"] if row["quantity"] == name else None


_OF_PROMPTS = {"set_recall": "in any order", "permuted": "", "criterion": ""}
MEASURED = {
    "recovery": Kind(
        recovery_coordinates,
        (
            *_tokens("self", "self"),
            *_tokens("nonself", "non-self"),
            Quantity("exact", "whole", lambda row: row["exact"], "whole prompt", True),
            *(Quantity(name, "share", lambda row, name=name: one(row[name]), words, True)
              for name, words in _OF_PROMPTS.items()),
            *(_judged(passed, exact) for passed in (True, False) for exact in (True, False)),
            Quantity(
                "residual_floors",
                "median",
                lambda row: row["residual"] / row["floor"] if row["floor"] else None,
                "residual/floor",
            ),
            Quantity("margin_bits", "least", margin_bits),
            Quantity("at_floor", "sum", accepted),
            Quantity("enumerated", "sum", lambda row: row["certificate"] == "enumerated"),
            Quantity("false_accepts", "sum", is_false_accept),
            Quantity("tokens_accepted", "sum", lambda row: accepted(row) * row["length"]),
            Quantity("evaluations", "median", lambda row: row["evaluations"]),
            Quantity("seconds", "median", lambda row: row["seconds"]),
            Quantity("steps_to_solve", "median", lambda row: row["steps_to_solve"]),
            Quantity("solved", "sum", lambda row: row["steps_to_solve"] is not None),
            Quantity("diverged", "sum", lambda row: row["diverged"]),
        ),
    ),
    "probe": Kind(
        _fields("layer", "part", "offset", "method"),
        (
            _seeds("top1", "top-1", True),
            _seeds("information", main=False),
            _seeds("unigram.top1", "unigram top-1", True, False),
            _seeds("unigram.information", main=False),
            _seeds("gain", main=False),
        ),
    ),
    "geometry": Kind(
        _fields("layer", "part", "hidden"),
        (
            *map(_of_jacobian, ("sigma_max", "sigma_min", "condition", "effective_rank")),
            # hidden features that the norms do not remove, where a row has them
            Quantity("of", "median", lambda row: row["inputs"] - row["removed"]
                     if "inputs" in row else None, main=False),
        ),
    ),
    "loss": Kind(
        _fields("corpus", "stories"),
        (
            Quantity("bits_per_byte", "text", lambda row: row["parts"], "bits/byte"),
            _seeds("nats_per_token", "nats/token"),
            _seeds("perplexity", main=False),
            _seeds("tokens", main=False),
            _seeds("tokens_per_second", "tokens/s", main=False),
        ),
    ),
    "bits": Kind(
        _fields(
            *("layer", "corpus", "place", "candidates"),
            *("prior", "precision", "shown", "distance"),
        ),
        tuple(
            Quantity(name, "mean", partial(_named, name), title, main=name in ("bits", "effect"))
            for name, title in (
                ("bits", "bits"),
                ("margin_bits", "margin, bits"),
                ("effect", "effect/RMS"),
                ("effect_sampled", "effect/RMS, sampled"),
                ("rms", "RMS"),
            )
        ),
        _bits,
    ),
    "lens": Kind(_lens),
}  # fmt: skip
_OTHER = MEASURED["lens"]
