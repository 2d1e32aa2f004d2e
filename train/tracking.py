"""Where figures go: `metrics.jsonl` in the run directory, and Weights & Biases.

The file is the record and W&B a view of it. W&B is offline unless asked, needs no account, writes
into the run directory (`wandb sync RUN/wandb/offline-run-*` uploads it later), and keeps its run id
across resumes.
"""

import json
import uuid
from pathlib import Path
from typing import Any, TextIO

from arch.files import write_file
from train.errors import RunError
from train.settings import RunSettings


class Records:
    """Rows of figures, one per line of progress or validation.

    Args:
        run: the run directory.
        settings: how W&B is used.
        config: the whole configuration, for W&B.
    """

    def __init__(self, run: Path, settings: RunSettings, config: dict[str, Any]) -> None:
        self._run, self._settings, self._config = run, settings, config
        self._file: TextIO | None = None
        self._wandb: Any = None

    @property
    def started(self) -> bool:
        """Whether this is the process that records: the first device's."""
        return self._file is not None

    def start(self, step: int) -> None:
        """Opens the records; rows after `step` belong to what a resume undoes, and are dropped."""
        path = self._run / "metrics.jsonl"
        _drop_after(path, step)
        if self._settings.wandb != "disabled":
            self._wandb = _wandb_run(self._run, self._settings, self._config)
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row; it has at least a `step`."""
        if self._file is None:
            return
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._wandb is not None:
            self._wandb.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])

    def close(self, failed: bool = False) -> None:
        """Ends the file and the W&B run."""
        if self._file is not None:
            self._file.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=int(failed))


def _drop_after(path: Path, step: int) -> None:
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # the last line of a killed run
            continue
        if row["step"] <= step:
            kept.append(line + "\n")
    write_file(path, "".join(kept).encode())


def _wandb_run(run: Path, settings: RunSettings, config: dict[str, Any]) -> Any:
    import wandb

    id_file = run / "wandb_id"
    if not id_file.is_file():
        write_file(id_file, uuid.uuid4().hex[:8].encode())
    online = settings.wandb == "online"
    try:
        return wandb.init(
            project=settings.wandb_project,
            name=run.name,
            id=id_file.read_text().strip(),
            resume="allow" if online else None,
            dir=run,
            mode=settings.wandb,
            config=config,
            job_type="train",
            settings=wandb.Settings(console="off", silent=True),
        )
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"--wandb {settings.wandb}: {reason}; log in with `wandb login`, or use --wandb offline"
        ) from error
