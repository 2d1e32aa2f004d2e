"""Tokens whose outputs another token has as well: `recover` is sure of none of them."""

import pytest
import torch

from eval import activations, open_model, recover
from eval.captured.captured import identify
from eval.captured.certainty.agreement import Agreement
from eval.captured.certainty.certify import certify
from eval.captured.certainty.rivals import find_alike
from eval.captured.certainty.verified import Found, verify
from eval.captured.files.stored import read_stored
from eval.sites.circuit import Circuit
from eval.sites.rounding import Tolerance
from eval.sites.slices import Slice
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_pretrained import GROUPED, random_model

TEXT = "Tom had a red ball."
TWINS = (5, 0), (7, 2), (9, 4)
"""Tokens, and the positions of those that have the same embedding."""


@pytest.fixture
def twins(small_model, small_tokenizer):
    """A model with tokens of equal rows, the tokens of a text and their outputs."""
    module = small_model()
    encoded = small_tokenizer.encode(TEXT).ids
    with torch.no_grad():
        for twin, t in TWINS:
            module.embedding.weight[twin] = module.embedding.weight[encoded[t]]
    checkpoint = open_model(module, tokenizer=small_tokenizer)
    (batch,) = activations(checkpoint, [TEXT], 1)
    return checkpoint, encoded, batch.outputs["block.1"]


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("solver", ["propose", "sweep"])
def test_tokens_of_equal_rows_are_never_certain(kind, solver, twins):
    checkpoint, encoded, outputs = twins
    found = recover(checkpoint, outputs.to(kind), layer=1, corpus="toy:400", solver=solver)
    for t, proof in enumerate(found.certificates[0]):
        assert (proof is None) == (t in (0, 2, 4))
    for twin, t in TWINS:
        assert {int(found.tokens[0, t]), *found.alike[0][t]} == {twin, encoded[t]}


def test_tokens_of_equal_rows_are_not_likely_where_few_tokens_are_run(
    twins, nowhere_else, monkeypatch
):
    """Of a large vocabulary the twin was seldom drawn, and the token alone was near."""
    monkeypatch.setattr("eval.captured.certainty.likelihood.WHOLE", 64)
    monkeypatch.setattr("eval.captured.certainty.likelihood.RIVALS", 16)
    checkpoint, encoded, outputs = twins
    noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
    size = outputs.square().mean(dim=-1, keepdim=True).sqrt()
    found = recover(checkpoint, outputs + 0.02 * size * noise, layer=1, corpus="toy:400")
    likely = [grade == "likely" for grade in found.grades[0]]
    assert likely == [t not in (0, 2, 4) for t in range(len(encoded))]


def test_tokens_of_equal_rows_are_named_where_all_tokens_fit_their_own_output(twins):
    """Sixteen of them were held against later outputs, the twin not among these."""
    checkpoint, encoded, outputs = twins
    scale = outputs.abs().amax(dim=-1, keepdim=True) / 127
    scale[:, 0] *= 1000
    stored = read_stored((outputs / scale).round().to(torch.int8), scale=scale)
    captured = identify(checkpoint, "toy:400", stored, Slice(), 1, None, "fp32")
    problem = captured.pose()
    answer = verify(captured, problem, torch.tensor([encoded]))
    certified = certify(captured, Found(problem, answer, ["residual"], [0]))
    token = int(certified.verified.tokens[0, 0])
    assert {token, *certified.alike[0][0]} == {TWINS[0][0], encoded[0]}
    assert certified.certificates[0][0] is None


def test_rivals_of_many_prompts_are_run_in_parts(twins, monkeypatch):
    """All at once they took more memory than there was, behind a search of hours."""
    checkpoint, encoded, outputs = twins
    stored = read_stored(outputs.bfloat16())
    captured = identify(checkpoint, "toy:400", stored, Slice(), 1, None, "fp32")
    problem, tokens = captured.pose(), torch.tensor([encoded])
    rounding = verify(captured, problem, tokens).rounding
    tolerance = Tolerance(rounding, stored.step, torch.zeros_like(rounding))
    every = torch.ones_like(tokens, dtype=torch.bool)
    agreement = Agreement(captured.circuit, stored, tolerance, Slice(), every)
    together, step, sizes = find_alike(problem, tokens, agreement), Circuit.step, list[int]()

    def counted(circuit, embeddings, state):
        sizes.append(len(embeddings))
        return step(circuit, embeddings, state)

    monkeypatch.setattr(Circuit, "step", counted)
    monkeypatch.setattr("eval.captured.certainty.rivals.candidates_at_once", lambda _: 16)
    assert find_alike(problem, tokens, agreement) == together
    assert max(sizes) == 16


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
@pytest.mark.parametrize("part", ["value", "rotated_key"])
def test_tokens_of_one_direction_are_not_certain_behind_a_norm(kind, part, nowhere_else):
    """Keys and values of the first layer are of normed rows; the nearest rows are others."""
    theirs = random_model("Llama", torch.float32, GROUPED | {"rms_norm_eps": 1e-12})
    rows = theirs.get_input_embeddings().weight
    rows[150:250] = rows[:100] * torch.tensor([0.3, 2.5]).repeat(50)[:, None]
    tokens = torch.randint(250, (3, 24), generator=torch.Generator().manual_seed(5))
    held = theirs(tokens, use_cache=True).past_key_values.layers[0]
    outputs = (held.values if part == "value" else held.keys).to(kind)
    model = open_model(theirs, tokenizer=byte_tokenizer())
    found = recover(model, outputs, layer=1, part=part, corpus="toy:400")
    certain = torch.tensor([[grade == "certain" for grade in of] for of in found.grades])
    assert torch.equal(certain, (tokens >= 100) & (tokens < 150))
    assert bool((found.tokens == tokens)[certain].all())
