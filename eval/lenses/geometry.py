"""The tokens' vectors: lengths, alignment of input and output, the way back, the nearest.

W_E turns a token into a vector, W_U a vector into logits; both are `(V, D)`, one row a token.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from markupsafe import Markup
from torch import Tensor

from arch import LanguageModel
from eval import plots
from eval.lenses import markup
from eval.lenses.lens import Axes, Documents, Finding, Request, lens, model_name, word_tokens
from eval.lenses.trace import gather
from eval.models import Checkpoint
from eval.text import held_out_text

NORMAL = 1.4826  # of a normal distribution, standard deviations in its median absolute deviation
OUTLIER = 3.5  # robust z from which a length is unusual (Iglewicz & Hoaglin 1993)
UNEMBEDDINGS = ("pinv", "scaled", "transpose", "head")
"""Ways back from a vector to tokens.

pinv: the Moore-Penrose inverse of W_E; scaled: its transpose, each row divided by its squared
length; transpose: as it is; head: W_U, as the model does.
"""
METRICS = ("dot", "cosine", "euclid")
BINS = 60
SAMPLE = 256  # tokens that are compared with the whole vocabulary
SHOWN = 12  # tokens that the page names
OTHERS = 5  # of the largest others on the way back
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


def alignment(first: Tensor, second: Tensor, rows: Tensor) -> dict[str, Tensor]:
    """How the two rows that N tokens `(N,)` have in matrices `(V, D)` go together, `(N,)` each.

    `cosine` of a token's two rows; `control`, of its first row and another token's second one.
    """
    near, far = first[rows], second[rows]
    return {
        "cosine": F.cosine_similarity(near, far),
        "control": F.cosine_similarity(near, far.roll(1, dims=0)),
    }


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


def metric_agreement(queries: Tensor, keys: Tensor, answers: Tensor) -> Tensor:
    """How often the nearest of keys `(V, D)` to queries `(N, D)` are their answers `(N,)`.

    Gives shares by each of `METRICS`, `(3,)`.
    """
    every = [nearest(queries, keys, metric)[:, 0] for metric in METRICS]
    return torch.stack([(tokens == answers).float().mean() for tokens in every])


def add_lengths(finding: Finding, checkpoint: Checkpoint, counts: Tensor) -> None:
    """Row lengths of both embeddings against how often the tokens occur, `counts` `(V,)`.

    A histogram in units of the median length; figures; the outlier tokens, named.
    """
    from scipy.stats import spearmanr

    units, unseen = {}, counts == 0
    finding.notes["outliers"] = []
    for name, rows in both_embeddings(checkpoint.model).items():
        norms = rows.norm(dim=1).cpu()
        units[name] = unit = norms / norms.median().clamp(min=TINY)
        odd = outliers(unit)
        place: dict[str, Any] = {"matrix": name}
        finding.number("length median", norms.median(), **place)
        finding.number("length outliers", len(odd) / len(unit), **place)
        if odd:
            finding.number("length outliers unseen", _share(unseen[odd]), **place)
        finding.number("tokens unseen", _share(unseen), **place)
        if unit.min() < unit.max() and counts.min() < counts.max():
            alike = spearmanr(unit, counts).statistic  # pyright: ignore
            finding.number("length with frequency", alike, **place)
        pieces = zip(odd[:SHOWN], checkpoint.pieces(odd[:SHOWN]), strict=True)
        finding.notes["outliers"] += [
            place | {"piece": piece, "length": float(unit[token]), "count": int(counts[token])}
            for token, piece in pieces
        ]
    edges = torch.linspace(0, max(float(unit.max()) for unit in units.values()), BINS + 1)
    finding.array("lengths", *_histogram(units, edges, "matrix", "length"))


def add_alignment(finding: Finding, checkpoint: Checkpoint, rows: Tensor) -> None:
    """Cosine of the two rows of each of N tokens: histogram beside other tokens' rows; figures."""
    both = both_embeddings(checkpoint.model)
    cosines = alignment(both["input"], both["output"], rows)
    values = {
        "own cosine": cosines["cosine"].mean(),
        "own cosine control": cosines["control"].mean(),
    }
    finding.numbers(values, n=len(rows))
    kinds = {kind: cosine.cpu().clamp(-1, 1) for kind, cosine in cosines.items()}
    edges = torch.linspace(-1, 1, BINS + 1)
    finding.array("alignment", *_histogram(kinds, edges, "rows", "cosine"))


def add_round_trips(
    finding: Finding, checkpoint: Checkpoint, rows: Tensor, shown: list[int]
) -> None:
    """One-hot to vector to tokens, by every method: figures over N tokens, a table of `shown`.

    A variant of a word differs from it in capitals and in the space before it only: whether a token
    with variants has one among the others, and how often by chance.
    """
    both, N = both_embeddings(checkpoint.model), len(rows)
    pieces = checkpoint.pieces([*range(len(both["input"]))])
    words: dict[str, int] = {}
    word_of = torch.tensor([words.setdefault(p.strip().lower(), len(words)) for p in pieces])
    asked = torch.cat([rows.cpu(), torch.tensor(shown)])
    variants = word_of.bincount()[word_of][asked[:N]] - 1
    has = variants > 0
    finding.notes["round trip"] = table = []
    for method in UNEMBEDDINGS:
        values = round_trip(both["input"], both["output"], asked.to(rows.device), method).cpu()
        same = values.gather(1, asked[:, None])[:, 0]
        top, tokens = others(values, asked, OTHERS)
        back = {
            "own value": same[:N].mean(),
            "largest other": top[:N, 0].mean(),
            "spread of others": values[:N].std(dim=1).mean(),
            "own largest": _share(same[:N] > top[:N, 0]),
        }
        if has.any():
            hits = (word_of[tokens[:N]] == word_of[asked[:N], None]).any(dim=1)
            chance = tokens.shape[1] * variants[has].float() / (len(word_of) - 1)
            back["variant among others"] = _share(hits[has])
            back["variant by chance"] = chance.clamp(max=1).mean()
        finding.numbers({f"round trip {name}": v for name, v in back.items()}, method=method, n=N)
        table += [
            {
                "piece": pieces[token],
                "method": method,
                "own": float(same[i]),
                "others": [pieces[other] for other in tokens[i]],
                "values": top[i].tolist(),
            }
            for i, token in enumerate(shown, start=N)
        ]


@torch.no_grad()
def add_neighbours(
    finding: Finding, checkpoint: Checkpoint, request: Request, shown: list[int]
) -> None:
    """How often the nearest token by each metric is the model's answer; the nearest of `shown`.

    Queries are every position's vectors: the token's embedding, the last stream, that after the
    final norm, which the head multiplies by W_U, and the same with the median length of W_U's rows:
    |q - k|^2 = |q|^2 - 2 q k + |k|^2, so that for a long query distance is nearly the product.
    """
    model, batch = checkpoint.model, gather(checkpoint, request.prompts)
    stream, both = batch.streams[-1], both_embeddings(model)
    final = model.norm(stream)
    answers = model.head(final).argmax(dim=-1)[batch.real]
    queries = {
        "embedding": model.embed(batch.tokens),
        "last stream": stream,
        "after norm": final,
        "as long as tokens": F.normalize(final, dim=-1) * both["output"].norm(dim=1).median(),
    }
    every = [
        metric_agreement(vectors[batch.real].float(), keys, answers)
        for vectors in queries.values()
        for keys in both.values()
    ]
    agreed = torch.stack(every).unflatten(0, (-1, 2))
    axes = {"query": list(queries), "keys": list(both), "metric": METRICS}
    finding.array("agreement", agreed, axes)
    finding.rows("agrees", agreed, axes)
    finding.notes["nearest"] = table = []
    for metric in METRICS:
        tokens = nearest(both["input"][shown], both["input"], metric, OTHERS + 1).tolist()
        for piece, near in zip(checkpoint.pieces(shown), tokens, strict=True):
            table.append({"piece": piece, "metric": metric, "nearest": checkpoint.pieces(near)})


def _draw(documents: Documents) -> list[plots.Figure]:
    lengths, aligned = documents.records("lengths"), documents.records("alignment")
    agrees = documents.records("agreement")
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


def _vector_tables(documents: Documents) -> list[Markup]:
    matrices = {True: "input and output are one matrix", False: "input and output are two matrices"}
    tied = [
        Markup("<li>{}: {}</li>").format(model_name(d), matrices[d["notes"]["tied"]])
        for d in documents
    ]
    odd = documents.table(
        "outliers",
        "tokens of unusual length",
        ("matrix", "token", "length, medians", "times seen"),
        lambda o: (o["matrix"], markup.codes([o["piece"]]), f"{o['length']:.2f}", o["count"]),
    )
    near = documents.table(
        "nearest",
        "nearest tokens",
        ("token", "by", "nearest in the input matrix"),
        lambda n: (markup.codes([n["piece"]]), n["metric"], markup.codes(n["nearest"])),
    )
    back = documents.table(
        "round trip",
        "one-hot to vector and back to tokens",
        ("token", "way back", "its own value", "largest others"),
        lambda r: (
            markup.codes([r["piece"]]),
            r["method"],
            f"{r['own']:.3g}",
            markup.codes(r["others"]),
        ),
    )
    return [Markup("<ul>{}</ul>").format(Markup("").join(tied)), *odd, *near, *back]


@lens("geometry", "The tokens' vectors", figures=_draw, texts=_vector_tables, order=4)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """The tokens' vectors: lengths, alignment, the way back, nearest."""
    text = held_out_text(checkpoint, request.corpus)
    tokens = text.windows("fitting", 1, request.tokens)[0]
    counts = torch.bincount(tokens, minlength=checkpoint.config.vocab_size)
    known = counts.nonzero()[:, 0]
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(request.seed))
    rows = known[order[:SAMPLE]].to(checkpoint.model.embedding.weight.device)
    shown = list(word_tokens(checkpoint, request.words).values())
    if not shown:  # the first prompt's tokens that have a letter in them
        tokens = list(dict.fromkeys(request.prompts[0].tokens))
        pieces = zip(tokens, checkpoint.pieces(tokens), strict=True)
        lettered = [token for token, piece in pieces if any(map(str.isalpha, piece))]
        shown = (lettered or tokens)[:SHOWN]
    finding = Finding(notes={"tied": bool(checkpoint.config.tied)})
    add_lengths(finding, checkpoint, counts)
    add_alignment(finding, checkpoint, rows)
    add_round_trips(finding, checkpoint, rows, shown)
    add_neighbours(finding, checkpoint, request, shown)
    return finding


def _histogram(
    groups: dict[str, Tensor], edges: Tensor, axis: str, unit: str
) -> tuple[Tensor, Axes]:
    bars = torch.stack([torch.histogram(values, edges).hist for values in groups.values()])
    return bars, {axis: list(groups), unit: ((edges[1:] + edges[:-1]) / 2).tolist()}


def _share(flags: Tensor) -> float:
    return float(flags.float().mean())
