"""Associative recall: sequences by their definition, what is measured of them, and judging it."""

import numpy as np
import pytest
import torch

from arch import load_model
from eval.information.hypotheses import findings_of
from eval.rows import read_rows
from scripts import experiment
from scripts.recall import BYTES, LETTERS, Recall
from tests.scripts.cases import written
from tokenizer import PackedData

FIT = (
    "--config demo --model.vocab_size 270 --model.context 12 --model.d_model 16 --model.n_layers 1 "
    "--batch.size 4 --trainer.max_steps 2 --schedule.warmup_steps 1 --sample_prompts []"
)
DESIGN = {
    "in_words": "Nothing of note.",
    "rows": 8,
    "recall": {"keys": 6, "values": 6, "pairs": [2, 3], "length": 12, "sequences": 60},
    "asked": {"passages": 3, "sequences": 16, "probe": 40, "adam": 1, "noise": [0.25],
              "quantisers": ["int4"], "draws": 2, "seed": 1},
    "fit": FIT,
    "architectures": {"flat": "--model.mixers [flat]"},
    "seeds": [3],
    "steps": [2],
}  # fmt: skip


HALF = [3, 0, 7, 1, 5, 2, 10, 4, 8, 11, 6, 9]
LITTLE = [6, 3, 9, 0, 5, 11, 2, 7, 4, 10, 1, 8]


def test_sequences_are_as_defined():
    task = Recall(keys=9, values=5, pairs=(3,), length=20, sequences=1)
    drawn = task.draw(3, 200, np.random.default_rng(0))
    assert drawn.symbols.shape == (200, 20)
    for row, asked, places in zip(drawn.symbols, drawn.asked, drawn.places, strict=True):
        keys, values = row[::2].tolist(), row[1::2].tolist()
        known, seen = dict(zip(keys[:3], values[:3], strict=True)), set()
        assert len(known) == 3
        assert max(keys) < 9 <= min(values)
        for n, key in enumerate(keys[3:], start=3):
            assert values[n] == known[key]
            assert asked[2 * n] == (key not in seen)
            if key not in seen:
                assert places[2 * n] == 2 * keys.index(key) + 1
            seen.add(key)
        assert not asked[:6].any()
        assert not asked[1::2].any()
    values = drawn.symbols[:, 1:6:2]
    assert np.bincount(values.flatten())[9:].min() > 0.6 * values.size / 5


def test_sequences_are_packed_a_symbol_a_token(tmp_path):
    task = Recall(keys=70, values=150, pairs=(2, 4), length=16, sequences=30, held_out=8)
    data = PackedData(task.pack(tmp_path))
    rows = data.tokens("train")
    assert rows.shape == (30, 16)
    assert data.tokens("valid").shape == (8, 16)
    assert data.meta["vocab_size"] == BYTES + 220
    text = (tmp_path / "sequences" / "train.txt").read_text().split()[0]
    assert [BYTES + LETTERS.index(letter) for letter in text] == rows[0].tolist()
    again = Recall(keys=70, values=150, pairs=(2, 4), length=16, sequences=30, held_out=8)
    assert PackedData(again.pack(tmp_path / "again")).hash == data.hash


def test_recall_is_measured_resumed_and_judged(tmp_path, monkeypatch, capsys):
    hypotheses = [
        {"contrasts": {"value": "searched", "each": {"pairs": [2, 3]}, "above": 0.1}},
        {"correlations": {"with": "recall", "cells": ["pairs"], "above": {"probe": 0.6}}},
    ]
    written(tmp_path, monkeypatch, "small", DESIGN, hypotheses)
    words = ["small", "--out", str(tmp_path / "out")]
    assert experiment.main(words) == 0, capsys.readouterr().err
    rows = read_rows([tmp_path / "out"])
    monkeypatch.setattr(experiment, "_give", None)
    assert experiment.main(words) == 0
    assert read_rows([tmp_path / "out"]) == rows
    assert [row["kind"] for row in rows] == ["recall", *["bits"] * 3] * 2
    model = load_model(tmp_path / "out" / "flat-s3" / "models" / "step-000002").model
    for row in rows:
        if row["kind"] == "recall":
            continue
        tokens = list(row["tokens"])
        assert row["truth"] == [tokens[row["place"]]]
        assert row["distances"] == [len(tokens) - 1 - row["place"]]
        assert tokens[row["place"] - 1] == tokens[-1]  # the query is the key of its pair
        assert tokens.count(tokens[-1]) == 2
        logits = model(torch.tensor([tokens]))[0, -1]
        assert row["named"] == (int(logits.argmax()) == row["truth"][0])
        assert row["searched"] == (row["margin_bits"]["alone"][0] > np.log2(10))
    for summary in rows[::4]:
        assert summary["recall"] == pytest.approx(share_recalled(model, summary["pairs"]))
    assert [row["descended"] is None for row in rows[1:4]] == [False, True, True]
    assert experiment.main([*words, "--save", "--page", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "**Complete**: 8 of 8 rows." in page
    assert "small-readers.svg" in page


def share_recalled(model, pairs):
    """The share of queries that count after which the model names the value."""
    task, chance = Recall(6, 6, (2, 3), 12, 60), np.random.default_rng([1, pairs])
    task.draw(pairs, 40, chance)
    drawn, right = task.draw(pairs, 16, chance), []
    for row, asked in zip(drawn.symbols, drawn.asked, strict=True):
        tokens = torch.from_numpy(row) + BYTES
        for t in np.flatnonzero(asked):
            logits = model(tokens[None, : t + 1])[0, -1]
            right.append(bool(logits.argmax() == tokens[t + 1]))
    return np.mean(right)


def cells(recall, **measures):
    """Records of cells, three seeds each."""
    return [
        {"kind": "recall", "key": "", "pairs": n, "recall": share,
         **{name: values[n] for name, values in measures.items()},
         "experiment": {"architecture": "flat", "seed": seed}, "checkpoint": {"step": 1}}
        for n, share in enumerate(recall)
        for seed in range(3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("probe", "searched", "answers"),
    [
        (range(12), [1.0] * 12, ["confirmed", "confirmed"]),
        (range(12, 0, -1), range(12), ["refuted", "refuted"]),
        (HALF, LITTLE, ["open", "open"]),
    ],
)  # fmt: skip
def test_correlations_over_cells_are_judged_against_their_bounds(probe, searched, answers):
    said = {"with": "recall", "cells": ["architecture", "pairs"]}
    hypotheses = [
        {"id": "A", "correlations": said | {"above": {"probe": 0.6}}},
        {"id": "B", "correlations": said | {"below": {"searched": 0.3}}},
    ]
    rows = cells(np.linspace(0, 1, 12), probe=list(probe), searched=list(searched))
    found = findings_of({"design": {}, "hypotheses": hypotheses}, rows)
    assert [each.answer for each in found] == answers
    assert all(each.comparisons[0].pairs == 12 for each in found)


def test_a_registration_is_whole():
    """The registered numbers of rows are those that the designs make."""
    for name in ("e3b", "e5b"):
        registration = experiment.Registration.read(name)
        design, models = registration.design, list(experiment.runs(registration))
        if "recall" in design:
            each = len(design["recall"]["pairs"]) * (1 + design["asked"]["passages"])
        else:
            each = 1 + design["passages"]["count"]
        assert design["rows"] == each * len(models), name
