"""GGUF files of other families than Llama: transformers, which wrote the weights, is the judge."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from arch import ModelError, load_pretrained
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import their_model
from tests.arch.pretrained.test_pretrained import saved
from tests.said import one_line

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

V, D, T = 259, 32, 64
pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = {  # in transformers and in a file
    "model.layers.": "blk.", "model.embed_tokens": "token_embd", "lm_head": "output",
    "model.embedding_norm": "token_embd_norm", "model.norm": "output_norm",
    "operator_norm": "attn_norm", "input_layernorm": "attn_norm", "feed_forward.": "ffn_",
    "post_attention_layernorm": "post_attention_norm", "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm", "self_attn.out_proj": "attn_output",
    "self_attn.o_proj": "attn_output", "self_attn.": "attn_", "mlp.": "ffn_", "_proj": "",
    "ffn_w1": "ffn_gate", "ffn_w2": "ffn_down", "ffn_w3": "ffn_up", ".conv.conv": ".shortconv.conv",
    ".conv.in": ".shortconv.in_proj", ".conv.out": ".shortconv.out_proj",
    "linear_attn.in_qkv": "attn_qkv", "linear_attn.in_z": "attn_gate",
    "linear_attn.in_a": "ssm_alpha", "linear_attn.in_b": "ssm_beta", "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm", "linear_attn.out": "ssm_out",
    "transformer.h.": "blk.", "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv", "attn.c": "attn_output", "ffn_c_fc": "ffn_up", "ffn_c": "ffn_down",
}  # fmt: skip
NAMES_OF_BLOOM = {
    "transformer.word_embeddings_layernorm": "token_embd_norm",
    "transformer.word_embeddings": "token_embd", "post_attention_layernorm": "ffn_norm",
    "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}  # fmt: skip
SIZES = {"hidden_size": D, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": V,
         "num_key_value_heads": 2, "max_position_embeddings": T,
         "initializer_range": 0.2}  # fmt: skip
COMMON = {"context_length": T, "embedding_length": D, "attention.head_count": 4}
LLAMA_LIKE = COMMON | {"feed_forward_length": 48, "rope.freq_base": 10000.0,
                       "attention.layer_norm_rms_epsilon": 1e-6}  # fmt: skip
EXPERTS = {"num_hidden_layers": 2, "num_experts": 3, "num_experts_per_tok": 2}
MOE = LLAMA_LIKE | {"block_count": 2, "attention.head_count_kv": 2, "expert_count": 3,
                    "expert_used_count": 2}  # fmt: skip
ROTATED = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
           "mrope_section": [2, 1, 1], "mrope_interleaved": True}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gpt2": (
        "gpt2",
        {"vocab_size": V, "n_embd": D, "n_layer": 2, "n_head": 4, "n_positions": T,
         "bos_token_id": 256, "eos_token_id": 256},
        COMMON | {"block_count": 2, "feed_forward_length": 4 * D,
                  "attention.layer_norm_epsilon": 1e-5},
    ),
    "bloom": (  # llama.cpp's converter always says the last three, which transformers does not read
        "bloom",
        {"vocab_size": V, "hidden_size": D, "n_layer": 2, "n_head": 4, "initializer_range": 0.2},
        COMMON | {"block_count": 2, "attention.layer_norm_epsilon": 1e-5, "context_length": 2048,
                  "feed_forward_length": 4 * D, "attention.head_count_kv": 4},
    ),
    "lfm2": (
        "lfm2",
        SIZES | {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"],
                 "block_auto_adjust_ff_dim": False, "norm_eps": 1e-6,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        LLAMA_LIKE | {"block_count": 2, "attention.head_count_kv": [0, 2], "shortconv.l_cache": 3,
                      "vocab_size": V},
    ),
    "qwen35": (
        "qwen3_5_text",
        SIZES | {"num_hidden_layers": 4, "head_dim": 16, "linear_key_head_dim": 8,
                 "linear_value_head_dim": 8, "linear_num_key_heads": 2,
                 "linear_num_value_heads": 2, "rope_parameters": ROTATED},
        LLAMA_LIKE | {"block_count": 5, "nextn_predict_layers": 1, "attention.head_count_kv": 2,
                      "attention.key_length": 16, "attention.value_length": 16,
                      "rope.dimension_count": 8, "rope.dimension_sections": [2, 1, 1, 0],
                      "ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2,
                      "ssm.time_step_rank": 2, "ssm.inner_size": 16, "full_attention_interval": 4},
    ),
    "qwen2moe": (  # of experts transformers reads the number alone
        "qwen2_moe",
        SIZES | EXPERTS | {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
        MOE | {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40},
    ),
    "qwen3moe": (
        "qwen3_moe",
        SIZES | EXPERTS | {"moe_intermediate_size": 24, "head_dim": 8, "norm_topk_prob": True},
        MOE | {"expert_feed_forward_length": 24, "attention.key_length": 8},
    ),
}  # fmt: skip


def write_family(file, family: str, lacks: str = "", width: int = D):
    """A random model of a family, of any width, as a GGUF file without a setting; the model."""
    kind, sizes, settings = FAMILIES[family]
    changes = {name: width for name in ("n_embd", "hidden_size") if name in sizes}
    settings = {name: value for name, value in settings.items() if name != lacks}
    settings["embedding_length"] = width
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    writer = gguf.GGUFWriter(file, family)
    adders = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32,
              list: writer.add_array}  # fmt: skip
    for name, value in settings.items():
        adders[type(value)](f"{family}.{name}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = sorted(byte_tokenizer().get_vocab().items(), key=lambda entry: entry[1])
    writer.add_token_list([*(token for token, _ in tokens), "on"])
    writer.add_token_types([1] * 256 + [3] * 2 + [1])
    writer.add_token_merges(["o n"])
    writer.add_eos_token_id(256)
    for name, tensor in split_experts(model.state_dict()):
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            writer.add_tensor(named(family, name), as_written(family, name, tensor))
    if "nextn_predict_layers" in settings:
        writer.add_tensor("blk.4.nextn.eh_proj.weight", np.ones((D, 2 * D), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def split_experts(held: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors as they are named in a file: gates of experts apart from what they gate."""
    for name, tensor in held.items():
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
                yield name.replace("gate_up_proj", f"{part}_proj.weight"), half
        else:
            yield name + ".weight" * name.endswith("experts.down_proj"), tensor


def named(family: str, name: str) -> str:
    if "moe" in family:
        stem, _, kind = name.rpartition(".")
        known = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], 2)
        return f"{known.get_name(stem)}.{kind}"
    own = NAMES_OF_BLOOM.items() if family == "bloom" else ()
    for theirs, written in (*own, *NAMES.items()):
        name = name.replace(theirs, written)
    return name


def as_written(family: str, name: str, tensor: torch.Tensor) -> np.ndarray:
    """The numbers of a tensor as llama.cpp's converter writes them."""
    if family == "gpt2" and ".c_" in name and tensor.dim() == 2:
        tensor = tensor.T
    if "query_key_value" in name:  # by heads, and in each by queries, keys and values
        heads = tensor.view(4, 3, len(tensor) // 12, -1)
        tensor = heads.transpose(0, 1).reshape(tensor.shape)
    if family == "qwen35" and "norm" in name and "linear_attn" not in name:
        tensor = tensor + 1
    if "A_log" in name:
        tensor = -tensor.exp()
    if "conv" in name and tensor.dim() == 3:  # by channels
        tensor = tensor[:, 0]
    if "shared_expert_gate" in name:
        tensor = tensor[0]
    return np.ascontiguousarray(tensor.numpy())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_that_transformers_reads_gives_its_logits(family, tmp_path):
    model = write_family(tmp_path / "m.gguf", family)
    found = load_pretrained(str(tmp_path / "m.gguf"))
    assert found.config.context == FAMILIES[family][2]["context_length"]
    tokens = torch.randint(V, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(found.model(tokens), model(tokens).logits)


@pytest.mark.parametrize(
    ("family", "lacks"),
    [
        ("gpt2", "attention.head_count"),
        ("bloom", "attention.head_count"),
        ("qwen2moe", "expert_used_count"),
        ("qwen3moe", "expert_used_count"),
    ],
)
def test_a_setting_that_no_shape_tells_is_needed(family, lacks, tmp_path):
    """Transformers took its own default, by which 48 numbers are of 12 heads."""
    write_family(tmp_path / "m.gguf", family, lacks, width=48)
    with one_line(ModelError, f"lacks {family}.{lacks};"):
        load_pretrained(str(tmp_path / "m.gguf"))


def test_code_of_the_hub_is_not_fetched(tmp_path, monkeypatch):
    """Where the package kernels is installed, transformers fetches code for these unasked."""
    write_family(tmp_path / "packed.gguf", "lfm2")
    write_family(tmp_path / "plain.gguf", "gpt2")
    load_pretrained(str(tmp_path / "plain.gguf"))  # which imports all that looks for it
    names = str(tmp_path / "packed.gguf"), saved(their_model("rwkv"), tmp_path / "rwkv")
    monkeypatch.setattr("transformers.utils.import_utils.is_kernels_available", lambda: True)
    load_pretrained(str(tmp_path / "plain.gguf"))
    for name in names:
        with one_line(ModelError, "the package kernels is installed"):
            load_pretrained(name)
