"""Attribution: which of a prompt's tokens an output comes from, by gradients and by occlusion.

The gradients' scores and occlusion's can be compared: both say by how much the output would change.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from arch import LanguageModel
from eval import plots
from eval.lenses import markup
from eval.lenses.lens import Documents, Finding, Request, lens, word_tokens
from eval.lenses.trace import gather, read_on, run_variants
from eval.models import Checkpoint
from tokenizer import PAD

OWN = "own answer"


class Output(NamedTuple):
    """The logit that is attributed: of a token, after a position."""

    position: int
    token: int

    def of(self, model: LanguageModel, embeddings: Tensor) -> Tensor:
        """`(B, T, D)` embeddings to `(B,)`."""
        x = model.with_positions(embeddings[:, : self.position + 1])
        return read_on(model, x)[:, self.token]


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
def occluded(model: LanguageModel, streams: Tensor, replacement: Tensor) -> tuple[Tensor, Tensor]:
    """Logits after a prompt, `(V,)`, and with each token in turn replaced, `(T, V)`.

    The prompt's streams are `(n + 1, T, D)`; the replacement is an embedding, `(D,)`.
    """
    T = streams.shape[1]
    variants, each = streams[0].repeat(T, 1, 1), range(T)
    variants[each, each] = model.with_positions(replacement.expand(1, T, -1))[0]
    whole = model.logits(streams[-1:, -1:])[0, 0]
    return whole, run_variants(model, streams, variants, each, 0)


def replacement(model: LanguageModel, pad: int | None) -> tuple[str, Tensor]:
    """An embedding that says nothing, `(D,)`, and its name: the pad's, or else the mean."""
    matrix = model.embedding.weight.detach()
    if pad is None or not matrix[pad].any():
        return "mean", matrix.mean(0)
    return "pad", matrix[pad]


def combined(gradient: Tensor, change: Tensor) -> Tensor:
    """Badger's combination: the mean of two sizes, each `(T,)` divided by its largest."""
    sizes = (scores / scores.max().clamp_min(1e-30) for scores in (gradient.abs(), change.abs()))
    return sum(sizes, torch.zeros_like(gradient)) / 2


def attribute(
    model: LanguageModel, tokens: Tensor, streams: Tensor, outputs: list[Output], pad: int | None
) -> dict[str, Tensor]:
    """Of outputs after a prompt's end: every method's scores, `(outputs, T)`.

    Occlusion's are what the output falls by; "every logit" is by how much all logits of
    the position change together (L1). Badger's combination takes that and the absolute gradient.
    The pad stands for a token that says nothing where the tokenizer has one, the mean where not.
    """
    name, silent = replacement(model, pad)
    whole, without = occluded(model, streams, silent)
    change = (without - whole).abs().sum(-1)
    products = [gradient_x_input(model, tokens, output) for output in outputs]
    absolute = [product.abs().sum(-1) for product in products]
    scores = {
        "gradient x input": [product.sum(-1) for product in products],
        "absolute gradient x input": absolute,
        f"occlusion, {name}": [(whole - without)[:, output.token] for output in outputs],
        f"occlusion, {name}, every logit": [change] * len(outputs),
        "combined": [combined(gradient, change) for gradient in absolute],
    }
    return {method: torch.stack(each) for method, each in scores.items()}


def _draw(documents: Documents) -> list[plots.Figure]:
    rows = documents.figures("rank correlation")
    sorts = {f"sort_{x}": plots.options(rows, of) for x, of in (("x", "method"), ("y", "with"))}
    cells = plots.heat(rows, "method", "with", "rank correlation", plots.DIVERGING, **sorts,
                       size=(420, 300))  # fmt: skip
    return [
        plots.Figure(
            "attribution-agreement",
            "Do methods agree?",
            "Rank correlation of two methods' scores over the tokens of a prompt, averaged.",
            plots.by_model(cells, rows),
        )
    ]


def _highlights(documents: Documents) -> list[Markup]:
    scores: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for r in documents.records("attribution"):
        methods = scores.setdefault((r["model"], r["prompt"], r["output"]), {})
        methods.setdefault(r["method"], []).append(r["value"])
    pieces, answers = documents.by_prompt(), documents.by_prompt("answers")
    return [
        Markup("<details{}><summary>{}, {}: {} (<code>{}</code>)</summary>{}</details>").format(
            Markup("" if number else " open"),
            model,
            prompt,
            output,
            markup.visible(answers[model, prompt]),
            markup.highlighted(pieces[model, prompt], methods),
        )
        for number, ((model, prompt, output), methods) in enumerate(scores.items())
    ]


@lens("attribution", "Attribution", figures=_draw, texts=_highlights, order=11)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Which tokens a prediction comes from, by gradients and by occlusion."""
    model, batch = checkpoint.model, gather(checkpoint, request.prompts)
    words = word_tokens(checkpoint, request.words)
    pad = checkpoint.tokenizer.token_to_id(PAD)
    answers = model.logits(batch.at_last(batch.streams[-1])[:, None])[:, 0].argmax(-1).tolist()
    every = []
    for row, (last, answer) in enumerate(zip(batch.last.tolist(), answers, strict=True)):
        outputs = [Output(last, token) for token in words.values() or [answer]]
        streams = batch.streams[:, row, : last + 1]
        every.append(attribute(model, batch.tokens[row, : last + 1], streams, outputs, pad))
    methods = list(every[0])
    stacked = [torch.stack([*scores.values()], dim=1).movedim(-1, 0) for scores in every]
    values = pad_sequence(stacked, batch_first=True, padding_value=torch.nan).movedim(1, -1).cpu()
    finding = Finding(notes={"answers": checkpoint.pieces(answers)})
    axes = {"output": list(words) or [OWN], "method": methods}
    axes = {"prompt": batch.labels, **axes, "position": batch.axes["position"]}
    finding.array("attribution", values, axes)
    _add_agreement(finding, methods, values, batch.real.cpu())
    return finding


def _add_agreement(finding: Finding, methods: list[str], values: Tensor, real: Tensor) -> None:
    """Rank correlation of every two methods' magnitudes, over prompts and outputs."""
    from scipy.stats import rankdata

    every = []
    for outputs, keep in zip(values, real, strict=True):
        ranks = rankdata(outputs[..., keep].abs().numpy(), axis=-1)
        every += [torch.corrcoef(torch.from_numpy(each)) for each in ranks]
    correlations = torch.stack(every)  # equal scores have none
    for a, b in combinations(range(len(methods)), 2):
        each = correlations[:, a, b]
        if len(each := each[~each.isnan()]):
            place = {"method": methods[a], "with": methods[b]}
            finding.mean("rank correlation", each.tolist(), **place)
