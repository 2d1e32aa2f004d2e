"""Seeded faults, one for each kind of mixer, solver, lens and reader, that golden rows must see.

A fault replaces one function of the product by one that is wrong in a way that code gets wrong:
keys and values swapped, a slice off by one, a tie counted as a win. It names the cases of the suite
that must notice it. Where a redesign moves a function, the place moves with it; what goes wrong
stays. Each table says what goes wrong, where, and how; `FAULTS` are all of them.
"""

import operator
from dataclasses import replace
from typing import Any

import torch

from eval.inversion.objectives import l2
from eval.measurements import Frame
from tests.golden.fault import Change, Fault, Function, gives, instead, takes
from tests.golden.suite import model

Entry = tuple[str, str, Change]
BLIND = "a position does not see itself"
NEGATED, ZERO = gives(operator.neg), gives(torch.zeros_like)
ONE_MORE = gives(lambda value: value + 1)
LAYER_BELOW = takes(
    lambda site, *rest: (replace(site, layers=tuple(max(0, n - 1) for n in site.layers)), *rest)
)


def _own_target(pose: Function) -> Function:
    """A shuffled target that is not shuffled."""
    return lambda task, *more: pose(
        replace(task, asked=tuple(a._replace(shuffled=False) for a in task.asked)), *more
    )


def _of_first_seed(lines: Frame) -> Any:
    """Which lines are of the first training seed of their model and step."""
    return lines.groupby(["model", "step"])["weights"].transform("first") == lines["weights"]


MIXERS: dict[str, Entry] = {
    "flat": (
        BLIND,
        "mixers.masked:Flat.forward",
        instead(lambda self, x: self.mix(x) - self.mix.weight.diagonal()[: x.shape[1], None] * x),
    ),
    "llama": (
        "keys and values are swapped",
        "mixers.attention:Attention.project",
        gives(lambda qkv: (qkv[0], qkv[2], qkv[1])),
    ),
    "expanded": (
        "one of the hidden rows is lost",
        "mixers.masked:Expanded.rows",
        gives(lambda rows: (*(None if part is None else part[:1] for part in rows[:3]), *rows[3:])),
    ),
    "rectangular": (
        BLIND,
        "mixers.masked:Rectangular.rows",
        gives(lambda rows: (rows[0].tril(-1), *rows[1:])),
    ),
    "headed": (
        "the heads read each other's features",
        "mixers.masked:Headed.forward",
        takes(lambda self, x: (self, x.roll(1, -1))),
    ),
    "kernel": (
        "the taps are off by one",
        "mixers.masked:Kernel._shifted",
        gives(lambda taps: [(taps := list(taps))[-1], *taps[:-1]]),
    ),
    "parallel": (
        "one branch is lost",
        "mixers.masked:Triangle.rows",
        gives(lambda rows: (rows[0][:1], rows[1][:1])),
    ),
    "hybrid": (
        "the second of two mixers side by side is lost",
        "mixers.base:SideBySide.forward",
        instead(lambda self, x: self.mixers[0](x)),
    ),
    "in-turn": (
        "the second block is left out",
        "model:LanguageModel._run",
        gives(lambda blocks: list(blocks)[:1]),
    ),
    "hf-gpt2": (
        "positions are not added",
        "pretrained:PretrainedModel.with_positions",
        instead(lambda self, embeddings, start=0: embeddings),
    ),
    "hf-llama": (
        "positions are not rotated",
        "families:HalvesRotation.forward",
        instead(lambda self, x, start: x),
    ),
}
"""By the golden model; places in `arch`."""

SEARCH: dict[str, Entry] = {
    "the slice shows one channel too many": (
        "channels",
        "slices:Slice.narrow",
        instead(lambda self, outputs: outputs[..., self.low : self.high and self.high + 1]),
    ),
    "the layer below is read": (
        "shown: chance",
        "inversion.ask:Site.circuit",
        LAYER_BELOW,
    ),
    "the rounding floor is a hundred times as high": (
        "shown: sweep",
        "inversion.problem:_rounding",
        gives(lambda rounding: 100 * rounding),
    ),
    "the noise is a tenth stronger": (
        "noise: sweep",
        "inversion.ask:pose",
        takes(lambda c, o, r, s, noise, chance: (c, o, r, s, 1.1 * noise, chance)),
    ),
    "the shuffled target is the prompt's own": (
        "shuffled: sweep",
        "inversion.ask:Task._pose",
        _own_target,
    ),
    "ties are won": (
        "noise",
        "ranks:_compare",
        instead(lambda scores, own: (scores > own).sum(dim=-1) + 0.5),
    ),
    "collisions are no ambiguity": (
        "noise",
        "inversion.ask:verdicts",
        gives(lambda verdicts: ["recovered" if v == "ambiguous" else v for v in verdicts]),
    ),
    "padding counts as evidence": (
        "padded: sweep",
        "text:Prompt.real",
        instead(property(lambda self: len(self.tokens))),  # pyright: ignore[reportArgumentType]
    ),
    "the nearest token is taken for the second nearest": (
        "shown: sweep",
        "inversion.solvers.sweep:runner_up",
        ZERO,
    ),
    "guesses are read backwards": (
        "shown: propose",
        "inversion.guesses:Guesser.scores",
        NEGATED,
    ),
    "the prior counts three times": (
        "prior: sweep",
        "inversion.ask:ask_solver",
        takes(lambda one, *asked: (replace(one, settings={"prior": 3.0}), *asked)),
    ),
    "another draw": (
        "shown: chance",
        "inversion.ask:_generator",
        takes(lambda prompt, seed: (prompt, f"{seed} again")),
    ),
    "the first guess is taken for the answer": (
        "hidden: alternating",
        "inversion.turns:Turns.solved",
        instead(lambda self, rows, hidden, visible: torch.ones(len(rows), dtype=torch.bool)),
    ),
    "the farthest of the likeliest is taken": (
        "snap: snap",
        "inversion.solvers.snap:_nearest",
        instead(lambda problem, hidden, visible: hidden[-1]),
    ),
}
"""By what goes wrong; the case and the one solver that is asked, places in `eval`."""

GRADIENT: dict[str, Entry] = {
    "descent": ("the objective is another", "objectives:OBJECTIVES[l1]", instead(l2)),
    "adam, hidden": (
        "tokens are read by the inner product",
        "solvers.adam:by_distance",
        instead(lambda circuit, solution: solution @ circuit.vocabulary.T),
    ),
    "pez, shown": (
        "steps are half as long",
        "solvers.pez:scaled_rate",
        gives(lambda rate: rate / 2),
    ),
    "gcg, hidden": ("the worst candidates are tried", "solvers.gcg:gradient_at", NEGATED),
    "soda, hidden": ("there is no noise at the start", "solvers.soda:normal", ZERO),
}
"""By the case; places in `eval.inversion`."""

LENSES: dict[str, Entry] = {
    "residual": (
        "layers are taken for their neighbours",
        "residual:update_shares",
        gives(lambda shares: shares.roll(1, 0)),
    ),
    "logit": (
        "the final norm is left out",
        "logit:plain_read",
        instead(lambda checkpoint: lambda layer, stream: checkpoint.model.head(stream)),
    ),
    "tuned": (
        "the translation is left out",
        "tuned:tuned_read",
        takes(lambda model, weight, bias: (model, weight, 0 * bias)),
    ),
    "vectors": (
        "every metric is the inner product",
        "vectors:nearest",
        takes(lambda queries, keys, metric, *count: (queries, keys, "dot", *count)),
    ),
    "direction": (
        "temperatures multiply",
        "direction:heated",
        takes(lambda logits, temperatures: (logits, tuple(1 / t for t in temperatures))),
    ),
    "circuits": (
        "heads are taken for their neighbours",
        "circuits:value_maps",
        gives(lambda maps: (maps[0].roll(1, 0), maps[1])),
    ),
    "attribution": (
        "what is combined is one of the two",
        "attribution:combined",
        instead(lambda gradient, change: gradient),
    ),
    "patching": (
        "source and target are swapped",
        "patching:causal_trace",
        takes(lambda model, source, target, *rest: (model, target, source, *rest)),
    ),
    "steering": ("the direction is turned round", "steering:swap_vectors", NEGATED),
    "features": (
        "one active feature is left out",
        "features:active_in_text",
        takes(lambda values, most: (values, most - 1)),
    ),
    "detokenisation": (
        "ends of words are off by one",
        "detokenisation:words_of",
        gives(lambda words: (words[0].roll(1, 1), words[1].roll(1, 1))),
    ),
}
"""By the lens; places in `eval.lenses`."""

READERS: dict[str, Entry] = {
    "linear probe: the mean is not taken away": (
        "readers: probe",
        "classifiers:TokenMoments.mean",
        instead(property(lambda self: self.total.new_zeros(self.total.shape[1]))),  # pyright: ignore
    ),
    "geometry: the norms' directions stay": (
        "readers: geometry",
        "probes.jacobian:_removed",
        gives(lambda basis: basis[:, :0]),
    ),
    "loss: ends of text count as bytes": (
        "readers: loss",
        "language:_tokens",
        gives(lambda counts: (counts[0], counts[1], counts[2] + 13)),
    ),
    "summary: intervals are half as wide": (
        "tables: rows; summary",
        "summary:POOLS[share]",
        gives(lambda i: (i[0], (i[1] + i[0]) / 2, (i[2] + i[0]) / 2, i[3])),
    ),
    "compare: the first seed stands for all": (
        "tables: rows; loss; compare",
        "comparison:summarise",
        takes(lambda lines, *more: (lines[_of_first_seed(lines)], *more)),
    ),
    "texts: the first story is skipped": (
        "texts: file",
        "text:drawn_prompts",
        takes(lambda kind, text, count, length, skip, least: (kind, text, count, length, 1, least)),
    ),
    "texts: training stories are read": (
        "texts: directory, read",
        "text:open_corpus",
        takes(lambda corpus, split: (corpus, "train")),
    ),
    "texts: a file is read as a whole": (
        "texts: file, read",
        "text:open_corpus",
        lambda right: lambda corpus, split, valid_fraction: right(corpus, split),
    ),
    "texts: probes are fitted on what they are judged on": (
        "texts: packed; packed, read",
        "text:HeldOutText.stories",
        takes(lambda text, use: (text, "evaluation")),
    ),
}
"""By what goes wrong; the part of the suite and its cases, places in `eval`."""


def _mixer(name: str, entry: Entry) -> Fault:
    what, place, change = entry
    part = "readers" if name in ("flat", "llama") else "families"
    return Fault(f"{name}: {what}", f"arch.{place}", change, part, ("loss",), model=model(name))


def _search(what: str, entry: Entry) -> Fault:
    asked, place, change = entry
    case, _, solver = asked.partition(": ")
    return Fault(f"{asked}: {what}", f"eval.{place}", change, "search", (case,), solver)


def _gradient(case: str, entry: Entry) -> Fault:
    what, place, change = entry
    return Fault(f"{case}: {what}", f"eval.inversion.{place}", change, "gradient", (case,))


def _lens(name: str, entry: Entry) -> Fault:
    what, place, change = entry
    case = "llama" if name == "circuits" else "flat"
    return Fault(f"{name}: {what}", f"eval.lenses.{place}", change, "lenses", (case,), name)


def _reader(what: str, entry: Entry) -> Fault:
    asked, place, change = entry
    part, _, cases = asked.partition(": ")
    return Fault(what, f"eval.{place}", change, part, tuple(cases.split("; ")))


TABLES = {_mixer: MIXERS, _search: SEARCH, _gradient: GRADIENT, _lens: LENSES, _reader: READERS}
FAULTS = [make(name, entry) for make, table in TABLES.items() for name, entry in table.items()]
