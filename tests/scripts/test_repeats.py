"""Repeated pairs by their definition, their loss, and what a second loss costs and gives."""

import itertools
import math

import pytest
import torch

from arch import load_model
from eval.rows import read_rows
from scripts import experiment
from scripts.repeats import repeated_pairs
from tests.scripts.cases import FIT, written
from tokenizer import load_tokenizer


def again(row):
    """Whether each token but the first completes a pair that stood before it."""
    pairs = list(itertools.pairwise(row))
    return [pair in pairs[:n] for n, pair in enumerate(pairs)]


def test_repeated_pairs_are_those_that_stood_before():
    windows = torch.randint(4, (20, 15), generator=torch.Generator().manual_seed(0))
    assert repeated_pairs(windows).tolist() == [again(row) for row in windows.tolist()]
    assert repeated_pairs(torch.tensor([[5, 5, 5]])).tolist() == [[False, True]]


def test_prices_are_measured_and_compared(tmp_path, monkeypatch, capsys):
    design = {
        "in_words": "Nothing of note.",
        "rows": 6,
        "vocabulary": 300,
        "fit": FIT,
        "architectures": {
            "flat": {"flags": "", "of": {"architecture": "flat", "weight": 0.0}},
            "flat-read": {
                "flags": "--retention.weight 0.5 --retention.distance 4",
                "of": {"architecture": "flat", "weight": 0.5},
            },
        },
        "seeds": [3],
        "steps": [2],
        "windows": {"count": 3, "length": 32},
        "passages": {"count": 2, "before": 2, "candidates": 50, "counted": 500},
        "measured": {"distances": [1, 2], "noise": [0.25], "quantisers": ["int4"], "draws": 2},
    }
    more = {"of": {"architecture": "flat", "weight": 0.5}, "minus": {"weight": 0.0}}
    far = {"of": {**more["of"], "distance": 2}}
    hypotheses = [
        {"contrasts": {"value": "bits_per_byte", **more, "below": 9}},
        {"contrasts": {"value": "bits int4", **more, **far, "above": 99}},
    ]  # fmt: skip
    written(tmp_path, monkeypatch, "small", design, hypotheses)
    out = tmp_path / "out"
    words = ["small", "--corpus", "toy:400", "--out", str(out)]
    assert experiment.main(words) == 0, capsys.readouterr().err
    rows = read_rows([out])
    assert [row["kind"] for row in rows] == ["repeats", "bits", "bits"] * 2
    assert [row["experiment"]["weight"] for row in rows] == [0.0] * 3 + [0.5] * 3
    model = load_model(out / "flat-read-s3" / "models" / "step-000002").model
    check_windows(rows[3]["windows"], model, out)
    assert experiment.main([*words, "--save", "--page", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "**Complete**: 6 of 6 rows." in page
    assert "weight 0.5 less weight 0.0" in page


def check_windows(windows, model, out):
    """The first window's figures against a loop over its tokens."""
    from eval.text import HeldOutText

    text = HeldOutText("toy:400", load_tokenizer(out / "tokenizer.json"))
    tokens = text.windows("evaluation", 3, 32)
    sums, counts, total = {True: 0.0, False: 0.0}, {True: 0, False: 0}, 0.0
    for n, hit in enumerate(again(tokens[0].tolist())):
        logits = model(tokens[:1, : n + 1])[0, -1]
        nats = -logits.log_softmax(dim=-1)[tokens[0, n + 1]].item()
        sums[hit] += nats
        counts[hit] += 1
        total += nats
    first = windows[0]
    assert first["count"] == counts[True]
    if counts[True]:
        assert first["repeated"] == pytest.approx(sums[True] / counts[True], rel=1e-4)
    assert first["others"] == pytest.approx(sums[False] / counts[False], rel=1e-4)
    decoded = [text.tokenizer.decode(row[1:].tolist()) for row in tokens]
    size = (sum(len(each.encode()) for each in decoded)) / 3
    assert first["bits_per_byte"] == pytest.approx(total / math.log(2) / size, rel=1e-2)
