"""What tests of the comparison stand on: runs without weights, models, rows of a lens."""

import json
from pathlib import Path
from typing import Any

import yaml

from eval.__main__ import main
from eval.views.comparison.gather import gather_models, gather_rows
from eval.views.comparison.table import checkpoint_records

SIZES = {"vocab_size": 400, "context": 32, "d_model": 32, "n_layers": 2}


def make_run(
    place: Path,
    name: str,
    seed: int = 0,
    bits: float = 1.2,
    lr: float = 1e-3,
    end: int = 100,
) -> Path:
    """A run directory without weights: `make_run(tmp_path, "flat-s0", bits=1.2)`."""
    path = place / "runs" / name
    path.mkdir(parents=True)
    settings = {"run": str(path), "seed": seed, "optimizer": {"lr": lr}, "model": SIZES}
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    rows: list[dict[str, Any]] = []
    for step in sorted({0, 50, end}):
        tokens = 10 * step
        if step:
            rows.append({"step": step, "tokens_seen": tokens, "loss": bits * 3 + 1 / step,
                         "tokens_per_second": 100.0})  # fmt: skip
        own = bits + (end - step) / 50
        rows.append(
            {"step": step, "tokens_seen": tokens, "val_loss": 3 * own, "val_bits_per_byte": own}
        )
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def add_model(run: Path, step: int, source: Path) -> Path:
    """A model directory of a run, its weights those of another one."""
    path = run / "models" / f"step-{step:06d}"
    path.mkdir(parents=True)
    for file in source.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    meta = {"name": run.name, "step": step, "tokens_seen": 10 * step, "val_loss": 3.0 + step,
            "val_bits_per_byte": 1.0 + step}  # fmt: skip
    known = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(known | meta))
    return path


def compared(*places: Path, every: bool = False, **asked: Any) -> list[dict[str, Any]]:
    """The records of the comparison of what lies in places."""
    return checkpoint_records(gather_models(places), gather_rows(places), every, **asked)


def run_compare(*words: object) -> int:
    return main(["compare", *map(str, words)])
