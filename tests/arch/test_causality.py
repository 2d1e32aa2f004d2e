"""What sees the future is refused, whatever it is; what does not is let through."""

import pytest
import torch

from arch import LanguageModel, ModelConfig, ModelError, check_causal, save_model
from arch.__main__ import main
from arch.pretrained.pretrained import wrap_model
from tests.arch import leaks
from tests.arch.cases import MIXERS, scramble, small_model, tokenizer_json
from tests.arch.pretrained import test_decoder, test_pretrained
from tests.said import one_line


def entry(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def model_of(*mixers: str | type, context: int = 32, **settings) -> LanguageModel:
    names = tuple(m if isinstance(m, str) else entry(m) for m in mixers)
    return small_model(*names, context=context, d_model=16, d_ff=32, **settings)


@pytest.mark.parametrize("kind", leaks.LEAKS)
def test_every_leak_is_refused_and_named_beside_causal_mixers(kind):
    for context in (16, 200):
        with one_line(ModelError, f"layer 1 ({kind.__name__}) is not causal: "):
            check_causal(model_of(kind, context=context))
    with one_line(ModelError, f"layer 2 ({kind.__name__}) is not causal: "):
        check_causal(model_of("flat", kind, "attention(heads=2)", n_layers=3))
    with one_line(ModelError, f"layer 1 (Flat+{kind.__name__}) is not causal: "):
        check_causal(model_of(f"flat+{entry(kind)}"))


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        (leaks.OffByOne, "a change from position 9 on moves the output at position 8"),
        (leaks.Mean, "a change from position 4 on moves the output at position 0"),
        (leaks.AcrossBatch, "another sequence of the batch moves the output at position "),
        (leaks.OfLength, "the length of the text, 17 or 32 positions, moves the output at "),
        (leaks.Chance, "chance in evaluation mode moves the output at position 0"),
        (leaks.SharedChance, "chance in evaluation mode moves the output at position 0"),
        (leaks.ChanceOfAttention, "chance in evaluation mode moves the output at position "),
    ],
)
def test_what_is_seen_is_named(kind, seen):
    with one_line(ModelError, seen):
        check_causal(model_of(kind))


def test_a_leak_is_refused_from_its_limit_on_and_named_where_it_is_above():
    def faint(strength: float) -> LanguageModel:
        return model_of(f"{entry(leaks.Faint)}(strength={strength})")

    found = check_causal(faint(1e-4))
    assert 0.1 < found < 0.8
    assert check_causal(faint(0.9e-4 / found)) > 0.8
    with one_line(ModelError, "a change from position 9 on moves the output at position 8 by"):
        check_causal(faint(1.2e-4 / found))


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_passes_far_from_the_limit(mixer):
    for context in (1, 2, 130):
        assert check_causal(small_model(mixer, context=context)) < 0.25


@pytest.mark.parametrize("mixer", ["flat", "attention(heads=2)"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_in_other_precisions_pass(mixer, dtype):
    model = scramble(small_model(mixer, context=100)).to(dtype)
    assert check_causal(model) < 0.5


@pytest.mark.parametrize("kind", [leaks.PaddedFFT, leaks.Dropout, leaks.ForwardOnly, leaks.Opened])
def test_rounding_and_chance_are_no_leak(kind):
    check_causal(model_of(kind))


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "mamba", "recurrent_gemma"])
def test_models_of_transformers_pass(name):
    check_causal(wrap_model(test_decoder.their_model(name)))


def test_a_layer_of_transformers_that_sees_the_future_is_refused():
    model = wrap_model(test_pretrained.their_model("gpt2", dtype=torch.float32))
    mixer = model.blocks[1].token_mixer
    mixer.forward = mixer.unmasked  # pyright: ignore
    with one_line(ModelError, "layer 2 (WrappedAttention) is not causal: "):
        check_causal(model)


def test_a_leak_outside_the_mixers_is_refused():
    model = small_model()
    model.norm = torch.nn.Sequential(model.norm, leaks.Mean(8, 12))
    with one_line(ModelError, "the head is not causal: "):
        check_causal(model)
    model = small_model()
    model.with_positions = leaks.Mean(8, 12).forward
    with one_line(ModelError, "layer 0 (the embedding) is not causal: "):
        check_causal(model)


def test_numbers_that_are_not_finite_are_no_leak():
    model = small_model("attention(heads=2)")
    with torch.no_grad():
        model.embedding.weight[3] = torch.nan
        model.blocks[1].norm_token.weight[0] = torch.inf
    check_causal(model)


def test_a_mixer_takes_any_length():
    with one_line(ModelError, "layer 1 (WholeBlocks) runs 32 positions and not 17: "):
        check_causal(model_of(leaks.WholeBlocks))


def test_nothing_of_the_model_changes():
    model = model_of("flat", leaks.Dropout, "attention(heads=2)", n_layers=3)
    model.train()
    model.blocks[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes, chance = [m.training for m in model.modules()], torch.get_rng_state()
    check_causal(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.slow
def test_a_wide_model_and_a_long_context_are_run_on_few_positions():
    """As many as the work allows: the time of a test that looks at all would be minutes."""
    seen = []
    model = small_model("flat", context=4096, d_model=256, d_ff=8)
    model.blocks[0].register_forward_hook(lambda part, given, y: seen.append(y.shape[:2].numel()))
    check_causal(model)
    assert max(seen) >= 16
    assert sum(seen) < 4 * 4096
    model = LanguageModel(ModelConfig(11, 4096, 256, 1, mixers=(entry(leaks.OffByOne),), d_ff=8))
    with one_line(ModelError, "layer 1 (OffByOne) is not causal"):
        check_causal(model)


CHECKS = ("causal", "prefix and step", "Jacobian", "save and load")


def checked(capsys, *words: str) -> list[str]:
    """The checks that passed, of one that is through."""
    assert main(["check", *map(str, words)]) == 0
    return [line[:16].strip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.first(1)
@pytest.mark.parametrize("mixer", ["expanded", "identity", "flat+attention"])
def test_the_command_passes_every_mixer(mixer, capsys):
    assert checked(capsys, mixer) == [*CHECKS]


def test_the_command_opens_model_directories(tmp_path, capsys):
    save_model(tmp_path / "m", small_model(), tokenizer_json(), {})
    assert checked(capsys, tmp_path / "m") == [*CHECKS]
    theirs = test_pretrained.saved(test_decoder.their_model("bloom"), tmp_path / "bloom")
    assert checked(capsys, f"hf:{theirs}") == [*CHECKS[:-1]]


@pytest.mark.parametrize(
    ("what", "passed", "message"),
    [
        (entry(leaks.Mean), 0, "layer 1 (Mean) is not causal"),
        (entry(leaks.NoStep), 1, "mixer NoStep has a prefix of its own and no step"),
        (entry(leaks.WrongStep), 1, "layer 1 (WrongStep): step differs from forward at position 1"),
        (entry(leaks.StepInPlace), 1, "(StepInPlace): step differs from forward at posit"),
        (entry(leaks.PrefixInPlace), 1, "(PrefixInPlace): prefix differs from forward at posit"),
        (entry(leaks.OneFarPair), 2, "its output at position 50 has a derivative with respect to "
         "the input at position 52"),
        (entry(leaks.NotSaved), 3, "differ by "),
        ("nothing", 0, "there is no 'nothing'"),
        ("runs/none", 0, "runs/none: no such model directory"),
    ],
)  # fmt: skip
def test_the_command_refuses_in_one_line(what, passed, message, capsys):
    assert main(["check", what]) == 2
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == passed
    assert message in captured.err
    assert captured.err.count("\n") == 1
