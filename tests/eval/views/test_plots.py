"""Charts by what a reader sees: signs and sizes, lines of few points, every model."""

import json
import re
from pathlib import Path

import pytest
import vl_convert

from eval.drawing import figures, plots
from eval.messages import say_once
from eval.views.comparison.gather import gather_models
from eval.views.comparison.plot import plot_data
from eval.views.comparison.table import BITS, checkpoint_records, reported
from tests.eval.views.compare_cases import make_run, run_compare
from tests.eval.views.page.cases import about, loss_row


@pytest.mark.parametrize("values", [(0.3, 0.9), (-3.0, -1.0), (-0.02, 1.0), (0.0,)])
def test_zero_is_the_middle_of_diverging_colours_and_equal_sizes_are_as_strong(values):
    """Values of one sign had the other's colour, and the least of them that of nothing."""
    records = [{"x": x, "y": 0, "value": value} for x, value in enumerate(values)]
    domain = min(values), max(values)
    chart = plots.cells(records, "x", "y", "effect", diverging=True, domain=domain)
    scale = chart.to_dict()["encoding"]["color"]["scale"]
    most = max(map(abs, values)) or 1
    assert scale["domain"] == [-most, most]
    cells = re.findall(r'<path[^>]* fill="#(..)..(..)"', figures.inline(chart, "effects"))
    drawn = [int(blue, 16) - int(red, 16) for red, blue in cells]
    assert [hue > 20 for hue in drawn] == [value / most > 0.1 for value in values]
    assert [hue < -20 for hue in drawn] == [value / most < -0.1 for value in values]


def test_a_line_of_one_point_is_seen_beside_one_of_many():
    """Nothing was drawn of it, and the legend named it."""
    places = [("long", x) for x in range(plots.MARKED + 1)] + [("short", 3)]
    records = [{"x": x, "model": name, "value": x, "tip": f"{name} {x}"} for name, x in places]
    drawn = figures.inline(plots.lines(records, "x", "y", "model"), "lines")
    assert re.findall("<title>(.*?)</title>", drawn) == ["short 3"]


def test_each_model_begins_where_its_own_losses_have_fallen(tmp_path):
    """Short trainings beside a long one were left out, and models of step 0."""
    ends = {"long": 20_000, "short": 200}
    saved = gather_models([make_run(tmp_path, name, end=end) for name, end in ends.items()])
    others = checkpoint_records([], [loss_row(about(0, "b", "untrained"), [3.0])])
    points = plot_data(others, checkpoint_records(reported(saved), [], figures=()), BITS, "step")
    assert [(point["model"], point["x"]) for point in points] == [
        ("untrained", 0), ("long", 20_000), ("short", 50), ("short", 200),
    ]  # fmt: skip


def test_a_model_that_the_axis_does_not_know_is_named(tmp_path, capsys):
    runs = [make_run(tmp_path, name) for name in ("told", "untold")]
    file = runs[1] / "metrics.jsonl"
    file.write_text(file.read_text().replace("tokens_per_second", "speed"))
    for axis, left_out in (("time", True), ("step", False)):
        say_once.cache_clear()
        assert run_compare(*runs, "--plot", tmp_path / "plot.svg", "--x", axis) == 0
        said = "--x time: left out of the plot: figures of untold, whose hours"
        assert (said in capsys.readouterr().err) == left_out


def test_lines_beyond_the_colours_have_other_marks():
    """Of more solvers than colours two had one colour and one mark, before and after training."""
    names = [f"solver {n}" for n in range(12)]
    records = [{"x": x, "value": 0.5, "solver": name, "phase": phase, "tip": ""}
               for name in names for phase in ("before", "after") for x in (1, 2)]  # fmt: skip
    marks = plots.lines(records, "x", "", "solver", "phase", names=names).to_dict()["layer"][-1]
    drawn = [marks["encoding"][channel]["scale"]["range"] for channel in ("color", "shape")]
    assert len({*zip(*drawn, strict=True)}) == len(names)


def test_bars_beyond_the_colours_have_shades_of_their_own():
    """Of twelve heads each had the colour of another, in one group and in the legend."""
    heads = [f"head {n}" for n in range(12)]
    records = [{"layer": 1, "part": head, "value": 1.0, "tip": head} for head in heads]
    drawn = figures.inline(plots.bars(records, "part", "score", "layer", heads), "heads")
    assert len({*re.findall(r'<path [^>]*fill="(#\w+)"[^>]*><title>', drawn)}) == len(heads)


def test_each_step_of_the_chart_for_wandb_has_a_colour_of_its_own():
    """The fifth step had that of the first."""
    file = Path(__file__).parents[3] / "docs" / "wandb-recovery.vl.json"
    chart = json.loads(file.read_text())
    same = {"kind": "recovery", "quantity": "nonself", "layer": 2, "n_layers": 2, "part": "block",
            "slice": "[:, 1:, :]", "prompt_kind": "story", "solver": "sweep", "settings": "",
            "model": "flat", "value": 0.5, "low": 0.4, "high": 0.6}  # fmt: skip
    chart["data"] = {"values": [same | {"step": step} for step in range(8)]}
    drawn = vl_convert.vegalite_to_svg(chart)
    bars = re.findall(r'roledescription="bar"[^>]* fill="([^"]+)"', drawn)
    assert len({*bars}) == len(bars) == 8
