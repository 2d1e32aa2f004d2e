"""The comparison: what it finds and pools, its table, files and plots, and two models paired."""

import csv
import io
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from eval.analysis.summary import summarise_rows
from eval.messages import RequestError
from eval.models.checkpoint import find_models, open_checkpoint
from eval.rows.store import Results, read_rows
from eval.views.comparison.gather import RunRecord, gather_models
from eval.views.comparison.table import checkpoint_records, pool_ends, reported
from tests.eval.views.compare_cases import add_model, compared, make_run, run_compare
from tests.eval.views.page.cases import (
    about,
    bits_row,
    control_of,
    loss_row,
    make_row,
    make_rows,
)


def test_models_runs_and_rows_come_together(model_directory, tmp_path):
    run = make_run(tmp_path, "flat-s0")
    models = [add_model(run, step, model_directory("any", step)) for step in (0, 100)]
    row = make_row("flat-s0", 100, solver="sweep", hidden=0)
    row["checkpoint"] |= open_checkpoint(models[1]).provenance
    row |= {"site": {"layer": 2, "part": "block"}}
    Results(tmp_path / "results").append([row])
    found = compared(tmp_path, run, models[0], tmp_path / "results")  # each thing once
    found = [record for record in found if record["model"] == "flat-s0"]
    assert [(r["step"], r["shown"], r["tokens"]) for r in found] == [(0, None, 0), (100, 1, 1000)]
    assert [record["seeds"] for record in found] == [1, 1]
    (alone,) = gather_models([models[1]])
    assert alone.run is not None  # its own run is found above it
    parameters = open_checkpoint(models[1]).provenance["parameters"]
    assert alone.checkpoint["parameters"] == parameters


def test_seeds_are_pooled_with_students_interval(tmp_path):
    bits = [1.2, 1.3, 1.25]
    runs = [make_run(tmp_path, f"flat-s{seed}", seed, b) for seed, b in enumerate(bits)]
    (record,) = compared(*runs)
    assert (record["model"], record["seeds"]) == ("flat", 3)
    low, high = stats.t.interval(0.95, 2, np.mean(bits), stats.sem(bits))
    found = [record[f"bits_per_byte{end}"] for end in ("", "_low", "_high", "_n")]
    assert found == pytest.approx((np.mean(bits), low, high, 3))
    apart = compared(*runs, every=True)
    assert [record["model"] for record in apart] == ["flat-s0", "flat-s1", "flat-s2"]
    assert [record["bits_per_byte"] for record in apart] == pytest.approx(bits)
    assert all(record["bits_per_byte_low"] is None for record in apart)


def test_seeds_that_end_at_several_steps_are_one_line_of_last_steps(tmp_path, capsys):
    """As by minutes: the seed with the most steps stood for all, and a worse model was the best."""
    ends = {"good": [(98, 0.8), (105, 0.9), (112, 1.3)], "bad": [(100, 1.05), (120, 1.0)]}
    runs = [make_run(tmp_path, f"{name}-s{seed}", seed, bits, end=end)
            for name, seeds in ends.items() for seed, (end, bits) in enumerate(seeds)]  # fmt: skip
    file = tmp_path / "table.csv"
    for flags, names in ([], ["good", "bad"]), (["--every_seed"], ["good-s0", "good-s1"]):
        assert run_compare(*runs, "--last", "--sort", "bits/byte", "--csv", file, *flags) == 0
        lines = list(csv.DictReader(file.read_text().splitlines()))
        assert [line["model"] for line in lines][:2] == names
    assert {line["step"] for line in lines} == {"98", "105", "112", "100", "120"}
    assert "98-112" in capsys.readouterr().out
    assert run_compare(*runs, "--last", "--sort=-step", "--plot", tmp_path / "plot.svg") == 0
    saved = gather_models(runs)
    drawn = pool_ends([*saved, *reported(saved)], [], others=True)
    records = checkpoint_records(*drawn, figures=())
    points = [(r["model"], r["step"], r["steps"], r["seeds"], r["tokens"]) for r in records]
    assert points[:3] == [
        ("bad", 0, 0, 2, 0),
        ("bad", 50, 50, 2, 500),
        ("bad", "100-120", 110, 2, 1100),
    ]
    assert points[5] == ("good", "98-112", 105, 3, 1050)
    assert records[5]["bits_per_byte"] == pytest.approx(1)


def test_a_seed_that_is_behind_stays_at_a_step_that_others_have(tmp_path):
    runs = [make_run(tmp_path, f"a-s{seed}", seed, end=end) for seed, end in enumerate([50, 100])]
    saved = gather_models(runs)
    records = checkpoint_records(*pool_ends([*saved, *reported(saved)], [], others=True))
    assert [(r["step"], r["seeds"]) for r in records] == [(0, 2), (50, 2), (100, 1)]


def test_a_seed_that_is_untrained_yet_is_left_out_of_last_steps_with_a_line(tmp_path, capsys):
    runs = [
        make_run(tmp_path, f"a-s{seed}", seed, end=end) for seed, end in enumerate([90, 100, 50])
    ]
    record = runs[2] / "metrics.jsonl"
    record.write_text(record.read_text().splitlines()[0] + "\n")
    records = checkpoint_records(*pool_ends(gather_models(runs), []))
    assert [(r["step"], r["seeds"]) for r in records] == [("90-100", 2)]
    assert "left out: training seeds of a that are at step 0" in capsys.readouterr().err


def test_validations_over_other_numbers_of_tokens_are_not_pooled(tmp_path, capsys):
    """They are of another text; contexts round the number of a whole one."""
    runs = [make_run(tmp_path, f"flat-s{n}", n, bits) for n, bits in enumerate([1.2, 1.3, 9.0])]
    for run, tokens in zip(runs, (4000, 4016, 320), strict=True):
        file, key = run / "metrics.jsonl", f'"val_tokens": {tokens}, "val_loss"'
        file.write_text(file.read_text().replace('"val_loss"', key))
    (record,) = compared(*runs)
    assert (record["bits_per_byte"], record["bits_per_byte_n"]) == (pytest.approx(1.25), 2)
    said = "left out: validations over 320 tokens of the data, where most are over 4,016; eval loss"
    assert said in capsys.readouterr().err
    (alone,) = compared(runs[2])
    assert alone["bits_per_byte"] == 9.0


def test_linked_folders_are_searched_too(model_directory, tmp_path):
    run, runs, results = make_run(tmp_path / "far", "flat"), tmp_path / "runs", tmp_path / "results"
    model = add_model(run, 100, model_directory("any", 100))
    Results(tmp_path / "far" / "out").append([make_row("flat", 100)])
    for link, target in ((runs / "flat", run), (results / "a", tmp_path / "far" / "out")):
        link.parent.mkdir()
        link.symlink_to(target)
    (runs / "back").symlink_to(tmp_path)  # leads in a circle
    assert [record["step"] for record in compared(runs)] == [
        record["step"] for record in compared(run)
    ]
    assert find_models(runs) == [runs / "flat" / model.relative_to(run)]
    assert [row["step"] for row in (r["checkpoint"] for r in read_rows([results]))] == [100]


def test_a_copy_of_a_run_is_no_training_seed(model_directory, tmp_path):
    run = make_run(tmp_path, "flat")
    add_model(run, 100, model_directory("any", 100))
    shutil.copytree(run, tmp_path / "backup" / "flat")
    assert [record["seeds"] for record in compared(run, tmp_path / "backup")] == [1]
    other = make_run(tmp_path / "other", "flat", seed=1)  # a seed of its own, of the same loss
    shutil.rmtree(run / "models")
    assert [record["seeds"] for record in compared(run, other)] == [2]


def test_a_record_of_two_runs_is_refused_and_the_order_of_its_lines_is_that_of_steps(tmp_path):
    """The last line's step was the run's last, and its time went back with the tokens."""
    run, other = make_run(tmp_path, "flat"), make_run(tmp_path, "other", bits=2.0)
    (expected,) = compared(run)
    record = run / "metrics.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(lines[::-1]))
    assert compared(run) == [expected]
    record.write_text("".join(lines) + (other / "metrics.jsonl").read_text())
    with pytest.raises(RequestError, match=r"jsonl, line 6: another validation of step 0, so it"):
        compared(run)


def test_a_model_that_was_trained_again_is_no_training_seed(model_directory, tmp_path, capsys):
    """Rows of the weights that lay there before were averaged with its own."""
    model = add_model(make_run(tmp_path, "flat"), 100, model_directory("any", 100))
    rows = [loss_row(open_checkpoint(model).provenance, [2.0, 3.0])]
    earlier = {**rows[0]["checkpoint"], "weights_sha256": "0" * 64}
    rows.append(loss_row(earlier, [4.0, 5.0]) | {"key": "earlier"})
    Results(tmp_path / "results").append(rows)
    table = tmp_path / "table.csv"
    assert run_compare(model, tmp_path / "results", "--csv", table) == 0
    said = f"left out: 1 rows of models that were trained again since, such as {model}\n"
    assert capsys.readouterr().err == said
    (line,) = csv.DictReader(table.read_text().splitlines())
    assert (line["seeds"], float(line["bits_per_byte"])) == ("1", rows[0]["bits_per_byte"])
    assert run_compare(tmp_path / "results") == 0  # where no model is at hand, it is said
    assert f"{model}: rows of several models that lay there are" in capsys.readouterr().err


def test_a_model_by_itself_has_what_its_run_measured_of_it(model_directory, tmp_path):
    """As `compare RUN@0 RUN@100` after `fit --eval_every`; its line had no figures."""
    run = make_run(tmp_path, "flat")
    models = [add_model(run, step, model_directory("any", step)) for step in (0, 100)]
    rows = [loss_row(open_checkpoint(model).provenance, [2.0, 3.0]) for model in models]
    rows = [row | {"key": model.name} for row, model in zip(rows, models, strict=True)]
    Results(run / "eval").append(rows)
    (record,) = compared(models[1])
    assert (record["step"], record["bits_per_byte_of"]) == (100, "loss")
    assert compared(models[1], run / "eval")[1] == record  # no row counts twice
    assert compared(*models) == compared(run)


def test_a_model_of_the_repository_is_one_of_a_comparison(capsys):
    assert run_compare("remnant:flat-small") == 0
    assert "0.8225" in capsys.readouterr().out


def test_settings_in_which_runs_differ_are_columns(tmp_path, capsys):
    fast, slow = (make_run(tmp_path, name, lr=lr) for name, lr in (("fast", 0.1), ("slow", 0.01)))
    assert [r["settings"] for r in compared(fast, slow)] == [
        {"optimizer.lr": 0.1}, {"optimizer.lr": 0.01}
    ]  # fmt: skip
    assert [r["settings"] for r in compared(fast)] == [{}]
    file = tmp_path / "table.csv"
    assert run_compare(fast, slow, "--csv", file) == 0
    lines = csv.DictReader(file.read_text().splitlines())
    assert [line["optimizer.lr"] for line in lines] == ["0.1", "0.01"]
    assert "lr" in capsys.readouterr().out.split()


def test_validations_of_other_texts_are_said_and_no_seeds_of_each_other(
    model_directory, tmp_path, capsys
):
    """Texts that runs had packed themselves were all called data, and stood side by side."""
    runs = [make_run(tmp_path, f"flat-s{seed}", seed) for seed in (0, 1)]
    for run, text in zip(runs, ("one.txt", "two.txt"), strict=True):
        with (run / "config.yaml").open("a") as file:
            file.write(f"data: {run / 'data'}\n")
        meta = add_model(run, 100, model_directory("any", 100)) / "meta.json"
        about = {"data_sha256": text[:3] * 5, "data_source": f"texts/{text}", "model_id": text}
        meta.write_text(json.dumps(json.loads(meta.read_text()) | about))
    found = [record["settings"]["data"] for record in compared(*runs)]
    assert found == ["one.txt (oneoneon)", "two.txt (twotwotw)"]
    said = (
        "are of 2 sets of data, whose texts may differ, as those of flat-s0 and flat-s1; eval loss"
    )
    assert said in capsys.readouterr().err
    compared(runs[0])
    assert "texts may" not in capsys.readouterr().err
    for number, (name, value) in enumerate((("data", "books"), ("dropout", 0.2))):
        pair = [make_run(tmp_path / str(number), f"flat-s{seed}", seed) for seed in (0, 1)]
        assert [record["seeds"] for record in compared(*pair)] == [2]
        with (pair[1] / "config.yaml").open("a") as file:
            file.write(f"{name}: {value}\n")
        assert [record["seeds"] for record in compared(*pair)] == [1, 1]


def test_a_folder_with_a_sign_of_steps_in_its_path_is_read_as_any_other(
    model_directory, tmp_path, capsys
):
    """Of a run only its last model was found, and a folder of runs was refused."""
    runs = [make_run(tmp_path / "jo@work", name) for name in ("flat", "flat@0")]
    for run in runs:
        for step in (0, 100):
            add_model(run, step, model_directory("any", step))
    for places, count in (
        ([tmp_path / "jo@work"], 4),
        (runs[:1], 2),
        ([Path(f"{runs[1]}@100")], 1),
    ):
        assert len(compared(*places)) == count
    assert run_compare(tmp_path / "jo@work", "--paired", "flat@0", "flat@0@100") == 2
    assert "nothing was asked of both alike" in capsys.readouterr().err


def test_the_best_model_of_a_run_has_the_settings_of_the_run(model_directory, tmp_path):
    runs = [make_run(tmp_path, name, lr=lr) for name, lr in (("fast", 0.1), ("slow", 0.01))]
    for run in runs:
        add_model(run, 100, model_directory("any", 100)).rename(run / "best")
    settings = [record["settings"] for record in compared(*runs)]
    assert settings == [{"optimizer.lr": 0.1}, {"optimizer.lr": 0.01}]


@pytest.mark.parametrize(
    ("name", "hidden", "quantity", "solver"),
    [
        ("shown", 0, "self", "sweep"),
        ("hidden_1", 1, "nonself", "alternating"),
        ("hidden_3", 3, "nonself", "adam"),
    ],
)
def test_recoveries_are_those_of_the_summary(tmp_path, name, hidden, quantity, solver):
    rows = make_rows(models=("flat",), layers=(2, 4), count=2)
    departing = [{"noise": 0.5}, {"control": "shuffled"}, {"padded": True}]
    rows += [
        row | change | {"key": f"{row['key']}{change}"} for row in rows for change in departing
    ]
    Results(tmp_path).append(rows)
    (expected,) = [
        r for r in summarise_rows(rows)
        if (r["step"], r["layer"], r["hidden"], r["solver"]) == (300, 4, hidden, solver)
        and not (r["noise"] or r["control"] or r["padded"])
    ]  # fmt: skip
    record = compared(tmp_path, solver=solver if solver == "adam" else None)[1]
    found = [record[f"{name}{end}"] for end in ("", "_low", "_high", "_n")]
    ends = (expected[f"{quantity}{end}"] for end in ("", "_low", "_high"))
    assert found == pytest.approx([*ends, expected["prompts"]])


@pytest.mark.parametrize("place", ["data", "runs/a-s{}/data"])
def test_rows_of_seeds_are_their_mean(tmp_path, place):
    """Where each run had packed the text itself, the figures of one stood for all."""
    nats = [3.0, 3.2, 3.7]
    rows = [loss_row(about(300, f"a{s}", f"a-s{s}"), [n, n], corpus=place.format(s),
                     corpus_hash="h") for s, n in enumerate(nats)]  # fmt: skip
    Results(tmp_path).append(rows)
    Results(tmp_path).append(
        [bits_row(row["checkpoint"], 0, n) | {"corpus": row["corpus"], "corpus_hash": "h"}
         for row, n in zip(rows, nats, strict=True)]
    )  # fmt: skip
    (record,) = compared(tmp_path)
    assert record["bits_at_4"] == pytest.approx(np.mean(nats))
    assert record["bits_per_byte"] == pytest.approx(np.mean(nats) / 2 / np.log(2))  # two bytes each
    assert record["bits_per_byte_low"] < record["bits_per_byte"] < record["bits_per_byte_high"]
    assert record["seeds"] == 3


@pytest.mark.parametrize("step", [0, 300])
def test_a_control_is_no_checkpoint_and_no_seed(tmp_path, step):
    """Rows of one of step 0 know what its model was trained on."""
    row = make_row("flat", step)
    row["checkpoint"]["tokens_seen"] = step
    identity = {"step": 0, "tokens_seen": 100, "mixers": ["identity"]}
    Results(tmp_path / "r").append([
        row, control_of(row, "identity", **identity), control_of(row, "embedding=untrained")
    ])  # fmt: skip
    assert run_compare(tmp_path / "r", "--csv", tmp_path / "table.csv") == 0
    (line,) = csv.DictReader((tmp_path / "table.csv").read_text().splitlines())
    assert [line[name] for name in ("model", "step", "tokens", "seeds")] == [
        "flat", str(step), str(float(step)), "1",
    ]  # fmt: skip


def test_losses_and_bits_are_at_what_most_checkpoints_were_asked(tmp_path):
    here = [about(step) for step in (0, 300)]
    rows = [loss_row(one, [3.0, 4.0]) for one in here]
    rows += [loss_row(here[0], [9.0, 9.0], corpus="other", key="other")]
    rows += [bits_row(one, prompt, 2.0 + prompt) for one in here for prompt in range(3)]
    Results(tmp_path).append(rows)
    records = compared(tmp_path)
    assert [r["bits_per_byte"] for r in records] == pytest.approx([7 / 4 / np.log(2)] * 2)
    assert [r["bits_at_4"] for r in records] == [3, 3]
    assert records[0]["bits_at_4_n"] == 3
    assert records[0]["bits_per_byte_of"] == "loss"


def test_a_column_is_of_the_search_that_most_checkpoints_were_asked_with(tmp_path):
    """One that another search was asked of stood alone, beside "not measured"."""
    rows = [make_row(model, solver="sweep", hidden=0) for model in ("flat", "llama")]
    own = {"solver": "propose", "self": rows[0]["self"] | {"top1": 0.0}}
    half = [row | own | {"key": f"propose {row['key']}"} for row in rows]
    for asked, expected in (([*half, rows[0]], [0, 0]), ([*half, *rows], [1, 1])):
        Results(tmp_path / str(len(asked))).append(asked)
        records = compared(tmp_path / str(len(asked)))
        assert [record["shown"] for record in records] == expected


def test_command_prints_and_writes(tmp_path, capsys):
    runs = [
        make_run(tmp_path, "conv-s0", 0, 1.2),
        make_run(tmp_path, "conv-s1", 1, 1.3),
        make_run(tmp_path, "other", 0, 1.1),
    ]
    Results(tmp_path / "results").append(make_rows(models=("flat",), count=2))
    files = {kind: tmp_path / "new" / f"table.{kind}" for kind in ("md", "csv")}
    words = ["--markdown", files["md"], "--csv", files["csv"]]
    assert run_compare(*runs, tmp_path / "results", *words) == 0
    printed = capsys.readouterr().out
    headings = ["model", "step", "tokens", "d_model", "n_layers", "context", "bits/byte", "shown %",
                "hidden 1 %", "hidden 3 %", "bits at 4"]  # fmt: skip
    assert "".join(headings).replace(" ", "") in printed.replace(" ", "")
    assert f"| {' | '.join(headings)} |" in files["md"].read_text()
    assert len(printed.splitlines()) <= 25
    (pooled,) = [r for r in csv.DictReader(io.StringIO(files["csv"].read_text()))
                 if r["model"] == "conv"]  # fmt: skip
    assert float(pooled["bits_per_byte"]) == np.mean([1.2, 1.3])
    assert (pooled["seeds"], pooled["bits_per_byte_n"], pooled["step"]) == ("2", "2", "100")


@pytest.mark.parametrize(("kind", "x"), [("svg", "flops"), ("png", "tokens")])
def test_plots_are_files(tmp_path, kind, x):
    names = ["flat", "<llama> & co", *(f"m{c}" for c in "abcdef")]
    runs = [make_run(tmp_path, name, bits=1 + i / 10) for i, name in enumerate(names)]
    file = tmp_path / f"plot.{kind}"
    assert run_compare(*runs, "--plot", file, "--x", x) == 0
    if kind == "png":
        assert file.read_bytes().startswith(b"\x89PNG")
    else:
        text = file.read_text()
        assert text.count("stroke-dasharray") >= 2  # where the colours begin anew
        assert "<llama> & co" in "".join(ET.fromstring(text).itertext())
        assert "bits/byte of training's validation" in "".join(ET.fromstring(text).itertext())


def test_longer_prompts_are_another_question(tmp_path):
    """Unless they are texts that were given; a column has the length that most models have."""
    for prompts, counts in (("story", [4, 3]), ("text", [4, 8])):
        counts_of = (("flat", 8, 4), ("llama", 8, 3), ("llama", 16, 5))
        rows = [make_row(model, solver="alternating", prompt=i, length=length, prompts=prompts)
                for model, length, count in counts_of for i in range(count)]  # fmt: skip
        Results(tmp_path / prompts).append(rows)
        records = compared(tmp_path / prompts, prompts=prompts)
        assert [record["hidden_3_n"] for record in records] == counts


def test_seconds_of_training_are_those_that_a_run_wrote_of_each_step():
    speed = {"tokens_seen": 10, "tokens_per_second": 5.0}
    rows = [{"step": 1, "seconds": 2.5} | speed, {"step": 3, "val_loss": 1.0, "seconds": 6.0}]
    assert RunRecord(Path("run"), {}, rows).seconds == {0: 0.0, 1: 2.5, 3: 6.0}
    assert RunRecord(Path("run"), {}, [{"step": 1} | speed]).seconds == {0: 0.0, 1: 2.0}  # earlier
