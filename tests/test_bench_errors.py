"""The benchmarks' bad input: one line, exit code 2, nothing half-written."""

import pytest
import torch

from eval.errors import RequestError
from scripts import bench_generate, bench_inversion, bench_lenses

SMALL = ["--device", "cpu", "--threads", "1", "--d-model", "16", "--layers", "1"]
MAINS = {"generate": bench_generate, "inversion": bench_inversion, "lenses": bench_lenses}


@pytest.fixture(autouse=True)
def _threads():
    """Gives torch its threads back."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("inversion", ["--models", "nowhere"], "nowhere"),
        ("inversion", ["--d-model", "6"], "heads"),
        ("inversion", ["--device", "tpu"], "--device tpu: allowed are cpu, cuda and auto"),
        ("lenses", ["--models", "nowhere"], "nowhere"),
        ("lenses", ["--one", "--models", "nowhere"], "nowhere"),
        ("lenses", ["--device", "tpu"], "--device tpu: allowed are cpu, cuda and auto"),
        ("generate", ["--d-model", "6"], "heads"),
    ],
)
def test_what_cannot_be_measured_is_one_line(name, words, message, tmp_path, capsys):
    page = tmp_path / "page.md"
    assert MAINS[name].main([*words, "--save", str(page)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ")
    assert message in said
    assert not page.exists()


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("inversion", ["--turns", "0"], "--turns: '0' is not a whole number of at least 1"),
        ("lenses", ["--length", "-1"], "--length: '-1' is not a whole number of at least 1"),
        ("generate", ["--repeats", "0"], "--repeats: '0' is not a whole number of at least 1"),
        ("generate", ["--context", "64", "--new", "60"], "--new is 60; with --context 64, less th"),
    ],
)
def test_flags_are_checked(name, words, message, capsys):
    with pytest.raises(SystemExit) as caught:
        MAINS[name].main(words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_page_of_inversion_keeps_what_was_measured(tmp_path, monkeypatch):
    page = tmp_path / "docs" / "page.md"

    def broken(*_: object) -> str:
        raise RequestError("no more")

    asked = {"first": lambda *_: "1.5", "second": broken}
    monkeypatch.setattr(bench_inversion, "QUESTIONS", asked)
    assert bench_inversion.main([*SMALL, "--save", str(page)]) == 2
    text = page.read_text(encoding="utf-8")
    assert "| first | 1.5 | 1.5 |" in text
    assert "Not measured: second; memory." in text
    monkeypatch.setattr(bench_inversion, "QUESTIONS", {"first": lambda *_: "1.5"})
    monkeypatch.setattr(bench_inversion, "_memory", lambda _: "Peak memory: little.")
    assert bench_inversion.main([*SMALL, "--save", str(page)]) == 0
    assert page.read_text(encoding="utf-8").endswith(
        "| first | 1.5 | 1.5 |\n\nPeak memory: little.\n"
    )
    assert list(page.parent.iterdir()) == [page]
