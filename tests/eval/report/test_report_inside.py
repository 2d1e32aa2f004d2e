"""Which of what lenses found the page shows, by which name, and texts with highlighted tokens."""

import base64
import gzip
import json
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from eval import RequestError
from eval.drawing import Figure, write_figures
from eval.lenses.markup import STRONGEST, STYLE, highlighted
from eval.lenses.table import Table
from eval.report.inside import LensSection, lens_sections
from tests.eval.report.cases import checkpoint_of, lens, make_row

ABOUT = make_row("flat")["checkpoint"]


def look(key: str, **about: Any) -> dict[str, Any]:
    """A document of the residual lens that says `key` of itself."""
    return {
        "lens": "residual", "key": key, "about": key, "prompts": [],
        "checkpoint": checkpoint_of(ABOUT, **about), **similar(2),
    }  # fmt: skip


def similar(depth: int) -> dict[str, Any]:
    """What the lens finds where layers have nothing in common."""
    table, axes = Table(), dict[str, Any].fromkeys(("layer", "other layer"), range(depth))
    table.add("similarity", torch.eye(depth), **axes)
    return table.plain()


def row(key: str, **about: Any) -> dict[str, Any]:
    """One of its rows."""
    return lens(checkpoint_of(ABOUT, **about), 1.0) | {"look": key, "key": f"row of {key}"}


def names(found: LensSection) -> list[str]:
    """What the menu of its first chart offers."""
    (menu,) = [p for p in found.figures[0].spec["params"] if "bind" in p]
    return menu["bind"]["options"]


@pytest.mark.parametrize("order", [("A", "B"), ("B", "A"), ("A",), ("B",)])
def test_the_look_asked_last_is_shown(order):
    """Whatever the names of their files, by which documents are read; one without rows yields."""
    (section,) = lens_sections([look("A"), look("B")], [row(key) for key in order])
    assert section.about == f"{order[-1]}."


def test_models_of_one_name_are_told_apart():
    weights = [{"weights_sha256": letter * 64} for letter in "ab"]
    expected = [f"flat ({letter * 10}) at 300" for letter in "ab"]
    (section,) = lens_sections([look("A", **weights[0]), look("B", **weights[1])])
    assert names(section) == expected
    (alone,) = lens_sections([look("A", **weights[0]), look("B", step=0)])
    assert names(alone) == ["flat at 0", "flat at 300"]


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
    with pytest.raises(RequestError, match="figures as gif: allowed are svg and png"):
        write_figures(tmp_path, [], "gif")


def test_a_page_holds_figures_packed():
    """A fifth of their length at most, or pages of a few prompts would take a dozen megabytes."""
    (section,) = lens_sections([look("A") | similar(40)])
    figure = section.figures[0]
    assert json.loads(gzip.decompress(base64.b64decode(figure.packed))) == figure.spec
    assert len(figure.packed) < len(json.dumps(figure.spec)) / 5


PIECES = ["<script>", "alert('\"", " &amp;", "\n", " dog"]


def read(scores: dict[str, list[float]]) -> tuple[ElementTree.Element, list[ElementTree.Element]]:
    """The pieces highlighted by scores, as a browser reads them, and its tokens."""
    page = ElementTree.fromstring(f"<main>{highlighted(PIECES, scores)}</main>")
    return page, list(page.iter("span"))


def test_text_stays_text_and_every_token_says_its_number_to_mouse_and_keyboard():
    page, spans = read({"<b>gradient</b>": [0.0, 1.0, -2.0, 0.5, 0.123456]})
    assert {each.tag for each in page.iter()} == {"main", "section", "h4", "p", "span"}
    assert [span.text for span in spans] == ["<script>", "alert('\"", " &amp;", "↵\n", " dog"]
    assert [each.text for each in page.iter("h4")] == ["<b>gradient</b>"]
    assert all(span.get("tabindex") == "0" for span in spans)
    assert [span.get("data-score") for span in spans] == ["+0", "+1", "−2", "+0.5", "+0.123"]
    assert spans[1].get("title") == "+1 " + repr("alert('\"")


def test_colours_tell_sign_and_strength():
    _, spans = read({"a": [0.0, 1.0, -2.0, 2.0, 0.01], "b": [0.0] * 5})
    classes = [span.get("class") for span in spans]
    assert classes[:5] == ["", f"f{STRONGEST // 2}", f"a{STRONGEST}", f"f{STRONGEST}", ""]
    assert classes[5:] == [""] * 5  # nothing to colour, and nothing divided by zero
    assert all(f".attribution .{style} " in STYLE for style in classes if style)
    assert "prefers-color-scheme: dark" in STYLE
