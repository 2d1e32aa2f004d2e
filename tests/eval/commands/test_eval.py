"""The commands as a user types them: what they write, and what they say to wrong input."""

import errno
import json
import math
import os
from pathlib import Path

import pytest

from eval import RequestError
from eval.__main__ import main
from eval.rows.store import Results, read_rows
from tests.eval.views.page.cases import make_row, make_rows
from tests.said import complaint

QUICK = ["--count", "2", "--length", "6", "--corpus", "toy:400"]
METHODS = ["descent", "adam", "sweep", "propose", "alternating", "chance"]
SHORT = ["--solvers", *METHODS, "--set", "descent.steps=5", "adam.steps=5"]


def invert(*words: object) -> int:
    return main(["invert", *QUICK, *map(str, words)])


def test_invert_writes_rows_and_report_makes_a_page(model_directory, tmp_path, capsys):
    before, after = model_directory("flat"), model_directory("flat", step=5)
    out = tmp_path / "results"
    slices = ["--slices", "[:, 0:, :]", "[:, 1:, :]"]
    assert invert(before, after, "--out", out, "--layers", 1, 2, *SHORT, *slices) == 0
    assert "rows.jsonl" in capsys.readouterr().out
    rows = read_rows([out])
    # checkpoints x layers x prompts x (descent, adam, chance: 2 slices; the searches: 1)
    assert len(rows) == 2 * 2 * 2 * (3 * 2 + 3)
    assert len({row["key"] for row in rows}) == len(rows)
    exact = [row for row in rows if row["family"] == "search"]
    assert {row["solver"] for row in exact} == {"sweep", "propose", "alternating"}
    assert all(row["exact"] and row["found"] == row["truth"] for row in exact)
    assert all(row["residual"] <= 10 * row["floor"] for row in exact)
    assert all(row["certificate"] and set(row["verdict"]) == {"recovered"} for row in exact)
    swept = [row for row in exact if row["solver"] == "sweep"]
    assert all(10 * row["margin_floor"] < row["margin"] for row in swept)
    bits = [math.log2(row["margin"] / row["margin_floor"]) for row in swept]
    assert [row["margin_bits"] for row in swept] == pytest.approx(bits)
    for row in rows:
        shown = row["length"] - row["hidden"]
        assert row["observed"] == shown == row["self"]["count"]
        assert (row["nonself"] or {"count": 0})["count"] == row["hidden"]
        assert "".join(row["truth_text"]) == row["text"]
        assert len(row["verdict"]) == len(row["rank"]) == row["length"] == 6
    assert {r["evaluations"] for r in rows if r["solver"] == "adam"} == {6 * (3 * 5 + 1)}  # 5 steps
    page = tmp_path / "page.html"
    assert main(["report", str(out), "--out", str(page)]) == 0
    assert "<html" in page.read_text()


def test_files_whose_names_are_not_utf8_are_measured(model_directory, tmp_path):
    """The row was refused after the work, as of numbers that grew too large."""
    model = tmp_path / os.fsdecode(b"caf\xe9")
    corpus, out = f"{model}.txt", tmp_path / "out"
    try:
        model_directory("flat").rename(model)
        Path(corpus).write_text("\n\n".join(f"Tom ran {n}." for n in range(100)))
    except OSError as error:
        pytest.skip(f"no such names here: {error}")
    for words in (["loss", model, "--corpus", corpus], ["lens", model, "--text", "Tom ran."]):
        more = ["--lens", "logit"] if words[0] == "lens" else []
        assert main([*map(str, words), *more, "--out", str(out)]) == 0
    named = {str(row["checkpoint"]["path"]) for row in read_rows([out])}
    assert named == {f"{tmp_path}/caf\\udce9"}
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0


def failing(number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number), "a temporary name")

    return fail


def test_a_full_disk_leaves_no_half_row_and_is_named(
    model_directory, tmp_path, monkeypatch, capsys
):
    results = Results(tmp_path)
    results.append([make_row(key="a")])
    before = results.path.read_bytes()
    words = ["invert", str(model_directory()), "--text", "Tom had a dog.", "--solvers", "chance"]
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        results.append([make_row(key="b")])
    assert results.path.read_bytes() == before
    assert results.keys == {"a"}
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {tmp_path / 'out' / 'rows.jsonl'}: No space left on device")


@pytest.mark.parametrize(
    ("call", "number"), [("os.fsync", errno.ENOSPC), ("tempfile.mkstemp", errno.EROFS)]
)
def test_a_page_that_cannot_be_written_is_named(call, number, tmp_path, monkeypatch, capsys):
    Results(tmp_path / "results").append([make_row()])
    monkeypatch.setattr(call, failing(number))
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "results"), "--out", str(page)]) == 2
    assert complaint(capsys).startswith(f"error: --out {page}: {os.strerror(number)}")


def test_rows_of_one_key_are_kept_once(tmp_path):
    results = Results(tmp_path)
    results.append([make_row(key="a", value=1)])
    results.append([make_row(key="a", value=2), make_row(key="b", value=3)])
    assert [row["value"] for row in read_rows([tmp_path])] == [1, 3]


def test_results_inside_results_are_read_and_not_resumed_from(tmp_path, capsys):
    rows = make_rows(models=("flat",), steps=(0,), layers=(2,), count=2)
    Results(tmp_path).append(rows[:1])
    Results(tmp_path / "more").append(rows[1:])
    assert len(read_rows([tmp_path])) == len(rows)
    assert main(["summary", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)
    (tmp_path / "runs").mkdir()
    assert read_rows([tmp_path / "runs", tmp_path]) == read_rows([tmp_path])
    for places in (["runs"], ["runs", "gone", "."]):
        with pytest.raises(RequestError, match="no results here"):
            read_rows([tmp_path / place for place in places])
    assert Results(tmp_path).keys == {rows[0]["key"]}


def test_a_torn_last_line_is_left_out_and_one_elsewhere_is_an_error(tmp_path, capsys):
    results = Results(tmp_path)
    results.append([make_row(key="a"), make_row(key="é")])
    whole = results.path.read_bytes()
    for torn in (b'{"schema": 1, "ke', b'{"key": "\xc3', b"\0\0"):
        results.path.write_bytes(whole + torn)
        assert [row["key"] for row in read_rows([tmp_path])] == ["a", "é"]
        assert results.path.read_bytes() == whole + torn  # a reader may stand beside a writer
        results.path.write_bytes(whole + torn[:-1] + b"\n" + whole)
        assert main(["summary", str(tmp_path)]) == 2
        line = complaint(capsys)
        assert "line 3: not a row of results (" in line
        assert "; delete that line" in line


@pytest.mark.slow
def test_bits_are_shown_in_short_and_all_when_asked(model_directory, tmp_path, capsys):
    asked = ["bits", str(model_directory("one")), str(model_directory("two")), "--out"]
    asked += [str(tmp_path / "out"), "--text", "Tom sat down. Lily ran home.", "--draws", "2"]
    asked += ["--corpus", "toy:400", "--noise", "0.25", "4", "--distances", "0", "1"]
    asked += ["--quantisers", "int4", "fp8"]
    assert main(asked) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 20
    assert "noise 0.25 rms" in short
    assert main([*asked, "--full"]) == 0
    full = capsys.readouterr().out
    assert all(f" {name} " in full for name in ("int4", "fp8", "noise 4 rms", "two"))
