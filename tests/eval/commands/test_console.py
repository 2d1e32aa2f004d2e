"""What a person reads on a terminal or a page: always there, of one line, and steering nothing."""

import functools
import io
import json
import math
import shlex
import sys

import pytest

from eval.__main__ import main
from eval.commands.language import loss
from eval.commands.result import Result
from eval.drawing.figures import inline
from eval.drawing.tables import Table, lay_out, markdown, terminal
from eval.models.checkpoint import open_model
from eval.models.corpora import own_corpus

STEERING = "\x1b]0;owned\x07\x1b[31mRED\u202e"


def raising(error):
    """A command that ends so."""

    @functools.wraps(loss)
    def call(**given):
        raise error

    return lambda name: call


def test_a_console_of_ascii_shows_the_answer(model_directory, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    asked = ["--solvers", "propose", "--slices", "[:, 0:, :]", "--layers", "1"]
    assert main(["invert", str(model_directory()), "--text", "Tom ran", *asked]) == 0
    assert rb"Tom\xb7ran" in raw.getvalue()


def test_closed_streams_are_no_error(model_directory, tmp_path, monkeypatch, capfd):
    """Nothing meant for a closed stderr lands on stdout, and no bar fails on it."""
    model, out = str(model_directory()), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        words = ["--count", "1", "--solvers", "decoder", "--layers", "1", "--out", str(out)]
        words += ["--slices", "[:, 1:, :]", "--set", "decoder.steps=2", "decoder.budget=64"]
        assert main(["invert", model, *words]) == 0
        sys.stderr.close()
    assert "corpus" not in capfd.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert main(["summary", str(out)]) == 0
        sys.stdout.close()


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (MemoryError(), 2),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 2),
    ],
)
def test_an_end_before_the_answer_says_what_is_kept(
    error, code, made, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr("eval.__main__.command_function", raising(error))
    out = tmp_path / "out"
    if made:
        out.mkdir()
    assert main(["loss", "model", "--out", str(out)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert str(out) in line
    assert ("kept in" in line) == made


def test_files_of_an_interrupted_capture_stay(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("eval.__main__.command_function", raising(KeyboardInterrupt()))
    for words in ([], ["--out", str(tmp_path)]):
        assert main(["capture", "model", *words]) == 130
        assert "stay" in capsys.readouterr().err


def test_json_has_no_number_that_json_does_not_know():
    def refuse(word):
        raise AssertionError(word)

    rows = [{"key": "a", "condition": math.inf, "margins": [-math.inf, {"low": math.nan}]}]
    (row,) = json.loads(Result(rows, "").json(), parse_constant=refuse)
    assert row == {"key": "a", "condition": "inf", "margins": ["-inf", {"low": None}]}


def test_nothing_of_a_model_or_an_error_steers_a_terminal(model_directory, capsys, tmp_path):
    path = model_directory("one", step=10)
    meta = path / "meta.json"
    steering = {"name": STEERING, "data": f"nowhere{STEERING}"}
    meta.write_text(json.dumps(json.loads(meta.read_text()) | steering))
    out = str(tmp_path / "o $(touch x)")
    asked = ["--solvers", "propose", "--slices", "[:, 0:, :]", "--layers", "1", "--out", out]
    assert main(["invert", str(path), "--text", "Tom", *asked]) == 0
    assert main(["summary", out]) == 0
    assert main(["report", out, "--out", str(tmp_path / "page.html")]) == 0
    assert main(["loss", f"none{STEERING}"]) == 2
    said = capsys.readouterr()
    page = (tmp_path / "page.html").read_text()
    for text in (said.out, said.err, page):
        assert not set(STEERING) - set("]0;owned[31mRED") & set(text)
    (line,) = (line for line in said.out.splitlines() if line.startswith("next: "))
    assert shlex.split(line)[5] == out


def test_a_cell_is_of_one_line(monkeypatch):
    """Also on a terminal of colours, where headings showed the codes of bold letters."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = Table(["a\nb"], [[f"x\ny{STEERING}"]], "t\x1b")
    for text in (terminal(table), markdown(table)):
        assert "x\\ny\\x1b]0;owned" in text
        assert "\x1b" not in text
        assert "[1m" not in text


def test_a_pipe_of_forced_colours_is_as_wide_as_any(monkeypatch):
    """Cells were broken over lines of 80 letters, also within a number, as CI and notebooks ask."""
    table = Table([f"column {n:02}" for n in range(12)], [["12345.6789"] * 12] * 3)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")
        assert len(terminal(table).strip().splitlines()) == 5


@pytest.mark.parametrize(
    ("word", "shown", "escaped"),
    [
        (" a", "·a", "·a"),
        ("a", "a", "a"),
        ("a  ", "a··", "a··"),
        ("<pad>", "<pad>", "\\<pad>"),
        ("</s>", "</s>", "\\</s>"),
        ("<0.1", "<0.1", "<0.1"),
        ("a|b", "a|b", "a\\|b"),
        ("a\\|b", "a\\|b", "a\\\\\\|b"),
        ("a\\b", "a\\b", "a\\b"),
        ("*a*", "*a*", "\\*a*"),
        ("1.2*", "1.2*", "1.2*"),
        ("`", "`", "\\`"),
    ],
)
def test_a_word_in_a_cell_is_shown_as_it_is(word, shown, escaped):
    """` a` read as `a`, and where Markdown is drawn nothing was seen of `<pad>`."""
    table = lay_out([{"word": word}], ["word"], [])
    assert terminal(table).splitlines()[-1].strip() == shown
    assert markdown(table).splitlines()[-1] == f"| {escaped} |"


def test_words_between_colons_stay():
    """Texts and cells had an emoji for each that has the name of one."""
    shown = terminal("std::map·:dog:", Table(["a:m:b"], [[":key:"]], ":x:"))
    assert all(word in shown for word in ("std::map·:dog:", "a:m:b", ":key:", ":x:"))


def test_blanks_and_joiners_of_all_languages_stay():
    """Texts in Chinese, French and Persian had codes in their place."""
    text = "\u4e00\u3000\u4e8c 1\u202f000\xa0%\n\u0645\u06cc\u200c\u0634\u0648\u062f\u200d"
    assert str(Result([], text)) == text
    assert str(Result([], f"{text}\u202e\u200b")) == f"{text}\\u202e\\u200b"


def test_every_one_of_many_tables_shows_lines_of_its_own():
    tables = [Table(["n"], [[f"{name}{n}"] for n in range(40)], name) for name in "abcdef"]
    shown = terminal(*tables)
    assert all({name, f"{name}0", f"{name}1"} <= set(shown.split()) for name in "abcdef")
    assert shown.count("... of 40 lines") == len(tables)


def test_the_words_of_a_chart_stay():
    words = 'a class="b" version="1" rgb(1, 2, 3) 0.12345'
    chart = {"data": {"values": [{"x": words}]}, "mark": "text",
             "encoding": {"text": {"field": "x"}}}  # fmt: skip
    drawn = str(inline(chart, "words"))
    assert f">{words}</text>" in drawn
    assert "xmlns" not in drawn


@pytest.mark.parametrize("named", ["absolute", "../secret.txt", "link.txt", "none.txt", "a\0b"])
def test_a_model_names_no_file_outside_the_working_directory(
    named, model_directory, tmp_path, monkeypatch
):
    secret, here = tmp_path / "secret.txt", tmp_path / "here"
    secret.write_text("a secret\n" * 200)
    here.mkdir()
    (here / "link.txt").symlink_to(secret)
    (here / "own.txt").write_text("a story\n" * 200)
    monkeypatch.chdir(here)
    checkpoint = open_model(model_directory("one", step=10))
    checkpoint.meta["data_source"] = str(secret) if named == "absolute" else named
    assert own_corpus(checkpoint)[0] == "toy"
    checkpoint.meta["data_source"] = "own.txt"
    assert own_corpus(checkpoint)[0] == "own.txt"
