"""With the target of another prompt every solver finds that prompt's tokens, never the truth's."""

import pytest

from eval.inversion.ask import Question, plan
from eval.inversion.solver import solvers
from eval.models import open_checkpoint
from eval.schema import SHUFFLED
from eval.slices import Slice
from eval.text import Prompt
from tests.eval.inversion.search_cases import QUICK, prompts

COUNT, LENGTH = 8, 5


@pytest.mark.parametrize("name", list(solvers()))
def test_a_shuffled_target_leaves_the_truth_at_chance(model_directory, name):
    checkpoint = open_checkpoint(model_directory())
    drawn = prompts(COUNT, LENGTH, seed=3).tolist()
    asked = [Prompt("random", i, tuple(tokens)) for i, tokens in enumerate(drawn)]
    method = solvers()[name].configured(QUICK.get(name, {}))
    hidden = method.hidden[0] if method.hidden else 2  # what the evidence leaves open tells most
    question = Question((method,), (Slice(hidden),), layers=(1,), shuffled=True)
    tasks = plan(checkpoint, question, asked, "toy:2000")
    rows = [row for task in tasks for row in task.rows() if row["control"] == SHUFFLED]
    assert len(rows) == COUNT
    hits = others = 0
    for row in rows:
        other = drawn[(row["prompt"] + 1) % COUNT]
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
