"""How the README and the guides read, and how variables are named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
WORDS = 35
"""Of a sentence, at most."""
END = re.compile(r"(?<=[.!?])[\"”)*_]*\s+(?=[\[(*_`\"“]*[A-Z0-9`-])|\n\s*\n")
RIDDLES = """
    tokens that only other positions can tell of
    need a flag each
    ask the same layers what readers find
    The folder is the verb
    by an error:
    what is asked of which
    share a fair protocol's prompts out
    no record bears out
    or as good as it
    begin four after
    is not looked at twice
    its control has too says nothing
    some batches of 1,024 stories
    reads their stories past
    start from that ever after
    Only its start differs
    has its kind, its figure
    names the gigabytes first
"""


ROOMS = ("arch", "train", "tokenizer", "eval", "scripts")
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
VAGUE = {"found", "own", "told", "mine", "theirs"}
"""Names of variables that do not say what they hold; fields of rows may have them."""


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page; items of lists and cells of tables end one."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^\s*(?:[-*>]|\d+\.|#+)\s|\|", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "Code", text)
    for part in END.split(text):
        if part and part.strip():
            yield " ".join(part.split())


def long(text: str) -> list[str]:
    """The sentences with too many words."""
    return [one for one in sentences(text) if len(re.findall(r"\w[\w'’.,-]*", one)) > WORDS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    assert long(page.read_text(encoding="utf-8")) == []


def test_variables_are_named_for_what_they_hold() -> None:
    vague = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.arg | ast.Name):
                continue
            name = node.arg if isinstance(node, ast.arg) else node.id
            bound = isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store)
            if bound and name in VAGUE and file.name != "schema.py":  # fields of rows
                vague.append(f"{file.relative_to(ROOT)}:{node.lineno} {name}")
    assert vague == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_riddles(page: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert [
        riddle for line in RIDDLES.splitlines() if (riddle := line.strip()) and riddle in text
    ] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("A dog. " * 40, 0),
        ("word " * 36, 1),
        ("- " + "word " * 20 + "\n- " + "word " * 20, 0),
        ("| " + "word " * 20 + "| " + "word " * 20 + "|", 0),
        ("```\n" + "word " * 50 + "\n```", 0),
        ("word " * 20 + "`a b c`. (See [this](that).) " + "word " * 30, 0),
    ],
)
def test_sentences_are_counted(text: str, count: int) -> None:
    assert len(long(text)) == count


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            known = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in known or anchor.startswith("claim-"), f"{target}#{anchor}"
