"""What a configuration of transformers leaves out, or says of a model that is made otherwise."""

import json

import pytest
import torch
import transformers

from arch import ModelError, import_transformers, load_pretrained
from tests.arch.pretrained.test_decoder import SEEING
from tests.arch.pretrained.test_pretrained import V, saved
from tests.said import one_line

LENGTH = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, LENGTH: 8}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0}  # fmt: skip


@pytest.mark.parametrize(
    ("rope", "more", "said"),
    [
        (YARN, {}, ""),
        (YARN | {"attn_factor": None, "mscale": 0.7, "mscale_all_dim": 0.7}, {}, ""),
        (YARN | {"attn_factor": 1.0, "extrapolation_factor": 1.0, "finetuned": True}, {}, ""),
        (YARN | {"attn_factor": 0.5}, {}, "attn_factor 0.5, which transformers does not read"),
        (YARN | {"mscale": 0.7}, {}, "mscale 0.7, which"),
        ({"rope_type": "default", "rope_theta": 1e4, "factor": 4.0}, {}, "factor 4.0, which"),
        ({"rope_type": "default", "rope_theta": 1e4, "factor": 1.0, LENGTH: 8}, {}, ""),
        ({"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0}, {}, "alpha 1000.0, which"),
        (LLAMA3, {}, f"says no {LENGTH}; 32 is taken"),
        (LLAMA3, {LENGTH: 8}, ""),
        (YARN, {LENGTH: 16}, f"says 8, 16 {LENGTH}; 16 is taken"),
    ],
)
def test_what_is_not_read_of_a_scaled_rotation_is_said(rope, more, said, llama, capsys):
    """Transformers only warns of it, and its warnings went nowhere."""
    directory = llama(config={"rope_parameters": rope} | more)
    capsys.readouterr()  # of saving it
    load_pretrained(str(directory))
    err = capsys.readouterr().err
    assert said in err
    assert bool(err) == bool(said)


@pytest.mark.parametrize(
    ("family", "name"),
    [("Llama", "num_attention_heads"), ("GPT2", "n_head"), ("OPT", "num_attention_heads")],
)
def test_heads_that_a_configuration_lacks_are_not_made_up(family, name, llama):
    """Projections of any number of heads have one shape: another model was asked."""
    directory = llama(family=family, config={name: KeyError, "heads": 2}, hidden_size=192)
    with one_line(ModelError, f"{directory} cannot be loaded: config.json lacks {name}"):
        load_pretrained(str(directory))


@pytest.mark.parametrize(
    ("family", "name"),
    [("Llama", "rms_norm_eps"), ("Mistral", "sliding_window"), ("Gemma2", "query_pre_attn_scalar"),
     ("Gemma2", "final_logit_softcapping")],
)  # fmt: skip
def test_what_is_completed_as_transformers_does_is_said(family, name, llama, capsys):
    for config, said in (({name: KeyError}, 1), ({}, 0)):
        load_pretrained(str(llama(family=family, head_dim=8, config=config)))
        assert capsys.readouterr().err.count(f"{name} is missing; ") == said


def test_what_is_completed_is_said_of_an_import_too(llama, capsys):
    import_transformers(llama(config={"rms_norm_eps": KeyError}))
    assert capsys.readouterr().err.count("rms_norm_eps is missing; 1e-06 is taken") == 1


NO_BASE = {"rope_parameters": KeyError, "rope_theta": KeyError}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"max_position_embeddings": 8192}, True),
        ({"max_position_embeddings": 4096}, False),  # as of a Llama 2
        ({"max_position_embeddings": 8192, "rope_theta": 5e5}, False),
        ({"max_position_embeddings": 8192, "rope_parameters": {"rope_theta": 5e5}}, False),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, LENGTH: 8192}}, True),
    ],
)
def test_a_base_that_is_missing_is_said_of_models_that_have_several(config, said, llama, capsys):
    """A Llama 3 without it was computed as a Llama 2."""
    directory = llama(config=NO_BASE | config)
    for read in (load_pretrained, *([] if "rope_scaling" in config else [import_transformers])):
        capsys.readouterr()
        read(str(directory))
        assert capsys.readouterr().err.count("rope_theta is missing; 10000.0 is taken") == said


def test_a_text_part_that_is_the_whole_model_is_read_by_its_section(llama, capsys):
    """Its rms_norm_eps was missing, as the section beside it was searched, and its scale unsaid."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1], "mrope_interleaved": True}  # fmt: skip
    directory = llama(
        family="Qwen3_5Text",
        head_dim=16,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        layer_types=["linear_attention", "full_attention"],
        rope_parameters=rope,
    )
    file = directory / "config.json"
    text = json.loads(file.read_text()) | {"logit_scale": 3.0}
    file.write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    capsys.readouterr()
    load_pretrained(str(directory))
    err = capsys.readouterr().err
    assert "logit_scale 3.0, which" in err
    assert len(err.splitlines()) == 1


def test_another_configuration_in_the_place_of_the_file_is_refused(llama, cache):
    """Transformers read it, and no check here did."""
    directory = llama(config={"configuration_files": ["config.5.0.0.json"]})
    other = json.loads((directory / "config.json").read_text()) | {"rms_norm_eps": 0.1}
    (directory / "config.5.0.0.json").write_text(json.dumps(other))
    for read in (import_transformers, load_pretrained, lambda place: load_pretrained(cache(place))):
        with one_line(ModelError, "config.json: configuration_files is ['config.5.0.0.json']"):
            read(str(directory))


WINDOW = {"sliding_window": 4, "use_sliding_window": KeyError, "layer_types": KeyError}
OFF = "sliding_window 4, and transformers' "


@pytest.mark.parametrize(
    ("family", "config", "said"),
    [
        ("Qwen3", WINDOW, f"{OFF}qwen3 computes no window"),
        ("Qwen3", WINDOW | {"use_sliding_window": True}, f"{OFF}qwen3 computes no window"),
        ("Qwen3", WINDOW | {"use_sliding_window": True, "max_window_layers": 1}, ""),
        ("Qwen3", WINDOW | {"use_sliding_window": False}, ""),
        ("Llama", {"sliding_window": 4}, f"{OFF}llama computes no window"),
        ("Llama", {"sliding_window": 4096}, ""),
        ("Mistral", {"sliding_window": 4}, ""),
        ("Llama", {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types ['slid"),
        ("Llama", {"layer_types": ["full_attention"] * 2, "no_rope_layers": [1, 1]}, ""),
        ("Llama", {"no_rope_layers": [1, 0]}, "no_rope_layers [1, 0], which"),
        ("Llama", {"attention_chunk_size": 4}, "attention_chunk_size 4, which"),
        ("Llama", {"position_embedding_type": "alibi"}, "position_embedding_type 'alibi', which"),
        ("Llama", {"position_embedding_type": "rope"}, ""),
    ],
)
def test_a_reach_of_attention_that_a_family_does_not_compute_is_said(
    family, config, said, llama, capsys
):
    directory = llama(family=family, head_dim=8, rms_norm_eps=1e-5, config=config)
    capsys.readouterr()
    load_pretrained(str(directory))
    err = capsys.readouterr().err
    assert said in err
    assert bool(err) == bool(said)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sliding_window": 4}, f"{OFF}llama computes no window"),
        ({"architectures": ["GemmaForCausalLM"]}, "names the class GemmaForCausalLM, which is not"),
        ({"architectures": ["LlamaBiModel"]}, "names the class LlamaBiModel, which is not run"),
        ({"architectures": ["LLaMAForCausalLM"]}, ""),
        ({"architectures": ["LlamaModel"]}, ""),
        ({"architectures": None}, ""),
    ],
)
def test_another_class_or_a_window_is_said_by_both_doors(config, said, llama, capsys):
    """Of a Gemma's class by the name of its family: its weights have a Llama's names and shapes."""
    directory = llama(config=config)
    capsys.readouterr()
    for read in (load_pretrained, import_transformers):
        read(str(directory))
        err = capsys.readouterr().err
        assert said in err
        assert bool(err) == bool(said)


@pytest.mark.skipif("internlm3" not in transformers.CONFIG_MAPPING, reason="since 5.24")
def test_a_class_by_the_name_of_its_family_is_not_another(llama, capsys):
    """Transformers computes an InternLM 3 by the Llama's class."""
    own = {"model_type": "internlm3", "architectures": ["InternLM3ForCausalLM"]}
    directory = llama(config=own)
    capsys.readouterr()
    load_pretrained(str(directory))
    assert not capsys.readouterr().err


FEW = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}


@pytest.mark.parametrize("size", [10**7, 10**4])
def test_experts_beyond_all_memory_are_refused_before_it_is_taken(size, llama):
    named = {"num_experts": KeyError, "num_local_experts": size}
    directory = llama(family="Qwen3Moe", config=named, **FEW)
    with one_line(ModelError, f"{directory}: the weights do not fit the configuration"):
        load_pretrained(str(directory))


def test_layers_of_pictures_that_no_file_holds_are_not_built(tmp_path):
    """Ten millions of them took hours."""
    text, pictures, more = SEEING["Qwen2_5_VL"]
    ids = {"vocab_size": V, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.Qwen2_5_VLConfig(text_config=text | ids, vision_config=pictures, **more)
    torch.manual_seed(0)
    saved(transformers.AutoModelForImageTextToText.from_config(config), tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    known = json.loads(file.read_text())
    known["vision_config"]["depth"] = 10**7
    file.write_text(json.dumps(known))
    with one_line(ModelError, f"{file.parent}: the weights do not fit the configuration"):
        load_pretrained(str(file.parent))
