"""The demo: its commands are ones, a line a step, what is done is not done again."""

import pytest

from scripts import demo
from scripts.demo import Step
from tests.docs_cases import parse_words

TABLED = "Tokens recovered, %\nflat 100\n\nrows: x"


def test_every_step_is_a_command_that_its_parser_takes(tmp_path, monkeypatch):
    steps = list(demo.steps(tmp_path))
    assert [step.words[0] for step in steps] == ["tokenizer"] * 2 + ["train"] * 2 + ["eval"] * 6
    for step in steps:
        parse_words(step.words[0], step.words[1:], monkeypatch)


def test_a_line_a_step_and_one_table(tmp_path, capsys, monkeypatch):
    steps = [
        Step("a mixer", ["arch", "check", "identity"]),
        Step("done before", ["nothing"], makes=tmp_path),
        Step("tokens back", ["eval", "invert", "nothing"]),
    ]
    monkeypatch.setattr(demo, "steps", lambda out: steps)
    monkeypatch.setattr("eval.__main__.main", lambda words: print(TABLED) or 0)
    assert demo.main(["--out", str(tmp_path / "out")]) == 0
    assert "\n$ python -m arch check identity\n" in (tmp_path / "out" / "log.txt").read_text()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[2:4]] == ["a mixer", "tokens back"]
    assert lines[5:7] == ["Tokens recovered, %", "flat 100"]


def test_a_step_that_fails_ends_it_and_a_place_must_be_writable(tmp_path, capsys, monkeypatch):
    bad = Step("a mixer", ["arch", "check", "nothing"])
    monkeypatch.setattr(demo, "steps", lambda out: [bad, bad])
    assert demo.main(["--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].startswith("error: mixer 'nothing'")
    assert said.out.count("a mixer  ") == 1
    (tmp_path / "file").touch()
    assert demo.main(["--out", str(tmp_path / "file" / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: --out ")


def test_force_removes_a_demo_and_no_other_folder(tmp_path, capsys, monkeypatch):
    """`--out . --force` removed the working directory."""
    monkeypatch.setattr(demo, "steps", lambda out: [Step("mixer", ["arch", "check", "identity"])])
    monkeypatch.setattr("arch.__main__.main", lambda words: 0)
    words = ["--force", "--out"]
    mine, earlier = tmp_path / "log.txt", tmp_path / "demo" / "old"
    mine.write_text("notes")
    assert demo.main([*words, str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --out {tmp_path}: ")
    assert mine.is_file()
    assert demo.main([*words, str(earlier.parent)]) == 0
    earlier.touch()
    assert demo.main([*words, str(earlier.parent)]) == 0
    assert not earlier.exists()


@pytest.mark.slow
def test_the_whole_demo_at_toy_size(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "STORIES", 2000)
    monkeypatch.setattr(demo, "STEPS", 2)
    for _ in range(2):
        assert demo.main(["--out", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) < 49
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert len(page) > 1e5
        assert all(f'id="{section}"' in page for section in ("example", "bits", "lenses"))
    assert not any("trained for" in line for line in lines)
