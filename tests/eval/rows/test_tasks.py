"""Every command's work goes on after an interruption, and is shared out over processes."""

import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arch import save_model
from eval.__main__ import main
from eval.rows import tasks
from eval.rows.store import ROWS, Results, read_rows
from tests.eval.views.page.cases import make_row

TEXT = ["--corpus", "toy:200"]
FEW = [*TEXT, "--count", "2", "--length", "6"]
SLICE = ["--slices", "[:, 0:, :]"]
COMMANDS = {
    "loss": [*TEXT, "--stories", "3"],
    "invert": [*FEW, "--layers", "1", "2", *SLICE, "--solvers", "propose", "sweep", "chance"],
    "probe": [*TEXT, "--length", "8", "--train-tokens", "800", "--valid-tokens", "80", "--steps",
              "2", "--offsets", "0"],
    "geometry": [*FEW, "--hidden", "1"],
    "bits": [*TEXT, "--count", "2", "--before", "2", "--distances", "1", "--tokens", "800"],
    "lens": ["--lens", "residual", "logit", "--text", "Tom had a red ball."],
}  # fmt: skip
"""What each of them is asked, of two models where they are given."""
ASIDE = ("schema", "seconds", "tokens_per_second", "batch")
"""Fields that say how a row was made: what is left of a batch is a smaller one."""


@pytest.fixture(scope="module")
def ask(tmp_path_factory, small_model, small_tokenizer):
    """The words of a command that asks two models, and writes into a directory."""
    place, models = tmp_path_factory.mktemp("models"), []
    for step in (0, 5):
        about = {"name": "flat", "step": step}
        path = place / f"step-{step:06d}"
        models.append(save_model(path, small_model(d_model=16), small_tokenizer.to_str(), about))

    def words(name, out):
        return [name, *map(str, models), *COMMANDS[name], "--out", str(out)]

    return words


@pytest.fixture(scope="module")
def whole(ask, tmp_path_factory):
    """The rows of a command that nothing interrupted, and how often it wrote some."""

    @cache
    def rows(name):
        out, real, calls = tmp_path_factory.mktemp(name) / "out", Results.append, []

        def append(self, rows):
            calls.append(1)
            real(self, rows)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Results, "append", append)
            assert main(ask(name, out)) == 0
        return content(out), len(calls)

    return rows


def content(out: Path) -> dict:
    rows = read_rows([out])
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: {k: v for k, v in row.items() if k not in ASIDE} for row in rows}


class Stopped(BaseException):
    """As an interruption by the keyboard."""


@pytest.mark.first(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupted_command_goes_on_where_it_was(
    ask, whole, tmp_path, monkeypatch, capsys, name
):
    expected, total = whole(name)
    assert total > 1
    out, real, calls = tmp_path / "out", Results.append, []

    def append(self, rows):
        rows = list(rows)
        calls.append(rows)
        real(self, rows)
        if len(calls) == stop:
            raise Stopped

    monkeypatch.setattr(Results, "append", append)
    stop = 1
    with pytest.raises(Stopped):
        main(ask(name, out))
    before, first = (out / ROWS).read_text(), calls[0]
    assert before
    (out / ROWS).write_text(before + '{"schema": 1, "key": "to')  # torn
    calls.clear()
    stop = 0
    assert main(ask(name, out)) == 0
    assert (out / ROWS).read_text().startswith(before)
    assert content(out) == expected
    again = {row["key"] for rows in calls for row in rows}
    if name != "lens":  # whose rows are made of documents once more
        assert not again & {row["key"] for row in first}
        calls.clear()
        capsys.readouterr()
        assert main(ask(name, out)) == 0
        assert "every row is there already" in capsys.readouterr().err
        assert not [rows for rows in calls if rows]


@pytest.mark.first(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_shards_make_the_rows_of_one_process(ask, whole, tmp_path, name):
    """One after the other, as in a loop of shell; the second sees the rows of the first."""
    two, (expected, _) = tmp_path / "two", whole(name)
    for shard in ("1/2", "2/2"):
        assert main([*ask(name, two), "--shard", shard]) == 0
    assert content(two) == expected
    if len(expected) > 1 and name != "lens":
        files = {path.name for path in two.glob("*.jsonl")}
        assert files == {"rows.1-of-2.jsonl", "rows.2-of-2.jsonl"}


def test_shards_that_find_other_memory_lose_no_rows(ask, whole, tmp_path, monkeypatch):
    """Batches were dealt out as each process cut them."""
    two, (expected, _) = tmp_path / "two", whole("invert")
    for shard, rows in (("1/2", 1), ("2/2", 64)):
        monkeypatch.setattr("eval.inversion.task.rows_at_once", lambda *_, rows=rows: rows)
        assert main([*ask("invert", two), "--shard", shard]) == 0
    assert content(two) == expected


def test_shards_share_the_prompts_of_one_site(model_directory, tmp_path):
    words = ["invert", str(model_directory()), *FEW, "--layers", "1", *SLICE, "--solvers", "chance"]
    for shard in ("1/2", "2/2"):
        assert main([*words, "--out", str(tmp_path / "out"), "--shard", shard]) == 0
    files = sorted((tmp_path / "out").glob("*.jsonl"))
    assert [len(path.read_text().splitlines()) for path in files] == [1, 1]


MODEL = SimpleNamespace(settings_sha256="", provenance={"step": 0})


def work(*keys: str) -> Any:
    run = lambda results: [make_row(key=key) for key in keys]  # noqa: E731
    return SimpleNamespace(checkpoint=MODEL, keys=keys, run=run)


def test_a_long_job_says_how_long_it_will_take(tmp_path, monkeypatch, capsys):
    clock = iter([0.0, 30.0])
    monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    tasks.run_tasks([work("a", "b"), work("c"), work("d", "e", "f")], Results(tmp_path), "asking")
    assert "asking: about 1 min 0 s for 4 more rows" not in capsys.readouterr().err  # not above 60
    clock = iter([0.0, 40.0])
    more = [work("g"), work("h", "i", "j")]
    tasks.run_tasks(more, Results(tmp_path), "asking")
    assert "asking: about 2 min 0 s for 3 more rows" in capsys.readouterr().err


def test_a_closed_stderr_is_no_error_and_leaves_stdout_alone(tmp_path, monkeypatch, capsys):
    """However long the work takes."""
    clock = iter([0.0, 90.0])
    monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(tasks, "SECONDS_BETWEEN_LINES", 0)
    results = Results(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        tasks.run_tasks([work("a"), work("b")], results, "asking")
    assert results.keys == {"a", "b"}
    assert capsys.readouterr().out == ""
