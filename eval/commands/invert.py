"""The command `invert`: which tokens can be recovered from which layer."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from eval.commands.flags import (
    Layers,
    Models,
    Natural,
    NotNegative,
    Out,
    Plugins,
    Positive,
    Settings,
    Shard,
    Words,
    listed,
)
from eval.commands.result import Result, command
from eval.commands.suites import read_entries
from eval.messages import RequestError, say
from eval.rows.plugins import run_plugins

if TYPE_CHECKING:
    from eval.inversion.task import Question, Task
    from eval.models.checkpoint import Checkpoint
    from eval.models.text import Prompt
    from eval.rows.store import Results

PromptSet: TypeAlias = Literal["story", "inside", "random"]


@command
def invert(
    models: Models,
    out: Out = None,
    suite: str = "quick",
    device: str = "auto",
    layers: Layers = None,
    parts: Words = None,
    without: Words = None,
    slices: Words = None,
    methods: Words = None,
    set_: Settings = None,
    plugin: Plugins = (),
    seeds: Natural | Sequence[Natural] | None = None,
    noise: NotNegative | Sequence[NotNegative] | None = None,
    controls: Words = None,
    text: Words = None,
    prompts: PromptSet | Sequence[PromptSet] | None = None,
    count: Positive | None = None,
    skip: Natural | None = None,
    length: Positive | None = None,
    pad_to: Positive | None = None,
    allowed: str | None = None,
    corpus: str | None = None,
    batch: Positive | None = None,
    limit: Positive | None = None,
    resume: bool = True,
    shard: Shard = None,
) -> Result:
    """Recovers input tokens from a layer's outputs, by search or gradients.

    Everything is checked first; rows that are there already are not redone.

    Args:
        models: model directories
        out: results directory
        suite: quick, standard, methods, sources, or a YAML file of yours that names calls of this
            command; the flags below replace their arguments
        device: where to compute; auto takes a GPU that is in reach
        layers: all, last, or numbers; 0 is the embedding; 1+4 joins two
        parts: of a layer: block, mixer, stream
        without: ablations: residual, norms, channel, mask
        slices: shown of (B, T, D), as in '[:, 3:, :]', '[:, :3+4:, :]' or '[:, :, :16]'
        methods: solvers, as in adam sweep alternating; `python -m eval solvers` lists them
        set_: a setting of a method, as in adam.steps=500; --methods must be given
        plugin: a Python file of yours that registers more (docs/extending.md); may be given several
            times. It is run as your own code, with all your rights: give only files that you trust
        seeds: of the solvers
        noise: in the target's own units
        controls: asked beside: shuffled, identity, scale=NUMBER, embedding=DIR, embedding=untrained
        text: texts to recover as they are; a special token that they spell is that token
        prompts: sets of prompts: story, inside, random
        count: prompts of each set; default: 8, or the suite's
        skip: stories left out at the start; default: 0, or the suite's
        length: tokens of each prompt; default: 16, or the suite's
        pad_to: pads after each prompt
        allowed: gradient methods answer in its tokens
        corpus: held-out stories: of packed data, hub:NAME, toy (the embedded generator), or a
            directory with valid.*; of a .txt, .jsonl or .parquet file, the share that packing sets
            aside; default: those of the data that the models were trained on
        batch: rows of a gradient batch; default: as many as the device's memory bears
        limit: stop after about N rows
        resume: go on where --out was left, or refuse a directory that holds rows
        shard: this process is the I-th of N that share the work, each with a rows file of its own
    """
    arguments = dict(locals())
    from eval.models.checkpoint import open_models
    from eval.rows.tasks import NO_ROWS, open_results, rows_of, run_tasks
    from eval.views.page.recoveries import terminal_text

    run_plugins(plugin)
    entries = read_entries(suite, invert, arguments)
    opened = Opened(
        open_models(models, device), corpus, any(e["prompts"] for e in entries.values())
    )
    tasks, left_out = [], []
    for name, asked in entries.items():
        try:
            tasks += opened.plan(asked, batch)
        except RequestError as error:  # this model has no such site, or cannot be changed so
            left_out.append(f"{name} ({error})")
            if len(left_out) == len(entries):
                raise
    for line in left_out:
        say(f"left out: {line}")
    order: dict[int, int] = {}  # what is computed of a model is dropped when another's turn comes
    tasks.sort(key=lambda task: order.setdefault(id(task.checkpoint), len(order)))
    with open_results(out, resume, shard) as results:
        run_tasks(tasks, results, "inverting", limit)
        rows = rows_of(tasks, results)
    if not rows:  # of a shard or a limit
        return Result(rows, NO_ROWS, _next(results, out))
    return Result(rows, terminal_text(rows), _next(results, out))


class Opened:
    """Models that are asked, each with its corpus and its controls.

    Args:
        models: open.
        corpus: to draw prompts from; None: that of the models' training.
        prompts: whether prompts are drawn, for which the models must share one corpus. Texts have
            none: of those, each model's search guesses from its own.
    """

    def __init__(self, models: "list[Checkpoint]", corpus: str | None, prompts: bool) -> None:
        from eval.models.corpora import choose_corpora, choose_corpus

        if prompts:
            corpus = choose_corpus(models, corpus)
        self.models = list(zip(models, choose_corpora(models, corpus), strict=True))
        self._controls: dict[tuple[int, str], Checkpoint] = {}

    def plan(self, asked: dict[str, Any], batch: int | None) -> "list[Task]":
        """The work of one call's arguments.

        Raises:
            RequestError: a model that cannot be asked this, or models of one name that read a text
                in different tokens.
        """
        from eval.inversion.task import plan

        question = _question(asked)
        tasks: list[Task] = []
        by_name: dict[str, list[Prompt]] = {}
        for checkpoint, corpus in self._with_controls(listed(asked["controls"] or ())):
            prompts = _prompts(checkpoint, asked, corpus)
            name = checkpoint.provenance["name"]
            if by_name.setdefault(name, prompts) != prompts:
                raise RequestError(
                    f"{checkpoint.path}: another model is named {name} too, and reads text "
                    "otherwise; ask them apart"
                )
            allowed = _tokens(asked["allowed"], checkpoint)
            tasks += plan(checkpoint, replace(question, allowed=allowed), prompts, corpus, batch)
        if asked["named"]:  # a suite's own questions are meant to have such
            _say_left_out(question, {len(p.tokens) for drawn in by_name.values() for p in drawn})
        return tasks

    def _with_controls(self, controls: list[str]) -> "Iterator[tuple[Checkpoint, str]]":
        from eval.models.controls import derive
        from eval.rows.schema import SHUFFLED

        for number, (model, corpus) in enumerate(self.models):
            yield model, corpus
            for control in controls:
                if control != SHUFFLED:
                    key = number, control
                    if key not in self._controls:
                        self._controls[key] = derive(model, control)
                    yield self._controls[key], corpus


def _question(asked: dict[str, Any]) -> "Question":
    """The grid of one call's arguments.

    Raises:
        RequestError: a solver, setting, layer or slice that does not exist.
    """
    from eval.inversion.solver import parse_solvers
    from eval.inversion.task import Question
    from eval.rows.schema import SHUFFLED
    from eval.sites.slices import Slice

    methods = _settings(listed(asked["methods"] or ()), listed(asked["set_"] or ()))
    if not methods:
        raise RequestError("--methods: give some, as in --methods sweep adam")
    given: dict[str, Any] = {
        name: tuple(asked[name]) for name in ("parts", "seeds", "noise") if asked[name] is not None
    }
    if asked["layers"] is not None:
        given["layers"] = _layers(asked["layers"])
    if asked["without"] is not None:
        given["without"] = (frozenset(asked["without"]),)
    if asked["slices"] is not None:
        given["slices"] = tuple(Slice.parse(each) for each in asked["slices"])
    shuffled = SHUFFLED in (asked["controls"] or ())
    return Question(tuple(parse_solvers(methods)), shuffled=shuffled, **given)


def _next(results: "Results", out: str | None) -> str:
    if not out:
        return ""
    command = shlex.join(["python", "-m", "eval", "report", out, "--out", "page.html"])
    return f"{results.note}\nnext: {command}"


def _say_left_out(question: "Question", lengths: Iterable[int]) -> None:
    """Says on stderr which methods are not asked about which slices, and why."""
    left = dict.fromkeys(
        f"{solver.name} at {shown} ({refusal.partition(', as in')[0]})"
        for solver, shown, without, length in product(
            question.solvers, question.slices, question.without, lengths
        )
        if (refusal := solver.refusal(shown, length, "mask" not in without))
    )
    if left:
        say(f"left out: {'; '.join(left)}")


def _layers(words: Layers) -> Any:
    """Layers as a question has them: all, last, or numbers and tuples of numbers."""
    texts = [str(word) for word in listed(words)]
    if texts in (["all"], ["last"]):
        return texts[0]
    try:
        layers = [[int(one) for one in text.split("+")] for text in texts]
    except ValueError:
        raise RequestError(
            f"--layers {' '.join(texts)}: must be all, last, or numbers, as in 1 4 1+4"
        ) from None
    return tuple(layer[0] if len(layer) == 1 else tuple(layer) for layer in layers)


def _settings(methods: list[str], settings: list[str]) -> dict[str, dict[str, Any]]:
    """The methods asked, each with the settings that flags replace."""
    by_method: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for text in settings:
        label, dot, rest = text.partition(".")
        name, equals, value = rest.partition("=")
        if not (dot and equals and label in by_method):
            raise RequestError(
                f"--set {text}: must be METHOD.NAME=VALUE with METHOD one of {', '.join(by_method)}"
            )
        by_method[label][name] = _value(value)
    return by_method


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _prompts(checkpoint: "Checkpoint", asked: dict[str, Any], corpus: str) -> "list[Prompt]":
    from eval.models.text import SETS, drawn_prompts, held_out_text, padded, text_prompts

    tokenizer = checkpoint.tokenizer
    prompts = text_prompts(listed(asked["text"] or ()), tokenizer, checkpoint.config.context)
    for kind in [kind for kind in SETS if kind in (asked["prompts"] or ())]:
        checkpoint.check_length(asked["length"])
        text = held_out_text(checkpoint, corpus)
        wanted = asked["count"], asked["length"], asked["skip"], asked["least"]
        prompts += drawn_prompts(kind, text, *wanted)
    if asked["pad_to"]:
        prompts = padded(prompts, tokenizer, asked["pad_to"])
    longest = max(len(prompt.tokens) for prompt in prompts)
    if longest > checkpoint.config.context:
        raise RequestError(
            f"a prompt of {longest} tokens is longer than the context of {checkpoint.path}, "
            f"{checkpoint.config.context}; shorten --text, --length or --pad-to"
        )
    return prompts


def _tokens(text: str | None, checkpoint: "Checkpoint") -> tuple[int, ...] | None:
    from eval.models.text import encode_text

    if text is None:
        return None
    tokens = tuple(sorted(set(encode_text(checkpoint.tokenizer, text, "--allowed"))))
    if not tokens:
        raise RequestError(f"--allowed {text!r}: there is no token in it; give some text")
    return tokens
