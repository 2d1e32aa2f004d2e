"""Stores the rows of an experiment beside its registration, for its page.

    python -m scripts.experiments.store e6 ROWS.jsonl [ROWS.jsonl ...]

Each row is kept as it was written, but for its model's path, with the hash of the registration that
it answers. Rows that are stored already stay, so that an experiment may be asked in several parts.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pandas

from scripts.experiments.shared import FOLDER

pd: Any = pandas


def store(name: str, files: list[str]) -> None:
    """Adds rows to NAME.parquet, a column `row` of JSON objects; each key stands once."""
    registration = hashlib.sha256((FOLDER / f"{name}.yaml").read_bytes()).hexdigest()[:16]
    stored = FOLDER / f"{name}.parquet"
    lines = list(pd.read_parquet(stored).row) if stored.is_file() else []
    for file in files:
        lines += Path(file).read_text(encoding="utf-8").splitlines()
    rows = {}
    answers = {"experiment": {"registration": registration}}
    for row in map(json.loads, lines):
        row.get("checkpoint", {}).pop("path", None)
        if (answers | row)["experiment"] != answers["experiment"]:
            raise SystemExit(f"{stored}: rows of another registration than {name}.yaml; move it")
        rows[row["key"]] = row | answers
    lines = [json.dumps(row, ensure_ascii=False) for row in rows.values()]
    pd.DataFrame({"row": lines}).to_parquet(stored, compression="zstd")
    print(f"{stored.name}: {len(lines)} rows")


if __name__ == "__main__":
    store(sys.argv[1], sys.argv[2:])
