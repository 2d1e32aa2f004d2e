"""What lies in a directory of transformers is read alike by both doors, or refused."""

import io
import json
import math
from importlib import import_module

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from arch import ModelError, load_pretrained
from arch.formats.llama import import_transformers
from eval.__main__ import main as evaluate
from eval.models.text import random_prompts
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_gguf import write_gguf
from tests.said import one_line

TOKENS = torch.arange(30)[None]


def without(*names):
    return lambda held: {k: v for k, v in held.items() if k not in names}


def both(directory):
    """The logits of a directory through both doors."""
    ours = import_transformers(directory).model
    theirs = load_pretrained(str(directory)).model
    with torch.no_grad():
        return ours(TOKENS), theirs(TOKENS)


LAYER = "model.layers.0"
UP = "model.layers.1.mlp.up_proj.weight"
BAD_WEIGHTS = {
    "lacks a matrix": (without(UP), UP),
    "lacks a norm": (without("model.norm.weight"), "norm"),
    "lacks the head": (without("lm_head.weight"), "head"),
    "has a name of ours": (
        lambda held: held | {"head.weight": held["lm_head.weight"] + 1},
        "unknown head.weight",
    ),
    "has one too many": (lambda held: held | {"model.extra": torch.ones(3)}, "extra"),
    "has another shape": (lambda held: held | {UP: torch.ones(30, 16)}, "(30, 16)"),
    "has a part of none": (lambda held: held | {UP: torch.zeros(0)}, "is empty, as DeepSpeed"),
    "has integers": (lambda held: held | {UP: held[UP].mul(9).to(torch.int8)}, UP),
    "has eight bits": (lambda held: held | {UP: held[UP].to(torch.float8_e4m3fn)}, UP),
    "turns keys otherwise": (
        lambda held: held | {f"{LAYER}.self_attn.rotary_emb.inv_freq": 0.2 ** torch.arange(4)},
        "turns keys otherwise",
    ),
    "has a number that is none": (lambda held: held | {UP: held[UP].log()}, UP),
    "has an infinite number": (lambda held: held | {UP: held[UP] / 0}, UP),
    "other names": (lambda held: {f"x.{k}": v for k, v in held.items()}, "unknown x"),
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_weights_that_do_not_fit_are_refused_by_both_doors(name, llama, cache):
    change, said = BAD_WEIGHTS[name]
    directory = llama(weights=change)
    opened = import_transformers, load_pretrained, lambda place: load_pretrained(cache(place))
    for read, named in zip(opened, (str(directory), str(directory), "me"), strict=True):
        with pytest.raises(ModelError) as refusal:
            read(str(directory))
        line = str(refusal.value)
        assert named in line
        assert "\n" not in line
        assert any(part in line for part in said.replace(UP, "up").split(".")) or "n_layers" in line


@pytest.mark.parametrize("layers", [1, 3, 10**6])
def test_another_number_of_layers_is_refused(layers, llama):
    directory = llama(config={"num_hidden_layers": layers})
    for read in (import_transformers, load_pretrained):
        with pytest.raises(ModelError, match="layers"):
            read(str(directory))


GOOD = {
    "as it is": {},
    "two rotations": {"config": {"rope_scaling": {"rope_type": "default", "rope_theta": 50.0}}},
    "the base beside": {"config": {"rope_parameters": KeyError, "rope_theta": 77.0}},
    "a window that a Llama has not": {"config": {"sliding_window": 4}},
    "compiled": {"weights": lambda held: {f"_orig_mod.{k}": v for k, v in held.items()}},
    "compiled, or an adapter merged": {
        "weights": lambda held: {f"base_model.model.{k}": v for k, v in held.items()}
    },
    "compiled, of a model of pictures": {
        "weights": lambda held: {f"language_model.{k}": v for k, v in held.items()}
    },
    "in a module of training": {"weights": lambda held: {f"model.{k}": v for k, v in held.items()}},
    "without its head": {
        "tie_word_embeddings": True,
        "weights": lambda held: {n.removeprefix("model."): t for n, t in held.items()},
    },
    "in parallel": {"weights": lambda held: {f"module._orig_mod.{k}": v for k, v in held.items()}},
    "with frequencies": {
        "weights": lambda held: (
            held | {"model.layers.0.self_attn.rotary_emb.inv_freq": 0.1 ** torch.arange(4)}
        )
    },
    "in three precisions": {
        "weights": lambda held: (
            held | {UP: held[UP].half(), "model.norm.weight": held["model.norm.weight"].bfloat16()}
        )
    },
    "the length of a rotation that nothing scales": {
        "config": {"original_max_position_embeddings": 16}
    },
    "an activation's other name": {"config": {"hidden_act": "swish"}},
    "causal, as it says": {"config": {"is_causal": True}},
    "outputs as tuples": {"config": {"return_dict": False}},
    "tied": {"tie_word_embeddings": True},
    "tied, by the head's name": {
        "tie_word_embeddings": True,
        "weights": lambda held: {
            n.replace("model.embed_tokens", "lm_head"): t for n, t in held.items()
        },
    },
    "tied beside a head of its own": {"config": {"tie_word_embeddings": True}},
    "qwen3": {"family": "Qwen3", "rms_norm_eps": 1e-5, "head_dim": 8},
}


@pytest.mark.parametrize("name", GOOD)
def test_one_directory_is_one_model_through_both_doors(name, llama):
    directory = llama(**GOOD[name], initializer_range=0.5)
    ours, theirs = both(directory)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    judge = transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
    if not name.startswith(("in parallel", "compiled", "outputs")):  # which transformers cannot
        torch.testing.assert_close(ours, judge(TOKENS).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "GPT2", "Qwen3"])
def test_a_model_whose_configuration_turns_off_the_causal_mask_is_refused(family, llama):
    directory = llama(family=family, config={"is_causal": False}, initializer_range=0.5)
    with pytest.raises(ModelError, match="is not causal"):
        load_pretrained(str(directory))
    with pytest.raises(ModelError, match=r"is_causal is False|model_type|head_dim"):
        import_transformers(directory)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("method", ["unknown", "fp8", "bitsandbytes"])
def test_codes_whose_scale_or_quantisation_is_not_known_are_no_weights(kind, method, llama):
    directory = llama(
        config={"quantization_config": {"quant_method": method}},
        weights=lambda held: held | {UP: held[UP].mul(9).to(kind)},
    )
    with pytest.raises(ModelError) as refusal:
        load_pretrained(str(directory))
    assert str(directory) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_shards_are_those_that_the_index_lists(llama):
    directory = llama()
    held = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = {name: f"model-{1 + number % 2}.safetensors" for number, name in enumerate(held)}
    for file in set(names.values()):
        save_file({n: t for n, t in held.items() if names[n] == file}, directory / file)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    ours, theirs = both(directory)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    save_file(held, directory / "model.safetensors")
    for read in (import_transformers, load_pretrained):
        with pytest.raises(ModelError, match=r"has model.safetensors and, by its index, model-1"):
            read(str(directory))
    (directory / "model.safetensors").unlink()
    inexact = {k: file for k, file in names.items() if k != UP} | {"more": "model-1.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": inexact}))
    assert all(torch.equal(logits, ours) for logits in both(directory))
    for wrong in ({**names, UP: "model-3.safetensors"}, {**names, UP: "../m/model-1.safetensors"},
                  {}, [1]):  # fmt: skip
        index.write_text(json.dumps({"weight_map": wrong}))
        for read in (import_transformers, load_pretrained):
            with pytest.raises(ModelError, match="index"):
                read(str(directory))


ROPE = {"rope_type": "default", "rope_theta": 1e4}
VALUES = [
    ("num_key_value_heads", "1"), ("num_attention_heads", 0), ("hidden_size", "16"),
    ("hidden_size", 10**12), ("hidden_size", True), ("max_position_embeddings", 24.0),
    ("num_hidden_layers", None), ("num_hidden_layers", "2"), ("vocab_size", 10**9),
    ("tie_word_embeddings", "false"), ("rope_parameters", ROPE | {"rope_theta": None}),
    ("rope_parameters", ROPE | {"rope_theta": "1e4"}), ("rope_parameters", [1]),
    ("hidden_act", "silo"), ("hidden_act", 3), ("model_type", 5), ("intermediate_size", -40),
    ("rms_norm_eps", "small"), ("layer_types", 5), ("layer_types", [["full_attention"], [1]]),
    ("dtype", "float17"), ("quantization_config", "int4"), ("max_position_embeddings", 10**9),
    ("rope_parameters", ROPE | {"rope_type": "spiral"}), ("attention_bias", None),
    ("sliding_window", 0), ("sliding_window", 4.0),
    ("rope_parameters", ROPE | {"rope_type": None}),
    ("quantization_config", {"quant_method": "unknown"}),
    ("rope_parameters", {"full_attention": ROPE | {"rope_theta": -5.0}}),
    ("rope_parameters", {"full_attention": ROPE | {"rope_type": "spiral"}}),
    ("logit_scale", math.nan), ("quantization_config", {"bits": 4, "group_size": 64}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), VALUES)
@pytest.mark.parametrize(
    "words", ["eval loss hf:{} --text abc", "arch check hf:{}", "arch import {} out"]
)
def test_a_value_of_another_type_is_one_line_with_its_name(
    name, value, words, llama, capsys, tmp_path
):
    directory = llama(config={name: value})
    room, *given = words.format(directory).split()
    given = [word if word != "out" else str(tmp_path / "out") for word in given]
    assert import_module(f"{room}.__main__").main(given) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert name.replace("rope_parameters", "rope") in line
    assert not (tmp_path / "out").exists()


UNKNOWN = [
    {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True},
    {"use_sliding_window": True, "sliding_window": 4},
    {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
    {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": {"factor": 2.0}},
    {"rope_parameters": {"full_attention": ROPE}},
    {"layer_types": ["sliding_attention", "full_attention"]},
    {"position_embedding_type": "alibi"},
    {"logit_scale": 0},
    {"rope_interleaved": True},
    {"final_logit_softcapping": 30.0},
    {"quantization_config": {"bits": 4}},
    {"head_dim": KeyError},  # transformers takes 128 for a Qwen3
]


@pytest.mark.parametrize("config", UNKNOWN, ids=str)
def test_a_setting_that_an_import_does_not_know_is_refused(config, llama):
    directory = llama(family="Qwen3", rms_norm_eps=1e-5, head_dim=8, config=config)
    with pytest.raises(ModelError) as refusal:
        import_transformers(directory)
    named = (
        *config,
        "rope_type",
        "factor",
        "full_attention",
        "partial_rotary",
        "layer_types",
        "max_window_layers",
    )
    assert any(name in str(refusal.value) for name in named)


def test_of_two_bases_of_a_rotation_the_one_that_is_read_is_said(llama, capsys):
    """As where an older transformers saves its own default beside what a newer one wrote."""
    inner = {"rope_type": "default", "rope_theta": 77.0}
    expected, _ = both(llama(rope_parameters=inner))
    assert "rope_theta" not in capsys.readouterr().err
    for logits in both(llama(rope_parameters=inner, config={"rope_theta": 10000.0})):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    line = "rope_theta is 10000, and in rope_parameters 77, which alone is read"
    assert capsys.readouterr().err.count(line) == 2


@pytest.mark.parametrize("name", ["factor", "low_freq_factor"])
def test_a_rotation_that_is_scaled_needs_its_type(name, llama):
    """Without one transformers scales nothing, where it once refused it."""
    directory = llama(config={"rope_scaling": {name: 4.0}, "rope_parameters": KeyError})
    with one_line(ModelError, f"a rotation has {name} 4.0 and no rope_type; name the type"):
        load_pretrained(str(directory))


EVIL = "from pathlib import Path\nPath({marker!r}).write_text('ran')\n"


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_of_a_directory_is_neither_run_nor_asked_about(
    where, llama, tmp_path, monkeypatch, capfd
):
    directory = llama()
    marker = tmp_path / "marker"
    for module in ("configuration_mine", "modeling_mine", "tokenization_mine"):
        (directory / f"{module}.py").write_text(EVIL.format(marker=str(marker)))
    path = directory / where
    known = json.loads(path.read_text()) if path.exists() else {}
    if where != "config.json":
        (directory / "tokenizer.json").unlink()  # which needs no code
    classes = {"AutoConfig": "configuration_mine.C", "AutoModelForCausalLM": "modeling_mine.M",
               "AutoTokenizer": ["tokenization_mine.T", None]}  # fmt: skip
    more = {"model_type": "mine"} if where == "config.json" else {"tokenizer_class": "T"}
    path.write_text(json.dumps(known | {"auto_map": classes} | more))
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n" * 9))
    assert evaluate(["loss", f"hf:{directory}", "--text", "abc"]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert "not run" in said.err.strip().splitlines()[-1]
    assert not marker.exists()


@pytest.mark.parametrize("implementation", ["flash_attention_2", "mine/kernel"])
@pytest.mark.parametrize("setting", ["attn_implementation", "_attn_implementation"])
def test_attention_that_a_configuration_names_is_not_fetched(setting, implementation, llama):
    expected, _ = both(llama())
    for logits in both(llama(config={setting: implementation})):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_code_beside_a_gguf_file_is_neither_run_nor_asked_about(tmp_path, monkeypatch, capfd):
    write_gguf(tmp_path / "tiny.gguf")
    marker = tmp_path / "marker"
    (tmp_path / "mine.py").write_text(EVIL.format(marker=str(marker)))
    classes = {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M",
               "AutoTokenizer": ["mine.T", None]}  # fmt: skip
    for file in ("config.json", "tokenizer_config.json"):
        content = {"model_type": "mine", "auto_map": classes, "tokenizer_class": "T"}
        (tmp_path / file).write_text(json.dumps(content))
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n" * 9))
    code = evaluate(["loss", f"hf:{tmp_path / 'tiny.gguf'}", "--text", "abc"])
    said = capfd.readouterr().out
    assert "[y/N]" not in said
    assert code == 0 or (code == 2 and said == "")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("family", "positions"),
    [("GPT2", 10**9), ("GPT2", 2**24), ("OPT", 10**9), ("OPT", 2**24), ("GPTJ", 10**9)],
)
def test_positions_are_compared_before_memory_is_taken(family, positions, llama):
    name = "max_position_embeddings" if family == "OPT" else "n_positions"
    directory = llama(family=family, config={name: positions})
    with pytest.raises(ModelError, match=name):
        load_pretrained(str(directory))


def test_random_prompts_hold_ids_that_a_token_has():
    known = json.loads(byte_tokenizer().to_str())
    vocabulary = known["model"]["vocab"]
    for number, word in enumerate(list(vocabulary)[:200]):
        vocabulary[word] += 1000 * number
    tokenizer = Tokenizer.from_str(json.dumps(known))
    drawn = {token for prompt in random_prompts(tokenizer, 40, 20) for token in prompt.tokens}
    assert drawn <= set(tokenizer.get_vocab().values())
    assert max(drawn) > tokenizer.get_vocab_size()


def test_a_pickle_is_not_read(llama):
    directory = llama()
    torch.save({"a": torch.ones(2)}, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    for read in (import_transformers, load_pretrained):
        with pytest.raises(ModelError, match="pytorch_model"):
            read(str(directory))


def test_a_pad_among_the_rows_that_no_token_has_is_left_out(llama, capsys):
    directory = llama(vocab_size=700, pad_token_id=699)
    read = load_pretrained(str(directory)).model
    assert "700 rows" in capsys.readouterr().err
    judge = transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
    with torch.no_grad():
        torch.testing.assert_close(read(TOKENS), judge(TOKENS).logits[..., :258])


def test_a_pad_that_a_model_has_no_row_for_is_left_out(llama):
    directory = llama()
    (directory / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    ours, theirs = both(directory)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_an_adapter_beside_the_weights_is_refused(llama):
    directory = llama()
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    for read in (import_transformers, load_pretrained):
        with pytest.raises(ModelError, match="adapter_config"):
            read(str(directory))


def test_ids_with_a_gap_keep_their_rows(llama, tmp_path):
    known = json.loads(byte_tokenizer().to_str())
    vocabulary = known["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    vocabulary[last] += 5
    size = 1 + vocabulary[last]
    for entry in known["added_tokens"]:
        if entry["content"] == last:
            entry["id"] = vocabulary[last]
    ours, theirs = both(llama(tokenizer=Tokenizer.from_str(json.dumps(known)), vocab_size=size))
    assert ours.shape[-1] == theirs.shape[-1] == size
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
