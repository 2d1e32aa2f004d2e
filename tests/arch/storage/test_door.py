"""Model directories that somebody else made: read rightly, or refused at once in one short line."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import nn
from torch.distributed import DistBackendError  # pyright: ignore[reportPrivateImportUsage]

from arch import (
    LanguageModel,
    ModelConfig,
    ModelError,
    add_to_meta,
    check_causal,
    check_model,
    describe,
    load_model,
    save_model,
)
from arch.__main__ import main
from arch.errors import is_out_of_memory, printable, show_value
from arch.mixers.base import TokenMixer
from arch.pretrained.pretrained import load_pretrained
from tests.arch.cases import byte_tokenizer, random_tokens, small_model, tokenizer_json
from tests.said import one_line

MIXERS = ("flat", "attention(heads=2)")


@pytest.fixture
def directory(tmp_path):
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = ModelConfig(
        tokenizer.get_vocab_size(), 16, 8, 2, mixers=("flat", "attention(heads=2)")
    )
    return save_model(tmp_path / "m", LanguageModel(config), tokenizer.to_str(), {"step": 4})


def replace(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def refusal(words: list[str], capsys) -> str:
    """The one short line in which a command refuses, within a second."""
    start = time.process_time()
    assert main(words) == 2
    assert time.process_time() - start < 3  # torch loads what a fake tensor needs, once
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    assert len(line) < 900
    assert line.isprintable()
    return line


LONG = "9" * 4000
CONFIGS = {
    "n_layers": [10**6, 10**30, 1e30, True, int(LONG), 0, -1, "2", None, 3],
    "d_model": [10**9, 4, 16],
    "context": [10**12, 2**24, 64],
    "vocab_size": [2**26, 300, 2**40],
    "vocab_multiple": [2**16, 0, 10**9],
    "d_ff": [2**22, 10**10, 0, True],
    "norm_eps": [float("nan"), float("inf"), 10**400, 1e308, 0, "1e-5"],
    "embedding_std": [10**400, float("nan"), -1],
    "tied": [1, "no", None],
    "final_norm": [0],
    "norm": ["x" * 100_000, ["layernorm"]],
    "channel_mixer": ["os.system", "gelu+gelu", 5, "gelu(bias=" + "1" * 500 + ")"],
    "mixers": [
        ["flat"] * 10**5, ["+".join(["flat"] * 3000)], ["+".join(["flat"] * 100)], ["(" * 100_000],
        ["(" * 500], [["flat"]], [], None, [""], ["flat\0"], ["\x1b]0;owned\x07\u202e"], 5,
        ["parallel(branches=1000000000)"], ["expanded(factor=100000)"], ["kernel(size=9**9**9)"],
        ["attention(heads=1000000)"], ["attention(heads=2, rope_base=1e999)"],
        ["attention(heads=2, rope_base=" + "9" * 400 + ")"], ["flat(1)"], ["flat(**{'a': 1})"],
        ["a..b"], ["(lambda: 1)()"], ["__import__('os').system"],
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in CONFIGS.items() for value in values],
    ids=lambda value: printable(value, 24),
)
def test_a_configuration_is_refused_at_once(name, value, directory, capsys):
    replace(directory / "config.json", **{name: value})
    assert str(directory) in refusal(["describe", str(directory)], capsys)


TEXTS = {
    "nothing": "",
    "a list": "[]",
    "null": "null",
    "deep": "[" * 100_000,
    "deep objects": '{"a": ' * 5000,
    "twice": '{"n_layers": 1, "n_layers": 2}',
    "a long name": '{"' + "x" * 200_000 + '": 1}',
    "a name that turns": '{"\\u202e": 1}',
    "a long number": '{"n_layers": ' + "9" * 100_000 + "}",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_what_is_no_configuration_is_refused_at_once(kind, directory, capsys):
    (directory / "config.json").write_text(TEXTS[kind])
    assert "config.json" in refusal(["describe", str(directory)], capsys)


META = {
    "name": [5, None, ["a"], True],
    "step": ["abc", 10**400, -1, True, 1.5, None],
    "val_loss": ["x", float("nan"), [1.0], False],
    "valid_fraction": ["x", {}],
    "model_id": [5, ["a"]],
    "data": [{"path": "x"}],
    "schema": [9, None, [1]],
    "tokenizer_sha256": [5, None, "0"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in META.items() for value in values]
)
def test_fields_that_are_no_provenance_are_refused(name, value, directory, capsys):
    replace(directory / "meta.json", **{name: value})
    line = refusal(["describe", str(directory)], capsys)
    assert "meta.json" in line
    assert name.split("_")[0] in line
    if name in ("schema", "tokenizer_sha256"):  # which who saves a model does not give
        return
    saved = load_model(save_model(directory.parent / "n", small_model(), tokenizer_json(), {}))
    with one_line(ModelError, "meta.json: "):
        save_model(saved.path, saved.model, saved.tokenizer_json, {name: value})
    with one_line(ModelError, "meta.json: "):
        add_to_meta(saved.path, {name: value})
    assert load_model(saved.path).meta == saved.meta


@pytest.mark.parametrize("kind", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_weights_of_other_types_are_refused(kind, directory, capsys):
    weights = load_file(directory / "model.safetensors")
    name = "blocks.0.token_mixer.mix.weight"
    save_file(weights | {name: weights[name].to(kind)}, directory / "model.safetensors")
    for command in ("describe", "check"):
        assert name in refusal([command, str(directory)], capsys)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_floats_keep_their_type(kind, directory):
    weights = load_file(directory / "model.safetensors")
    save_file({n: w.to(kind) for n, w in weights.items()}, directory / "model.safetensors")
    model = load_model(directory).model
    assert {weight.dtype for weight in model.parameters()} == {kind}
    assert check_causal(model) < 1


def test_weights_of_two_types_are_read_in_the_wider(directory):
    tokens = torch.arange(12)[None]
    expected = load_model(directory).model.double()(tokens)
    weights = load_file(directory / "model.safetensors")
    name = "blocks.1.token_mixer.q_proj.weight"
    save_file(weights | {name: weights[name].double()}, directory / "model.safetensors")
    assert torch.equal(load_model(directory).model(tokens), expected)


@pytest.mark.parametrize("theirs", [False, True])
def test_an_open_model_stays_what_it_was_when_its_file_is_written_in_place(
    theirs, directory, llama
):
    """Its weights were views of the file: `cp` of a newer one over it changed them."""
    place = llama() if theirs else directory
    model = (load_pretrained(str(place)) if theirs else load_model(place)).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    file = place / "model.safetensors"
    content = save({name: w + 1 for name, w in load_file(file).items()})
    with file.open("r+b") as opened:
        opened.write(content)
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(value, directory, capsys):
    weights = load_file(directory / "model.safetensors")
    weights["embedding.weight"][5, 3] = value
    save_file(weights, directory / "model.safetensors")
    assert "embedding.weight" in refusal(["check", str(directory)], capsys)


class Masked(TokenMixer):
    """Attention by PyTorch's own module, with its mask as a buffer."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, 2, batch_first=True)
        self.register_buffer("mask", torch.full((context, context), -torch.inf).triu(1))

    def forward(self, x):
        seen = self.get_buffer("mask")[: x.shape[1], : x.shape[1]]
        return self.attention(x, x, x, attn_mask=seen, need_weights=False)[0]


def test_a_mask_of_minus_infinity_is_no_weight(tmp_path):
    """Such models were trained, and could never be opened."""
    model = small_model("tests.arch.storage.test_door.Masked")
    loaded = load_model(save_model(tmp_path, model, tokenizer_json(), {}), trust_code=True).model
    tokens = random_tokens(model)
    assert torch.equal(loaded(tokens), model(tokens))
    model.blocks[1].token_mixer.mask[3, 0] = torch.nan
    save_model(tmp_path, model, tokenizer_json(), {})
    with one_line(ModelError, "blocks.1.token_mixer.mask"):
        load_model(tmp_path, trust_code=True)


def test_a_head_of_its_own_is_not_dropped_where_a_configuration_says_tied(directory, capsys):
    replace(directory / "config.json", tied=True)
    assert "tied is True, the weights have a head" in refusal(["check", str(directory)], capsys)


class Hungry(TokenMixer):
    """Has no memory for less than the whole context."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()
        self.context = context

    def forward(self, x):
        if x.shape[1] < self.context:
            raise RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"
            )
        return x


def test_memory_that_ran_out_is_not_the_mixers_fault():
    model = LanguageModel(
        ModelConfig(32, 16, 8, 1, mixers=("tests.arch.storage.test_door.Hungry",))
    )
    with pytest.raises(RuntimeError) as caught:
        check_causal(model)
    assert is_out_of_memory(caught.value)
    assert not isinstance(caught.value, ModelError)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        DistBackendError("NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'"),
    ],
    ids=str,
)
def test_a_gpu_that_is_full_is_out_of_memory(error):
    """It was a traceback, or a machine that is gone."""
    assert is_out_of_memory(error)


def test_sizes_are_compared_before_a_model_is_built(directory, monkeypatch):
    replace(directory / "config.json", n_layers=3)
    monkeypatch.setattr("arch.storage.weights.LanguageModel", None)  # cannot be called
    for read in (load_model, check_model):
        with pytest.raises(ModelError, match="n_layers is 3"):
            read(directory)


def test_a_deep_model_is_described_by_its_kinds_of_blocks():
    deep = ModelConfig(64, 16, 8, 3000, mixers=("flat", "attention(heads=2)"))
    shallow = describe(ModelConfig(64, 16, 8, 2, mixers=("flat", "attention(heads=2)")))
    start = time.monotonic()
    parts, cost, _ = describe(deep)
    assert time.monotonic() - start < 3
    blocks = {part.name: part for part in shallow.parts if part.name.startswith("blocks")}
    for part in parts[1:-2]:
        _, number, name = part.name.split(".")
        like = blocks[f"blocks.{int(number) % 2}.{name}"]
        assert part[1:] == like[1:]
    assert cost.parameters == 1500 * sum(part.cost.parameters for part in blocks.values()) + sum(
        part.cost.parameters for part in shallow.parts if part.name not in blocks
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – ünï 漢", "plain – ünï 漢"),
        ("\x1b[31m\r\n", r"\x1b[31m\r\n"),
        ("a\u202eb", r"a\u202eb"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_spelt_out(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("value", ["x" * 10**6, "\ue000" * 10**6, 1 << 40_000, [0] * 10**5],
                         ids=type)  # fmt: skip
def test_a_long_value_is_shown_in_a_few_letters(value):
    assert len(show_value(value)) <= 90
