"""Memory of a suite on all layers grows with the model, not with layers times the model."""

import copy

import pytest
import torch

from eval.inversion import run
from eval.inversion.questions import Question
from eval.inversion.run import plan
from eval.inversion.solvers import parse_solvers
from eval.models import candidates_at_once, open_checkpoint, rows_at_once
from eval.rows import Results
from eval.slices import Slice
from eval.tasks import run_tasks
from eval.text import random_prompts

DEPTH = 8
METHODS = {
    "coarse": {"method": "sweep", "coarse": True},
    "propose": {},
    "pinv": {"method": "descent", "steps": 2},
}


def jobs(checkpoint, methods, batch=None):
    prompts = random_prompts(checkpoint.tokenizer, 2, 4)
    question = Question(parse_solvers(methods), (Slice(0),))
    return plan(checkpoint, question, prompts, "toy:2000", batch)


def test_a_deep_model_is_copied_and_inverted_once(model_directory, tmp_path, monkeypatch):
    checkpoint = open_checkpoint(model_directory(n_layers=DEPTH, d_model=16))
    copies, inverses, lexicons = [], [], []
    real_copy, real_inverse = copy.deepcopy, torch.linalg.pinv
    model = type(checkpoint.model)

    def copied(value, *more):
        copies.extend([value] if isinstance(value, model) else [])
        return real_copy(value, *more)

    def measured(job, circuit):
        lexicon = lexicon_of(job, circuit)
        lexicons.append(len(checkpoint.kept["lexicons", "toy:2000"]))
        return lexicon

    lexicon_of = run.Job._lexicon
    monkeypatch.setattr(copy, "deepcopy", copied)
    monkeypatch.setattr(torch.linalg, "pinv", lambda x: inverses.append(x) or real_inverse(x))
    monkeypatch.setattr(run.Job, "_lexicon", measured)
    monkeypatch.setattr(run, "ROOM", 0)
    run_tasks(jobs(checkpoint, METHODS), Results(tmp_path), "inverting")
    assert len(copies) == len(inverses) == 1
    whole = 4 * checkpoint.provenance["parameters"]
    assert max(lexicons) <= max(1, whole // (16 * 400 * 16)) < DEPTH
    assert not checkpoint.kept


@pytest.mark.parametrize("name", ["adam", "sweep", "gcg", "lbfgs"])
def test_answers_do_not_depend_on_the_batch(model_directory, name):
    checkpoint = open_checkpoint(model_directory())
    settings = {name: {} if name == "sweep" else {"steps": 5}}
    answers = []
    for batch in (None, 1):
        rows = [row for job in jobs(checkpoint, settings, batch) for row in job.rows()]
        answers.append({row["key"]: row for row in rows})
        alone = 2 if name == "sweep" else 1  # all layers of a prompt share a pass
        assert {row["batch"] for row in rows} == {4 if batch is None else alone}
    together, apart = answers
    assert together.keys() == apart.keys()
    for key, row in together.items():
        assert row["found"] == apart[key]["found"]
        assert row["rank"] == apart[key]["rank"]
        limit = 10 * row["floor"] + 1e-3 * row["residual"]
        assert row["residual"] == pytest.approx(apart[key]["residual"], abs=limit)


def test_a_batch_is_what_the_memory_bears(model_directory, monkeypatch):
    checkpoint = open_checkpoint(model_directory())
    assert rows_at_once(checkpoint.model, 8) == 64
    assert candidates_at_once(checkpoint.model) == 1024
    page = {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 1 << 10}
    monkeypatch.setattr("os.sysconf", page.get)
    few = [rows_at_once(checkpoint.model, length) for length in (1, 4, 16, 32)]
    assert few == sorted(few, reverse=True)
    assert 1 <= few[-1] < few[0] <= 64
