"""The Jacobian against finite differences, products and null spaces."""

import pytest
import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.probes.jacobian import jacobian, local_geometry


def prompt(length: int = 6) -> Tensor:
    return torch.randint(400, (length,), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("k", [2, 4])  # by columns, and by rows
@pytest.mark.parametrize(
    "mixer", ["flat", "expanded", "headed(heads=2)", "attention(heads=2)", "attention+flat"]
)
def test_jacobian_is_what_finite_differences_give(small_model, mixer, k):
    circuit = Circuit(small_model(mixers=(mixer,), d_model=8).double(), 2)
    embeddings, step = circuit.model.embed(prompt()), 1e-5
    J = jacobian(circuit, embeddings, k)
    assert J.shape == ((6 - k) * 8, k * 8)
    for column in range(k * 8):
        moved = torch.zeros(6 * 8, dtype=torch.float64)
        moved[column] = step
        ahead, behind = (
            circuit((embeddings + sign * moved.reshape(6, 8))[None])[0, k:].flatten()
            for sign in (1, -1)
        )
        assert torch.allclose(J[:, column], (ahead - behind) / (2 * step), atol=1e-6)


@pytest.mark.parametrize(
    ("norm", "layer", "each"),
    [("layernorm", 1, 2), ("layernorm", 2, 1), ("rmsnorm", 1, 1), ("rmsnorm", 2, 0)],
)
def test_what_norms_remove_is_found(small_model, norm, layer, each):
    """A mean is removed at any depth; a length in the first block, where nothing is added to it."""
    figures = local_geometry(Circuit(small_model(norm=norm), layer), prompt(), 2)
    assert (figures["inputs"], figures["removed"]) == (2 * 32, 2 * each)
    assert figures["sigma_min"] > 1e-4 * figures["sigma_max"]
    assert figures["condition"] == pytest.approx(figures["sigma_max"] / figures["sigma_min"])


def test_figures_are_those_of_the_singular_values(small_model):
    model = small_model(norm="rmsnorm", mixers=("attention(heads=2)",))
    figures = local_geometry(Circuit(model, 2), prompt(), 1)
    exact = Circuit(model.double(), 2)
    embeddings = exact.model.embed(prompt())
    unit = exact.scale / exact(embeddings[None])[0, 1:].square().mean().sqrt()
    values = torch.linalg.svdvals(jacobian(exact, embeddings, 1) * unit)
    share = values / values.sum()
    expected = {
        "removed": 0,
        "sigma_max": float(values[0]),
        "sigma_min": float(values[-1]),
        "effective_rank": float((-(share * share.log()).sum()).exp()),
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


def test_units_are_the_models_own(small_model):
    """Embeddings ten times as long that the norms shorten again: an equally visible token."""
    figures = []
    for length in (1.0, 10.0):
        model = small_model()
        for block in model.blocks:
            block.norm_token.eps = 1e-20  # pyright: ignore
        with torch.no_grad():
            model.embedding.weight.mul_(length)
        figures.append(local_geometry(Circuit(model, 1, part="mixer"), prompt(), 1))
    assert figures[0]["sigma_max"] == pytest.approx(figures[1]["sigma_max"], rel=1e-6)
    assert figures[0]["sigma_min"] == pytest.approx(figures[1]["sigma_min"], rel=1e-6)
