"""Rows and run figures as quantities: what was measured, where, and its value with an interval.

A row of a kind that is not listed in `KINDS` needs no code here. If it has a `figure` and a
`value`, that is one quantity, and every other short field says where it was measured; otherwise
every number in it is a quantity.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

from eval.comparison.evidence import Checkpoint, finite
from eval.inversion.fields import SHUFFLED
from eval.inversion.summary import summarise
from eval.language import bits_per_byte
from eval.results import Row
from eval.statistics import clustered, over_seeds, share

LAST = "last"
"""The layer of a site that is the model's last one."""


@dataclass(frozen=True)
class Quantity:
    """What a column holds.

    Attributes:
        section: of the table; the kind of the rows.
        name: of the figure.
        places: where and how it was measured, by name.
        share: whether it is a share, shown in per cent.
        plain: whether it is shown where nobody chose columns.
    """

    section: str
    name: str
    places: tuple[tuple[str, Hashable], ...] = ()
    share: bool = False
    plain: bool = True


class Figure(NamedTuple):
    """A value, its 95 % interval where there is one, and how many measurements it is of.

    `lengths` are the tokens of the shortest and of the longest prompt, of figures that pool them.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    lengths: tuple[int, int] | None = None


Figures = dict[Quantity, Figure]

TRAINING, LOSS, RECOVERY = "training", "loss", "recovery"
TRAIN_LOSS = Quantity(LOSS, "training nats/token")
VALID_BITS = Quantity(LOSS, "validation bits/byte")
TOKENS = Quantity(TRAINING, "tokens")
FLOPS = Quantity(TRAINING, "FLOPs")
SECONDS = Quantity(TRAINING, "seconds")


@dataclass(frozen=True)
class Kind:
    """How rows of one kind are read.

    Attributes:
        figures: their numbers, by path within the row; others are no figures.
        places: their fields that say where it was measured; None for all short ones.
        shares: those figures that are shares.
        pool: rows of one prompt each to one value.
        plain: those figures that are shown unasked; None for all.
    """

    figures: tuple[str, ...]
    places: tuple[str, ...]
    shares: tuple[str, ...] = ()
    pool: Callable[[Iterable[float]], float] = fmean
    plain: tuple[str, ...] | None = None


KINDS = {
    "probe": Kind(
        ("top1", "self.top1", "nonself.top1", "information", "gain"),
        ("layer", "part", "slice", "offset", "method"),
        ("top1", "self.top1", "nonself.top1"),
        plain=("top1", "self.top1", "nonself.top1"),
    ),
    "geometry": Kind(
        ("sigma_max", "sigma_min", "condition", "effective_rank", "stable_rank"),
        ("layer", "part", "hidden"),
        pool=median,
        plain=("sigma_min", "effective_rank"),
    ),
    "basin": Kind(
        ("nonself", "exact"),
        ("layer", "part", "hidden", "radius", "method"),
        ("nonself", "exact"),
        plain=("nonself",),
    ),
    "retrieval": Kind(
        ("top1",),
        ("layer", "pool", "method", "sentence", "candidates", "corpus"),
        ("top1",),
    ),
}
ADMINISTRATION = {
    "schema", "key", "kind", "checkpoint", "site", "settings", "family", "figure", "value", "low",
    "high", "n", "text", "truth", "prompt", "seed", "seconds", "device", "look",
}  # fmt: skip
"""Fields that are neither figures nor places."""
PLACES = {"layer", "part", "slice", "offset", "hidden", "radius", "length", "position", "k", "step"}
"""Numbers that say where, in rows of kinds that are not known."""
OF_SUMMARY = {"self": True, "nonself": True, "exact": True, "set_recall": True, "permuted": True,
              "margin_bits": False, "false_accepts": False, "evaluations": False,
              "seconds": False}  # fmt: skip
"""Figures of inversion, and whether each is a share."""
NAMES = {"nonself": "non-self", "exact": "whole prompt", "margin_bits": "margin bits",
         "set_recall": "in any order", "top1": "top-1", "self.top1": "self top-1",
         "nonself.top1": "non-self top-1"}  # fmt: skip


def measure(checkpoints: Sequence[Checkpoint]) -> Figures:
    """Every quantity of one checkpoint, or of several that differ in their training seed only."""
    figures = _training(checkpoints) | _run_losses(checkpoints)
    rows = [row for checkpoint in checkpoints for row in checkpoint.rows]
    kinds: dict[str | None, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.get("kind"), []).append(row)
    for kind, own in kinds.items():
        figures |= _READERS.get(kind, _generic)(own)
    return figures


def pool(values: Sequence[float]) -> Figure:
    """The mean over training seeds, with Student's interval where there are several."""
    interval = over_seeds(values)
    if interval is None or interval.low == interval.high:
        return Figure(fmean(values), n=len(values))
    return Figure(*interval, n=len(values))


def _training(checkpoints: Sequence[Checkpoint]) -> Figures:
    readings: dict[Quantity, list[float | None]] = {
        Quantity(TRAINING, "parameters"): [c.about.get("parameters") for c in checkpoints],
        TOKENS: [c.tokens_seen for c in checkpoints],
        FLOPS: [flops(c, c.tokens_seen) for c in checkpoints],
        SECONDS: [c.run.seconds.get(c.step) if c.run else None for c in checkpoints],
        Quantity(TRAINING, "tokens/s"): [_speed(c) for c in checkpoints],
    }
    return {q: Figure(fmean(own), n=len(own)) for q, own in _known(readings).items()}


def flops(checkpoint: Checkpoint, tokens: float | None) -> float | None:
    """Spent in training on so many tokens, forward and backward."""
    cost = checkpoint.cost
    return None if cost is None or tokens is None else float(cost.training_flops) * tokens


def _speed(checkpoint: Checkpoint) -> float | None:
    rows = checkpoint.run.metrics if checkpoint.run else []
    speeds = [r["tokens_per_second"] for r in rows if finite(r.get("tokens_per_second"))]
    return median(speeds) if speeds else None


def _run_losses(checkpoints: Sequence[Checkpoint]) -> Figures:
    readings: dict[Quantity, list[float | None]] = {
        TRAIN_LOSS: [c.run.at(c.step, "loss") if c.run else None for c in checkpoints],
        Quantity(LOSS, "validation nats/token"): [
            c.meta.get("val_loss", c.about.get("val_loss")) for c in checkpoints
        ],
        VALID_BITS: [c.meta.get("val_bits_per_byte") for c in checkpoints],
    }
    return {quantity: pool(own) for quantity, own in _known(readings).items()}


def _known(readings: dict[Quantity, list[float | None]]) -> dict[Quantity, list[float]]:
    known = {q: [v for v in own if v is not None and finite(v)] for q, own in readings.items()}
    return {quantity: own for quantity, own in known.items() if own}


def _losses(rows: list[Row]) -> Figures:
    """Of `eval loss`: intervals over the stories, and over the models where there are several."""
    figures: Figures = {}
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault((("corpus", row["corpus"]), ("stories", row["stories"])), []).append(row)
    for places, own in groups.items():
        models = [_model(row) for row in own]
        bits = bits_per_byte([row["parts"] for row in own], models)
        n = own[0]["stories"]
        plain = Figure(fmean(row["bits_per_byte"] for row in own), n=n)
        figures[Quantity(LOSS, "bits/byte", places)] = Figure(*bits, n=n) if bits else plain
        for name, field in (("nats/token", "nats_per_token"), ("tokens/s", "tokens_per_second")):
            quantity = Quantity(LOSS, name, places, plain=name != "tokens/s")
            figures[quantity] = pool([row[field] for row in own])
    return figures


def _recoveries(rows: list[Row]) -> Figures:
    """Of `eval invert`: as its own summary has them, but prompts of all lengths in one figure."""
    figures: Figures = {}
    for record in summarise(rows, pool_lengths=True):
        last = record["layer"] == record["n_layers"]
        places = {
            "layer": LAST if last else record["layer"],
            "part": record["part"],
            "slice": record["slice"],
            "prompts": record["prompt_kind"],
            "without": record["without"],
            "noise": record["noise"],
            "control": record["control"] if record["control"] == SHUFFLED else "",
            "padded": record["padded"],
            "method": record["method"],
            "settings": record["settings"],
        }
        departs = any(places[name] for name in ("without", "noise", "control", "padded"))
        for name, is_share in OF_SUMMARY.items():
            if record[name] is None:
                continue
            shown = name == "nonself" or (name == "self" and not record["hidden"])
            quantity = Quantity(
                RECOVERY,
                NAMES.get(name) or str(name).replace("_", " "),
                tuple(places.items()),
                is_share,
                plain=shown and last and record["part"] == "block" and not departs,
            )
            limits = (record.get(f"{name}_low"), record.get(f"{name}_high"))
            figures[quantity] = Figure(
                record[name], *limits, n=record["prompts"], lengths=record["lengths"]
            )
    return figures


def _curves(rows: list[Row]) -> Figures:
    """Of `eval curves`: where half of the tokens are recovered."""
    found = []
    for row in rows:
        if row["axis"] == "noise":
            row = {**row, "figure": "SNR50, dB", "value": row.get("snr50")}
            row |= {"low": row.get("snr50_low"), "high": row.get("snr50_high")}
        else:
            row = {**row, "figure": "channels for half"}
        found.append(row)
    return _pooled(found, lambda row: _places(row, ("layer", "part", "length", "method")))


def _retrieval(rows: list[Row]) -> Figures:
    """Of `eval retrieval`: its shares bring their intervals."""
    kind = KINDS["retrieval"]
    found = [{**row, "figure": "top1", "value": row["top1"], "n": row["queries"]} for row in rows]
    return _pooled(found, lambda row: _places(row, kind.places), kind)


def _generic(rows: list[Row]) -> Figures:
    """Of any other kind."""
    kind: Kind | None = KINDS.get(rows[0]["kind"])
    if kind is None:
        return _pooled([one for row in rows for one in _split(row, None)], _where)
    split = [one for row in rows for one in _split(row, kind.figures)]
    return _pooled(split, lambda row: _places(row, kind.places), kind)


def _split(row: Row, names: Sequence[str] | None) -> list[Row]:
    """One row a figure: `figure` and `value` beside what the row says of its place."""
    if "figure" in row:
        return [row]
    if names is None:
        names = [
            name
            for name, value in row.items()
            if finite(value) and name not in ADMINISTRATION | PLACES
        ]
    whole: Row = {name: value for name, value in row.items() if name not in ("low", "high")}
    return [{**whole, "figure": name, "value": _deep(row, name), "_of": names} for name in names]


def _where(row: Row) -> tuple[tuple[str, Hashable], ...]:
    """All short fields of a row of an unknown kind that are no figures."""
    figures = row.get("_of", ())
    short = [
        name
        for name, value in row.items()
        if isinstance(value, (str, int, float))
        and name not in ADMINISTRATION
        and name not in figures
        and name != "_of"
    ]
    return _places(row, ("layer", "part", *(n for n in short if n not in ("layer", "part"))))


def _places(row: Row, names: Iterable[str]) -> tuple[tuple[str, Hashable], ...]:
    site = row.get("site") or {}
    places = []
    for name in names:
        value = row.get(name, site.get(name))
        if isinstance(value, list):
            value = "+".join(map(str, value))
        if name == "layer" and value == row["checkpoint"].get("n_layers"):
            value = LAST
        if value is not None:
            places.append((name, value))
    return tuple(places)


def _pooled(
    rows: list[Row],
    where: Callable[[Row], tuple[tuple[str, Hashable], ...]],
    kind: Kind | None = None,
) -> Figures:
    groups: dict[Quantity, list[Row]] = {}
    for row in rows:
        if row["value"] is None or not finite(float(row["value"])):
            continue
        name, places = row["figure"], where(row)
        quantity = Quantity(
            row["kind"],
            NAMES.get(name) or str(name).replace("_", " "),
            places,
            bool(kind and name in kind.shares),
            plain=(kind is None or kind.plain is None or name in kind.plain)
            and dict(places).get("layer", LAST) == LAST,
        )
        groups.setdefault(quantity, []).append(row)
    return {quantity: _figure(own, kind) for quantity, own in groups.items()}


def _figure(rows: list[Row], kind: Kind | None) -> Figure:
    """One value of rows that differ in their prompt and their model only.

    A row that brings its own interval keeps it. Values of several prompts are drawn anew prompt by
    prompt and model by model; of models without prompts, Student's interval.
    """
    values = [float(row["value"]) for row in rows]
    if len(rows) == 1:
        return Figure(values[0], rows[0].get("low"), rows[0].get("high"), rows[0].get("n") or 1)
    models, prompts = [_model(row) for row in rows], [_prompt(row) for row in rows]
    if len(set(prompts)) == 1:
        return pool([fmean(v for v, m in zip(values, models, strict=True) if m == model)
                     for model in dict.fromkeys(models)])  # fmt: skip
    if kind and kind.pool is not fmean:
        return Figure(kind.pool(values), n=len(values))
    if kind and rows[0]["figure"] in kind.shares and set(values) <= {0.0, 1.0}:
        found = share([round(v) for v in values], [1] * len(values), prompts, models)
    else:
        found = clustered(values, [1.0] * len(values), prompts, models)
    return Figure(*found, n=len(values))


def _deep(row: Row, path: str) -> float | None:
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _model(row: Row) -> Hashable:
    about = row["checkpoint"]
    return about["name"], about["weights_sha256"]


def _prompt(row: Row) -> Hashable:
    return row.get("prompts"), row.get("prompt"), tuple(row.get("truth") or ())


_READERS: dict[str | None, Callable[[list[Row]], Figures]] = {
    None: _recoveries,
    "loss": _losses,
    "curve": _curves,
    "retrieval": _retrieval,
}
