"""Attribution: which of a prompt's tokens an output comes from, by gradients and by occlusion.

Occlusion replaces one token after the other, all in one batched pass. The gradients' scores and
occlusion's can be compared: both say by how much the output would change.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from markupsafe import Markup
from torch import Tensor

from arch import LanguageModel
from eval import plots
from eval.checkpoints import Checkpoint
from eval.lenses import markup
from eval.lenses.documents import Document, figure_records, model_name, records
from eval.lenses.gradients import (
    Integral,
    Output,
    gradient_x_input,
    integrated_gradients,
    own_answer,
)
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.means import mean_record
from eval.lenses.named import Named
from eval.lenses.trace import gather
from eval.lenses.variants import run_variants
from eval.lenses.words import word_tokens
from eval.ranks import spearman
from tokenizer import PAD

OWN = "own answer"


@torch.no_grad()
def occluded(
    model: LanguageModel, tokens: Tensor, replacement: Tensor, position: int = -1
) -> tuple[Tensor, Tensor]:
    """What is predicted with each token in turn replaced, all in one batched pass.

    Args:
        model: any language model.
        tokens: `(T,)`.
        replacement: an embedding, `(D,)`.
        position: whose next token.

    Returns:
        Logits of the prompt `(V,)`, and with the token at t replaced `(T, V)`.
    """
    T = len(tokens)
    rows = model.embed(tokens[None]).repeat(T + 1, 1, 1)
    rows[1:][range(T), range(T)] = replacement
    first = torch.cat([torch.zeros(1, dtype=torch.long), torch.arange(T)]).to(tokens.device)
    logits = run_variants(model, rows, first, 0, position % T)
    return logits[0], logits[1:]


def replacements(model: LanguageModel, pad: int | None) -> dict[str, Tensor]:
    """Embeddings that say nothing, `(D,)` by name: the pad's, if it has one, the mean, zero."""
    matrix = model.embedding.weight.detach()
    found = {"mean": matrix.mean(0), "zero": torch.zeros_like(matrix[0])}
    return found if pad is None or not matrix[pad].any() else {"pad": matrix[pad]} | found


def normalised(scores: Tensor) -> Tensor:
    """Absolute scores divided by the largest."""
    scores = scores.abs()
    return scores / scores.max().clamp_min(1e-30)


def combined(gradient: Tensor, change: Tensor) -> Tensor:
    """Badger's combination: the mean of both, each `(T,)` divided by its largest."""
    return (normalised(gradient) + normalised(change)) / 2


def attribute(
    model: LanguageModel, tokens: Tensor, outputs: list[Output], pad: int | None
) -> list[tuple[dict[str, Tensor], Integral]]:
    """Of each output of one position: every method's scores `(T,)` by name, and the integral.

    Occlusion's are what the output falls by; "every logit" is by how much all logits of
    the position change together (L1). Badger's combination takes that and the absolute gradient.
    The pad stands for a token that says nothing where the tokenizer has one, the mean where not.
    """
    tokens = tokens[: outputs[0].position + 1]
    name, silent = next(iter(replacements(model, pad).items()))
    whole, without = occluded(model, tokens, silent)
    change = (without - whole).abs().sum(-1)
    found = []
    for output in outputs:
        product = gradient_x_input(model, tokens, output)
        integral = integrated_gradients(model, tokens, output, silent)
        absolute = product.abs().sum(-1)
        scores = {
            "gradient x input": product.sum(-1),
            "absolute gradient x input": absolute,
            "integrated gradients": integral.scores,
            f"occlusion, {name}": output.read(whole) - output.read(without),
            f"occlusion, {name}, every logit": change,
            "combined": combined(absolute, change),
        }
        found.append((scores, integral))
    return found


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """How far methods agree."""
    found = figure_records(documents, "rank correlation")
    return [
        plots.Figure(
            "attribution-agreement",
            "Do methods agree?",
            "Rank correlation of two methods' scores over the tokens of a prompt, averaged.",
            plots.by_model(
                plots.heat(found, "method", "with", "rank correlation", plots.DIVERGING,
                     sort_x=plots.options(found, "method"), sort_y=plots.options(found, "with"),
                     size=(420, 300)),
                found,
            ),
        )
    ]  # fmt: skip


def highlights(documents: Sequence[Document]) -> list[Markup]:
    """Prompts with their tokens coloured, folded but for the first."""
    found = []
    for document in documents:
        scores = records([document], "attribution")
        labels = [f"{p['kind']} {p['index']}" for p in document["prompts"]]
        for number, (label, prompt) in enumerate(zip(labels, document["prompts"], strict=True)):
            own = [r for r in scores if r["prompt"] == label]
            pieces = prompt["pieces"]
            for output in plots.options(own, "output"):
                methods = {
                    method: [
                        r["value"] for r in own if r["method"] == method and r["output"] == output
                    ][: len(pieces)]
                    for method in plots.options(own, "method")
                }
                answer = markup.visible(document["notes"]["answers"][number])
                found.append(
                    Markup("<details{}><summary>{}, {}: {} (<code>{}</code>)</summary>{}</details>")
                    .format(
                        Markup(" open") if not found else "",
                        model_name(document),
                        label,
                        output,
                        answer,
                        markup.highlighted(pieces, methods),
                    )
                )  # fmt: skip
    return found


@lens(
    name="attribution",
    title="Attribution",
    about="which tokens a prediction comes from, by gradients and by occlusion",
    figures=draw,
    texts=highlights,
    order=11,
)
@torch.no_grad()
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Attributes each prompt's next token: the model's own answer, or the words given.

    Raises:
        RequestError: a prompt too long, or a word of several tokens.
    """
    batch = gather(checkpoint, request.prompts)
    words = word_tokens(checkpoint, request.words)
    pad = checkpoint.tokenizer.token_to_id(PAD)
    found, integrals, answers = [], [], []
    for tokens, last in zip(batch.tokens, batch.last.tolist(), strict=True):
        own = own_answer(checkpoint.model, tokens[: last + 1])
        answers.append(checkpoint.pieces([own.token])[0])
        outputs = [Output(last, token) for token in words.values()] or [own]
        both = attribute(checkpoint.model, tokens, outputs, pad)
        found.append([scores for scores, _ in both])
        integrals += [integral for _, integral in both]
    methods = list(found[0][0])
    T = batch.tokens.shape[1]
    values = torch.full((len(found), len(found[0]), len(methods), T), torch.nan)
    for row, outputs in enumerate(found):
        for column, scores in enumerate(outputs):
            stacked = torch.stack([scores[method] for method in methods])
            values[row, column, :, : stacked.shape[1]] = stacked.cpu()
    axes = {
        "prompt": batch.labels,
        "output": list(words) or [OWN],
        "method": methods,
        "position": batch.positions,
    }
    errors = [integral.error for integral in integrals]
    steps = [integral.steps for integral in integrals]
    place = {"method": "integrated gradients"}
    figures = [
        {"figure": "completeness error", **place, **mean_record(errors)},
        {"figure": "largest completeness error", **place, "value": max(errors)},
        {"figure": "steps", **place, **mean_record(steps)},
        *_agreement(methods, values, batch.real.cpu()),
    ]
    notes = {
        "tokens": [checkpoint.pieces(list(p.tokens[: p.real])) for p in request.prompts],
        "answers": answers,
    }
    return Finding({"attribution": Named(values, axes)}, figures, notes)


def _agreement(methods: list[str], values: Tensor, real: Tensor) -> list[dict]:
    """Rank correlation of every two methods' magnitudes, over prompts and outputs."""
    rows = []
    for a, b in combinations(range(len(methods)), 2):
        each = [
            spearman(scores[a, keep].abs(), scores[b, keep].abs())
            for outputs, keep in zip(values, real, strict=True)
            for scores in outputs
        ]
        each = [value for value in each if value == value]
        if each:
            rows.append(
                {"figure": "rank correlation", "method": methods[a], "with": methods[b]}
                | mean_record(each)
            )
    return rows
