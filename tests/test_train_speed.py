"""What makes training faster or smaller, and changes nothing else."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from arch import LanguageModel
from train.loss import head_loss
from train.windows import IGNORE

MakeModel = Callable[..., LanguageModel]


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = (hidden @ weight.T).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")


def case(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(3, 7, 5, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 5, dtype=dtype, requires_grad=True)
    targets = torch.randint(11, (3, 7)).masked_fill(torch.rand(3, 7) < 0.3, IGNORE)
    return hidden, weight, targets


@pytest.mark.parametrize("chunks", [None, 1, 2, 4, 21, 50])
def test_the_loss_and_its_gradients_are_those_of_torch(chunks: int | None):
    hidden, weight, targets = case()
    ours = head_loss(hidden, weight, targets, chunks)
    found = torch.autograd.grad(0.3 * ours, (hidden, weight))
    expected = plain(hidden, weight, targets)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(found, torch.autograd.grad(0.3 * expected, (hidden, weight)))
    with torch.no_grad():
        torch.testing.assert_close(head_loss(hidden, weight, targets, chunks), expected)


def test_no_target_is_no_loss_and_large_logits_are_no_trouble():
    hidden, weight, targets = case(torch.float32)
    nothing = head_loss(hidden, weight, torch.full_like(targets, IGNORE), 2)
    assert nothing == 0
    assert torch.autograd.grad(nothing, weight)[0].count_nonzero() == 0
    expected = plain(1000 * hidden.double(), weight.double(), targets)
    torch.testing.assert_close(head_loss(1000 * hidden, weight, targets).double(), expected)


@pytest.mark.parametrize("chunks", [1, 3])
def test_in_bfloat16_it_is_no_worse_than_torch_in_bfloat16(chunks: int):
    hidden, weight, targets = case(torch.float32)
    exact = torch.autograd.grad(plain(hidden, weight, targets), (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        ours = torch.autograd.grad(head_loss(hidden, weight, targets, chunks), (hidden, weight))
        theirs = torch.autograd.grad(plain(hidden, weight, targets), (hidden, weight))
    for a, b, truth in zip(ours, theirs, exact, strict=True):
        assert a.dtype == torch.float32
        assert 0 < (a - truth).norm() < 1.5 * (b - truth).norm()


def test_logits_are_never_whole_in_memory():
    hidden = torch.randn(4, 64, 8, requires_grad=True)
    weight = torch.randn(1000, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        head_loss(hidden, weight, torch.randint(1000, (4, 64)), 8)
    assert sorted(tuple(tensor.shape) for tensor in kept) == [(256, 8), (1000, 8)]
