"""Curves where the answer is known: an identity, a noisy channel, a fit by scipy."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from arch import save_model
from eval.__main__ import main
from eval.inversion.curves import bracket, crossing, interval, plan_curves
from eval.inversion.solvers import solvers
from eval.models import open_checkpoint
from eval.rows import Results, Row, read_rows
from eval.tasks import run_tasks
from eval.text import Prompt, random_prompts

CHANNELS, NOISE = ["channels"], ["noise"]


def trace(
    directory: Path, out: Path, axes: list[str], asked: dict[str, dict], count: int = 4
) -> list[Row]:
    """Curves of the embedding (layer 0) by methods and their settings."""
    checkpoint = open_checkpoint(directory)
    prompts = random_prompts(checkpoint.tokenizer, count, 6)
    known = solvers()
    chosen = {name: known[name].configured(settings) for name, settings in asked.items()}
    results = Results(out)
    curves = plan_curves(checkpoint, (0,), axes, chosen, prompts, "toy:2000")
    there = set(results.keys)
    run_tasks(curves, results, "curves")
    return [r for r in results.rows() if r["kind"] == "curve" and r["key"] not in there]


def nearest_share(embedding: np.ndarray, prompts: list[Prompt], noise: float) -> float:
    """How often the row nearest to a noisy row of the embedding is that row."""
    chance = np.random.default_rng(5)
    tokens = np.array([prompt.tokens for prompt in prompts]).repeat(20)
    rows = embedding[tokens]
    size = noise * np.sqrt((rows**2).mean(axis=1, keepdims=True))
    target = rows + size * chance.standard_normal(rows.shape)
    lengths = (embedding**2).sum(axis=1)
    return float(((lengths - 2 * target @ embedding.T).argmin(axis=1) == tokens).mean())


def test_half_of_an_identity_is_lost_where_nearest_neighbours_say(model_directory, tmp_path):
    directory = model_directory()
    (row,) = trace(directory, tmp_path / "out", NOISE, {"sweep": {}}, count=32)
    checkpoint = open_checkpoint(directory)
    embedding = checkpoint.model.embedding.weight.double().numpy()
    prompts = random_prompts(checkpoint.tokenizer, 32, 6)
    noises = np.geomspace(0.3, 4, 40)
    shares = np.array([nearest_share(embedding, prompts, noise) for noise in noises])
    known = noises[np.abs(shares - 0.5).argmin()]
    assert row["snr50"] == pytest.approx(-20 * math.log10(known), abs=0.8)
    assert row["snr50_low"] < row["snr50"] < row["snr50_high"]
    easy, hard = row["bracket"]
    assert easy <= row["value"] <= hard <= easy * 10 ** (1 / 20) * (1 + 1e-9)
    for noise, share in zip(row["values"], row["top1"], strict=True):
        assert share == pytest.approx(nearest_share(embedding, prompts, noise), abs=0.12)


def test_search_reads_all_of_one_channel_or_says_which_tokens_collide(model_directory, tmp_path):
    out = tmp_path / "out"
    (curve,) = trace(model_directory(), out, CHANNELS, {"sweep": {}})
    rows = [row for row in read_rows([out]) if row["kind"] == "recovery"]
    assert {row["slice"] for row in rows} >= {"[:, 0:, :1]", "[:, 0:, :16]", "[:, 0:, :]"}
    for row in rows:
        for true, found, said in zip(row["truth"], row["found"], row["verdict"], strict=True):
            assert found == true or said == "ambiguous"
    assert curve["value"] == curve["low"] == curve["high"] == 1
    assert curve["bracket"] is None
    assert curve["values"] == [32, 16, 8, 4, 2, 1]


def test_the_cliff_is_where_the_information_begins(model_directory, tmp_path):
    directory = model_directory()
    checkpoint = open_checkpoint(directory)
    with torch.no_grad():
        checkpoint.model.embedding.weight[:, :11] = 1.0  # the same of every token
    save_model(tmp_path / "new", checkpoint.model, checkpoint.tokenizer.to_str(), checkpoint.meta)
    (curve,) = trace(tmp_path / "new", tmp_path / "out", CHANNELS, {"sweep": {}})
    assert (curve["value"], curve["bracket"]) == (12, [12, 11])
    assert (curve["low"], curve["high"]) == (12, 12)
    shown = dict(zip(curve["values"], curve["ambiguous"], strict=True))
    assert shown[11] == shown[8] == 1
    assert shown[16] == shown[32] == 0


def test_chance_never_reaches_one_half(model_directory, tmp_path):
    axes = CHANNELS + NOISE
    by_channels, by_noise = trace(model_directory(), tmp_path / "out", axes, {"chance": {}})
    assert by_channels["value"] is by_channels["low"] is by_channels["high"] is None
    assert by_noise["value"] == 0
    assert by_noise["snr50"] is by_noise["bracket"] is None


def test_gradient_and_prior_are_asked_alike(model_directory, tmp_path):
    out = tmp_path / "out"
    asked = {"adam": {"steps": 40}, "expected": {}}
    adam, expected = trace(model_directory(), out, NOISE, asked)
    assert (adam["family"], expected["family"]) == ("gradient", "prior")
    assert adam["settings"]["steps"] == 40
    for row in (adam, expected):
        assert row["top1"][0] > 0.9
        assert row["top1"][-1] < 0.1
        assert -10 < row["snr50"] < 20
    assert not trace(model_directory(), out, CHANNELS, {"expected": {}})


def test_crossings():
    x = np.array([-np.inf, 0.0, 1.0, 2.0])
    shares = np.array(
        [
            [1.0, 1.0, 0.75, 0.25],  # half way between the last two
            [1.0, 0.25, 0.5, 0.0],  # a dip: taken as two points at 0.375
            [1.0, 1.0, 1.0, 0.5],  # never below
            [0.4, 0.3, 0.2, 0.1],  # never above
            [0.5, 0.5, 0.0, 0.0],  # one half counts as above
        ]
    )
    assert crossing(x, shares).tolist() == [1.5, -np.inf, np.inf, -np.inf, 0.0]
    assert [bracket(share) for share in shares] == [2, 0, None, None, 1]


def test_intervals_widen_with_how_prompts_differ():
    x = np.linspace(0, 8, 33)

    def curves(spread):
        middles = 4 + spread * np.linspace(-1, 1, 12)
        return 1 / (1 + np.exp(4 * (x - middles[:, None])))

    ends = [interval(x, curves(spread)) for spread in (0.0, 0.5, 2.0)]
    widths = [high - low for low, high in ends]
    assert widths[0] == pytest.approx(0, abs=1e-9)
    assert widths[0] < widths[1] < widths[2]
    assert all(low <= 4 + 1e-9 and high >= 4 - 1e-9 for low, high in ends)
    # a mean of 12 logistic middles: about 1.96 standard errors to each side
    assert widths[1] == pytest.approx(2 * 1.96 * 0.5 * np.sqrt(0.394 / 12), rel=0.35)


def ask(*words: object) -> int:
    return main(
        ["curves", *map(str, words), "--corpus", "toy:200", "--count", "2", "--length", "4"]
    )


def test_command(model_directory, tmp_path, capsys):
    model, out = model_directory(d_model=16), tmp_path / "out"
    words = [model, "--out", out, "--methods", "sweep"]
    assert ask(*words) == 0
    printed = capsys.readouterr().out
    assert "cliff" in printed
    assert "SNR50" in printed
    rows = read_rows([out])
    assert [row["axis"] for row in rows if row["kind"] == "curve"] == CHANNELS + NOISE
    assert {row["site"]["layer"] for row in rows} == {2}
    assert main(["summary", str(out)]) == 0
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    assert "channels shown" in (tmp_path / "page.html").read_text()
