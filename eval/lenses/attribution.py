"""Attribution: which of a prompt's tokens an output comes from, by gradients and by occlusion.

The gradients' scores and occlusion's can be compared: both say by how much the output would change.
An occluded token is replaced by the mean embedding: a pad's vector is never trained, and says no
less than a random one.
"""

import math
from itertools import combinations
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from arch import LanguageModel
from eval.drawing import markup
from eval.lenses.charts import Heat, Tables
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens, word_tokens
from eval.lenses.trace import run_on
from eval.sites.circuit import widened

OWN = "own answer"


def logits_after(model: LanguageModel, embeddings: Tensor) -> Tensor:
    """Logits after the last position of `(B, T, D)` embeddings, `(B, V)`."""
    return run_on(model, model.with_positions(embeddings))


def gradient_x_input(model: LanguageModel, tokens: Tensor, answers: list[int]) -> Tensor:
    """Gradient times embedding by feature, `(K, T, D)`, of K logits after a prompt `(T,)`.

    Summed over features it is what a linear model's tokens add; Badger's post takes absolute values
    first and sums those.
    """
    embeddings = model.embed(tokens).expand(len(answers), -1, -1).detach()
    with torch.enable_grad():
        x = embeddings.clone().requires_grad_()
        logits = logits_after(model, x)[range(len(answers)), answers]
        (gradient,) = torch.autograd.grad(logits.sum(), x)
    return widened(gradient) * embeddings


@torch.no_grad()
def occluded(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits after a prompt `(T,)`, `(V,)`, and with each token in turn replaced, `(T, V)`."""
    variants, numbers = model.embed(tokens).repeat(len(tokens) + 1, 1, 1), range(len(tokens))
    variants[numbers, numbers] = model.embedding.weight.detach().mean(0)
    every = logits_after(model, variants)
    return every[-1], every[:-1]


def combined(gradient: Tensor, change: Tensor) -> Tensor:
    """Badger's combination: the mean of two sizes, each `(T,)` divided by its largest."""
    sizes = (scores / scores.max().clamp_min(1e-30) for scores in (gradient.abs(), change.abs()))
    return torch.stack([*sizes]).mean(0)


def attribute(model: LanguageModel, tokens: Tensor, answers: list[int]) -> dict[str, Tensor]:
    """Every method's scores of a prompt's tokens, `(K, T)`, for K tokens after its end.

    Occlusion's are what a token's logit falls by; "every logit" is by how much all logits change
    together (L1). Badger's combination takes that and the absolute gradient.
    """
    whole, without = occluded(model, tokens)
    products, change = gradient_x_input(model, tokens, answers), (without - whole).abs().sum(-1)
    sizes = products.abs().sum(-1)
    return {
        "gradient x input": products.sum(-1),
        "absolute gradient x input": sizes,
        "occlusion": (whole - without)[:, answers].T,
        "occlusion, every logit": change.expand_as(sizes),
        "combined": torch.stack([combined(size, change) for size in sizes]),
    }


def highlight(tables: Tables) -> list[Markup]:
    """Each prompt's tokens, coloured by every method."""
    shown = []
    for model, table in tables.items():
        scores: dict[tuple[str, str], dict[str, list[float]]] = {}
        for r in table.samples("attribution"):
            methods = scores.setdefault((r["prompt"], r["output"]), {})
            empty = [math.nan] * len(table.pieces[r["prompt"]])
            methods.setdefault(r["method"], empty)[r["position"]] = r["value"]
        for (prompt, output), methods in scores.items():
            answer = table.notes["answers"][prompt] if output == OWN else output
            title = f"{model}, {prompt}: {OWN if output == OWN else 'word'}"
            tokens = markup.highlighted(table.pieces[prompt], methods)
            shown.append(markup.highlights(title, markup.visible(answer), tokens, not shown))
    return shown


@lens(
    "attribution",
    "Attribution",
    order=8,
    main=(("rank correlation", {}),),
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
            about="Rank correlation of the sizes of two methods' scores over a prompt's tokens, "
            "averaged.",
        )
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """Which tokens a prediction comes from, by gradients and by occlusion."""
    model, words = checkpoint.model, word_tokens(checkpoint, request.words)
    answers = batch.logits.argmax(-1).tolist()
    every = [
        attribute(model, tokens[: last + 1], list(words.values()) or [answer])
        for tokens, last, answer in zip(batch.tokens, batch.last.tolist(), answers, strict=True)
    ]
    methods, outputs = list(every[0]), list(words) or [OWN]
    stacked = [torch.stack([*scores.values()]).permute(2, 0, 1) for scores in every]
    values = pad_sequence(stacked, batch_first=True, padding_value=torch.nan).cpu()
    axes: dict[str, Any] = {**batch.axes, "method": methods, "output": outputs}
    table.add("attribution", values, rows=False, **axes)
    table.notes["answers"] = dict(zip(batch.labels, checkpoint.words(answers), strict=True))
    agreement = torch.cat([rank_correlations(scores) for scores in stacked], dim=-1)
    of = [prompt for prompt in batch.labels for _ in outputs]
    for a, b in combinations(range(len(methods)), 2):
        if not agreement[a, b].isnan().all():  # equal scores have none
            pair: dict[str, Any] = {"method": methods[a], "with": methods[b]}
            table.add("rank correlation", agreement[a, b], prompt=of, **pair)


def rank_correlations(scores: Tensor) -> Tensor:
    """Rank correlations of M methods' sizes, `(T, M, outputs)` to `(M, M, outputs)`."""
    from scipy.stats import rankdata

    if len(scores) < 2:
        return scores.new_full((scores.shape[1], scores.shape[1], scores.shape[2]), torch.nan)
    ranks = torch.from_numpy(rankdata(scores.abs().double().cpu().numpy(), axis=0))
    return torch.stack([torch.corrcoef(of_output.T) for of_output in ranks.unbind(-1)], dim=-1)
