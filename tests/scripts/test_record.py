"""A record's rules: the stories, the idle machine, the test against the record before, the page."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from scripts import record
from scripts.record import git
from tests.said import one_line

PAGE = """# Records

## 5min

| date | ... |
|---|---|

## 30min

| date | ... |
|---|---|

## Tried

| date | ... |
|---|---|

Other processes ran beside them.
"""


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Adds a row of the given bits by seed to a page of its own; what the page has then."""
    page = tmp_path / "records.md"
    page.write_text(PAGE)
    monkeypatch.setattr(record, "PAGE", page)
    monkeypatch.setattr(record, "pack_stories", lambda *_: tmp_path)
    monkeypatch.setattr(record, "git", lambda *words: "" if words[0] == "status" else "abc1234")
    monkeypatch.setattr(record, "lines_since", lambda commit: "+0")

    def add(*bits, track="5min"):
        given = iter(bits)
        seed = {"tokens": 4e6, "seconds": 300.0}
        monkeypatch.setattr(record, "train_seed", lambda *_: {"bits": next(given), **seed})
        options = Namespace(track=track, recipe="llama", out=None, stories=None, flags=[],
                                seeds=len(bits))  # fmt: skip
        said = record.add_row(options)
        return said.partition(":")[0], page.read_text()

    return add


def test_a_lower_mean_is_a_record_where_it_is_established(measured):
    assert measured(0.85, 0.86, 0.85, 0.84, 0.86)[0] == "record"  # the first of its track
    said, page = measured(0.85, 0.84, 0.85, 0.84, 0.86)
    assert said == "no record"
    said, page = measured(0.80, 0.81, 0.80, 0.79, 0.80)
    assert said == "record"
    track, tried = (
        page.partition(f"## {name}\n")[2].partition("\n## ")[0] for name in ("5min", "Tried")
    )
    assert (track.count("| 20"), tried.count("| 20")) == (2, 1)
    table, _, _ = tried.partition("\n\nOther processes")
    assert table.count("| 20") == 1
    assert measured(0.90, 0.91, 0.92, 0.90, 0.91)[0] == "no record"  # established, and worse
    assert measured(0.90, 0.91, 0.92, 0.90, 0.91, track="30min")[0] == "record"


def test_what_stands_against_a_record_is_said(measured, tmp_path):
    with one_line(record.RecordError, "--seeds 4"):
        measured(1, 2, 3, 4)
    (tmp_path / "train.txt").write_text("Once.")
    with one_line(record.RecordError, "train.txt is not that of the rules"):
        record.check_stories(tmp_path)


def test_what_git_lacks_is_said_before_any_training(measured, tmp_path, monkeypatch):
    """In a clone without the history it was a traceback, after all seeds were trained."""
    measured(0.85, 0.86, 0.85, 0.84, 0.86)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(record, "lines_since", lambda commit: git("diff", commit))
    with one_line(record.RecordError, "git diff abc1234: "):
        measured(*[None] * 5)
    monkeypatch.setattr(record, "git", git)
    with one_line(record.RecordError, "git status --porcelain --: "):
        measured(*[None] * 5)


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Measures seed 0 by stand-ins for the commands; what it came to, and which rooms they ran."""
    rooms, fails = [], None

    def python(room, command, *words):
        rooms.append(room)
        if room == fails:
            raise record.RecordError("interrupted")
        if command == "fit":
            run = Path(words[words.index("--run") + 1])
            run.mkdir(parents=True)
            (run / "metrics.jsonl").write_text('{"seconds": 3.0}\n')
        return json.dumps([{"bits_per_byte": 0.8, "checkpoint": {"tokens_seen": 64}}])

    monkeypatch.setattr(record, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(record, "python", python)

    def measure(*flags, track="5min", recipe="llama", code="abc", failing=None):
        nonlocal fails
        fails = failing
        monkeypatch.setattr(record, "git", lambda *_: code)
        options = Namespace(track=track, recipe=recipe)
        rooms.clear()
        return record.train_seed(options, flags, tmp_path / "data", tmp_path, 0), [*rooms]

    return measure


@pytest.mark.parametrize("failing", ["arch", "eval"])
def test_a_seed_that_was_not_measured_is_not_trained_again(train, failing):
    """The run was there, so the same command failed, and minutes of training were lost."""
    with one_line(record.RecordError, "interrupted"):
        train(failing=failing)
    assert train()[1] == ["arch", "eval"]
    assert train()[1] == []


def test_a_seed_is_read_again_only_where_it_was_made_alike(train, tmp_path):
    """Flags and code had no part in the name of its folder: a row had another recipe's figures."""
    figures = {"bits": 0.8, "tokens": 64, "seconds": 3.0}
    assert train("--lr", "1") == (figures, ["train", "arch", "eval"])
    assert train("--lr", "1") == (figures, [])
    for rate, how in (("2", {}), ("1", {"code": "def"}), ("1", {"track": "30min"})):
        with one_line(record.RecordError, "give another --out"):
            train("--lr", rate, **how)
    (tmp_path / "llama-s0" / "made_of.json").unlink()
    with one_line(record.RecordError, f"{tmp_path / 'llama-s0'}: "):
        train("--lr", "1")
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 1\n")
    train(recipe=str(file))
    file.write_text("seed: 2\n")
    with one_line(record.RecordError, "mine-s0"):
        train(recipe=str(file))
