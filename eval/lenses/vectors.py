"""The tokens' vectors: lengths, input beside output, the way back, the nearest, and bigrams.

W_E turns a token into a vector, W_U a vector into logits; both are `(V, D)`, one row a token. With
no block at all a model could learn nothing but bigrams (Elhage et al. 2021, "A Mathematical
Framework for Transformer Circuits"), and it would answer from the table W_E W_U'.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel
from eval.lenses.charts import Bars, Histogram
from eval.lenses.lens import Request, lens, word_tokens
from eval.lenses.table import Table
from eval.lenses.trace import PromptBatch
from eval.models import Checkpoint
from eval.ranks import token_ranks
from eval.text import held_out_text

NORMAL = 1.4826  # of a normal distribution, standard deviations in its median absolute deviation
OUTLIER = 3.5  # robust z from which a length is unusual (Iglewicz & Hoaglin 1993)
UNEMBEDDINGS = ("pinv", "scaled", "transpose", "head")
"""Ways back from a vector to tokens.

pinv: the Moore-Penrose inverse of W_E; scaled: its transpose, each row divided by its squared
length; transpose: as it is; head: W_U, as the model does.
"""
METRICS = ("dot", "cosine", "euclid")
TABLES = ("product", "direct")
"""W_E W_U'; the same with the final norm between, as in the model without its blocks."""
PAIRED = ("corpus", "shuffled")
BINS = 60
SAMPLE = 256  # tokens that are compared with the whole vocabulary
PAIRS = 512  # pairs ranked at a time
LIMIT = 3000  # pairs that are ranked
SHOWN = 12  # tokens that the page names
TOP = 5  # of the largest others on the way back, and of what follows a token
TINY = 1e-30


def both_embeddings(model: LanguageModel) -> dict[str, Tensor]:
    """W_E and W_U in float32, `(V, D)` each, as `input` and `output`."""
    return {
        "input": model.embedding.weight.detach().float(),
        "output": model.head.weight.detach().float(),
    }


def robust_z(values: Tensor) -> Tensor:
    """Distance from the median in robust standard deviations, of `(N,)` numbers."""
    middle = values.median()
    spread = NORMAL * (values - middle).abs().median()
    return (values - middle) / spread.clamp(min=TINY)


def outliers(norms: Tensor) -> list[int]:
    """Tokens whose lengths `(V,)` are unusual, the most unusual first."""
    z = robust_z(norms).abs()
    return [i for i in z.argsort(descending=True).tolist() if z[i] > OUTLIER]


def round_trip(inputs: Tensor, outputs: Tensor, rows: Tensor, method: str) -> Tensor:
    """One-hot to vector to tokens again: values of all tokens for each of N, `(N, V)`.

    Inputs are W_E, outputs W_U, `(V, D)` each; the method is one of `UNEMBEDDINGS`.
    """
    asked = inputs[rows]
    if method == "pinv":  # E pinv(E) = E pinv(E' E) E', which needs no decomposition of V x D
        inner = inputs.double().T @ inputs.double()
        return (asked.double() @ torch.linalg.pinv(inner, hermitian=True)).float() @ inputs.T
    if method == "scaled":
        return asked @ (inputs / inputs.square().sum(dim=1, keepdim=True).clamp(min=TINY)).T
    return asked @ (outputs if method == "head" else inputs).T


def others(values: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest of values `(N, V)` beside those of tokens `(N,)`: with their tokens, `(N, K)`."""
    rest = values.scatter(1, rows[:, None], -torch.inf)
    top = rest.topk(min(count, values.shape[1] - 1), dim=1)
    return top.values, top.indices


def nearest(queries: Tensor, keys: Tensor, metric: str, count: int = 1) -> Tensor:
    """The nearest of keys `(V, D)` to queries `(N, D)`, `(N, count)`, the nearest first."""
    near = queries @ keys.T
    if metric == "cosine":  # the query's own length changes no order
        near /= keys.norm(dim=1).clamp(min=TINY)
    elif metric == "euclid":  # nor does its square: |q - k|^2 = |q|^2 - 2 (q k - |k|^2 / 2)
        near -= keys.square().sum(dim=1) / 2
    return near.topk(count, dim=1).indices


class Bigrams(NamedTuple):
    """Pairs of neighbouring tokens in a text."""

    first: Tensor  # token of each distinct pair, in order, (N,)
    second: Tensor  # token of each, (N,)
    number: Tensor  # of times that the pair occurs, (N,)
    unigrams: Tensor  # times that each token occurs, (V,)


def count_bigrams(tokens: Tensor, vocabulary: int) -> Bigrams:
    """Counts the neighbours in `(N,)` tokens, in float64."""
    codes, number = torch.unique(tokens[:-1] * vocabulary + tokens[1:], return_counts=True)
    unigrams = torch.bincount(tokens, minlength=vocabulary)
    return Bigrams(codes // vocabulary, codes % vocabulary, number.double(), unigrams)


@torch.no_grad()
def table_rows(model: LanguageModel, tokens: Tensor, table: str) -> Tensor:
    """Rows of one of `TABLES`, `(N, V)` for `(N,)` tokens, on the CPU."""
    both = both_embeddings(model)
    tokens = tokens.to(both["input"].device)
    if table == "direct":
        return model.logits(model.embed(tokens)).float().cpu()
    return (both["input"][tokens] @ both["output"].T).cpu()


def rank_pairs(model: LanguageModel, first: Tensor, seconds: Tensor, table: str) -> Tensor:
    """Ranks of K second tokens `(K, N)` in the rows of first ones `(N,)`, which are sorted.

    They are among all tokens, 0 the largest, `(K, N)`.
    """
    ranks = []
    for some, after in zip(first.split(PAIRS), seconds.split(PAIRS, dim=1), strict=True):
        rows, place = torch.unique(some, return_inverse=True)
        values = table_rows(model, rows, table)[place]
        ranks.append(torch.stack([token_ranks(values, column) for column in after]))
    return torch.cat(ranks, dim=1)


def thinned(bigrams: Bigrams, limit: int, seed: int) -> Bigrams:
    """At most so many of the distinct pairs, drawn; what they are compared with stays."""
    order = torch.randperm(len(bigrams.first), generator=torch.Generator().manual_seed(seed))
    kept = order[:limit].sort().values
    first, second, number = (values[kept] for values in bigrams[:3])
    return bigrams._replace(first=first, second=second, number=number)


def mean_ranks(model: LanguageModel, bigrams: Bigrams, table: str, seed: int) -> Tensor:
    """How well a table knows a corpus' bigrams, and how well it does by chance.

    Chance keeps the first tokens and the second tokens and draws anew which goes with which, so
    that a table which knows single tokens' frequencies only does as well on both.

    Returns:
        The mean rank over all occurrences, as a share of V, `(2,)` of `PAIRED`.
    """
    generator = torch.Generator().manual_seed(seed)
    weight = (bigrams.number / bigrams.number.sum()).float()
    drawn = torch.multinomial(weight, len(weight), True, generator=generator)
    seconds = torch.stack([bigrams.second, bigrams.second[drawn]])  # as common as they are
    ranks = rank_pairs(model, bigrams.first, seconds, table)
    return ranks @ weight / (len(bigrams.unigrams) - 1)


def add_lengths(table: Table, checkpoint: Checkpoint, counts: Tensor) -> None:
    """Row lengths of both embeddings against how often the tokens occur, `counts` `(V,)`."""
    from scipy.stats import spearmanr

    units, lines = [], []
    for matrix, rows in both_embeddings(checkpoint.model).items():
        norms = rows.norm(dim=1).cpu()
        unit = norms / norms.median().clamp(min=TINY)
        units.append(unit)
        odd = outliers(unit)
        figures = {"length median": norms.median(), "length outliers": len(odd) / len(unit)}
        if unit.min() < unit.max() and counts.min() < counts.max():
            alike = spearmanr(unit, counts).statistic  # pyright: ignore
            figures["length with frequency"] = alike
        for name, value in figures.items():
            table.add(name, value, matrix=matrix)
        lines += [
            [
                matrix,
                checkpoint.pieces([token]),
                f"{float(unit[token]):.2f}",
                str(int(counts[token])),
            ]
            for token in odd[:SHOWN]
        ]
    columns = ("matrix", "token", "length, medians", "times seen")
    table.say("tokens of unusual length", columns, lines)
    edges = torch.linspace(0, max(float(unit.max()) for unit in units), BINS + 1)
    _add_histogram(table, "lengths", units, edges, "matrix", ("input", "output"))


def add_alignment(table: Table, checkpoint: Checkpoint, rows: Tensor) -> None:
    """Cosine of the two rows of each of N tokens, beside those of one's and another's."""
    first, second = (matrix[rows] for matrix in both_embeddings(checkpoint.model).values())
    own = F.cosine_similarity(first, second)
    control = F.cosine_similarity(first, second.roll(1, dims=0))
    table.add("own cosine", own, token=rows.tolist())
    table.add("own cosine control", control, token=rows.tolist())
    kinds = [cosines.cpu().clamp(-1, 1) for cosines in (own, control)]
    edges = torch.linspace(-1, 1, BINS + 1)
    _add_histogram(table, "alignment", kinds, edges, "with", ("its own", "another's"))


def add_round_trips(table: Table, checkpoint: Checkpoint, rows: Tensor, shown: list[int]) -> None:
    """One-hot to vector to tokens, by every method: figures over N tokens, words of those `shown`.

    A variant of a word differs from it in capitals and in the space before it only: whether a token
    with variants has one among the others, and how often by chance.
    """
    both, N = both_embeddings(checkpoint.model), len(rows)
    pieces = checkpoint.pieces([*range(len(both["input"]))])
    words: dict[str, int] = {}
    word_of = torch.tensor([words.setdefault(p.strip().lower(), len(words)) for p in pieces])
    asked = torch.cat([rows.cpu(), torch.tensor(shown)])
    variants = word_of.bincount()[word_of][asked[:N]] - 1
    has, lines = variants > 0, []
    for method in UNEMBEDDINGS:
        values = round_trip(both["input"], both["output"], asked.to(rows.device), method).cpu()
        same = values.gather(1, asked[:, None])[:, 0]
        top, tokens = others(values, asked, TOP)
        back = {
            "own value": same[:N],
            "largest other": top[:N, 0],
            "spread of others": values[:N].std(dim=1),
            "own largest": same[:N] > top[:N, 0],
        }
        for name, each in back.items():
            table.add(f"round trip {name}", each, token=rows.tolist(), method=method)
        if has.any():
            hits = (word_of[tokens[:N]] == word_of[asked[:N], None]).any(dim=1)
            chance = tokens.shape[1] * variants[has].float() / (len(word_of) - 1)
            place: dict[str, Any] = {"token": rows[has.to(rows.device)].tolist(), "method": method}
            table.add("round trip variant among others", hits[has], **place)
            table.add("round trip variant by chance", chance.clamp(max=1), **place)
        lines += [
            [[pieces[token]], method, f"{float(same[i]):.3g}", [pieces[o] for o in tokens[i]]]
            for i, token in enumerate(shown, start=N)
        ]
    columns = ("token", "way back", "its own value", "largest others")
    table.say("one-hot to vector and back to tokens", columns, lines)


def add_neighbours(
    table: Table, checkpoint: Checkpoint, batch: PromptBatch, shown: list[int]
) -> None:
    """How often the nearest token by each metric is the model's answer; the nearest of `shown`.

    Queries are every position's vectors: the token's embedding, the last stream, that after the
    final norm, which the head multiplies by W_U, and the same with the median length of W_U's rows:
    |q - k|^2 = |q|^2 - 2 q k + |k|^2, so that for a long query distance is nearly the product.
    """
    model, stream, both = batch.model, batch.streams[-1], both_embeddings(batch.model)
    final = model.norm(stream)
    answers = model.head(final).argmax(dim=-1)[batch.real]
    queries = {
        "embedding": model.embed(batch.tokens),
        "last stream": stream,
        "after norm": final,
        "as long as tokens": F.normalize(final, dim=-1) * both["output"].norm(dim=1).median(),
    }
    agreed = [
        nearest(vectors[batch.real].float(), keys, metric)[:, 0] == answers
        for vectors in queries.values()
        for keys in both.values()
        for metric in METRICS
    ]
    places: dict[str, Any] = {
        "query": queries,
        "keys": both,
        "metric": METRICS,
        "prompt": batch.prompt_of,
    }
    table.add(
        "agrees", torch.stack(agreed).view(len(queries), len(both), len(METRICS), -1), **places
    )
    lines = []
    for metric in METRICS:
        tokens = nearest(both["input"][shown], both["input"], metric, TOP + 1).tolist()
        for piece, near in zip(checkpoint.pieces(shown), tokens, strict=True):
            lines.append([[piece], metric, checkpoint.pieces(near)])
    table.say("nearest tokens", ("token", "by", "nearest in the input matrix"), lines)


def add_bigrams(table: Table, checkpoint: Checkpoint, tokens: Tensor, seed: int) -> None:
    """Where a text's next tokens rank in both tables; what follows its most frequent tokens."""
    model = checkpoint.model
    bigrams = count_bigrams(tokens, checkpoint.config.vocab_size)
    some = thinned(bigrams, LIMIT, seed)
    ranks = torch.stack([mean_ranks(model, some, name, seed) for name in TABLES])
    table.add("bigram rank", ranks, table=TABLES, pairs=PAIRED)
    common, lines = bigrams.unigrams.argsort(descending=True)[:SHOWN], []
    best = table_rows(model, common, "product").topk(TOP, dim=1).indices.tolist()
    for token, likely in zip(common.tolist(), best, strict=True):
        here = bigrams.first == token
        after = bigrams.second[here][bigrams.number[here].argsort(descending=True)[:TOP]]
        found = (checkpoint.pieces(some) for some in ([token], after.tolist(), likely))
        lines.append([*found])
    columns = ("after", "in the corpus", "by W_E W_U'")
    table.say("what follows the most frequent tokens", columns, lines)


@lens(
    "vectors",
    "The tokens' vectors",
    order=4,
    charts=[
        Histogram(
            of="lengths",
            x="length",
            colour="matrix",
            title="How long are the tokens' vectors?",
            about="Tokens by the length of their row in the input and in the output embedding.",
        ),
        Histogram(
            of="alignment",
            x="cosine",
            colour="with",
            title="Do a token's two vectors point the same way?",
            about="Tokens by the cosine of their input and output row; the control pairs each with "
            "another token's.",
        ),
        Bars(
            of="agrees",
            x="metric",
            y="share",
            column="query",
            row="keys",
            title="Which likeness agrees with the model?",
            about="Share of positions whose nearest token, by each measure, is the model's own "
            "answer (of the embedding: the token itself).",
        ),
        Bars(
            of="bigram rank",
            x="pairs",
            y="rank",
            column="table",
            title="Do the embeddings alone know what follows what?",
            about="Where the corpus's true next tokens rank in each table of logits, 0 the top and "
            "0.5 chance; the shuffled pairs are the control.",
        ),
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """The tokens' vectors: lengths, alignment, the way back, nearest, bigrams."""
    text = held_out_text(checkpoint, request.corpus)
    tokens = text.windows("fitting", 1, request.tokens)[0]
    counts = torch.bincount(tokens, minlength=checkpoint.config.vocab_size)
    known = counts.nonzero()[:, 0]
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(request.seed))
    rows = known[order[:SAMPLE]].to(checkpoint.model.embedding.weight.device)
    shown = list(word_tokens(checkpoint, request.words).values())
    if not shown:  # the first prompt's tokens that have a letter in them
        own = list(dict.fromkeys(request.prompts[0].tokens))
        pieces = zip(own, checkpoint.pieces(own), strict=True)
        lettered = [token for token, piece in pieces if any(map(str.isalpha, piece))]
        shown = (lettered or own)[:SHOWN]
    tied = "one matrix" if checkpoint.config.tied else "two matrices"
    table.say("input and output embedding", ("are",), [[tied]])
    add_lengths(table, checkpoint, counts)
    add_alignment(table, checkpoint, rows)
    add_round_trips(table, checkpoint, rows, shown)
    add_neighbours(table, checkpoint, batch, shown)
    add_bigrams(table, checkpoint, tokens, request.seed)


def _add_histogram(
    table: Table,
    name: str,
    groups: list[Tensor],
    edges: Tensor,
    axis: str,
    labels: tuple[str, ...],
) -> None:
    bars = torch.stack([torch.histogram(values, edges).hist for values in groups])
    unit, middles = "length" if name == "lengths" else "cosine", (edges[1:] + edges[:-1]) / 2
    places: dict[str, Any] = {axis: labels, unit: middles.tolist()}
    table.add(name, bars, rows=False, **places)
