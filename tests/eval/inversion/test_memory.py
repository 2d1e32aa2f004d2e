"""Memory grows with the model, not with layers, prompts or answers; passes are shared."""

import os
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
from eval.models import candidates_at_once, host_memory, open_checkpoint, rows_at_once
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


@pytest.mark.parametrize("name", ["adam", "sweep", "gcg"])
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


def test_a_batch_is_what_the_container_leaves(model_directory, monkeypatch):
    checkpoint = open_checkpoint(model_directory())
    monkeypatch.setattr("eval.models.host_memory", lambda: 1 << 22)
    assert 1 <= rows_at_once(checkpoint.model, 32) < 64


GB = 1 << 30
UNLIMITED = 9223372036854771712  # as version 1 says it


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {}, 64 * GB),
        ("0::/", {"": ("max", 3 * GB, GB)}, 64 * GB),
        ("0::/", {"": (8 * GB, 3 * GB, GB)}, 6 * GB),  # a container's root
        ("0::/a/b", {"a/b": ("max", 0, 0), "a": (8 * GB, 7 * GB, 0)}, GB),
        ("0::/a/b", {"a/b": (2 * GB, 0, 0), "a": (8 * GB, 7 * GB, 0)}, GB),
        ("0::/a/b", {"a/b": (2 * GB, GB // 2, 0), "a": (8 * GB, GB, 0)}, 3 * GB // 2),
        ("0::/a", {"a": (GB, 2 * GB, 0)}, 0),
        ("0::/a", {"other": (GB, 0, 0)}, 64 * GB),
        ("4:memory:/d\n0::/", {"memory": (UNLIMITED, GB, 0)}, 64 * GB),
        ("4:memory:/d\n0::/", {"memory": (UNLIMITED, GB, 0), "memory/d": (4 * GB, GB, 0)}, 3 * GB),
        # the file system shows the container its own group as the root
        ("4:memory:/docker/1\n3:cpu:/", {"memory": (4 * GB, 3 * GB, GB)}, 2 * GB),
    ],
)
def test_a_container_s_limit_is_the_machine_s_memory(
    tmp_path, monkeypatch, groups, files, expected
):
    page = {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 1 << 24}
    monkeypatch.setattr("os.sysconf", page.get)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups + "\n")
    for group, values in files.items():
        place = tmp_path / "sys" / "fs" / "cgroup" / group
        place.mkdir(parents=True, exist_ok=True)
        first = group.startswith("memory")
        names = ("limit_in_bytes", "usage_in_bytes") if first else ("max", "current")
        for name, value in zip(names, values, strict=False):
            (place / f"memory.{name}").write_text(f"{value}\n")
        dropped = "total_inactive_file" if first else "inactive_file"
        (place / "memory.stat").write_text(f"anon 5\n{dropped} {values[2]}\nfile 7\n")
    assert host_memory(tmp_path) == expected


def test_without_control_groups_the_machine_s_memory_counts(tmp_path):
    assert host_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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


PROMPTS, SHORT, DEEP = 100, 2, 3


@pytest.mark.parametrize("done", [0, 90])
def test_layers_share_passes_at_many_prompts(model_directory, tmp_path, done):
    """Tokens that enter the first block, less those of measuring, which a control needs too."""
    checkpoint = open_checkpoint(model_directory(n_layers=DEEP))
    drawn = prompts(PROMPTS, SHORT, seed=3).tolist()
    asked = [Prompt("random", i, tuple(tokens)) for i, tokens in enumerate(drawn)]
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
        jobs = plan(checkpoint, question, asked, "toy:2000")
        rows = [row for job in jobs for row in job.run(results)]
        assert len(rows) == PROMPTS * len(layers) - len(there)
        assert all(row["exact"] for row in rows if method == "sweep")
        assert len({row["key"] for row in rows}) == len(rows)
        return entered

    every = tuple(range(1, DEEP + 1))
    question = Question(parse_solvers(["sweep"]), layers=every)
    jobs = plan(checkpoint, question, asked, "toy:2000")
    cells = [(job, cell) for job in jobs for cell in job.cells]
    there = {job.key(cell) for job, cell in cells if cell.prompt.index >= PROMPTS - done
             and cell.site.layers == (1,)}  # fmt: skip
    measuring = tokens("chance", every, set())
    one = tokens("sweep", (DEEP,), set()) - tokens("chance", (DEEP,), set())
    together = tokens("sweep", every, there) - measuring
    assert together < 1.4 * one
