"""The comparison: what it finds, and what it pools."""

import json

import numpy as np
import pytest
from scipy import stats

from arch import ModelConfig, describe
from eval.comparison import FLOPS, SECONDS, TOKENS, VALID_BITS, enter, find_column
from eval.gather import gather_models
from eval.models import open_checkpoint
from eval.rows import Results
from eval.summary import summarise
from tests.eval.compare_cases import SIZES, add_model, columns, lens_row, make_run
from tests.eval.report.cases import make_row, make_rows


def test_models_runs_and_rows_come_together(model_directory, tmp_path):
    run = make_run(tmp_path, "flat-s0")
    models = [add_model(run, step, model_directory("any", step)) for step in (0, 100)]
    row = make_row("flat-s0", 100, method="sweep", hidden=0)
    row["checkpoint"] |= open_checkpoint(models[1]).provenance
    row |= {"site": {"layer": 2, "part": "block"}}
    Results(tmp_path / "results").append([row])
    found = gather_models([tmp_path, run, models[0], tmp_path / "results"])  # each thing once
    found = [c for c in found if c.name == "flat-s0"]
    assert [(c.step, len(c.rows)) for c in found] == [(0, 0), (100, 1)]
    assert all(c.run is not None and c.run.path == run for c in found)
    (alone,) = gather_models([models[1]])
    assert alone.run is not None  # its own run is found above it
    assert alone.about["parameters"] == open_checkpoint(models[1]).provenance["parameters"]


def test_a_run_without_models_is_its_last_validation(tmp_path):
    run = make_run(tmp_path, "flat-s0", speed=50)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 150, "lo')  # of a running training
    (entry,) = enter(gather_models([run]))
    assert (entry.label, entry.step) == ("flat-s0", 100)
    assert entry.figures[VALID_BITS].value == pytest.approx(1.2)
    cost = describe(ModelConfig.from_json(json.dumps(SIZES), "here")).cost
    assert entry.figures[TOKENS].value == 1000
    assert entry.figures[FLOPS].value == cost.training_flops * 1000
    assert entry.figures[SECONDS].value == pytest.approx(1000 / 50)


def test_rows_of_other_weights_are_another_model(model_directory, tmp_path):
    path = model_directory("flat")
    row = make_row("flat", 0)
    Results(tmp_path / "out").append([row])
    found = gather_models([path, tmp_path / "out"])
    assert [len(c.rows) for c in found] == [0, 1]
    assert len({entry.label for entry in enter(found)}) == 2


def test_seeds_are_pooled_with_students_interval(tmp_path):
    bits = [1.2, 1.3, 1.25]
    runs = [make_run(tmp_path, f"flat-s{seed}", seed, b) for seed, b in enumerate(bits)]
    (entry,) = enter(gather_models(runs))
    assert (entry.label, len(entry.checkpoints)) == ("flat", 3)
    figure = entry.figures[VALID_BITS]
    low, high = stats.t.interval(0.95, 2, np.mean(bits), stats.sem(bits))
    assert figure[:4] == pytest.approx((np.mean(bits), low, high, 3))
    apart = enter(gather_models(runs), every_seed=True)
    assert [e.label for e in apart] == ["flat-s0", "flat-s1", "flat-s2"]
    assert [e.figures[VALID_BITS].value for e in apart] == pytest.approx(bits)
    assert all(e.figures[VALID_BITS].low is None for e in apart)


def test_other_settings_are_no_seeds(tmp_path):
    runs = [
        make_run(tmp_path, f"flat-s{seed}", seed, lr=1e-3 * (1 + seed // 2)) for seed in range(4)
    ]
    labels = [(entry.label, len(entry.checkpoints)) for entry in enter(gather_models(runs))]
    assert labels == [("flat (lr 0.001)", 2), ("flat (lr 0.002)", 2)]


def test_recovery_is_that_of_the_summary(tmp_path):
    rows = make_rows(models=("flat",), steps=(0, 300), layers=(2, 4), count=3)
    Results(tmp_path).append(rows)
    (record,) = [
        r for r in summarise(rows)
        if (r["step"], r["layer"], r["hidden"], r["method"]) == (300, 4, 3, "descent")
    ]  # fmt: skip
    table = columns(tmp_path)
    entry = table.entries[1]
    column = find_column(table.columns, "non-self [:, 3:, :] descent")
    assert entry.figures[column.quantity] == (
        record["nonself"], record["nonself_low"], record["nonself_high"], 3, (16, 16),
    )  # fmt: skip
    assert dict(column.quantity.places)["layer"] == "last"
    assert find_column(table.columns, "non-self layer 2 [:, 3:, :] descent")


def test_prompts_of_different_lengths_are_one_figure(tmp_path):
    rows = [
        make_row(hidden=k, method="adam", prompt=i, length=8 + i) for i in range(40) for k in (0, 3)
    ]
    last_alone = [
        make_row(hidden=7 + i, method="sweep", prompt=i, length=8 + i, slice="[:, -1, :]")
        for i in range(3)
    ]
    Results(tmp_path / "all").append(rows + last_alone)
    table = columns(tmp_path / "all")
    recovery = {c.heading.replace("\xa0", " "): c.quantity for c in table.sections["recovery"]}
    assert {name for name in recovery if name.startswith("self")} == {
        "self [:, 0:, :] adam, 8 to 47 tokens, %",
        "self [:, 3:, :] adam, 8 to 47 tokens, %",
        "self [:, -1, :] sweep, 8 to 10 tokens, %",
    }
    figure = table.entries[0].figures[recovery["non-self [:, 3:, :] adam, 8 to 47 tokens, %"]]
    ranks = [rank for row in rows if row["hidden"] for rank in row["rank"][:3]]
    assert figure.value == pytest.approx(sum(rank == 0 for rank in ranks) / len(ranks))
    assert (figure.n, figure.lengths) == (40, (8, 47))
    whole = recovery["non-self [:, -1, :] sweep, 8 to 10 tokens, %"]
    assert table.entries[0].figures[whole].n == 3
    Results(tmp_path / "alone").append(last_alone)
    alone = columns(tmp_path / "alone")
    assert alone.shared["recovery"].endswith(", 8 to 10 tokens")  # what all columns pool
    assert not any("tokens" in c.heading for c in alone.sections["recovery"])


def test_settings_tell_apart_what_nothing_else_does(tmp_path):
    other = make_row(settings={"steps": 900, "rate": 0.02}, key="other")
    Results(tmp_path).append([make_row(), make_row(method="adam"), other])
    names = [c.name.replace("\xa0", " ") for c in columns(tmp_path).columns]
    assert "non-self descent steps=500" in names
    assert "non-self descent steps=900" in names
    assert "non-self adam" in names


def test_a_figure_of_a_lens_needs_no_code(tmp_path):
    rows = [lens_row(3.0), lens_row(4.0, layer=4), lens_row(5.0, lens="tuned")]
    Results(tmp_path).append(rows)
    table = columns(tmp_path)
    names = {c.name: table.entries[0].figures[c.quantity][:4] for c in table.sections["lens"]}
    assert names == {
        "entropy layer 2 lens logit": (3.0, 2.0, 4.0, 7),
        "entropy lens logit": (4.0, 3.0, 5.0, 7),  # of the last layer
        "entropy layer 2 lens tuned": (5.0, 4.0, 6.0, 7),
    }


def test_probes_have_columns(tmp_path):
    about = {"checkpoint": make_row()["checkpoint"], "site": {"layer": 4, "part": "block"}}
    probe = {"kind": "probe", "key": "p", "method": "gaussian", "offset": -1, "top1": 0.25,
             "information": 0.1, "nats": 5.0, "count": 90}  # fmt: skip
    Results(tmp_path).append([about | probe])
    table = columns(tmp_path)
    found = {c.heading: table.entries[0].figures[c.quantity][:4] for c in table.columns}
    assert found["top-1, %"] == (0.25, None, None, 1)
