"""The workspace of W&B shows keys that are logged, over axes that are logged too."""

import json
import sys

import pytest
import wandb_workspaces.workspaces as workspaces
from wandb.sdk.lib.service.service_connection import WandbApiFailedError

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


@pytest.mark.parametrize(
    ("broken", "says"), [("save", "a/b: permission denied"), ("import", "[boards]")]
)
def test_what_wandb_lacks_or_refuses_is_one_line(broken, says, monkeypatch, capsys):
    def refuse(self):
        raise WandbApiFailedError("permission\ndenied")

    monkeypatch.setattr(workspaces.Workspace, "save", refuse)
    if broken == "import":
        monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    assert main(["a/b"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert says in line


@pytest.mark.parametrize("project", ["remnant", "/remnant", "a/b/c", "a/"])
def test_a_bad_name_is_one_line(project, capsys):
    assert main([project]) == 2
    assert capsys.readouterr().err.startswith(f"error: {project}: must be ENTITY/PROJECT")
