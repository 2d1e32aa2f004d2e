"""Rows of evidence as a Weights & Biases run: a view of a results directory, never its only home.

W&B is offline unless asked and needs no account. Its offline files lie in the results directory
(`wandb sync RESULTS/wandb/offline-run-*` uploads them later), and so does the run's id, so that the
same command adds to the same run, in the group of the architecture, as training has it. By training
step of the checkpoints the figures of the summary are logged, once the summary of recoveries as a
table and the page. Online, the run is linked to the models that training logged.
"""

import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arch.files import write_text
from eval import RequestError
from eval.cells import COMPARED, Record, cells
from eval.schema import Row
from eval.tables import text, to_csv

MODES = ("offline", "online")
STEP = "checkpoint/step"


def track_results(
    directory: str | Path,
    rows: list[Row],
    page: str | Path | None = None,
    mode: str = "offline",
    project: str = "remnant",
) -> str:
    """Logs rows to the W&B run of a results directory; returns the id of the run.

    Args:
        directory: the results directory; holds the run's id and the offline files.
        rows: its rows.
        page: the HTML page made of them, if there is one.
        mode: one of `MODES`.
        project: W&B's name for a collection of runs.

    Raises:
        RequestError: there are no rows, or W&B cannot be reached.
    """
    rows = [row for row in rows if "checkpoint" in row]
    if not rows:
        raise RequestError("no rows: there is nothing to log; run `python -m eval invert` first")
    records = [cell.record for cell in cells(rows) if cell.kind == "recovery"]
    histories = history(rows)
    with _files_in(Path(directory).resolve() / "wandb", mode):
        run = _open_run(Path(directory), mode, project, rows, records)
        try:
            if mode == "online":
                _link(run, rows)
            _log(run, records, histories, page)
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish()
    return run.id


def history(rows: Sequence[Row]) -> list[dict[str, float]]:
    """The figures by name, one dict per training step in ascending order; `STEP` is the step.

    Names of recoveries read `invert/layer3/[:, 3:, :]/alternating/nonself`; a field stands in them
    only where it is not as usual, or tells two of them apart. Those of other kinds name every place
    in full, so that they are the same in every run: `lens/norm/layer 3/...`,
    `loss/bits/byte/corpus .../stories ...`. A model's name stands second where there are several.
    """
    summed = cells(rows)
    recoveries = [cell.record for cell in summed if cell.kind == "recovery"]
    tell = {
        "model": len({cell.about["model"] for cell in summed}) > 1,
        "observed": _clash(recoveries, "slice", "observed"),
        "settings": _clash(recoveries, "method", "settings"),
    }
    by_step: dict[int, dict[str, float]] = {}
    for cell in summed:
        figures = by_step.setdefault(cell.about["step"], {STEP: cell.about["step"]})
        model = [cell.about["model"]] * tell["model"]
        if cell.kind == "recovery":
            name = "/".join(["invert", *model, _name(cell.record, tell)])
            known = {f"{name}/{n}": cell.figures[n] for n in COMPARED if n in cell.figures}
        else:
            places = [f"{name} {value}" for name, value in cell.where.items()]
            known = {"/".join([cell.kind, *model, q.words, *places]): cell.figures[q.name]
                     for q in cell.quantities if q.name in cell.figures}  # fmt: skip
        figures |= {name: figure.value for name, figure in known.items()}
    return [by_step[step] for step in sorted(by_step)]


def _name(record: Record, tell: dict[str, bool]) -> str:
    parts = {
        f"layer{record['layer']}" + f" {record['part']}" * (record["part"] != "block"): True,
        record["slice"]: True,
        f"{record['observed']} observed": tell["observed"],
        record["prompt_kind"]: record["prompt_kind"] != "story",
        f"without {record['without']}": record["without"],
        f"noise {text(record['noise'])}": record["noise"],
        record["control"]: record["control"],
        "padded": record["padded"],
        record["method"] + f" {record['settings']}" * tell["settings"]: True,
    }
    return "/".join(part for part, shown in parts.items() if shown)


def _clash(records: list[Record], field: str, other: str) -> bool:
    """Whether a value of one field goes with several of another."""
    pairs = {(record[field], record[other]) for record in records}
    return len(pairs) > len({record[field] for record in records})


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


def _open_run(
    directory: Path, mode: str, project: str, rows: list[Row], records: list[Record]
) -> Any:
    import wandb

    id_file = directory / "wandb_id"
    if not id_file.is_file():
        write_text(id_file, uuid.uuid4().hex[:8])
    try:
        return wandb.init(
            project=project,
            name=directory.resolve().name,
            id=id_file.read_text().strip(),
            reinit="create_new",  # never the run that something else in this process has open
            resume="allow" if mode == "online" else None,
            dir=directory,
            mode=mode,  # pyright: ignore[reportArgumentType]
            group=_group(rows),
            job_type="invert" if records else "look",
            config={"models": sorted({row["checkpoint"]["name"] for row in rows})},
            settings=wandb.Settings(console="off", silent=True),
        )
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise RequestError(
            f"--wandb {mode}: {reason}; log in with `wandb login`, or use --wandb offline"
        ) from error


def _group(rows: list[Row]) -> str | None:
    """The architecture, as training names its groups; None for several."""
    groups = {
        f"{' '.join(about['mixers'])} d{about['d_model']} n{about['n_layers']}"
        for about in (row["checkpoint"] for row in rows)
    }
    return groups.pop() if len(groups) == 1 else None


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
            print(f"--wandb online: {name} is not there, and not linked", file=sys.stderr)


def _log(
    run: Any, records: list[Record], histories: list[dict[str, float]], page: str | Path | None
) -> None:
    import wandb

    run.define_metric(STEP, hidden=True)
    sections = {name.partition("/")[0] for figures in histories for name in figures if name != STEP}
    for section in sorted(sections):
        run.define_metric(f"{section}/*", step_metric=STEP)
    for figures in histories:
        run.log(figures)
    files = wandb.Artifact(f"results-{run.id}", type="results")
    if records:
        columns: list[Any] = list(records[0])
        data: list[Any] = [list(record.values()) for record in records]
        run.log({"summary": wandb.Table(columns=columns, data=data, allow_mixed_types=True)})
        with files.new_file("summary.csv") as file:
            file.write(to_csv(records))
    if page is not None:
        run.log({"page": wandb.Html(Path(page).read_text(encoding="utf-8"), inject=False)})
        files.add_file(str(page), "page.html")
    run.log_artifact(files)
