"""Reading by a fitted linear map: exact, each layer by its own stream, few waits for the device."""

import pytest
import torch

from eval.circuit import Circuit
from eval.inversion.ask import Question, plan
from eval.inversion.problem import capture
from eval.inversion.solver import parse_solvers
from eval.models import open_checkpoint
from eval.rows import Results
from eval.text import Prompt
from tests.conftest import VOCAB
from tests.eval.inversion.search_cases import (
    MIXERS,
    Waits,
    misread,
    posed,
    prompts,
    readback,
    solve,
    tokens_of,
)

P, T = 3, 7
LAYERS = (1, 2)
ALL_MIXERS = [*MIXERS, "expanded(factor=2)", "parallel(branches=2)", "headed(heads=2)"]


def problems(model, tokens, layers=LAYERS):
    return [posed(model, tokens, "[:, :, :]", layer) for layer in layers]


@pytest.mark.parametrize(
    ("mixer", "sites", "shown", "guesses"),
    [
        *((mixer, [(0,), (1,), (2,)], "[:, :, :]", readback) for mixer in ALL_MIXERS),
        *((mixer, [(0,), (1,), (2,)], "[:, :, 4:20]", misread) for mixer in MIXERS),
        *(("attention+flat", [(2, part), ((1, 2), part)], shown, readback)
          for part in ("mixer", "stream") for shown in ("[:, :, :]", "[:, :, :12]")),
    ],
)  # fmt: skip
def test_every_token_is_proved_whatever_the_guesses_are_worth(
    mixer, sites, shown, guesses, small_model
):
    truth, model = prompts(P, T), small_model(mixers=(mixer,))
    given = solve("propose", [posed(model, truth, shown, *site) for site in sites], guesses)
    assert tokens_of(given).equal(truth.repeat(len(sites), 1))
    assert all(answer.certificate == "residual" for answer in given)
    most = max(answer.evaluations for answer in given)
    if len(sites[0]) == 1:  # of a part of the block the map says less
        assert (most > VOCAB) == (guesses is misread)


def test_a_layer_is_read_by_its_own_stream_alone(small_model):
    """With other prompts' streams in the other layers, nothing of a layer's answers changes."""
    model = small_model(n_layers=4, mixers=("attention(heads=2)",))
    asked = problems(model, prompts(P, T), range(1, 5))
    plain = solve("propose", asked)
    for layer in range(4):
        mixed = [each if i == layer else each.of([1, 2, 0]) for i, each in enumerate(asked)]
        changed = solve("propose", mixed)
        for row in range(layer * P, layer * P + P):
            before, after = plain[row], changed[row]
            assert before.tokens.equal(after.tokens)
            assert before.certificate == after.certificate == "residual"
            size = before.scores.abs().max()
            torch.testing.assert_close(before.scores / size, after.scores / size, atol=1e-3, rtol=0)


@pytest.mark.parametrize("solver", ["propose", "sweep"])
def test_the_host_does_not_wait_for_each_position_or_prompt(solver, small_model, monkeypatch):
    monkeypatch.setattr("eval.inversion.solvers.propose.SHORTLIST", 32)

    def waits(count, length):
        asked = problems(small_model(), prompts(count, length))
        fits = {problem.circuit: readback(problem.circuit) for problem in asked}
        with Waits() as counted:
            answers = solve(solver, asked, fits.__getitem__)
        assert all(answer.certificate for answer in answers)
        return counted.count

    assert waits(2, 5) == waits(2, 20) == waits(5, 5) < 10


def test_layers_are_measured_together_as_alone(small_model):
    model, truth = small_model(n_layers=3), prompts(P, T)
    circuits = [Circuit(model, layers) for layers in (1, (1, 3), 3)]
    for circuit, (outputs, rounding) in zip(circuits, capture(circuits, truth), strict=True):
        ((alone, _),) = capture([circuit], truth)
        torch.testing.assert_close(outputs, alone)
        assert rounding.shape == alone.shape


def test_fits_are_kept_and_rows_count_tokens(model_directory, tmp_path):
    path = model_directory(mixers=("attention(heads=2)",))
    drawn = [Prompt("random", i, tuple(row)) for i, row in enumerate(prompts(2, T).tolist())]

    def rows(out):
        question = Question(tuple(parse_solvers({"propose": {}})), layers=LAYERS)
        jobs = plan(open_checkpoint(path), question, drawn, "toy:2000")
        return [row for job in jobs for row in job.run(Results(out))]

    first = rows(tmp_path / "out")
    artefacts = sorted((tmp_path / "out" / "artefacts").glob("*.safetensors"))
    written = [file.stat().st_mtime_ns for file in artefacts]
    assert len(artefacts) == len(LAYERS)
    again = rows(tmp_path / "out")
    assert [file.stat().st_mtime_ns for file in artefacts] == written
    for a, b in zip(first, again, strict=True):
        assert (a["exact"], a["at_floor"], a["certificate"]) == (True, True, "residual")
        assert a["evaluations"] == b["evaluations"] > 0
        assert a["notes"].keys() == {"alone", "swept"}
