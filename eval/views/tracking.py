"""Rows of evidence as Weights & Biases runs, one for each model: a view of a results directory.

W&B is offline unless asked and needs no account. Its offline files lie in the results directory
(`wandb sync RESULTS/wandb/offline-run-*` uploads them later), and so do the runs' ids, so that the
same command adds to the same runs, in the groups that training gives. By training step of the
checkpoints the figures of the summary are logged, once the summary of recoveries as a table and the
page. A figure has one name, whatever else lies in the directory. Online, a run is linked to the
models that training logged.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arch.storage.files import write_text
from eval.analysis.frame import KINDS, Frame, frame, quantities
from eval.analysis.summary import SAMPLED, Record, summarise, wide
from eval.drawing.tables import text, to_csv
from eval.messages import RequestError, say
from eval.models.identity import labels
from eval.rows.schema import Row

MODES = ("offline", "online")
STEP = "checkpoint/step"
RECOVERY = ("self", "nonself", "exact", "set_recall", "permuted", "margin_bits", "false_accepts",
            "evaluations", "seconds")  # fmt: skip
"""The figures of recoveries that are logged; of other kinds all are."""
ABOUT = ("model", "mixers", "d_model", "context", "trained", "kind")
"""Columns that are the same in all lines of a model and step."""
LENGTHS = ("hidden", "observed")
"""Coordinates of recoveries that are pooled: they follow the lengths of the prompts."""


def track_results(
    directory: str | Path,
    rows: list[Row],
    page: str | Path | None = None,
    mode: str = "offline",
    project: str = "remnant",
) -> list[str]:
    """Logs rows to the W&B runs of a results directory, one for each model; returns their ids.

    Args:
        directory: the results directory; holds the runs' ids and the offline files.
        page: the HTML page made of them, if there is one.
        mode: one of `MODES`.
        project: W&B's name for a collection of runs.

    Raises:
        RequestError: there are no rows, or W&B cannot be reached.
    """
    rows = [row for row in rows if "checkpoint" in row]
    if not rows:
        raise RequestError("no rows: there is nothing to log; run `python -m eval invert` first")
    ids = []
    with _files_in(Path(directory).resolve() / "wandb", mode):
        for model, label in labels(rows).items():
            kept = [row for row in rows if row["checkpoint"]["model_id"] == model]
            run = _open_run(Path(directory), mode, project, label, kept)
            try:
                if mode == "online":
                    _link(run, kept)
                _log(run, kept, page)
            except BaseException:
                run.finish(exit_code=1)
                raise
            run.finish()
            ids.append(run.id)
    return ids


def history(rows: Sequence[Row]) -> list[dict[str, float]]:
    """The figures of one model by name, a dict for each step in ascending order, which is `STEP`.

    A name is made of its own figure alone: `recovery/layer last/[:, 3:, :]/adam steps=300/nonself`,
    `lens/norm/layer 3/...`, `loss/bits/byte/corpus .../stories ...`. A recovery's prompts, part,
    ablation, noise, control and pads stand in it where they are not as usual. The model's last
    layer is `layer last`.
    """
    lines = frame(rows)
    steps: dict[int, dict[str, float]] = {}
    for kind, group in lines.groupby("kind", sort=False):
        kept = group[group["quantity"].isin(RECOVERY)] if kind == "recovery" else group
        words = {q.name: q.name if kind == "recovery" else q.words for q in quantities(kept)}
        pooled = (*ABOUT, *LENGTHS) if kind == "recovery" else ABOUT
        known = kept.columns[kept.notna().any()]
        held = [name for name in known if name not in (*SAMPLED, *pooled)]
        found = summarise(kept, held, pooled)
        for line in found.to_dict("records"):
            figures = steps.setdefault(line["step"], {STEP: line["step"]})
            figures[_name(str(kind), line, held, words[line["quantity"]])] = line["value"]
    return [steps[step] for step in sorted(steps)]


def _name(kind: str, line: Record, held: Sequence[str], words: str) -> str:
    names = KINDS[kind].coordinates or sorted(held, key=lambda n: (n not in ("layer", "part"), n))
    where = {n: line[n] for n in names if n in held and n not in ("step", "n_layers")}
    where = {name: value for name, value in where.items() if value == value}
    if where.get("layer") == line["n_layers"]:
        where["layer"] = "last"
    if kind != "recovery":
        return "/".join([kind, words, *(f"{name} {value}" for name, value in where.items())])
    parts = {
        f"layer {where['layer']}" + f" {where['part']}" * (where["part"] != "block"): True,
        where["slice"]: True,
        where["prompt_kind"]: where["prompt_kind"] != "story",
        f"without {where['without']}": where["without"],
        f"noise {text(where['noise'])}": where["noise"],
        where["control"]: where["control"],
        "padded": where["padded"],
        f"{where['solver']} {where['settings']}".strip(): True,
    }
    return "/".join([kind, *(part for part, shown in parts.items() if shown), words])


@contextmanager
def _files_in(directory: Path, mode: str) -> Iterator[None]:
    """Offline, W&B's copies of logged files go there too, unless the user says where."""
    name = "WANDB_DATA_DIR"
    if mode == "online" or name in os.environ:
        yield
        return
    os.environ[name] = str(directory / "data")
    try:
        yield
    finally:
        del os.environ[name]


def _open_run(directory: Path, mode: str, project: str, label: str, rows: list[Row]) -> Any:
    import wandb

    about = rows[0]["checkpoint"]
    id_file = directory / f"wandb_id-{about['model_id']}"
    if not id_file.is_file():
        write_text(id_file, uuid.uuid4().hex[:8])
    try:
        return wandb.init(
            project=project,
            name=label,
            id=id_file.read_text().strip(),
            reinit="create_new",  # never the run that something else in this process has open
            resume="allow" if mode == "online" else None,
            dir=directory,
            mode=mode,  # pyright: ignore[reportArgumentType]
            group=f"{' '.join(about['mixers'])} d{about['d_model']} n{about['n_layers']}",
            job_type="eval",
            config={"model_id": about["model_id"], "results": directory.resolve().name},
            settings=wandb.Settings(console="off", silent=True),
        )
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise RequestError(
            f"--wandb {mode}: {reason}; log in with `wandb login`, or use --wandb offline"
        ) from error


def models_used(rows: list[Row]) -> list[str]:
    """The artifacts that training logged of the rows' models, where their run directory is."""
    paths = dict.fromkeys(Path(row["checkpoint"]["path"]) for row in rows)
    names = []
    for path in paths:
        beside = path.parent.parent / "wandb_id"
        if beside.is_file():
            names.append(f"model-{beside.read_text().strip()}:{path.name}")
    return names


def _link(run: Any, rows: list[Row]) -> None:
    """Links the run to the models that were asked; one that was trained offline is not there."""
    import wandb

    for name in models_used(rows):
        try:
            run.use_artifact(name)
        except (wandb.Error, ValueError):
            say(f"--wandb online: {name} is not there, and not linked")


def _log(run: Any, rows: list[Row], page: str | Path | None) -> None:
    import wandb

    run.define_metric(STEP, hidden=True)
    for kind in sorted({row["kind"] for row in rows}):
        run.define_metric(f"{kind}/*", step_metric=STEP)
    for figures in history(rows):
        run.log(figures)
    files = wandb.Artifact(f"results-{run.id}", type="results")
    lines: Frame = frame(rows)
    recoveries = lines[lines["kind"] == "recovery"]
    if len(recoveries):
        records = wide(recoveries)
        columns: list[Any] = list(records[0])
        data: list[Any] = [list(record.values()) for record in records]
        run.log({"summary": wandb.Table(columns=columns, data=data, allow_mixed_types=True)})
        with files.new_file("summary.csv") as file:
            file.write(to_csv(records))
    if page is not None:
        run.log({"page": wandb.Html(Path(page).read_text(encoding="utf-8"), inject=False)})
        files.add_file(str(page), "page.html")
    run.log_artifact(files)
