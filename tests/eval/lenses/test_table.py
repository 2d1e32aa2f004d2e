"""The numbers of a lens, with one rule for intervals; every lens on every family of models."""

import json
import math
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t, ttest_1samp

from eval import RequestError
from eval.analysis.statistics import wilson
from eval.lenses.charts import Bars, Heat, Histogram, Lines
from eval.lenses.lens import Lens, lenses
from eval.lenses.table import Table
from tests.eval.lenses.cases import ask, look, story_checkpoint, wrapped_checkpoint
from tests.said import one_line
from tokenizer import open_corpus


def only(table: Table, name: str) -> dict:
    (row,) = [row for row in table.figures() if row["figure"] == name]
    return row


def test_a_mean_of_stories_has_students_interval():
    table, values = Table(), torch.randn(9, dtype=torch.float64)
    table.add("size", values, story=range(9))
    theirs = ttest_1samp(values.numpy(), 0).confidence_interval(0.95)
    limits = {"low": pytest.approx(theirs.low), "high": pytest.approx(theirs.high)}
    value = pytest.approx(float(values.mean()))
    assert only(table, "size") == {"figure": "size", "n": 9, "value": value, **limits}


def test_positions_of_a_prompt_are_one_cluster_however_they_are_given():
    """Copies of a prompt's positions add no certainty; prompts count by their positions."""
    values = torch.tensor([[1.0, 2.0, 6.0], [3.0, torch.nan, torch.nan], [5.0, 7.0, torch.nan]])
    table, labels = Table(), ["a", "b", "c"]
    table.add("grid", values, prompt=labels, position=range(3))
    table.add("flat", values[~values.isnan()], prompt=["a", "a", "a", "b", "c", "c"])
    table.add("twice", values.repeat(1, 2), prompt=labels, position=range(6))
    sums, counts = np.array([9.0, 3.0, 12.0]), np.array([3.0, 1.0, 2.0])
    half = t.ppf(0.975, 2) * math.sqrt(1.5 * np.square((sums - 4.0 * counts) / 6).sum())
    for name, n in (("grid", 6), ("flat", 6), ("twice", 12)):
        limits = {"value": 4.0, "low": pytest.approx(4 - half), "high": pytest.approx(4 + half)}
        assert only(table, name) == {"figure": name, "n": n, **limits}


def test_a_mean_of_clusters_that_are_alike_has_no_limits():
    table = Table()
    table.add("size", torch.tensor([0.1 + 0.2, 0.3]), prompt=["a", "b"])
    assert only(table, "size") == {"figure": "size", "n": 2, "value": pytest.approx(0.3)}


@pytest.fixture
def make_corpus(tmp_path):
    """Writes held-out documents: the first half is for evaluation, the last one for fitting."""

    def write(*documents):
        (tmp_path / "valid.txt").write_text("<|endoftext|>".join(documents))
        return str(tmp_path)

    return write


@pytest.mark.parametrize(
    ("lens", "figure"), [("tuned", "divergence on other stories"), ("detokenisation", "read")]
)
def test_windows_of_a_story_are_one_cluster(lens, figure, make_corpus):
    """Neighbouring windows of a book were as many stories."""
    told_apart = [story[:99] for story in islice(open_corpus("toy:200", "train"), 120)]
    books = [" ".join(told_apart[i : i + 30]) for i in range(0, 120, 30)]
    for documents, limited in ((told_apart, True), (books, False)):
        checkpoint, corpus = story_checkpoint(context=32), make_corpus(*documents)
        found = look(lens, checkpoint, range(40, 48), corpus=corpus, tokens=800)
        rows = [row for row in found.figures() if row["figure"] == figure]
        assert any("low" in row for row in rows) == limited
        assert max(row["n"] for row in rows) > 9


def test_few_tokens_hold_few_windows_back(make_corpus):
    """Sixteen windows were held back, so that lowering --tokens did not help."""
    checkpoint = story_checkpoint(context=32)
    ids = checkpoint.tokenizer.encode(" ".join(islice(open_corpus("toy:40", "train"), 9))).ids
    text = [checkpoint.tokenizer.decode(ids[start:end]) for start, end in ((0, 300), (300, 900))]
    corpus = make_corpus(text[0], "An end.", "One.", text[1])
    found = look("tuned", checkpoint, range(40, 48), corpus=corpus, tokens=256)
    judged = [row["n"] for row in found.figures() if row["figure"] == "divergence on other stories"]
    assert {*judged} == {8}


@pytest.mark.parametrize(
    ("hits", "limits"),
    [
        ([[True, True]] * 4, wilson(4, 4)[1:]),  # four trials, not eight
        ([[False, False]] * 4, wilson(0, 4)[1:]),
        ([[True, True], [True, False]], (0.0, 1.0)),  # as wide as can be, and no wider
        ([[True, False]], None),
    ],
)
def test_shares_stay_between_none_and_all(hits, limits):
    table = Table()
    table.add("read", torch.tensor(hits), prompt=range(len(hits)), position=range(2))
    row = only(table, "read")
    assert row["value"] == np.mean(hits)
    assert (row.get("low"), row.get("high")) == (limits or (None, None))


def test_places_are_kept_apart_and_numbers_without_samples_are_alone():
    table, nan = Table(), torch.nan
    table.add("norm", torch.tensor([[1.0, 3.0], [nan, nan]]), layer=[0, 1], prompt=["a", "b"])
    table.add("scores", torch.tensor([2.0, nan]), head=[0, 1], layer=3)
    table.add("loss", 0.5)
    table.add("aside", torch.ones(2), rows=False, layer=[0, 1])
    norm, *rows = table.figures()
    assert (norm["figure"], norm["layer"], norm["value"], norm["n"]) == ("norm", 0, 2.0, 2)
    scores = {"figure": "scores", "head": 0, "layer": 3, "value": 2.0}
    assert rows == [scores, {"figure": "loss", "value": 0.5}]
    with pytest.raises(ValueError, match="do not fit"):
        table.add("norm", torch.ones(2, 3), layer=[0, 1])
    with pytest.raises(RequestError, match="norm: no number is finite"):
        table.add("norm", torch.full((2,), nan), layer=[0, 1])


@pytest.mark.parametrize(
    "axis", ["step", "length", "n", "seed", "text", "reason", "models", "size", "width"]
)
def test_an_axis_that_has_the_name_of_a_field_of_rows_is_refused(axis):
    """Its labels stood for the training step, or were pooled, or all but one got lost.

    A figure's value stood for them.
    """
    labels: dict[str, Any] = {axis: [1, 2]}
    table = Table()
    table.add("width", 1.0)
    with one_line(RequestError, f"size: axis {axis}: "):
        table.add("size", torch.rand(2), **labels)
    table.add("size", torch.rand(2), rows=False, **labels)  # of charts alone


def test_a_figure_that_has_the_name_of_a_field_of_rows_is_refused():
    table = Table()
    table.add("size", torch.rand(2), width=[1, 2])
    for name in ("model", "prompts", "width"):
        with one_line(RequestError, f"{name}: figure {name}: "):
            table.add(name, 1.0)


@pytest.mark.parametrize("axis", ["head.0", "a[0]", "it's"])
@pytest.mark.parametrize("rows", [True, False])
def test_an_axis_whose_name_charts_would_take_apart_is_refused(axis, rows):
    labels: dict[str, Any] = {axis: [1, 2]}
    with one_line(RequestError, f"size: axis {axis}: "):
        Table().add("size", torch.rand(2), rows=rows, **labels)


def test_numbers_that_would_replace_each_other_or_be_pooled_are_refused():
    def measure(heads):
        def loop(checkpoint, batch, request, table):
            for head in range(2):
                table.add("entropy", torch.rand(2), layer=1, prompt=["a", "b"], **heads[head])

        return Lens("mine", "", loop, "").find(told(("flat",)), ask(range(4)))

    assert len(list(measure([{"head": 0}, {"head": 1}]).figures())) == 2
    with one_line(RequestError, "entropy: added twice at layer 1; "):
        measure([{}, {}])
    with one_line(RequestError, "entropy: axis head: "):
        Table().add("entropy", torch.rand(2, 2), head=["x", "x"], prompt=["a", "b"])


def drawn(chart: Any, **tables: Table) -> Any:
    figure = chart.draw("some", tables)
    return figure, list(figure.panels), json.dumps(figure.chart.to_dict())


def test_a_chart_has_a_panel_for_each_model_and_says_what_it_shows():
    table = Table(pieces={"text 0": [" a", "b"]})
    place = {"layer": [0, 1], "prompt": ["text 0"], "position": [0, 1]}
    table.add("size of it", torch.rand(2, 2, 1, 2), part=["x", "y"], **place)
    table.add("bars", torch.rand(2, 2), head=[0, 1], part=["x", "y"])
    words: Any = {"title": "Why?", "about": "About it."}
    figure, panels, _ = drawn(Lines(of="size of it", y="length", **words), a=table, b=table)
    assert (figure.name, figure.title, panels) == ("some-size-of-it", "Why?", ["y"])
    heat = Heat(of="size of it", x="position", y="layer", value="v", **words)
    for chart, expected in (
        (Lines(of="size of it", y="length", colour="part", **words), ["one"]),
        (Lines(of="size of it", each=True, **words), ["y, text 0, position 1"]),
        (heat, ["one: y, text 0"]),
        (Bars(of="bars", x="part", column="head", **words), ["one"]),
        (Histogram(of="bars", x="head", colour="part", **words), ["one"]),
    ):
        assert drawn(chart, one=table)[1] == expected
    assert "0 \\u00b7a" in drawn(heat, one=table)[2]
    assert Lines(of="other", **words).draw("some", {"one": table}) is None


told = lru_cache(story_checkpoint)
MODELS = ("flat", "attention(kv_heads=2)/expanded", "gpt2", "llama 2, grouped, scaled")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lens", lenses())
def test_a_lens_on_a_model(lens, name):
    """Its rows have intervals about their values; its document is read as it was written."""
    ours = name in MODELS[:2]
    if lens == "steering" and not ours:
        pytest.skip("its stories are longer than the contexts of these")
    checkpoint = told(tuple(name.split("/"))) if ours else wrapped_checkpoint(name)
    found = look(lens, checkpoint, range(60, 68), range(40, 48), tokens=1000)
    rows = list(found.figures())
    assert rows
    for row in rows:
        assert math.isfinite(row["value"]), row
        assert row.get("low", row["value"]) <= row["value"] <= row.get("high", row["value"]), row
    written = json.dumps(found.plain(), allow_nan=False)
    assert Table.read(json.loads(written)).plain() == found.plain()
