"""What answers keep: a few numbers a token, however large the vocabulary and the batch."""

from dataclasses import fields
from typing import Any

import pytest
import torch

from arch import LanguageModel
from eval.circuit import Circuit
from eval.inversion.answer import COLLISIONS, Answer
from eval.inversion.batch import Batch
from eval.inversion.problem import pose
from eval.inversion.solvers import Tools, solvers
from eval.ranks import token_ranks
from eval.slices import Slice
from tests.eval.inversion.search_cases import chance, lexicon, prompts, readbacks

LENGTH, COUNT = 6, 4
FEW: dict[str, dict[str, Any]] = {
    "arca": {"sweeps": 2, "samples": 2, "top": 8},
    "gcg": {"steps": 20, "width": 8, "check": 5},
    "levenberg": {"steps": 4},
    "alternating": {"starts": 2, "rounds": 1},
    "snap": {"steps": 20, "resolve": 20},
}


def solve(name: str, model: LanguageModel, ranked: bool) -> tuple[list[Answer], torch.Tensor]:
    method, truth = solvers()[name], prompts(COUNT, LENGTH)
    settings = FEW.get(name) or ({"steps": 20} if "steps" in method.settings else {})
    if "check" in method.settings:  # a check a step: each could pin a batch of its own
        settings = {"check": 1} | settings
    circuit = Circuit(model, 1)
    problem = pose(circuit, truth, Slice(method.hidden[0] if method.hidden else 0), ranked=ranked)
    tools = Tools(lexicon, truth, readbacks)
    return method.configured(settings).answer(Batch((problem,)), chance(COUNT), tools), truth


@pytest.mark.parametrize("name", list(solvers()))
def test_answers_keep_ranks_and_no_scores(small_model, name):
    model = small_model()
    answers, truth = solve(name, model, ranked=True)
    kept = {}
    for answer in answers:
        for field in fields(answer):
            value = getattr(answer, field.name)
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                kept[storage.data_ptr()] = storage.nbytes()
        assert all(len(tokens) <= COLLISIONS for tokens in answer.collisions.values())
    # tokens, ranks and distances of each token; not the 1,600 bytes of its scores
    assert sum(kept.values()) <= 8 * 3 * COUNT * LENGTH
    scored, _ = solve(name, model, ranked=False)
    for answer, whole, tokens in zip(answers, scored, truth, strict=True):
        assert answer.tokens.equal(whole.tokens)
        assert whole.scores.untyped_storage().nbytes() == 4 * LENGTH * 400
        assert answer.ranks is not None
        assert answer.ranks.equal(token_ranks(whole.scores, tokens, whole.tokens))
