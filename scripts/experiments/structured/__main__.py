"""E12, the structured mixers of 2026, and E14, a long training: docs/results/experiments/*.yaml.

    python -m scripts.experiments.structured run DATA OUT [--name e14]
    python -m scripts.experiments.structured table E12.parquet FIGURE.svg
    python -m scripts.experiments.structured fall E14.parquet

DATA is packed. `run` takes one model after another, trains it into OUT/runs and adds the rows that
answer its questions to OUT/MODEL.jsonl; questions that rows here or the stored rows answer are not
asked again. Several may run at once, each on models of its own (OMP_NUM_THREADS=1 gives each a
core), and all may be killed and given again. A training that fails is named at the end. `table`
and `fall` print verdicts and tables of the stored rows.
"""

import fcntl
import sys
from itertools import product
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional
from tyro.extras import subcommand_cli_from_dict

import arch.kernels.process  # noqa: F401 - before the first product
from scripts.experiments.shared import FOLDER, add_rows, read_design, read_rows, read_stored
from scripts.experiments.structured import asking
from scripts.experiments.structured.fall import show_falls
from scripts.experiments.structured.table import show
from scripts.experiments.structured.training import train


def run_models(
    data: Path, out: Path, design: dict[str, Any], stored: list[dict[str, Any]]
) -> list[str]:
    """Trains and asks each model that no other process holds; the names of those that failed."""
    failed, known = [], asking.answered(stored)
    (out / "locks").mkdir(parents=True, exist_ok=True)
    for seed, family in product(design["seeds"], design["models"]):
        name = f"{family}-s{seed}"
        run, file = out / "runs" / name, out / f"{name}.jsonl"
        with (out / "locks" / name).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another process has this model
                continue
            answered = known | asking.answered(read_rows(file))
            left = [of for of in asking.questions(design, family, seed) if of.key not in answered]
            if left and not train(data, run, design, family, seed):
                failed.append(name)
                continue
            for question in left:
                found = asking.ask(question, run, str(data), design)
                add_rows(file, *found)  # of a question at once, so that no answer is half
                print(question.key, flush=True)
    return failed


def run(data: Positional[Path], out: Positional[Path], name: Literal["e12", "e14"] = "e12") -> int:
    """Trains and asks the models of an experiment; 1 where a training failed, 2 of other data."""
    if not (data / "meta.json").is_file():
        print(f"error: {data}: not packed data; give what `tokenizer pack` wrote", file=sys.stderr)
        return 2
    file = FOLDER / f"{name}.parquet"
    stored = read_stored(file) if file.is_file() else []
    failed = run_models(data, out, read_design(name), stored)
    if failed:
        print(f"failed: {', '.join(failed)}; their logs are in {out / 'runs'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(subcommand_cli_from_dict({"run": run, "table": show, "fall": show_falls}))
