"""Memory grows with the model, not with layers, prompts or answers; passes are shared."""

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from eval.circuit import Circuit
from eval.inversion.ask import Question, plan
from eval.inversion.problem import ACCEPT, capture
from eval.inversion.solver import COLLISIONS, ask_solver, parse_solvers, solvers
from eval.models import open_checkpoint
from eval.ranks import token_ranks
from eval.rows import Results
from eval.slices import Slice
from eval.tasks import run_tasks
from eval.text import Prompt, random_prompts
from tests.eval.inversion.search_cases import chance, posed, prompts, readback


def jobs(checkpoint, methods, batch=None):
    prompts = random_prompts(checkpoint.tokenizer, 2, 4)
    question = Question(tuple(parse_solvers(methods)), (Slice(0),))
    return plan(checkpoint, question, prompts, "toy:2000", batch)


def test_a_deep_model_is_inverted_once(model_directory, tmp_path, monkeypatch):
    checkpoint = open_checkpoint(model_directory(n_layers=8, d_model=16))
    inverses, inverse = [], torch.linalg.pinv
    monkeypatch.setattr(torch.linalg, "pinv", lambda x: inverses.append(x) or inverse(x))
    run_tasks(jobs(checkpoint, {"descent": {"steps": 2}}), Results(tmp_path), "inverting")
    assert len(inverses) == 1


def test_what_is_kept_of_a_model_goes_when_the_next_is_asked(model_directory, tmp_path):
    first, second = (open_checkpoint(model_directory(step=step)) for step in (0, 5))
    asked = [job for each in (first, second) for job in jobs(each, {"propose": {}})]
    run_tasks(asked, Results(tmp_path), "inverting")
    assert not first.kept
    assert second.kept  # a caller that asks it again finds its read-backs


@pytest.mark.parametrize("name", ["adam", "propose"])
def test_rows_are_dealt_out_to_batches(model_directory, name):
    checkpoint, found = open_checkpoint(model_directory()), []
    settings = {name: {} if name == "propose" else {"steps": 5}}
    for batch in (None, 1):
        rows = [row for job in jobs(checkpoint, settings, batch) for row in job.rows()]
        layers = 2 if name == "propose" else 1  # all layers of a prompt share a pass
        assert {row["batch"] for row in rows} == {layers * (2 if batch is None else 1)}
        found.append({row["key"]: (row["found"], row["rank"]) for row in rows})
    assert found[0] == found[1]


def test_floors_are_measured_in_passes_that_the_memory_bears(small_model, monkeypatch):
    truth, passes = prompts(12, 8), []

    def measured(memory):
        monkeypatch.setattr("eval.memory.host_memory", lambda: memory)
        model, passes[:] = small_model(mixers=("attention(heads=2)",)), []
        model.blocks[0].register_forward_pre_hook(lambda _, x: passes.append(x[0].shape[:2]))
        mixer = model.blocks[0].token_mixer
        step = mixer.step
        monkeypatch.setattr(mixer, "step", lambda x, s: passes.append(x.shape[:2]) or step(x, s))
        circuit = Circuit(model, 2)
        (captured,) = capture([circuit], truth)
        return circuit, *captured, max(rows * length for rows, length in passes)

    circuit, whole, _, most = measured(1 << 34)
    _, parts, rounding, fewest = measured(1 << 22)
    assert most == 12 * 64
    assert fewest == 64
    torch.testing.assert_close(parts, whole)
    limit = ACCEPT * rounding.norm(dim=-1)
    for size in (1, 5, 31):  # computed in another batch, the truth still lies within the limit
        again = circuit.of_tokens(truth.repeat(size, 1))[:12]
        assert ((again - parts).norm(dim=-1) <= limit).all()


LENGTH, COUNT = 6, 4
FEW: dict[str, dict[str, Any]] = {
    "alternating": {"starts": 2, "rounds": 1},
    "snap": {"steps": 20, "resolve": 20},
}


@pytest.mark.parametrize("name", list(solvers()))
def test_answers_keep_ranks_and_no_scores(small_model, name, monkeypatch):
    method, truth, model = solvers()[name], prompts(COUNT, LENGTH), small_model()
    settings = FEW.get(name) or ({"steps": 20} if "steps" in method.settings else {})
    monkeypatch.setattr("eval.inversion.descend.CHECK", 1)  # each could pin a batch
    shown = f"[:, {method.hidden[0] if method.hidden else 0}:, :]"
    problem = replace(posed(model, truth, shown, 1), readbacks=lambda c: list(map(readback, c)))
    (answers,) = ask_solver(method.configured(settings), [problem], chance(COUNT), truth)
    values = [getattr(each, field.name) for each in answers for field in fields(each)]
    storages = [v.untyped_storage() for v in values if isinstance(v, torch.Tensor)]
    kept = {storage.data_ptr(): storage.nbytes() for storage in storages}
    # tokens, ranks and distances of each token; not the 1,600 bytes of its scores
    vectors = 4 * COUNT * LENGTH * 32 * (name == "descent")
    assert sum(kept.values()) <= 8 * 3 * COUNT * LENGTH + vectors
    given = [problem] if method.layers else problem
    scored = method.function(given, chance(COUNT), **settings)
    for each, whole, tokens in zip(answers, scored, truth, strict=True):
        assert each.tokens.equal(whole.tokens)
        assert each.ranks is not None
        assert each.ranks.equal(token_ranks(whole.scores, tokens, whole.tokens))
        assert all(len(tokens) <= COLLISIONS for tokens in each.collisions.values())


PROMPTS, LAYERS = 100, (1, 2, 3)


@pytest.mark.parametrize("done", [0, 90])
def test_layers_share_passes_at_many_prompts(model_directory, tmp_path, done):
    """Tokens that enter the first block, less those of measuring, which a control needs too."""
    checkpoint = open_checkpoint(model_directory(n_layers=3))
    drawn = prompts(PROMPTS, 2, seed=3).tolist()
    asked = [Prompt("random", i, tuple(tokens)) for i, tokens in enumerate(drawn)]
    results, entered = Results(tmp_path), []
    block: Any = checkpoint.model.blocks[0]
    block.channel_mixer.register_forward_hook(
        lambda module, inputs, output: entered.append(inputs[0].shape[0] * inputs[0].shape[1])
    )

    def planned(method, layers):
        question = Question(tuple(parse_solvers({method: {}})), layers=layers)
        return plan(checkpoint, question, asked, "toy:2000")

    def tokens(method, layers, there: Collection[str] = ()):
        entered.clear()
        results.keys = set(there)
        rows = [row for job in planned(method, layers) for row in job.run(results)]
        assert len({row["key"] for row in rows}) == PROMPTS * len(layers) - len(there)
        assert all(row["exact"] for row in rows if method == "propose")
        return sum(entered)

    there = {
        task.key(site, asked)
        for task in planned("propose", LAYERS)
        for site in task.sites
        for asked in task.asked
        if asked.prompt.index >= PROMPTS - done and site.layers == (1,)
    }
    one = tokens("propose", (3,)) - tokens("chance", (3,))
    assert tokens("propose", LAYERS, there) - tokens("chance", LAYERS) < 1.6 * one
