"""The commands `probe` and `geometry`: fits to outputs, and measures of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eval.commands.flags import AboveZero, Layers, Models, Natural, Out, Positive, Shard, listed
from eval.commands.result import Result, command
from eval.messages import RequestError

if TYPE_CHECKING:
    from eval.rows.store import Row

LINEAR = "Linear probes by offset: top-1 %, I_e = 1 - CE / ln V. Unigram: no output is looked at."
JACOBIAN = "Jacobian, hidden to visible: medians over prompts."


@command
def probe(
    models: Models,
    out: Out = None,
    layers: Layers = "all",
    corpus: str | None = None,
    length: Positive = 64,
    train_tokens: Positive = 64_000,
    valid_tokens: Positive = 8_000,
    seed: Natural = 0,
    device: str = "auto",
    offsets: int | Sequence[int] = range(-3, 4),
    steps: Natural = 200,
    rate: AboveZero = 3e-3,
    shard: Shard = None,
) -> Result:
    """Trains linear probes on a layer's outputs, and measures how well they read tokens.

    Args:
        layers: all, last, or numbers; 0 is the embedding
        corpus: source of the held-out stories, of which some fit and others judge the probes: a
            file, a directory, hub:NAME, toy, or packed data; default: the data that the models were
            trained on
        length: tokens of a window
        train_tokens: tokens to fit the probes on
        valid_tokens: tokens to judge the probes on
        seed: seed of the fits
        offsets: offsets O: from the output at position t the token at t + O is read
        steps: steps of softmax regression; 0: only the closed form
        rate: first learning rate of softmax regression
    """
    from eval.measures.linear import ProbeTask, ProbeText, Training
    from eval.models.checkpoint import open_models
    from eval.models.corpora import choose_corpus
    from eval.rows.tasks import NO_ROWS, answered
    from eval.sites.site import choose_single_layers

    train = _windows(train_tokens, length, "--train-tokens", 2)
    valid = _windows(valid_tokens, length, "--valid-tokens", 1)
    chosen_offsets = tuple(sorted(set(listed(offsets))))
    training = Training(steps, rate=rate, seed=seed)
    for offset in chosen_offsets:
        if abs(offset) >= length:
            raise RequestError(
                f"--offsets {offset}: windows have {length} tokens; "
                "give an offset within them, or a longer --length"
            )
    checkpoints = open_models(models, device)
    stories = ProbeText(choose_corpus(checkpoints, corpus), length, train, valid)
    tasks: list[ProbeTask] = []
    for checkpoint in checkpoints:
        chosen = choose_single_layers(checkpoint, listed(layers))
        stories.load(checkpoint)  # bad text is refused before any work
        tasks += [
            ProbeTask(checkpoint, stories, layer, chosen_offsets, training) for layer in chosen
        ]
    rows, note = answered(tasks, out, "probing", shard)
    return Result(rows, _read_out(rows) if rows else NO_ROWS, note)


def _read_out(rows: "list[Row]") -> str:
    """Accuracy and I_e of linear probes by offset."""
    from eval.analysis.summary import summarise_rows
    from eval.drawing.tables import across, terminal

    records = summarise_rows(rows, "probe", every_seed=True)
    records.sort(key=lambda r: (r["model"], r["step"], r["layer"], r["method"]))
    records += [
        {"model": name, "offset": record["offset"], "top1": record["unigram.top1"],
         "information": record["unigram.information"]}
        for name, record in zip(_unigrams(records), records, strict=True)
    ]  # fmt: skip
    shown = [("top1", "top-1", True), ("information", "I_e", False)]
    return terminal(across(records, ("model", "step", "layer", "method"), "offset", shown, LINEAR))


def _unigrams(records: "list[dict[str, Any]]") -> list[str]:
    """The line of each record's unigram: one of all models, if it is the same for all."""
    alike: dict[int, set[float]] = {}
    for record in records:
        alike.setdefault(record["offset"], set()).add(record["unigram.information"])
    one = all(len(values) == 1 for values in alike.values())
    return ["unigram" if one else f"unigram of {record['model']}" for record in records]


def _windows(tokens: int, length: int, flag: str, least: int) -> int:
    if tokens < least * length:
        raise RequestError(
            f"{flag} {tokens}: {least} windows of {length} tokens are needed at least; "
            "ask for more, or give a shorter --length"
        )
    return tokens // length


@command
def geometry(
    models: Models,
    out: Out = None,
    corpus: str | None = None,
    layers: Layers = "all",
    hidden: Positive | Sequence[Positive] = (1, 3),
    count: Positive = 4,
    length: Positive = 16,
    device: str = "auto",
    shard: Shard = None,
) -> Result:
    """Measures how visible outputs move with hidden tokens: the Jacobian's singular values.

    Args:
        layers: all, last, or numbers from 1
        hidden: numbers K of hidden tokens: the first K of a prompt
        count: number of prompts, the beginnings of stories
        length: tokens of each prompt
    """
    from eval.analysis.summary import columns, summarise_rows
    from eval.drawing.tables import lay_out, terminal
    from eval.measures.jacobian import plan_jacobians
    from eval.models.checkpoint import open_models
    from eval.models.corpora import choose_corpus
    from eval.models.text import drawn_prompts, held_out_text
    from eval.rows.tasks import NO_ROWS, answered
    from eval.sites.site import choose_single_layers

    checkpoints = open_models(models, device)
    corpus = choose_corpus(checkpoints, corpus)
    tasks = [
        task
        for checkpoint in checkpoints
        for task in plan_jacobians(
            checkpoint,
            choose_single_layers(checkpoint, listed(layers)),
            sorted(set(listed(hidden))),
            drawn_prompts("story", held_out_text(checkpoint, corpus), count, length),
        )
    ]
    rows, note = answered(tasks, out, "measuring", shard)
    if not rows:
        return Result(rows, NO_ROWS, note)
    records = summarise_rows(rows, "geometry", every_seed=True)
    fields = ["model", "step", "layer", "part", "hidden"]
    return Result(rows, terminal(lay_out(records, fields, columns("geometry"), JACOBIAN)), note)
