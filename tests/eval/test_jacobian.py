"""Products with a Jacobian against the matrix that torch.func makes of plain operations."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from eval.jacobian import linearise


def test_products_are_those_with_the_matrix():
    weight = torch.randn(7, 5, dtype=torch.float64)

    def function(x):
        return torch.tanh(x @ weight.T).square()

    x, p, u = (torch.randn(n, dtype=torch.float64) for n in (5, 5, 7))
    J, near = torch.func.jacrev(function)(x), linearise(function, x)
    torch.testing.assert_close(near.value, function(x))
    torch.testing.assert_close(near.forward(p), J @ p)
    torch.testing.assert_close(near.backward(u), J.T @ u)


@pytest.mark.parametrize("mixer", ["flat", "expanded", "headed(heads=2)", "attention(heads=2)"])
def test_products_of_a_model_are_exact(small_model, mixer):
    """J' by plain backward passes, entry for entry, is the oracle of J."""
    model = small_model(mixers=(mixer,), d_model=8).double()
    x = model.embed(torch.arange(6)[None]).detach()

    def function(x):
        return model.hidden(x, 2).flatten()

    leaf = x.clone().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        values = function(leaf)
    rows = [torch.autograd.grad(v, leaf, retain_graph=True)[0].flatten() for v in values]
    J, near = torch.stack(rows), linearise(function, x)
    p, u = torch.randn_like(x), torch.randn(len(J), dtype=torch.float64)
    torch.testing.assert_close(near.forward(p), J @ p.flatten())
    torch.testing.assert_close(near.backward(u).flatten(), u @ J)
