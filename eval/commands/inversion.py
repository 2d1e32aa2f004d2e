"""The commands `invert` and `solvers`: which tokens can be recovered from which layer."""

import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from textwrap import indent, wrap
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from eval import RequestError
from eval.commands import (
    Device,
    Flag,
    Models,
    Natural,
    Plugins,
    Positive,
    Result,
    Rows,
    Source,
    command,
    listed,
    natural,
    positive,
    run_plugins,
)

if TYPE_CHECKING:
    from eval.inversion.questions import Question
    from eval.inversion.run import Job
    from eval.inversion.solvers import Solver
    from eval.models import Checkpoint
    from eval.rows import Results, Row
    from eval.text import Prompt

WIDTH = 100
QUICK = "quick"

Words: TypeAlias = str | Sequence[str] | None
Layers: TypeAlias = int | str | Sequence[int | str] | None


@command(layers="what is shown, and who is asked", text="prompts", batch="work")
def invert(
    models: Models,
    out: Rows = None,
    suite: Annotated[str, Flag(metavar="NAME|FILE")] = QUICK,
    device: Device = "auto",
    layers: Annotated[Layers, Flag(metavar="L", several=True)] = None,
    parts: Annotated[Words, Flag(metavar="PART", several=True)] = None,
    without: Annotated[Words, Flag(metavar="PIECE", several=True)] = None,
    slices: Annotated[Words, Flag(metavar="SLICE", several=True)] = None,
    methods: Annotated[Words, Flag(metavar="NAME", several=True)] = None,
    set_: Annotated[Words, Flag(metavar="METHOD.NAME=VALUE", several=True)] = None,
    plugin: Plugins = None,
    seeds: Annotated[int | Sequence[int] | None, Flag(natural, "N", several=True)] = None,
    noise: Annotated[float | Sequence[float] | None, Flag(float, several=True)] = None,
    controls: Annotated[Words, Flag(metavar="NAME", several=True)] = None,
    text: Annotated[Words, Flag(several=True)] = None,
    prompts: Annotated[
        Words, Flag(metavar="SET", choices=("story", "inside", "random"), several=True)
    ] = None,
    count: Positive | None = None,
    skip: Natural = 0,
    length: Positive | None = None,
    pad_to: Annotated[int | None, Flag(positive, "N")] = None,
    allowed: Annotated[str | None, Flag(metavar="TEXT")] = None,
    corpus: Source | None = None,
    batch: Positive | None = None,
    limit: Annotated[int | None, Flag(positive, "N")] = None,
    resume: bool = True,
) -> Result:
    """Recovers input tokens from a layer's outputs, by search or gradients: rows into --out.

    Everything is checked first; rows that are there already are not redone.

    Args:
        models: model directories
        out: results directory
        suite: quick (default), standard, full, sources, or a YAML file; the flags below replace
            its fields
        device: where to compute; auto (default) takes a GPU that is in reach
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
        text: texts to recover as they are
        prompts: sets of prompts: story, inside, random
        count: prompts of each set
        skip: stories left out at the start
        length: tokens of each prompt
        pad_to: pads after each prompt
        allowed: gradient methods answer in its tokens
        corpus: held-out stories: of packed data, hub:NAME, toy (the embedded generator), or a
            directory with valid.*; of a .txt, .jsonl or .parquet file, the share that packing sets
            aside; default: those of the data that the models were trained on
        batch: rows of a gradient batch; default: as many as the device's memory bears
        limit: stop after about N rows
        resume: go on where DIR was left (default), or refuse a DIR that holds rows
    """
    arguments = dict(locals())
    from eval.inversion.questions import derive, read_calls, read_suite
    from eval.inversion.run import SHUFFLED, plan
    from eval.models import open_models
    from eval.report.tables import answer_lines, terminal_table
    from eval.tasks import open_results, rows_of, run_tasks
    from eval.text import choose_corpora, choose_corpus

    run_plugins(plugin, [*listed(models), out])
    if calls := read_calls(suite):
        return _run_calls(calls, arguments | {"models": open_models(models, device)})
    controls, given_texts = listed(controls or ()), listed(text or ())
    fields = {"parts": parts, "slices": slices, "seeds": seeds, "noise": noise}
    override: dict[str, Any] = {k: listed(v) for k, v in fields.items() if v is not None}
    if layers is not None:
        override["layers"] = _layers(layers)
    if without is not None:
        override["without"] = [listed(without)]
    if SHUFFLED in controls:
        override["shuffled"] = True
    if set_ or methods:
        override["methods"] = _settings(listed(methods or ()), listed(set_ or ()))
    asked = read_suite(suite, override)
    given = {"set": prompts, "count": count, "length": length}
    asked.prompts.update({name: value for name, value in given.items() if value is not None})
    least = None if count else 1  # of the prompts that a suite asks for
    sets = asked.prompts["set"] if prompts or not text else []
    opened = open_models(models, device)
    if sets:  # texts have no corpus: of those, each model's search guesses from its own
        corpus = choose_corpus(opened, corpus)
    checkpoints = [
        (checkpoint, source)
        for model, source in zip(opened, choose_corpora(opened, corpus), strict=True)
        for checkpoint in (model, *(derive(model, c) for c in controls if c != SHUFFLED))
    ]
    jobs: list[Job] = []
    by_model: dict[str, list[Prompt]] = {}
    for checkpoint, source in checkpoints:
        drawn = _prompts(checkpoint, asked.prompts, sets, given_texts, source, skip, pad_to, least)
        _same_prompts(by_model, checkpoint, drawn)
        tokens = _tokens(allowed, checkpoint)
        for question in asked.questions:
            jobs += plan(checkpoint, question, drawn, source, batch, tokens)
    if methods or slices:  # a suite's own questions are meant to have such
        lengths = {len(prompt.tokens) for drawn in by_model.values() for prompt in drawn}
        _say_left_out(asked.questions, lengths)
    with open_results(out, resume) as results:
        run_tasks(jobs, results, "inverting", limit)
        rows = rows_of(jobs, results)
    if not rows:  # of a shard or a limit
        return Result(rows, "no rows yet", _next(results, out))
    answers = answer_lines(rows)
    return Result(rows, "\n\n".join([*answers, terminal_table(rows)]), _next(results, out))


def _run_calls(calls: dict[str, dict[str, Any]], arguments: dict[str, Any]) -> Result:
    """Runs `invert` for each entry of a suite of calls, with the flags that were given."""
    from eval.report.tables import terminal_table

    defaults = {name: p.default for name, p in inspect.signature(invert).parameters.items()}
    given = {name: value for name, value in arguments.items() if value != defaults[name]}
    rows: dict[str, Row] = {}
    result, left_out = Result([], ""), []
    for name, entry in calls.items():
        call: dict[str, Any] = {**entry, **given, "suite": QUICK}
        try:
            result = invert(**call)
        except TypeError:
            allowed = ", ".join(defaults)
            raise RequestError(
                f"--suite {arguments['suite']}: {name} has an unknown key; allowed: {allowed}"
            ) from None
        except RequestError as error:
            if not rows and name == list(calls)[-1]:
                raise
            left_out.append(f"left out: {name} ({error})")
            continue
        given["resume"] = True
        rows |= {row["key"]: row for row in result.rows}
    kept = list(rows.values())
    return Result(kept, terminal_table(kept), "\n".join([*left_out, result.notes]))


def _next(results: "Results", out: str | None) -> str:
    return f"{results.note}\nnext: python -m eval report {out} --out page.html" if out else ""


def _same_prompts(
    by_model: "dict[str, list[Prompt]]", checkpoint: "Checkpoint", prompts: "list[Prompt]"
) -> None:
    """Enters a model's prompts by its name.

    Raises:
        RequestError: a model of that name is there, and has other prompts.
    """
    name = checkpoint.provenance["name"]
    if by_model.setdefault(name, prompts) != prompts:
        raise RequestError(
            f"{checkpoint.path}: another model is named {name} too, and reads text otherwise; "
            "ask them apart"
        )


def _say_left_out(questions: "Sequence[Question]", lengths: Iterable[int]) -> None:
    """Says on stderr which methods are not asked about which slices, and why."""
    left = dict.fromkeys(
        f"{label} at {shown} ({refusal.partition(', as in')[0]})"
        for one in questions
        for label, method in one.methods.items()
        for shown, without, length in product(one.slices, one.without, lengths)
        if (refusal := method.refusal(shown, length, "mask" not in without))
    )
    if left:
        print(f"left out: {'; '.join(left)}", file=sys.stderr)


def _layers(words: "int | str | Sequence[int | str]") -> Any:
    """Layers as a question has them: all, last, or numbers and lists of numbers."""
    texts = [str(word) for word in listed(words)]
    if texts in (["all"], ["last"]):
        return texts[0]
    try:
        layers = [[int(one) for one in text.split("+")] for text in texts]
    except ValueError:
        raise RequestError(
            f"--layers {' '.join(texts)}: must be all, last, or numbers, as in 1 4 1+4"
        ) from None
    return [layer[0] if len(layer) == 1 else layer for layer in layers]


def _settings(methods: list[str], settings: list[str]) -> dict[str, dict[str, Any]]:
    """The methods asked, each with the settings that flags replace."""
    if settings and not methods:
        raise RequestError("--set: needs --methods, to say which solvers are asked")
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


def _prompts(
    checkpoint: "Checkpoint",
    wanted: dict[str, Any],
    sets: Sequence[str],
    texts: Sequence[str],
    corpus: str,
    skip: int,
    pad_to: int | None,
    least: int | None,
) -> "list[Prompt]":
    from eval.text import SETS, drawn_prompts, held_out_text, padded, text_prompts

    tokenizer = checkpoint.tokenizer
    prompts = text_prompts(list(texts), tokenizer)
    for kind in [kind for kind in SETS if kind in sets]:
        count, length = wanted["count"], wanted["length"]
        checkpoint.check_length(length)
        text = held_out_text(checkpoint, corpus)
        prompts += drawn_prompts(kind, text, count, length, skip, least)
    if pad_to:
        prompts = padded(prompts, tokenizer, pad_to)
    longest = max(len(prompt.tokens) for prompt in prompts)
    if longest > checkpoint.config.context:
        raise RequestError(
            f"a prompt of {longest} tokens is longer than the context of {checkpoint.path}, "
            f"{checkpoint.config.context}; shorten --text, --length or --pad-to"
        )
    return prompts


def _tokens(text: str | None, checkpoint: "Checkpoint") -> tuple[int, ...] | None:
    if text is None:
        return None
    tokens = tuple(sorted(set(checkpoint.tokenizer.encode(text, add_special_tokens=False).ids)))
    if not tokens:
        raise RequestError(f"--allowed {text!r}: there is no token in it; give some text")
    return tokens


@command()
def list_solvers(
    names: Annotated[Words, Flag(metavar="NAME", several=True)] = None, plugin: Plugins = None
) -> Result:
    """Lists the solvers, with their settings and defaults.

    Args:
        names: solvers; default: all
        plugin: a Python file of yours that registers more (docs/extending.md); may be given several
            times. It is run as your own code, with all your rights: give only files that you trust
    """
    from eval.inversion.solvers import solvers

    run_plugins(plugin)
    known, wanted = solvers(), listed(names or ())
    for name in wanted:
        if name not in known:
            raise RequestError(f"--names {name}: there is no such solver; use {', '.join(known)}")
    chosen = [known[name] for name in wanted or known]
    fields = ("name", "family", "title", "text", "slices", "random", "settings")
    rows = [
        {name: getattr(each, name) for name in fields} | {"settings_text": each.setting_texts}
        for each in chosen
    ]
    return Result(rows, "\n\n".join(map(_described, chosen)))


def _described(solver: "Solver") -> str:
    lines = [f"{solver.name} ({solver.family}; {solver.slices})"]
    lines.append(indent("\n".join(wrap(solver.text, WIDTH - 4)), "    "))
    for name, default in solver.settings.items():
        about = f"{solver.name}.{name}={json.dumps(default)}: {solver.setting_texts[name]}"
        lines.append(indent("\n".join(wrap(about, WIDTH - 6, subsequent_indent="    ")), "      "))
    return "\n".join(lines)
