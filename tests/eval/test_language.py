"""The loss of a model: over windows, by story, with its interval, and as rows."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from arch import load_model
from eval import RequestError
from eval.__main__ import main
from eval.commands import language
from eval.commands.language import PARTS, measure_loss
from eval.models import open_checkpoint
from eval.rows import read_rows
from eval.statistics import clustered
from eval.summary import measure
from tokenizer import load_tokenizer


def test_loss_is_the_mean_over_windows(model_directory, tmp_path):
    path = model_directory()
    corpus = tmp_path
    stories = ["Tom had a red ball.", "Mia saw a big dog.\nIt ran.", "The end came."]
    (corpus / "valid.txt").write_text("".join(f"{story}\n<|endoftext|>\n" for story in stories))
    loss = measure_loss(open_checkpoint(path), str(corpus))
    tokenizer = load_tokenizer(path)
    tokens = [i for story in stories for i in [*tokenizer.encode(story).ids, 0]]
    model = load_model(path).model.double()
    nats = 0.0
    for start in range(0, len(tokens) - 1, 32):  # the context
        window = torch.tensor([tokens[start : start + 33]])
        logits = model(window[:, :-1])[0]
        nats += float(F.cross_entropy(logits, window[0, 1:], reduction="sum").detach())
    assert loss["tokens"] == len(tokens) - 1
    assert loss["bytes"] == sum(len(story.encode()) for story in stories)
    assert loss["nats_per_token"] == pytest.approx(nats / loss["tokens"], rel=1e-5)
    assert loss["bits_per_byte"] == pytest.approx(nats / loss["bytes"] / math.log(2), rel=1e-5)


def test_loss_holds_few_logits_at_once(model_directory, tmp_path, monkeypatch):
    """However many tokens a batch has; what is found is the same."""
    (tmp_path / "valid.txt").write_text(
        "<|endoftext|>".join(f"Tom had {i} red balls." for i in range(40))
    )
    checkpoint = open_checkpoint(model_directory())
    sizes: list[int] = []
    checkpoint.model.head.register_forward_hook(lambda *call: sizes.append(call[-1].numel()))
    whole = measure_loss(checkpoint, str(tmp_path))
    assert max(sizes) > 100 * 400
    sizes.clear()
    monkeypatch.setattr(language, "LOGITS", 5 * 400 + 1)
    parts = measure_loss(checkpoint, str(tmp_path))
    assert set(sizes) <= {n * 400 for n in range(1, 6)}
    assert sum(sizes) == parts["tokens"] * 400
    assert parts["nats_per_token"] == pytest.approx(whole["nats_per_token"], rel=1e-6)


def test_a_loss_that_is_not_finite_is_refused(model_directory, tmp_path):
    (tmp_path / "valid.txt").write_text("Tom had a red ball.\n<|endoftext|>\nThe end.")
    checkpoint = open_checkpoint(model_directory())
    checkpoint.model.head.weight[3] = math.nan
    with pytest.raises(RequestError, match="gives probabilities that are not finite"):
        measure_loss(checkpoint, str(tmp_path))


def test_loss_keeps_stories_apart(model_directory, tmp_path):
    path, corpus = model_directory(), tmp_path
    stories = ["Tom had a ball.", "Mia saw.\nIt ran.", "The end."]
    (corpus / "valid.txt").write_text("".join(f"{story}\n<|endoftext|>\n" for story in stories))
    loss = measure_loss(open_checkpoint(path), str(corpus))
    ids = [[*load_tokenizer(path).encode(story).ids, 0] for story in stories]
    flat = torch.tensor([[token for story in ids for token in story]])
    nats = F.cross_entropy(load_model(path).model(flat[:, :-1])[0], flat[0, 1:], reduction="none")
    counts = [len(ids[0]) - 1, len(ids[1]), len(ids[2])]  # the first token is not predicted
    expected = [float(part.sum()) for part in nats.detach().split(counts)]
    assert len(flat[0]) <= 33  # one window
    assert loss["parts"]["nats"] == pytest.approx(expected, abs=2e-4)
    assert loss["parts"]["tokens"] == counts
    assert loss["parts"]["bytes"] == [len(story.encode()) for story in stories]
    assert loss["stories"] == 3


def test_many_stories_make_few_parts(model_directory, tmp_path):
    file = tmp_path / "valid.txt"
    file.write_text("<|endoftext|>".join(f"Story {i}." for i in range(PARTS + 9)))
    loss = measure_loss(open_checkpoint(model_directory()), str(tmp_path), stories=PARTS + 7)
    assert loss["stories"] == PARTS + 7
    assert len(loss["parts"]["nats"]) == PARTS
    assert sum(loss["parts"]["tokens"]) == loss["tokens"]
    assert sum(loss["parts"]["bytes"]) == loss["bytes"]
    assert sum(loss["parts"]["nats"]) == pytest.approx(
        loss["nats_per_token"] * loss["tokens"], rel=1e-5
    )


def test_bits_per_byte_between_limits():
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 200, 60)
    nats = sizes * rng.normal(0.8, 0.1, 60)

    def bits(nats, sizes):
        parts = {"nats": nats, "bytes": sizes, "tokens": [1] * len(nats)}
        row = {"kind": "loss", "checkpoint": {"weights_sha256": "a"}, "parts": parts, "stories": 60}
        return measure([row | {"bits_per_byte": 1.5}])["bits_per_byte"]

    expected = clustered((nats / math.log(2)).tolist(), sizes.tolist(), range(60), [0] * 60)
    assert bits(nats.tolist(), sizes.tolist())[:3] == pytest.approx(expected)
    assert bits([1.0], [9])[:3] == (1.5, None, None)


def test_loss_writes_rows(model_directory, tmp_path, capsys):
    models = [str(model_directory("flat-s0")), str(model_directory("flat-s0", 5))]
    words = ["--corpus", "toy:100", "--stories", "5", "--out", str(tmp_path / "out")]
    assert main(["loss", *models, *words]) == 0
    rows = read_rows([tmp_path / "out"])
    assert [row["kind"] for row in rows] == ["loss", "loss"]
    bits = measure(rows[:1])["bits_per_byte"]
    assert bits.value == pytest.approx(rows[0]["bits_per_byte"], abs=1e-5)
    assert bits.low is not None
    assert bits.high is not None
    assert bits.low < bits.value < bits.high
    assert "bits/byte" in capsys.readouterr().out
