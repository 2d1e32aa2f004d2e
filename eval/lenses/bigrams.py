"""Is W_E W_U' a table of bigrams? Its rows against what follows each token in a corpus.

With no block at all a model could learn nothing but bigrams (Elhage et al. 2021, "A Mathematical
Framework for Transformer Circuits"), and it would answer from this table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

from arch import LanguageModel
from eval import plots
from eval.lenses import markup
from eval.lenses.geometry import both_embeddings
from eval.lenses.lens import Documents, Finding, Request, lens
from eval.models import Checkpoint
from eval.ranks import token_ranks
from eval.text import held_out_text

TABLES = ("product", "direct")
"""W_E W_U'; the same with the final norm between, as in the model without its blocks."""
PAIRED = ("corpus", "shuffled")
PAIRS = 512  # ranked at a time
LIMIT = 3000  # pairs that are ranked
SHOWN = 10  # tokens in the table of successors
TOP = 5


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


def successors(checkpoint: Checkpoint, bigrams: Bigrams) -> list[dict[str, Any]]:
    """The most frequent tokens with what follows them, in the corpus and by W_E W_U'."""
    common = bigrams.unigrams.argsort(descending=True)[:SHOWN]
    rows = table_rows(checkpoint.model, common, "product")
    shown = []
    for token, best in zip(common.tolist(), rows.topk(TOP, dim=1).indices.tolist(), strict=True):
        here = bigrams.first == token
        after = bigrams.second[here][bigrams.number[here].argsort(descending=True)[:TOP]]
        shown.append(
            {
                "piece": checkpoint.pieces([token])[0],
                "corpus": checkpoint.pieces(after.tolist()),
                "table": checkpoint.pieces(best),
            }
        )
    return shown


def _draw(documents: Documents) -> list[plots.Figure]:
    ranks = documents.records("bigrams")
    return [
        plots.Figure(
            "bigrams-rank",
            "Do the embeddings alone know what follows what?",
            "Where the corpus's true next tokens rank in each table of logits, 0 the top and 0.5 "
            "chance; the shuffled pairs are the control.",
            plots.by_model(plots.bars(ranks, "pairs", "rank", "table"), ranks),
        )
    ]


def _successor_table(documents: Documents) -> list[Markup]:
    return documents.table(
        "successors",
        "what follows the most frequent tokens",
        ("after", "in the corpus", "by W_E W_U'"),
        lambda s: (markup.codes([s["piece"]]), markup.codes(s["corpus"]), markup.codes(s["table"])),
    )


@lens("bigrams", "What follows what", figures=_draw, texts=_successor_table, order=5)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Whether W_E W_U' is a table of what follows what."""
    model, text = checkpoint.model, held_out_text(checkpoint, request.corpus)
    tokens = text.windows("fitting", 1, request.tokens)[0]
    bigrams = count_bigrams(tokens, checkpoint.config.vocab_size)
    some = thinned(bigrams, LIMIT, request.seed)
    shown = successors(checkpoint, bigrams)
    finding = Finding(notes={"successors": shown})
    values = torch.stack([mean_ranks(model, some, table, request.seed) for table in TABLES])
    axes = {"table": TABLES, "pairs": PAIRED}
    finding.array("bigrams", values, axes)
    finding.rows("bigram rank", values, axes)
    return finding
