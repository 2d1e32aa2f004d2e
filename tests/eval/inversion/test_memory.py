"""Memory grows with the model, not with layers, prompts or answers; passes are shared."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import pytest
import torch

from eval.circuit import Circuit
from eval.inversion.answer import COLLISIONS
from eval.inversion.problem import ACCEPT, Batch, measure
from eval.inversion.questions import Question
from eval.inversion.run import plan
from eval.inversion.solvers import Tools, parse_solvers, solvers
from eval.models import open_checkpoint
from eval.ranks import token_ranks
from eval.recovery import Slice
from eval.rows import Results
from eval.tasks import run_tasks
from eval.text import Prompt, random_prompts
from tests.eval.inversion.search_cases import chance, posed, prompts, readback


def jobs(checkpoint, methods, batch=None):
    prompts = random_prompts(checkpoint.tokenizer, 2, 4)
    question = Question(parse_solvers(methods), (Slice(0),))
    return plan(checkpoint, question, prompts, "toy:2000", batch)


def test_a_deep_model_is_inverted_once(model_directory, tmp_path, monkeypatch):
    checkpoint = open_checkpoint(model_directory(n_layers=8, d_model=16))
    inverses, inverse = [], torch.linalg.pinv
    monkeypatch.setattr(torch.linalg, "pinv", lambda x: inverses.append(x) or inverse(x))
    run_tasks(jobs(checkpoint, {"descent": {"steps": 2}}), Results(tmp_path), "inverting")
    assert len(inverses) == 1
    assert not checkpoint.kept


@pytest.mark.parametrize("name", ["adam", "sweep"])
def test_rows_are_dealt_out_to_batches(model_directory, name):
    checkpoint, found = open_checkpoint(model_directory()), []
    settings = {name: {} if name == "sweep" else {"steps": 5}}
    for batch in (None, 1):
        rows = [row for job in jobs(checkpoint, settings, batch) for row in job.rows()]
        alone = 2 if name == "sweep" else 1  # all layers of a prompt share a pass
        assert {row["batch"] for row in rows} == {4 if batch is None else alone}
        found.append({row["key"]: (row["found"], row["rank"]) for row in rows})
    assert found[0] == found[1]


def test_floors_are_measured_in_passes_that_the_memory_bears(small_model, monkeypatch):
    truth, passes = prompts(12, 8), []

    def measured(memory):
        monkeypatch.setattr("eval.models.host_memory", lambda: memory)
        model, passes[:] = small_model(mixers=("attention(heads=2)",)), []
        model.blocks[0].register_forward_pre_hook(lambda _, x: passes.append(x[0].shape[:2]))
        mixer = model.blocks[0].token_mixer
        step = mixer.step
        monkeypatch.setattr(mixer, "step", lambda x, s: passes.append(x.shape[:2]) or step(x, s))
        circuit = Circuit(model, 2)
        return circuit, measure(circuit, truth), max(rows * length for rows, length in passes)

    circuit, whole, most = measured(1 << 34)
    _, parts, fewest = measured(1 << 22)
    assert most == 12 * 64
    assert fewest == 64
    torch.testing.assert_close(parts.outputs, whole.outputs)
    assert parts.apart.shape == whole.apart.shape
    limit = ACCEPT * parts.floor(Slice())
    for size in (1, 5, 31):  # computed in another batch, the truth still lies within the limit
        again = circuit.of_tokens(truth.repeat(size, 1))[:12]
        assert ((again - parts.outputs).norm(dim=-1) <= limit).all()


LENGTH, COUNT = 6, 4
FEW: dict[str, dict[str, Any]] = {
    "gcg": {"steps": 20},
    "alternating": {"starts": 2, "rounds": 1},
    "snap": {"steps": 20, "resolve": 20},
}


@pytest.mark.parametrize("name", list(solvers()))
def test_answers_keep_ranks_and_no_scores(small_model, name, monkeypatch):
    method, truth, model = solvers()[name], prompts(COUNT, LENGTH), small_model()
    settings = FEW.get(name) or ({"steps": 20} if "steps" in method.settings else {})
    monkeypatch.setattr("eval.inversion.gradient.loop.CHECK", 1)  # each could pin a batch
    shown = f"[:, {method.hidden[0] if method.hidden else 0}:, :]"
    batch = Batch((posed(model, truth, shown, 1),))
    tools = Tools(truth, lambda circuits: list(map(readback, circuits)))
    answers = method.configured(settings).answer(batch, chance(COUNT), tools)
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
    given = {need: getattr(tools, need) for need in method.needs}
    scored = method.function(batch, chance(COUNT), **given, **settings)
    for answer, whole, tokens in zip(answers, scored, truth, strict=True):
        assert answer.tokens.equal(whole.tokens)
        assert answer.ranks is not None
        assert answer.ranks.equal(token_ranks(whole.scores, tokens, whole.tokens))


PROMPTS, DEEP = 100, 3


@pytest.mark.parametrize("done", [0, 90])
def test_layers_share_passes_at_many_prompts(model_directory, tmp_path, done):
    """Tokens that enter the first block, less those of measuring, which a control needs too."""
    checkpoint = open_checkpoint(model_directory(n_layers=DEEP))
    drawn = prompts(PROMPTS, 2, seed=3).tolist()
    asked = [Prompt("random", i, tuple(tokens)) for i, tokens in enumerate(drawn)]
    results, entered, every = Results(tmp_path), [], tuple(range(1, DEEP + 1))
    block: Any = checkpoint.model.blocks[0]
    block.channel_mixer.register_forward_hook(
        lambda module, inputs, output: entered.append(inputs[0].shape[0] * inputs[0].shape[1])
    )

    def planned(method, layers):
        question = Question(parse_solvers([method]), layers=layers)
        return plan(checkpoint, question, asked, "toy:2000")

    def tokens(method, layers, there: Collection[str] = ()):
        entered.clear()
        results.keys = set(there)
        rows = [row for job in planned(method, layers) for row in job.run(results)]
        assert len({row["key"] for row in rows}) == PROMPTS * len(layers) - len(there)
        assert all(row["exact"] for row in rows if method == "sweep")
        return sum(entered)

    cells = [(job, cell) for job in planned("sweep", every) for cell in job.cells]
    there = {job.key(cell) for job, cell in cells if cell.prompt.index >= PROMPTS - done
             and cell.site.layers == (1,)}  # fmt: skip
    one = tokens("sweep", (DEEP,)) - tokens("chance", (DEEP,))
    assert tokens("sweep", every, there) - tokens("chance", every) < 1.4 * one
