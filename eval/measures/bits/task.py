"""Which passages, candidates and calibration texts are measured, and the rows that result."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from eval.measures.bits.measure import Candidates, Passage, Question, measure_bits
from eval.messages import RequestError, say_once
from eval.models.checkpoint import Checkpoint
from eval.models.corpora import corpus_hash
from eval.models.text import HeldOutText, held_out_text, inside_stories, text_prompts
from eval.rows.progress import Progress, report_progress
from eval.rows.store import Results, Row, row_key
from eval.sites.circuit import Circuit
from eval.sites.rounding import capture
from eval.sites.site import choose_single_layers
from tokenizer import tokenizer_hash

COUNT = 40
"""Passages, or as many as the corpus has, where no number is given."""
CALIBRATION = (16, 64)  # windows of background text whose outputs scale the quantisers, and tokens


class Sample(NamedTuple):
    """What all models of one tokenizer and one held-out text are asked."""

    passages: list[Passage]  # with the token asked about in each
    candidates: Candidates  # what it may be
    calibration: Tensor  # (16, 64) tokens whose outputs scale the quantisers


@dataclass(frozen=True)
class Design:
    """What is drawn, once for each tokenizer and each end of its texts."""

    corpus: str  # the source of all text
    question: Question  # what is asked of each passage
    count: int | None = None  # passages from inside stories for evaluation; their tokens all differ
    before: int = 12  # tokens before the one asked about
    skip: int = 0  # passages left out before the first that is taken
    candidates: int | None = None  # the commonest tokens, so many, or the whole vocabulary
    counted: int = 65_536  # tokens of text for fitting in which they are counted
    text: str | None = None  # asked about token by token, in place of the corpus' passages
    _drawn: dict[Hashable, Sample] = field(default_factory=dict, repr=False)

    @property
    def length(self) -> int:
        """How many tokens a passage has."""
        return self.before + 1 + max(self.question.distances)

    def of(self, checkpoint: Checkpoint) -> Sample:
        """What a model is asked.

        Raises:
            RequestError: the corpus has too little text; more candidates than tokens are asked for;
                or the given text is empty, too short, or has a token that is no candidate.
        """
        text = held_out_text(checkpoint, self.corpus)
        key = tokenizer_hash(text.tokenizer), text.fraction, text.ends, text.field
        if key not in self._drawn:
            candidates = self._candidates(text)
            passages = (
                self._passages(text, candidates)
                if self.text is None
                else self._of_text(self.text, checkpoint, candidates)
            )
            calibration = text.windows("background", *CALIBRATION, least=1)
            self._drawn[key] = Sample(passages, candidates, calibration)
        return self._drawn[key]

    def _candidates(self, text: HeldOutText) -> Candidates:
        """The whole vocabulary, or the tokens that are commonest in text for fitting."""
        known = torch.tensor(sorted(text.tokenizer.get_vocab().values()))  # with gaps, in some
        if (self.candidates or 0) > (V := len(known)):
            raise RequestError(
                f"--candidates {self.candidates}: the vocabulary has {V} tokens; give {V} or fewer"
            )
        fitting = text.windows("fitting", self.counted, 1, least=1).flatten()
        counts = torch.bincount(fitting, minlength=int(known[-1]) + 1)[known].float() + 1
        chosen = counts.argsort(descending=True, stable=True)[: self.candidates].sort().values
        return Candidates(known[chosen], counts[chosen] / counts[chosen].sum())

    def _passages(self, text: HeldOutText, candidates: Candidates) -> list[Passage]:
        """Passages whose tokens asked about are candidates and all differ, in corpus order."""
        allowed, seen, passages = set(candidates.tokens.tolist()), set[int](), []
        for prompt in inside_stories(text, self.length):
            token = prompt.tokens[self.before]
            if token in allowed and token not in seen:
                seen.add(token)
                passages.append(Passage(prompt.index, prompt.tokens, self.before))
            if len(passages) == self.skip + (self.count or COUNT):
                return passages[self.skip :]
        if self.count is None and len(passages) > self.skip:
            found = len(passages) - self.skip
            say_once(f"corpus {self.corpus}: {found} of {COUNT} passages ({self.length} tokens)")
            return passages[self.skip :]
        raise RequestError(
            f"--count {self.count or COUNT} --skip {self.skip}: the corpus {self.corpus} has "
            f"{len(passages)} passages of {self.length} tokens for evaluation whose tokens asked "
            "about all differ; ask for fewer"
        )

    def _of_text(self, text: str, checkpoint: Checkpoint, candidates: Candidates) -> list[Passage]:
        """Each token of a text in its place, if enough tokens stand after it."""
        (prompt,) = text_prompts([text], checkpoint)
        count, least = len(prompt.tokens), min(self.question.distances)
        if count <= least:
            raise RequestError(
                f"--text: it has {count} tokens; with --distances {least} give {least + 1} or more"
            )
        known, asked = set(candidates.tokens.tolist()), prompt.tokens[: count - least]
        if other := [token for token in asked if token not in known]:
            rare = checkpoint.tokenizer.decode(other[:1], skip_special_tokens=False)
            raise RequestError(
                f"--candidates {self.candidates}: {rare!r} in --text is none of the commonest "
                f"{len(known)} tokens; give more, or leave --candidates out"
            )
        return [Passage(position, prompt.tokens, position) for position in range(count - least)]


@dataclass(frozen=True)
class BitsTask:
    """All passages at one layer of one model; `eval.rows.tasks.Task`."""

    checkpoint: Checkpoint
    layer: int
    part: str
    design: Design

    @cached_property
    def sample(self) -> Sample:
        """Passages and candidates, the same for all layers and models that share a tokenizer."""
        return self.design.of(self.checkpoint)

    @property
    def corpus(self) -> str:
        """Whose text gives the candidates, and the passages where no text is asked about."""
        return self.design.corpus

    @property
    def keys(self) -> list[str]:
        """The key of each passage's row."""
        return self._keys

    @cached_property
    def _keys(self) -> list[str]:
        design, about = self.design, self.checkpoint.identity
        question = design.question, design.corpus, design.candidates, design.counted
        return [
            row_key(*about, "bits", self.layer, self.part, passage.tokens, passage.place, *question)
            for passage in self.sample.passages
        ]

    def run(self, results: Results) -> Iterable[Row]:
        """A row for each passage that has none."""
        circuit, text = Circuit(self.checkpoint.model, self.layer, self.part), self.design.text
        device, context = circuit.vocabulary.device, circuit.model.config.context
        passages, candidates, calibration = self.sample
        largest = circuit.of_tokens(calibration[:, :context].to(device)).abs().amax(dim=(0, 1))
        rows = [passage.tokens for passage in (passages if text is None else passages[:1])]
        known = corpus_hash(self.corpus)
        ((_, rounding),) = capture([circuit], torch.tensor(rows, device=device))
        for number, (key, passage) in enumerate(zip(self.keys, passages, strict=True)):
            if key in results.keys:
                continue
            after = len(passage.tokens) - passage.place
            reached = tuple(d for d in self.design.question.distances if d < after)
            question = replace(self.design.question, distances=reached)
            at = rounding[number if text is None else 0]
            row = {
                "key": key,
                "kind": "bits",
                "checkpoint": self.checkpoint.provenance,
                "site": {"layer": self.layer, "part": self.part},
                "corpus": self.design.corpus,
                "corpus_hash": known,
                "prompts": "inside" if text is None else "text",
                **measure_bits(circuit, passage, candidates, largest, at, question),
            }
            report_progress(Progress(row=row))
            yield row


def plan_bits(
    checkpoint: Checkpoint, layers: Sequence[int | str], design: Design, part: str = "block"
) -> list[BitsTask]:
    """The tasks of a checkpoint: one for each layer, as `choose_layers` reads them.

    Raises:
        RequestError: a layer or part that does not exist, or passages or a text longer than the
            model's context.
    """
    context = checkpoint.config.context
    if design.text is not None:
        (prompt,) = text_prompts([design.text], checkpoint)
        if len(prompt.tokens) > context:
            raise RequestError(
                f"--text: it has {len(prompt.tokens)} tokens, the context of {checkpoint.path} is "
                f"{context}; shorten it, or ask that model apart"
            )
    elif design.length > context:
        raise RequestError(
            f"--before {design.before} --distances {max(design.question.distances)}: passages of "
            f"{design.length} tokens, the context of {checkpoint.path} is {context}; give less"
        )
    chosen = choose_single_layers(checkpoint, layers)
    for layer in chosen:
        Circuit(checkpoint.model, layer, part)  # refuses one that does not exist
    return [BitsTask(checkpoint, layer, part, design) for layer in sorted(chosen)]
