"""Which story does a sentence belong to? Stories and sentences matched by their hidden states.

A sentence and the rest of its story are read apart. A pair is matched when their states are more
alike (cosine) than the sentence and any other story. It is asked of the states as they are, and of
a copy of the model after a short fit that pulls pairs together (InfoNCE, van den Oord et al.
1807.03748).
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from scipy.stats import hypergeom
from torch import Tensor

from arch import LanguageModel
from eval import RequestError
from eval.models import Checkpoint, rows_at_once
from eval.rows import Results, Row, row_key
from eval.statistics import Interval, share
from eval.text import HeldOutText, Use, held_out_text

SENTENCES = ("first", "last")
POOLS = ("last", "mean")
LEAST = 32  # candidates; then doubled as long as there are stories
_END = re.compile(r"(?<=[.!?])[\"'”’]?\s+")

Tokens = list[int]


@dataclass(frozen=True)
class Pairs:
    """Sentences, and the stories that they were taken out of, as tokens."""

    sentences: list[Tokens]
    stories: list[Tokens]

    def __len__(self) -> int:
        """How many pairs."""
        return len(self.sentences)


def sentence_pairs(
    text: HeldOutText,
    use: Use,
    sentence: str,
    context: int,
    count: int | None = None,
    unlike: Pairs | None = None,
) -> Pairs:
    """Stories without one of their sentences, and that sentence.

    A story too long for the model is cut at the end away from the sentence. Many stories begin
    alike; of those that share the sentence only the first is taken, since nothing could tell them
    apart.

    Args:
        text: where stories come from.
        use: which of them.
        sentence: first or last.
        context: the most tokens that the model can see.
        count: pairs at most; all when not given.
        unlike: pairs whose sentences are left out.

    Raises:
        CorpusError: the corpus cannot be read.
    """
    seen = {tuple(tokens) for tokens in unlike.sentences} if unlike else set()
    pairs = Pairs([], [])
    for story in text.stories(use):
        if count is not None and len(pairs) == count:
            break
        parts = _END.split(story.strip())
        if len(parts) < 3:
            continue
        picked, rest = (parts[0], parts[1:]) if sentence == "first" else (parts[-1], parts[:-1])
        tokens, body = (
            text.tokenizer.encode(part, add_special_tokens=False).ids
            for part in (picked, " ".join(rest))
        )
        tokens, body = tokens[:context], body[:context] if sentence == "first" else body[-context:]
        if tokens and body and tuple(tokens) not in seen:
            seen.add(tuple(tokens))
            pairs.sentences.append(tokens)
            pairs.stories.append(body)
    return pairs


@torch.no_grad()
def states(model: LanguageModel, texts: list[Tokens], pool: str) -> Tensor:
    """A model's state of each of N texts at every layer, `(n_layers + 1, N, D)`.

    Texts of about equal length share a batch; as many as the device's memory bears.

    Args:
        model: any.
        texts: of any lengths.
        pool: last (the state of the last token) or mean (over all of them).
    """
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    means = torch.empty(len(model.blocks) + 1, len(texts), model.config.d_model)
    for chosen in torch.tensor(order).split(_texts_at_once(model)):
        for layer, x in enumerate(_pooled(model, [texts[i] for i in chosen], pool)):
            means[layer, chosen] = x.float().cpu()
    return means


def _texts_at_once(model: LanguageModel) -> int:
    return rows_at_once(model, model.config.context, gradients=False)


def _pooled(model: LanguageModel, texts: list[Tokens], pool: str) -> Iterator[Tensor]:
    """The pooled states after each layer, `(B, D)`; texts are filled up at the end, unseen."""
    device = model.embedding.weight.device
    lengths = torch.tensor([len(text) for text in texts], device=device)
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(t) for t in texts], batch_first=True)
    x = model.embed(tokens.to(device))
    real = torch.arange(x.shape[1], device=device) < lengths[:, None]
    yield _pool(x, real, lengths, pool)
    x = model.with_positions(x)
    for block in model.blocks:
        x = block(x)
        yield _pool(x, real, lengths, pool)


def _pool(x: Tensor, real: Tensor, lengths: Tensor, pool: str) -> Tensor:
    if pool == "last":
        return x[torch.arange(len(x), device=x.device), lengths - 1]
    return (x * real[..., None]).sum(1) / lengths[:, None]


def nearer(sentences: Tensor, stories: Tensor) -> Tensor:
    """How many other stories are not less like each sentence than its own, `(Q,)`.

    Ties count against it, and so does a likeness that is NaN.

    Args:
        sentences: `(Q, D)`.
        stories: `(N, D)`, N >= Q; the first Q are the sentences' own, in order.
    """
    likeness = F.normalize(sentences, dim=-1) @ F.normalize(stories, dim=-1).T
    truth = likeness.diagonal()[:, None]
    return (~(likeness < truth)).sum(1) - 1


def top1(better: Tensor, pool: int, candidates: int) -> Interval:
    """The share of sentences whose own story comes first among `candidates`, with its interval.

    Exact over every way to draw the others: of the `pool - 1` other stories `better` come before
    it, and the probability that none of them is among the `candidates - 1` drawn is hypergeometric.
    The interval is that over sentences.

    Raises:
        RequestError: more candidates than stories.
    """
    if not 2 <= candidates <= pool:
        raise RequestError(f"{candidates} candidates: allowed are 2 to {pool}, the stories here")
    ahead = better.clamp(max=pool - 1).cpu().numpy()
    chances = hypergeom.pmf(0, pool - 1, ahead, candidates - 1).tolist()
    return share(chances, [1] * len(chances), range(len(chances)), [0] * len(chances))


@dataclass(frozen=True)
class PairFit:
    """A short fit by AdamW; the rate rises over a tenth and falls to zero.

    Attributes:
        steps: number of steps.
        batch: pairs of a step: each sentence's own story against those of the others.
        rate: the highest rate.
        temperature: that likeness is divided by.
        seed: of the order of the pairs.
    """

    steps: int = 100
    batch: int = 32
    rate: float = 1e-3
    temperature: float = 0.05
    seed: int = 0


def fit_on_pairs(
    model: LanguageModel,
    pairs: Pairs,
    pool: str,
    settings: PairFit,
) -> LanguageModel:
    """A copy of the model, fitted so that pairs are alike after its last block.

    Args:
        model: stays as it is.
        pairs: to fit on.
        pool: last or mean.
        settings: of the fit.

    Raises:
        RequestError: fewer pairs than a batch.
    """
    if len(pairs) < settings.batch:
        raise RequestError(
            f"{len(pairs)} pairs to fit on are fewer than a batch of {settings.batch}; give more "
            "stories, or a smaller batch"
        )
    fitted = copy.deepcopy(model).train().requires_grad_(True)
    optimizer = torch.optim.AdamW(fitted.parameters(), lr=settings.rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(settings.seed)
    chosen: Tokens = []
    with torch.enable_grad():
        for step in range(settings.steps):
            done = step / settings.steps
            for group in optimizer.param_groups:
                group["lr"] = settings.rate * min((step + 1) / (0.1 * settings.steps), 1 - done, 1)
            if len(chosen) < settings.batch:
                chosen = torch.randperm(len(pairs), generator=generator).tolist()
            now, chosen = chosen[: settings.batch], chosen[settings.batch :]
            ends = []
            for texts in (pairs.sentences, pairs.stories):
                *_, x = _pooled(fitted, [texts[i] for i in now], pool)
                ends.append(F.normalize(x, dim=-1))
            scores = ends[0] @ ends[1].T / settings.temperature
            truth = torch.arange(len(now), device=scores.device)
            loss = (F.cross_entropy(scores, truth) + F.cross_entropy(scores.T, truth)) / 2
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(fitted.parameters(), 1.0)
            optimizer.step()
    return fitted.eval().requires_grad_(False)


@dataclass(frozen=True)
class Match:
    """A task: a checkpoint is asked about first or last sentences.

    Attributes:
        sentence: first or last.
        corpus: where stories come from.
        queries: sentences to be placed, at most.
        candidates: stories that they may belong to, at most.
        pools: how the states of a text are made one.
        fit: of a copy of the model.
        fit_pairs: stories that it is fitted on, at most.
    """

    checkpoint: Checkpoint
    sentence: str
    corpus: str
    queries: int
    candidates: int
    pools: tuple[str, ...]
    fit: PairFit
    fit_pairs: int
    cost = 1.0

    @property
    def keys(self) -> list[str]:
        """The key of its last row; how many there are, the corpus says."""
        about = self.checkpoint
        return [row_key("retrieval", about.weights_sha256, about.control, self._asked)]

    def run(self, results: Results) -> list[Row]:
        """A row for each pool, reading and number of candidates.

        Raises:
            RequestError: too few stories.
            CorpusError: the corpus cannot be read.
        """
        rows = list(self._rows())
        (last,) = self.keys  # so that a write cut short is taken up again
        keys = [*(row_key(last, i) for i in range(1, len(rows))), last]
        about = {
            "kind": "retrieval",
            "checkpoint": self.checkpoint.provenance,
            "batch": _texts_at_once(self.checkpoint.model),
            **self._asked,
        }
        return [{"key": key, **about, **row} for key, row in zip(keys, rows, strict=True)]

    @property
    def _asked(self) -> dict[str, Any]:
        return {
            "corpus": self.corpus,
            "sentence": self.sentence,
            "limits": [self.queries, self.candidates, self.fit_pairs],
            "pools": list(self.pools),
            "fit": asdict(self.fit),
        }

    def _rows(self) -> Iterator[Row]:
        pairs, others, fitted_on = self._collect()
        stories, total = pairs.stories + others, len(pairs) + len(others)
        counts = [n for n in (LEAST << i for i in range(20)) if n <= min(total, self.candidates)]
        for pool in self.pools:
            model = self.checkpoint.model
            ends = [states(model, texts, pool) for texts in (pairs.sentences, stories)]
            readings: list[tuple[str, int, Tensor, Tensor]] = []
            for layer, (s, t) in enumerate(zip(*ends, strict=True)):
                readings.append(("as it is", layer, s, t))
                readings.append(("centred", layer, s - s.mean(0), t - t.mean(0)))
            if self.fit.steps:
                model = fit_on_pairs(model, fitted_on, pool, self.fit)
                s, t = (states(model, texts, pool)[-1] for texts in (pairs.sentences, stories))
                readings.append(("fitted", len(model.blocks), s, t))
            for method, layer, s, t in readings:
                better = nearer(s, t)
                for n in counts:
                    recovered = top1(better, total, n)
                    yield {
                        "layer": layer,
                        "pool": pool,
                        "method": method,
                        "candidates": n,
                        "queries": len(pairs),
                        "top1": recovered.estimate,
                        "low": recovered.low,
                        "high": recovered.high,
                        "chance": 1 / n,
                    }

    def _collect(self) -> tuple[Pairs, list[Tokens], Pairs]:
        """Pairs that are asked about, other stories, and pairs to fit on: no story twice."""
        context = self.checkpoint.config.context
        text = held_out_text(self.checkpoint, self.corpus)
        judged = sentence_pairs(text, "evaluation", self.sentence, context, self.candidates)
        if len(judged) < LEAST:
            raise RequestError(
                f"--corpus {self.corpus}: its held-out stories for evaluation give {len(judged)} "
                f"pairs; {LEAST} are needed at least; give more stories"
            )
        count = self.fit_pairs + max(0, self.candidates - len(judged))
        others = sentence_pairs(text, "fitting", self.sentence, context, count, judged)
        return (
            Pairs(judged.sentences[: self.queries], judged.stories[: self.queries]),
            judged.stories[self.queries :] + others.stories[self.fit_pairs :],
            Pairs(others.sentences[: self.fit_pairs], others.stories[: self.fit_pairs]),
        )
