"""Tasks of claims: each arm under both protocols, which give the ordinary rows of inversion.

The last row of a task names the rows that answer it. It holds `claim`, `arm`, `protocol`, `entry`
(hash of the question), `criteria` (hash of the criteria that will judge it), `bench` (the version
that asked), `setting` (hash of the models and stories), `of` (how many such tasks make up the
answer), `stand_in` (the model in place of the claim's) and `keys`. Rows that several claims ask for
are computed once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any

from eval import RequestError
from eval.circuit import uncertified
from eval.claims import BENCH
from eval.claims.entries import FAIR, PROTOCOLS, Arm, Claim, Protocol
from eval.claims.sources import Missing, ModelSource, Shelf
from eval.inversion.questions import LAST, Question, build_question, derive
from eval.inversion.run import SHUFFLED, plan
from eval.lenses.lens import Request, lenses
from eval.lenses.questions import Look
from eval.models import Checkpoint
from eval.rows import Results, Row, row_key
from eval.text import Prompt, drawn_prompts, held_out_text, padded, text_prompts


@dataclass(frozen=True)
class ClaimTask:
    """A task whose last row names the rows that answer it; `eval.tasks.Task`."""

    tags: dict[str, Any]  # fields of that row, which are its key
    answer: Callable[[Results], list[str]]  # saves the rows that answer, and returns their keys
    apart: tuple[Any, ...] = ()  # what else its key is made of
    more: dict[str, Any] = field(default_factory=dict)  # further fields of that row
    cost: float = 1.0  # in no unit
    checkpoint = None  # it is opened when it is asked

    @property
    def keys(self) -> list[str]:
        """Of its last row."""
        return [row_key("claim", self.tags, *self.apart)]

    def run(self, results: Results) -> list[Row]:
        """Its last row, when the rows that it names are saved."""
        started = time.monotonic()
        keys = self.answer(results)
        last = self.more | {"keys": keys, "seconds": round(time.monotonic() - started, 3)}
        return [{"key": self.keys[0], "kind": "claim", **self.tags, **last}]


def parts(claim: Claim, shelf: Shelf, corpus: str) -> tuple[list[ClaimTask], list[str]]:
    """The tasks of a claim, and a line for every arm whose models are not here.

    Raises:
        RequestError: weights given by hand that are not the claim's.
    """
    asked, missing = [], []
    for arm, name in product(claim.arms, PROTOCOLS):
        if protocol := arm.protocol(name):
            try:
                sources = shelf.sources(claim, arm.models, protocol.seeds, protocol.first)
            except Missing as lack:
                missing.append(str(lack))
                continue
            asked += [
                _Part(claim, arm, name, protocol, source, corpus, index, len(sources)).task
                for index, source in enumerate(sources)
            ]
    return asked, list(dict.fromkeys(missing))


@dataclass(frozen=True)
class _Part:
    """One arm under one protocol, of one of its models, which has its share of the prompts.

    Controls stand beside the first model.
    """

    claim: Claim
    arm: Arm
    name: str  # of the protocol
    protocol: Protocol
    source: ModelSource
    corpus: str
    index: int  # of the model, from 0
    of: int  # how many models the arm is asked of

    @property
    def task(self) -> ClaimTask:
        """The part as a task."""
        stand_in = self.arm.models.stand_in
        tags = {
            "claim": self.claim.number,
            "arm": self.arm.name,
            "protocol": self.name,
            "entry": self.arm.fingerprint,
            "bench": BENCH,
            "setting": row_key(self.source.kind, self.of, self.corpus),
            "of": self.of,
            **({"stand_in": stand_in} if stand_in else {}),
        }
        more = {"criteria": self.claim.frozen}
        return ClaimTask(tags, self.answer, (self.source.name, self.index), more)

    def answer(self, results: Results) -> list[str]:
        """Asks it, and returns the keys of the rows that answer."""
        checkpoint = self.source.open()
        prompts = self._prompts(checkpoint)
        if self.arm.lens:
            tokens = 20_000 if self.name == FAIR else 4_000
            request = Request(tuple(prompts), self.arm.words, self.corpus, tokens=tokens)
            rows = Look(lenses()[self.arm.lens], checkpoint, request).run(results)
            results.append(rows)
            return [row["key"] for row in rows]
        if reason := uncertified(checkpoint.model):
            _note(f"{checkpoint.path}: {reason}; for certificates: --precision float32")
        keys, allowed = [], None
        if self.arm.allowed and self.name != FAIR:
            ids = checkpoint.tokenizer.encode(self.arm.allowed, add_special_tokens=False).ids
            allowed = tuple(sorted(set(ids)))
        for model, question, several in self._questions(checkpoint, prompts):
            for job in plan(model, question, several, self.corpus, allowed=allowed):
                keys += job.keys
                results.append(job.run(results))
        return keys

    def _questions(
        self, checkpoint: Checkpoint, prompts: list[Prompt]
    ) -> Iterator[tuple[Checkpoint, Question, list[Prompt]]]:
        """As the protocol says, then padded, then of its controls."""
        arm, protocol, fair = self.arm, self.protocol, self.name == FAIR
        asked = {
            "methods": protocol.methods,
            "slices": [arm.slice],
            "layers": _layers(arm.layer, checkpoint.config.n_layers),
            "parts": [arm.part],
            "without": [sorted(set(arm.without) - ({"mask"} if fair else set()))],
        }
        question = build_question(asked, f"claim {self.claim.number}")
        room = min(protocol.pad_to, checkpoint.config.context)
        longer = padded(prompts, checkpoint.tokenizer, room) if room else prompts
        yield checkpoint, question, prompts if fair else longer
        if not fair or self.index:
            return
        descent = _by(question, "descent")
        if room:
            yield checkpoint, descent, longer
        if SHUFFLED in protocol.controls:
            yield checkpoint, replace(_by(question, "adam"), shuffled=True), prompts
        for control in protocol.controls:
            if control != SHUFFLED and "source" not in checkpoint.meta:
                yield derive(checkpoint, control), descent, prompts

    def _prompts(self, checkpoint: Checkpoint) -> list[Prompt]:
        """The protocol's texts, or of its other prompts the share of this model."""
        protocol, context = self.protocol, checkpoint.config.context
        if not protocol.text:
            length = min(protocol.length, context)
            text = held_out_text(checkpoint, self.corpus)
            kind, count, skip = protocol.kind, protocol.count, protocol.skip
            with too_few_named(f"claim {self.claim.number}, {count} prompts after {skip}"):
                return drawn_prompts(kind, text, count, length, skip)[self.index :: self.of]
        prompts = text_prompts(list(protocol.text), checkpoint.tokenizer)
        longest = max(prompt.real for prompt in prompts)
        if longest > context:
            raise RequestError(
                f"{checkpoint.path}: a prompt has {longest} tokens, its context is {context}; "
                "the claim cannot be asked of it"
            )
        return prompts


@contextmanager
def too_few_named(asked: str) -> Iterator[None]:
    """Has errors about too few prompts name what is asked, and no flags that claims lack.

    Raises:
        RequestError: the corpus has too few prompts.
    """
    try:
        yield
    except RequestError as error:
        if not str(error).startswith("--count"):
            raise
        counted = str(error).partition(": ")[2].partition("; ")[0]
        raise RequestError(f"{asked}: {counted}; give a --corpus of more stories") from None


@cache
def _note(line: str) -> None:
    """Says a line once."""
    print(line, file=sys.stderr)


def _layers(layer: Any, depth: int) -> Any:
    """Layers that the model has: of a shallower one the last."""
    if isinstance(layer, str):
        return layer
    if isinstance(layer, list):
        return [[one for one in layer if one <= depth]]
    return [layer] if layer <= depth else LAST


def _by(question: Question, name: str) -> Question:
    """The question by the methods of one solver, or by the first where there is none of it."""
    methods = question.methods.items()
    chosen = {label: method for label, method in methods if method.name == name}
    return replace(question, methods=chosen or dict([*methods][:1]))
