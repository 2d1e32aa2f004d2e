"""A user's own file of lenses: as `docs/extending.md` shows it, and every way in which it fails."""

import json

import pytest
import torch

from eval.__main__ import main
from eval.lenses.lens import REGISTER, lenses
from eval.models import open_checkpoint
from eval.rows import read_rows
from tests.docs_cases import ROOT, blocks

TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def register():
    """What a plug-in registered is forgotten."""
    before = dict(lenses())
    yield
    REGISTER.clear()
    REGISTER.update(before)


@pytest.fixture
def plugin(tmp_path):
    """The lens of the document, as a file."""
    section = TEXT[TEXT.index("## A lens") :]
    code = next(lines for _, language, lines in blocks(section) if language == "python")
    path = tmp_path / "lengths.py"
    path.write_text("\n".join(code), encoding="utf-8")
    return path


def test_the_lens_of_the_document_measures_and_draws(plugin, model_directory, tmp_path, capsys):
    model, out, page = model_directory(), tmp_path / "out", tmp_path / "page.html"
    asked = ["--text", "Tom sat.", "--out", str(out), "--plugin", str(plugin)]
    assert main(["lens", str(model), "--lens", "lengths", *asked]) == 0
    checkpoint = open_checkpoint(model)
    tokens = torch.tensor([checkpoint.tokenizer.encode("Tom sat.").ids])
    embedded = checkpoint.model.embed(tokens)
    rows = read_rows([out])
    assert [(row["lens"], row["figure"], row["layer"]) for row in rows] == [
        ("lengths", "last length", layer) for layer in range(len(checkpoint.model.blocks) + 1)
    ]
    assert all((row["n"], row.get("low")) == (1, None) for row in rows)  # of one prompt
    for row in rows:
        last = checkpoint.model.hidden(embedded, row["layer"])[0, -1]
        assert row["value"] == pytest.approx(float(last.norm()), rel=1e-5)
    assert main(["report", str(out), "--out", str(page), "--plugin", str(plugin)]) == 0
    assert 'id="lengths-last-length"' in page.read_text(encoding="utf-8")
    assert "left out" not in capsys.readouterr().err
    assert main(["lenses", "--plugin", str(plugin), "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed[0]["name"] == "residual"
    assert listed[-1]["name"] == "lengths"
    del REGISTER["lengths"]
    assert main(["report", str(out), "--out", str(page)]) == 0
    assert "<code>--plugin FILE</code>" in page.read_text(encoding="utf-8")
    said = capsys.readouterr().err.splitlines()
    assert said == ["lens lengths is left out: give the file that defines it as --plugin FILE"]
