"""A record's rules: the stories, the idle machine, the test against the record before, the page."""

from argparse import Namespace

import pytest

from scripts import record
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
    assert measured(0.90, 0.91, 0.92, 0.90, 0.91)[0] == "no record"  # established, and worse
    assert measured(0.90, 0.91, 0.92, 0.90, 0.91, track="30min")[0] == "record"


def test_what_stands_against_a_record_is_said(measured, tmp_path):
    with one_line(record.RecordError, "--seeds 4"):
        measured(1, 2, 3, 4)
    (tmp_path / "train.txt").write_text("Once.")
    with one_line(record.RecordError, "train.txt is not that of the rules"):
        record.check_stories(tmp_path)
