"""A sweep of several layers runs each prompt once, however many prompts there are."""

import pytest
import torch

from eval.inversion.questions import Question
from eval.inversion.run import plan
from eval.inversion.solvers import parse_solvers
from eval.models import open_checkpoint
from eval.rows import Results
from eval.text import Prompt

COUNT, LENGTH, DEPTH = 100, 2, 3


@pytest.mark.parametrize("done", [0, 90])
def test_layers_share_passes_at_many_prompts(model_directory, tmp_path, done):
    """Tokens that enter the first block, less those of measuring, which a control needs too."""
    checkpoint = open_checkpoint(model_directory(n_layers=DEPTH))
    drawn = torch.randint(400, (COUNT, LENGTH), generator=torch.Generator().manual_seed(3))
    prompts = [Prompt("random", i, tuple(drawn[i].tolist())) for i in range(COUNT)]
    results = Results(tmp_path)
    entered = 0

    def count(module, inputs, output):
        nonlocal entered
        entered += inputs[0].shape[0] * inputs[0].shape[1]

    checkpoint.model.blocks[0].channel_mixer.register_forward_hook(count)  # pyright: ignore

    def tokens(method, layers, there):
        nonlocal entered
        entered = 0
        question = Question(parse_solvers([method]), layers=layers)
        results.keys = there
        jobs = plan(checkpoint, question, prompts, "toy:2000")
        rows = [row for job in jobs for row in job.run(results)]
        assert len(rows) == COUNT * len(layers) - len(there)
        assert all(row["exact"] for row in rows if method == "sweep")
        assert len({row["key"] for row in rows}) == len(rows)
        return entered

    every = tuple(range(1, DEPTH + 1))
    question = Question(parse_solvers(["sweep"]), layers=every)
    jobs = plan(checkpoint, question, prompts, "toy:2000")
    cells = [(job, cell) for job in jobs for cell in job.cells]
    there = {job.key(cell) for job, cell in cells if cell.prompt.index >= COUNT - done
             and cell.site.layers == (1,)}  # fmt: skip
    measuring = tokens("chance", every, set())
    one = tokens("sweep", (DEPTH,), set()) - tokens("chance", (DEPTH,), set())
    together = tokens("sweep", every, there) - measuring
    assert together < 1.4 * one
