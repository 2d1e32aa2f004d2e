"""Checkpoints side by side: five fixed figures of each.

The figures are of the last layer and of plain questions: without noise, ablations, controls or
pads. `select` says which measurements each is of; tables, plots and pairs are all made of those.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from eval.analysis.frame import Frame, frame
from eval.analysis.summary import Record, seeds_mean, summarise
from eval.drawing.tables import Table, cell, text
from eval.messages import RequestError, say_once
from eval.models.identity import Training, labels, seed_labels, training_of, training_seed
from eval.rows.schema import Row
from eval.views.comparison.gather import Saved, finite
from eval.views.comparison.settings import keep_differing, shared_settings


class Figure(NamedTuple):
    """A column: its name in records and its heading, and the measurements that it is of."""

    name: str
    heading: str
    percent: bool
    kind: str
    quantity: str
    where: tuple[tuple[str, Any], ...]
    units: str = "prompts"


PLAIN = (("part", "block"), ("without", ""), ("noise", 0.0), ("control", ""), ("padded", False))
AT_4 = (("part", "block"), ("prompt_kind", "inside"), ("distance", 4), ("shown", "alone"),
        ("prior", "uniform"), ("precision", "noise 0.25 rms"))  # fmt: skip


def _recovery(name: str, heading: str, quantity: str, hidden: int) -> Figure:
    shown = ("slice", f"[:, {hidden}:, :]")
    return Figure(name, heading, True, "recovery", quantity, (*PLAIN, shown))


BITS = Figure("bits_per_byte", "bits/byte", False, "loss", "bits_per_byte", (), "windows")
FIGURES = (
    BITS,
    _recovery("shown", "shown", "self", 0),
    _recovery("hidden_1", "hidden 1", "nonself", 1),
    _recovery("hidden_3", "hidden 3", "nonself", 3),
    Figure("bits_at_4", "bits at 4", False, "bits", "bits", AT_4, "passages"),
)
"""Bits per byte of text; shown tokens recovered where all positions are shown, and hidden ones
where the first or the first three are not; bits about a token in the output four positions later,
under noise of a quarter of the output's RMS."""
SEARCHES = {"self": ("sweep", "propose"), "nonself": ("alternating", "sweep", "propose")}
"""The searches that a column may be of; of those that as many have, the first."""
ALIKE = {"loss": ("corpus", "stories", "windows"), "recovery": ("solver", "settings"),
         "bits": ("corpus", "place", "candidates")}  # fmt: skip
"""Coordinates that a column has in common: those that most of its checkpoints were asked at."""
COLUMNS = {"model": "model", "step": "step", "tokens": "tokens",
           **{figure.heading: figure.name for figure in FIGURES}}  # fmt: skip
"""The columns of the table by their names, and the fields of records that they show."""
SHOWN = "the column shows"
"""How a line begins that says what a column leaves out."""
SETTINGS = 3
"""Columns of settings, at most."""
VALIDATION = "*"
"""Marks bits per byte that are of a training's own validation, not of `eval loss`."""


def measured(saved: Sequence[Saved], rows: Sequence[Row], every_seed: bool = False) -> Frame:
    """The measurements of rows; `model` is the label that tells it apart from all, saved ones too.

    Args:
        saved: models and runs, compared beside the rows.
        every_seed: keep training seeds apart.
    """
    lines = frame(rows, every_seed)
    if len(lines):
        label = _labeller(saved, rows, every_seed)
        known = {row["key"]: label(row["checkpoint"]) for row in rows}
        lines["model"] = list(map(known.__getitem__, lines["key"]))
    return lines


def pool_ends(
    saved: Sequence[Saved], rows: Sequence[Row], every_seed: bool = False, others: bool = False
) -> tuple[list[Saved], list[Row]]:
    """Models and rows of each run's last step, which may lie elsewhere for each training seed.

    Where the runs of one line end at several steps, their `step` names these, as in `598-612`, so
    that they are one checkpoint; their own is `own_step`, and rows have keys of their own.

    Args:
        every_seed: keep training seeds apart.
        others: with those of all other steps; a last step that two runs of a line share stays so.
    """
    label = _labeller(saved, rows, every_seed)
    known = [entry.checkpoint for entry in saved] + [row["checkpoint"] for row in rows]
    last, runs_at = dict[Training, int](), dict[tuple[str, int], set[Training]]()
    for about in known:
        run, model = training_of(about), label(about)
        runs_at.setdefault((model, about["step"]), set()).add(run)
        for which in {run, (*run[:2], None)}:  # a row that names no seed is of any
            last[which] = max(about["step"], last.get(which, 0))
    ends: dict[str, set[int]] = {}
    for (model, step), runs in runs_at.items():
        if any(last[run] == step for run in runs) and not (others and len(runs) > 1):
            ends.setdefault(model, set()).add(step)
    for model, steps in ends.items():
        if len(steps) > 1 and 0 in steps and not others:
            steps.remove(0)
            say_once(f"left out: training seeds of {model} that are at step 0 yet")
        if len(steps) < 2 or others:
            continue
        if any(about.get("max_steps") for about in known if label(about) == model):
            say_once(
                f"training seeds of {model} end at steps {min(steps)}-{max(steps)}: one that was "
                "interrupted, stopped early or not asked at its end counts as it is"
            )

    def moved(about: dict[str, Any]) -> dict[str, Any] | None:
        step, steps = about["step"], ends.get(label(about), set())
        if step != last[training_of(about)] or step not in steps:
            return about if others else None
        if len(steps) < 2:
            return about
        return about | {"step": f"{min(steps)}-{max(steps)}", "own_step": step}

    models = [replace(entry, checkpoint=about)
              for entry in saved if (about := moved(entry.checkpoint))]  # fmt: skip
    of_ends = [
        row | {"checkpoint": about, "key": row["key"] + " at its end" * ("own_step" in about)}
        for row in rows
        if (about := moved(row["checkpoint"]))
    ]
    return models, of_ends


def select(
    lines: Frame, figure: Figure, solver: str | None = None, prompts: str = "story",
    shown: str | None = SHOWN,
) -> Frame:  # fmt: skip
    """The measurements that a figure is of.

    Args:
        lines: of `measured`.
        figure: one of `FIGURES`.
        solver: of which of recoveries; a search when not given.
        prompts: the set of prompts of recoveries.
        shown: how the line that says what is left out begins; None: nothing is said.
    """
    if len(lines):
        lines = lines[(lines["kind"] == figure.kind) & (lines["quantity"] == figure.quantity)]
    if lines.empty:
        return lines
    for name, value in figure.where:
        lines = lines[lines[name] == value]
    if figure.kind != "loss":
        lines = lines[lines["layer"] == lines["n_layers"]]
    if figure.kind == "recovery":
        wanted = [solver] if solver else SEARCHES[figure.quantity]
        lines = lines[(lines["prompt_kind"] == prompts) & (lines["solver"].isin(wanted))]
        lines = lines.sort_values("solver", key=lambda s: s.map(wanted.index), kind="stable")
    drawn = figure.kind == "recovery" and prompts != "text"
    names = [*ALIKE[figure.kind], *["length", "drawn_from"] * drawn]
    return _commonest(lines, names, f"{figure.heading}: {shown}" if shown else "")


def _commonest(lines: Frame, names: Sequence[str], shown: str) -> Frame:
    """The lines at those coordinates that most checkpoints have, the first of equals.

    A line that begins with `shown`, if that is not empty, says what is left out, but for another
    solver that the same checkpoints were asked with.
    """
    checkpoints = lines.drop_duplicates([*names, "model", "step", "weights"])
    sizes = checkpoints.groupby(list(names), sort=False, dropna=False).size()
    if len(sizes) < 2:
        return lines
    groups, best = list(sizes.index), int(sizes.to_numpy().argmax())
    found = lines.groupby(list(names), sort=False, dropna=False).get_group(groups[best])
    different = {name for name, values in zip(names, zip(*groups, strict=True), strict=True)
                 if len(set(map(text, values))) > 1}  # fmt: skip
    lost = len(checkpoints[["model", "step", "weights"]].drop_duplicates()) > sizes.iloc[best]
    if shown and (lost or different - {"solver", "settings"}):
        words = [
            ", ".join(f"{name.replace('_', ' ')} {text(value) or 'none'}"
                      for name, value in zip(names, values, strict=True) if name in different)
            for values in groups
        ]  # fmt: skip
        chosen = words.pop(best)
        say_once(
            f"{shown} {chosen}; it leaves out {' and '.join(words[:3])}"
            f"{f' and {len(words) - 3} more' * (len(words) > 3)}: compare those results apart"
        )
    return found


def checkpoint_records(
    saved: Sequence[Saved],
    rows: Sequence[Row],
    every_seed: bool = False,
    solver: str | None = None,
    prompts: str = "story",
    figures: Sequence[Figure] = FIGURES,
    shown: str | None = SHOWN,
) -> list[Record]:
    """A record for each model and step, in the order of names and steps.

    Fields: model, step, seeds, the means of steps, tokens, flops and seconds (of training), each
    figure of `FIGURES` with `_low`, `_high` and `_n` (None where it was not measured),
    `bits_per_byte_of`, which is `loss` or `validation`, and `settings`, those in which the models
    differ.

    Args:
        saved: of `eval.views.comparison.gather.gather_models`.
        rows: of `eval.views.comparison.gather.gather_rows`.
        every_seed: keep training seeds apart.
        solver: of which of recoveries; a search when not given.
        prompts: the set of prompts of recoveries.
        figures: of rows; without any, records are of training alone.
        shown: as of `select`.
    """
    label, lines = _labeller(saved, rows, every_seed), measured(saved, rows, every_seed)
    groups: dict[tuple[str, int], list[Saved]] = {}
    for entry in [*saved, *(Saved(row["checkpoint"]) for row in rows)]:
        about = entry.checkpoint
        groups.setdefault((label(about), about["step"]), []).append(entry)
    usual = _usual_validations(saved)
    records = {
        coordinates: _training(*coordinates, group, usual)
        for coordinates, group in sorted(groups.items(), key=lambda item: [*map(_natural, item[0])])
    }
    differing = keep_differing([record["settings"] for record in records.values()])
    for record, settings in zip(records.values(), differing, strict=True):
        record["settings"] = settings
    for figure in figures:
        selected = select(lines, figure, solver, prompts, shown)
        if selected.empty:
            continue
        pooled = ["observed", "trained", *ALIKE[figure.kind]]
        for line in summarise(selected, ["model", "step"], pooled).itertuples():
            limits = (None if end != end else end for end in (line.low, line.high))
            records[line.model, line.step] |= _fields(figure, (line.value, *limits, line.n))
            if figure is BITS:
                records[line.model, line.step]["bits_per_byte_of"] = "loss"
    return list(records.values())


def _labeller(
    saved: Sequence[Saved], rows: Sequence[Row], every_seed: bool
) -> Callable[[dict[str, Any]], str]:
    """Gives the label of a checkpoint, which tells its model apart from all others."""
    known = [*rows, *({"checkpoint": entry.checkpoint} for entry in saved)]
    if every_seed:
        by_seed = seed_labels(known)
        return lambda about: by_seed[training_of(about)]
    by_model = labels(known)
    return lambda about: by_model[about["model_id"]]


def reported(saved: Sequence[Saved]) -> list[Saved]:
    """Each validation that the runs reported, as a checkpoint of its step."""
    runs = {id(run.run): run for run in saved if run.run}.values()
    about = "step", "val_loss"
    return [
        Saved(run.checkpoint | {n: row.get(n) for n in about}, row, None, run.config, run.run)
        for run in runs
        for row in (run.run.metrics if run.run else ())
        if finite(row.get("val_bits_per_byte"))
    ]


def _usual_validations(saved: Sequence[Saved]) -> set[int]:
    """The checkpoints, by `id`, whose validation is over as many tokens of its data as most are.

    The others' losses are of another text, which a line says. Contexts may round the number.
    Another line says whether the data are several.
    """
    hashes = {id(entry.run): entry.meta["data_sha256"] for entry in saved
              if entry.run and "data_sha256" in entry.meta}  # fmt: skip
    width = max((entry.checkpoint.get("context") or 1 for entry in saved), default=1)
    usual, validated, of_data = set[int](), dict[int, tuple[Any, int]](), dict[Any, str]()
    for entry in saved:
        if not finite(entry.meta.get("val_bits_per_byte")):
            continue
        own = entry.run.settings.get("data") if entry.run else None
        data = entry.meta.get("data_sha256") or hashes.get(id(entry.run), own)
        tokens: Any = entry.meta.get("val_tokens")
        if finite(tokens):
            validated[id(entry)] = data, tokens
        else:  # of models that did not record it
            usual.add(id(entry))
        of_data.setdefault(data, entry.checkpoint["name"])
    if len(of_data) > 1:
        first, second, *_ = of_data.values()
        say_once(
            f"bits/byte of training's own validation are of {len(of_data)} sets of data, whose "
            f"texts may differ, as those of {first} and {second}; eval loss --corpus measures all "
            "on one"
        )
    counts = Counter(validated.values())
    for number, (data, tokens) in validated.items():
        most = max((n, other) for (of, other), n in counts.items() if of == data)[1]
        if abs(tokens - most) <= width:
            usual.add(number)
        else:
            say_once(
                f"left out: validations over {tokens:,} tokens of the data, where most are over "
                f"{most:,}; eval loss measures all models alike"
            )
    return usual


def _training(model: str, step: int, checkpoints: Sequence[Saved], usual: set[int]) -> Record:
    """What training left of the checkpoints of one model and step; of each run, or copy, once.

    `usual` are the checkpoints whose validation counts.
    """
    runs = {_identity(saved): saved for saved in checkpoints if saved.meta}
    weights = {saved.checkpoint.get("weights_sha256") for saved in checkpoints if not saved.meta}
    record: Record = {"model": model, "step": step, "seeds": max(len(runs), len(weights))}
    costs = {
        "steps": [saved.step for saved in runs.values() or checkpoints],
        "tokens": [saved.tokens_seen for saved in runs.values() or checkpoints],
        "flops": [saved.flops for saved in runs.values()],
        "seconds": [saved.run.seconds.get(saved.step) for saved in runs.values() if saved.run],
    }
    for name, values in costs.items():
        known = [value for value in values if value is not None]
        record[name] = sum(known) / len(known) if known else None
    record |= {"settings": shared_settings(checkpoints), "bits_per_byte_of": None}
    for figure in FIGURES:
        record |= _fields(figure, (None, None, None, None))
    bits = [saved.meta["val_bits_per_byte"] for saved in runs.values()
            if id(saved) in usual]  # fmt: skip
    if bits:
        record |= _fields(BITS, seeds_mean(bits)) | {"bits_per_byte_of": "validation"}
    return record


def _identity(saved: Saved) -> tuple[Any, ...]:
    """What a run and its copies share: name, training seed and loss; without a loss, the place."""
    place = str(saved.run.path if saved.run else saved.path)
    loss = saved.meta.get("val_loss")
    seed = training_seed({"recipe": saved.recipe})
    return saved.checkpoint["name"], seed, place if loss is None else loss


def _fields(figure: Figure, estimate: tuple[Any, ...]) -> Record:
    ends = ("", "_low", "_high", "_n")
    return {f"{figure.name}{end}": value for end, value in zip(ends, estimate, strict=True)}


def sort_records(records: Sequence[Record], by: str) -> list[Record]:
    """Records by a column of `COLUMNS`, `-` before it for the largest first; those without last.

    Raises:
        RequestError: there is no such column.
    """
    name = by.removeprefix("-")
    if name not in COLUMNS:
        raise RequestError(f"--sort {by}: allowed are {', '.join(COLUMNS)}, and - before them")
    key = COLUMNS[name]
    known = [record for record in records if record[key] is not None]
    order = _natural if key in ("model", "step") else float
    known.sort(key=lambda record: order(record[key]), reverse=by.startswith("-"))
    return [*known, *(record for record in records if record[key] is None)]


def checkpoint_table(records: Sequence[Record]) -> Table:
    """The fixed table, a line for each record, with the first settings in which they differ."""
    differing = list(records[0]["settings"])
    shown, lines = differing[:SETTINGS], []
    for record in records:
        cells = [cell(record, figure.name, figure.percent) for figure in FIGURES]
        mark = VALIDATION * (record["bits_per_byte_of"] == "validation")
        lines.append([*(text(record[name]) for name in ("model", "step", "tokens")),
                      *(text(record["settings"].get(name)) for name in shown),
                      cells[0] + mark, *cells[1:]])  # fmt: skip
    headings = [figure.heading + " %" * figure.percent for figure in FIGURES]
    validation = any(record["bits_per_byte_of"] == "validation" for record in records)
    notes = [f"{VALIDATION} of training's own validation"] if validation else []
    if any(record[figure.name] is None for record in records for figure in FIGURES):
        notes.append(
            f"{text(None)} not measured, or not as most are; eval loss, invert and bits measure it"
        )
    if len(differing) > SETTINGS:
        notes.append(f"also differ, in --csv: {', '.join(differing[SETTINGS:])}")
    named = [name.rpartition(".")[2] for name in shown]
    return Table(["model", "step", "tokens", *named, *headings], lines, note="; ".join(notes))


def _natural(name: str | int) -> list[tuple[bool, int, str]]:
    """Sorts numbers in names by their size."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part)
            for part in re.split(r"(\d+)", str(name))]  # fmt: skip
