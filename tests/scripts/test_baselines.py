"""What ours is compared with: that it is what it says it is."""

import pytest
import torch
from torch import nn

from arch.formats.maskedmixers import from_reference
from scripts.bench.baselines import reference

SIZES = {"vocab_size": 11, "length": 12, "width": 8, "layers": 2}


@pytest.mark.parametrize("kind", ["flat", "expanded"])
def test_restated_mixer_is_causal_learns_above_the_diagonal_and_computes_what_its_import_does(kind):
    model = reference(kind, **SIZES)
    tokens = torch.randint(11, (3, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 11
    before, after = (model(t)["logits"][:, :7] for t in (tokens, changed))
    torch.testing.assert_close(before, after)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(tokens, labels=tokens)["loss"].backward()
        optimizer.step()
    convs = [m for m in model.modules() if isinstance(m, nn.Conv1d)]
    assert convs
    assert all(conv.weight[..., 0].triu(1).abs().sum() > 0 for conv in convs)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.testing.assert_close(model(tokens)["logits"], from_reference(state)(tokens))


def test_loss_is_that_of_transformers():
    """The labels are shifted as `ForCausalLMLoss` does it."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    model = reference("flat", **SIZES)
    tokens = torch.randint(11, (3, 12))
    labels = tokens.masked_fill(tokens == 3, -100)
    result = model(tokens, labels=labels)
    torch.testing.assert_close(result["loss"], ForCausalLMLoss(result["logits"], labels, 11))
