"""Attribution: which of a prompt's tokens an output comes from, by gradients and by occlusion.

The gradients' scores and occlusion's can be compared: both say by how much the output would change.
An occluded token is replaced by the mean embedding: a pad's vector is never trained, and says no
less than a random one.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from arch import LanguageModel
from eval.lenses import markup
from eval.lenses.charts import Heat, Tables
from eval.lenses.lens import Request, lens, word_tokens
from eval.lenses.table import Table
from eval.lenses.trace import PromptBatch, run_on
from eval.models import Checkpoint

OWN = "own answer"


class Output(NamedTuple):
    """The logit that is attributed: of a token, after a position."""

    position: int
    token: int

    def of(self, model: LanguageModel, embeddings: Tensor) -> Tensor:
        """`(B, T, D)` embeddings to `(B,)`."""
        x = model.with_positions(embeddings[:, : self.position + 1])
        return run_on(model, x)[:, self.token]


def gradient_x_input(model: LanguageModel, tokens: Tensor, output: Output) -> Tensor:
    """Gradient times embedding, every feature by itself, `(T, D)`.

    Summed over features it is what a linear model's tokens add; Badger's post takes absolute values
    first and sums those. Tokens after the output's position get zero.
    """
    embeddings = model.embed(tokens[None])
    return (_gradients(model, embeddings, output) * embeddings)[0]


def _gradients(model: LanguageModel, embeddings: Tensor, output: Output) -> Tensor:
    """Of an output by embeddings `(B, T, D)`, each row by itself."""
    x = embeddings.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(output.of(model, x).sum(), x)
    return gradient


@torch.no_grad()
def occluded(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits after a prompt `(T,)`, `(V,)`, and with each token in turn replaced, `(T, V)`."""
    embeddings = model.embed(tokens[None])
    variants, each = embeddings.repeat(len(tokens), 1, 1), range(len(tokens))
    variants[each, each] = model.embedding.weight.detach().mean(0)
    every = run_on(model, model.with_positions(torch.cat([embeddings, variants])))
    return every[0], every[1:]


def combined(gradient: Tensor, change: Tensor) -> Tensor:
    """Badger's combination: the mean of two sizes, each `(T,)` divided by its largest."""
    sizes = (scores / scores.max().clamp_min(1e-30) for scores in (gradient.abs(), change.abs()))
    return sum(sizes, torch.zeros_like(gradient)) / 2


def attribute(model: LanguageModel, tokens: Tensor, outputs: list[Output]) -> dict[str, Tensor]:
    """Of outputs after a prompt's end: every method's scores, `(outputs, T)`.

    Occlusion's are what the output falls by; "every logit" is by how much all logits of
    the position change together (L1). Badger's combination takes that and the absolute gradient.
    """
    whole, without = occluded(model, tokens)
    change = (without - whole).abs().sum(-1)
    products = [gradient_x_input(model, tokens, output) for output in outputs]
    absolute = [product.abs().sum(-1) for product in products]
    scores = {
        "gradient x input": [product.sum(-1) for product in products],
        "absolute gradient x input": absolute,
        "occlusion": [(whole - without)[:, output.token] for output in outputs],
        "occlusion, every logit": [change] * len(outputs),
        "combined": [combined(gradient, change) for gradient in absolute],
    }
    return {method: torch.stack(each) for method, each in scores.items()}


def highlight(tables: Tables) -> list[Markup]:
    """Each prompt's tokens, coloured by every method."""
    shown = []
    for model, table in tables.items():
        scores: dict[tuple[str, str], dict[str, list[float]]] = {}
        for r in table.samples("attribution"):
            methods = scores.setdefault((r["prompt"], r["output"]), {})
            methods.setdefault(r["method"], []).append(r["value"])
        for (prompt, output), methods in scores.items():
            title = f"{model}, {prompt}: {output}"
            answer = markup.visible(table.notes["answers"][prompt])
            tokens = markup.highlighted(table.pieces[prompt], methods)
            shown.append(markup.highlights(title, answer, tokens, opened=not shown))
    return shown


@lens(
    "attribution",
    "Attribution",
    order=8,
    html=highlight,
    charts=[
        Heat(
            of="rank correlation",
            x="method",
            y="with",
            value="rank correlation",
            diverging=True,
            name="agreement",
            title="Do methods agree?",
            about="Rank correlation of two methods' scores over the tokens of a prompt, averaged.",
        )
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """Which tokens a prediction comes from, by gradients and by occlusion."""
    model, words = checkpoint.model, word_tokens(checkpoint, request.words)
    answers = model.logits(batch.at_last(batch.streams[-1])[:, None])[:, 0].argmax(-1).tolist()
    every = []
    for tokens, last, answer in zip(batch.tokens, batch.last.tolist(), answers, strict=True):
        outputs = [Output(last, token) for token in words.values() or [answer]]
        every.append(attribute(model, tokens[: last + 1], outputs))
    methods, outputs = list(every[0]), list(words) or [OWN]
    stacked = [torch.stack([*scores.values()]).movedim(-1, 0) for scores in every]
    values = pad_sequence(stacked, batch_first=True, padding_value=torch.nan).cpu()
    prompts, positions = batch.labels, range(values.shape[1])
    axes: dict[str, Any] = {
        "prompt": prompts,
        "position": positions,
        "method": methods,
        "output": outputs,
    }
    table.add("attribution", values, rows=False, **axes)
    table.notes["answers"] = dict(zip(prompts, checkpoint.pieces(answers), strict=True))
    agreement = torch.cat([rank_correlations(scores) for scores in stacked], dim=-1)
    of = [prompt for prompt in prompts for _ in outputs]
    for a, b in combinations(range(len(methods)), 2):
        place: dict[str, Any] = {"method": methods[a], "with": methods[b]}
        if not agreement[a, b].isnan().all():  # equal scores have none
            table.add("rank correlation", agreement[a, b], prompt=of, **place)


def rank_correlations(scores: Tensor) -> Tensor:
    """Of the sizes of every two of M methods' scores `(T, M, outputs)`: `(M, M, outputs)`."""
    from scipy.stats import rankdata

    ranks = torch.from_numpy(rankdata(scores.abs().cpu().numpy(), axis=0))
    return torch.stack([torch.corrcoef(one.T) for one in ranks.unbind(-1)], dim=-1)
