"""Probes against their textbook restatements, and on data whose answer is known."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from arch.pretrained.pretrained import PretrainedModel, wrap_model
from eval.commands.probe import _read_out
from eval.measures import linear
from eval.measures.classifiers import (
    PRIOR,
    RIDGE,
    TokenMoments,
    calibrated,
    gaussian,
    second_moment,
)
from eval.measures.jacobian import jacobian, local_geometry
from eval.measures.linear import (
    ProbeFit,
    Training,
    aligned,
    outputs_of,
    score_probes,
    score_unigram,
    token_figures,
)
from eval.measures.ranks import token_ranks
from eval.sites.circuit import Circuit
from tests.arch.pretrained.test_decoder import GROUPED
from tests.arch.pretrained.test_pretrained import random_model, their_model
from tests.eval.views.page.cases import about, every_kind

V, D = 12, 5


@pytest.fixture
def examples():
    """Features `(N, D)` about a mean for each token, tokens `(N,)`, embeddings `(V, E)`."""
    tokens = torch.randint(V - 1, (300,))  # the last one is never seen
    means = torch.randn(V, D)
    return means[tokens] + 0.5 * torch.randn(300, D), tokens, torch.randn(V, 4)


def test_gaussian_is_the_discriminant_of_its_means(examples):
    """Against distances in the metric of the covariance within tokens, example by example."""
    x, y, embedding = examples
    X, E, labels = x.double().numpy(), embedding.double().numpy(), y.numpy()
    count = np.bincount(labels, minlength=V)[:, None]
    middle = E[labels].mean(0)
    apart = E[labels] - middle
    spread = apart.T @ apart / len(X)
    spread += RIDGE * np.diag(spread).mean() * np.eye(4)
    guess = X.mean(0) + (E - middle) @ np.linalg.solve(spread, apart.T @ (X - X.mean(0)) / len(X))
    total = np.stack([X[labels == v].sum(0) for v in range(V)])
    means = (total + PRIOR * guess) / (count + PRIOR)
    within = X - means[labels]
    metric = np.linalg.inv(within.T @ within / len(X))
    gaps = X[:, None] - means[None]
    wanted = -0.5 * np.einsum("nvi,ij,nvj->nv", gaps, metric, gaps)
    found = gaussian(TokenMoments.of(x, y, V), embedding)(x)
    gap = found.double().numpy() - wanted  # scores less the mean of their row decide
    assert np.allclose(gap, gap.mean(1, keepdims=True), rtol=1e-3, atol=1e-3)
    assert (found.argmax(1) == y).float().mean() > 0.6


def test_a_factor_makes_probabilities(examples):
    x, y, embedding = examples
    sums = TokenMoments.of(x, y, V)
    classify, log_share = gaussian(sums, embedding), sums.log_share().float()

    def loss(factor):
        return float(F.cross_entropy(factor * classify(x) + log_share, y))

    found = float(F.cross_entropy(calibrated(classify, log_share, x, y)(x), y))
    assert found == pytest.approx(min(map(loss, np.geomspace(1e-2, 1e2, 2000))), abs=1e-4)


def test_scores_are_accuracy_and_cross_entropy():
    logits, y = torch.randn(50, V), torch.randint(V, (50,))
    found = token_figures([(logits[:20], y[:20]), (logits[20:], y[20:])], V)
    top, nats = logits.topk(5, dim=1).indices == y[:, None], float(F.cross_entropy(logits, y))
    expected = {"count": 50, "top1": float(top[:, 0].float().mean()), "nats": nats,
                "top5": float(top.any(1).float().mean()),
                "information": 1 - nats / np.log(V)}  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-5)


def test_models_with_other_tokens_have_unigrams_of_their_own():
    rows = []
    for name, value in (("flat", 0.2), ("llama", 0.4)):
        (probe,) = (row for row in every_kind(about(0, name=name)) if row["kind"] == "probe")
        rows.append(probe | {"unigram": {"top1": value, "information": value}, "key": name})
    alike = [row | {"unigram": rows[0]["unigram"]} for row in rows]
    several, one = _read_out(rows), _read_out(alike)
    assert [name in several for name in ("unigram of flat", "unigram of llama")] == [True, True]
    assert one.count("unigram") == 1
    assert "unigram of" not in one


def test_unigram_knows_the_frequencies_alone():
    train, valid = torch.tensor([[0, 0, 0, 1]]), torch.tensor([[0, 1, 0, 0]])
    share = (np.array([3, 1, 0]) + 0.5) / 5.5
    found = score_unigram(train, valid, 3)
    assert found["nats"] == pytest.approx(-np.mean(np.log(share[[0, 1, 0, 0]])))
    assert found["top1"] == 0.75


def test_few_logits_are_held_at_once(examples, monkeypatch):
    """Of a large vocabulary fewer tokens are scored together; the figures are the same."""
    x, y, embedding = examples
    windows, probes = y.view(20, 15), {"gaussian": gaussian(TokenMoments.of(x, y, V), embedding)}
    seen = []

    def ranks(logits: Tensor, tokens: Tensor) -> Tensor:
        seen.append(logits.numel())
        return token_ranks(logits, tokens)

    def figures() -> dict[str, Any]:
        found = score_probes(x.view(20, 15, D), windows, 0, probes)
        return found["gaussian"] | {"unigram": score_unigram(windows, windows, V)["nats"]}

    monkeypatch.setattr(linear, "token_ranks", ranks)
    whole = figures()
    assert max(seen) == 300 * V
    monkeypatch.setattr(linear, "LOGITS", 7 * V)
    seen.clear()
    assert figures() == pytest.approx(whole)
    assert max(seen) == 7 * V


def random_windows(count: int, seed: int = 3) -> Tensor:
    return torch.randint(400, (count, 16), generator=torch.Generator().manual_seed(seed))


def read(circuit: Circuit, train: Tensor, valid: Tensor, offset: int, training: Any = None) -> Any:
    """The figures of each kind of probe, fitted on some stories and judged on others."""
    fit = ProbeFit(outputs_of(circuit, train), train, circuit.vocabulary, training)
    return score_probes(outputs_of(circuit, valid), valid, offset, fit.fit(offset))


@pytest.mark.parametrize("offset", [-3, -1, 0, 2])
def test_offsets_share_their_second_moment(offset, monkeypatch):
    """It is summed once; each offset takes away the positions that it does not ask."""
    outputs, windows = torch.randn(70, 9, D), torch.randint(V, (70, 9))
    fit = ProbeFit(outputs, windows, torch.randn(V, D))
    x, y = aligned(outputs[fit.held :], windows[fit.held :], offset)
    assert x.shape[:2] == y.shape == (70 - fit.held, 9 - abs(offset))
    plain, seen = TokenMoments.of(x, y, V), []
    monkeypatch.setattr(linear, "gaussian", lambda m, e: seen.append(m) or gaussian(m, e))
    fit.fit(offset)
    for found, expected in zip(seen[0], plain, strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(plain.second, second_moment(x))


@pytest.mark.parametrize("offset", [-3, 0, 2])
def test_an_offset_is_the_token_so_far_away(small_model, offset):
    """Each token is its neighbour's successor: the embedding of one tells all of them."""
    train, valid = ((random_windows(n, n)[:, :1] + torch.arange(16)) % 400 for n in (400, 20))
    assert read(Circuit(small_model(), 0), train, valid, offset)["gaussian"]["top1"] == 1.0


def test_softmax_goes_on_from_the_gaussian_probe(small_model):
    circuit, windows = Circuit(small_model(), 2), random_windows(200)
    first, fitted, again = (
        read(circuit, windows, windows, -1, Training(steps=steps, rate=1e-2))
        for steps in (1, 60, 60)
    )
    assert fitted["softmax"]["nats"] < fitted["gaussian"]["nats"] - 0.1
    assert fitted["gaussian"]["nats"] == pytest.approx(first["softmax"]["nats"], abs=0.05)
    assert again == fitted


def prompt(length: int = 6) -> Tensor:
    return torch.randint(400, (length,), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("k", [2, 4])  # by columns, and by rows
@pytest.mark.parametrize(
    "mixer", ["flat", "expanded", "headed(heads=2)", "attention(heads=2)", "attention+flat"]
)
def test_jacobian_is_what_finite_differences_give(small_model, mixer, k):
    circuit = Circuit(small_model(mixers=(mixer,), d_model=8).double(), 2)
    embeddings, step = circuit.model.embed(prompt()), 1e-5
    J = jacobian(circuit, embeddings, k)
    assert J.shape == ((6 - k) * 8, k * 8)
    for column in range(k * 8):
        moved = torch.zeros(6 * 8, dtype=torch.float64)
        moved[column] = step
        ahead, behind = (
            circuit((embeddings + sign * moved.reshape(6, 8))[None])[0, k:].flatten()
            for sign in (1, -1)
        )
        assert torch.allclose(J[:, column], (ahead - behind) / (2 * step), atol=1e-6)


@pytest.mark.parametrize(
    ("norm", "layer", "each"),
    [("layernorm", 1, 2), ("layernorm", 2, 1), ("rmsnorm", 1, 1), ("rmsnorm", 2, 0)],
)
def test_what_norms_remove_is_found(small_model, norm, layer, each):
    """A mean is removed at any depth; a length in the first block, where nothing is added to it."""
    figures = local_geometry(Circuit(small_model(norm=norm), layer), prompt(), 2)
    assert (figures["inputs"], figures["removed"]) == (2 * 32, 2 * each)
    assert figures["sigma_min"] > 1e-4 * figures["sigma_max"]
    assert figures["condition"] == pytest.approx(figures["sigma_max"] / figures["sigma_min"])


def test_a_norm_removes_what_embedding_and_position_make_together():
    """The first norm reads both; at the second layer something is added to them."""
    model = PretrainedModel(their_model("gpt2", dtype=torch.float32))
    model.blocks[0].norm_token.eps = 1e-9  # pyright: ignore
    for layer, each in ((1, 2), (2, 1)):
        figures = local_geometry(Circuit(model, layer), prompt() % 258, 2)
        assert figures["removed"] == 2 * each
        assert figures["sigma_min"] > 1e-4 * figures["sigma_max"]


@pytest.mark.parametrize("family", ["Llama", "Gemma", "Mixtral"])  # Gemma's weights have 1 besides
def test_norms_that_cast_to_float32_are_measured_in_float64(family):
    """The same model with torch's own norms, which cast nothing, has the same figures."""
    theirs = random_model(family, torch.float32, GROUPED)
    plain = copy.deepcopy(theirs)
    for name, norm in theirs.named_modules():
        if type(norm).__name__.endswith("RMSNorm"):
            eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
            own = torch.nn.RMSNorm(norm.weight.shape, eps)
            own.weight = torch.nn.Parameter(norm.weight + (family == "Gemma"), requires_grad=False)
            plain.set_submodule(name, own)
    for layer in (1, 2):
        found, expected = (
            local_geometry(Circuit(wrap_model(model), layer), prompt() % 258, 2)
            for model in (theirs, plain)
        )
        for name in ("removed", "sigma_max", "sigma_min", "effective_rank"):
            assert found[name] == pytest.approx(expected[name], rel=1e-10, abs=1e-12), name


def test_figures_are_those_of_the_singular_values(small_model):
    model = small_model(norm="rmsnorm", mixers=("attention(heads=2)",))
    figures = local_geometry(Circuit(model, 2), prompt(), 1)
    exact = Circuit(model.double(), 2)
    embeddings = exact.model.embed(prompt())
    unit = exact.scale / exact(embeddings[None])[0, 1:].square().mean().sqrt()
    values = torch.linalg.svdvals(jacobian(exact, embeddings, 1) * unit)
    share = values / values.sum()
    expected = {
        "removed": 0,
        "sigma_max": float(values[0]),
        "sigma_min": float(values[-1]),
        "effective_rank": float((-(share * share.log()).sum()).exp()),
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


def test_units_are_the_models_own(small_model):
    """Embeddings ten times as long that the norms shorten again: an equally visible token."""
    figures = []
    for length in (1.0, 10.0):
        model = small_model()
        for block in model.blocks:
            block.norm_token.eps = 1e-20  # pyright: ignore
        with torch.no_grad():
            model.embedding.weight.mul_(length)
        figures.append(local_geometry(Circuit(model, 1, part="mixer"), prompt(), 1))
    assert figures[0]["sigma_max"] == pytest.approx(figures[1]["sigma_max"], rel=1e-6)
    assert figures[0]["sigma_min"] == pytest.approx(figures[1]["sigma_min"], rel=1e-6)
