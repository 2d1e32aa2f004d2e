"""The commands `probe`, `geometry` and `retrieval`: fits to outputs, and measures of them."""

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

from eval import RequestError
from eval.commands import (
    AboveZero,
    Device,
    Flag,
    Models,
    Natural,
    Positive,
    Result,
    Rows,
    Source,
    command,
    listed,
    not_negative,
    positive,
)

if TYPE_CHECKING:
    from eval.models import Checkpoint
    from eval.rows import Row

LINEAR = "Linear probes by offset: top-1 %, I_e = 1 - CE / ln V. Unigram: no output is looked at."
TRAINED = "Trained inverter: top-1 %, and I_e, each beside frequencies alone."
JACOBIAN = "Jacobian, hidden to visible: medians over prompts."
BASINS = "Adam from a start at radius r |e|, a column each: hidden tokens right, prompts right, %."
RADII = (0.3, 1.0, 2.0, 4.0, 8.0)


@command(offsets="linear probes", inverter="trained inverter")
def probe(
    models: Models,
    out: Rows = None,
    layers: Annotated[int | Sequence[int] | None, Flag(int, "L", several=True)] = None,
    corpus: Source | None = None,
    length: Positive = 64,
    train_tokens: Positive = 64_000,
    valid_tokens: Positive = 8_000,
    seed: Natural = 0,
    device: Device = "auto",
    offsets: Annotated[int | Sequence[int], Flag(int, "O", several=True)] = range(-3, 4),
    steps: Natural = 200,
    rate: AboveZero = 3e-3,
    inverter: bool = False,
    slices: Annotated[str | Sequence[str] | None, Flag(metavar="SLICE", several=True)] = None,
    inverter_steps: Natural = 300,
    inverter_rate: AboveZero = 3e-3,
    inverter_batch: Positive = 16,
    blocks: Positive = 2,
    width: Positive = 128,
) -> Result:
    """Trains linear probes and an inverter on a layer's outputs, and measures how well they read.

    Args:
        models: model directories
        out: results directory; rows that are there are not redone
        layers: 0 is the embedding; default: all blocks
        corpus: held-out stories, to fit on and others to judge on: a file, a directory, hub:NAME,
            toy, or packed data; default: the data that the models were trained on
        length: tokens of a window
        train_tokens: to fit on
        valid_tokens: to judge on
        seed: of the fits
        device: where to compute; auto (default) takes a GPU that is in reach
        offsets: the token at t + O is read from the output at t; default: -3 ... 3
        steps: of softmax regression; 0: closed forms alone
        rate: its first rate
        inverter: train one a layer and slice
        slices: shown to it; default: all, and all but 3
        inverter_steps: of its training
        inverter_rate: its highest rate
        inverter_batch: windows a step
        blocks: encoder blocks
        width: features in them, at least
    """
    from eval.models import open_models
    from eval.probes.inverter import Decoding, Inversion
    from eval.probes.linear import Probes, ProbeText, Training
    from eval.recovery import Slice
    from eval.tasks import Task, answered
    from eval.text import choose_corpus

    if slices and not inverter:
        raise RequestError("--slices: only a trained inverter is shown slices; add --inverter")
    train = _windows(train_tokens, length, "--train-tokens", 2)
    valid = _windows(valid_tokens, length, "--valid-tokens", 1)
    shown = [Slice.parse(text) for text in listed(slices or ("[:, 0:, :]", "[:, 3:, :]"))]
    several = tuple(sorted(set(listed(offsets))))
    training = Training(steps, rate=rate, seed=seed)
    decoding = Decoding(
        blocks, width, steps=inverter_steps, windows=inverter_batch, rate=inverter_rate, seed=seed
    )
    for offset in several:
        if abs(offset) >= length:
            raise RequestError(
                f"--offsets {offset}: windows have {length} tokens; "
                "give an offset within them, or a longer --length"
            )
    checkpoints = open_models(models, device)
    stories = ProbeText(choose_corpus(checkpoints, corpus), length, train, valid)
    tasks: list[Task] = []
    for checkpoint in checkpoints:
        chosen = _layers(checkpoint, layers)
        for one in shown:
            one.positions(length)
            one.channels(checkpoint.config.d_model)
        stories.load(checkpoint)  # bad text is refused before any work
        tasks += [Probes(checkpoint, stories, layer, several, training) for layer in chosen]
        pairs = product(chosen, shown if inverter else ())
        tasks += [Inversion(checkpoint, stories, *pair, decoding) for pair in pairs]
    rows, note = answered(tasks, out, "probing")
    return Result(rows, _read_out(rows), note)


def _layers(checkpoint: "Checkpoint", layers: int | Sequence[int] | None) -> tuple[int, ...]:
    """The layers asked for, or all blocks'.

    Raises:
        RequestError: one that does not exist.
    """
    chosen = listed(layers) if layers is not None else []
    for layer in chosen:
        checkpoint.check_layer(layer)
    return tuple(dict.fromkeys(chosen or range(1, checkpoint.config.n_layers + 1)))


def _read_out(rows: "list[Row]") -> str:
    """Accuracy and I_e of linear probes by offset, and of inverters by slice."""
    from eval.summary import columns, summarise
    from eval.tables import Table, across, lay_out, terminal

    linear = [row for row in rows if "offset" in row]
    trained = [row for row in rows if row["kind"] == "probe" and row["method"] == "inverter"]
    parts: list[Table | str] = []
    if linear:
        order = {"ridge": 0, "gaussian": 1, "softmax": 2}
        records = summarise(linear, "probe", every_seed=True)
        records.sort(key=lambda r: (r["model"], r["step"], r["layer"], order[r["method"]]))
        records += [
            {"model": "unigram", "offset": record["offset"], "top1": record["unigram.top1"],
             "information": record["unigram.information"]}
            for record in records
        ]  # fmt: skip
        shown = [("top1", "top-1", True), ("information", "I_e", False)]
        parts.append(across(records, ("model", "step", "layer", "method"), "offset", shown, LINEAR))
    if trained:
        records = summarise(trained, "probe", every_seed=True)
        parts.append(lay_out(records, columns("probe"), TRAINED))
    return terminal(*parts)


def _surroundings(rows: "list[Row]") -> str:
    """The Jacobian's figures, medians over prompts; the tokens recovered from each distance."""
    from eval.summary import columns, summarise
    from eval.tables import Table, across, lay_out, terminal

    parts: list[Table | str] = []
    if any(row["kind"] == "geometry" for row in rows):
        records = summarise(rows, "geometry", every_seed=True)
        parts.append(lay_out(records, columns("geometry"), JACOBIAN))
    if any(row["kind"] == "basin" for row in rows):
        records = summarise(rows, "basin", every_seed=True)
        shown = [("nonself", "hidden", True), ("exact", "whole", True)]
        parts.append(across(records, ("model", "step", "layer", "hidden"), "radius", shown, BASINS))
    return terminal(*parts)


def _windows(tokens: int, length: int, flag: str, least: int) -> int:
    if tokens < least * length:
        raise RequestError(
            f"{flag} {tokens}: {least} windows of {length} tokens are needed at least; "
            "ask for more, or give a shorter --length"
        )
    return tokens // length


@command(radii="basins: Adam from starts near the truth")
def geometry(
    models: Models,
    out: Rows = None,
    corpus: Source | None = None,
    layers: Annotated[int | Sequence[int] | None, Flag(int, "L", several=True)] = None,
    hidden: Annotated[int | Sequence[int], Flag(positive, "K", several=True)] = (1, 3),
    count: Positive = 4,
    length: Positive = 16,
    device: Device = "auto",
    radii: Annotated[
        float | Sequence[float], Flag(not_negative, "R", several=True, least=0)
    ] = RADII,
    adam_steps: Positive = 300,
    seed: Natural = 0,
) -> Result:
    """Measures how visible outputs move with hidden tokens (Jacobian), and how wide basins are.

    Args:
        models: model directories
        out: results directory; rows that are there are not redone
        corpus: held-out stories: of packed data, hub:NAME, toy (the embedded generator), or a
            directory with valid.*; of a .txt, .jsonl or .parquet file, the share that packing sets
            aside; default: those of the data that the models were trained on
        layers: from 1; default: all blocks
        hidden: first K tokens
        count: story prompts
        length: tokens of each prompt
        device: where to compute; auto (default) takes a GPU that is in reach
        radii: distances of the start in lengths of each token's embedding; none: no basins
        adam_steps: from each start
        seed: of the directions
    """
    from eval.models import open_models
    from eval.probes.local import plan_local
    from eval.tasks import answered
    from eval.text import choose_corpus, drawn_prompts, held_out_text

    checkpoints = open_models(models, device)
    corpus = choose_corpus(checkpoints, corpus)
    tasks = [
        task
        for checkpoint in checkpoints
        for task in plan_local(
            checkpoint,
            _layers(checkpoint, layers),
            sorted(set(listed(hidden))),
            drawn_prompts("story", held_out_text(checkpoint, corpus), count, length),
            sorted(set(listed(radii))),
            adam_steps,
            seed,
        )
    ]
    rows, note = answered(tasks, out, "measuring")
    return Result(rows, _surroundings(rows), note)


@command(fit_steps="fit of the whole model (InfoNCE)")
def retrieval(
    models: Models,
    out: Rows = None,
    corpus: Source | None = None,
    sentence: Sequence[Literal["first", "last"]] = ("last",),
    queries: Positive = 1000,
    candidates: Positive = 8192,
    pool: Sequence[Literal["last", "mean"]] = ("last", "mean"),
    device: Device = "auto",
    fit_steps: Natural = 100,
    fit_pairs: Positive = 4096,
    batch: Positive = 32,
    rate: float = 1e-3,
    temperature: float = 0.05,
    seed: Natural = 0,
) -> Result:
    """Matches sentences to their stories by hidden states (top-1), before and after a short fit.

    Args:
        models: model directories
        out: results directory; rows that are there are not redone
        corpus: sentences to be placed are from its held-out stories for evaluation, the fit is on
            those for fitting; other candidates are from both; default: the data that the models
            were trained on
        sentence: taken out of its story
        queries: sentences, at most
        candidates: stories, at most
        pool: the state of a text: of its last token, or the mean of all
        device: where to compute; auto (default) takes a GPU that is in reach
        fit_steps: 0: states as they are
        fit_pairs: stories, at most
        batch: pairs of a step
        rate: the highest rate
        temperature: of the similarities
        seed: of the fit
    """
    from eval.models import open_models
    from eval.probes.retrieval import Match, PairFit
    from eval.tasks import answered
    from eval.text import choose_corpus

    for flag, value in (("rate", rate), ("temperature", temperature)):
        if not value > 0:
            raise RequestError(f"--{flag} {value}: it must be above 0")
    fit = PairFit(fit_steps, batch, rate, temperature, seed)
    checkpoints = open_models(models, device)
    corpus = choose_corpus(checkpoints, corpus)
    request = corpus, queries, candidates, tuple(sorted(set(pool))), fit, fit_pairs
    tasks = [
        Match(checkpoint, which, *request)
        for checkpoint in checkpoints
        for which in sorted(set(sentence))
    ]
    rows, note = answered(tasks, out, "matching")
    shown = _matches([row for row in rows if row["kind"] == "retrieval"])
    return Result(rows, shown, note)


def _matches(rows: "list[Row]") -> str:
    """Top-1 by number of candidates, a line for each reading; of unfitted ones the best layer."""
    from eval.summary import cells
    from eval.tables import across, terminal

    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for fitted in dict.fromkeys(str(row["fit"]) for row in rows):
        for cell in cells([row for row in rows if str(row["fit"]) == fitted], every_seed=True):
            record = cell.record
            group = tuple(record[name] for name in ("model", "step", "sentence", "method", "pool"))
            groups.setdefault((*group, fitted), []).append(record)
    kept = []
    for group in groups.values():
        best = max(group, key=lambda record: (-record["candidates"], record["top1"]))
        kept += [record for record in group if record["layer"] == best["layer"]]
    title = "Top-1 % by number of candidates (95 % interval over sentences); unfitted: best layer"
    places = ("model", "step", "sentence", "method", "pool", "layer")
    return terminal(across(kept, places, "candidates", [("top1", "top-1", True)], title))
