"""The settings in which compared models differ, as columns."""

import json

import pytest
import yaml

from tests.eval.views.compare_cases import add_model, compared, make_run


@pytest.mark.parametrize(
    ("change", "column", "cells"),
    [
        ({"init_from": "runs/base"}, "init_from", ["random", "runs/base"]),
        ({"minutes": 5}, "minutes", ["unset", 5]),
        ({"optimizer": {"lr": 1e-3, "muon_lr": 0.01}}, "optimizer.muon_lr", ["unset", 0.01]),
    ],
)
def test_a_setting_that_one_of_two_runs_has_is_a_column(tmp_path, change, column, cells):
    """It was left out, and two lines of a table differed in nothing."""
    runs = [make_run(tmp_path, name) for name in ("a", "b")]
    none = {"init_from": None, "minutes": None, "optimizer": {"lr": 1e-3, "muon_lr": None}}
    for run, settings in zip(runs, (none, none | change), strict=True):
        (run / "config.yaml").write_text(yaml.safe_dump(settings))
    assert [record["settings"] for record in compared(*runs)] == [{column: cell} for cell in cells]


def test_weights_of_one_path_are_told_apart_by_their_hash(tmp_path, model_directory):
    runs = [make_run(tmp_path, name) for name in ("a", "b")]
    for run in runs:
        (run / "config.yaml").write_text("init_from: runs/base")
        meta = add_model(run, 100, model_directory("any", 100)) / "meta.json"
        recipe = {"init_from": "runs/base", "init_from_sha256": run.name * 64}
        meta.write_text(json.dumps(json.loads(meta.read_text()) | {"recipe": recipe}))
    assert [record["settings"] for record in compared(*runs)] == [
        {"init_from": f"base ({run.name * 8})"} for run in runs
    ]
