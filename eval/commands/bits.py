"""The command `bits`: how much outputs say of one token at a given precision."""

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

from eval.commands.flags import (
    AboveZero,
    Layers,
    Models,
    Natural,
    Out,
    Part,
    Positive,
    Shard,
    listed,
)
from eval.commands.result import Result, command
from eval.messages import RequestError

Quantiser: TypeAlias = Literal["bf16", "fp8", "int8", "int6", "int4", "int2"]
QUANTISERS: tuple[Quantiser, ...] = get_args(Quantiser)
SHORT, EVERY = 16, 10**6
"""Lines of the tables, in short and in full."""


@command
def bits(
    models: Models,
    out: Out = None,
    corpus: str | None = None,
    layers: Layers = "last",
    part: Part = "block",
    count: Positive | None = None,
    skip: Natural = 0,
    text: str | None = None,
    before: Natural = 12,
    distances: Natural | Sequence[Natural] = (0, 1, 2, 4, 8, 15),
    candidates: Positive | None = None,
    tokens: Positive = 65_536,
    seed: Natural = 0,
    device: str = "auto",
    noise: AboveZero | Sequence[AboveZero] = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0),
    draws: Positive = 16,
    quantisers: Quantiser | Sequence[Quantiser] = QUANTISERS,
    prior: Literal["uniform", "unigram", "model"] = "uniform",
    shard: Shard = None,
    full: bool = False,
) -> Result:
    """Measures exactly how many bits outputs carry about a token at a precision, by distance.

    All tokens but one are given. That one takes every value, and the posterior over its values is
    exact: under Gaussian noise, and where outputs are known by their quantised codes alone. Rows
    hold all priors, the margins of the token and its effect on later outputs as well.

    Args:
        corpus: source of the held-out stories, for passages, token counts and calibration, which
            share no story; default: the data that the models were trained on
        layers: last, all, or numbers; 0 is the embedding
        part: part of the layer
        count: number of passages; the tokens asked about all differ; default: 40, or as many as the
            corpus has
        skip: passages to leave out before the first
        text: your own text, instead of passages: every token of it is asked about
        before: tokens of a passage before the one asked about
        distances: positions after the token at which outputs are measured; 0 is its own
        candidates: number of values that the token may take, the commonest ones; default: the whole
            vocabulary
        tokens: tokens of text in which candidates are counted
        seed: seed of the noise
        noise: standard deviations of the noise, in units of the output's RMS and of the token's
            effect on it
        draws: draws of the noise
        quantisers: formats of codes: rounding to nearest, with a scale for each channel
        prior: prior of the bits that the tables show; rows hold all three
        full: print every line and precision, effects and margins, not only noise of 1/4 RMS
    """
    from eval.measures.bits.measure import Question
    from eval.measures.bits.task import Design, plan_bits
    from eval.models.checkpoint import open_models
    from eval.models.corpora import choose_corpus
    from eval.rows.tasks import NO_ROWS, answered

    if prior == "model" and not before and text is None:
        raise RequestError(
            "--prior model: no model predicts a first token; give --before 1 or more"
        )
    if text is not None and (count or skip):
        flag = "--count" if count else "--skip"
        raise RequestError(f"{flag}: is of passages, which --text replaces; leave it out")
    question = Question(
        tuple(sorted(set(listed(distances)))),
        tuple(sorted(set(listed(noise)))),
        tuple(dict.fromkeys(listed(quantisers))),
        draws,
        seed,
    )
    checkpoints = open_models(models, device)
    corpus = choose_corpus(checkpoints, corpus)
    design = Design(corpus, question, count, before, skip, candidates, tokens, text)
    tasks = [
        task
        for checkpoint in checkpoints
        for task in plan_bits(checkpoint, listed(layers), design, part)
    ]
    rows, note = answered(tasks, out, "bits", shard)
    return Result(rows, bits_tables(rows, prior, full) if rows else NO_ROWS, note)


def bits_tables(rows: Sequence[dict[str, Any]], prior: str = "uniform", full: bool = False) -> str:
    """Rows of kind bits as tables: information by distance, and if `full` effects and margins.

    In short, of the noise alone that is nearest to 1/4 of the outputs' root mean square.
    """
    from eval.analysis.summary import summarise_rows
    from eval.drawing.tables import across, terminal

    records = [r for r in summarise_rows(rows, "bits") if r.get("prior", prior) == prior]
    varying = [
        n
        for n in ("corpus", "prompt_kind", "place", "candidates")
        if len({r[n] for r in records}) > 1
    ]
    fields = ["model", "step", "layer", "part", *varying]
    precisions = dict.fromkeys(r["precision"] for r in records if r.get("precision"))
    noises = {name: float(name.split()[1]) for name in precisions if name.endswith(" rms")}
    usual = min(noises, key=lambda name: abs(math.log(noises[name] * 4)), default=None)
    short = usual is not None and not full
    about = f"Bits about the token, {prior} prior, {f'{usual}, ' * short}by distance:"
    figures: list[tuple[str, str | None, str]] = [
        ("bits", "alone", f"{about} that output alone"),
        ("bits", "cumulative", f"{about} all outputs up to there"),
        ("effect", None, "Effect of the token / RMS"),
        ("margin_bits", "alone", "Margin of the token, bits"),
    ]
    tables = [
        across(
            [r for r in records if r[name] is not None and r.get("shown") == shown
             and (not short or r.get("precision") == usual)],
            [*fields, "precision"] if name == "bits" and not short else fields,
            "distance",
            [(name, name, False)],
            title,
        )
        for name, shown, title in figures[: 2 if short else None]
    ]  # fmt: skip
    least, most = (end(record["prompts"] for record in records) for end in (min, max))
    counted = f"n = {least}{f' to {most}' * (most > least)} passage{'s' * (most != 1)}"
    if not short:
        return f"{terminal(*tables, most=EVERY)}\n\n{counted}"
    tables = tables[: 1 if len(tables[0].lines) > SHORT // 4 else 2]
    more = f"--full: all {len(precisions)} precisions, effects and margins"
    return f"{terminal(*tables, most=SHORT)}\n\n{counted}; {more}"
