"""Stores the rows of an experiment beside its registration, for its tables and its page.

    python -m scripts.experiments.store e6 ROWS.jsonl [ROWS.jsonl ...]

Each row is kept as it was written, but for its model's path, with the hash of the registration that
it answers.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pandas

from scripts.experiments.tables import FOLDER

pd: Any = pandas


def store(name: str, files: list[str]) -> None:
    """Writes NAME.parquet, a column `row` of JSON objects; each key stands once."""
    registration = hashlib.sha256((FOLDER / f"{name}.yaml").read_bytes()).hexdigest()[:16]
    rows = {}
    for file in files:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            row.get("checkpoint", {}).pop("path", None)
            rows[row["key"]] = row | {"experiment": {"registration": registration}}
    lines = [json.dumps(row, ensure_ascii=False) for row in rows.values()]
    pd.DataFrame({"row": lines}).to_parquet(FOLDER / f"{name}.parquet", compression="zstd")
    print(f"{name}.parquet: {len(lines)} rows")


if __name__ == "__main__":
    store(sys.argv[1], sys.argv[2:])
