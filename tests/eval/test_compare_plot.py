"""The comparison's plots: what is drawn."""

import json
import xml.etree.ElementTree as ET

import pytest

from arch import ModelConfig, describe
from eval.comparison import enter
from eval.comparison_plot import AXES, draw_data
from eval.gather import gather_models
from eval.plots import whole_ticks
from eval.rows import Results
from tests.eval.compare_cases import SIZES, make_run, run_compare
from tests.eval.report.cases import make_row, make_rows, tick_labels


def test_curves_over_what_was_spent(tmp_path):
    runs = [
        make_run(tmp_path, "flat-s0", 0, 1.2),
        make_run(tmp_path, "flat-s1", 1, 1.4),
        make_run(tmp_path, "llama", bits=1.1),
    ]
    entries = enter(gather_models(runs))
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


def test_recovery_over_training(tmp_path):
    Results(tmp_path).append(make_rows(models=("flat",), steps=(0, 100, 300), count=3))
    panels = draw_data(enter(gather_models([tmp_path])))
    assert [p["x"] for p in panels["self [:, 0:, :] sweep, %"]] == [0, 100, 300]
    assert {p["value"] for p in panels["self [:, 0:, :] sweep, %"]} == {100}


@pytest.mark.parametrize(
    ("steps", "ticks"),
    [((0, 1), "0 1"), ((0, 2), "0 1 2"), ((0, 100, 300), "0 100 200 300"), ((3, 5), "3 4 5")],
    ids=str,
)
def test_steps_have_whole_ticks(tmp_path, steps, ticks):
    Results(tmp_path).append([make_row("flat", step, method="sweep", hidden=0) for step in steps])
    file = tmp_path / "plot.svg"
    assert run_compare(tmp_path, "--columns", "self", "--plot", file) == 0
    assert ticks.split() in tick_labels(file)


def test_only_whole_numbers_have_whole_ticks():
    assert whole_ticks([0, 24]) == list(range(0, 25, 2))
    assert whole_ticks([1, 8, 3]) == list(range(1, 9))
    assert whole_ticks([7]) == [7]
    assert whole_ticks([0, 99_999], 5) == [0, 20_000, 40_000, 60_000, 80_000]
    assert whole_ticks([0, 0.5]) is whole_ticks([]) is None


@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_plots_need_no_network(tmp_path, kind):
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


def test_many_models_are_drawn(tmp_path):
    runs = [make_run(tmp_path, f"m{chr(97 + i)}", bits=1 + i / 10) for i in range(8)]
    assert run_compare(*runs, "--plot", tmp_path / "p.svg") == 0
    text = (tmp_path / "p.svg").read_text()
    assert text.count("stroke-dasharray") >= 2  # where the colours begin anew
