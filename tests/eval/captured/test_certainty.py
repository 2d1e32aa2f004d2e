"""What `recover` calls certain, likely and unknown."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from arch.mixers.attention import Rotary
from eval import activations, open_model, recover
from eval.__main__ import main
from eval.captured.certainty.agreement import find_evidence
from eval.captured.certainty.likelihood import LIKELY_PROBABILITY, probability
from eval.models.text import held_out_text
from eval.sites.circuit import Circuit
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_pretrained import GROUPED, random_model

TEXT = "Tom had a red ball."
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def states(directories, opened):
    """A Llama, its states and the tokens behind them."""
    path = directories["llama"]
    return opened["llama"], load_file(f"{path}/states.safetensors")


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_that_some_token_has_by_chance_make_none_certain(kind, states, nowhere_else):
    """One channel: a wrong token agreed, and others behind it, by the wrong prompt."""
    model, held = states
    outputs = held["2"][:1, :7].to(kind)
    found = recover(model, outputs, layer=2, shown="[:, :, :1]", corpus="toy:400")
    right = found.tokens == held["tokens"][:1, :7]
    graded = torch.tensor([[grade != "unknown" for grade in of] for of in found.grades])
    assert bool((right | ~graded).all())
    assert not any(found.certificates[0]) or kind != torch.bfloat16


@pytest.mark.parametrize(("channels", "certain"), [(3, False), (16, True)])
def test_hidden_tokens_are_certain_by_as_many_numbers_as_tell_them_together(
    channels, certain, states, nowhere_else
):
    """Three in bfloat16 agree with some of all prompts of three tokens: wrong ones were certain."""
    model, _ = states
    tokens = torch.randint(256, (1, 3), generator=torch.Generator().manual_seed(18))
    outputs = Circuit(model.model, 1).of_tokens(tokens).bfloat16()
    found = recover(model, outputs, layer=1, shown=f"[:, 2:, :{channels}]", corpus="toy:400",
                    computed="fp32")  # fmt: skip
    assert found.tokens.tolist() == tokens.tolist()
    assert [proof is not None for proof in found.certificates[0]] == 3 * [certain]


def test_a_hidden_token_that_nothing_shown_depends_on_is_not_certain(small_model, small_tokenizer):
    checkpoint = open_model(small_model(mixers=("identity",)), tokenizer=small_tokenizer)
    (batch,) = activations(checkpoint, [TEXT], 1)
    found = recover(checkpoint, batch.outputs["block.1"], layer=1, shown="[:, 2:, :]",
                    solver="alternating", corpus="toy:400")  # fmt: skip
    assert found.certificates[0][:2] == [None, None]
    assert all(found.certificates[0][2:])


@pytest.mark.parametrize("layer", [1, 2])
def test_hidden_tokens_that_may_change_places_are_not_certain(layer, small_model, small_tokenizer):
    """Attention that knows no positions: its first layer sees the set of what stands before."""
    module = small_model(mixers=("attention",))
    for part in module.modules():
        if isinstance(part, Rotary):
            part.cos.fill_(1.0)
            part.sin.zero_()
    checkpoint = open_model(module, tokenizer=small_tokenizer)
    (batch,) = activations(checkpoint, [TEXT], layer)
    found = recover(checkpoint, batch.outputs[f"block.{layer}"], layer=layer, shown="[:, 2:, :]",
                    corpus="toy:400")  # fmt: skip
    assert sorted(found.tokens[0, :2].tolist()) == sorted(batch.tokens[0, :2].tolist())
    assert found.tokens[0, 2:].tolist() == batch.tokens[0, 2:].tolist()
    assert [bool(proof) for proof in found.certificates[0][:2]] == [layer == 2] * 2
    assert all(found.certificates[0][2:])


@pytest.mark.first(2)
@pytest.mark.parametrize("spoil", ["zeros", "noise", "shifted"])
def test_a_tail_that_nothing_fits_takes_no_certificate_from_what_is_before(
    spoil, states, nowhere_else
):
    model, held = states
    tokens, outputs = held["tokens"][:1], held["2"][:1].clone()
    if spoil == "zeros":
        outputs = torch.cat([outputs, torch.zeros(len(outputs), 3, outputs.shape[2])], dim=1)
    elif spoil == "noise":
        tail = torch.randn(len(outputs), 3, outputs.shape[2], generator=torch.Generator())
        outputs = torch.cat([outputs, tail], dim=1)
    else:
        outputs[:, -1] += 0.5
    found = recover(model, outputs, layer=2, corpus="toy:400")
    count = tokens.shape[1] - (spoil == "shifted")
    assert torch.equal(found.tokens[:, :count], tokens[:, :count])
    for certificates, text in zip(found.certificates, found.texts, strict=True):
        assert all(certificates[:count])
        assert not any(certificates[tokens.shape[1] :])
        assert len(text) > 8


@pytest.mark.parametrize("size", [0.0, 0.1])
def test_small_rows_are_no_token_whose_output_is_the_smallest(size):
    """As rows that were normed: the nearest output was likely, although zeros lie nearer."""
    draw = torch.Generator().manual_seed(0)
    outputs, noise = (
        2 + 0.3 * torch.randn(4096, 64, generator=draw),
        torch.randn(64, generator=draw),
    )
    outputs[0] *= 0.6
    assert probability(outputs, outputs[0] + 0.1 * noise, 4096) > LIKELY_PROBABILITY
    assert probability(outputs, size * outputs[1], 4096) <= 0.5
    mean = outputs.mean(dim=0)
    outputs[0] = mean + 0.01 * noise
    assert probability(outputs, mean + 0.3 * (outputs[1] - mean), 4096) <= 0.5


def test_a_token_is_not_likely_where_another_has_the_rows_direction():
    """Clipped rows are short: the nearest output was that of a shorter one, likely and wrong."""
    outputs = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    target = 0.6 * outputs[1]
    outputs[0] = 0.55 * outputs[1] + 0.35 * outputs[2]
    assert probability(outputs, target, 4096) <= 0.5
    outputs[1] *= -1
    assert probability(outputs, target, 4096) > LIKELY_PROBABILITY


@pytest.mark.first(1)
@pytest.mark.parametrize(("numbers", "rows"), [(1, 100), (2, 100), (4, 100), (6, 100), (512, 20)])
def test_what_is_no_output_makes_no_token_likely(numbers, rows):
    """Some token of 4,096 came near to four numbers at one position of ten."""
    draw = torch.Generator().manual_seed(0)
    outputs, targets = (torch.randn(n, numbers, generator=draw) for n in (4096, rows))
    outputs = nn.functional.normalize(outputs, dim=1)
    nearest = [outputs[(outputs - x).square().sum(dim=1).argsort()] for x in targets]
    found = [probability(of, x, 4096) for of, x in zip(nearest, targets, strict=True)]
    assert sum(chance >= LIKELY_PROBABILITY for chance in found) <= 1


def test_a_shorter_row_is_likely_by_its_direction():
    """As behind a norm: it was not, where zeros lie as near."""
    outputs = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    target = 0.3 * outputs[0] + 0.01 * outputs[1]
    assert probability(outputs, target, 4096) > LIKELY_PROBABILITY


@pytest.mark.parametrize(("weight", "likely"), [(0.2, True), (0.45, False)])
def test_a_token_is_not_likely_where_another_output_is_mixed_in_by_half(weight, likely):
    """As of averaged prompts: the nearer one was likely, and was that of the other prompt."""
    draw = torch.Generator().manual_seed(0)
    outputs, noise = torch.randn(4096, 64, generator=draw), torch.randn(64, generator=draw)
    target = (1 - weight) * outputs[0] + weight * outputs[7] + 0.1 * noise
    assert (probability(outputs, target, 4096) >= LIKELY_PROBABILITY) == likely


@pytest.mark.parametrize("whole", [8192, 64])
def test_no_token_of_averaged_prompts_is_likely_where_few_tokens_are_run(
    whole, nowhere_else, monkeypatch
):
    """The other prompt's token was not among those drawn, and the nearer one was likely."""
    monkeypatch.setattr("eval.captured.certainty.likelihood.WHOLE", whole)
    monkeypatch.setattr("eval.captured.certainty.likelihood.RIVALS", 16)
    theirs = random_model("Llama", torch.float32, GROUPED | {"hidden_size": 64})
    ids = torch.tensor([byte_tokenizer().encode(text).ids for text in ("Tom had a", "Then it w")])
    first, second = theirs.get_input_embeddings()(ids).detach()
    model = open_model(theirs, tokenizer=byte_tokenizer())
    found = recover(model, 0.6 * first + 0.4 * second, layer=0, computed="fp32", corpus="toy:400")
    assert found.tokens[0].tolist() == ids[0].tolist()
    assert "likely" not in found.grades[0]


@pytest.mark.slow
def test_normed_rows_of_a_trained_mixer_make_no_token_likely():
    model = open_model("remnant:flat-small")
    (batch,) = activations(model, ["Once upon a time there was a little dog."], "mixer.1")
    outputs = nn.functional.normalize(batch.outputs["mixer.1"], dim=-1)
    found = recover(model, outputs, layer=1, part="mixer", corpus="toy:400")
    assert set(found.grades[0]) == {"unknown"}


@pytest.mark.slow
def test_codes_of_a_coarse_scale_may_be_zeros(states):
    """The first position's: how far sites are was no number, and no JSON."""
    model, held = states
    outputs = held["2"][:1]
    codes = (outputs / outputs.abs().amax() * 127).round().to(torch.int8)
    codes[:, 0] = 0
    found = recover(model, codes, scale=float(outputs.abs().amax()) / 127, corpus="toy:400")
    assert all(math.isfinite(match.distance) for match in found.matches)


def test_a_token_beside_which_no_rival_was_run_is_not_certain(states, monkeypatch):
    """A position that is no evidence at first, and fits once tokens were chosen again."""
    model, held = states
    looks = []

    def find(fits, shown, length):
        evidence = find_evidence(fits, shown, length)
        evidence[:, -1] &= bool(looks)
        looks.append(evidence)
        return evidence

    monkeypatch.setattr("eval.captured.certainty.certify.find_evidence", find)
    found = recover(model, held["2"][:1, :8], layer=2, corpus="toy:400")
    assert bool(looks[-1].all())
    assert all(found.certificates[0][:-1])
    assert found.certificates[0][-1] is None


def test_a_damaged_position_in_the_middle_is_passed_over(states):
    model, held = states
    outputs = held["1"][:1].clone()
    outputs[0, 4] = outputs[0, 4].flip(0)
    found = recover(model, outputs, layer=1, corpus="toy:400")
    right = (found.tokens == held["tokens"][:1])[0].tolist()
    assert all(right[:4] + right[5:])
    assert all(good for good, proof in zip(right, found.certificates[0], strict=True) if proof)
    assert sum(proof is not None for proof in found.certificates[0]) >= len(right) - 1


def test_noise_leaves_tokens_likely_and_a_rotation_leaves_none(
    states, directories, opened_once, nowhere_else, tmp_path, capsys, monkeypatch
):
    model, held = states
    outputs, chance = held["2"][:, :8], torch.Generator().manual_seed(0)
    noise = torch.randn(outputs.shape, generator=chance)
    size = outputs.square().mean(dim=-1, keepdim=True).sqrt()
    found = recover(model, outputs + 0.02 * size * noise, layer=2, corpus="toy:400")
    right = found.tokens == held["tokens"][:, :8]
    likely = torch.tensor([[grade == "likely" for grade in of] for of in found.grades])
    assert not any(proof for of in found.certificates for proof in of)
    assert bool((right | ~likely).all())
    assert float(likely.float().mean()) > 0.5
    assert float(found.relative_residual.median()) == pytest.approx(0.02, rel=0.2)
    monkeypatch.setattr("eval.captured.certainty.certify.BESIDE", 1)  # each prompt alone
    again = recover(model, outputs + 0.02 * size * noise, layer=2, corpus="toy:400")
    assert again.grades == found.grades
    turn = torch.linalg.qr(torch.randn(outputs.shape[2], outputs.shape[2], generator=chance))[0]
    file = tmp_path / "turned.safetensors"
    save_file({"block.2": (outputs @ turn).contiguous()}, file)
    words = ["recover", str(file), "--model", f"hf:{directories['llama']}"]
    assert main([*words, "--corpus", "toy:400", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {grade for row in rows for grade in row["grades"]} == {"unknown"}


@pytest.mark.parametrize(("more", "code"), [("", 0), (" Then he ran home.", 2)])
def test_a_longer_truth_is_refused(more, code, states, directories, opened_once, tmp_path, capsys):
    model, held = states
    texts = [model.tokenizer.decode(row) for row in held["tokens"][:1].tolist()]
    file = tmp_path / "c.safetensors"
    save_file({"block.2": held["2"][:1].contiguous()}, file)
    words = ["recover", str(file), "--model", f"hf:{directories['llama']}"]
    words += ["--corpus", "toy:400", "--format", "json"]
    assert main([*words, "--truth", *(text + more for text in texts)]) == code
    if not code:
        assert all(row["false_certain"] == 0 for row in json.loads(capsys.readouterr().out))
    else:
        assert "and begins with 'Zinc'; give" in capsys.readouterr().err


@pytest.fixture(scope="module")
def shipped():
    """A trained model of the repository, whose maps are fitted once."""
    return open_model("remnant:llama-small")


@pytest.mark.slow
@pytest.mark.parametrize("layer", [1, 2])
def test_codes_so_coarse_that_tokens_fit_by_chance_make_none_certain_and_wrong(layer, shipped):
    """Of these prompts, wrong tokens fitted alone among the rivals that are run."""
    checkpoint = shipped
    windows = held_out_text(checkpoint, "toy:400").windows("evaluation", 16, 24)
    tokens = windows[[1, 14]]
    outputs = checkpoint.model.hidden(checkpoint.model.embed(tokens), layer)
    scale = outputs.abs().amax(dim=-1, keepdim=True)
    codes = (outputs / scale).round().to(torch.int8)
    found = recover(checkpoint, codes, layer=layer, scale=scale, corpus="toy:400")
    right = found.tokens == tokens
    assert not right.all()
    graded = torch.tensor([[grade != "unknown" for grade in of] for of in found.grades])
    assert bool((right | ~graded).all())
    assert float(right.float().mean()) > 0.1


@pytest.fixture(scope="module")
def trained():
    return open_model(GOLDEN / "models" / "llama" / "step-000400")


@pytest.mark.parametrize("solver", ["alternating", "decoder"])
def test_no_token_is_likely_behind_hidden_ones_that_nothing_proves(solver, trained, nowhere_else):
    """Its own output comes near by a wrong prompt, too; the search ends before it finds one."""
    model = trained
    (batch,) = activations(model, ["The dog was sad."], 2)
    few = {"alternating": {"starts": 1, "rounds": 1}, "decoder": {"steps": 1, "budget": 1}}
    found = recover(model, batch.outputs["block.2"][:, -1:], layer=2,
                    first=batch.tokens.shape[1] - 1, corpus=str(GOLDEN / "stories"), solver=solver,
                    settings=few[solver])  # fmt: skip
    assert not found.tokens.equal(batch.tokens.cpu())
    assert set(found.grades[0]) == {"unknown"}
