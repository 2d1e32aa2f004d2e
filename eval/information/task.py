"""Which passages, candidates and calibration texts are measured, and the rows that result."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from eval.circuit import Circuit
from eval.errors import RequestError
from eval.information.measure import Candidates, Passage, Question, measure_bits
from eval.inversion.problem import Measured, measure
from eval.models import Checkpoint
from eval.progress import SoFar, tell
from eval.rows import Results, Row, row_key
from eval.text import HeldOutText, held_out_text, inside_stories, text_prompts
from tokenizer import tokenizer_hash

CALIBRATION = (16, 64)  # windows of background text whose outputs scale the quantisers, and tokens


@dataclass(frozen=True)
class Design:
    """What is drawn.

    Attributes:
        corpus: the source of all text.
        count: passages, from inside stories for evaluation, whose tokens asked about all differ.
        before: tokens before the one asked about.
        skip: passages left out before the first that is taken.
        candidates: the commonest tokens, so many; None for the whole vocabulary.
        counted: tokens of text for fitting in which they are counted.
        text: asked about token by token, in place of passages of the corpus.
    """

    corpus: str
    count: int = 40
    before: int = 12
    skip: int = 0
    candidates: int | None = None
    counted: int = 65_536
    text: str | None = None


def draw_candidates(text: HeldOutText, limit: int | None, counted: int) -> Candidates:
    """The values that a token may take: all, or the commonest in text for fitting.

    Raises:
        RequestError: the corpus has too little text.
    """
    V = text.tokenizer.get_vocab_size()
    counts = torch.bincount(text.windows("fitting", 1, counted).flatten(), minlength=V).float() + 1
    tokens = counts.argsort(descending=True, stable=True)[:limit].sort().values
    return Candidates(tokens, counts[tokens] / counts[tokens].sum())


def draw_passages(
    text: HeldOutText, design: Design, after: int, candidates: Candidates
) -> list[Passage]:
    """Passages whose tokens asked about are candidates and all differ, in the corpus's order.

    Raises:
        RequestError: the corpus has too few.
    """
    allowed, seen, passages = set(candidates.tokens.tolist()), set[int](), []
    length = design.before + 1 + after
    for prompt in inside_stories(text, length):
        token = prompt.tokens[design.before]
        if token in allowed and token not in seen:
            seen.add(token)
            passages.append(Passage(prompt.index, prompt.tokens, design.before))
        if len(passages) == design.skip + design.count:
            return passages[design.skip :]
    raise RequestError(
        f"--count {design.count} --skip {design.skip}: the corpus {design.corpus} has "
        f"{len(passages)} passages of {length} tokens for evaluation whose tokens asked about all "
        "differ; ask for fewer"
    )


def text_passages(text: str, tokenizer: Tokenizer, context: int, least: int) -> list[Passage]:
    """Each token of a text in its place, if `least` tokens or more stand after it.

    Raises:
        RequestError: an empty text, or one that is too short or longer than the context.
    """
    (prompt,) = text_prompts([text], tokenizer)
    count = len(prompt.tokens)
    if not least < count <= context:
        raise RequestError(
            f"--text: it has {count} tokens; with --distances {least} and this model's context, "
            f"give {least + 1} to {context}"
        )
    return [Passage(place, prompt.tokens, place) for place in range(count - least)]


class Sample(NamedTuple):
    """What all models that share a tokenizer are asked.

    Attributes:
        passages: with the token asked about in each.
        candidates: what it may be.
        calibration: `(16, 64)` tokens whose outputs scale the quantisers.
    """

    passages: list[Passage]
    candidates: Candidates
    calibration: Tensor


@dataclass(frozen=True)
class Sampler:
    """Draws what is asked, once for each tokenizer.

    Attributes:
        design: what is drawn.
        after: tokens after the one asked about.
        least: of a text, the tokens that must stand after the one asked about.
    """

    design: Design
    after: int
    least: int = 0
    _drawn: dict[tuple[str, float], Sample] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens of a passage."""
        return self.design.before + 1 + self.after

    def of(self, checkpoint: Checkpoint) -> Sample:
        """A model's.

        Raises:
            RequestError: the corpus has too little text.
        """
        text, design = held_out_text(checkpoint, self.design.corpus), self.design
        key = tokenizer_hash(text.tokenizer), text.fraction
        if key not in self._drawn:
            candidates = draw_candidates(text, design.candidates, design.counted)
            passages = (
                draw_passages(text, design, self.after, candidates)
                if design.text is None
                else text_passages(
                    design.text, text.tokenizer, checkpoint.config.context, self.least
                )
            )
            calibration = text.windows("background", *CALIBRATION)
            self._drawn[key] = Sample(passages, candidates, calibration)
        return self._drawn[key]


@dataclass(frozen=True)
class BitsTask:
    """All passages at one layer of one model; `eval.tasks.Task`."""

    checkpoint: Checkpoint
    layer: int
    sampler: Sampler
    question: Question

    @property
    def design(self) -> Design:
        """What is drawn."""
        return self.sampler.design

    @cached_property
    def sample(self) -> Sample:
        """The same for all layers and models that share a tokenizer."""
        return self.sampler.of(self.checkpoint)

    @property
    def keys(self) -> list[str]:
        """One for each passage."""
        return self._keys

    @cached_property
    def _keys(self) -> list[str]:
        asked = [self.question, self.design.corpus, self.design.candidates, self.design.counted]
        about = self.checkpoint.identity
        passages = self.sample.passages
        return [row_key(*about, "bits", self.layer, p.tokens, p.place, *asked) for p in passages]

    @property
    def cost(self) -> float:
        """Passages times blocks."""
        return len(self.sample.passages) * (self.layer + 1)

    def run(self, results: Results) -> Iterable[Row]:
        """A row for each passage that has none."""
        circuit = Circuit(self.checkpoint.model, self.layer)
        largest, measured = self._largest(circuit), self._measured(circuit)
        passages, candidates, _ = self.sample
        for number, (key, passage) in enumerate(zip(self.keys, passages, strict=True)):
            if key not in results.keys:
                after = len(passage.tokens) - passage.place
                reached = tuple(d for d in self.question.distances if d < after)
                question = replace(self.question, distances=reached)
                number = number if self.design.text is None else 0
                figures = measure_bits(
                    circuit, passage, candidates, largest, measured, number, question
                )
                row = self._row(key, passage, question) | figures
                tell(SoFar(row=row))
                yield row

    def _row(self, key: str, passage: Passage, question: Question) -> dict[str, Any]:
        return {
            "key": key,
            "kind": "bits",
            "checkpoint": self.checkpoint.provenance,
            "site": {"layer": self.layer, "part": "block"},
            "corpus": self.design.corpus,
            "prompts": "inside" if self.design.text is None else "text",
            "prompt": passage.index,
            "tokens": list(passage.tokens),
            "place": passage.place,
            "truth": [passage.truth],
            "candidates": len(self.sample.candidates.tokens),
            "draws": question.draws,
            "seed": question.seed,
            "distances": list(question.distances),
        }

    def _measured(self, circuit: Circuit) -> Measured:
        passages = self.sample.passages
        rows = [p.tokens for p in (passages if self.design.text is None else passages[:1])]
        return measure(circuit, torch.tensor(rows, device=circuit.vocabulary.device))

    def _largest(self, circuit: Circuit) -> Tensor:
        windows = self.sample.calibration[:, : circuit.model.config.context]
        windows = windows.to(circuit.vocabulary.device)
        return circuit.of_tokens(windows).abs().amax(dim=(0, 1))


def plan_bits(
    checkpoint: Checkpoint, layers: list[int] | None, sampler: Sampler, question: Question
) -> list[BitsTask]:
    """The work that a checkpoint makes: a task for each layer, the last block if none is given.

    Raises:
        RequestError: a layer that does not exist, or passages longer than the model's context.
    """
    if sampler.design.text is None and sampler.length > checkpoint.config.context:
        raise RequestError(
            f"--before {sampler.design.before} --distances {sampler.after}: passages of "
            f"{sampler.length} tokens, the context of {checkpoint.path} is "
            f"{checkpoint.config.context}; give less"
        )
    layers = layers or [checkpoint.config.n_layers]
    for layer in layers:
        checkpoint.check_layer(layer)
    return [BitsTask(checkpoint, layer, sampler, question) for layer in sorted(set(layers))]
