"""Reading by a fitted linear map: exact, each layer by its own stream, few waits for the device."""

import pytest
import torch

from tests.conftest import VOCAB
from tests.eval.inversion.search_cases import (
    MIXERS,
    misread,
    posed,
    prompts,
    readback,
    solve,
    tokens_of,
)

P, T = 3, 7
LAYERS = (1, 2)
ALL_MIXERS = [*MIXERS, "expanded(factor=2)", "parallel(branches=2)", "headed(heads=2)"]


def problems(model, tokens, layers=LAYERS):
    return [posed(model, tokens, "[:, :, :]", layer) for layer in layers]


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("mixer", "sites", "shown", "guesses"),
    [
        *((mixer, [(0,), (2,)], "[:, :, :]", readback) for mixer in ALL_MIXERS),
        ("attention+flat", [(0,), (1,), (2,)], "[:, :, 4:20]", misread),
        ("attention+flat", [(2, "mixer"), ((1, 2), "mixer")], "[:, :, :]", readback),
        ("attention+flat", [(2, "stream"), ((1, 2), "stream")], "[:, :, :12]", readback),
    ],
)  # fmt: skip
def test_every_token_is_proved_whatever_the_guesses_are_worth(
    mixer, sites, shown, guesses, small_model
):
    truth, model = prompts(P, T), small_model(mixers=(mixer,))
    given = solve("propose", [posed(model, truth, shown, *site) for site in sites], guesses)
    assert tokens_of(given).equal(truth.repeat(len(sites), 1))
    assert all(answer.certificate == "residual" for answer in given)
    most = max(answer.evaluations for answer in given)
    if len(sites[0]) == 1:  # of a part of the block the map says less
        assert (most > VOCAB) == (guesses is misread)


def test_a_layer_is_read_by_its_own_stream_alone(small_model):
    """With other prompts' streams in the other layers, nothing of a layer's answers changes."""
    model = small_model(n_layers=3, mixers=("attention(heads=2)",))
    asked = [posed(model, prompts(P, T), "[:, :, :]", layer) for layer in range(1, 4)]
    fits = {problem.circuit: readback(problem.circuit) for problem in asked}
    plain = solve("propose", asked, fits.__getitem__)
    for layer in range(3):
        mixed = [each if i == layer else each.of([1, 2, 0]) for i, each in enumerate(asked)]
        changed = solve("propose", mixed, fits.__getitem__)
        for row in range(layer * P, layer * P + P):
            before, after = plain[row], changed[row]
            assert before.tokens.equal(after.tokens)
            assert before.certificate == after.certificate == "residual"
            size = before.scores.abs().max()
            torch.testing.assert_close(before.scores / size, after.scores / size, atol=1e-3, rtol=0)
