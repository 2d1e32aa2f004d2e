"""The tokens' vectors: lengths, alignment of input and output, the way back, the nearest.

python -m eval lens DIR --lens geometry --corpus stories.txt --out results
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from markupsafe import Markup
from torch import Tensor

from eval import plots
from eval.checkpoints import Checkpoint
from eval.lenses import markup
from eval.lenses.documents import Document, model_name, records
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.named import Named
from eval.lenses.nearest import METRICS, agreement, nearest
from eval.lenses.trace import gather
from eval.lenses.vectors import (
    UNEMBEDDINGS,
    alignment,
    embeddings,
    others,
    outliers,
    robust_z,
    round_trip,
)
from eval.lenses.words import word_tokens
from eval.ranks import spearman
from eval.text import held_out_text

BINS = 60
SAMPLE = 256  # tokens of which all pairs with the vocabulary are looked at
SHOWN = 12  # tokens that the page names
OTHERS = 5  # of the largest others on the way back
NEIGHBOURS = 10


def lengths(
    checkpoint: Checkpoint, counts: Tensor
) -> tuple[Named, list[dict[str, Any]], list[dict[str, Any]]]:
    """Row lengths of both embeddings against how often the tokens occur, `counts` `(V,)`.

    Returns:
        Histogram in units of the median length; figures; the outlier tokens, named.
    """
    seen, plain = counts > 0, {}
    for name, rows in embeddings(checkpoint.model).items():
        plain[name] = rows.norm(dim=1).cpu()
    units = {name: norms / norms.median().clamp(min=1e-30) for name, norms in plain.items()}
    top = max(float(unit.max()) for unit in units.values())
    edges = torch.linspace(0, top, BINS + 1)
    bars, figures, named = [], [], []
    for name, unit in units.items():
        bars.append(torch.histogram(unit, edges).hist)
        z, odd = robust_z(unit), outliers(unit)
        values = {
            "length median": float(plain[name].median()),
            "length spread": float(unit.std()),
            "length outliers": len(odd) / len(unit),
            "length outliers unseen": _share(~seen[odd]) if odd else None,
            "tokens unseen": _share(~seen),
            "length with frequency": _spearman(unit, counts),
            "length of unseen": float(unit[~seen].mean()) if (~seen).any() else None,
        }
        figures += [
            {"figure": figure, "matrix": name, "value": value}
            for figure, value in values.items()
            if value is not None
        ]
        pieces = checkpoint.pieces(odd[:SHOWN])
        named += [
            {
                "matrix": name,
                "token": token,
                "piece": piece,
                "length": float(unit[token]),
                "z": float(z[token]),
                "count": int(counts[token]),
            }
            for token, piece in zip(odd[:SHOWN], pieces, strict=True)
        ]
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    return Named(torch.stack(bars), {"matrix": list(units), "length": middles}), figures, named


def aligned(checkpoint: Checkpoint, rows: Tensor) -> tuple[Named, list[dict[str, Any]]]:
    """Cosine of the two rows of each of N tokens: histogram beside other tokens' rows; figures."""
    both = embeddings(checkpoint.model)
    found = alignment(both["input"], both["output"], rows)
    edges = torch.linspace(-1, 1, BINS + 1)
    kinds = ("cosine", "control")
    bars = [torch.histogram(found[kind].cpu().clamp(-1, 1), edges).hist for kind in kinds]
    rank = found["rank"].float()
    values = {
        "own cosine": float(found["cosine"].mean()),
        "own cosine control": float(found["control"].mean()),
        "own rank": float(rank.median()),
        "own first": _share(rank == 0),
        "own rank as share": float(rank.mean()) / max(1, len(both["input"]) - 1),
    }
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    figures = [{"figure": name, "n": len(rows), "value": value} for name, value in values.items()]
    return Named(torch.stack(bars), {"rows": kinds, "cosine": middles}), figures


def returned(
    checkpoint: Checkpoint, rows: Tensor, shown: list[int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One-hot to vector to tokens, by every method: figures over N tokens, a table of `shown`.

    A variant of a word differs from it in capitals and in the space before it only.
    """
    both = embeddings(checkpoint.model)
    words = [piece.strip().lower() for piece in checkpoint.pieces([*range(len(both["input"]))])]
    names = {word: i for i, word in enumerate(dict.fromkeys(words))}
    word_of = torch.tensor([names[word] for word in words])
    asked = torch.cat([rows, torch.tensor(shown, device=rows.device)])
    figures, table = [], []
    for method in UNEMBEDDINGS:
        values = round_trip(both["input"], both["output"], asked, method).cpu()
        own = values.gather(1, asked[:, None].cpu())[:, 0]
        top, tokens = others(values, asked.cpu(), OTHERS)
        N = len(rows)
        figures += [
            {"figure": f"round trip {name}", "method": method, "n": N, "value": value}
            for name, value in {
                "own value": float(own[:N].mean()),
                "largest other": float(top[:N, 0].mean()),
                "spread of others": float(values[:N].std(dim=1).mean()),
                "own largest": _share(own[:N] > top[:N, 0]),
                **_variants(word_of, rows.cpu(), tokens[:N]),
            }.items()
        ]
        for i, token in enumerate(shown, start=N):
            table.append(
                {
                    "piece": checkpoint.pieces([token])[0],
                    "method": method,
                    "own": float(own[i]),
                    "others": checkpoint.pieces(tokens[i].tolist()),
                    "values": top[i].tolist(),
                }
            )
    return figures, table


@torch.no_grad()
def neighbours(
    checkpoint: Checkpoint, request: Request, shown: list[int]
) -> tuple[dict[str, Named], list[dict[str, Any]]]:
    """How often the nearest token by each metric is the model's answer; the nearest of `shown`.

    Queries are every position's vectors: the token's embedding, the last stream, that after the
    final norm, which the head multiplies by W_U, and the same with the median length of W_U's rows:
    |q - k|^2 = |q|^2 - 2 q k + |k|^2, so that for a long query distance is nearly the product.
    """
    model, batch = checkpoint.model, gather(checkpoint, request.prompts)
    embedded = model.embed(batch.tokens)
    stream = model.hidden(embedded, len(model.blocks))
    final = model.norm(stream)
    answers = model.head(final).argmax(dim=-1)[batch.real]
    both = embeddings(model)
    unit = F.normalize(final, dim=-1) * both["output"].norm(dim=1).median()
    queries = {
        "embedding": embedded,
        "last stream": stream,
        "after norm": final,
        "as long as tokens": unit,
    }
    agreed, shared = [], []
    for vectors in queries.values():
        some = vectors[batch.real].float()
        found = [agreement(some, keys, answers, NEIGHBOURS) for keys in both.values()]
        agreed.append(torch.stack([own for own, _ in found]))
        shared.append(torch.stack([common for _, common in found]))
    places = {"query": list(queries), "keys": list(both)}
    arrays = {
        "agreement": Named(torch.stack(agreed), {**places, "metric": METRICS}),
        "overlap": Named(torch.stack(shared), {**places, "metric": METRICS, "other": METRICS}),
    }
    table = []
    chosen = both["input"][torch.tensor(shown, device=both["input"].device)]
    for metric in METRICS:
        found = nearest(chosen, both["input"], metric, OTHERS + 1).tolist()
        for token, near in zip(shown, found, strict=True):
            piece = checkpoint.pieces([token])[0]
            table.append({"piece": piece, "metric": metric, "nearest": checkpoint.pieces(near)})
    return arrays, table


def _variants(word_of: Tensor, rows: Tensor, found: Tensor) -> dict[str, float]:
    """Share of tokens with variants that have one among `found` `(N, K)`, and that by chance."""
    alike = torch.bincount(word_of)[word_of][rows] - 1
    has = alike > 0
    if not has.any():
        return {}
    hits = (word_of[found] == word_of[rows][:, None]).any(dim=1)[has]
    chance = found.shape[1] * alike[has].float() / (len(word_of) - 1)
    return {
        "variant among others": _share(hits),
        "variant by chance": float(chance.clamp(max=1).mean()),
    }


def _spearman(a: Tensor, b: Tensor) -> float | None:
    return None if a.min() == a.max() or b.min() == b.max() else spearman(a, b)


def _share(flags: Tensor) -> float:
    return float(flags.float().mean())


def _sample(counts: Tensor, seed: int) -> Tensor:
    """Up to `SAMPLE` tokens that occur, drawn."""
    known = counts.nonzero()[:, 0]
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    return known[order[:SAMPLE]]


def _shown(checkpoint: Checkpoint, request: Request) -> list[int]:
    """The chosen words, or the first prompt's tokens that have a letter in them."""
    if request.words:
        return list(word_tokens(checkpoint, request.words).values())
    tokens = list(dict.fromkeys(request.prompts[0].tokens))
    pieces = checkpoint.pieces(tokens)
    lettered = [t for t, piece in zip(tokens, pieces, strict=True) if any(map(str.isalpha, piece))]
    return (lettered or tokens)[:SHOWN]


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """Lengths, alignment, and which likeness agrees with the model."""
    lengths, aligned = records(documents, "lengths"), records(documents, "alignment")
    agrees = records(documents, "agreement")
    return [
        plots.Figure(
            "geometry-lengths",
            "How long are the tokens' vectors?",
            "Tokens by the length of their row in the input and in the output embedding.",
            plots.by_model(plots.histogram(lengths, "length", "matrix"), lengths),
        ),
        plots.Figure(
            "geometry-alignment",
            "Do a token's two vectors point the same way?",
            "Tokens by the cosine of their input and output row; the control pairs each with "
            "another token's.",
            plots.by_model(plots.histogram(aligned, "cosine", "rows"), aligned),
        ),
        plots.Figure(
            "geometry-agreement",
            "Which likeness agrees with the model?",
            "Share of positions whose nearest token, by each measure, is the model's own answer "
            "(of the embedding: the token itself).",
            plots.by_model(plots.bars(agrees, "metric", "share", "query", "keys"), agrees),
        ),
    ]


def vector_tables(documents: Sequence[Document]) -> list[Markup]:
    """Outliers by name, the nearest tokens, and what comes back from a token's vector."""
    odd = [
        (model_name(d), o["matrix"], markup.codes([o["piece"]]), f"{o['length']:.2f}", o["count"])
        for d in documents
        for o in d["notes"]["outliers"][:12]
    ]
    near = [
        (model_name(d), markup.codes([n["piece"]]), n["metric"], markup.codes(n["nearest"]))
        for d in documents
        for n in d["notes"]["nearest"]
    ]
    back = [
        (
            model_name(d),
            markup.codes([r["piece"]]),
            r["method"],
            f"{r['own']:.3g}",
            markup.codes(r["others"]),
        )
        for d in documents
        for r in d["notes"]["round trip"]
    ]
    tied = [
        Markup("<li>{}: {}</li>").format(
            model_name(d),
            f"input and output are {'one matrix' if d['notes']['tied'] else 'two matrices'}",
        )
        for d in documents
    ]
    columns = ("checkpoint", "matrix", "token", "length, medians", "times seen")
    found = [Markup("<ul>{}</ul>").format(Markup("").join(tied))]
    if odd:
        found.append(markup.folded("tokens of unusual length", markup.table(columns, odd)))
    columns = ("checkpoint", "token", "by", "nearest in the input matrix")
    found.append(markup.folded("nearest tokens", markup.table(columns, near)))
    columns = ("checkpoint", "token", "way back", "its own value", "largest others")
    return [
        *found,
        markup.folded("one-hot to vector and back to tokens", markup.table(columns, back)),
    ]


@lens(
    name="geometry",
    title="The tokens' vectors",
    about="the tokens' vectors: lengths, alignment, the way back, nearest",
    figures=draw,
    texts=vector_tables,
    order=4,
)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Lengths, alignment, the way back from a vector, and nearest tokens."""
    text = held_out_text(checkpoint, request.corpus)
    tokens = text.windows("fitting", 1, request.tokens)[0]
    counts = torch.bincount(tokens, minlength=checkpoint.config.vocab_size)
    device = checkpoint.model.embedding.weight.device
    rows, shown = _sample(counts, request.seed).to(device), _shown(checkpoint, request)
    norms, length_figures, odd = lengths(checkpoint, counts)
    cosines, own_figures = aligned(checkpoint, rows)
    trip_figures, trips = returned(checkpoint, rows, shown)
    near, nearby = neighbours(checkpoint, request, shown)
    agreed = [{"figure": "agrees", **record} for record in near["agreement"].records()]
    return Finding(
        arrays={"lengths": norms, "alignment": cosines, **near},
        figures=[*length_figures, *own_figures, *trip_figures, *agreed],
        notes={
            "tied": bool(checkpoint.config.tied),
            "outliers": odd,
            "round trip": trips,
            "nearest": nearby,
        },
    )
