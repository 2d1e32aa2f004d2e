"""The arithmetic of figures and trainings, whatever a notebook has set for its own tensors."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch

Value = TypeVar("Value")
_BACKENDS: Any = torch.backends
_OF_PRODUCTS = _BACKENDS.cuda.matmul, _BACKENDS.mkldnn.matmul
_OF_LAYERS = (
    _BACKENDS.cudnn.conv,
    _BACKENDS.mkldnn.conv,
    _BACKENDS.cudnn.rnn,
    _BACKENDS.mkldnn.rnn,
)


@contextmanager
def plain_arithmetic() -> Iterator[None]:
    """Computes as in a process of its own: whole float32 by default, without autocast, on a CPU.

    Inside `torch.inference_mode()` as inside `torch.no_grad()`, where a solver may take gradients.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with ExitStack() as stack:
            stack.enter_context(_whole_float32())
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())  # as before
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            if torch.get_default_device().type != "cpu":
                stack.enter_context(torch.device("cpu"))
            yield
    finally:
        torch.set_default_dtype(before)


def shortens_float32() -> bool:
    """Whether products of float32 are computed in TF32 or bfloat16, on a GPU or a CPU."""
    return any(part.fp32_precision not in ("ieee", "none") for part in _OF_PRODUCTS)


def _read(setting: Callable[[], Value]) -> Value | None:
    """A setting of torch's earlier interface; None where the parts were set one by one."""
    try:
        return setting()
    except RuntimeError:
        return None


@contextmanager
def _whole_float32() -> Iterator[None]:
    """Neither TF32 nor bfloat16 in products, convolutions and recurrences of float32."""
    parts = _OF_PRODUCTS + _OF_LAYERS
    precisions = [part.fp32_precision for part in parts]
    named = _read(torch.get_float32_matmul_precision)
    allowed = _read(lambda: torch.backends.cudnn.allow_tf32)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    for part in parts:
        part.fp32_precision = "ieee"
    try:
        yield
    finally:
        if named:
            torch.set_float32_matmul_precision(named)
        if allowed is not None:
            torch.backends.cudnn.allow_tf32 = allowed
        for part, precision in zip(parts, precisions, strict=True):
            part.fp32_precision = precision
