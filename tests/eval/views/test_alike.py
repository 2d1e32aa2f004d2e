"""What a comparison leaves out of a column, and what it takes of a run's files."""

import json

import pytest

from arch import ModelError
from eval import RequestError
from eval.messages import say_once
from eval.views.comparison.table import checkpoint_records
from tests.eval.views.compare_cases import add_model, compared, make_run
from tests.eval.views.page.cases import about, bits_row, loss_row, make_row
from tests.said import one_line


def losses(**corpora):
    """Rows of models, each measured on the corpora whose letters it is given."""
    return [
        loss_row(about(300, name, name), [3.0, 4.0], corpus=f"{corpus}.txt", key=name + corpus)
        for name, given in corpora.items()
        for corpus in given
    ]


PASSAGES = [bits_row(about(300, name, name), 0, 2.0) for name in "abc"]
SOLVED = [make_row(model, solver="sweep", hidden=0) for model in ("flat", "llama")]
PROPOSED = [row | {"solver": "propose", "key": f"propose {row['key']}"} for row in SOLVED]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (losses(a="x", b="y", c="x"), "bits/byte: * corpus x.txt; * corpus y.txt"),
        (losses(a="xy", b="xy"), "bits/byte: * corpus x.txt; * corpus y.txt"),
        ([*PASSAGES[:2], PASSAGES[2] | {"place": 5}], "bits at 4: * place 12; * place 5"),
        ([*SOLVED, PROPOSED[0] | {"checkpoint": about(300, "c", "c")}], "solver sweep; * propose"),
        ([*SOLVED, *PROPOSED], ""),
        (losses(a="x", b="x"), ""),
        (PASSAGES, ""),
    ],
)
def test_what_a_column_is_not_of_is_said(rows, said, capsys):
    """It was "not measured", or the order of rows chose a corpus that nothing named."""
    say_once.cache_clear()
    assert checkpoint_records([], rows)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == bool(said)
    for part in said.split(" * ") if said else ():
        assert part in lines[0]


@pytest.mark.parametrize("recipe", [{"batch": {"size": "16"}}, {"seed": [1]}])
def test_a_recipe_of_other_types_is_not_known(recipe, model_directory, tmp_path):
    model = add_model(make_run(tmp_path, "flat"), 100, model_directory("any", 100))
    expected, meta = compared(model), model / "meta.json"
    known = json.loads(meta.read_text())
    meta.write_text(json.dumps(known | {"recipe": recipe}))
    assert [record["flops"] for record in compared(model)] == [r["flops"] for r in expected]
    meta.write_text(json.dumps(known | {"recipe": "abc"}))
    with one_line(ModelError, "meta.json: recipe is 'abc'"):
        compared(model)


@pytest.mark.parametrize(
    "line", ['{"step": 1.7}', '{"step": true}', '{"step": "12"}', '{"step": 120, "seconds": true}']
)
def test_a_step_that_is_none_is_refused(line, tmp_path):
    run = make_run(tmp_path, "flat")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with one_line(RequestError, "metrics.jsonl, line 6: not a row of a run's figures"):
        compared(run)


def test_speeds_beside_tokens_that_are_not_known_tell_no_time(tmp_path):
    run = make_run(tmp_path, "flat")
    expected = compared(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 100.0, "tokens_per_second": 5.0, "tokens_seen": null}\n')
    assert compared(run) == expected
