"""Made-up rows look like those that eval writes."""

from typing import Any

import pytest

from eval.__main__ import main
from eval.rows import read_rows
from tests.eval.report.cases import make_row


def kinds(row: dict[str, Any]) -> dict[str, Any]:
    """The fields, those of what is nested too; none of free form."""
    free = ("settings", "notes")
    return {k: kinds(v) if isinstance(v, dict) and k not in free else None for k, v in row.items()}


@pytest.mark.parametrize(("method", "hidden"), [("sweep", 0), ("alternating", 1), ("descent", 3)])
def test_made_up_rows_have_the_fields_of_real_ones(method, hidden, model_directory, tmp_path):
    asked = ["--methods", method, "--slices", f"[:, {hidden}:, :]", "--layers", "1"]
    asked += ["--text", "Once upon a time", *(["--set", "descent.steps=1"] if hidden == 3 else [])]
    out = tmp_path / "out"
    assert main(["invert", str(model_directory()), "--out", str(out), *asked]) == 0
    (real,) = read_rows([out])
    made = make_row(method=method, hidden=hidden, length=real["length"])
    assert kinds(made) == kinds(real)
    for name, value in real.items():
        if name not in ("criterion", "permuted", "certificate"):
            assert type(made[name]) is type(value) or None in (made[name], value), name
