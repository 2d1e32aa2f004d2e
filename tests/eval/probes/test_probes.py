"""Probes against their textbook restatements, on data whose answer is known, and as commands."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eval import RequestError
from eval.__main__ import main
from eval.circuit import Circuit
from eval.classifiers import PRIOR, RIDGE, TokenMoments, calibrated, gaussian, second_moment
from eval.probes import linear
from eval.probes.linear import (
    ProbeFit,
    Training,
    aligned,
    outputs_of,
    score_probes,
    score_unigram,
    token_figures,
)
from eval.rows import read_rows

V, D = 12, 5
QUICK = ["--corpus", "toy:400", "--length", 16, "--train-tokens", 1600, "--valid-tokens", 160]
QUICK += ["--steps", 2]


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


def test_unigram_knows_the_frequencies_alone():
    train, valid = torch.tensor([[0, 0, 0, 1]]), torch.tensor([[0, 1, 0, 0]])
    share = (np.array([3, 1, 0]) + 0.5) / 5.5
    found = score_unigram(train, valid, 3)
    assert found["nats"] == pytest.approx(-np.mean(np.log(share[[0, 1, 0, 0]])))
    assert found["top1"] == 0.75


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


@pytest.mark.parametrize(("layer", "offset"), [(0, 0), (2, 0), (0, -1), (0, 1)])
def test_the_embedding_tells_its_own_token_and_no_other(small_model, layer, offset):
    """Tokens drawn independently: at layer 0 nothing is to be learnt at other offsets."""
    figures = read(
        Circuit(small_model(), layer), random_windows(400), random_windows(20, 4), offset
    )
    assert [*figures] == ["gaussian"]
    assert figures["gaussian"]["count"] == 20 * (16 - abs(offset))
    if offset:
        assert abs(figures["gaussian"]["information"]) < 0.05
    else:
        assert figures["gaussian"]["top1"] == 1.0
        assert figures["gaussian"]["information"] > 0.99


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


def test_outputs_that_are_not_numbers_are_named(small_model):
    model = small_model()
    with torch.no_grad():
        model.blocks[1].norm_token.weight[0] = torch.nan
    with pytest.raises(RequestError, match="layer 2 gives numbers that are not finite"):
        outputs_of(Circuit(model, 2), random_windows(10))


def probe(*words: object) -> int:
    return main(["probe", *map(str, (*words, *QUICK))])


def test_probes_take_memory_for_one_place_at_a_time(model_directory, tmp_path, monkeypatch):
    """The weights of all places are several times what is held at once."""
    made: list[weakref.ref] = []
    alive: list[int] = []

    def counted(*args: Any) -> TokenMoments:
        found = original(*args)
        made.append(weakref.ref(found.total))
        alive.append(sum(ref() is not None for ref in made))
        return found

    original = TokenMoments.of
    monkeypatch.setattr(TokenMoments, "of", counted)
    assert probe(model_directory(), "--out", tmp_path / "out", "--offsets", -1, 0, 1) == 0
    assert alive == [1] * 2 * 3


def test_what_was_fitted_is_used_again(model_directory, tmp_path, monkeypatch):
    """Another amount of text to judge on needs no other fit; another seed does."""
    fits: list[int] = []
    fit = ProbeFit.fit
    monkeypatch.setattr(ProbeFit, "fit", lambda self, o: fits.append(o) or fit(self, o))
    words = [model_directory(), *QUICK, "--offsets", 0, "--layers", 1]
    for place, valid, more, expected in (
        ("a", 160, [], [0]),
        ("a", 320, [], []),
        ("a", 320, ["--seed", 1], [0]),
        ("new", 320, [], [0]),
    ):
        fits.clear()
        asked = [*words, "--out", tmp_path / place, "--valid-tokens", valid, *more]
        assert main(["probe", *map(str, asked)]) == 0
        assert fits == expected
    rows, fresh = (
        {r["key"]: r | {"seconds": 0} for r in read_rows([tmp_path / place])}
        for place in ("a", "new")
    )
    assert fresh.items() <= rows.items()


def test_probe_writes_rows_once(model_directory, tmp_path, capsys):
    before, after, out = model_directory(), model_directory(step=5), tmp_path / "out"
    words = [before, after, "--out", out, "--offsets", -1, 0, "--layers", 1, 2]
    assert probe(*words) == 0
    assert "gaussian" in capsys.readouterr().out
    rows = read_rows([out])
    assert len(rows) == 2 * 2 * 2 * 2  # checkpoints x layers x offsets x kinds
    assert {row["kind"] for row in rows} == {"probe"}
    for row in rows:
        assert row["gain"] == pytest.approx(row["unigram"]["nats"] - row["nats"])
        assert row["count"] == row["unigram"]["count"] == 10 * (16 + min(0, row["offset"]))
    assert probe(*words[:-2], 0, 1) == 0  # what is new is added
    assert len(read_rows([out])) == len(rows) + 2 * 2 * 2
