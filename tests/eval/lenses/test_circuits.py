"""Patterns, triangles and OV circuits, against transformers and against plain restatements."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from arch.mixers import Expanded, Headed, Kernel, Parallel, Structured, TokenMixer, Triangle
from arch.pretrained.pretrained import PretrainedModel
from eval.lenses.circuits import (
    attention_pattern,
    by_lag,
    copying,
    maps_of,
    separated,
    singular_values,
    triangles,
    value_maps,
)
from eval.lenses.lens import lenses
from eval.lenses.task import MEASURED
from eval.lenses.trace import trace
from eval.measures.ranks import effective_rank
from eval.messages import RequestError
from tests.arch.cases import MIXERS, random_mixer, random_tokens, scramble
from tests.arch.cases import small_model as tiny_model
from tests.arch.pretrained.test_pretrained import their_model
from tests.eval.lenses.cases import figures, look, story_checkpoint
from tests.said import one_line

D, T = 8, 7
ATTENTION = [entry for entry in MIXERS if entry.startswith("attention") and "+" not in entry]
WITHOUT = "attention", "depthwise", "identity"
MASKED = [entry for entry in MIXERS if not entry.startswith(WITHOUT)]
WRAPPED = ["gpt2", "llama 2, grouped, scaled"]
WHERE, WHAT = "positions reversed", "features turned"


@pytest.mark.parametrize("family", WRAPPED)
def test_patterns_are_transformers_own(family):
    theirs = their_model(family)
    theirs.set_attn_implementation("eager")
    ours = PretrainedModel(theirs)
    tokens = random_tokens(ours)
    expected = torch.cat(theirs(tokens, output_attentions=True).attentions, dim=1).unbind(1)
    found = maps_of(ours, trace(ours, tokens).streams)
    heads, near = len(expected) // len(ours.blocks), 1e-5  # eager's softmax is in float32
    for i, (label, weights) in enumerate(found.items()):
        assert label.split()[0] == str(i // heads + 1)
        assert label.endswith(f"head {i % heads}")
        torch.testing.assert_close(weights, expected[i].to(weights), atol=near, rtol=near)
    assert len(found) == len(expected)


def rebuilt(mixer, x):
    """The output of a mixer without biases, by its triangles alone and its other parts."""
    w = list(triangles(mixer, x.shape[1]).values())
    if isinstance(mixer, Expanded):
        into, out = w[: len(w) // 2], w[len(w) // 2 :]
        return sum(b @ F.gelu(a @ x) for a, b in zip(into, out, strict=True))
    if isinstance(mixer, Headed):
        parts = mixer.in_proj(x).chunk(len(w), dim=-1)
        return mixer.o_proj(torch.cat([a @ y for a, y in zip(w, parts, strict=True)], dim=-1))
    if isinstance(mixer, Structured):
        read = mixer.in_proj(x).unflatten(-1, (mixer.heads, -1))
        size, width = len(w) // mixer.heads, read.shape[-1]
        before = (size - 1) // 2
        wide = F.pad(read, (before, size - 1 - before))
        heads: list[Any] = [
            sum(w[k * mixer.heads + h] @ wide[..., h, k : k + width] for k in range(size))
            for h in range(mixer.heads)
        ]
        return mixer.o_proj(torch.cat(heads, dim=-1))
    if isinstance(mixer, Kernel):
        before = (mixer.size - 1) // 2
        wide = F.pad(x, (before, mixer.size - 1 - before))
        return sum(a @ wide[..., k : k + D] for k, a in enumerate(w))
    act = F.gelu if isinstance(mixer, Parallel) and mixer.activation == "gelu" else lambda y: y
    return sum(act(a @ x) for a in w)


@pytest.mark.parametrize("entry", MASKED)
def test_triangles_are_what_a_mixer_computes_with(entry):
    mixer, x = random_mixer(entry, D, 12), torch.randn(2, T, D, dtype=torch.float64)
    for name, parameter in mixer.named_parameters():
        parameter.data *= not name.endswith("bias")
    for weights in triangles(mixer, T).values():
        assert weights.shape == (T, T)
        assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(rebuilt(mixer, x), mixer(x))


@pytest.mark.parametrize("entry", [*ATTENTION, "headed(heads=4)", *WRAPPED])
def test_where_and_what_make_the_output(entry):
    """The sum over heads of A x W_V W_O, and what is made of zeros; attention's A sums to one."""
    wide = 32 if entry in WRAPPED else D
    mixer: Any = (
        PretrainedModel(their_model(entry)).blocks[1].token_mixer
        if entry in WRAPPED
        else random_mixer(entry, D, 12)
    )
    x = torch.randn(1, T, wide, dtype=torch.float64)
    found = value_maps(mixer, x[0])
    assert found
    if isinstance(mixer, Headed):
        A = torch.stack([*triangles(mixer, T).values()])
    else:
        A = attention_pattern(mixer, x)[0]
        torch.testing.assert_close(A.sum(-1), torch.ones_like(A[..., 0]))
        assert (A > 0).all(dim=0).equal(torch.ones(T, T).tril().bool())
    whole = (A @ x @ found[0] @ found[1]).sum(dim=0) + mixer(torch.zeros_like(x))[0]
    torch.testing.assert_close(whole, mixer(x)[0], atol=1e-9, rtol=1e-9)


def test_copying_is_that_of_the_whole_map():
    values, outputs = torch.randn(2, 2, D, 4, dtype=torch.float64)
    outputs = outputs.mT
    eigenvalues = torch.linalg.eigvals(values @ outputs)
    expected = eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1)
    torch.testing.assert_close(copying(values, outputs), expected)
    singular = torch.linalg.svdvals(values @ outputs)[:, :4]
    torch.testing.assert_close(singular_values(values, outputs), singular)
    for sign in (1.0, -1.0):
        found = copying(values, sign * values.mT)
        torch.testing.assert_close(found, torch.full_like(found, sign))


@pytest.mark.parametrize(
    ("entry", "minded", "unminded"),
    [
        ("flat", [("token mixer", WHERE), ("channel mixer", WHAT)],
         [("token mixer", WHAT), ("channel mixer", WHERE)]),
        ("parallel", [("token mixer", WHERE)], [("token mixer", WHAT)]),
        ("attention(heads=2)",
         [("A", WHERE), ("OV", WHAT), ("token mixer", WHERE), ("token mixer", WHAT)],
         [("A", WHAT), ("OV", WHERE)]),
    ],
)  # fmt: skip
def test_a_part_minds_positions_or_features_or_both(entry, minded, unminded):
    model = tiny_model(entry).double()
    tokens = random_tokens(scramble(model))
    found = separated(model, trace(model, tokens).streams, seed=0)
    sizes = {place: [r["value"] for r in found if (r["part"], r["act"]) == place]
             for place in minded + unminded}  # fmt: skip
    assert min(min(sizes[place]) for place in minded) > 0.01
    assert max(max(sizes[place]) for place in unminded) < 1e-9


class TwoTriangles(TokenMixer):
    def __init__(self, d_model, context):
        super().__init__()
        self.near, self.far = nn.ModuleList([Triangle(context)]), Triangle(context)

    def forward(self, x):
        return self.near[0](x) + self.far(x)


def test_mixers_of_one_block_have_figures_and_maps_of_their_own():
    """Heads of the first had the places of the last one's; maps of one name were lost."""
    own = f"{__name__}.TwoTriangles"
    both = "attention(heads=2)+attention(heads=2)+headed(heads=2)+flat+flat(bias=false)"
    checkpoint = story_checkpoint((both, own))
    found = look("circuits", checkpoint, (40, 41, 42, 43))
    coordinates = [
        [value for name, value in figure.items() if name not in MEASURED]
        for figure in found.figures()
    ]
    assert len(coordinates) == len({*map(str, coordinates)})
    assert len(figures(found, "OV copying")) == 6
    assert len(figures(found, "commutation error")) == 2 * (2 + 2 * 2 + 2)
    (maps,) = found.of("maps")
    assert len(maps.axes["map"]) == 3 * 2 + 2 + 2
    plain = look("circuits", story_checkpoint(("attention(heads=2)+flat",)), (40, 41, 42, 43))
    parts = {figure["part"] for figure in figures(plain, "OV copying")}
    assert parts == {"head 0", "head 1"}  # one of them alone has heads


def test_a_prompt_of_two_tokens_has_maps_and_one_of_a_single_token_is_refused():
    checkpoint = story_checkpoint(("attention(heads=2)",))
    found = look("circuits", checkpoint, (40, 41), (42, 43, 44))
    (maps,), (lags,) = found.of("maps"), found.of("weight by distance")
    assert len(maps.axes["position"]) == len(lags.axes["lag"]) == 2
    drawn = {figure.name for figure in lenses()["circuits"].figures({"x": found})}
    assert {"circuits-maps", "circuits-lags"} <= drawn
    with one_line(RequestError, "--text: a prompt has one token"):
        look("circuits", checkpoint, (40, 41), (42,))


def test_profiles_and_ranks_by_hand():
    w = torch.tensor([[2.0, 0, 0], [-1, 3, 0], [1, -1, 2]])
    found = by_lag(torch.stack([w, 2 * w]))
    torch.testing.assert_close(found, torch.tensor([[7 / 3, 1, 1], [14 / 3, 2, 2]]))
    singular = torch.tensor([[2.0, 2, 2, 0], [5, 0, 0, 0], [3, 1, 0, 0]])
    two = torch.distributions.Categorical(torch.tensor([0.75, 0.25])).entropy().exp()
    torch.testing.assert_close(effective_rank(singular), torch.tensor([3.0, 1.0, float(two)]))
