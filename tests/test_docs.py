"""Every command of README and docs/ is run as it is written, at toy size, page by page.

How, and what is not run, is in tests/docs_cases.py.
"""

import re
import shutil
from pathlib import Path

import pytest

from eval.lenses.lens import lenses
from tests.docs_cases import ROOT, blocks, check, commands, run, workspace
from tests.eval.explore_cases import asked, running, send

TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
}
COMMANDS = {page: commands(page, text) for page, text in TEXTS.items()}
FIRST = "README.md"
"""The page whose commands every other page's go on from; it begins in an empty checkout."""
API = "docs/python-api.md"
"""The page whose blocks of Python are run, after its commands."""
Places = dict[str, Path]


@pytest.fixture(scope="module")
def places() -> Places:
    """Where the commands of a page were run, by page."""
    return {}


def finished(page: str, places: Places, tmp: pytest.TempPathFactory) -> Path:
    """The directory in which a page's commands have run; they run the first time."""
    if page in places:
        assert places[page].is_dir(), f"a command of {page} failed"
        return places[page]
    where = tmp.mktemp(re.sub(r"\W", "-", page)) / "checkout"
    places[page] = where / "failed"
    if page == FIRST:
        where.mkdir()
        workspace(where)
    else:
        shutil.copytree(finished(FIRST, places, tmp), where)
    with pytest.MonkeyPatch.context() as patch:
        for command in COMMANDS[page]:
            (check if command.why_not else run)(command, where, patch)
        if page == API:
            patch.chdir(where)
            for _, language, lines in blocks(TEXTS[page]):
                if language == "python":
                    exec("\n".join(lines), {})
    places[page] = where
    return where


@pytest.mark.parametrize("page", [page for page, found in COMMANDS.items() if found])
def test_the_commands_of_a_page_work(
    page: str, places: Places, tmp_path_factory: pytest.TempPathFactory
) -> None:
    finished(page, places, tmp_path_factory)


def test_the_explorer_opens_what_the_readme_has_trained(
    places: Places, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """README's path to its end: trained, compared, inverted, reported, then a sentence typed."""
    where = finished(FIRST, places, tmp_path_factory)
    assert (where / "page.html").is_file()
    with running([str(where / "runs")]) as port:
        assert "<html" in send(port, "/")[1]
        answer, end = asked(port, text="The dog ran.")[-2:]
    assert answer["type"] == "answer"
    assert answer["found"]
    assert end == {"type": "end"}


def test_commands_stand_in_blocks_of_shell() -> None:
    for page, text in TEXTS.items():
        for _, language, lines in blocks(text):
            assert language, f"{page}: a block without a language: {lines[:1]}"
        outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        assert not re.search(r"^ {4}(python|torchrun|scripts/)", outside, re.MULTILINE), page


def test_every_lens_is_listed_in_order() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXTS["docs/lenses.md"], re.MULTILINE) == list(lenses())
