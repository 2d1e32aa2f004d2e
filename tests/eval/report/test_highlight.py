"""Highlighted tokens: what a browser reads is the text, and every number can be had."""

from html.parser import HTMLParser

import pytest

from eval.lenses.markup import STRONGEST, STYLE, highlighted

PIECES = ["<script>", "alert('\"", " &amp;", "\n", " dog"]


class Reader(HTMLParser):
    """What a browser makes of it: tags with their attributes, and the text of each."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.tags[-1][0], []).append(data)


def test_text_stays_text():
    page = Reader(highlighted(PIECES, {"<b>gradient</b>": [0.0, 1.0, -2.0, 0.5, 0.1]}))
    assert {tag for tag, _ in page.tags} == {"section", "h4", "p", "span"}
    assert page.texts["span"] == ["<script>", "alert('\"", " &amp;", "↵\n", " dog"]
    assert "".join(page.texts["h4"]) == "<b>gradient</b>"


def test_every_token_says_its_number_to_mouse_and_keyboard():
    page = Reader(highlighted(PIECES, {"a": [0.0, 1.0, -2.0, 0.5, 0.123456]}))
    spans = [attributes for tag, attributes in page.tags if tag == "span"]
    assert all(span["tabindex"] == "0" for span in spans)
    assert [span["data-score"] for span in spans] == ["+0", "+1", "−2", "+0.5", "+0.123"]
    assert spans[1]["title"] == "+1 " + repr("alert('\"")


def test_colours_tell_sign_and_strength():
    page = Reader(highlighted(PIECES, {"a": [0.0, 1.0, -2.0, 2.0, 0.01], "b": [0.0] * 5}))
    classes = [attributes["class"] for tag, attributes in page.tags if tag == "span"]
    assert classes[:5] == ["", f"f{STRONGEST // 2}", f"a{STRONGEST}", f"f{STRONGEST}", ""]
    assert classes[5:] == [""] * 5  # nothing to colour, and nothing divided by zero
    for style in {c for c in classes if c}:
        assert f".attribution .{style} " in STYLE
    assert "prefers-color-scheme: dark" in STYLE


def test_a_score_too_few_is_a_mistake():
    with pytest.raises(ValueError, match="zip"):
        highlighted(PIECES, {"a": [1.0]})
