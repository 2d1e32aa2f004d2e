"""Seeded faults, one for each kind of mixer, solver, lens and reader, that golden rows must see.

A fault replaces one function of the product by one that is wrong in a way that code gets wrong:
keys and values swapped, a slice off by one, a tie counted as a win. It names the cases of the suite
that must notice it. Where a redesign moves a function, the fault's `target` moves with it; what
goes wrong stays.
"""

import dataclasses
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch

from eval.inversion.spaces import by_dot, l2
from tests.golden.suite import model

Function = Callable[..., Any]
Change = Callable[[Function], Function]


class Fault(NamedTuple):
    """One thing that goes wrong.

    Attributes:
        what: in words.
        target: `module:name`, or `module:name[key]` of a dictionary.
        change: makes the wrong function of the right one.
        part, cases: of the suite; the first cases only lay the ground for the last.
        solver: the one solver or lens that is asked, of those of the case.
        model: the one model that is asked.
    """

    what: str
    target: str
    change: Change
    part: str
    cases: tuple[str, ...]
    solver: str = ""
    model: str = ""


def gives(change: Callable[[Any], Any]) -> Change:
    """Another result."""

    def made(right: Function) -> Function:
        @wraps(right)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return change(right(*args, **kwargs))

        return wrong

    return made


def takes(change: Callable[..., tuple[Any, ...]]) -> Change:
    """Other positional arguments."""

    def made(right: Function) -> Function:
        @wraps(right)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return right(*change(*args), **kwargs)

        return wrong

    return made


def instead(wrong: Function) -> Change:
    """Another function altogether."""
    return lambda right: wraps(right)(wrong) if callable(right) else wrong


def _own_target(pose: Function) -> Function:
    """A shuffled target that is not shuffled."""
    return lambda self, cells: pose(self, [dataclasses.replace(c, control=None) for c in cells])


def _layer_below(circuit: Function) -> Function:
    def wrong(self: Any, checkpoint: Any) -> Any:
        lower = tuple(max(0, layer - 1) for layer in self.layers)
        return circuit(dataclasses.replace(self, layers=lower), checkpoint)

    return wrong


def _turned(outcomes: Any) -> Any:
    return [dataclasses.replace(outcome, holds=not outcome.holds) for outcome in outcomes]


def _mixer(what: str, target: str, change: Change, name: str) -> Fault:
    part = "readers" if name in ("flat", "llama") else "families"
    return Fault(what, f"arch.{target}", change, part, ("loss",), model=model(name))


def _gradient(what: str, target: str, change: Change, case: str) -> Fault:
    return Fault(what, f"eval.inversion.{target}", change, "gradient", (case,))


def _search(what: str, target: str, change: Change, case: str, solver: str = "") -> Fault:
    return Fault(what, f"eval.inversion.{target}", change, "search", (case,), solver)


def _lens(name: str, what: str, target: str, change: Change, case: str = "flat") -> Fault:
    return Fault(what, f"eval.lenses.{target}", change, "lenses", (case,), name)


def _reader(what: str, target: str, change: Change, case: str) -> Fault:
    return Fault(what, f"eval.{target}", change, "readers", (case,))


MIXERS = [
    _mixer(
        "flat: a position does not see itself",
        "mixers.masked:Flat.forward",
        instead(lambda self, x: self.mix(x) - self.mix.weight.diagonal()[: x.shape[1], None] * x),
        "flat",
    ),
    _mixer(
        "attention: keys and values are swapped",
        "mixers.attention:Attention.project",
        gives(lambda qkv: (qkv[0], qkv[2], qkv[1])),
        "llama",
    ),
    _mixer(
        "expanded: one of the hidden rows is lost",
        "mixers.masked:Expanded.rows",
        gives(
            lambda rows: tuple(None if part is None else part[:1] for part in rows[:3]) + rows[3:]
        ),
        "expanded",
    ),
    _mixer(
        "rectangular: a position does not see itself",
        "mixers.masked:Rectangular.rows",
        gives(lambda rows: (rows[0].tril(-1), *rows[1:])),
        "rectangular",
    ),
    _mixer(
        "headed: the heads read each other's features",
        "mixers.masked:Headed.forward",
        takes(lambda self, x: (self, x.roll(1, -1))),
        "headed",
    ),
    _mixer(
        "kernel: the taps are off by one",
        "mixers.masked:Kernel._shifted",
        gives(lambda taps: [(taps := list(taps))[-1], *taps[:-1]]),
        "kernel",
    ),
    _mixer(
        "parallel: one branch is lost",
        "mixers.masked:Triangle.rows",
        gives(lambda rows: (rows[0][:1], rows[1][:1])),
        "parallel",
    ),
    _mixer(
        "softmax: a position does not see itself",
        "mixers.masked:Softmax.rows",
        gives(lambda rows: (rows[0].tril(-1), rows[1])),
        "softmax",
    ),
    _mixer(
        "toeplitz: the lags are off by one",
        "mixers.masked:Diagonals.rows",
        gives(lambda rows: (rows[0].roll(1, 0), rows[1])),
        "toeplitz",
    ),
    _mixer(
        "side by side: the second mixer is lost",
        "mixers.base:SideBySide.forward",
        instead(lambda self, x: self.mixers[0](x)),
        "hybrid",
    ),
    _mixer(
        "in turn: the second block is left out",
        "model:LanguageModel._run",
        gives(lambda blocks: list(blocks)[:1]),
        "in-turn",
    ),
    _mixer(
        "GPT-2: positions are not added",
        "pretrained:PretrainedModel.with_positions",
        instead(lambda self, embeddings, start=0: embeddings),
        "hf-gpt2",
    ),
    _mixer(
        "Llama: positions are not rotated",
        "wrapped:HalvesRotation.forward",
        instead(lambda self, x, start: x),
        "hf-llama",
    ),
]
PROBLEMS = [
    Fault(
        "the slice shows one channel too many",
        "eval.slices:Slice.narrow",
        instead(lambda self, outputs: outputs[..., self.low : self.high and self.high + 1]),
        "search",
        ("channels",),
    ),
    _search("the layer below is read", "questions:Site.circuit", _layer_below, "shown", "chance"),
    _search(
        "the rounding floor is a hundred times as high",
        "problem:Measured.floor",
        gives(lambda floor: 100 * floor),
        "shown",
        "sweep",
    ),
    _search(
        "the noise is a tenth stronger",
        "run:pose",
        takes(lambda c, t, s, own, noise, chance: (c, t, s, own, 1.1 * noise, chance)),
        "noise",
        "sweep",
    ),
    _search(
        "the shuffled target is the prompt's own",
        "run:Job._pose",
        _own_target,
        "shuffled",
        "sweep",
    ),
    Fault(
        "ties are won",
        "eval.ranks:_compare",
        instead(lambda scores, own: (scores > own).sum(dim=-1) + 0.5),
        "search",
        ("channels",),
    ),
    _search(
        "collisions are no ambiguity",
        "run:verdicts",
        gives(lambda verdicts: ["recovered" if v == "ambiguous" else v for v in verdicts]),
        "channels",
    ),
    Fault(
        "padding counts as evidence",
        "eval.text:Prompt.real",
        instead(property(lambda self: len(self.tokens))),  # pyright: ignore[reportArgumentType]
        "search",
        ("padded",),
        "sweep",
    ),
]
SOLVERS = [
    _search(
        "sweep: the nearest token is taken for the second nearest",
        "search.sweep:runner_up",
        gives(lambda distances: 0 * distances),
        "shown",
        "sweep",
    ),
    _search(
        "propose: guesses are read backwards",
        "lexicon:Reader.first",
        gives(lambda read: -read if read.is_floating_point() else read.flip(-1)),
        "shown",
        "propose",
    ),
    _search(
        "expected: the prior counts three times",
        "solvers:Solver.answer",
        takes(
            lambda solver, *asked: (dataclasses.replace(solver, settings={"weight": 3.0}), *asked)
        ),
        "noise",
        "expected",
    ),
    _search(
        "chance: another draw",
        "run:_generator",
        takes(lambda prompt, seed: (prompt, f"{seed} again")),
        "shown",
        "chance",
    ),
    _search(
        "alternating: the first guess is taken for the answer",
        "search.alternating:_Search._solved",
        instead(lambda self, hidden, visible: True),
        "hidden",
        "alternating",
    ),
    _search(
        "enumerate: the other pairs are not tried",
        "search.enumerate:_rule_out",
        instead(lambda *_: None),
        "enumerated, two",
    ),
    _search(
        "snap: the farthest of the likeliest is taken",
        "search.others:_nearest",
        instead(lambda problem, hidden, visible: hidden[-1]),
        "snap",
    ),
    _gradient("descent: the objective is another", "spaces:OBJECTIVES[l1]", instead(l2), "descent"),
    _gradient(
        "adam: tokens are read by the inner product",
        "spaces:DECODERS[euclid]",
        instead(by_dot),
        "adam, hidden",
    ),
    _gradient(
        "lbfgs: the curvature is forgotten",
        "gradient.lbfgs:_History.inverse_hessian",
        instead(lambda self, gradient: gradient),
        "lbfgs, shown",
    ),
    _gradient(
        "levenberg: the residuals are not those of the target",
        "gradient.levenberg:_residuals",
        gives(lambda residuals: residuals + 0.1),
        "levenberg, shown",
    ),
    _gradient(
        "pez: steps are half as long",
        "gradient.loop:Moments.direction",
        gives(lambda direction: direction / 2),
        "pez, shown",
    ),
    _gradient(
        "gumbel: there is no noise",
        "gradient.gumbel:_noise",
        gives(torch.zeros_like),
        "gumbel, hidden",
    ),
    _gradient(
        "gcg: the worst candidates are tried",
        "gradient.gcg:gradient_at",
        gives(lambda gradient: -gradient),
        "gcg, hidden",
    ),
    _gradient(
        "arca: the worst candidates are tried",
        "gradient.arca:gradient_at",
        gives(lambda gradient: -gradient),
        "arca, hidden",
    ),
    _gradient(
        "soda: there is no noise at the start",
        "gradient.soda:normal",
        gives(torch.zeros_like),
        "soda, hidden",
    ),
    _gradient(
        "pia: neighbouring tokens are picked",
        "gradient.pia:_pick",
        gives(lambda tokens: (tokens + 1) % 384),
        "pia, hidden",
    ),
]
LENSES = [
    _lens(
        "residual",
        "residual: layers are taken for their neighbours",
        "residual:similarity",
        takes(lambda streams, batch: (streams.roll(1, 0), batch)),
    ),
    _lens(
        "logit",
        "logit: the final norm is left out",
        "logit_lens:plain",
        instead(lambda checkpoint: lambda layer, stream: checkpoint.model.head(stream)),
    ),
    _lens(
        "tuned",
        "tuned: the translation is left out",
        "tuned_lens:Tuned.read",
        instead(lambda self, model, layer, stream: model.logits(stream)),
    ),
    _lens(
        "geometry",
        "geometry: every metric is the inner product",
        "geometry:closeness",
        takes(lambda queries, keys, metric: (queries, keys, "dot")),
    ),
    _lens(
        "bigrams",
        "bigrams: pairs are counted backwards",
        "bigrams:count_bigrams",
        takes(lambda tokens, vocabulary: (tokens.flip(-1), vocabulary)),
    ),
    _lens(
        "confidence",
        "confidence: temperatures multiply",
        "confidence:heated",
        takes(lambda logits, temperatures: (logits, tuple(1 / t for t in temperatures))),
    ),
    _lens(
        "path",
        "path: layers are off by one",
        "path:toward",
        takes(lambda streams, directions: (streams.roll(1, 0), directions)),
    ),
    _lens(
        "mixing",
        "mixing: distances are off by one",
        "mixing:mean_distance",
        gives(lambda distance: distance + 1),
    ),
    _lens(
        "ov",
        "ov: heads are taken for their neighbours",
        "ov:value_maps",
        gives(lambda maps: (maps[0].roll(1, 0), maps[1])),
        "llama",
    ),
    _lens(
        "attribution",
        "attribution: what is combined is one of the two",
        "attribution:combined",
        instead(lambda gradient, change: gradient),
    ),
    _lens(
        "intervention",
        "intervention: source and target are swapped",
        "intervention:causal_trace",
        takes(lambda model, source, target, *rest: (model, target, source, *rest)),
    ),
    _lens(
        "steering",
        "steering: the direction is turned round",
        "steering:swap_vectors",
        gives(lambda vectors: -vectors),
    ),
    _lens(
        "features",
        "features: one active feature is left out",
        "features:active_in_text",
        takes(lambda values, most: (values, most - 1)),
    ),
    _lens(
        "sparse",
        "sparse: features are half as strong",
        "sparse:SparseAutoencoder.encode",
        gives(lambda features: features / 2),
    ),
    _lens(
        "detokenisation",
        "detokenisation: offsets are off by one",
        "detokenisation:around",
        gives(lambda tokens: tokens.roll(1, 0)),
    ),
]
READERS = [
    _reader(
        "linear probe: the mean is not taken away",
        "classifiers:Moments.mean",
        instead(property(lambda self: self.total.new_zeros(self.total.shape[1]))),  # pyright: ignore
        "probe",
    ),
    _reader(
        "inverter: shown and hidden are swapped",
        "probes.questions:score_inverter",
        gives(lambda scores: tuple(reversed(scores))),
        "probe",
    ),
    _reader(
        "geometry: the norms' directions stay",
        "probes.geometry:_removed",
        gives(lambda basis: basis[:, :0]),
        "geometry",
    ),
    _reader(
        "basin: the solver takes a twentieth of its steps",
        "probes.local:descend",
        takes(lambda circuit, target, hidden, steps: (circuit, target, hidden, steps // 20)),
        "geometry",
    ),
    _reader(
        "curves: the crossing is off",
        "inversion.curves:crossing",
        gives(lambda crossing: crossing + 0.5),
        "curves",
    ),
    _reader(
        "retrieval: a sentence's own story is one of the others",
        "probes.retrieval:nearer",
        gives(lambda better: better + 1),
        "retrieval",
    ),
    _reader(
        "loss: ends of text count as bytes",
        "language:_tokens",
        gives(lambda found: (found[0], found[1], found[2] + 13)),
        "loss",
    ),
    Fault(
        "summary: intervals are half as wide",
        "eval.summary:share",
        gives(lambda i: i._replace(low=(i.low + i.estimate) / 2, high=(i.high + i.estimate) / 2)),
        "tables",
        ("rows", "summary"),
    ),
    Fault(
        "compare: the first seed stands for all",
        "eval.summary:seeds_mean",
        takes(lambda values: (values[:1],)),
        "tables",
        ("rows", "loss", "compare"),
    ),
    Fault(
        "claims: criteria are turned round",
        "eval.claims.judge:outcomes",
        gives(_turned),
        "claims",
        ("judged",),
    ),
    Fault(
        "texts: the first story is skipped",
        "eval.text:drawn_prompts",
        takes(lambda kind, text, count, length, skip: (kind, text, count, length, 1)),
        "texts",
        ("file",),
    ),
    Fault(
        "texts: training stories are read",
        "eval.text:open_corpus",
        takes(lambda corpus, split: (corpus, "train")),
        "texts",
        ("directory, read",),
    ),
    Fault(
        "texts: a file is read as a whole",
        "eval.text:open_corpus",
        lambda right: lambda corpus, split, valid_fraction: right(corpus, split),
        "texts",
        ("file, read",),
    ),
    Fault(
        "texts: probes are fitted on what they are judged on",
        "eval.text:HeldOutText.stories",
        takes(lambda text, use: (text, "evaluation")),
        "texts",
        ("packed", "packed, read"),
    ),
]
FAULTS = [*MIXERS, *PROBLEMS, *SOLVERS, *LENSES, *READERS]
