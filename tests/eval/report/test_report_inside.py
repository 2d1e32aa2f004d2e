"""Which of what lenses found the page shows, and by which name."""

import base64
import gzip
import json
from typing import Any

import pytest
import torch

from eval.drawing import Figure, write_figures
from eval.lenses.lens import Named
from eval.report.inside import Section, sections
from tests.eval.compare_cases import lens_row
from tests.eval.report.cases import make_row

ABOUT = make_row("flat")["checkpoint"]


def look(key: str, **about: Any) -> dict[str, Any]:
    """A document of the residual lens that says `key` of itself."""
    axes = {"layer": range(2), "other layer": range(2)}
    return {
        "lens": "residual", "key": key, "about": key, "checkpoint": ABOUT | about, "prompts": [],
        "arrays": {"similarity": Named(torch.eye(2), axes).plain()}, "figures": [], "notes": {},
    }  # fmt: skip


def row(key: str, **about: Any) -> dict[str, Any]:
    """One of its rows."""
    return lens_row(1.0, look=key, key=f"row of {key}", checkpoint=ABOUT | about)


def retrieval(share: float, **about: Any) -> dict[str, Any]:
    return {"kind": "retrieval", "checkpoint": ABOUT | about, "sentence": "last", "pool": "mean",
            "method": "as it is", "layer": 2, "candidates": 4, "queries": 9, "top1": share,
            "low": share, "high": share, "chance": 0.25}  # fmt: skip


def names(found: Section) -> list[str]:
    """What the menu of its first chart offers."""
    (menu,) = [p for p in found.figures[0].spec["params"] if "bind" in p]
    return menu["bind"]["options"]


@pytest.mark.parametrize("order", [("A", "B"), ("B", "A")])
def test_the_look_asked_last_is_shown(order):
    """Whatever the names of their files, by which documents are read."""
    (section,) = sections([look("A"), look("B")], [row(key) for key in order])
    assert section.about == f"{order[1]}."


def test_a_look_without_rows_yields_to_one_with_rows():
    (section,) = sections([look("A"), look("torn")], [row("A")])
    assert section.about == "A."


def test_models_of_one_name_are_told_apart():
    weights = [{"weights_sha256": letter * 64} for letter in "ab"]
    (section,) = sections([look("A", **weights[0]), look("B", **weights[1])])
    assert names(section) == [f"flat ({letter * 10}) at 300" for letter in "ab"]
    (alone,) = sections([look("A", **weights[0]), look("B", step=0)])
    assert names(alone) == ["flat at 0", "flat at 300"]


def test_retrieval_tells_models_of_one_name_apart():
    rows = [retrieval(0.5, weights_sha256="a" * 64), retrieval(1.0, weights_sha256="b" * 64)]
    (section,) = sections([], rows)
    values = "".join(str(figure.spec) for figure in section.figures)
    assert "flat (aaaaaaaaaa) at 300" in values
    assert "flat (bbbbbbbbbb) at 300" in values


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_figure_is_replaced_and_never_written_into(tmp_path, kind):
    """Who reads the old one meanwhile reads all of it."""
    chart = {"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {}}
    old, reader = tmp_path / f"one.{kind}", tmp_path / "reader"
    old.write_text("old")
    reader.hardlink_to(old)
    assert write_figures(tmp_path, [Figure("one", "One", "One.", chart)], kind) == [old]
    assert reader.read_text() == "old"
    assert old.stat().st_size > 100
    assert sorted(path.name for path in tmp_path.iterdir()) == [old.name, "reader"]


def test_a_page_holds_figures_packed():
    """A fifth of their length at most, or pages of a few prompts would take a dozen megabytes."""
    axes = {"layer": range(40), "other layer": range(40)}
    document = look("A") | {"arrays": {"similarity": Named(torch.eye(40), axes).plain()}}
    (section,) = sections([document])
    figure = section.figures[0]
    assert json.loads(gzip.decompress(base64.b64decode(figure.packed))) == figure.spec
    assert len(figure.packed) < len(json.dumps(figure.spec)) / 5
