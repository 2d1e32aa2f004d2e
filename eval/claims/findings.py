"""The page's text: `findings.md`, where every figure is a placeholder, looked up in the records.

    {{71 nonself search}}                       hidden tokens of claim 71, by search (fair)
    {{69 reported self arm=trained}}            of one of its arms, as reported
    {{74 self descent padded}}                  {{74 self descent control=identity}}
    {{88 agrees arm=flat metric=dot query="after norm" keys=output}}   a lens's, with where it is
    {{90 norm arm=flat pool=last}}              pooled over what is left, by layer
    {{curve step flat 1000 nonself search}}     {{curve base llama null self adam state=after}}
    {{verdict 71}} {{why 71}} {{prompts 71}} {{models 71}} {{sizes 71}} {{found 71}}
    {{tally}} {{tally mixers}} {{which "does not hold" mixers}}
    {{claim 71 74}} {{curves}}                  links to rows, which hold the commands
    {{assert 71 nonself search low > 71 nonself gradient high}}        is not printed

A paragraph with figures of a claim must link to it, and may have no share that was typed by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from eval.claims.findings_words import Known
from eval.errors import RequestError

TEMPLATE = Path(__file__).with_suffix(".md")
PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
TYPED = re.compile(r"\d[\d.,]*\s?%")
UNSAID = "\0"
ALONE = re.compile(rf"^[ {UNSAID}]*{UNSAID}[ {UNSAID}]*(\n|\Z)", re.MULTILINE)
"""A line of assertions."""
START, END = "<!-- finding -->", "<!-- /finding -->"
"""Around what the README says as well."""


def fill(path: Path, known: Known) -> str:
    """A template with its placeholders resolved.

    Raises:
        RequestError: a line that names what means nothing, is not known, or is not so.
    """
    template = path.read_text(encoding="utf-8")
    paragraphs, line = [], 1
    for paragraph in re.split(r"(\n\n+)", template):
        paragraphs.append(_paragraph(paragraph, known, path.name, line))
        line += paragraph.count("\n")
    return re.sub(r"\n{3,}", "\n\n", "".join(paragraphs)).strip() + "\n"


def block(text: str, path: str | Path) -> tuple[str, str, str]:
    """A text in three: to the mark of the finding, what is between the marks, and the rest.

    Raises:
        RequestError: the marks are not there once each.
    """
    if text.count(START) != 1 or text.count(END) != 1 or text.index(END) < text.index(START):
        raise RequestError(
            f"{path}: needs one {START} and one {END} after it, each on a line, around its finding"
        )
    before, rest = text.split(START)
    inside, after = rest.split(END)
    return before + START, inside, END + after


def readme(path: str | Path, filled: str) -> str:
    """A README with the finding of a filled template in place of its own."""
    before, _, after = block(Path(path).read_text(encoding="utf-8"), path)
    return before + block(filled, TEMPLATE.name)[1] + after


def _paragraph(text: str, known: Known, name: str, line: int) -> str:
    typed = TYPED.search(PLACEHOLDER.sub("", text))
    if typed:
        raise _error(name, line, f"{typed[0]} is typed by hand; write a placeholder")
    known.used.clear()
    known.cited.clear()

    def said(match: re.Match[str]) -> str:
        at = line + text.count("\n", 0, match.start())
        try:
            return known.say(match[1]) or UNSAID
        except RequestError as error:
            raise _error(name, at, f"{{{{{match[1]}}}}}: {error}") from None

    lines = PLACEHOLDER.sub(said, text)
    lines = ALONE.sub("", lines).replace(UNSAID, "")
    if missing := sorted(known.used - known.cited):
        links = ", ".join(
            "{{curves}}" if one == "curves" else f"{{{{claim {one}}}}}" for one in missing
        )
        raise _error(name, line, f"figures without a link to their commands; add {links}")
    if "{{" in lines or "}}" in lines:
        raise _error(name, line, "a placeholder that is not closed, or not opened")
    return lines


def _error(name: str, line: int, message: str) -> RequestError:
    return RequestError(f"{name}, line {line}: {' '.join(message.split())}")
