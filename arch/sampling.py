"""Text from a model, one token at a time, on the remembered prefix."""

from collections.abc import Collection

import torch
from torch import Tensor

from arch.errors import ModelError
from arch.model import LanguageModel


@torch.no_grad()
def generate(
    model: LanguageModel,
    tokens: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | Collection[int] | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continues each row of `tokens`, `(B, T)` to `(B, T + new)`.

    Ends after max_new_tokens, at the model's context, or when every row has said `stop`, or any of
    its tokens, whichever is first; a row that stopped is filled with the first of them. Logits are
    divided by the temperature; 0 takes the likeliest token. Only the `top_k` likeliest tokens may
    be drawn, or the smallest set of likeliest tokens with the probability `top_p` (nucleus
    sampling, Holtzman et al., 1904.09751).

    Raises:
        ModelError: no prompt, a prompt longer than the context, settings out of range, or outputs
            that are not finite.
    """
    _check(tokens, max_new_tokens, temperature, top_k, top_p)
    room = min(max_new_tokens, model.config.context - tokens.shape[1])
    hidden, state = model.prefix(model.embed(tokens))
    stops = [stop] if isinstance(stop, int) else list(stop or ())
    done = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for count in range(room):
        logits = model.logits(hidden[:, -1:])[:, 0]
        if not logits.isfinite().all():
            raise ModelError("the model gives numbers that are not finite; nothing can be drawn")
        new = _draw(logits.float(), temperature, top_k, top_p, generator)
        if stops:
            new = torch.where(done, stops[0], new)
            done |= torch.isin(new, new.new_tensor(stops))
        tokens = torch.cat([tokens, new[:, None]], dim=1)
        if done.all() or count == room - 1:
            break
        hidden, state = model.prefix(model.embed(new[:, None]), state)
    return tokens


def _draw(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    heated = logits / temperature
    if not heated.amax(dim=-1).isfinite().all():  # divided by 0, or by next to nothing
        return logits.argmax(dim=-1)
    logits, order = heated.sort(dim=-1, descending=True)
    if top_k is not None:
        logits[:, top_k:] = -torch.inf
    probabilities = logits.softmax(dim=-1)
    if top_p is not None:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    drawn = torch.multinomial(probabilities, 1, generator=generator)
    return order.gather(1, drawn)[:, 0]


def _check(
    tokens: Tensor, new: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    if tokens.dim() != 2:
        raise ModelError(f"tokens is {tuple(tokens.shape)}; give rows of token ids, (B, T)")
    for name, value, allowed, fits in (
        ("the length of the prompt", tokens.shape[1], "at least 1", tokens.shape[1] > 0),
        ("max_new_tokens", new, "0 or above", new >= 0),
        ("temperature", temperature, "0 or above", temperature >= 0),
        ("top_k", top_k, "at least 1", top_k is None or top_k >= 1),
        ("top_p", top_p, "above 0 and at most 1", top_p is None or 0 < top_p <= 1),
    ):
        if not fits:
            raise ModelError(f"{name} is {value}; it must be {allowed}")
