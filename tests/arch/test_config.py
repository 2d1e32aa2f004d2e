"""The configuration and the patterns in it: what they say no to, and how."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch import nn

from arch import LanguageModel, ModelConfig, ModelError, load_model, save_model
from arch.mixers import Attention, Flat, Parallel
from arch.model import matrices
from tests.arch.cases import tokenizer_json
from tests.said import one_line


def test_json_gives_the_same_configuration_back():
    config = ModelConfig(
        mixers=("attention(heads=2)+flat", "kernel(size=3)"), norm="rmsnorm", tied=True, d_ff=7
    )
    assert ModelConfig.from_json(config.to_json()) == config
    assert set(json.loads(config.to_json())) == {f.name for f in dataclasses.fields(ModelConfig)}


def test_a_pattern_is_cycled_over_the_depth():
    config = ModelConfig(16, 8, 8, 5, mixers=("attention(heads=2)", "flat", "parallel"))
    kinds = [type(block.token_mixer) for block in LanguageModel(config).blocks]
    assert kinds == [Attention, Flat, Parallel, Attention, Flat]


def test_a_pattern_may_be_one_name_and_its_arguments_are_the_mixers():
    assert ModelConfig(mixers="flat").mixers == ("flat",)  # pyright: ignore[reportArgumentType]
    split = ("attention(heads=4", "qk_norm=true)", "flat")  # what YAML makes of a list of two
    assert ModelConfig(mixers=split).mixers == ("attention(heads=4, qk_norm=true)", "flat")
    assert ModelConfig(n_layers=2, mixers=split).mixers[1] == "flat"  # one for each block
    config = ModelConfig(16, 8, 8, 1, mixers=("parallel(branches=3, activation=gelu, bias=False)",))
    mixer = LanguageModel(config).blocks[0].token_mixer
    assert isinstance(mixer, Parallel)
    assert (mixer.mix.weight.shape, mixer.activation, mixer.mix.bias) == ((3, 8, 8), "gelu", None)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("sizes=[1, 2], pair=(3, 4)", ([1, 2], (3, 4), False, "auto", "", "")),
        ("sizes=none, any_of=[1], rate=2", (None, (), [1], 2, "", "")),
        ("any_of=true, rate=auto", (None, (), True, "auto", "", "")),
        ("word=none, label=none", (None, (), False, "auto", "none", None)),
        ("word=true, label=false", (None, (), False, "auto", "true", "false")),
    ],
)
def test_a_mixer_of_ones_own_takes_arguments_of_many_kinds(arguments, given):
    entry = f"tests.arch.leaks.Annotated({arguments})"
    split = tuple(entry.split(", "))  # as YAML does
    model: Any = LanguageModel(ModelConfig(16, 8, 8, 1, mixers=split))
    assert model.blocks[0].token_mixer.given == given


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("flatt", "mixer 'flatt': there is no 'flatt'; did you mean 'flat'? allowed: attention, "),
        ("flat(heads=2)", "mixer 'flat(heads=2)': flat has no argument 'heads'; allowed: bias"),
        ("identity(x=1)", "mixer 'identity(x=1)': identity has no argument 'x'; allowed: none"),
        ("attention(heads=two)", "heads is 'two'; allowed: a whole number"),
        ("attention(heads=2.0)", "heads is 2.0; allowed: a whole number"),
        ("attention(heads=true)", "heads is True; allowed: a whole number"),
        ("attention(kv_heads=x)", "kv_heads is 'x'; allowed: a whole number or none"),
        ("attention(rope_base=x)", "rope_base is 'x'; allowed: a number"),
        ("flat(bias=1)", "bias is 1; allowed: true or false"),
        ("parallel(activation=relu)", "activation is 'relu'; allowed: none or gelu"),
        ("attention(heads=3)", "attention: heads=3 must divide d_model=8 into even parts"),
        ("attention(heads=8)", "attention: heads=8 must divide d_model=8 into even parts"),
        ("attention(heads=0)", "attention: heads=0 must divide d_model=8 into even parts"),
        ("attention(heads=4, kv_heads=3)", "attention: kv_heads=3 must divide heads=4"),
        ("attention(heads=4, kv_heads=0)", "attention: kv_heads=0 must divide heads=4"),
        ("attention(heads=2, rope_base=0)", "attention: rope_base=0 must be above 0"),
        ("headed(heads=3)", "headed: heads=3 must divide d_model=8"),
        ("headed(heads=0)", "headed: heads=0 must divide d_model=8"),
        ("expanded(factor=0)", "expanded: factor is 0; it must be a whole number of at least 1"),
        ("parallel(branches=0)", "parallel: branches is 0; it must be a whole number of at"),
        ("kernel(size=0)", "kernel: size is 0; it must be a whole number of at least 1"),
        ("rectangular(factor=0)", "rectangular: factor is 0; it must be a whole number of at le"),
        ("tests.arch.leaks.Annotated(sizes=3)", "sizes is 3; allowed: list[int] or none"),
        ("tests.arch.leaks.Annotated(pair=3)", "pair is 3; allowed: tuple[int, ...]"),
        ("tests.arch.leaks.Annotated(any_of=3)", "any_of is 3; allowed: "),
        ("tests.arch.leaks.Annotated(any_of=word)", "any_of is 'word'; allowed: "),
        ("tests.arch.leaks.Annotated(rate=3)", "rate is 3; allowed: 1 or 2 or auto"),
        ("tests.arch.leaks.Annotated(rate=true)", "rate is True; allowed: 1 or 2 or auto"),
        ("tests.arch.leaks.Annotated(word=3)", "word is 3; allowed: a word"),
        ("tests.arch.leaks.Annotated(scale=3)", "write * before scale in __init__"),
        ("tests.arch.leaks.Annotated(context=3)", "allowed: sizes, pair, any_of, rate, word, l"),
        ("tests.arch.leaks.Unstarted", "nothing says how weight of Unstarted starts"),
        ("tests.arch.leaks.Lazy", "its o_proj.weight is no tensor of known shape"),
        ("tests.arch.leaks.Counting", "its _extra_state is no tensor of known shape"),
        ("tests.arch.leaks.LEAKS", "tests.arch.leaks has no TokenMixer called LEAKS"),
        ("nowhere.Mixer", "nowhere cannot be imported (No module named 'nowhere'); run where nowh"),
        *((t, f"mixer {t!r} cannot be read; write name, name(key=value, ...), or several")
          for t in ("", "flat(2)", "flat-flat", "flat(", "flat(bias=-x)", "flat(bias=not)", "+",
                    "attention(heads=4, heads=2)")),
        ("toeplitz(heads=4, size=3)", "toeplitz: size is 3"),
    ],
)  # fmt: skip
def test_a_pattern_that_does_not_fit_says_so(entry, message):
    with one_line(ModelError, message):
        LanguageModel(ModelConfig(16, 8, 8, 1, mixers=(entry,)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0; it must be a whole number of at least 1"),
        ({"vocab_multiple": 0}, "vocab_multiple is 0; it must be a whole number of at least 1"),
        ({"context": 1.5}, "context is 1.5; it must be a whole number of at least 1"),
        ({"d_model": "8"}, "d_model is '8'; it must be a whole number of at least 1"),
        ({"n_layers": True}, "n_layers is True; it must be a whole number of at least 1"),
        ({"d_ff": 0}, "d_ff is 0; it must be a whole number of at least 1"),
        ({"mixers": ()}, "mixers is (); give a list, for example [flat]"),
        ({"mixers": ("flat", "identity")}, "mixers has 2 entries for n_layers=1"),
        ({"mixers": "flat, identity"}, "mixers has 2 entries for n_layers=1"),
        ({"mixers": 3}, "mixers is 3; give a list, for example [flat]"),
        ({"mixers": (3,)}, "mixers holds 3; write a name, for example flat or gelu"),
        ({"channel_mixer": "relu"}, "channel_mixer 'relu': there is no 'relu'; did you mean"),
        ({"channel_mixer": "gelu+swiglu"}, "channel_mixer 'gelu+swiglu' joins 2; a block has one"),
        ({"channel_mixer": None}, "channel_mixer holds None; write a name"),
        ({"norm": "batchnorm"}, "norm is 'batchnorm'; allowed: layernorm, rmsnorm"),
        ({"norm_eps": 0}, "norm_eps is 0; it must be a number above 0"),
        ({"final_norm": "no"}, "final_norm is 'no'; allowed: True, False"),
        ({"tied": 1}, "tied is 1; allowed: True, False"),
        ({"init": "zeros"}, "init is 'zeros'; allowed: default, reference"),
        ({"embedding_std": 0.0}, "embedding_std is 0.0; it must be a number above 0"),
        ({"embedding_std": float("nan")}, "embedding_std is nan; it must be a number above 0"),
    ],
)
def test_a_field_out_of_range_says_so(settings, message):
    sizes = {"vocab_size": 16, "context": 8, "d_model": 8, "n_layers": 1}
    with one_line(ModelError, message):
        LanguageModel(ModelConfig(**sizes | settings))


def test_parameters_of_a_mixers_own_start_decay_and_load_by_rule(tmp_path):
    config = ModelConfig(11, 12, 8, 1, mixers=("tests.arch.leaks.Scaled",))
    model: Any = LanguageModel(config)
    mixer = model.blocks[0].token_mixer
    assert torch.equal(mixer.matrix, torch.eye(8))
    found = {id(p) for p in matrices(model)}
    assert id(mixer.matrix) in found
    assert id(mixer.scale) not in found
    shared = [nn.Linear(8, 8, bias=False)] * 2
    assert matrices(nn.Sequential(*shared)) == [shared[0].weight]
    with torch.no_grad():
        mixer.matrix.fill_(3)
    save_model(tmp_path / "m", model, tokenizer_json(), {})
    loaded: Any = load_model(tmp_path / "m", trust_code=True).model
    assert torch.equal(loaded.blocks[0].token_mixer.matrix, mixer.matrix)
