"""Associative recall: pairs of symbols, then keys in any order, each before the value it came with.

Multi-query associative recall (Arora et al., 2312.04927) without filler: P keys, each with a value,
and then keys drawn from these with replacement, each followed by its value, up to the length. A
query counts where its key was not asked for before: its value stands in the pairs alone. The
sequences are an ordinary corpus, of letters that a tokenizer made for them takes one by one.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from eval import plots
from eval.circuit import Circuit
from eval.drawing import Figure
from eval.information.hypotheses import means, records
from eval.information.measure import Candidates, Passage, Question, measure_bits
from eval.information.page import mean_table
from eval.inversion.gradient.adam import adam, scaled_start
from eval.inversion.problem import ACCEPT, Batch, Measured, measure, pose
from eval.models import Checkpoint
from eval.probes.linear import Training, fit_linear, outputs_of, score_linear
from eval.recovery import Slice
from eval.rows import Results, Row, row_key
from eval.tables import Table
from tokenizer import END_OF_TEXT, PAD, pack
from tokenizer.pack import Layout

LETTERS = [chr(code) for code in (*range(0x100, 0x180), *range(0x400, 0x480))]
"""Symbols as text: letters of two bytes each."""
BYTES = 258  # entries of a tokenizer before its symbols: the special ones and the bytes


class Sequences(NamedTuple):
    """Sequences of one number of pairs, as symbols: keys from 0, values after them."""

    symbols: np.ndarray  # (N, T)
    asked: np.ndarray  # (N, T), whether a query stands there that counts
    places: np.ndarray  # (N, T), where the value that it asks for stands among the pairs; else 0

    @property
    def tokens(self) -> Tensor:
        """By the ids of `symbol_tokenizer`."""
        return torch.from_numpy(self.symbols) + BYTES


@dataclass(frozen=True)
class Recall:
    """The task.

    Attributes:
        keys: how many there are.
        values: how many there are.
        pairs: numbers of pairs of a sequence, each as often as the others.
        length: of a sequence, even.
        sequences: of the training text.
        held_out: of the validation text.
    """

    keys: int
    values: int
    pairs: tuple[int, ...]
    length: int
    sequences: int
    held_out: int = 1024

    def draw(self, pairs: int, count: int, chance: np.random.Generator) -> Sequences:
        """Sequences of so many pairs."""
        keys = chance.permuted(np.tile(np.arange(self.keys), (count, 1)), axis=1)[:, :pairs]
        values = self.keys + chance.integers(self.values, size=(count, pairs))
        asked = chance.integers(pairs, size=(count, self.length // 2 - pairs))
        order = np.concatenate([np.tile(np.arange(pairs), (count, 1)), asked], axis=1)
        symbols = np.stack(
            [np.take_along_axis(each, order, axis=1) for each in (keys, values)], axis=2
        )
        first = np.zeros(order.shape, dtype=bool)
        for n, row in enumerate(order):
            first[n, pairs + np.unique(row[pairs:], return_index=True)[1]] = True
        counts, places = np.zeros((2, count, self.length), dtype=int)
        counts[:, ::2] = first
        places[:, ::2] = np.where(first, 2 * order + 1, 0)
        return Sequences(symbols.reshape(count, -1), counts.astype(bool), places)

    def pack(self, out: Path, seed: int = 0) -> Path:
        """Writes the texts, their tokenizer and the packed data into a directory; the last of them.

        Raises:
            CorpusError: the disk is full, or the like.
        """
        out.mkdir(parents=True, exist_ok=True)
        tokenizer, chance = out / "tokenizer.json", np.random.default_rng(seed)
        symbol_tokenizer(self.keys + self.values).save(str(tokenizer))
        corpus = out / "sequences"
        corpus.mkdir(exist_ok=True)
        for split, count in (("train", self.sequences), ("valid", self.held_out)):
            each = -(-count // len(self.pairs))
            drawn = [self.draw(pairs, each, chance).symbols for pairs in self.pairs]
            rows = chance.permutation(np.concatenate(drawn))[:count]
            text = f"\n{END_OF_TEXT}\n".join("".join(LETTERS[s] for s in row) for row in rows)
            part = corpus / f".{split}.partial"
            part.write_text(f"{text}\n{END_OF_TEXT}\n", encoding="utf-8")
            os.replace(part, corpus / f"{split}.txt")
        return pack(str(corpus), tokenizer, out / "data", Layout("rows", self.length)).path


def symbol_tokenizer(symbols: int) -> Tokenizer:
    """A byte-level BPE that has a token for each of the first letters, after the bytes."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = [split.pre_tokenize_str(letter)[0][0] for letter in LETTERS[:symbols]]
    entries = [END_OF_TEXT, PAD, *sorted(split.alphabet()), *pieces]
    merges = [(piece[0], piece[1]) for piece in pieces]
    tokenizer = Tokenizer(models.BPE({entry: i for i, entry in enumerate(entries)}, merges))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT, PAD])
    return tokenizer


@dataclass(frozen=True)
class Asked:
    """What is measured of a model, for each number of pairs.

    Attributes:
        passages: sequences in one query of which the value is looked for.
        sequences: of which recall is the share of queries that are answered.
        probe: sequences that the linear probe is fitted on.
        adam: of the passages, those that Adam is tried on.
        noise, quantisers, draws, seed: as in `eval.information.measure.Question`; the seed is of
            the sequences, too.
    """

    passages: int
    sequences: int
    probe: int
    adam: int
    noise: tuple[float, ...]
    quantisers: tuple[str, ...]
    draws: int
    seed: int


@dataclass(frozen=True)
class RecallTask:
    """One model and number of pairs; `eval.tasks.Task`."""

    checkpoint: Checkpoint
    recall: Recall
    asked: Asked
    pairs: int

    @property
    def keys(self) -> list[str]:
        """The summary's and each passage's."""
        about = *self.checkpoint.identity, "recall", self.recall, self.asked, self.pairs
        return [row_key(*about, number) for number in range(-1, self.asked.passages)]

    @property
    def cost(self) -> float:
        """In passages."""
        return float(self.asked.passages)

    def run(self, results: Results) -> Iterable[Row]:
        """The summary, and a row for each passage."""
        asked, circuit = self.asked, Circuit(self.checkpoint.model, self.checkpoint.config.n_layers)
        chance = np.random.default_rng([asked.seed, self.pairs])
        fitted, scored, drawn = (
            self.recall.draw(self.pairs, count, chance)
            for count in (asked.probe, asked.sequences, asked.passages)
        )
        about = {
            "checkpoint": self.checkpoint.provenance,
            "site": {"layer": circuit.depth, "part": "block"},
            "corpus": "recall",
            "pairs": self.pairs,
        }
        shares = self._shares(circuit, fitted, scored)
        yield {"key": self.keys[0], "kind": "recall", **about, **shares}
        tokens, known = drawn.tokens, measure(circuit, drawn.tokens)
        ends = [int(chance.choice(np.flatnonzero(row))) for row in drawn.asked]
        places = [int(row[end]) for row, end in zip(drawn.places, ends, strict=True)]
        named = circuit.model(tokens).argmax(dim=-1)
        largest = known.outputs.abs().amax(dim=(0, 1))
        descended = self._adam(circuit, tokens, places, ends, known)
        for number, (place, end) in enumerate(zip(places, ends, strict=True)):
            passage = Passage(number, tuple(tokens[number, : end + 1].tolist()), place)
            question = Question(
                (end - place,), asked.noise, asked.quantisers, asked.draws, asked.seed
            )
            to_end = known._replace(
                outputs=known.outputs[:, : end + 1], apart=known.apart[:, :, : end + 1]
            )
            figures = measure_bits(
                circuit, passage, self.candidates, largest, to_end, number, question
            )
            margin = figures["margin_bits"]["alone"][0]
            yield {
                "key": self.keys[number + 1],
                "kind": "bits",
                **about,
                "prompts": "recall",
                "named": bool(named[number, end] == passage.truth),
                "searched": margin is not None and margin > math.log2(ACCEPT),
                "descended": descended.get(number),
                **figures,
            }

    @property
    def candidates(self) -> Candidates:
        """All values, each as likely."""
        tokens = torch.arange(self.recall.values) + BYTES + self.recall.keys
        return Candidates(tokens, torch.full((len(tokens),), 1 / len(tokens)))

    def _shares(self, circuit: Circuit, fitted: Sequences, scored: Sequences) -> dict[str, Any]:
        """How often the model recalls, and how often a linear probe reads the value."""
        sets = [self._queries(circuit, each) for each in (fitted, scored)]
        (outputs, values), (scored_outputs, wanted) = sets
        probes = fit_linear(
            outputs, values, 1, circuit.vocabulary, Training(seed=self.asked.seed, windows=256)
        )
        (top1,) = (
            score.record()["top1"]
            for kind, score in score_linear(scored_outputs, wanted, 1, probes).items()
            if kind == "softmax"
        )
        right = circuit.model.logits(scored_outputs[:, 0]).argmax(dim=-1) == wanted[:, 1]
        return {"recall": right.float().mean().item(), "queries": len(wanted), "probe": top1}

    def _queries(self, circuit: Circuit, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Outputs at the queries that count, and the values asked for.

        As windows of two positions, `(N, 2, F)` and `(N, 2)`: the output stands at the first, the
        value at the second, as `eval.probes.linear` reads them.
        """
        tokens, asked = sequences.tokens, torch.from_numpy(sequences.asked)
        outputs = outputs_of(circuit, tokens)[asked]
        pairs = torch.stack([tokens[:, :-1][asked[:, :-1]], tokens[:, 1:][asked[:, :-1]]], dim=1)
        return outputs[:, None].expand(-1, 2, -1), pairs

    def _adam(
        self, circuit: Circuit, tokens: Tensor, places: list[int], ends: list[int], known: Measured
    ) -> dict[int, bool]:
        """Whether Adam names the value from the output at the query, all other tokens given."""
        some = [*range(min(self.asked.adam, len(places)))]
        if not some:
            return {}
        alone = (
            known._replace(outputs=known.outputs[n : n + 1], apart=known.apart[:, n : n + 1])
            for n in some
        )
        batch = Batch(
            tuple(
                pose(circuit, tokens[n : n + 1], Slice(ends[n], ends[n] + 1), measured=one)
                for n, one in zip(some, alone, strict=True)
            )
        )
        chance = [torch.Generator().manual_seed(self.asked.seed * 1_000_003 + n) for n in some]
        free = torch.zeros(len(some), tokens.shape[1])
        free[some, places[: len(some)]] = 1.0
        start = torch.where(
            free[..., None] > 0, scaled_start(batch, chance), circuit.embed(tokens[: len(some)])
        )
        answers = adam(batch, chance, start=start, free=free)
        return {
            n: bool(answer.tokens[places[n]] == tokens[n, places[n]])
            for n, answer in zip(some, answers, strict=True)
        }


READERS = {
    "bits noise 0.25 rms": "bits, noise of 1/4 RMS",
    "bits int4": "bits, 4-bit codes",
    "searched": "exact search",
    "descended": "Adam",
    "probe": "linear probe",
}
"""Fields of records, and what they are called."""


def figures(registration: dict[str, Any], rows: Sequence[Row]) -> list[Figure]:
    """Recall against bits, and against what readers make of the same outputs."""
    flat, names = records(rows), ["architecture", "pairs"]
    recalled = means(flat, "recall", names)
    most = math.log2(registration["design"]["recall"]["values"])
    points = [
        {"reader": title, "architecture": cell[0], "pairs": f"{cell[1]} pairs", "of": " "}
        | {"x": x / (most if field.startswith("bits") else 1), "value": recalled[cell]}
        for field, title in READERS.items()
        for cell, x in sorted(means(flat, field, names).items())
        if cell in recalled
    ]
    title = "Recall against what is read of the value"
    about = (
        f"{title} in the output at the query: the share of all bits, or of values named. A point "
        "is one architecture and number of pairs, the mean of all seeds."
    )
    share = {"type": "quantitative", "scale": {"domain": [0, 1]}, "axis": {"values": [0, 0.5, 1]}}
    panel = {
        "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.85},
        "encoding": {
            "x": {"field": "x", "title": None, **share},
            "y": {"field": "value", "title": "recall", **share},
            "color": {"field": "architecture", "type": "nominal", "title": None},
            "shape": {"field": "pairs", "type": "nominal", "title": None},
        },
        "width": 140,
        "height": 150,
    }
    header = {"title": "share read", "titleOrient": "bottom", "labelOrient": "top"}
    chart = plots.facets(points, panel, "reader", "of", header=header)
    return [Figure("readers", title, about, chart)]


def readings(rows: Sequence[Row]) -> Table:
    """Recall, and each measure's mean, by architecture and number of pairs."""
    flat, names = records(rows), ["architecture", "pairs"]
    fields = {"recall": "recall", **READERS, "effect": "relative effect"}
    return mean_table(names, {title: means(flat, field, names) for field, title in fields.items()})
