"""Directories of the hub as they lie there, in forms that today's transformers no longer writes.

Their configurations alone are read: no model is built of these.
"""

import json
import os
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers

from arch import ModelError, import_transformers, load_pretrained
from arch.formats.foreign import read_settings, say_own_code
from arch.formats.llama import check_importable
from arch.formats.rotations import check_turned
from arch.pretrained.settings import read_config, say_unread_settings
from eval.models.checkpoint import open_model
from tests.arch.cases import byte_tokenizer
from tests.said import one_line

COMMON = {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02,
          "torch_dtype": "float16", "transformers_version": "4.40.0",
          "use_cache": True}  # fmt: skip
LLAMA = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_attention_heads": 32,
         "num_hidden_layers": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
         "hidden_act": "silu", "max_position_embeddings": 4096, "pretraining_tp": 1,
         "rms_norm_eps": 1e-5, "rope_scaling": None, "tie_word_embeddings": False}  # fmt: skip
LLAMA3_ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192, "rope_type": "llama3"}  # fmt: skip
GROUPED = LLAMA | {"num_key_value_heads": 8, "attention_bias": False}
MISTRAL = LLAMA | {"model_type": "mistral", "num_key_value_heads": 8, "intermediate_size": 14336,
                   "max_position_embeddings": 32768, "rope_theta": 1e4,
                   "sliding_window": 4096}  # fmt: skip
QWEN = LLAMA | {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1024,
                "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 24,
                "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768,
                "max_window_layers": 21, "use_sliding_window": False}  # fmt: skip
SEEING = QWEN | {"max_position_embeddings": 128000, "image_token_id": 151655,
                 "vision_start_token_id": 151652, "vision_end_token_id": 151653,
                 "vision_token_id": 151654, "video_token_id": 151656,
                 "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}  # fmt: skip
GEMMA = {"attention_bias": False, "head_dim": 256, "hidden_size": 2304, "intermediate_size": 9216,
         "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 26,
         "num_key_value_heads": 4, "pad_token_id": 0, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
         "vocab_size": 256000}  # fmt: skip
GEMMA3 = GEMMA | {"model_type": "gemma3_text", "cache_implementation": "hybrid",
                  "attn_logit_softcapping": None, "final_logit_softcapping": None,
                  "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
                  "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
                  "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144,
                  "eos_token_id": [1, 106]}  # fmt: skip
PHI = {"model_type": "phi", "embd_pdrop": 0.0, "hidden_act": "gelu_new", "hidden_size": 2048,
       "intermediate_size": 8192, "layer_norm_eps": 1e-5, "max_position_embeddings": 2048,
       "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": None,
       "partial_rotary_factor": 0.5, "qk_layernorm": False, "resid_pdrop": 0.0,
       "rope_scaling": None, "rope_theta": 1e4, "tie_word_embeddings": False,
       "vocab_size": 51200}  # fmt: skip
LONG = {"long_factor": [1.1] * 48, "short_factor": [1.0] * 48, "type": "longrope"}
PHI3 = LLAMA | {"model_type": "phi3", "embd_pdrop": 0.0, "resid_pdrop": 0.0, "hidden_size": 3072,
                "intermediate_size": 8192, "max_position_embeddings": 131072, "rope_theta": 1e4,
                "original_max_position_embeddings": 4096, "pad_token_id": 32000,
                "rope_scaling": LONG, "sliding_window": 262144, "vocab_size": 32064,
                "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config",
                             "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}  # fmt: skip
SUMMARY = {"summary_activation": None, "summary_first_dropout": 0.1, "summary_type": "cls_index",
           "summary_proj_to_labels": True, "summary_use_proj": True}  # fmt: skip
GPT = SUMMARY | {"activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1,
                 "layer_norm_epsilon": 1e-5, "n_embd": 768, "n_head": 12, "n_layer": 12,
                 "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257}  # fmt: skip
OLMO = GROUPED | {"num_key_value_heads": 32, "pad_token_id": 1, "rope_theta": 500000,
                  "vocab_size": 100352, "rms_norm_eps": 1e-6}  # fmt: skip
YARN = {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
        "original_max_position_embeddings": 8192, "rope_type": "yarn"}  # fmt: skip
OLMO3 = OLMO | {"model_type": "olmo3", "max_position_embeddings": 65536, "rope_scaling": YARN,
                "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 8,
                "sliding_window": 4096}  # fmt: skip
MULTIPLIERS = {"attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
               "residual_multiplier": 0.22, "logits_scaling": 8.0}  # fmt: skip
ALIBI = {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
         "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
         "prefix_lm": False, "qk_ln": False, "softmax_scale": None}  # fmt: skip
MPT = {"model_type": "mpt", "attn_config": ALIBI, "d_model": 4096, "emb_pdrop": 0,
       "embedding_fraction": 1.0, "expansion_ratio": 4, "init_device": "cpu",
       "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048, "n_heads": 32,
       "n_layers": 32, "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
       "tokenizer_name": "EleutherAI/gpt-neox-20b", "verbose": 0, "vocab_size": 50432,
       "auto_map": {"AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM"}}  # fmt: skip
OWN_CODE = "names code of its own"

HUB: dict[str, tuple[dict[str, Any], str]] = {  # what is said of them
    "Llama 2": (LLAMA, ""),
    "Llama 3.1": (GROUPED | {"rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE, "mlp_bias": False,
                             "max_position_embeddings": 131072}, ""),
    "Mistral 0.1": (MISTRAL, ""),
    "Mixtral": (MISTRAL | {"model_type": "mixtral", "num_experts_per_tok": 2, "rope_theta": 1e6,
                           "num_local_experts": 8, "output_router_logits": False,
                           "router_aux_loss_coef": 0.02, "sliding_window": None}, ""),
    "Qwen 1.5": (QWEN, ""),
    "Qwen 2.5, the YaRN of its page": (
        QWEN | {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768,
                                 "type": "yarn"}}, ""),
    "Qwen 3": (QWEN | {"model_type": "qwen3", "head_dim": 128, "num_key_value_heads": 8,
                       "attention_bias": False, "sliding_window": None, "rope_theta": 1000000,
                       "max_window_layers": 28}, ""),
    "Qwen2-VL": (SEEING | {"model_type": "qwen2_vl",
                           "architectures": ["Qwen2VLForConditionalGeneration"],
                           "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4,
                                             "num_heads": 16, "in_chans": 3, "hidden_size": 1024,
                                             "patch_size": 14, "spatial_merge_size": 2}}, ""),
    "Qwen2.5-VL": (SEEING | {"model_type": "qwen2_5_vl",
                             "architectures": ["Qwen2_5_VLForConditionalGeneration"],
                             "vision_config": {"depth": 32, "hidden_act": "silu", "num_heads": 16,
                                               "hidden_size": 1280, "intermediate_size": 3420,
                                               "in_chans": 3, "out_hidden_size": 1024,
                                               "fullatt_block_indexes": [7, 15, 23, 31]}}, ""),
    "Gemma": (GEMMA | {"model_type": "gemma", "hidden_act": "gelu", "rope_scaling": None}, ""),
    "Gemma 2": (GEMMA | {"model_type": "gemma2", "attn_logit_softcapping": 50.0,
                         "cache_implementation": "hybrid", "final_logit_softcapping": 30.0,
                         "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
                         "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096}, ""),
    "Gemma 3, of texts": (GEMMA3, ""),
    "Gemma 3, the usual base of its windows left out": (
        {name: value for name, value in GEMMA3.items() if name != "rope_local_base_freq"}, ""),
    "Gemma 3": ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
                 "image_token_index": 262144, "mm_tokens_per_image": 256,
                 "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
                                 "intermediate_size": 10240, "num_hidden_layers": 34,
                                 "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                                 "sliding_window": 1024},
                 "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152,
                                   "image_size": 896, "intermediate_size": 4304, "patch_size": 14,
                                   "num_attention_heads": 16, "num_hidden_layers": 27,
                                   "vision_use_head": False}}, ""),
    "Phi 1.5": (PHI, ""),
    "Phi 2": (PHI | {"partial_rotary_factor": 0.4, "hidden_size": 2560}, ""),
    "Phi 3.5": (PHI3, OWN_CODE),
    "Phi 3.5 MoE": (PHI3 | {"model_type": "phimoe", "num_experts_per_tok": 2, "rope_scaling": LONG |
                            {"original_max_position_embeddings": 4096, "long_mscale": 1.24,
                             "short_mscale": 1.24}}, OWN_CODE),
    "Hunyuan": (GROUPED | {"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic",
                    "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0}}, ""),
    "PaddleOCR-VL": ({"model_type": "paddleocr_vl", "text_config": {
                         "rope_scaling": {"mrope_section": [16, 24, 24], "type": "default"}}}, ""),
    "JetMoe": ({"model_type": "jetmoe", "num_experts_per_tok": 2, "rms_norm_eps": 1e-5}, ""),
    "GPT-2": (GPT | {"model_type": "gpt2", "n_ctx": 1024,
                     "task_specific_params": {"text-generation": {"do_sample": True}}}, ""),
    "GPT-J": (GPT | {"model_type": "gptj", "gradient_checkpointing": False, "n_inner": None,
                     "rotary": True, "rotary_dim": 64, "scale_attn_weights": True,
                     "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer"},
              "scale_attn_weights True"),
    "Pythia": ({"model_type": "gpt_neox", "hidden_act": "gelu", "hidden_size": 768,
                "intermediate_size": 3072, "layer_norm_eps": 1e-5, "num_attention_heads": 12,
                "max_position_embeddings": 2048, "num_hidden_layers": 12, "rotary_emb_base": 10000,
                "rotary_pct": 0.25, "tie_word_embeddings": False, "use_parallel_residual": True,
                "vocab_size": 50304}, ""),
    "TinyStories": ({"model_type": "gpt_neo", "activation_function": "gelu_new",
                     "attention_layers": ["global", "local"] * 2, "embed_dropout": 0,
                     "attention_types": [[["global", "local"], 2]], "hidden_size": 768,
                     "intermediate_size": None, "layer_norm_epsilon": 1e-5, "num_heads": 16,
                     "max_position_embeddings": 2048, "num_layers": 4, "resid_dropout": 0,
                     "vocab_size": 50257, "window_size": 256} | SUMMARY, ""),
    "Falcon": ({"model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 4544,
                "apply_residual_connection_post_layernorm": False, "hidden_dropout": 0.0,
                "layer_norm_epsilon": 1e-5, "multi_query": True, "num_attention_heads": 71,
                "new_decoder_architecture": False, "num_hidden_layers": 32, "parallel_attn": True,
                "vocab_size": 65024,
                "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig",
                             "AutoModelForCausalLM": "modeling_falcon.FalconForCausalLM"}},
               OWN_CODE),
    "BLOOM": ({"model_type": "bloom", "apply_residual_connection_post_layernorm": False,
               "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "n_embed": 1024,
               "hidden_dropout": 0.0, "layer_norm_epsilon": 1e-5, "masked_softmax_fusion": True,
               "n_inner": None, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100,
               "pad_token_id": 3, "pretraining_tp": 1, "seq_length": 2048, "skip_bias_add": True,
               "skip_bias_add_qkv": False, "unk_token_id": 0, "vocab_size": 250880},
              "offset_alibi 100"),
    "OPT": ({"model_type": "opt", "_remove_final_layer_norm": False, "activation_dropout": 0.0,
             "activation_function": "relu", "do_layer_norm_before": True, "dropout": 0.1,
             "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0,
             "max_position_embeddings": 2048, "num_attention_heads": 12, "num_hidden_layers": 12,
             "pad_token_id": 1, "prefix": "</s>", "vocab_size": 50272,
             "word_embed_proj_dim": 768}, ""),
    "StableLM 2": ({"model_type": "stablelm", "hidden_act": "silu", "hidden_size": 2048,
                    "intermediate_size": 5632, "layer_norm_eps": 1e-5, "num_attention_heads": 32,
                    "max_position_embeddings": 4096, "num_hidden_layers": 24,
                    "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000,
                    "tie_word_embeddings": False, "use_qkv_bias": True, "vocab_size": 100352}, ""),
    "StarCoder 2": ({"model_type": "starcoder2", "attention_softmax_in_fp32": True,
                     "embedding_dropout": 0.1, "hidden_act": "gelu_pytorch_tanh",
                     "hidden_size": 3072, "intermediate_size": 12288, "layer_norm_epsilon": 1e-5,
                     "max_position_embeddings": 16384, "mlp_type": "default",
                     "norm_epsilon": 1e-5, "num_attention_heads": 24, "num_hidden_layers": 30,
                     "num_key_value_heads": 2, "residual_dropout": 0.1, "use_bias": True,
                     "rope_theta": 999999.4420358813, "scale_attn_weights": True,
                     "sliding_window": 4096, "vocab_size": 49152}, "scale_attn_weights True"),
    "OLMo": (OLMO | {"model_type": "olmo", "clip_qkv": None, "rope_theta": 10000.0}, ""),
    "OLMo 2": (OLMO | {"model_type": "olmo2"}, ""),
    "OLMo 3": (OLMO3, ""),
    "Granite 3.1": (GROUPED | MULTIPLIERS | {"model_type": "granite", "rope_theta": 5000000.0,
                                             "mlp_bias": False}, ""),
    "Command R": (GROUPED | {"model_type": "cohere", "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
                             "model_max_length": 131072, "rope_theta": 8000000.0,
                             "use_qk_norm": False}, ""),
    "Command R7B": (GROUPED | {"model_type": "cohere2", "layer_norm_eps": 1e-5, "logit_scale": 0.25,
                               "layer_switch": 4, "rotary_pct": 1.0, "sliding_window": 4096,
                               "order_of_interleaved_layers": "local_attn_first",
                               "position_embedding_type": "rope_gptj", "rope_theta": 50000,
                               "sliding_window_pattern": 4, "use_gated_activation": True,
                               "use_parallel_block": True},
                    "order_of_interleaved_layers 'local_attn_first'"),
    "SmolLM 2": (GROUPED | {"hidden_size": 576, "intermediate_size": 1536, "rope_theta": 100000,
                            "is_llama_config": True, "num_attention_heads": 9, "mlp_bias": False,
                            "num_key_value_heads": 3, "pad_token_id": 2, "rope_interleaved": False,
                            "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
                            "tie_word_embeddings": True, "vocab_size": 49152}, ""),
    "SmolLM 3": (GROUPED | {"model_type": "smollm3", "hidden_size": 2048,
                            "layer_types": ["full_attention"] * 36, "max_window_layers": 28,
                            "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
                            "num_attention_heads": 16, "num_hidden_layers": 36,
                            "num_key_value_heads": 4, "pretraining_tp": 2, "sliding_window": None,
                            "rope_theta": 5000000.0, "use_sliding_window": False}, ""),
    "DeepSeek-V2-Lite": (
        GROUPED | {"model_type": "deepseek_v2", "aux_loss_alpha": 0.001, "hidden_size": 2048,
                   "first_k_dense_replace": 1, "kv_lora_rank": 512, "moe_intermediate_size": 1408,
                   "max_position_embeddings": 163840, "moe_layer_freq": 1, "n_group": 1,
                   "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False,
                   "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
                   "num_key_value_heads": 16, "q_lora_rank": None, "qk_nope_head_dim": 128,
                   "qk_rope_head_dim": 64, "rope_theta": 10000, "routed_scaling_factor": 1.0,
                   "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "type": "yarn",
                                    "mscale": 0.707, "mscale_all_dim": 0.707,
                                    "original_max_position_embeddings": 4096},
                   "scoring_func": "softmax", "seq_aux": True, "topk_group": 1, "v_head_dim": 128,
                   "topk_method": "greedy",
                   "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV2ForCausalLM"}},
        OWN_CODE),
    "MPT": (MPT, OWN_CODE),
    "Mamba": ({"model_type": "mamba", "conv_kernel": 4, "d_inner": 1536, "d_model": 768,
               "expand": 2, "fused_add_norm": True, "hidden_act": "silu", "hidden_size": 768,
               "intermediate_size": 1536, "layer_norm_epsilon": 1e-5, "n_layer": 24,
               "numb_hidden_layers": 24, "num_hidden_layers": 24, "pad_token_id": 0,
               "pad_vocab_size_multiple": 8, "rescale_prenorm_residual": False, "rms_norm": True,
               "residual_in_fp32": True, "ssm_cfg": {}, "state_size": 16, "time_step_rank": 48,
               "time_step_scale": 1.0, "use_bias": False, "use_conv_bias": True,
               "vocab_size": 50280}, ""),
}  # fmt: skip
REFUSED = {
    "a base that three of four layers do not read": (
        OLMO3 | {"rope_theta": 10000.0}, "m: rope_theta is 10000.0"
    ),
    "the same, beside one for the others": (
        OLMO3 | {"rope_scaling": None, "rope_theta": 10000.0,
                 "rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "m: rope_theta is 10000.0",
    ),
    "a base by a name that the family does not read": (
        {"rope_theta" if name == "rotary_emb_base" else name: value
         for name, value in (HUB["Pythia"][0] | {"rotary_emb_base": 5e5}).items()},
        "m: rope_theta is 500000.0",
    ),
    "the same, of kinds of layers": (
        GEMMA3 | {"model_type": "modernbert-decoder", "rope_local_base_freq": None},
        "m: rope_theta is 1000000",
    ),
    "an older word in another family": (
        LLAMA | {"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_type is 'su'"
    ),
    "pictures' rotation in a model of texts": (
        QWEN | {"rope_scaling": SEEING["rope_scaling"]}, "rope_type is 'mrope'"
    ),
    "MPT-7B-StoryWriter": (
        MPT | {"attn_config": ALIBI | {"alibi_bias_max": 16}}, "alibi_bias_max is 16"
    ),
    "an MPT that turns": (
        MPT | {"attn_config": ALIBI | {"alibi": False, "rope": True}}, "alibi is False"
    ),
    "an MPT that scales its logits": (
        MPT | {"logit_scale": "inv_sqrt_d_model"}, "logit_scale is 'inv_sqrt_d_model'"
    ),
    "an MPT whose norms subtract no mean": (
        MPT | {"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm'"
    ),
}  # fmt: skip
IMPORTED = {
    "Llama 2": "",
    "SmolLM 2": "",
    "Llama 3.1": "rope_type is 'llama3'",
    "Qwen 3": "head_dim is 128",
}


def write(config, directory):
    (directory / "config.json").write_text(json.dumps(COMMON | config))


def read(config, directory):
    """All that is asked of a configuration before its model is built, and of what it says after."""
    write(config, directory)
    read_settings(directory / "config.json")
    known, made, _ = read_config("m", str(directory), {})
    check_turned(known, [], made.get_text_config(), "m")
    say_unread_settings(known, made, "m")
    say_own_code(known, "m", lambda name: True)


@pytest.mark.parametrize("name", HUB)
def test_a_configuration_is_read_in_its_old_form(name, tmp_path, capsys):
    config, said = HUB[name]
    read(config, tmp_path)
    err = capsys.readouterr().err
    assert said in err
    assert bool(err) == bool(said)
    assert "without" not in err  # what every model of a family does is not left out


@pytest.mark.parametrize("name", REFUSED)
def test_a_configuration_that_transformers_would_read_otherwise_is_refused(name, tmp_path):
    config, said = REFUSED[name]
    with one_line(ModelError, said):
        read(config, tmp_path)


@pytest.mark.parametrize("name", IMPORTED)
def test_a_llama_is_imported_or_its_configuration_says_why_not(name, tmp_path):
    write(HUB[name][0], tmp_path)
    said = IMPORTED[name]
    with one_line(ModelError, said) if said else nullcontext():
        check_importable(tmp_path)


def test_a_base_of_all_layers_is_that_of_all_or_refused(llama):
    old = {"rope_parameters": KeyError, "rope_theta": 5e5}
    load_pretrained(str(llama(family="Olmo3", head_dim=8, config=old)))
    directory = llama(family="Olmo3", head_dim=8, config=old | {"rope_theta": 1e4})
    with one_line(ModelError, f"{directory}: rope_theta is 10000.0"):
        load_pretrained(str(directory))


FEW = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
MASK = {"transformer.h.0.attn.causal_mask": torch.ones(1, 1, 32, 32, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("family", "settings", "more"),
    [
        ("Qwen3Moe", FEW | {"intermediate_size": 6144}, {}),
        ("Qwen2Moe", FEW | {"intermediate_size": 5632, "shared_expert_intermediate_size": 8}, {}),
        ("Lfm2", {"intermediate_size": 768}, {}),
        ("RecurrentGemma", {"intermediate_size": 600}, {}),
        ("CodeGen", {"num_attention_heads": 4, "rotary_dim": 4}, MASK),
    ],
)
def test_what_stands_in_no_weight_or_in_no_model_is_passed_over(family, settings, more, llama):
    """Widths that layers have not were compared with the weights, and masks taken for weights."""
    directory = llama(family=family, weights=lambda held: held | more, **settings)
    judge = transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        expected = judge(tokens, use_cache=False).logits
        found = load_pretrained(str(directory)).model(tokens)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_width_that_would_take_all_memory_is_refused_beside_experts_too(llama):
    directory = llama(family="Qwen3Moe", config={"intermediate_size": 10**8}, **FEW)
    with pytest.raises(ModelError, match="intermediate_size is 100000000"):
        load_pretrained(str(directory))


def test_a_setting_that_another_transformers_adds_makes_no_other_model(llama, cache, monkeypatch):
    """Rows of a name of the hub, or of a module in memory, could not be continued."""
    directory, hashes = llama(), []
    name, known = cache(directory), transformers.PreTrainedConfig.to_dict
    module = transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
    for added in ({}, {"new": 0}):
        monkeypatch.setattr(
            transformers.PreTrainedConfig, "to_dict", lambda made, added=added: known(made) | added
        )
        opened = [open_model(f"hf:{place}") for place in (name, directory)]
        opened.append(open_model(module, tokenizer=byte_tokenizer()))
        hashes.append([checkpoint.settings_sha256 for checkpoint in opened])
    assert hashes[0] == hashes[1]
    assert hashes[0][0] == hashes[0][1]


def test_a_pickle_that_is_newer_than_what_is_read_is_said(llama, capsys):
    """As training leaves it that no longer writes safetensors; the weights of before were read."""
    directory = llama()
    pickle = directory / "pytorch_model-00001-of-00002.bin"
    pickle.write_bytes(b"")
    os.utime(directory / "model.safetensors", (1, 1))
    for read_model in (import_transformers, load_pretrained):
        read_model(str(directory))
        assert capsys.readouterr().err.count(f"{pickle.name} is newer than model.safetensors") == 1
    os.utime(pickle, (0, 0))
    import_transformers(directory)
    assert pickle.name not in capsys.readouterr().err
