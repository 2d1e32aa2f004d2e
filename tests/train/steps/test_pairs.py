"""Initial values by pairs of tokens: what they are, and that they predict before the first step."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from arch import load_model
from tests.train.cases import fit, names, pack_toy
from tokenizer import PackedData
from tokenizer.pack import Layout
from train.steps.data import IGNORE, Windows
from train.steps.pairs import OTHERS, RIDGE, UNSEEN, count_pairs, factorise_pairs

PAIRS = ["--init_from", "pairs"]


@pytest.mark.parametrize("rank", [1, 7, 30])
def test_the_factors_are_the_best_of_their_rank(rank):
    """The oracles are numpy's dense decomposition and least squares of the whole matrices."""
    random, V = np.random.default_rng(rank), 40
    tokens = (random.zipf(1.5, (50, 101)) % V).astype(np.int64)
    following = count_pairs(tokens[:, :-1], tokens[:, 1:], V)
    second = count_pairs(tokens[:, :-2], tokens[:, 2:], V)
    shares = np.bincount(tokens[:, 1:].ravel(), minlength=V) + 0.5
    shares = shares / shares.sum()
    logs, before, after = (
        known - np.log(UNSEEN * shares)
        for counts in (following, following.T, second)
        for known in [np.log(counts.toarray() + UNSEEN * shares)]
    )
    # A number a row changes no prediction, and so none is in these: the frequencies' mean.
    logs = logs + np.log(shares) - np.log(shares).mean()
    weights = np.sqrt(shares * V)
    beside = np.hstack([logs, OTHERS * before, OTHERS * after])
    beside = weights[:, None] * beside * np.tile(weights, 3)
    left, values, _ = np.linalg.svd(beside, full_matrices=False)
    best = left[:, :rank] * np.sqrt(values[:rank]) / weights[:, None]
    best = best / np.sqrt((best**2).mean(axis=1, keepdims=True))
    embedding, head = factorise_pairs(following, second, rank)
    # Up to the sign of each feature.
    assert embedding @ embedding.T == pytest.approx(best @ best.T, abs=0.02 * rank)
    added = np.sqrt(RIDGE * (weights[:, None] ** 2 * embedding**2).sum() / rank)
    rows = np.vstack([weights[:, None] * embedding, added * np.eye(rank)])
    goal = np.vstack([weights[:, None] * logs, np.zeros((rank, V))])
    solved, *_ = np.linalg.lstsq(rows, goal, rcond=None)
    assert head == pytest.approx(solved.T, abs=1e-3)


@pytest.mark.first(1)
@pytest.mark.parametrize("layout", [None, Layout("rows", 24, "left"), Layout("rows", 24, "right")])
def test_a_model_predicts_the_next_token_before_its_first_step(
    small_tokenizer, tmp_path, capsys, layout
):
    data = pack_toy(small_tokenizer, tmp_path / "toy", 80, layout)
    flags = ["--model.d_model", "32", "--model.mixers", "[attention(heads=2)]"]
    flags += ["--model.embedding_std", "0.2"]
    for run, start in (("random", []), ("pairs", PAIRS)):
        assert fit(data.path, tmp_path / run, *flags, *start) == 0
    loss, unigrams, pairs = loss_of_pairs(data, tmp_path / "pairs")
    assert loss < 0.9 * unigrams
    assert f"start from {pairs:,} pairs of tokens" in capsys.readouterr().out
    random, ours = (
        load_model(tmp_path / run / "models" / "step-000000").model.embedding.weight.detach()
        for run in ("random", "pairs")
    )
    lengths = ours.norm(dim=1)
    assert torch.allclose(lengths, lengths.mean(), rtol=1e-4)
    assert float(ours.pow(2).mean()) == pytest.approx(float(random.pow(2).mean()), rel=0.01)


def loss_of_pairs(data: PackedData, run) -> tuple[float, float, int]:
    """Nats a token of step 0 on what it started from; of frequencies alone; how many pairs."""
    model = load_model(run / "models" / "step-000000").model
    windows = Windows(data, "train", 16)
    inputs, targets = windows.batch(0, windows.count)
    counted = targets[targets != IGNORE]
    with torch.no_grad():
        loss = F.cross_entropy(model(inputs).transpose(1, 2), targets)
    shares = torch.bincount(counted).float() / len(counted)
    return float(loss), float(-shares[counted].log().mean()), len(counted)


def test_a_run_goes_on_from_its_checkpoint_and_not_from_pairs_again(data, tmp_path, capsys):
    for steps, start in (("3", PAIRS), ("4", PAIRS), ("5", ["--init_from", "gone"])):
        more = ["--trainer.max_steps", steps, "--resume", "auto"]
        assert fit(data, tmp_path / "run", *start, *more) == 0
        assert ("pairs of tokens" in capsys.readouterr().out) == (steps == "3")
        assert f"step-00000{steps}" in names(tmp_path / "run" / "models")


def test_the_time_that_counting_takes_is_part_of_the_minutes(data, tmp_path, monkeypatch):
    """A start longer than the whole budget leaves the three steps by which speed is measured."""

    now = 0.0

    def look() -> float:
        nonlocal now
        now += 1e-4
        return now

    def count(*_: object) -> str:
        nonlocal now
        now += 0.7
        return "counted"

    for clock in ("train.run.time", "train.record.progress.time", "train.steps.budget.time"):
        monkeypatch.setattr(clock, SimpleNamespace(perf_counter=look))
    monkeypatch.setattr("train.run.start_from_pairs", count)
    assert fit(data, tmp_path / "run", *PAIRS, "--minutes", "0.01") == 0
    assert names(tmp_path / "run" / "models") == ["step-000000", "step-000003"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--model.tied", "true"], "--model.tied"),
        (["--model.d_model", "400", "--model.mixers", "[attention(heads=2)]"], "--model.d_model"),
    ],
)
def test_what_cannot_start_from_pairs_is_refused(data, tmp_path, capsys, flags, named):
    assert fit(data, tmp_path / "run", *PAIRS, *flags) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(rf"error: --init_from pairs.*{re.escape(named)}.*\n", error)
    assert not (tmp_path / "run").exists()
