"""`eval compare` pairs two models by what lm-eval logged of them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from eval import RequestError, compare
from eval.messages import say_once
from tests.said import one_line

DATE = "2026-11-25T12-00-00.123456"


def sample(number: int, **metrics: object) -> dict[str, object]:
    """A line as lm-eval 0.4.13 writes it, without its resps."""
    return {
        "doc_id": number, "doc": {"text": "…", "score": math.nan}, "target": "…", "arguments": {},
        "filter": "none", "metrics": list(metrics), "doc_hash": f"hash-{number}",
        "prompt_hash": "p", "target_hash": "t", **metrics,
    }  # fmt: skip


def write_samples(place: Path, samples: list[dict[str, object]], task: str = "stories") -> Path:
    """As `lm_eval --output_path PLACE --log_samples` leaves them."""
    file = place / "the__model" / f"samples_{task}_{DATE}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in samples))
    return file


@pytest.fixture
def scores():
    draw = np.random.default_rng(0)
    return draw.integers(20, 90, 12), draw.normal(-40, 5, (2, 12)), draw.integers(0, 2, (2, 12))


@pytest.fixture
def two(tmp_path, scores):
    sizes, likelihoods, right = scores
    for name, logs, hits in zip("ab", likelihoods, right, strict=True):
        write_samples(tmp_path / name, [
            sample(i, bits_per_byte=[float(logs[i]), int(sizes[i])], acc=float(hits[i]),
                   byte_perplexity=[float(logs[i]), int(sizes[i])], perplexity=float(logs[i]))
            for i in range(12)
        ])  # fmt: skip
    return tmp_path / "a", tmp_path / "b"


def test_two_models_are_paired_document_by_document(two, scores):
    sizes, likelihoods, right = scores
    rows = {row["figure"]: row for row in compare(list(two)).rows}
    (logs,) = (row for figure, row in rows.items() if "nats" in figure)  # lm-eval: "perplexity"
    assert [logs["first"], logs["second"]] == pytest.approx(list(likelihoods.mean(1)))
    assert rows.keys() - {logs["figure"]} == {"stories bits_per_byte", "stories acc"}
    bits, accuracy = rows["stories bits_per_byte"], rows["stories acc"]
    expected = -likelihoods.sum(1) / np.log(2) / sizes.sum()
    assert [bits["first"], bits["second"]] == pytest.approx(list(expected))
    assert [accuracy["first"], accuracy["second"]] == pytest.approx(list(right.mean(1)))
    assert (bits["n"], bits["units"]) == (12, "documents")
    judged = stats.permutation_test(
        (right[0], right[1]), lambda x, y, axis: (x - y).mean(axis), permutation_type="samples",
        vectorized=True, n_resamples=10_000,
    )  # fmt: skip
    assert accuracy["p"] == pytest.approx(judged.pvalue)


def test_files_are_taken_too_and_the_last_run_counts(two, tmp_path):
    first, second = two
    file = next(second.glob("*/*.jsonl"))
    later = file.with_name(file.name.replace("11-25", "11-26"))
    later.write_text(next(first.glob("*/*.jsonl")).read_text())
    rows = compare([first, second], paired=[str(second), str(first)], csv=str(tmp_path / "out.csv"))
    assert all(row["difference"] == 0 for row in rows.rows)
    assert "stories acc" in (tmp_path / "out.csv").read_text()
    assert any(row["difference"] for row in compare([later, file]).rows)


def test_what_cannot_be_paired_is_refused(two, tmp_path):
    first, second = two
    file = next(second.glob("*/*.jsonl"))
    lines = file.read_text().splitlines()
    wrong = {
        "document 3 differs (doc_hash hash-3 and other": [
            line.replace("hash-3", "other") for line in lines
        ],
        "document 11 differs (doc_hash hash-11 and none": lines[:11],
        "document 0 differs": [line.replace('"t"', '"other"') for line in lines],
        "line 12: document 0 stands there twice": [*lines[:11], lines[0]],
        "line 2: not a sample of lm-eval": [lines[0], '{"key": "a", "schema": 3}'],
        "line 1: not a sample of lm-eval": ["{"],
        "line 3: bits_per_byte of document 2 is [-3.0, 0]": [
            *lines[:2],
            json.dumps(sample(2, bits_per_byte=[-3.0, 0])),
        ],
        "line 1: acc of document 0 is nan": [json.dumps(sample(0, acc=math.nan))],
        "no task and metric stands in both": [json.dumps(sample(0, em="yes"))],
    }
    for message, written in wrong.items():
        file.write_text("\n".join(written))
        with one_line(RequestError, message):
            compare([first, second])
    (tmp_path / "none").mkdir()
    with one_line(RequestError, "none: holds no samples_*.jsonl"):
        compare([first, tmp_path / "none"])
    with one_line(RequestError, "give two of"):
        compare([first])


def test_what_one_model_alone_has_is_said_to_be_left_out(two, capsys):
    """A task that had crashed for the other model was nowhere."""
    compare(list(two))
    assert not capsys.readouterr().err
    write_samples(two[0], [sample(0, acc=1.0)], "arc")
    file = next(two[1].glob("*/*.jsonl"))
    file.write_text(file.read_text().replace('"acc"', '"acc_norm"'))
    assert {row["figure"].split()[1] for row in compare(list(two)).rows} == {
        "bits_per_byte", "log-likelihood",
    }  # fmt: skip
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in said] == ["left out"] * 3
    named = ("arc", f"acc of {next(two[0].glob('*/*.jsonl'))}", f"acc_norm of {file}")
    for line, name in zip(said, named, strict=True):
        assert name in line


def test_a_metric_without_a_number_for_a_document_is_left_out(two, capsys):
    """It was the mean of the others."""
    say_once.cache_clear()
    for source in two:
        file = next(source.glob("*/*.jsonl"))
        lines = file.read_text().splitlines()
        file.write_text("\n".join([lines[0], json.dumps(sample(1, acc=None)), *lines[2:]]))
    assert "acc" not in {row["figure"].split()[1] for row in compare(list(two)).rows}
    said = capsys.readouterr().err.splitlines()
    assert ["line 2: acc of document 1 is None" in line for line in said] == [True, True]


def test_other_prompts_for_the_same_documents_are_said(two, capsys):
    say_once.cache_clear()
    compare(list(two))
    assert "prompt" not in capsys.readouterr().err
    file = next(two[1].glob("*/*.jsonl"))
    file.write_text(file.read_text().replace('"p"', '"of five examples"'))
    compare(list(two))
    assert "12 of 12 documents" in capsys.readouterr().err
