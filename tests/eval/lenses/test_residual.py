"""What is written to the stream: the parts are the logits, and written directions stay or go."""

import copy
from typing import Any

import pytest
import torch

from eval.lenses.logit import token_energy
from eval.lenses.residual import contributions, similarity, survival, update_shares
from eval.lenses.trace import PromptBatch, norm_scale, readers, spaced_layers, trace
from eval.models.checkpoint import open_checkpoint
from tests.eval.lenses.cases import figures, look, of, some_tokens


def test_a_trace_is_the_models_own_way(model):
    tokens = some_tokens(model)
    traced, embeddings = trace(model, tokens), model.embed(tokens)
    assert torch.equal(traced.streams[0], model.with_positions(embeddings))
    for layer in range(1, len(traced.streams)):
        assert torch.equal(traced.streams[layer], model.hidden(embeddings, layer))
    torch.testing.assert_close(sum(traced.parts.values()), traced.streams[-1])
    block: Any = model.blocks[0]
    mixed = block.token_mixer(block.norm_token(traced.streams[0]))
    assert torch.equal(traced.writes[0, 0], mixed)
    changed = block.channel_mixer(block.norm_channel(traced.streams[0] + mixed))
    torch.testing.assert_close(traced.writes[0, 1], changed, atol=1e-4, rtol=1e-4)


def test_contributions_sum_to_the_logits_that_readers_read(model):
    """Logits of two streams of one length, without a mean, differ as the readers say."""
    tokens = some_tokens(model)
    logits, traced = model(tokens), trace(model, tokens)
    targets = torch.randint(logits.shape[-1], (2, 12, 3))
    labels, found = contributions(model, traced.streams[-1], traced.parts, targets)
    assert found.shape == (len(set(labels)), 2, 12, 3)
    near = 1e-5 * float(logits.abs().max().clamp(min=1))
    above = (logits - logits.mean(-1, keepdim=True)).gather(-1, targets)
    torch.testing.assert_close(found.sum(0), above, atol=near, rtol=0)
    x = torch.randn(2, model.config.d_model)
    x = x - x.mean(-1, keepdim=True)
    first, second = model.logits(x := x / x.std(-1, keepdim=True, unbiased=False))
    expected = (x[0] - x[1]) @ readers(model).T
    torch.testing.assert_close(first - second, expected, atol=2e-4, rtol=2e-4)


def test_streams_are_compared_where_prompts_are_and_updates_with_what_they_change(small_model):
    model = small_model(n_layers=3)
    traced, real = trace(model, some_tokens(model)), torch.ones(2, 12, dtype=torch.bool)
    real[1, 5:] = False
    batch = PromptBatch(model, some_tokens(model), real, ["a", "b"])
    alike = similarity(traced.streams, batch)
    torch.testing.assert_close(alike, alike.transpose(0, 1))
    each = torch.cosine_similarity(traced.streams[1], traced.streams[3], dim=-1)
    torch.testing.assert_close(alike[1, 3], torch.stack([each[0].mean(), each[1, :5].mean()]))
    step = (traced.streams[1] - traced.streams[0]).norm(dim=-1)
    share = update_shares(traced)[0, 2]
    torch.testing.assert_close(share * traced.streams[0].norm(dim=-1), step)


def test_a_stream_of_nothing_has_no_share_of_it(small_model):
    """As of a pad whose embedding is 0: shares of 1e37, or of infinity, made the mean."""
    model = small_model(mixers=("attention",))
    tokens = some_tokens(model)
    model.embedding.weight[tokens[0, 0]] = 0
    shares = update_shares(trace(model, tokens))
    nothing = (model.embed(tokens) == 0).all(dim=-1)
    assert shares[0, ::2, nothing].isnan().all()
    assert shares[..., ~nothing].isfinite().all()
    assert float(shares[..., ~nothing].max()) < 1e3


def test_a_write_is_lost_whole_at_its_own_layer(model):
    """A channel mixer's write, and the embedding's, at once; later ones by running it by hand."""
    traced = trace(model, some_tokens(model))
    (_, lost), n = survival(model, traced)[0], len(traced.writes)
    births = [0, *(layer for layer in range(1, n + 1) for _ in range(2))]
    for write, born in enumerate(births):
        assert lost[write, :born].isnan().all()
        assert lost[write, born:].isfinite().all()
        if write % 2 == 0:
            torch.testing.assert_close(lost[write, born], torch.ones(2, 12), atol=1e-3, rtol=0)
    block: Any = model.blocks[1]
    own = traced.writes[0, 1]
    change = traced.streams[2] - block(traced.streams[1] - own)
    expected = (change * own).sum(-1) / own.square().sum(-1)
    torch.testing.assert_close(lost[2, 2], expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_half_precision_has_the_figures_of_float32(norm, small_model):
    """There a square of more than 255 is infinite."""
    model = small_model(mixers=("attention",), norm=norm)
    model.embedding.weight.mul_(600)
    tokens, found = some_tokens(model), []
    for run in (model, copy.deepcopy(model).half()):
        traced = trace(run, tokens)
        shares, squares = survival(run, traced)
        last = traced.streams[-1]
        figures = norm_scale(run.norm, last), token_energy(run, last), shares[:, 0], squares[0]
        found.append([figure.float() for figure in figures])
    for full, half in zip(*found, strict=True):
        torch.testing.assert_close(half, full, rtol=1e-2, atol=1e-5)


def test_what_is_found_fits_together(model_directory):
    checkpoint = open_checkpoint(model_directory(mixers=("attention(heads=2)", "flat")))
    found = look("residual", checkpoint, (40, 41, 42, 43, 44), (50, 51, 52))
    alone = of(found, "contribution to the answer", prompt="text 1")
    assert alone[:, 3:].isnan().all()
    logits = checkpoint.model(torch.tensor([[50, 51, 52]]))[0]
    above = logits.max(-1).values - logits.mean(-1)
    torch.testing.assert_close(alone[:, :3].sum(0), above, atol=1e-5, rtol=1e-5)
    lost = {(f["part"], f["distance"]): f["value"] for f in figures(found, "share lost without it")}
    assert [*lost] == [(part, d) for part in ("token mixer", "channel mixer") for d in range(2)]
    assert lost["channel mixer", 0] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("depth", "most", "layers"),
    [(3, 3, [1, 2, 3]), (8, 3, [3, 5, 8]), (8, 4, [2, 4, 6, 8]), (10, 4, [2, 5, 8, 10])],
)
def test_layers_are_spaced_to_the_last(depth, most, layers):
    assert spaced_layers(depth, most) == layers
