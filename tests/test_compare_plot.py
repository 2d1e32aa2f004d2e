"""The comparison's plots: what is drawn."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from arch import ModelConfig, describe
from eval.compare.entries import enter
from eval.compare.evidence import gather
from eval.compare.plot import AXES, draw_data
from eval.results import Results
from tests.compare_cases import SIZES, make_run, run_compare
from tests.report_cases import make_rows


def test_curves_over_what_was_spent(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "flat-s0", 0, 1.2),
        make_run(tmp_path, "flat-s1", 1, 1.4),
        make_run(tmp_path, "llama", bits=1.1),
    ]
    entries = enter(gather(runs))
    cost = describe(ModelConfig.from_json(json.dumps(SIZES), "here")).cost.training_flops
    expected = {"step": [50, 100], "tokens": [500, 1000], "flops": [500 * cost, 1000 * cost],
                "time": [5 / 3600, 10 / 3600]}  # fmt: skip
    assert set(expected) == set(AXES)
    for axis, xs in expected.items():
        points = draw_data(entries, axis)["validation bits/byte"]
        flat = [point for point in points if point["model"] == "flat"]
        assert [point["x"] for point in flat] == pytest.approx(xs), axis
        assert [point["value"] for point in flat] == pytest.approx([2.3, 1.3])
        assert all(p["low"] < p["value"] < p["high"] for p in flat)
        assert all(p["low"] == p["value"] for p in points if p["model"] == "llama")


def test_recovery_over_training(tmp_path: Path) -> None:
    Results(tmp_path).append(make_rows(models=("flat",), steps=(0, 100, 300), count=3))
    panels = draw_data(enter(gather([tmp_path])))
    assert [p["x"] for p in panels["self [:, 0:, :] sweep, %"]] == [0, 100, 300]
    assert {p["value"] for p in panels["self [:, 0:, :] sweep, %"]} == {100}


@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_plots_need_no_network(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"plot.{kind}"
    assert (
        run_compare(make_run(tmp_path, "flat"), make_run(tmp_path, "<llama> & co"), "--plot", file)
        == 0
    )
    content = file.read_bytes()
    if kind == "png":
        assert content.startswith(b"\x89PNG")
        return
    text = content.decode()
    assert "prefers-color-scheme: dark" in text
    if kind == "svg":
        root = ET.fromstring(text)
        assert "<llama> & co" in "".join(root.itertext())
    else:
        assert "src=" not in text.partition("<body")[2][:2000]
        assert 'src="http' not in text


def test_many_models_are_drawn(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"m{chr(97 + i)}", bits=1 + i / 10) for i in range(8)]
    assert run_compare(*runs, "--plot", tmp_path / "p.svg") == 0
    text = (tmp_path / "p.svg").read_text()
    assert text.count("stroke-dasharray") >= 2  # where the colours begin anew
