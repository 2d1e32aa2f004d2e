"""The one table of measurements: what rows of each kind measure, and at which coordinates.

`KINDS` declares for each kind of row its coordinates and its quantities. `frame` lays rows out by
it: a pandas data frame with a line for each row and quantity. `summarise` (in `eval.analysis`)
pools these lines; tables, pages, comparisons and W&B show what it gives.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from eval.analysis.accepts import accepted, is_false_accept
from eval.analysis.coordinates import (
    BITS,
    OF_LOSS,
    last_looks,
    of_bits,
    of_geometry,
    of_lens,
    of_loss,
    of_probe,
    of_recovery,
    say_trained_again,
    tell_texts_apart,
)
from eval.messages import RequestError
from eval.models.identity import labels, seed_labels, training_of
from eval.rows.schema import Row

MODEL = ("model", "mixers", "d_model", "n_layers", "context", "step", "trained")
"""Columns that say of which model a line is."""
LINE = ("row", "quantity", "hits", "n", "value", "low", "high")
"""Columns that say what was measured; `hits` of `n` is a share or a ratio, and `value` it."""

Frame: TypeAlias = Any
"""A pandas data frame; annotations of pandas leave open what an index or a column gives."""
Coordinates = dict[str, Hashable]
Measured = tuple[float | None, float, float, float | None, float | None]
"""Hits (None where nothing is counted), n, value, and the row's own interval, where it has one."""


@dataclass(frozen=True)
class Quantity:
    """One number that rows hold.

    Attributes:
        name: in frames, files and W&B.
        pool: how lines become one figure. `share`: hits over n, clustered on prompts and training
            seeds; `ratio`: the same of what is no share; `whole`: the share of whole prompts, of
            one model by Wilson; `mean`: clustered; `seeds`: the mean over models, by Student;
            `median`, `least`, `sum`: over rows, without an interval.
        read: gives what a row measured; None where it does not apply.
        title: in tables; the name when not given.
        percent: whether tables show it in per cent.
        main: whether terminals show it.
    """

    name: str
    pool: str
    read: Callable[[Row], Measured | None]
    title: str = ""
    percent: bool = False
    main: bool = True

    @property
    def words(self) -> str:
        """The heading of the quantity in tables."""
        return self.title or self.name.replace("_", " ")


class Kind(NamedTuple):
    """The coordinates and the quantities of a kind of rows.

    `read` gives a row's coordinates; `split` makes of a row measured at several of them a row each.
    The coordinates are those that name a line of a table. Of recoveries words do, of a lens those
    that its rows have.
    """

    coordinates: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    read: Callable[[Row], Coordinates]
    split: Callable[[Row], Iterable[Row]] = lambda row: (row,)


def coordinates(row: Row) -> Coordinates:
    """Where and how a row was measured: equal for rows that differ in model, prompt or seed."""
    return KINDS[row["kind"]].read(row)


def quantities(lines: Frame) -> list[Quantity]:
    """The quantities of the kinds in a frame: those declared, and each figure of lenses in it."""
    known = [quantity for kind in lines["kind"].unique() for quantity in KINDS[kind].quantities]
    figures = lines.loc[lines["kind"] == "lens", "quantity"].unique()
    return [*known, *map(_figure, figures)]


def frame(rows: Iterable[Row], every_seed: bool = False) -> Frame:
    """Rows as a table, a line for each row and quantity; of rows with equal keys the last counts.

    Columns: key, `MODEL`, name, model_id, weights, kind, the coordinates of the kinds, prompt,
    seed, length (of a whole prompt), drawn_from (its corpus), cluster (a number for each prompt),
    then `LINE` and `pool`, which is the rule of the quantity. A coordinate that a kind lacks is
    NaN.

    Args:
        every_seed: `model` is the label of each training seed, not what seeds share.
    """
    import pandas

    known = {row["key"]: row for row in rows}.values()
    rows = tell_texts_apart(last_looks(row for row in known if "checkpoint" in row))
    if not every_seed:
        say_trained_again(rows)
    if unknown := {row["kind"] for row in rows} - KINDS.keys():
        raise RequestError(f"rows of kind {', '.join(unknown)}: known are {', '.join(KINDS)}")
    names: dict[Any, str] = seed_labels(rows) if every_seed else labels(rows)
    clusters: dict[Hashable, int] = {}
    heads: list[dict[str, Any]] = []
    lines: list[tuple[Any, ...]] = []
    for whole_row in rows:
        about = _model(whole_row["checkpoint"], names, every_seed)
        for row in KINDS[whole_row["kind"]].split(whole_row):
            cluster = clusters.setdefault(row.get("cluster", prompt_of(row)), len(clusters))
            head = {"key": row["key"], **about, "kind": row["kind"], **coordinates(row)}
            sampled = {name: row.get(name) for name in ("prompt", "seed", "length")}
            if row["kind"] == "recovery":
                sampled["length"] += row["notes"].get("cut", 0)
            sampled |= {"drawn_from": row.get("corpus")}
            for quantity in KINDS[row["kind"]].quantities or (_figure(row["figure"]),):
                if measured := quantity.read(row):
                    lines.append((len(heads), quantity.name, *measured, quantity.pool))
            heads.append(head | sampled | {"cluster": cluster})
    table = pandas.DataFrame(lines, columns=[*LINE, "pool"])
    table = table.astype(dict.fromkeys(LINE[2:], float))
    if not heads:
        return table
    about = pandas.DataFrame(heads, dtype=object)
    complete = about.columns[about.notna().all()]  # others keep their whole numbers beside NaN
    about[complete] = about[complete].infer_objects()
    about = about.iloc[table["row"]].reset_index(drop=True)
    return pandas.concat([about, table], axis=1)


def _model(checkpoint: dict[str, Any], names: dict[Any, str], every_seed: bool) -> dict[str, Any]:
    label = names[training_of(checkpoint) if every_seed else checkpoint["model_id"]]
    about = {name: checkpoint.get(name) for name in MODEL}
    about |= {"model": label, "mixers": ", ".join(checkpoint.get("mixers") or ())}
    named = {name: checkpoint[name] for name in ("name", "model_id")}
    return about | named | {"weights": checkpoint["weights_sha256"]}


def counted(hits: float, n: float) -> Measured:
    """Hits among n, at least 1."""
    return hits, n, hits / n, None, None


def _number(value: float | None) -> Measured | None:
    return None if value is None else (None, 1, float(value), None, None)


def _trial(value: float | None) -> Measured | None:
    """A share of each row, as one trial of many."""
    return None if value is None else counted(float(value), 1)


def _read(name: str, pool: str, read: Callable[[Row], float | None], title: str = "") -> Quantity:
    """A plain number of each row."""
    return Quantity(name, pool, lambda row: _number(read(row)), title)


def _tokens(kind: str, words: str) -> tuple[Quantity, ...]:
    """The quantities of tokens whose own position is shown (`self`), or hidden."""

    def of(read: Callable[[dict[str, Any]], Measured | None]) -> Callable[[Row], Any]:
        return lambda row: read(row[kind]) if row[kind] and row[kind]["count"] else None

    hits = of(lambda tally: counted(round(tally["top1"] * tally["count"]), tally["count"]))
    top5 = of(lambda tally: counted(tally["top5"] * tally["count"], tally["count"]))
    rank = of(lambda tally: _number(tally["median_rank"]))
    return (
        Quantity(kind, "share", hits, words, True),
        Quantity(f"{kind}_tokens", "sum", of(lambda t: _number(t["count"])), f"{words} tokens"),
        Quantity(f"{kind}_top5", "share", top5, f"{words} top-5", True),
        Quantity(f"{kind}_rank", "median", rank, f"{words} rank"),
    )


def _judged(passed: bool, exact: bool) -> Quantity:
    """Rows by the published protocol's test, and whether the whole prompt is right."""
    name = f"{'criterion' if passed else 'failed'}_{'exact' if exact else 'wrong'}"
    words = f"criterion {'passed' if passed else 'failed'}, {'right' if exact else 'wrong'}"
    return _read(name, "sum", lambda row: None if row["criterion"] is None
                 else (row["criterion"], row["exact"]) == (passed, exact), words)  # fmt: skip


def _seeds(
    name: str, title: str = "", percent: bool = False, main: bool = True, fields: str = ""
) -> Quantity:
    """A figure that each model has once, with its own interval if the row has one.

    `fields` name the value, its limits and its n in a row, where they are not `name low high n`; a
    dot goes into a field.
    """
    path, low, high, n = (fields or f"{name} low high n").split()

    def read(row: Row) -> Measured | None:
        value: Any = row
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return None
        return None, row.get(n) or 1, float(value), row.get(low), row.get(high)

    return Quantity(name, "seeds", read, title, percent, main)


def _figure(name: str) -> Quantity:
    """The figure of a lens that a row names."""
    return _seeds(name, fields="value low high n")


def _parts(row: Row) -> Iterator[Row]:
    """Splits a row of losses: a row for each part of the text, and itself for other figures."""
    about = {n: row[n] for n in OF_LOSS if n in row}
    for part, (nats, size) in enumerate(
        zip(row["parts"]["nats"], row["parts"]["bytes"], strict=True)
    ):
        yield {**about, "cluster": ("part", part), "prompt": part, "bits": (nats, size)}
    yield {**row, "cluster": ("part", 0)}  # no part of its own, where parts are counted


def _bits_per_byte(row: Row) -> Measured | None:
    return counted(row["bits"][0] / math.log(2), row["bits"][1]) if "bits" in row else None


def _bits(row: Row) -> Iterator[Row]:
    """A row for each figure: of one distance, prior and precision, alone or with those before."""
    names = ("key", "kind", "checkpoint", "site", "corpus", "place", "candidates")
    about = {n: row[n] for n in (*names, "prompts", "prompt", "truth", "tokens")}
    about["cluster"] = (row["prompts"], *row["truth"], *row["tokens"])  # an id alone is any token
    for line in figure_lines(row):
        yield {**about, **line}


def figure_lines(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The figures of a row of bits, one a line.

    Each has `quantity` (bits, margin_bits, effect, effect_sampled, rms), `distance`, `value`, and
    where they apply `shown` (alone or cumulative), `precision` and `prior`.
    """
    grouped = [
        ({"quantity": name}, {None: row[name]}) for name in ("rms", "effect", "effect_sampled")
    ]
    grouped.append(({"quantity": "margin_bits"}, row["margin_bits"]))
    for prior, precisions in row["bits"].items():
        coordinates = {"quantity": "bits", "prior": prior}
        grouped += [
            (coordinates | {"precision": name}, kinds) for name, kinds in precisions.items()
        ]
    for coordinates, kinds in grouped:
        for shown, values in kinds.items():
            kind = {"shown": shown} if shown else {}
            for distance, value in zip(row["distances"], values, strict=True):
                yield coordinates | kind | {"distance": distance, "value": value}


def _named(name: str, row: Row) -> Measured | None:
    """A margin that a row has as None is -inf: another candidate gives the same outputs."""
    if row["quantity"] != name:
        return None
    unbounded = name == "margin_bits" and row["value"] is None and row["candidates"] > 1
    return _number(-math.inf if unbounded else row["value"])


def prompt_of(row: Row) -> tuple[Hashable, ...]:
    """The prompt of a row: equal for all models that share a tokenizer."""
    return (row.get("prompts"), tuple(row.get("truth", ())))


def _margin_bits(row: Row) -> float | None:
    """None where a token was not recovered; some stored rows of controls have no verdicts."""
    return row["margin_bits"] if row["verdict"] and "not found" not in row["verdict"] else None


def _graded(grade: str, row: Row) -> Measured | None:
    """Tokens of a captured prompt that are graded so, among those that are not left out."""
    grades = [graded for t, graded in enumerate(row["grades"]) if t not in row["left_out"]]
    return counted(grades.count(grade), len(grades)) if grades else None


_OF_PROMPTS = {"set_recall": "in any order", "permuted": "", "criterion": ""}
KINDS = {
    "recovery": Kind(
        (),
        (
            *_tokens("self", "shown"),
            *_tokens("nonself", "hidden"),
            Quantity("exact", "whole", lambda row: _trial(row["exact"]), "whole prompt", True),
            *(Quantity(name, "share", lambda row, name=name: _trial(row[name]), words, True)
              for name, words in _OF_PROMPTS.items()),
            *(_judged(passed, exact) for passed in (True, False) for exact in (True, False)),
            _read("residual_floors", "median",
                  lambda row: row["residual"] / row["floor"] if row["floor"] else None,
                  "residual/floor"),
            _read("margin_bits", "least", _margin_bits),
            _read("at_floor", "sum", accepted),
            _read("enumerated", "sum", lambda row: row["certificate"] == "enumerated"),
            _read("false_accepts", "sum", is_false_accept),
            _read("tokens_accepted", "sum", lambda row: accepted(row) * row["length"]),
            _read("evaluations", "median", lambda row: row["evaluations"]),
            _read("seconds", "median", lambda row: row["seconds"]),
            _read("steps_to_solve", "median", lambda row: row["steps_to_solve"]),
            _read("solved", "sum", lambda row: row["steps_to_solve"] is not None),
            _read("diverged", "sum", lambda row: row["diverged"]),
        ),
        of_recovery,
    ),
    "probe": Kind(
        ("layer", "part", "offset", "method"),
        (
            _seeds("top1", "top-1", True),
            _seeds("information", main=False),
            _seeds("unigram.top1", "unigram top-1", True, False),
            _seeds("unigram.information", main=False),
            _seeds("gain", main=False),
        ),
        of_probe,
    ),
    "geometry": Kind(
        ("layer", "part", "hidden"),
        (
            # a condition that is not bounded is None in a row, as JSON has no infinity
            *(_read(name, "median", lambda row, name=name: math.inf if row[name] is None
                    else row[name])
              for name in ("sigma_max", "sigma_min", "condition", "effective_rank")),
            # hidden features that the norms do not remove, where a row has them
            _read("of", "median", lambda row: row["inputs"] - row["removed"]
                  if "inputs" in row else None),
        ),
        of_geometry,
    ),
    "loss": Kind(
        ("corpus", "stories", "windows"),
        (
            Quantity("bits_per_byte", "ratio", _bits_per_byte, "bits/byte"),
            _seeds("nats_per_token", "nats/token"),
            _seeds("perplexity", main=False),
            _seeds("tokens", main=False),
            _seeds("tokens_per_second", "tokens/s", main=False),
        ),
        of_loss,
        _parts,
    ),
    "bits": Kind(
        BITS,
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
        of_bits,
        _bits,
    ),
    "lens": Kind((), (), of_lens),
    "captured": Kind(
        ("tensor", "captured_site", "format", "solver"),
        tuple(Quantity(grade, "share", partial(_graded, grade), percent=True)
              for grade in ("certain", "likely", "unknown")),
        lambda row: {"tensor": row["tensor"], "captured_site": row["site"],
                     "format": row["format"], "solver": row["solver"]},
        lambda row: ({**row, "cluster": ("captured", row["key"])},),
    ),
}  # fmt: skip
"""The coordinates and quantities of each kind of row."""
