"""The benchmark of lenses, as far as it goes without timings."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from scripts import bench_lenses

WORDS = "--d-model 16 --layers 2 --context 24 --length 8 --tokens 200 --threads 1 --device cpu"
SMALL = [*WORDS.split(), "--lens", "ov", "path"]


def test_a_page_of_untrained_models(tmp_path, monkeypatch):
    asked: list[list[str]] = []

    def here(options: argparse.Namespace, path: Path, lenses: list[str]) -> str:
        asked.append(lenses)
        given: dict[str, Any] = {**vars(options), "models": [path], "lens": lenses}
        found = bench_lenses.look(argparse.Namespace(**given))
        assert found["seconds"] > 0
        assert found["bytes"] > 1e6
        return found["refused"][:19] or "looked"

    monkeypatch.setattr(bench_lenses, "_measured", here)
    page = tmp_path / "docs" / "lenses-cpu.md"
    bench_lenses.main([*SMALL, "--out", str(page.parent)])
    assert asked == [["ov"], ["ov"], ["path"], ["path"], ["ov", "path"], ["ov", "path"]]
    lines = page.read_text().splitlines()
    assert "| ov | the flat mixer has  | looked |" in lines
    assert lines[-1] == "| all in one process | looked | looked |"
    assert re.search(r"flat, untrained, step 0 \(d 16, n 2, V \d+\)", page.read_text())
    assert str(tmp_path) not in page.read_text()


def test_a_process_of_its_own_says_what_it_took(model_directory, capsys):
    words = ["--one", "--models", str(model_directory()), *SMALL]
    bench_lenses.main(words)
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"refused", "seconds", "bytes"}
    assert found["refused"] == ""
