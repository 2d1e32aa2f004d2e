"""Which names say that models differ in their training seed only; the same to all readers."""

import pytest

from eval.comparison import enter
from eval.gather import gather_models
from eval.report.tables import summary_table
from eval.rows import Results, Row
from tests.eval.compare_cases import make_run
from tests.eval.report.cases import make_row
from train.sweep import trial_name

SEEDS = [
    ("flat-s0", "flat-s1", "flat"),
    ("llama-small-s2", "llama-small-s10", "llama-small"),
    ("flat_seed=0", "flat_seed=1", "flat"),
    ("mixers=flat_seed=0", "mixers=flat_seed=1", "mixers=flat"),
    ("flat.seed3", "flat.seed4", "flat"),
    ("flat seed 3", "flat seed 4", "flat"),
    ("flat-s0 [identity]", "flat-s1 [identity]", "flat [identity]"),
]
OTHERS = [("flat-tokens16", "flat-tokens32"), ("heads4", "heads8"), ("flat-16", "flat-32")]


def rows(*names: str) -> list[Row]:
    """Of models of the same sizes."""
    about = make_row("flat")["checkpoint"]
    return [
        make_row("flat", key=name, checkpoint=about | {"name": name, "weights_sha256": name})
        for name in names
    ]


@pytest.mark.parametrize(("one", "two", "label"), SEEDS)
def test_seeds_have_the_name_without_the_seed(tmp_path, one, two, label):
    Results(tmp_path).append(rows(one, two))
    (entry,) = enter(gather_models([tmp_path]))
    assert (entry.label, len(entry.checkpoints)) == (label, 2)
    assert {record["model"] for record in summary_table(rows(one, two))} == {label}


@pytest.mark.parametrize(("one", "two"), OTHERS)
def test_other_numbers_are_no_seeds(tmp_path, one, two):
    Results(tmp_path).append(rows(one, two))
    assert {entry.label for entry in enter(gather_models([tmp_path]))} == {one, two}
    assert {record["model"] for record in summary_table(rows(one, two))} == {one, two}


def test_runs_of_a_sweep_pool(tmp_path):
    trials = [{"model.mixers": "[flat]", "optimizer.lr": 0.004, "seed": seed} for seed in range(3)]
    names = [trial_name(trial, list(trial)) for trial in trials]
    for seed, name in enumerate(names):
        make_run(tmp_path, name, seed)
    (entry,) = enter(gather_models([tmp_path]))
    assert (entry.label, len(entry.checkpoints)) == ("mixers=flat_lr=0.004", 3)


def test_seeds_without_any_other_name_are_called_by_their_mixers(tmp_path):
    for seed in range(2):
        make_run(tmp_path, f"seed={seed}", seed)
    (entry,) = enter(gather_models([tmp_path]))
    assert (entry.label, len(entry.checkpoints)) == ("flat", 2)
