"""What a mixer promises, asked of a model one by one: `python -m arch check`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from arch.causality import check_causal, kinds, layer_name, scrambled
from arch.config import ModelConfig
from arch.directory import load_model, save_model
from arch.errors import ModelError
from arch.model import LanguageModel

LENGTH = 256
"""Positions of what is compared or differentiated, at most."""
FEW = 16
"""Positions whose derivatives are taken in each layer of a model of transformers, at most."""
NEAR = 1e-3
"""Of an output's size: what `prefix` and `step` may differ by from `forward`."""


def check_promises(model: LanguageModel, tokenizer_json: str) -> Iterator[tuple[str, str]]:
    """Yields what was checked and the figure it gave, as far as all is well.

    Models of ours are checked with random weights, so that nothing is hidden by how they start; a
    model of transformers with its own, and it is not saved.

    Raises:
        ModelError: a promise that is not kept, in one line.
    """
    yield "causal", f"largest difference {check_causal(model):.2g} of what rounding may make"
    ours = type(model.config) is ModelConfig
    chance = torch.Generator().manual_seed(0)
    model = scrambled(model, chance) if ours else model
    size = 2, min(LENGTH, model.config.context)
    tokens = torch.randint(model.config.vocab_size, size, generator=chance)
    tokens = tokens.to(model.embedding.weight.device)
    apart = _check_continues(model, tokens)
    yield "prefix and step", f"equal forward, largest difference {apart:.2g} of an output"
    yield "gradients", _check_gradients(model, tokens, all_act=ours)
    apart = _check_jacobian(model, chance)
    yield "Jacobian", f"largest entry above the diagonal {apart:.2g} of those on and below"
    if ours:
        yield "save and load", _check_saving(model, tokens, tokenizer_json)


@torch.no_grad()
def _check_continues(model: LanguageModel, tokens: Tensor) -> float:
    """Compares `prefix`, in pieces, and `step`, of two candidates each, with whole sequences.

    Returns:
        The largest difference, as a share of the largest output.

    Raises:
        ModelError: naming the layer, the method and the position.
    """
    x, worst, T = model.with_positions(model.embed(tokens)), 0.0, tokens.shape[1]
    for layer, block in enumerate(model.blocks, 1):
        y = block(x)
        for cut in sorted({1, T // 2, T - 1} - {0, T}):
            first, state = block.prefix(x[:, :1])  # pyright: ignore[reportCallIssue]
            if cut > 1:
                second, state = block.prefix(x[:, 1:cut], state)  # pyright: ignore
                first = torch.cat([first, second], dim=1)
            candidates = x[:, cut:].repeat_interleave(2, 0)
            candidates[1::2] = candidates[1::2].flip(-1)  # the second is another one
            stepped = block.step(candidates, state)[::2]  # pyright: ignore[reportCallIssue]
            parts = {"prefix": first - y[:, :cut], "step": stepped - y[:, cut:]}
            for name, difference in parts.items():
                apart = difference.abs().amax((0, 2)) / y.abs().max()
                if not float(apart.max()) <= NEAR:
                    place = int(apart.argmax()) + (cut if name == "step" else 0)
                    raise ModelError(
                        f"{layer_name(model, layer)}: {name} differs from forward at position "
                        f"{place} by {float(apart.max()):.2g} of the largest output, {cut} "
                        "positions remembered; the two must agree"
                    )
                worst = max(worst, float(apart.max()))
        x = y
    return worst


def _check_gradients(model: LanguageModel, tokens: Tensor, all_act: bool) -> str:
    """Gradients are finite; where `all_act`, no parameter's is zero."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    logits = model(tokens)
    loss = (logits.float() * torch.randn_like(logits, dtype=torch.float32)).sum()
    gradients = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True)
    acting = 0
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and not gradient.isfinite().all():
            raise ModelError(f"{name} has a gradient that is not finite")
        acts = gradient is not None and bool(gradient.count_nonzero())
        if all_act and not acts:
            raise ModelError(
                f"{name} has no gradient: it never acts on an output; use or remove it"
            )
        acting += acts
    return f"finite; {acting} of {len(parameters)} parameters have one that is not zero"


def _check_jacobian(model: LanguageModel, chance: torch.Generator) -> float:
    """The derivative of a position's output with respect to a later input is zero."""
    found, T = kinds(model), min(LENGTH, model.config.context)
    if not found:
        found = {layer_name(model, i): block for i, block in enumerate(model.blocks, 1)}
        T = min(FEW, T)
    weight, worst = model.embedding.weight, 0.0
    x, along = torch.randn(2, 1, T, model.config.d_model, generator=chance).to(weight)
    x.requires_grad_()
    for name, block in found.items():
        outputs = (block(x) * along).sum(-1)[0]
        for t in range(T - 1):
            (gradient,) = torch.autograd.grad(outputs[t], x, retain_graph=True)
            size = gradient[0].abs().amax(-1)
            above = float(size[t + 1 :].max() / size.max())
            if not above <= NEAR:
                later = t + 1 + int(size[t + 1 :].argmax())
                raise ModelError(
                    f"{name} is not causal: its output at position {t} has a derivative with "
                    f"respect to the input at position {later}, {above:.2g} of the largest"
                )
            worst = max(worst, above)
    return worst


@torch.no_grad()
def _check_saving(model: LanguageModel, tokens: Tensor, tokenizer_json: str) -> str:
    """The model gives the same logits when it is saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = save_model(Path(folder) / "model", model, tokenizer_json, {})
        again = load_model(path, tokens.device).model
    before = model(tokens)
    try:
        after = again(tokens)
    except RuntimeError as error:  # a tensor that no file has is on no device
        reason = str(error).splitlines()[0]
        raise ModelError(f"the model does not run when it is saved and loaded: {reason}") from error
    if not torch.equal(before, after):
        apart = float((before - after).abs().max())
        raise ModelError(
            f"the logits differ by {apart:.2g} when the model is saved and loaded; what they depend"
            " on must be a parameter or a persistent buffer"
        )
    return f"the same logits, {before.numel():,} numbers"
