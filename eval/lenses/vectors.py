"""The tokens' vectors: lengths, input beside output, the way back, the nearest, and bigrams.

W_E turns a token into a vector, W_U a vector into logits; both are `(V, D)`, one row a token. With
no block at all a model could learn nothing but bigrams (Elhage et al. 2021, "A Mathematical
Framework for Transformer Circuits"), and it would answer from the table W_E W_U'.
"""

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.lenses.charts import Bars, Histogram
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens, word_tokens
from eval.measures.ranks import token_ranks
from eval.models.text import held_out_text

OUTLIER = 3.5  # robust z from which a length is unusual (Iglewicz & Hoaglin 1993)
SIDES = ("input", "output")
WAYS = ("pinv", "scaled", "transpose", "head")
"""Ways back from a vector to tokens, products with a matrix.

pinv: the Moore-Penrose inverse of W_E; scaled: its transpose, each row divided by its squared
length; transpose: as it is; head: W_U, as the model does.
"""
METRICS = ("dot", "cosine", "euclid")
BINS = 60
SAMPLE = 256  # tokens that are compared with the whole vocabulary
PAIRS = 512  # pairs ranked at a time
LIMIT = 3000  # pairs that are ranked
SHOWN = 12  # tokens that the page names
TOP = 5  # of the largest others on the way back, and of what follows a token
TINY = 1e-30


def outliers(norms: Tensor) -> list[int]:
    """Tokens whose lengths `(V,)` are unusual, the most unusual first.

    By distance from the median in robust standard deviations.
    """
    off = norms - norms.median()
    z = off.abs() / (1.4826 * off.abs().median()).clamp(min=TINY)  # of a normal distribution
    return [i for i in z.argsort(descending=True).tolist() if z[i] > OUTLIER]


def ways_back(inputs: Tensor, outputs: Tensor) -> dict[str, Tensor]:
    """The matrix `(V, D)` of each of `WAYS`, from W_E and W_U, `(V, D)` each."""
    gram = inputs.double().T @ inputs.double()  # pinv(E) = pinv(E' E) E', without V x V numbers
    inverse = torch.linalg.pinv(gram, hermitian=True)
    squares = inputs.square().sum(dim=1, keepdim=True).clamp(min=TINY)
    matrices = (inputs.double() @ inverse).float(), inputs / squares, inputs, outputs
    return dict(zip(WAYS, matrices, strict=True))


def nearest(queries: Tensor, keys: Tensor, metric: str, count: int = 1) -> Tensor:
    """The nearest of keys `(V, D)` to queries `(N, D)`, `(N, count)`, the nearest first."""
    likeness = queries @ (F.normalize(keys, dim=1) if metric == "cosine" else keys).T
    if metric == "euclid":  # |q - k|^2 = |q|^2 - 2 (q k - |k|^2 / 2), exact for long queries too
        likeness -= keys.square().sum(dim=1) / 2
    return likeness.topk(min(count, len(keys))).indices


def rank_pairs(both: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Ranks of tokens `(N,)` in the rows of first ones, in shares of V - 1; 0 is the top.

    The rows are those of W_E W_U', from both matrices `(2, V, D)`.
    """
    parts = zip(first.split(PAIRS), second.split(PAIRS), strict=True)
    ranks = [token_ranks((both[0, batch] @ both[1].T).cpu(), after) for batch, after in parts]
    return torch.cat(ranks) / (both.shape[1] - 1)


def add_lengths(table: Table, checkpoint: Checkpoint, both: Tensor, counts: Tensor) -> None:
    """Row lengths of both embeddings, and the unusual ones by how often they occur, `(V,)`."""
    norms, lines = both.norm(dim=-1).cpu(), []
    units = norms / norms.median(dim=1, keepdim=True).values.clamp(min=TINY)
    for matrix, unit in zip(SIDES, units, strict=True):
        odd = outliers(unit)
        table.add("length outliers", len(odd) / len(unit), matrix=matrix)
        for token in odd[:SHOWN]:
            numbers = f"{float(unit[token]):.2f}", str(int(counts[token]))
            lines.append([matrix, checkpoint.words([token]), *numbers])
    columns = ("matrix", "token", "length, medians", "times seen")
    table.say("tokens of unusual length", columns, lines)
    edges = torch.linspace(0, float(units.max()), BINS + 1)
    _add_histogram(table, "lengths", units, edges, "matrix", SIDES)


def add_alignment(table: Table, both: Tensor, rows: Tensor) -> None:
    """Cosine of the two rows of each of N tokens, beside those of one's and another's."""
    first, second = both[:, rows].cpu()
    cosines = [F.cosine_similarity(first, other) for other in (second, second.roll(1, dims=0))]
    for name, cosine in zip(("own cosine", "own cosine control"), cosines, strict=True):
        table.add(name, cosine, token=rows.tolist())
    edges = torch.linspace(-1, 1, BINS + 1)
    kinds = torch.stack(cosines).clamp(-1, 1)
    _add_histogram(table, "alignment", kinds, edges, "with", ("its own", "another's"))


def add_round_trips(
    table: Table, checkpoint: Checkpoint, both: Tensor, rows: Tensor, shown: list[int]
) -> None:
    """One-hot to vector to tokens, by every way: figures over N tokens, words of those `shown`.

    A variant of a word differs from it in capitals and in the space before it only: whether a token
    with variants has one among the others, and how often by chance.
    """
    V, N = both.shape[1], len(rows)
    pieces = checkpoint.words(range(V))
    words: dict[str, int] = {}
    word_of = torch.tensor([words.setdefault(p.strip().lower() or p, len(words)) for p in pieces])
    queries = torch.cat([rows, torch.tensor(shown)])
    variants = word_of.bincount()[word_of[rows]] - 1
    has, lines = variants > 0, []
    for way, matrix in ways_back(*both).items():
        values = (both[0, queries] @ matrix.T).cpu()
        own = values.gather(1, queries[:, None])[:, 0]
        other = values.scatter(1, queries[:, None], -torch.inf).topk(min(TOP, V - 1))
        largest, axes = other.values[:N, 0], {"token": rows.tolist(), "method": way}
        table.add("round trip own value", own[:N], **axes)
        table.add("round trip largest other", largest, **axes)
        table.add("round trip own largest", own[:N] > largest, **axes)
        if has.any():
            hits = (word_of[other.indices[:N]] == word_of[rows, None]).any(dim=1)[has]
            expected = (other.indices.shape[1] * variants[has] / (V - 1)).clamp(max=1)
            axes = {"token": rows[has].tolist(), "method": way}
            table.add("round trip variant among others", hits, **axes)
            table.add("round trip variant by chance", expected, **axes)
        for token, value, others in zip(shown, own[N:], other.indices[N:].tolist(), strict=True):
            others = [pieces[number] for number in others]
            lines.append([[pieces[token]], way, f"{float(value):.3g}", others])
    columns = ("token", "way back", "its own value", "largest others")
    table.say("one-hot to vector and back to tokens", columns, lines)


def add_neighbours(
    table: Table, checkpoint: Checkpoint, batch: PromptBatch, both: Tensor, shown: list[int]
) -> None:
    """How often the nearest of W_U's rows is the model's answer; the nearest tokens of `shown`.

    Queries are every position's last stream, that after the final norm, which the head multiplies
    by W_U, and the same with the median length of W_U's rows: |q - k|^2 = |q|^2 - 2 q k + |k|^2, so
    that for a long query distance is nearly the product.
    """
    model, stream = batch.model, batch.streams[-1]
    final = model.norm(stream)
    answers = model.logits(stream).argmax(dim=-1)[batch.real]
    scaled = F.normalize(final, dim=-1) * both[1].norm(dim=1).median()
    queries = {"last stream": stream, "after norm": final, "as long as tokens": scaled}
    for query, vectors in queries.items():
        words = vectors[batch.real].float()
        agreed = torch.stack(
            [nearest(words, both[1], measure)[:, 0] == answers for measure in METRICS]
        )
        table.add("agrees", agreed, query=query, metric=METRICS, prompt=batch.prompt_of)
    lines = [
        [[piece], metric, checkpoint.words(tokens)]
        for metric in METRICS
        for piece, tokens in zip(
            checkpoint.words(shown),
            nearest(both[0, shown], both[0], metric, TOP + 1).tolist(),
            strict=True,
        )
    ]
    table.say("nearest tokens", ("token", "by", "nearest in the input matrix"), lines)


def add_bigrams(
    table: Table, checkpoint: Checkpoint, both: Tensor, tokens: Tensor, seed: int
) -> None:
    """Where the next tokens of a text rank in W_E W_U'; what follows its most frequent tokens.

    Chance goes from the same tokens to the next token of another place, so that a table which knows
    single tokens' frequencies only does as well on both.
    """
    at = torch.randperm(len(tokens) - 1, generator=torch.Generator().manual_seed(seed))[:LIMIT]
    first, second = tokens[at], tokens[at + 1]
    for pairs, after in (("corpus", second), ("shuffled", second.roll(1))):
        ranks = rank_pairs(both, first, after)
        table.add("bigram rank", ranks, pairs=pairs, token=first.tolist())
    common, lines = torch.bincount(tokens).argsort(descending=True)[:SHOWN], []
    best = (both[0, common] @ both[1].T).topk(min(TOP, both.shape[1])).indices.tolist()
    for token, likely in zip(common.tolist(), best, strict=True):
        after = Counter(tokens[1:][tokens[:-1] == token].tolist()).most_common(TOP)
        lines.append(
            [*map(checkpoint.words, ([token], [follower for follower, _ in after], likely))]
        )
    columns = ("after", "in the corpus", "by W_E W_U'")
    table.say("what follows the most frequent tokens", columns, lines)


def _add_histogram(
    table: Table, name: str, groups: Tensor, edges: Tensor, axis: str, labels: tuple[str, ...]
) -> None:
    bars = torch.stack([torch.histogram(values, edges).hist for values in groups])
    unit, middles = "length" if name == "lengths" else "cosine", (edges[1:] + edges[:-1]) / 2
    axes: dict[str, Any] = {axis: labels, unit: middles.tolist()}
    table.add(name, bars, rows=False, **axes)


@lens(
    "vectors",
    "The tokens' vectors",
    order=4,
    main=(("agrees", {}), ("round trip own largest", {})),
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
            title="Which likeness agrees with the model?",
            about="Share of positions at which the nearest output vector, by each measure, is that "
            "of the model's own answer.",
        ),
        Bars(
            of="bigram rank",
            x="pairs",
            y="rank",
            title="Do the embeddings alone know what follows what?",
            about="Where the corpus's true next tokens rank in W_E W_U', 0 the top and 0.5 chance; "
            "the shuffled pairs are the control.",
        ),
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """How the tokens' vectors lie: how long, how near each other, and input beside output."""
    model = checkpoint.model
    both = torch.stack([model.embedding.weight, model.head.weight]).detach().float()
    tokens = held_out_text(checkpoint, request.corpus).windows("fitting", 1, request.tokens)[0]
    counts = torch.bincount(tokens, minlength=both.shape[1])
    known = counts.nonzero()[:, 0]
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(request.seed))
    rows = known[order[:SAMPLE]]
    shown = list(word_tokens(checkpoint, request.words).values())
    if not shown:  # the first prompt's tokens that have a letter in them
        own = list(dict.fromkeys(request.prompts[0].tokens))
        pieces = zip(own, checkpoint.words(own), strict=True)
        lettered = [token for token, piece in pieces if any(map(str.isalpha, piece))]
        shown = (lettered or own)[:SHOWN]
    add_lengths(table, checkpoint, both, counts)
    add_alignment(table, both, rows)
    add_round_trips(table, checkpoint, both, rows, shown)
    add_neighbours(table, checkpoint, batch, both, shown)
    add_bigrams(table, checkpoint, both, tokens, request.seed)
