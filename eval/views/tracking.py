"""Rows of evidence as Weights & Biases runs, one for each model: a view of a results directory.

W&B is offline unless asked and needs no account. Its offline files lie in the results directory
(`wandb sync` uploads them later), and so do the runs' ids, so that the same command writes the same
runs anew, in the groups that training gives. By training step few figures are logged: the columns
of `compare`, and one a lens. All figures stand in one table. Online, a run is linked to the models
that training logged.
"""

import math
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arch.errors import reason
from arch.storage.files import read_json, write_text
from eval.analysis.frame import Frame, frame
from eval.analysis.summary import (
    SAMPLED,
    Record,
    summarise,
    summary_records,
    tell_prompts_apart,
)
from eval.drawing.tables import to_csv
from eval.lenses.headlines import headlines
from eval.messages import RequestError, say
from eval.models.corpora import corpus_label
from eval.models.identity import home_of, labels, model_id
from eval.rows.schema import Row
from eval.rows.store import row_key
from eval.views.comparison.gather import METRICS, of_models, read_settings
from eval.views.comparison.table import FIGURES, checkpoint_records

STEP, TOKENS = "checkpoint_step", "tokens_seen"
"""The x axes."""
LENGTHS = ("hidden", "observed")
"""Coordinates of recoveries that are pooled: they follow the lengths of the prompts."""
ABOUT = ("mixers", "d_model", "n_layers", "context", "parameters")
"""What a row says of its model, where the model directory is no longer there."""
SITUATION = ("run", "data", "resume", "wandb", "wandb_project", "wandb_tags", "loggers")
"""Settings of a training that an evaluation's config leaves out."""
NAME_LETTERS = 128
"""Of the name of a run or a group, at most: W&B refuses longer ones."""
NAME_BYTES = 200
"""Of the name of a file, at most: with what a temporary one adds, file systems take 255."""
FINISH_TIMEOUT = 60.0
"""Seconds to wait for the end of a run, where WANDB_FINISH_TIMEOUT says nothing else."""
LOGGED = "W&B gets the figures of"
"""How a line begins that says what is not logged."""
OF_OTHER_RUNS = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH",
                 "WANDB_LAUNCH")  # fmt: skip
"""Variables, as of `wandb agent`, by which a report would be written over a training's run."""


def track_results(
    directory: str | Path,
    rows: list[Row],
    page: str | Path | None = None,
    mode: str = "offline",
    project: str = "remnant",
) -> dict[str, str]:
    """Logs rows to the W&B runs of a results directory, one for each model.

    Returns the directory that is left for `wandb sync`, by the run's id; empty where all of the run
    has arrived.

    Args:
        directory: the results directory; holds the runs' ids and the offline files.
        mode: offline or online.
        project: W&B's name for a collection of runs.

    Raises:
        RequestError: there are no figures, or W&B cannot be reached.
    """
    rows = [row for row in rows if "checkpoint" in row]
    left, lines = dict[str, str](), _told_apart(frame(rows))
    models = of_models(rows)
    # Of all models, so that a key is one question.
    compared = checkpoint_records([], models, shown=LOGGED)
    with _environment(Path(directory).resolve() / "wandb", mode), _refusing(mode):
        for model, label in (labels(rows) | labels(models)).items():
            of_model = [row for row in rows if row["checkpoint"]["model_id"] == model]
            of_model = of_models(of_model) or of_model  # of some models there are controls alone
            run = _open_run(Path(directory), mode, project, label, of_model)
            try:
                if mode == "online":
                    _link(run, of_model)
                of_label = [record for record in compared if record["model"] == label]
                steps = history(of_model, of_label)
                own = lines[lines["model_id"] == model]
                _log(run, steps, every_figure(of_model, own), own, page)
            except BaseException:
                _finish(run, 1)
                raise
            arrived = _finish(run) and mode == "online"
            left[run.id] = "" if arrived else str(run.settings.sync_dir)
    return left


def _told_apart(lines: Frame) -> Frame:
    """Lines whose recoveries name prompts as tables of all models do."""
    import pandas

    if lines.empty:
        raise RequestError("no figures: there is nothing to log; run `python -m eval invert` first")
    recovery = lines["kind"] == "recovery"
    if not recovery.any():  # results of other commands have no sets of prompts
        return lines
    return pandas.concat([tell_prompts_apart(lines[recovery]), lines[~recovery]])


def history(rows: Sequence[Row], records: Sequence[Record]) -> list[dict[str, float]]:
    """The main figures of one model, a dict for each step in ascending order.

    Keys: `STEP`, `TOKENS` where it is known, the columns of `compare` (`eval/shown`, and their
    counts `eval/shown_n`), and the first main figure of each lens (`lens/residual`).

    Args:
        records: the model's among those that are compared.
    """
    steps: dict[int, dict[str, float]] = {}
    names = [name for figure in FIGURES for name in (figure.name, f"{figure.name}_n")]
    for record in records:
        figures = steps.setdefault(record["step"], {STEP: record["step"]})
        known = {f"eval/{name}": record[name] for name in names if record[name] is not None}
        figures |= known | ({} if record["tokens"] is None else {TOKENS: record["tokens"]})
    for line in headlines(rows):
        steps[line.step].setdefault(f"lens/{line.lens}", line.value)
    return [steps[step] for step in sorted(steps)]


def every_figure(rows: Sequence[Row], lines: Frame) -> list[Record]:
    """All figures of rows, a record each: its model, step, coordinates, value, limits and count.

    A corpus is named by the last part of its path and its hash. `lines` are the rows as a frame,
    in which prompts are told apart.
    """
    found: list[Record] = []
    tokens = {row["checkpoint"]["step"]: row["checkpoint"].get(TOKENS) for row in rows}
    for kind, group in lines.groupby("kind", sort=False):
        pooled = LENGTHS if kind == "recovery" else ()
        known = group.columns[group.notna().any()]
        held = [name for name in known if name not in (*SAMPLED, *pooled)]
        found += [
            {"kind": kind, TOKENS: tokens.get(line["step"]), **line}
            for line in summarise(group, held, pooled).to_dict("records")
        ]
    columns = list(dict.fromkeys(name for record in found for name in record))
    return [{name: _plain(name, record.get(name)) for name in columns} for record in found]


def _plain(name: str, value: Any) -> Any:
    """A value as a cell of a table: None for what is not known, and a corpus by its label.

    Infinity is a word, as JSON has none: W&B's own file of a table could not be read.
    """
    if value is None or value != value:
        return None
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return corpus_label(str(value)) if name == "corpus" else value


def training_config(rows: Sequence[Row]) -> dict[str, Any]:
    """What the training of a model was given, as in the config of its own W&B run.

    It stands in the run's config.yaml, else in a model's meta.json; of a model that is no longer
    there rows know a few sizes. So runs of both kinds are filtered and grouped alike. The config of
    another project, in whose folder a model lies, is not read.
    """
    about = rows[-1]["checkpoint"]
    path = Path(about.get("path", ""))
    config: dict[str, Any] = {}
    meta = _meta_of(about) or {}
    if meta and (home_of(path) / METRICS).is_file():
        config = read_settings(home_of(path))
    if meta and not config and (path / "config.json").is_file():
        config = {**(meta.get("recipe") or {}), "model": read_json(path / "config.json")}
    known = {key: value for key, value in config.items() if key not in SITUATION}
    if "data_sha256" in meta:
        known["data_sha256"] = meta["data_sha256"]
    sizes = ("parameters",) if config else ABOUT
    known |= {name: about[name] for name in sizes if name in about}
    return known | {"model_id": about["model_id"]}


def _meta_of(about: dict[str, Any]) -> dict[str, Any] | None:
    """The meta.json of a row's model: empty where it is gone, None where another model lies there.

    A run that is trained anew with other settings lies where the first one lay.

    Raises:
        ModelError: the file does not hold what it must.
    """
    from arch.storage.directory import check_meta

    file = Path(about.get("path", "")) / "meta.json"
    meta = read_json(file) if file.is_file() else {}
    check_meta({"name": about["name"], **meta}, file)
    return None if meta.get("model_id") and model_id(meta, "") != about["model_id"] else meta


@contextmanager
def _environment(directory: Path, mode: str) -> Iterator[None]:
    """The variables that W&B reads, but for `OF_OTHER_RUNS`.

    Offline, W&B's copies of logged files go into the directory too, unless the user says where.
    """
    taken = {name: os.environ.pop(name) for name in OF_OTHER_RUNS if name in os.environ}
    added = mode != "online" and "WANDB_DATA_DIR" not in os.environ
    if added:
        os.environ["WANDB_DATA_DIR"] = str(directory / "data")
    try:
        yield
    finally:
        if added:
            del os.environ["WANDB_DATA_DIR"]
        os.environ.update(taken)


@contextmanager
def _refusing(mode: str) -> Iterator[None]:
    """Makes a line of an error of W&B, of which many are no `wandb.Error`."""
    try:
        yield
    except Exception as error:
        if not _is_of_wandb(error):
            raise
        hint = "; log in with `wandb login`, or use --wandb offline" * (mode == "online")
        raise RequestError(f"--wandb {mode}: {reason(error, 300)}{hint}") from error


def _is_of_wandb(error: Exception) -> bool:
    """Whether a class of W&B's own is raised."""
    return type(error).__module__.startswith("wandb")


def _open_run(directory: Path, mode: str, project: str, label: str, rows: list[Row]) -> Any:
    import wandb

    about, config = rows[0]["checkpoint"], training_config(rows)
    architecture = f"{' '.join(about['mixers'])} d{about['d_model']} n{about['n_layers']}"
    id_file = directory / _name_id_file(about["model_id"])
    if not id_file.is_file():
        write_text(id_file, uuid.uuid4().hex[:8])
    run_id = id_file.read_text().strip()
    try:
        return wandb.init(
            project=project,
            name=label[:NAME_LETTERS],
            id=run_id,  # not resumed: a run that is begun anew is replaced
            reinit="create_new",  # never the run that something else in this process has open
            dir=directory,
            mode=mode,  # pyright: ignore[reportArgumentType]
            group=str(config.get("wandb_group") or architecture)[:NAME_LETTERS],
            job_type="eval",
            config=config | {"results": directory.resolve().name},
            settings=_settings(),
        )
    except ValueError as error:  # of a key, a directory, or settings that the environment sets
        raise wandb.Error(reason(error, 300)) from error


def _name_id_file(model: str) -> str:
    """The name of the file that keeps the id of a model's run: by a hash, if it can be no name."""
    name = f"wandb_id-{model}"
    fits = len(os.fsencode(name)) <= NAME_BYTES and not {"/", "\0"} & set(name)
    return name if fits else f"wandb_id-{row_key(model)}"


def _settings() -> Any:
    """How a run is written: in silence, and with a limit to the time that its end may take."""
    import wandb

    settings = wandb.Settings(console="off", silent=True)
    if hasattr(settings, "finish_timeout"):  # older versions wait for ever
        settings.finish_timeout_raises = True
        if "WANDB_FINISH_TIMEOUT" not in os.environ:
            settings.finish_timeout = FINISH_TIMEOUT
    return settings


def _finish(run: Any, code: int = 0) -> bool:
    """Ends a run; whether it ended in time."""
    try:
        run.finish(exit_code=code)
    except TimeoutError:
        return False
    return True


def models_used(rows: list[Row]) -> list[str]:
    """The artifacts that training logged of the rows' models, where their run directory is."""
    known = {about["path"]: about for row in rows if (about := row["checkpoint"]).get("path")}
    names = []
    for path, about in known.items():
        beside = home_of(Path(path)) / "wandb_id"
        if beside.is_file() and _meta_of(about) is not None:
            names.append(f"model-{beside.read_text().strip()}:{Path(path).name}")
    return names


def _link(run: Any, rows: list[Row]) -> None:
    """Links the run to the models that were asked; one that was trained offline is not there."""
    for name in models_used(rows):
        try:
            run.use_artifact(name)
        except Exception as error:
            if not (isinstance(error, ValueError) or _is_of_wandb(error)):
                raise
            say(f"--wandb online: {name} is not linked: {reason(error)}")


def _log(
    run: Any,
    steps: Sequence[dict[str, float]],
    records: Sequence[Record],
    lines: Frame,
    page: str | Path | None,
) -> None:
    import wandb

    for axis in (STEP, TOKENS):
        run.define_metric(axis, hidden=True)
    for group in ("eval", "lens"):
        run.define_metric(f"{group}/*", step_metric=STEP)
    for figure in FIGURES:  # a count is no curve
        run.define_metric(f"eval/{figure.name}_n", step_metric=STEP, hidden=True)
    for figures in steps:
        run.log(figures)
    files = wandb.Artifact(f"results-{run.id}", type="results")
    if records:
        columns: list[Any] = list(records[0])
        data: list[Any] = [list(record.values()) for record in records]
        run.log({"figures": wandb.Table(columns=columns, data=data, allow_mixed_types=True)})
    recoveries = lines[lines["kind"] == "recovery"]
    if len(recoveries):
        with files.new_file("summary.csv") as file:
            file.write(to_csv(summary_records(recoveries)))
    if page is not None:
        run.log({"page": wandb.Html(Path(page).read_text(encoding="utf-8"), inject=False)})
        files.add_file(str(page), "page.html")
    run.log_artifact(files)
