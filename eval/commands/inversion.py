"""The commands `invert`, `curves` and `solvers`: which tokens can be recovered from which layer."""

import json
import sys
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from textwrap import indent, wrap
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from eval import shards
from eval.api import Models, Result, Rows, command, directory, drawn
from eval.cli import Device, Flag, Natural, Plugins, Positive, Source, listed, natural, positive
from eval.errors import RequestError

if TYPE_CHECKING:
    from eval.checkpoints import Checkpoint
    from eval.inversion.questions import Job
    from eval.inversion.solvers import Solver
    from eval.results import Row
    from eval.text import Prompt

CHANNELS = "Tokens recovered, %, by channels shown, [:, :, :c]; the cliff is the fewest for half."
NOISE = "Tokens recovered, %, by noise / root mean square; SNR50 is where half are, in dB."
WIDTH = 100

Words: TypeAlias = str | Sequence[str] | None
Layers: TypeAlias = int | str | Sequence[int | str] | None


@command(layers="what is shown, and who is asked", text="prompts", batch="work")
def invert(
    models: Models,
    out: Rows = None,
    suite: Annotated[str, Flag(metavar="NAME|FILE")] = "quick",
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
    corpus: Source = "toy",
    batch: Positive = 64,
    limit: Annotated[int | None, Flag(positive, "N")] = None,
    resume: bool = True,
) -> Result:
    """Which input tokens can be recovered from which layer: rows of evidence into --out.

    Everything is checked first; what is there already is not redone.

    Args:
        models: model directories
        out: results directory
        suite: quick (default), standard, full, or a YAML file; the flags below replace its fields
        device: where to compute; auto (default) takes a GPU that is in reach
        layers: all, last, or numbers; 0 is the embedding; 1+4 joins two
        parts: of a layer: block, mixer, stream
        without: ablations: residual, norms, channel, mask
        slices: what is shown of (B, T, D), as in '[:, 3:, :]' or '[:, :, :16]'
        methods: solvers, as in adam sweep alternating; `python -m eval solvers` lists them
        set_: a setting of a method, as in adam.steps=500; --methods must be given
        plugin: a Python file of yours that registers more (docs/extending.md); may be given several
            times. It is run as your own code, with all your rights: give only files that you trust
        seeds: of the solvers
        noise: in the target's own units
        controls: asked beside: shuffled, identity, scale=NUMBER, embedding=DIR
        text: texts to recover as they are
        prompts: sets of prompts: story, inside, random
        count: prompts of each set
        skip: stories left out at the start
        length: tokens of each prompt
        pad_to: pads after each prompt
        allowed: gradient methods answer in its tokens
        corpus: held-out stories: of toy (the embedded generator, default), hub:NAME, a directory
            with valid.*, or packed data; of a .txt, .jsonl or .parquet file, the share that
            packing sets aside
        batch: rows of a gradient batch
        limit: stop after about N rows
        resume: go on where DIR was left (default), or refuse a DIR that holds rows
    """
    from eval.checkpoints import open_models
    from eval.inversion.controls import derive
    from eval.inversion.questions import plan
    from eval.inversion.run import SHUFFLED, Runner
    from eval.inversion.suites import load_suite, read_suite
    from eval.plugins import run_plugins
    from eval.progress import track
    from eval.report import terminal_table
    from eval.results import Results, read_rows
    from eval.text import held_out_text

    run_plugins(plugin, [*listed(models), out])
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
    asked = read_suite(load_suite(suite), override)
    given = {"set": prompts, "count": count, "length": length}
    asked.prompts.update({name: value for name, value in given.items() if value is not None})
    sets = asked.prompts["set"] if prompts or not text else []
    checkpoints = [
        checkpoint
        for model in open_models(models, device)
        for checkpoint in (model, *(derive(model, c) for c in controls if c != SHUFFLED))
    ]
    by_model, texts, tokens = {}, {}, {}
    for checkpoint in checkpoints:
        name = checkpoint.provenance["name"]
        prompts_of_it = _prompts(checkpoint, asked.prompts, sets, given_texts, corpus, skip, pad_to)
        _same_prompts(by_model, checkpoint, prompts_of_it)
        texts[name] = held_out_text(checkpoint, corpus).background()
        tokens[name] = _tokens(allowed, checkpoint)

    def planned(done: set[str]) -> "list[Job]":
        jobs = []
        for checkpoint in checkpoints:
            name = checkpoint.provenance["name"]
            for question in asked.questions:
                jobs += plan(checkpoint, question, by_model[name], done, batch, tokens[name])
        return jobs

    planned(set())  # what cannot be asked is refused before anything is written
    with directory(out) as place, shards.together():
        whole = Results(place) if shards.rank() == 0 else None
        if whole:
            whole.merge()
        shards.wait()
        results = Results(place, shards.rank()) if shards.world() > 1 else whole
        assert results
        if results.keys and not resume:
            raise RequestError(
                f"--no-resume: {out} holds {len(results.keys)} rows; give another directory"
            )
        jobs = shards.share(_first(planned(results.keys), limit))
        if not jobs:
            print(f"{results.path}: every row is there already", file=sys.stderr)
        work = Runner(by_model, texts).run_all(jobs, results.append)
        for _ in track(work, [job.cost for job in jobs], "inverting"):
            pass
        shards.wait()
        if not whole:
            return Result([], "")
        whole.merge()
        rows = read_rows([place])
    notes = f"rows: {whole.path}\nnext: python -m eval report {out} --out page.html"
    return Result(rows, terminal_table(rows), notes if out else "")


@command()
def curves(
    models: Models,
    out: Rows = None,
    corpus: Source = "toy",
    layers: Annotated[Layers, Flag(metavar="L", several=True)] = "last",
    methods: Annotated[Words, Flag(metavar="NAME", several=True)] = ("sweep", "adam", "expected"),
    channels: bool = False,
    noise: bool = False,
    count: Positive = 8,
    length: Positive = 16,
    device: Device = "auto",
) -> Result:
    """Recovery against the channels shown and against noise, bisected where it crosses one half.

    Everything is checked first; what is there already is not redone.

    Args:
        models: model directories
        out: results directory
        corpus: held-out stories: of toy (the embedded generator, default), hub:NAME, a directory
            with valid.*, or packed data; of a .txt, .jsonl or .parquet file, the share that
            packing sets aside
        layers: last (default), all, or numbers
        methods: gradient methods, sweep, propose, and expected (noise alone)
        channels: the curve over channels alone
        noise: the curve over noise alone
        count: story prompts
        length: tokens of each prompt
        device: where to compute; auto (default) takes a GPU that is in reach
    """
    from eval.checkpoints import open_models
    from eval.inversion.curves import plan_curves, run_curves
    from eval.inversion.run import Runner
    from eval.progress import track
    from eval.results import Results, read_rows
    from eval.text import held_out_text, story_prompts

    wanted = {"channels": channels, "noise": noise}
    axes = [name for name in wanted if wanted[name]] or list(wanted)
    sites, solvers = _layers(layers or "last", joined=False), _methods(listed(methods or ()), axes)
    checkpoints = open_models(models, device)
    with directory(out) as place:
        results = Results(place)
        tasks, by_model, texts = [], {}, {}
        for checkpoint in checkpoints:
            context = checkpoint.config.context
            if length > context:
                raise RequestError(
                    f"--length {length}: the context of {checkpoint.path} is {context}; "
                    "give a shorter one"
                )
            text = held_out_text(checkpoint, corpus)
            prompts = story_prompts(text, count, length)
            _same_prompts(by_model, checkpoint, prompts)
            texts[checkpoint.provenance["name"]] = text.background()
            tasks += plan_curves(checkpoint, sites, axes, solvers, prompts, results.keys)
        if not tasks:
            print(f"{results.path}: every curve is there already", file=sys.stderr)
        work = run_curves(tasks, Runner(by_model, texts), results)
        for _ in track(work, [task.cost for task in tasks], "curves"):
            pass
        rows = read_rows([place])
    notes = f"rows: {results.path}\nnext: python -m eval report {out} --out page.html"
    return Result(rows, curve_tables(rows), notes if out else "")


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


def _layers(words: "int | str | Sequence[int | str]", joined: bool = True) -> Any:
    """Layers as a question has them: all, last, or numbers, and with `joined` lists of numbers."""
    texts = [str(word) for word in listed(words)]
    if texts in (["all"], ["last"]):
        return texts[0]
    try:
        layers = [[int(one) for one in text.split("+" if joined else None)] for text in texts]
    except ValueError:
        allowed = "all, last, or numbers, as in 1 4" + (" 1+4" if joined else "")
        raise RequestError(f"--layers {' '.join(texts)}: must be {allowed}") from None
    single = [layer[0] if len(layer) == 1 else layer for layer in layers]
    return single if joined else tuple(dict.fromkeys(single))


def _settings(methods: list[str], settings: list[str]) -> dict[str, dict[str, Any]]:
    """The methods asked, each with the settings that flags replace."""
    if settings and not methods:
        raise RequestError("--set: needs --methods, to say which solvers are asked")
    found: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for text in settings:
        label, dot, rest = text.partition(".")
        name, equals, value = rest.partition("=")
        if not (dot and equals and label in found):
            raise RequestError(
                f"--set {text}: must be METHOD.NAME=VALUE with METHOD one of {', '.join(found)}"
            )
        found[label][name] = _value(value)
    return found


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
) -> "list[Prompt]":
    from eval.text import SETS, drawn_prompts, held_out_text, padded, text_prompts

    tokenizer = checkpoint.tokenizer
    prompts = text_prompts(list(texts), tokenizer)
    for kind in [kind for kind in SETS if kind in sets]:
        count, length = wanted["count"], wanted["length"]
        text = held_out_text(checkpoint, corpus)
        prompts += drawn_prompts(kind, text, count, length, skip)
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
    found = tuple(sorted(set(checkpoint.tokenizer.encode(text, add_special_tokens=False).ids)))
    if not found:
        raise RequestError(f"--allowed {text!r}: there is no token in it; give some text")
    return found


def _first(jobs: "list[Job]", limit: int | None) -> "list[Job]":
    """As many jobs as it takes to make `limit` rows."""
    if limit is None:
        return jobs
    sizes = [0]
    for job in jobs:
        sizes.append(sizes[-1] + len(job.cells))
    return list(islice(jobs, sum(size < limit for size in sizes[:-1])))


def _methods(names: list[str], axes: list[str]) -> dict[str, Any]:
    from eval.inversion.solvers import parse_solvers

    found = parse_solvers(names)
    if "noise" not in axes and all(method.family == "prior" for method in found.values()):
        raise RequestError(
            f"--methods {' '.join(names)}: weighs a prior against noise, and --channels has none; "
            "add sweep or adam, or ask --noise"
        )
    return found


def curve_tables(rows: "list[Row]") -> str:
    """The rows of kind "curve" as tables for a terminal, one for each axis."""
    curves = [row for row in rows if row.get("kind") == "curve"]
    parts = []
    for axis, title in (("channels", CHANNELS), ("noise", NOISE)):
        own = [row for row in curves if row["axis"] == axis]
        if own:
            parts += [title, _table(own, axis)]
    return "\n".join(parts)


def _table(curves: "list[Row]", axis: str) -> str:
    from rich import box
    from rich.table import Table

    grid = sorted(set.intersection(*(set(row["values"]) for row in curves)))
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("model", "step", "layer", "method"):
        table.add_column(name, no_wrap=True)
    read = ["cliff", "asked beside"] if axis == "channels" else ["SNR50, dB", "noise"]
    for name in [*(f"{value:.3g}" for value in grid), *read]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in sorted(curves, key=_place):
        shares = dict(zip(row["values"], row["top1"], strict=True))
        cells = [f"{100 * shares[value]:.0f}" for value in grid]
        table.add_row(*map(str, _place(row)), *cells, *_CELLS[axis](row))
    return drawn(table, width=150)


def _place(row: "Row") -> tuple[Hashable, ...]:
    about = row["checkpoint"]
    return about["name"], about["step"], row["site"]["layer"], row["method"]


def _channels(row: "Row") -> list[str]:
    if row["value"] is None:
        return [f"more than {max(row['values'])}", ""]
    between = row["bracket"]
    return [
        f"{row['value']:.0f} ({_end(row['low'])} to {_end(row['high'])})",
        "" if between is None else f"{between[1]:.0f}",
    ]


def _noise(row: "Row") -> list[str]:
    if row["value"] is None:
        return ["", f"more than {max(row['values']):g}"]
    if not row["value"]:
        return ["", "none is too much"]
    interval = f"({_end(row['snr50_low'])} to {_end(row['snr50_high'])})"
    return [f"{row['snr50']:.1f} {interval}", f"{row['value']:.3g}"]


_CELLS: dict[str, "Callable[[Row], list[str]]"] = {"channels": _channels, "noise": _noise}


def _end(value: float | None) -> str:
    """A limit; open where the curve does not reach it."""
    if value is None:
        return "open"
    return f"{value:.0f}" if isinstance(value, int) else f"{value:.1f}"


@command()
def list_solvers(
    names: Annotated[Words, Flag(metavar="NAME", several=True)] = None, plugin: Plugins = None
) -> Result:
    """The solvers, what each does, its settings and their defaults.

    Args:
        names: solvers; default: all
        plugin: a Python file of yours that registers more (docs/extending.md); may be given several
            times. It is run as your own code, with all your rights: give only files that you trust
    """
    from eval.inversion.solvers import solvers
    from eval.plugins import run_plugins

    run_plugins(plugin)
    known, wanted = solvers(), listed(names or ())
    for name in wanted:
        if name not in known:
            raise RequestError(f"--names {name}: there is no such solver; use {', '.join(known)}")
    chosen = [known[name] for name in wanted or known]
    rows = [
        {
            "name": each.name,
            "family": each.family,
            "title": each.title,
            "text": each.text,
            "slices": each.slices,
            "random": each.random,
            "settings": each.settings,
            "settings_text": each.setting_texts,
        }
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
