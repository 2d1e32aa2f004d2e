"""Every command of README and docs/ has words that its parser takes; those of four pages are run.

How, and what is not run, is in tests/docs_cases.py.
"""

import re
import shutil
from pathlib import Path

import pytest

from eval.lenses.lens import lenses
from tests.docs_cases import (
    ROOT,
    RUN,
    blocks,
    call,
    check,
    commands,
    expanded,
    run,
    workspace,
    write_book,
)
from tests.eval.explore.explore_cases import asked, running, send

TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
}
COMMANDS = {page: commands(page, text) for page, text in TEXTS.items()}
FIRST = RUN[0]
"""The page whose commands the others' go on from; it begins in an empty checkout."""
API = "docs/python-api.md"
"""The page whose blocks of Python are run, after its commands."""
OWN = "mine/"
"""Of README's commands for a text of one's own, which are run in full."""
Places = dict[str, Path]
SHORT = "--trainer.max_steps 4 --schedule.warmup_steps 1 --wandb disabled"
"""What makes README's training of a text file short."""
FAST = "--set adam.steps=2"
"""What makes the descent of its search short; its other solver is as it is."""


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
        patch.setattr("eval.inversion.guesses.PREFIXES", 24)
        patch.setattr("eval.models.text.EVALUATED", 50)
        patch.setattr("eval.models.text.BACKGROUND", 2)  # so that fewer stories are read
        for command in COMMANDS[page]:
            if OWN not in command.text:  # see below
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
    page: str,
    places: Places,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if page in RUN:
        finished(page, places, tmp_path_factory)
    else:
        for command in COMMANDS[page]:
            check(command, ROOT, monkeypatch)


def test_the_explorer_opens_what_the_readme_has_trained(
    places: Places, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """README's path to its end: trained, compared, inverted, reported, then a sentence typed."""
    where = finished(FIRST, places, tmp_path_factory)
    assert (where / "results/page.html").is_file()
    with running([str(where / "runs")]) as port:
        assert "<html" in send(port, "/")[1]
        answer, end = asked(port, text="The dog ran.")[-2:]
    assert answer["type"] == "answer"
    assert answer["found"]
    assert end == {"type": "end"}


def test_the_readme_recovers_a_sentence_from_a_text_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """README's five commands, as they are written but for the length of training and descent."""
    write_book(tmp_path)
    monkeypatch.chdir(tmp_path)
    own = [command for command in COMMANDS[FIRST] if OWN in command.text]
    assert 1 < len(own) <= 4, "with the one that activates the environment at most five"
    for command in own:
        words = expanded(command.text, tmp_path, must_match=True)
        small = {"fit": SHORT, "invert": FAST}.get(words[3], "")
        assert call(words[2], [*words[3:], *small.split()]) == 0
    sentence, found = None, set()
    for line in capsys.readouterr().out.splitlines():
        sentence = line.partition(": ")[2] if line.startswith("flat, step ") else sentence
        if line.partition("]  ")[2].startswith("alternating"):
            found.add((sentence, line.rpartition("  ")[2]))
    said = "Once·upon·a·time·there·was·a·dog."
    assert found == {(said, said)}
    assert (tmp_path / "mine/page.html").is_file()


def test_commands_stand_in_blocks_of_shell() -> None:
    for page, text in TEXTS.items():
        for _, language, lines in blocks(text):
            assert language, f"{page}: a block without a language: {lines[:1]}"
        outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        assert not re.search(r"^ {4}(python|torchrun|scripts/)", outside, re.MULTILINE), page


def test_every_lens_is_listed_in_order() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXTS["docs/lenses.md"], re.MULTILINE) == list(lenses())
