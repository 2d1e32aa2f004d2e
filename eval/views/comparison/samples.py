"""Samples of lm-evaluation-harness (`--log_samples`), paired: two models on the same documents."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eval.analysis.summary import Record
from eval.messages import RequestError, say_once
from eval.views.comparison.pairs import paired_record

FILE = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[\d.-]+\.jsonl")
"""The name of a file of samples: of a task, at a time."""
BITS = "bits_per_byte"
"""The one metric that is a ratio: a sample has the log-likelihood of a text, and its bytes."""
NAMES = {"perplexity": "log-likelihood (nats)"}
"""What lm-eval stores of a document under the name of the figure that it makes of all."""
NAMED = 8
"""Tasks that a line names, at most."""


class Score(NamedTuple):
    """What a model got for a document: `hits` of `n`, or bits of so many bytes.

    `document` and `target` stand for its content and its answer, `prompt` for how it was asked.
    """

    document: str
    target: str
    prompt: str
    hits: float
    n: float


Scores = dict[tuple[str, str], dict[int, Score]]
"""Of each metric and filter, by the number of the document."""


def find_samples(sources: Sequence[str | Path]) -> dict[str, dict[str, Path]]:
    """The last file of each task, by the name of its source; empty where none holds samples.

    Args:
        sources: files of samples, or what `lm_eval --output_path` wrote for one model.

    Raises:
        RequestError: a source without samples beside one that has some, or of several models.
    """
    found = {str(source): _files(Path(source)) for source in sources}
    if not any(found.values()):
        return {}
    for source, files in found.items():
        if len({file.parent for _, file in files}) != 1:
            wrong = "samples of several models" if files else "no samples_*.jsonl of lm-eval"
            raise RequestError(f"{source}: holds {wrong}; give one model's directory or file each")
    return {source: dict(files) for source, files in found.items()}


def paired_samples(first: dict[str, Path], second: dict[str, Path], margin: float) -> list[Record]:
    """The difference of two models in each metric of each task, as `paired_records` gives it.

    Args:
        first: files of one model by task.
        second: the same of the other.
        margin: within which figures count as equivalent, in per cent.

    Raises:
        RequestError: no task or metric in common, a file that holds no samples, or other documents.
    """
    records = []
    if alone := sorted(first.keys() ^ second.keys()):
        more = f" and {len(alone) - NAMED} more" * (len(alone) > NAMED)
        say_once(f"left out: tasks of one model alone: {', '.join(alone[:NAMED])}{more}")
    for task in sorted(first.keys() & second.keys()):
        files = first[task], second[task]
        scores = [_read(file) for file in files]
        for key in sorted(scores[0].keys() ^ scores[1].keys()):
            name = " ".join(word for word in key if word != "none")
            file = files[key in scores[1]]
            say_once(f"left out: {name} of {file}; the other model has no such numbers")
        for key in scores[0].keys() & scores[1].keys():
            pairs = _pair(scores[0][key], scores[1][key], files)
            percent = key[0] != BITS and all(0 <= s.hits <= 1 for pair in pairs for s in pair)
            heading = " ".join([task, *(NAMES.get(word, word) for word in key if word != "none")])
            hits = [[pair[side].hits for pair in pairs] for side in (0, 1)]
            records.append(
                paired_record(heading, hits[0], hits[1], [sample.n for sample, _ in pairs], percent,
                              margin, "documents")
            )  # fmt: skip
    if not records:
        known = (f"{', '.join(map(str, files.values()))}" for files in (first, second))
        raise RequestError(f"no task and metric stands in both: {'; '.join(known)}")
    return sorted(records, key=lambda record: record["figure"])


def _files(source: Path) -> list[tuple[str, Path]]:
    """Tasks and their files of samples in the order of times; each model has a directory."""
    found = [source] if source.is_file() else [*source.glob("*.jsonl"), *source.glob("*/*.jsonl")]
    return [(name[1], file) for file in sorted(found) if (name := FILE.fullmatch(file.name))]


def _read(file: Path) -> Scores:
    """The scores in a file of samples; a line names a metric that has no number for a document.

    Raises:
        RequestError: a line that is no sample, a score that is no number, or a document twice.
    """
    scores: Scores = {}
    unscored: dict[tuple[str, str], str] = {}  # the first value of a metric that is no number
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            sample = json.loads(line)
            document, digest = int(sample["doc_id"]), str(sample["doc_hash"])
            target, prompt = (str(sample.get(f"{name}_hash")) for name in ("target", "prompt"))
            values = {name: sample[name] for name in sample["metrics"]}
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            raise RequestError(
                f"{file}, line {number}: not a sample of lm-eval, which has doc_id, doc_hash and "
                "metrics; run lm_eval again with --log_samples"
            ) from None
        for name, value in values.items():
            wrong = f"{file}, line {number}: {name} of document {document} is {str(value)[:80]}"
            try:
                score = _score(name, digest, target, prompt, value)
            except (TypeError, ValueError, OverflowError):
                raise RequestError(
                    f"{wrong}; numbers must be finite, and texts have bytes: check the model's "
                    "outputs"
                ) from None
            key = name, str(sample.get("filter", "none"))
            of_metric = scores.setdefault(key, {})
            if document in of_metric:
                raise RequestError(f"{file}, line {number}: document {document} stands there twice")
            if score:
                of_metric[document] = score
            else:
                unscored.setdefault(key, wrong)
    for key, wrong in unscored.items():
        if scores.pop(key):
            say_once(f"left out: {wrong}, and a number for others")
    return scores


def _score(metric: str, document: str, target: str, prompt: str, value: Any) -> Score | None:
    """A number, or the pair of `BITS`; None of other metrics, which cannot be paired.

    Raises:
        ValueError: numbers that are not finite, or a text without bytes.
    """
    if metric != BITS and not isinstance(value, int | float):
        return None
    pair: Any = value if metric == BITS else (value, 1)
    log_likelihood, size = pair
    hits = -float(log_likelihood) / math.log(2) if metric == BITS else float(value)
    if not (math.isfinite(hits) and 0 < float(size) < math.inf):
        raise ValueError
    return Score(document, target, prompt, hits, float(size))


def _pair(
    first: dict[int, Score], second: dict[int, Score], files: tuple[Path, Path]
) -> list[tuple[Score, Score]]:
    """The scores of each document.

    That they were asked in other words is said, as with another chat template.

    Raises:
        RequestError: the two were asked different documents, or for other answers.
    """
    for number in sorted(first.keys() | second.keys()):
        pair = [scores.get(number) for scores in (first, second)]
        one, other = (score and (score.document, score.target, score.n) for score in pair)
        if one != other:
            hashes = (score.document[:12] if score else "none" for score in pair)
            raise RequestError(
                f"{files[0]} and {files[1]}: document {number} differs (doc_hash "
                f"{' and '.join(hashes)}, or its target or size); run both models on the same "
                "documents"
            )
    if differing := sum(first[number].prompt != second[number].prompt for number in first):
        say_once(
            f"{files[0]} and {files[1]}: {differing} of {len(first)} documents were asked by other "
            "prompts (prompt_hash): other examples before them, or a chat template; the difference "
            "is of both"
        )
    return [(first[number], second[number]) for number in sorted(first)]
