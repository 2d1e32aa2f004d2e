"""Solvers of one's own: the example of docs/extending.md works; what cannot be used is refused."""

import json
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.inversion import solver as registry
from eval.inversion.solver import FAMILIES, solvers
from eval.report.page import render_page
from eval.rows import read_rows
from tests.docs_cases import ROOT, blocks

UNIT, HILL = (
    "\n".join(lines)
    for _, language, lines in blocks((ROOT / "docs/extending.md").read_text(encoding="utf-8"))
    if language == "python" and any("@solver" in line for line in lines)
)
ASKED = ("--text", "Once upon a time", "--layers", "1", "--slices", "[:, :, :]")


@pytest.fixture(autouse=True)
def ours_again(monkeypatch):
    """Solvers entered by a test leave with it."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(solvers()))


@pytest.fixture
def example(tmp_path):
    file = tmp_path / "hill.py"
    file.write_text(HILL)
    return file


def invert(model: Path, out: Path, *more: object) -> int:
    return main(["invert", str(model), "--out", str(out), *ASKED, *map(str, more)])


def test_the_examples_of_the_docs_recover_tokens(model_directory, example, tmp_path):
    model, out, unit = model_directory(), tmp_path / "rows", tmp_path / "unit.py"
    unit.write_text(UNIT)
    plugins = ("--plugin", example, "--plugin", unit)
    assert invert(model, out, *plugins, "--methods", "hill", "unit", "--set", "hill.width=200") == 0
    rows = {row["method"]: row for row in read_rows([out])}
    assert all(row["exact"] and row["certificate"] == "residual" for row in rows.values())
    assert rows["hill"]["settings"].items() >= {"rounds": 25, "width": 200}.items()
    assert "Exchanges one token at a time for a random one" in render_page([rows["hill"]])
    example.write_text(HILL.replace("25", "24"))  # other code answers anew
    assert invert(model, out, "--plugin", example, "--methods", "hill") == 0
    assert len({row["settings"]["code"] for row in read_rows([out])}) == 3


def test_solvers_are_listed_with_settings_and_defaults(example, capsys):
    assert main(["solvers", "--format", "json", "--plugin", str(example)]) == 0
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert set(listed) == set(solvers())
    assert listed["hill"]["settings"]["rounds"] == 25
    assert listed["hill"]["settings_text"]["rounds"] == "over all positions."
    for each in listed.values():
        assert each["family"] in FAMILIES
        assert each["text"]
        assert all(each["settings_text"].values())
    assert main(["solvers", "--names", "adam"]) == 0
    text = capsys.readouterr().out
    assert "adam.steps=300" in text
    assert "sweep" not in text
