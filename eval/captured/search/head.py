"""Logits and log-probabilities, read back to what the head reads: the outputs of the final norm.

Logits are a linear map of these outputs, and far more numbers: least squares solves for them. A
constant at each position is free, by which log-probabilities differ from logits.
"""

import torch
from torch import Tensor, nn

from arch import LanguageModel
from eval.captured.files.stored import Stored
from eval.captured.locate import find_factor
from eval.messages import ArgumentError, RequestError, say_of_model, say_once
from eval.sites.circuit import Circuit

LOGITS = "logits"
"""The part of the last layer that `recover` knows beside those of a circuit."""
MISFIT = 0.1  # of the logits' own size: what is left beside a model's own head is rounding
NONE = 1e-2  # of the sum of probabilities, its logarithm
SAMPLE = 16  # tokens of a text
DEVIATION = 2 * 12**0.5  # a step in deviations of rounding, doubled: solved numbers err together


def are_logits(model: LanguageModel, outputs: Tensor) -> bool:
    """Whether a tensor has a number for each token, of a vocabulary far wider than the stream."""
    V, D = model.config.vocab_size, model.config.d_model
    return outputs.shape[-1] in (V, V + model.padding_rows) and V > 3 * D


@torch.no_grad()
def solve_head(model: LanguageModel, stored: Stored) -> Stored:
    """Outputs of the final norm `(B, T, D)`, by their logits `(B, T, V)`.

    Steps are those that rounding in the logits leaves in the solution.

    Raises:
        RequestError: a model whose logits are no linear map of the norm's outputs or too few to
            solve for them, another number of logits than it has tokens, or logits that no outputs
            of its norm have.
    """
    cap = _find_cap(model)
    weight, bias = (x.double().cpu() for x in read_head(model, cap))
    values, step = stored.values.double().cpu(), stored.step.double().cpu()
    (V, D), count = weight.shape, values.shape[-1]
    if count not in (V, V + model.padding_rows):
        raise ArgumentError("outputs", f"{count} logits; this model has {V} tokens")
    if V <= D:  # they tell V - 1 numbers, as a constant is free
        raise ArgumentError(
            "outputs",
            f"{V} logits are too few to solve for the {D} numbers behind the final norm; give "
            "those numbers, as --part final",
        )
    if count > V:
        say_of_model(f"logits: the last {count - V} of {count} are of no token, and left out")
    weight = weight - weight.mean(dim=0)
    values, step = values[..., :V], step[..., :V]
    filled = stored.values.any(dim=-1).cpu()  # rows of zeros stand for those before the first
    if cap:
        sums = values[filled].logsumexp(dim=-1)
        if bool((values.abs() >= cap).any() or sums.abs().max() < NONE):
            raise ArgumentError(
                "outputs",
                f"this model caps its logits at {cap:g}; give these, not their logarithms",
            )
        values, step = cap * (values / cap).atanh(), step / (1 - (values / cap).square())
    values = values - bias
    values = values - values.mean(dim=-1, keepdim=True)
    inverse = torch.linalg.pinv(weight)  # (D, V)
    solved = (values @ inverse.T).masked_fill(~filled[..., None], 0)
    left = (values - solved @ weight.T).norm(dim=-1) / values.norm(dim=-1)
    left = left.masked_fill(~filled, torch.nan)
    if bool((left.nanmedian(dim=1).values >= MISFIT).any()):  # of prompts of zeros it is NaN
        raise ArgumentError(
            "outputs",
            f"no logits of this model: beside its head {float(left.nanmedian()):.0%} of "
            "their size is left; give the logits, or the log-probabilities, of every token",
        )
    deviation = (step.square() / 12 @ inverse.square().T).sqrt()
    say_of_model("logits: the outputs of the final norm are solved for, by the head")
    _say_how_long(model, solved[filled])
    return Stored(solved.float(), (DEVIATION * deviation).float(), stored.format)


def _say_how_long(model: LanguageModel, solved: Tensor) -> None:
    """Says where outputs `(N, D)` are not as long as those that the final norm gives."""
    if isinstance(model.norm, nn.Identity):
        return
    length, device = min(SAMPLE, model.config.context), model.embedding.weight.device
    tokens = torch.arange(4 * length, device=device).view(4, length) % model.config.vocab_size
    own = Circuit(model, len(model.blocks), "final").of_tokens(tokens)
    if factor := find_factor(solved, own.to(solved)):
        say_once(
            f"logits: about {factor:.2g} times as large as this model's own: were they divided by "
            "a temperature, or are they logarithms to another base (log2: 1.4, log10: 0.43)? undo "
            "it"
        )


def _find_cap(model: LanguageModel) -> float | None:
    """What a model of transformers presses its logits below, by a tangent; None: nothing."""
    config = getattr(getattr(model, "whole", None), "config", None)
    return config and getattr(config.get_text_config(), "final_logit_softcapping", None)


@torch.no_grad()
def read_head(model: LanguageModel, cap: float | None = None) -> tuple[Tensor, Tensor]:
    """The head's weight `(V, D)` and bias `(V,)`, in fp32 at least, where logits are theirs alone.

    A scale of the logits is in both. `cap` is taken off before.

    Raises:
        RequestError: the model does more than multiply and add.
    """
    weight, D = getattr(model.head, "weight", None), model.config.d_model
    if isinstance(model.head, nn.Linear) and weight is not None:
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(1, 2, D, generator=generator).to(model.embedding.weight)
        own, ours = model.logits(hidden), model.head(model.norm(hidden))
        own, ours = cap * (own / cap).atanh() if cap else own, ours[..., : own.shape[-1]]
        scale = (own * ours).sum() / ours.square().sum()
        if torch.allclose(own, scale * ours, rtol=1e-3, atol=1e-3):
            scale = 1.0 if torch.allclose(own, ours, rtol=1e-3, atol=1e-3) else float(scale)
            weight = weight.detach()[: own.shape[-1]]
            weight = scale * weight.to(torch.promote_types(weight.dtype, torch.float32))
            bias = model.head.bias
            none = weight.new_zeros(len(weight))
            return weight, none if bias is None else scale * bias.detach()[: len(weight)].to(weight)
    raise RequestError(
        f"logits: those of this {model.config.mixers[0]} model are no product of its "
        "head and the final norm's outputs; give --part final"
    )
