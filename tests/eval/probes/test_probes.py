"""Probes against their textbook restatements, on data whose answer is known, and as commands."""

import weakref
from functools import partial
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
    KINDS,
    ProbeFit,
    TokenScore,
    Training,
    aligned,
    outputs_of,
    score_probes,
    score_unigram,
)
from eval.rows import read_rows

V, D = 12, 5


@pytest.fixture
def examples():
    """Features `(N, D)` about a mean for each token, tokens `(N,)`, embeddings `(V, E)`."""
    tokens = torch.randint(V - 1, (300,))  # the last one is never seen
    means = torch.randn(V, D)
    return means[tokens] + 0.5 * torch.randn(300, D), tokens, torch.randn(V, 4)


def moments(x: Tensor, y: Tensor) -> TokenMoments:
    return TokenMoments.of(x, y, V)


def differences(scores: Tensor | np.ndarray) -> np.ndarray:
    """What decides: scores less the mean of their row."""
    found = np.asarray(scores, dtype=np.float64)
    return found - found.mean(axis=1, keepdims=True)


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
    found = gaussian(moments(x, y), embedding)(x)
    assert np.allclose(differences(found), differences(wanted), rtol=1e-3, atol=1e-3)
    assert (found.argmax(1) == y).float().mean() > 0.6


def test_a_factor_makes_probabilities(examples):
    x, y, embedding = examples
    sums = moments(x, y)
    classify, log_share = gaussian(sums, embedding), sums.log_share().float()

    def loss(factor):
        return float(F.cross_entropy(factor * classify(x) + log_share, y))

    found = float(F.cross_entropy(calibrated(classify, log_share, x, y)(x), y))
    assert found == pytest.approx(min(map(loss, np.geomspace(1e-2, 1e2, 2000))), abs=1e-4)


def test_scores_are_accuracy_and_cross_entropy():
    logits, y = torch.randn(50, V), torch.randint(V, (50,))
    score = TokenScore(V)
    score.add(logits[:20], y[:20])
    score.add(logits[20:], y[20:])
    found = score.record()
    top = logits.topk(5, dim=1).indices == y[:, None]
    nats = float(F.cross_entropy(logits, y))
    assert found["count"] == 50
    assert found["top1"] == pytest.approx(float(top[:, 0].float().mean()))
    assert found["top5"] == pytest.approx(float(top.any(1).float().mean()))
    assert found["nats"] == pytest.approx(nats, rel=1e-5)
    assert found["information"] == pytest.approx(1 - nats / np.log(V), rel=1e-5)


def test_unigram_knows_the_frequencies_alone():
    train, valid = torch.tensor([[0, 0, 0, 1]]), torch.tensor([[0, 1, 0, 0]])
    share = (np.array([3, 1, 0]) + 0.5) / 5.5
    found = score_unigram(train, valid, 3).record()
    assert found["nats"] == pytest.approx(-np.mean(np.log(share[[0, 1, 0, 0]])))
    assert found["top1"] == 0.75


def random_windows(count: int, length: int = 16, vocabulary: int = 400, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (count, length), generator=generator)


def read(
    circuit: Circuit, train: Tensor, valid: Tensor, offset: int, training: Training
) -> dict[str, dict]:
    """The figures of each kind of probe, fitted on some stories and judged on others."""
    reader = partial(outputs_of, circuit)
    probes = ProbeFit(reader, train, circuit.vocabulary, training).fit(offset)
    scores = score_probes(reader(valid), valid, offset, probes)
    return {kind: score.record() for kind, score in scores.items()}


@pytest.mark.parametrize("offset", [-3, -1, 0, 2])
def test_offsets_share_their_second_moment(offset):
    """It is summed once; each offset takes away the positions that it does not ask."""
    outputs, windows = torch.randn(70, 9, D), torch.randint(V, (70, 9))
    fit = ProbeFit(lambda _: outputs, windows, torch.randn(V, D), Training(steps=0))
    x, y = aligned(outputs[fit.held :], windows[fit.held :], offset)
    assert x.shape[:2] == y.shape == (70 - fit.held, 9 - abs(offset))
    plain = TokenMoments.of(x, y, V)
    seen: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        gauss = linear.gaussian
        patch.setattr(linear, "gaussian", lambda m, e: seen.append(m) or gauss(m, e))
        fit.fit(offset)
    for found, expected in zip(seen[0], plain, strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(plain.second, second_moment(x))


@pytest.mark.parametrize(("layer", "offset"), [(0, 0), (2, 0), (0, -1), (0, 1)])
def test_the_embedding_tells_its_own_token_and_no_other(small_model, layer, offset):
    """Tokens drawn independently: at layer 0 nothing is to be learnt at other offsets."""
    train, valid = random_windows(400), random_windows(20, seed=4)
    figures = read(Circuit(small_model(), layer), train, valid, offset, Training(steps=0))
    assert list(figures) == list(KINDS[:1])
    for each in figures.values():
        assert each["count"] == 20 * (16 - abs(offset))
        if offset:
            assert abs(each["information"]) < 0.05
        else:
            assert each["top1"] == 1.0
            assert each["information"] > 0.99


@pytest.mark.parametrize("offset", [-3, 0, 2])
def test_an_offset_is_the_token_so_far_away(small_model, offset):
    """Each token is its neighbour's successor: the embedding of one tells all of them."""
    train, valid = ((random_windows(n, seed=n)[:, :1] + torch.arange(16)) % 400 for n in (400, 20))
    figures = read(Circuit(small_model(), 0), train, valid, offset, Training(steps=0))
    assert figures["gaussian"]["top1"] == 1.0


def test_softmax_goes_on_from_the_gaussian_probe(small_model):
    circuit, windows = Circuit(small_model(), 2), random_windows(200)

    def figures(steps):
        return read(circuit, windows, windows, -1, Training(steps=steps, rate=1e-2))

    fitted, first = figures(60), figures(1)
    assert fitted["softmax"]["nats"] < fitted["gaussian"]["nats"] - 0.1
    assert fitted["gaussian"]["nats"] == pytest.approx(first["softmax"]["nats"], abs=0.05)
    assert figures(60) == fitted


def test_outputs_that_are_not_numbers_are_named(small_model):
    model = small_model()
    with torch.no_grad():
        model.blocks[1].norm_token.weight[0] = torch.nan  # pyright: ignore
    with pytest.raises(RequestError, match="layer 2 gives numbers that are not finite"):
        outputs_of(Circuit(model, 2), random_windows(10))


def test_probes_take_memory_for_one_place_at_a_time(model_directory, tmp_path):
    """The weights of all places are several times what is held at once."""
    made: list[weakref.ref] = []
    most = 0

    def counted(*args: Any) -> TokenMoments:
        nonlocal most
        found = original(*args)
        made.append(weakref.ref(found.total))
        most = max(most, sum(ref() is not None for ref in made))
        return found

    original = TokenMoments.of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenMoments, "of", counted)
        words = [model_directory(), "--out", tmp_path / "out", "--offsets", -1, 0, 1, "--steps", 2]
        assert probe(*words) == 0
    assert len(made) == 2 * 3
    assert most == 1


def test_what_was_fitted_is_used_again(model_directory, tmp_path):
    """Another amount of text to judge on needs no other fit; another seed does."""
    fits: list[str] = []

    def counted(module, name):
        real = getattr(module, name)
        return lambda *args: fits.append(name) or real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProbeFit, "fit", counted(ProbeFit, "fit"))
        words = [model_directory(), *QUICK, "--offsets", 0, "--layers", 1]
        once = ["fit"]
        for valid, more, expected in ((160, [], once), (320, [], []), (320, ["--seed", 1], once)):
            fits.clear()
            asked = [*words, "--out", tmp_path, "--valid-tokens", valid, *more]
            assert main(["probe", *map(str, asked)]) == 0
            assert fits == expected
        asked = [*words, "--out", tmp_path / "new", "--valid-tokens", 320]
        assert main(["probe", *map(str, asked)]) == 0
    places = (tmp_path, tmp_path / "new")
    rows, fresh = ({r["key"]: r | {"seconds": 0} for r in read_rows([p])} for p in places)
    assert fresh.items() <= rows.items()


# The command.

QUICK = ["--corpus", "toy:400", "--length", 16, "--train-tokens", 1600, "--valid-tokens", 160]
QUICK += ["--steps", 2]


def probe(*words: object) -> int:
    return main(["probe", *map(str, (*words, *QUICK))])


def test_probe_writes_rows_once(model_directory, tmp_path, capsys):
    before, after, out = model_directory(), model_directory(step=5), tmp_path / "out"
    words = [before, after, "--out", out, "--offsets", -1, 0, "--layers", 1, 2]
    assert probe(*words) == 0
    printed = capsys.readouterr().out
    assert "gaussian" in printed
    rows = read_rows([out])
    assert len(rows) == 2 * 2 * 2 * 2  # checkpoints x layers x offsets x kinds
    assert {row["kind"] for row in rows} == {"probe"}
    for row in rows:
        assert row["gain"] == pytest.approx(row["unigram"]["nats"] - row["nats"])
        assert row["count"] == row["unigram"]["count"] == 10 * (16 + min(0, row["offset"]))
    assert probe(*words[:-2], 0, 1) == 0  # what is new is added
    assert len(read_rows([out])) == len(rows) + 2 * 2 * 2
