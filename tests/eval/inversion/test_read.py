"""Reading by a fitted linear map: exact, each layer by its own stream, few waits for the device."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eval.circuit import Circuit
from eval.inversion.problem import Batch, measure, measure_layers, pose
from eval.inversion.questions import Question
from eval.inversion.run import plan
from eval.inversion.search.read import read
from eval.inversion.solvers import parse_solvers
from eval.models import open_checkpoint
from eval.rows import Results
from eval.slices import Slice
from eval.text import Prompt
from tests.conftest import VOCAB
from tests.eval.inversion.search_cases import readbacks

P, T = 3, 7
LAYERS = (1, 2)


def drawn(count=P, length=T, seed=1):
    return torch.randint(VOCAB, (count, length), generator=torch.Generator().manual_seed(seed))


def problems(model, tokens, layers=LAYERS, shown=":"):
    slice_ = Slice.parse(f"[:, :, {shown}]")
    return [pose(Circuit(model, layer), tokens, slice_) for layer in layers]


def answers(asked, spoilt=False, **settings):
    fits = readbacks([problem.circuit for problem in asked])
    if spoilt:
        for fit in fits:
            for name in ("slopes", "first.slopes"):
                fit.tensors[name] = torch.randn_like(fit.tensors[name])
    return read(Batch(tuple(asked)), [], lambda _: fits, **settings)


def tokens_of(given):
    return torch.stack([answer.tokens for answer in given]).view(-1, *drawn().shape)


@pytest.mark.parametrize("mixer", ["flat", "attention(heads=2)"])
@pytest.mark.parametrize("shown", [":", "4:20"])
@pytest.mark.parametrize("spoilt", [False, True])
def test_every_token_is_proved_whatever_the_guesses_are_worth(mixer, shown, spoilt, small_model):
    truth = drawn()
    given = answers(problems(small_model(mixers=(mixer,)), truth, shown=shown), spoilt)
    assert tokens_of(given).equal(truth.expand(len(LAYERS), -1, -1))
    assert all(answer.certificate == "residual" for answer in given)
    most = max(answer.evaluations for answer in given)
    assert (most > VOCAB) == spoilt


def test_a_layer_is_read_by_its_own_stream_alone(small_model):
    """With other prompts' streams in the other layers, nothing of a layer's answers changes."""
    truth, depth = drawn(), 4
    asked = problems(
        small_model(n_layers=depth, mixers=("attention(heads=2)",)), truth, range(1, 5)
    )
    plain = answers(asked)
    for layer in range(depth):
        mixed = [each if i == layer else each.of([1, 2, 0]) for i, each in enumerate(asked)]
        changed = answers(mixed)
        for p in range(P):
            before, after = plain[layer * P + p], changed[layer * P + p]
            assert before.tokens.equal(after.tokens)
            assert before.certificate == after.certificate == "residual"
            size = before.scores.abs().max()
            torch.testing.assert_close(before.scores / size, after.scores / size, atol=1e-3, rtol=0)


class _Waits(TorchDispatchMode):
    """Counts what makes the host wait for the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")
        self.count += func.name().startswith(names)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("count", [2, 5])
def test_the_host_does_not_wait_at_each_position(count, small_model):
    def waits(length):
        asked = problems(small_model(), drawn(count, length))
        with _Waits() as counted:
            assert all(answer.certificate for answer in answers(asked, shortlist=32))
        return counted.count

    assert waits(20) == waits(5)


def test_layers_are_measured_together_as_alone(small_model):
    model, truth = small_model(n_layers=3), drawn()
    circuits = [Circuit(model, layers) for layers in (1, (1, 3), 3)]
    for circuit, together in zip(circuits, measure_layers(circuits, truth), strict=True):
        alone = measure(circuit, truth)
        torch.testing.assert_close(together.outputs, alone.outputs)
        assert together.apart.shape == alone.apart.shape


def test_fits_are_kept_and_rows_count_tokens(model_directory, tmp_path):
    path = model_directory(mixers=("attention(heads=2)",))
    drawn_prompts = [Prompt("random", i, tuple(row)) for i, row in enumerate(drawn(2).tolist())]

    def rows(out):
        checkpoint = open_checkpoint(path)
        question = Question(parse_solvers(["read"]), layers=LAYERS)
        jobs = plan(checkpoint, question, drawn_prompts, "toy:2000")
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
