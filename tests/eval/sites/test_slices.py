"""What is shown of a site, and how exact it is: slices, floors, noise, causality, memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eval import RequestError
from eval.inversion.problem import pose
from eval.sites.circuit import Circuit
from eval.sites.rounding import ACCEPT, capture
from eval.sites.slices import Slice
from tests.eval.inversion.search_cases import generators, posed, prompts


def bounds() -> st.SearchStrategy[str]:
    some = st.integers(-9, 9).map(str)
    ends = st.one_of(st.just(""), some)
    return st.one_of(some, st.tuples(ends, ends).map(":".join))


def chosen(text: str, length: int) -> list[int]:
    """What Python chooses of so many, in order, by one range or by several joined with +."""
    kept: set[int] = set()
    for part in text.split("+"):
        if ":" in part:
            low, high = (int(bound) if bound else None for bound in part.split(":"))
            kept |= set(range(length)[low:high])
        else:
            index = int(part)
            kept |= set(range(length)[index : index + 1 if index != -1 else None])
    return sorted(kept)


@given(st.lists(bounds(), min_size=1, max_size=3).map("+".join), bounds())
def test_slices_are_pythons(rows, columns):
    """Whatever can be written selects what Python selects, and reads back as itself."""
    parsed = Slice.parse(f"[:, {rows}, {columns}]")
    site = torch.arange(1 * 7 * 5).view(1, 7, 5)
    shown = chosen(rows, 7)
    assert Slice.parse(str(parsed)) == parsed
    if shown:
        expected = site[0].numpy().take(shown, axis=0).take(chosen(columns, 5), axis=1)
        assert parsed.select(site)[0].tolist() == expected.tolist()
        assert parsed.positions(7) == shown
        assert parsed.hidden(7) == sum(t not in shown for t in range(shown[-1]))
        again = Slice.of(shown, 7)
        assert again.positions(7) == shown
        assert str(Slice.of(Slice.parse(str(again)).positions(7), 7)) == str(again)
    else:
        with pytest.raises(RequestError, match="shows nothing"):
            parsed.positions(7)


def test_runs_are_the_problem_up_to_each_hole(small_model):
    truth = prompts()
    problem = posed(small_model(), truth, "[:, 1:3+4:7, 2:9]")
    first, second = problem.runs()
    assert [str(first.slice), str(second.slice)] == ["[:, 1:, 2:9]", "[:, 4:, 2:9]"]
    assert [first.length, second.length] == [3, 7]
    assert torch.cat([first.target, second.target], dim=1).equal(problem.target)
    assert all(run.residual(truth[:, : run.length])[1].all() for run in (first, second))
    visible = truth[0, problem.positions]
    assert problem.whole(truth[:1, [0, 3]], visible).equal(truth[:1, :7])


@pytest.mark.parametrize(
    "text",
    ["", "3:", "[3:]", "[:, a:, :]", "[:, 1:2:3, :]", "[:, , :]", "[:, -, :]", "[:, :, :, :]",
     "[:, 3+, :]", "[:, +3, :]", "[:, :, 1+3]", "[1, :, :]", "[:, :]", "[:, 1.5, :]"],
)  # fmt: skip
def test_unknown_slices_are_refused(text):
    with pytest.raises(RequestError, match=r"slice .* cannot be read; allowed: \[:, k:, :\]"):
        Slice.parse(text)


@pytest.mark.parametrize(
    ("text", "site", "shape", "size"),
    [("[:, 2:, :]", (2,), (3, 6, 32), (8, 2)), ("[:, -1, :]", (2,), (3, 1, 32), (8, 7)),
     ("[:, :4, 3:9]", (2,), (3, 4, 6), (4, 0)), ("[:, 1:3, -1]", (2,), (3, 2, 1), (3, 1)),
     ("[:, 3, :]", (2,), (3, 1, 32), (4, 3)), ("[:, :2+4:6, :]", (2,), (3, 4, 32), (6, 2)),
     ("[:, :2+5:, :4]", (2,), (3, 5, 4), (8, 3)), ("[:, :, 30:40]", ((1, 2),), (3, 8, 10), (8, 0)),
     ("[:, :, :]", (2, "block", frozenset({"mask"})), (3, 8, 32), (8, 0))],
)  # fmt: skip
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_what_is_shown_is_the_slice(small_model, text, site, shape, size, noise):
    truth = prompts()
    problem = posed(small_model(mixers=("attention",)), truth, text, *site, noise=noise)
    expected = Slice.parse(text).select(problem.circuit.of_tokens(truth))
    truth = truth[:, : problem.length]
    assert (problem.length, problem.hidden) == size
    assert problem.target.shape == expected.shape == shape
    assert problem.tolerance.floor.shape == problem.tolerance.limit.shape == expected.shape[:2]
    rounding = float(problem.tolerance.floor.max())
    if not noise:
        assert problem.target.allclose(expected, atol=rounding)
        assert problem.tolerance.limit.equal(ACCEPT * problem.tolerance.floor)
    distance, within = problem.residual(truth)
    assert within.all()
    moved = (problem.target - expected).flatten(1).norm(dim=1)
    assert distance.allclose(moved, atol=ACCEPT * rounding)
    parts = problem.of([2, 0])
    assert parts.target.equal(problem.target[[2, 0]])
    assert parts.residual(truth[[2, 0]])[1].all()


def test_noise_is_as_large_as_promised_and_allowed_for(small_model):
    model, truth, noise = small_model(), prompts(count=16, length=24), 0.3
    exact, noisy = posed(model, truth), posed(model, truth, noise=noise)
    circuit = noisy.circuit
    added = noisy.target - exact.target
    scale = exact.target.norm(dim=-1) / 32**0.5  # root mean square of a position
    relative = added / scale[..., None]
    assert float(relative.std()) == pytest.approx(noise, rel=0.03)
    assert float(relative.mean()) == pytest.approx(0, abs=0.01)
    assert (noisy.distances(circuit.of_tokens(truth)) <= noisy.tolerance.limit).all()
    assert (noisy.tolerance.limit < 2 * noise * scale * 32**0.5).all()
    ((outputs, rounding),) = capture([circuit], truth[3:4])
    one = pose(circuit, outputs, rounding, Slice(), noise, [generators(16)[3]])
    torch.testing.assert_close(one.target, noisy.target[3:4])


@pytest.mark.parametrize("text", ["[:, :, :1]", "[:, :, :4]", "[:, :, :]"])
def test_the_limit_under_noise_holds_for_the_truth(small_model, text):
    truth = prompts(count=64, length=31)
    problem = posed(small_model(), truth, text, 1, noise=1.0)
    beyond = problem.distances(problem.circuit.of_tokens(truth)) > problem.tolerance.limit
    assert beyond.float().mean() < 0.002


@pytest.mark.parametrize("layer", [0, 3])
def test_outputs_that_are_not_numbers_are_named(small_model, layer):
    model = small_model(n_layers=3)
    if layer:
        model.blocks[layer - 1].norm_token.weight[0] = torch.nan
    else:
        model.embedding.weight[int(prompts()[1, 2])] = torch.inf
    with pytest.raises(RequestError, match="up to layer 3 have numbers that are not finite"):
        posed(model, prompts(), "[:, :, :]", 3)


def test_floors_are_measured_in_passes_that_the_memory_bears(small_model, monkeypatch):
    truth, passes = prompts(12, 8), []

    def measured(memory):
        monkeypatch.setattr("eval.models.memory.host_memory", lambda: memory)
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


def test_floors_of_a_slice_are_of_its_channels_alone(small_model):
    """A channel slice's floor is measured on those channels, not on the whole width."""
    circuit, truth = Circuit(small_model(), 2), prompts()
    ((_, rounding),) = capture([circuit], truth)
    whole, few = rounding.norm(dim=-1), rounding[..., :2].norm(dim=-1)
    assert (few <= whole).all()
    assert (few < whole).any()
    outputs = circuit.of_tokens(truth)[..., :2]
    assert (few >= 0.99 * torch.finfo(torch.float32).eps * outputs.norm(dim=-1)).all()
