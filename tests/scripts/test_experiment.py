"""Experiments: trained, measured and resumed as registered; registrations stay as they were."""

import shutil

import pytest
import yaml

from eval.rows import read_rows
from scripts import experiment
from tests.scripts.cases import FIT, written

SMALL = {
    "name": "small",
    "design": {
        "vocabulary": 300,
        "fit": FIT,
        "architectures": {"flat": "--model.mixers [flat]"},
        "seeds": [3],
        "steps": [0, 1, 2],
        "passages": {"count": 2, "before": 2, "candidates": 50, "counted": 500},
        "measured": {"distances": [1, 2], "noise": [1.0], "quantisers": ["int4"], "draws": 2},
    },
}
RECOVERED = {
    "vocabulary": 300,
    "fit": FIT,
    "architectures": {"flat": {"flags": "--model.mixers [flat]", "steps": [2]}},
    "seeds": [3],
    "budget": 9000,
    "recovered": {
        "prompts": {"count": 2, "skip": 1, "before": 3, "after": 6},
        "cells": [
            {"hidden": 3, "shown": [1, 4], "methods": {"alternating": {"budget": 9000}}},
            {"hidden": 3, "shown": 4, "starts": 2, "methods": {"adam": {"steps": 2}}},
        ],
    },
    "rows": 8,
    "in_words": "In words.",
}
FOUND = {
    "value": "whole", "of": {"hidden": 3, "shown": 4, "method": "alternating"},
    "minus": {"method": "adam"}, "above": 0,
}  # fmt: skip
FILLED = RECOVERED | {
    "recovered": {
        "prompts": {"count": 2, "skip": 1, "before": 1, "after": 6},
        "cells": [
            {"of": {"flat": [2]}, "hidden": 1, "shown": 2, "methods": {"descent": {"steps": 2}}},
            {"of": {"flat": [2]}, "hidden": 1, "shown": 2, "upto": [4, 6],
             "filled": ["pads", "stories", "random"], "methods": {"descent": {"steps": 2}}},
            {"of": {"llama": [2]}, "hidden": 1, "shown": 2, "methods": {"descent": {}}},
        ],
    },
    "rows": 14,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of the experiment `small`, trained and measured."""
    place = tmp_path_factory.mktemp("experiment")
    (place / "small.yaml").write_text(yaml.safe_dump(SMALL))
    experiment.run(experiment.Registration.read("small", place), "toy:400", place / "out")
    return place / "out"


def test_an_experiment_is_trained_measured_resumed_and_saved(trained, tmp_path, monkeypatch):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    shutil.copytree(trained, tmp_path / "out")
    words = ["small", "--corpus", "toy:400", "--out", str(tmp_path / "out")]
    rows = read_rows([tmp_path / "out"])
    registration = experiment.Registration.read("small", tmp_path)
    assert [row["checkpoint"]["step"] for row in rows] == [0, 0, 1, 1, 2, 2]
    about = {"name": "small", "registration": registration.hash, "architecture": "flat", "seed": 3}
    assert all(row["experiment"] == about for row in rows)
    monkeypatch.setattr(experiment, "_give", None)
    assert experiment.main(words) == 0
    assert read_rows([tmp_path / "out"]) == rows
    assert experiment.main(["small", "--out", str(tmp_path / "out"), "--save"]) == 0
    saved = read_rows([tmp_path / "small.parquet"])
    assert [row["bits"] for row in saved] == [row["bits"] for row in rows]
    assert str(tmp_path) not in str(saved)


@pytest.mark.parametrize(
    ("design", "drawn"), [(RECOVERED, ["work", "hidden"]), (FILLED, ["positions"])]
)
def test_recoveries_become_a_page(design, drawn, trained, tmp_path, capsys, monkeypatch):
    """Asked, saved, and judged by rows that have each cell's prompts once."""
    written(tmp_path, monkeypatch, "few", design, [{"contrasts": FOUND}])
    out, page = tmp_path / "out", tmp_path / "page.md"
    shutil.copytree(trained, out)
    (out / "rows.jsonl").unlink()
    assert experiment.main(["few", "--corpus", "toy:400", "--out", str(out)]) == 0, (
        capsys.readouterr().err
    )
    rows = read_rows([out])
    assert len(rows) == design["rows"]
    assert all(row["experiment"]["seed"] == 3 for row in rows)
    asked = design["recovered"]["prompts"]
    for row in rows:
        shown = row["experiment"]["upto"]
        assert (row["observed"], row["length"] - row["hidden"]) == (
            shown,
            2 if asked["before"] == 1 else shown,
        )
    by_prompt = {(row["prompt"], tuple(row["truth"][: row["hidden"]])) for row in rows}
    assert len(by_prompt) == asked["count"]
    assert experiment.main(["few", "--out", str(out), "--save", "--page", str(page)]) == 0
    assert f"**Complete**: {design['rows']} of {design['rows']} rows." in page.read_text()
    assert [(tmp_path / f"few-{name}.svg").is_file() for name in drawn] == [True] * len(drawn)


def test_rows_of_another_registration_are_not_saved(tmp_path):
    registration = experiment.Registration("small", "another", {})
    (tmp_path / "rows.jsonl").write_text("")
    assert experiment.save(registration, tmp_path, tmp_path / "small.parquet") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["e99", "--out", "x"], "experiment 'e99': none is registered so; there are e1"),
        (["e1", "--out", "x"], "--corpus: missing; "),
        (["e1"], "--out: missing; "),
        (["e2", "--out", "x", "--corpus", "toy"], "e2: is registered, and has no command yet"),
    ],
)
def test_bad_requests_are_one_line(words, message, capsys):
    assert experiment.main(words) == 2
    assert message in capsys.readouterr().err
