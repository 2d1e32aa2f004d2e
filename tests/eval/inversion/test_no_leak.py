"""With the target of another prompt every solver finds that prompt's tokens, never the truth's."""

from typing import Any

import pytest
import torch

from eval.inversion.questions import Question
from eval.inversion.run import SHUFFLED, plan
from eval.inversion.solvers import solvers
from eval.models import open_checkpoint
from eval.slices import Slice
from eval.text import Prompt

COUNT, LENGTH, VOCAB = 8, 5, 400
SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {"steps": 150},
    "arca": {"sweeps": 4, "samples": 4, "top": 32},
    "descent": {"steps": 300, "rate": 0.1},
    "gcg": {"steps": 100, "width": 64},
    "gumbel": {"steps": 200, "samples": 8, "warm": 1.0},
    "lbfgs": {"steps": 60},
    "levenberg": {"steps": 6},
    "pez": {"steps": 200},
    "pia": {"steps": 200},
    "soda": {"steps": 300},
}


@pytest.mark.parametrize("name", list(solvers()))
def test_a_shuffled_target_leaves_the_truth_at_chance(model_directory, name):
    checkpoint = open_checkpoint(model_directory())
    drawn = torch.randint(VOCAB, (COUNT, LENGTH), generator=torch.Generator().manual_seed(3))
    prompts = [Prompt("random", i, tuple(drawn[i].tolist())) for i in range(COUNT)]
    method = solvers()[name].configured(SETTINGS.get(name, {}))
    hidden = method.hidden[0] if method.hidden else 2  # what the evidence leaves open tells most
    shown = Slice(hidden)
    question = Question({name: method}, (shown,), layers=(1,), shuffled=True)
    jobs = plan(checkpoint, question, prompts, "toy:2000")
    rows = [row for job in jobs if job.cells[0].control == SHUFFLED for row in job.rows()]
    assert len(rows) == COUNT
    hits = others = 0
    for row in rows:
        other = prompts[(row["prompt"] + 1) % COUNT].tokens
        hits += sum(a == b for a, b in zip(row["found"], row["truth"], strict=True))
        others += sum(a == b for a, b in zip(row["found"][hidden:], other[hidden:], strict=True))
        assert not row["exact"]
    assert hits <= 2  # of 40; 0.1 expected
    ranks = [rank for row in rows for rank in row["rank"]]
    assert 130 < sum(ranks) / len(ranks) < 270  # 199.5 by chance; standard error 18
    assert sum(rank < 5 for rank in ranks) <= 4
    if name == "chance":
        assert others <= 2
    else:
        assert others >= 0.8 * COUNT * (LENGTH - hidden)
