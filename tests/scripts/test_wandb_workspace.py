"""The workspace of W&B shows keys that are logged, over axes that are logged too."""

import json

import pytest

from eval.lenses.lens import lenses
from eval.views.comparison.table import FIGURES
from eval.views.tracking import STEP
from scripts.wandb_workspace import SECTIONS, build, main
from tests.train.cases import fit
from train.record.loggers import AXES


def test_every_panel_shows_what_is_logged(packed, tmp_path):
    assert fit(packed.path, tmp_path / "run") == 0
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    logged = {key for row in rows for key in row} | {*AXES, STEP}
    logged |= {f"eval/{figure.name}" for figure in FIGURES} | {f"lens/{n}" for n in lenses()}
    for plots in SECTIONS.values():
        for _, x, curves in plots:
            assert {x, *curves} <= logged
    text = build("somebody", "remnant")._to_model().model_dump_json()
    for _, x, curves in (plot for plots in SECTIONS.values() for plot in plots):
        assert x in text
        assert all(key in text for key in curves)


@pytest.mark.parametrize("project", ["remnant", "/remnant", "a/b/c", "a/"])
def test_a_bad_name_is_one_line(project, capsys):
    assert main([project]) == 2
    assert capsys.readouterr().err.startswith(f"error: {project}: must be ENTITY/PROJECT")
