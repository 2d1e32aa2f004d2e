"""Asks a claim: each arm under both protocols, its rows into a results directory.

A row is the bench's own, with `claim`, `arm`, `protocol`, `entry` (what was asked, as a hash),
`bench` (the version that answered) and `setting` (of which models and corpus, as a hash). What
another claim had answered already is taken over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from eval.checkpoints import Checkpoint
from eval.circuit import uncertified
from eval.claims import BENCH
from eval.claims.entries import FAIR, PROTOCOLS, Arm, Claim, Protocol
from eval.claims.sources import Missing, Shelf, Source
from eval.errors import RequestError
from eval.inversion.controls import derive
from eval.inversion.questions import LAST, Job, Question, plan
from eval.inversion.run import SHUFFLED, Runner
from eval.inversion.slices import Slice
from eval.inversion.solvers import Solver, parse_solvers
from eval.lenses.lens import Request, lenses
from eval.lenses.questions import Look
from eval.results import Results, Row, read_rows, row_key
from eval.text import Prompt, drawn_prompts, held_out_text, padded, text_prompts

DONE = "claim"  # kind of the row that ends a part, so that it need not be opened again
BATCH = 64


@dataclass(frozen=True)
class Part:
    """One arm under one protocol, of one of its models, which has its share of the prompts.

    Controls stand beside the first model.

    Attributes:
        claim: whose arm it is.
        arm: what is asked.
        name: of the protocol.
        source: of the model.
        index: of the model, from 0.
        of: how many models the arm is asked of.
    """

    claim: Claim
    arm: Arm
    name: str
    source: Source
    index: int = 0
    of: int = 1

    @property
    def protocol(self) -> Protocol:
        """How it is asked."""
        protocol = self.arm.protocol(self.name)
        assert protocol
        return protocol

    def tags(self, corpus: str) -> dict[str, Any]:
        """What its rows say beside what the bench says."""
        return {
            "claim": self.claim.number,
            "arm": self.arm.name,
            "protocol": self.name,
            "entry": self.arm.fingerprint,
            "bench": BENCH,
            "setting": row_key(self.source.kind, self.of, corpus),
        }


def parts(claim: Claim, shelf: Shelf) -> tuple[list[Part], list[str]]:
    """What there is to ask, and a line for every arm whose models are not here.

    Raises:
        RequestError: weights given by hand that are not the claim's.
    """
    found, missing = [], []
    for arm in claim.arms:
        for name in PROTOCOLS:
            if protocol := arm.protocol(name):
                try:
                    sources = shelf.sources(claim, arm.models, protocol.seeds)
                except Missing as lack:
                    missing.append(str(lack))
                    continue
                of = len(sources)
                found += [Part(claim, arm, name, s, i, of) for i, s in enumerate(sources)]
    return found, list(dict.fromkeys(missing))


class Asker:
    """Asks parts, one after the other; what is in the results already is not asked again.

    Args:
        results: where rows go.
        corpus: where stories come from.

    Attributes:
        settings: of what was asked, by claim, arm and protocol.
    """

    def __init__(self, results: Results, corpus: str) -> None:
        self.results, self.corpus = results, corpus
        self.settings: dict[tuple[int, str, str], str] = {}
        self._noted: set[str] = set()
        self._known: dict[str, Row] = {
            row["question"]: row
            for row in read_rows([results.path])
            if "question" in row and row["bench"] == BENCH
        }

    def ask(self, part: Part) -> None:
        """Asks one part, or what is left of it."""
        started = time.monotonic()
        tags = part.tags(self.corpus)
        self.settings[part.claim.number, part.arm.name, part.name] = tags["setting"]
        done = row_key(DONE, *tags.values(), part.source.name, part.index)
        if done not in self.results.keys:
            ask = self._look if part.arm.lens else self._invert
            ask(part, part.source.open())
            seconds = round(time.monotonic() - started, 3)
            self.results.append(
                [{"key": done, "kind": DONE, **tags, "of": part.of, "seconds": seconds}]
            )

    def _look(self, part: Part, checkpoint: Checkpoint) -> None:
        prompts = _prompts(part, checkpoint, self.corpus)
        tokens = 20_000 if part.name == FAIR else 4_000
        request = Request(tuple(prompts), part.arm.words, self.corpus, tokens=tokens)
        look = Look(lenses()[part.arm.lens], checkpoint, request)
        _, rows = look.run(self.results.directory)
        self._append(part, rows)

    def _invert(self, part: Part, checkpoint: Checkpoint) -> None:
        reason = uncertified(checkpoint.model)
        if reason and part.source.name not in self._noted:
            self._noted.add(part.source.name)
            print(
                f"{checkpoint.path}: {reason}; for certificates: --precision float32",
                file=sys.stderr,
            )
        prompts = _prompts(part, checkpoint, self.corpus)
        for models, question, own in questions(part, checkpoint, prompts):
            name = models.provenance["name"]
            texts = {name: held_out_text(models, self.corpus).background()}
            runner = Runner({name: own}, texts)
            allowed = _allowed(part, models)
            for job in plan(models, question, own, set(), BATCH, allowed):
                self._run(part, job, runner)

    def _run(self, part: Part, job: Job, runner: Runner) -> None:
        tags = part.tags(self.corpus)
        keys = {job.key(cell): cell for cell in job.cells}
        left = [key for key in keys if _key(key, tags) not in self.results.keys]
        self._append(part, [self._known[key] for key in left if key in self._known])
        cells = [keys[key] for key in left if key not in self._known]
        if cells:
            rows = runner.run(replace(job, cells=cells))
            self._known |= {row["key"]: row | {"question": row["key"]} for row in rows}
            self._append(part, rows)

    def _append(self, part: Part, rows: list[Row]) -> None:
        """Writes answers with the part's tags, and keys of their own."""
        tags = part.tags(self.corpus)
        questions = [row.get("question", row["key"]) for row in rows]
        self.results.append(
            row | tags | {"question": question, "key": _key(question, tags)}
            for row, question in zip(rows, questions, strict=True)
        )


def questions(
    part: Part, checkpoint: Checkpoint, prompts: list[Prompt]
) -> Iterator[tuple[Checkpoint, Question, list[Prompt]]]:
    """The questions of one part: as the protocol says, then padded, then of its controls."""
    arm, protocol = part.arm, part.protocol
    methods = parse_solvers(protocol.methods)
    without = frozenset(arm.without) - ({"mask"} if part.name == FAIR else set())
    question = Question(
        methods,
        (Slice.parse(arm.slice),),
        _layers(arm.layer, checkpoint),
        (arm.part,),
        (without,),
    )
    context = checkpoint.config.context
    room = min(protocol.pad_to, context)
    longer = padded(prompts, checkpoint.tokenizer, room) if room else prompts
    if part.name != FAIR:
        yield checkpoint, question, longer
        return
    yield checkpoint, question, prompts
    if part.index:
        return
    descent = replace(question, methods=_only(methods, "descent"))
    if room:
        yield checkpoint, descent, longer
    if SHUFFLED in protocol.controls:
        yield checkpoint, replace(question, methods=_only(methods, "adam"), shuffled=True), prompts
    for control in protocol.controls:
        if control != SHUFFLED and "source" not in checkpoint.meta:
            yield derive(checkpoint, control), descent, prompts


def _key(question: str, tags: dict[str, Any]) -> str:
    return row_key(question, *tags.values())


def _prompts(part: Part, checkpoint: Checkpoint, corpus: str) -> list[Prompt]:
    """A part's prompts: the protocol's texts, or of its others the share of this model."""
    protocol, context = part.protocol, checkpoint.config.context
    if not protocol.text:
        length = min(protocol.length, context)
        text = held_out_text(checkpoint, corpus)
        several = drawn_prompts(protocol.kind, text, protocol.count, length)
        return several[part.index :: part.of]
    prompts = text_prompts(list(protocol.text), checkpoint.tokenizer)
    longest = max(prompt.real for prompt in prompts)
    if longest > context:
        raise RequestError(
            f"{checkpoint.path}: a prompt has {longest} tokens, its context is {context}; "
            "the claim cannot be asked of it"
        )
    return prompts


def _layers(layer: Any, checkpoint: Checkpoint) -> Any:
    """Layers that the model has: of a shallower one the last."""
    if isinstance(layer, str):
        return layer
    depth = checkpoint.config.n_layers
    if isinstance(layer, list):
        return (tuple(one for one in layer if one <= depth),)
    return (layer,) if layer <= depth else LAST


def _allowed(part: Part, checkpoint: Checkpoint) -> tuple[int, ...] | None:
    if not part.arm.allowed or part.name == FAIR:
        return None
    ids = checkpoint.tokenizer.encode(part.arm.allowed, add_special_tokens=False).ids
    return tuple(sorted(set(ids)))


def _only(methods: dict[str, Solver], name: str) -> dict[str, Solver]:
    """Those of one solver, or the first where none is."""
    own = {label: method for label, method in methods.items() if method.name == name}
    return own or dict(list(methods.items())[:1])
