"""The questions of E12 and E14 that are asked of each trained model, and their rows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eval.inversion.request import Inversion
from eval.inversion.task import plan
from eval.measures.bits.measure import Passage, candidate_outputs
from eval.measures.ranks import effective_rank
from eval.models.checkpoint import Checkpoint, open_model
from eval.models.text import HeldOutText, drawn_prompts, held_out_text
from eval.sites.circuit import Circuit
from scripts.experiments.forgetting import bits_of
from scripts.experiments.shared import choose_passages, commonest, held_out_nats, rounded
from scripts.experiments.structured.copying import learn_copying
from scripts.experiments.structured.decoder import (
    Examples,
    draw_examples,
    make_examples,
    train_decoder,
)
from scripts.experiments.structured.measures import (
    read_neighbours,
    spectrum_slope,
    toeplitz_figures,
)
from train.settings import OptimizerSettings

CALIBRATION = 16, 64
"""Windows of background text whose outputs scale codes, and their tokens."""
NEIGHBOURS = 20, 64
"""Windows whose tokens are read from neighbouring outputs, and their tokens."""
COPIED = 256
"""Tokens of the vocabulary of copies."""
Rows = Iterator[dict[str, Any]]


class Model(NamedTuple):
    """A saved model of a run, what is registered, and the text it is asked about."""

    checkpoint: Checkpoint
    design: dict[str, Any]
    corpus: str
    family: str
    seed: int
    step: int

    @property
    def text(self) -> HeldOutText:
        """Held-out stories."""
        return held_out_text(self.checkpoint, self.corpus)

    @property
    def last(self) -> Circuit:
        """The last block's output."""
        return Circuit(self.checkpoint.model, self.checkpoint.config.n_layers)

    @property
    def skipped(self) -> int:
        """How many seeds come before: each has prompts of its own."""
        return self.design["seeds"].index(self.seed)


@torch.no_grad()
def measure_geometry(model: Model) -> Rows:
    """The spectrum of the last block's outputs, and the loss."""
    count, length = model.design["geometry"]["windows"]
    outputs = model.last.of_tokens(model.text.windows("evaluation", count, length)).flatten(0, 1)
    outputs = outputs - outputs.mean(0)
    rank = effective_rank(torch.linalg.svdvals(outputs.double()))  # RankMe (2210.02885)
    yield {"rankme": float(rank), "alpha": spectrum_slope(outputs),
           "nats": held_out_nats(model.checkpoint.model, model.text)}  # fmt: skip


def measure_toeplitz(model: Model) -> Rows:
    """The figures of each block's Toeplitz triangle."""
    for number, block in enumerate(model.checkpoint.model.blocks, 1):
        mixer: Any = block.token_mixer
        yield {"layer": number, **toeplitz_figures(mixer)}


@torch.no_grad()
def invert_mixer(model: Model) -> Rows:
    """Which tokens two neighbouring outputs of the first mixer name."""
    network, text = model.checkpoint.model, model.text
    block: Any = network.blocks[0]
    tokens = text.windows("evaluation", *NEIGHBOURS)
    found, outside = read_neighbours(
        block.token_mixer, Circuit(network, 1, "mixer").of_tokens(tokens)
    )
    inputs = block.norm_token(network.embedding.weight).double()
    named = torch.cdist(found.flatten(0, 1), inputs).argmin(-1).view_as(tokens)
    error = (found - inputs[tokens]).norm(dim=-1) / inputs[tokens].norm(dim=-1)
    yield {
        "tokens": tokens.numel(), "named": int((named == tokens).sum()), "outside": outside,
        "median_error": float(error.median()), "largest_error": float(error.max()),
    }  # fmt: skip


@torch.no_grad()
def measure_bits(model: Model) -> Rows:
    """Bits about a token in later outputs of the last block, a row for each passage."""
    design, text = model.design["bits"], model.text
    candidates = commonest(text, design["candidates"])
    largest = _calibrate(model)
    far = [design["far"]] if model.step in model.design["three_steps"] else []
    question = design | {"distances": [*design["distances"], *far]}
    count, after = design["count"], design["far"]
    for passage in choose_passages(text, candidates, tuple(design["places"]), count, after):
        cut = passage.tokens[: passage.place + 1 + question["distances"][-1]]
        outputs = candidate_outputs(model.last, replace(passage, tokens=cut), candidates)
        number = int((candidates == passage.truth).nonzero())
        found = bits_of(outputs, number, passage.index, largest, question)
        yield {"prompt": passage.index, "place": passage.place, "truth": passage.truth,
               "distances": question["distances"], **found}  # fmt: skip


def compare_decoders(model: Model) -> Rows:
    """Bits of trained decoders, and of the exact posterior on the same kind of windows."""
    design, text = model.design["decoder"], model.text
    position, sizes = design["position"], design["examples"]
    candidates, places = commonest(text, design["candidates"]), _places(design)
    drawn: dict[str, tuple[Tensor, Tensor]] = {}
    for use, count in {"fitting": sizes["train"], "evaluation": sizes["judge"]}.items():
        tokens = _joined(text, use)
        drawn[use] = draw_examples(tokens, position + 1, count, places, candidates, model.seed)
    tokens, labels = drawn["evaluation"]
    exact = measure_exactly(model, tokens, labels, candidates)
    train, judged = (
        make_examples(model.last, tokens, labels, places if model.step else (), int(candidates[0]))
        for tokens, labels in drawn.values()
    )
    kinds: dict[str, tuple[Examples, str, float]] = {"blind clean": (train, "blind", 0.0)}
    if model.step:
        kinds |= {
            "blind clean, fewer examples": (train.first(sizes["less"]), "blind", 0.0),
            "blind noisy": (train, "blind", design["noise"]),
            "informed clean": (train, "informed", 0.0),
        }
    bits = {
        name: rounded(torch.tensor(train_decoder(
            of, judged, kind, noise, len(candidates), design["training"], model.seed)))
        for name, (of, kind, noise) in kinds.items()
    }  # fmt: skip
    yield {"distances": design["distances"], "exact": exact, "decoder": bits}


@torch.no_grad()
def measure_exactly(
    model: Model, tokens: Tensor, labels: Tensor, candidates: Tensor
) -> dict[str, list[float]]:
    """The exact bits of one vector about each drawn token, means over the first windows."""
    design, largest = model.design["decoder"], _calibrate(model)
    question = {"distances": [0], "noise": [design["noise"]], "quantisers": ["int8"], "draws": 8}
    found: dict[str, list[list[float]]] = {}
    for window in range(design["examples"]["exact"]):
        for place, number in zip(_places(design), labels[window].tolist(), strict=True):
            passage = Passage(window, tuple(tokens[window].tolist()), place)
            outputs = candidate_outputs(model.last, passage, candidates)[:, -1:]
            bits = bits_of(outputs, number, window, largest, question)["bits"]
            for precision, of in bits.items():
                found.setdefault(precision, []).append(of["alone"])
    count = len(design["distances"])
    return {name: rounded(torch.tensor(of).view(-1, count).mean(0)) for name, of in found.items()}


def recover_tokens(model: Model) -> Rows:
    """Shown and hidden tokens, by search and by descent, from the last block."""
    design = model.design["recovery"]
    for shown, solvers in zip(design["slices"], (design["shown"], design["hidden"]), strict=True):
        for solver in solvers:
            request = _request(design, (shown,), ("last",), solver)
            yield from _answers(model, request, design)


def recover_order(model: Model) -> Rows:
    """Hidden tokens behind blocks 1 to 4, by search, and whether their order is right."""
    design, ten = model.design["order"], model.design["order"]["ten"]
    layers = tuple(map(str, range(1, 1 + model.checkpoint.config.n_layers)))
    choices = [(hidden, layers) for hidden in design["hidden"]]
    if model.family in ten["families"]:
        choices.append((10, tuple(map(str, ten["layers"]))))
    for hidden, of_layers in choices:
        request = _request(design, (f"[:, {hidden}:, :]",), of_layers, "alternating")
        yield from _answers(model, request, design)


def learn_copies(model: Model) -> Rows:
    """How much of a repeated half a new model of the family names, over a short training."""
    design = model.design["copying"]
    config = replace(model.checkpoint.config, vocab_size=COPIED)
    optimizer = OptimizerSettings(**model.checkpoint.meta["recipe"]["optimizer"])
    for step, nats, right in learn_copying(config, optimizer, design["measured"], model.seed):
        yield {"copy_step": step, "nats": nats, "right": right}


class Part(NamedTuple):
    """A question, and which models are asked it: by the names of lists in the design."""

    ask: Callable[[Model], Rows]
    seeds: str
    steps: Callable[[dict[str, Any]], list[int]]
    families: tuple[str, ...] = ()
    """All where it is empty."""


PARTS = {
    "geometry": Part(measure_geometry, "seeds", lambda design: design["steps"]),
    "toeplitz": Part(measure_toeplitz, "seeds", lambda design: design["steps"], ("toeplitz",)),
    "inverse": Part(
        invert_mixer, "seeds", lambda design: design["three_steps"], ("column", "mixed")
    ),
    "bits": Part(measure_bits, "seeds", lambda design: design["steps"]),
    "copying": Part(learn_copies, "fewer_seeds", lambda design: design["ends"][:1]),
    "order": Part(recover_order, "fewer_seeds", lambda design: design["ends"][1:]),
    "recovery": Part(recover_tokens, "fewer_seeds", lambda design: design["ends"]),
    "decoder": Part(compare_decoders, "fewer_seeds", lambda design: design["ends"]),
}


class Question(NamedTuple):
    """A part that is asked of a saved model."""

    part: str
    family: str
    seed: int
    step: int

    @property
    def model(self) -> str:
        """The name of the model's run."""
        return f"{self.family}-s{self.seed}"

    @property
    def key(self) -> str:
        """What the keys of its rows begin with."""
        return f"{self.part} {self.model} {self.step}"


def questions(design: dict[str, Any], family: str, seed: int) -> list[Question]:
    """What is registered to be asked of a run."""
    return [
        Question(name, family, seed, step)
        for name, part in PARTS.items()
        if name in design
        and seed in design[part.seeds]
        and family in (part.families or design["models"])
        for step in part.steps(design)
    ]


def answered(rows: list[dict[str, Any]]) -> set[str]:
    """The keys of the questions that rows answer."""
    return {row["key"].rpartition(" ")[0] for row in rows}


def ask(question: Question, run: Path, corpus: str, design: dict[str, Any]) -> Rows:
    """The rows that answer a question about a run's directory."""
    name, family, seed, step = question
    path = run / "models" / f"step-{step:06d}"
    model = Model(open_model(path, "cpu"), design, corpus, family, seed, step)
    about = {"kind": name, "model": question.model, "step": step}
    for number, row in enumerate(PARTS[name].ask(model)):
        yield {"key": f"{question.key} {number}", **about, **row}


def _places(design: dict[str, Any]) -> list[int]:
    return [design["position"] - distance for distance in design["distances"]]


def _joined(text: HeldOutText, use: Any) -> Tensor:
    """All tokens of a use, `(tokens,)`."""
    return torch.tensor([token for ids in text.encode([*text.stories(use)]) for token in ids])


def _calibrate(model: Model) -> Tensor:
    """The largest magnitude of each channel in background text."""
    background = model.text.windows("background", *CALIBRATION, least=1)
    background = background[:, : model.checkpoint.config.context]
    return model.last.of_tokens(background).abs().amax(dim=(0, 1))


def _request(
    design: dict[str, Any], slices: tuple[str, ...], layers: tuple[str, ...], solver: str
) -> Inversion:
    bounded = (f"{solver}.budget={design['budget']}",) if solver == "alternating" else ()
    return Inversion(layers=layers, slices=slices, solvers=(solver,), set_=bounded)


def _answers(model: Model, request: Inversion, design: dict[str, Any]) -> Rows:
    """The answers to one request, a row for each layer and prompt."""
    count, length = design["count"], design["length"]
    prompts = drawn_prompts("inside", model.text, count, length, skip=count * model.skipped)
    for task in plan(model.checkpoint, request, prompts, model.corpus):
        for row in task.rows():
            kept = ("solver", "slice", "hidden", "prompt", "truth", "found", "self", "nonself",
                    "exact", "set_recall", "permuted", "at_floor", "evaluations")  # fmt: skip
            yield {"layer": row["site"]["layer"], **{name: row[name] for name in kept}}
