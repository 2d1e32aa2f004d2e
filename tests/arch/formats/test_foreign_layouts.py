"""What a directory of transformers says of a model that transformers does not read, and layouts."""

import json
from pathlib import Path

import pytest

from arch import ModelError, import_transformers, load_pretrained
from tests.said import one_line

ROPE = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("family", "config", "said"),
    [
        ("Llama", {"final_logit_softcapping": 30.0}, "says final_logit_softcapping 30.0, which"),
        ("Llama", {"scale_emb": 12, "scale_depth": 1.4}, "says scale_emb 12, scale_depth 1.4"),
        ("Mistral", {"residual_multiplier": 0.2}, "transformers' mistral does not read"),
        ("RecurrentGemma", {}, ""),  # whose final_w_init_variance_scale is of training
        ("Llama", {"rope_interleaved": True}, "rope_interleaved True"),
        ("Llama", {"rope_interleaved": False, "logits_scaling": 1.0, "alibi": None}, ""),
        ("Granite", {"residual_multiplier": 0.2}, ""),
        ("Gemma2", {"final_logit_softcapping": 20.0}, ""),
        ("Phi", {"partial_rotary_factor": 0.5}, ""),
    ],
)
def test_settings_that_a_family_does_not_read_are_said(family, config, said, llama, capsys):
    load_pretrained(str(llama(family=family, head_dim=8, config=config)))
    err = capsys.readouterr().err
    assert said in err
    assert ("does not read" in err) == bool(said)


@pytest.mark.parametrize(
    "config",
    [{"partial_rotary_factor": 0.5}, {"rope_parameters": ROPE | {"partial_rotary_factor": 0.25}}],
)
def test_a_part_of_a_head_that_is_turned_whole_is_refused(config, llama):
    with one_line(ModelError, "transformers' llama turns whole heads"):
        load_pretrained(str(llama(config=config)))


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("Llama", {"full_attention": ROPE | {"rope_theta": 5e5}}),
        ("Gemma3Text", ROPE | {"rope_theta": 5e5}),
        ("Gemma3Text", ROPE | {"rope_type": "linear", "factor": 8.0}),
        ("Olmo3", ROPE | {"rope_type": "linear", "factor": 8.0}),
    ],
)
def test_a_rotation_in_the_form_of_other_families_is_refused(family, rope, llama):
    """By kinds of layers, or one for all: what a family does not look for had no effect."""
    directory = llama(family=family, head_dim=8, config={"rope_parameters": rope})
    with one_line(ModelError, f"{directory}: in rope_parameters"):
        load_pretrained(str(directory))


def hold_an_adapter(directory: Path) -> None:
    (directory / "config.json").unlink()
    (directory / "adapter_config.json").write_text("{}")


def hold_parameters(directory: Path) -> None:
    (directory / "config.json").rename(directory / "params.json")


def stand_inside(directory: Path) -> None:
    text = (directory / "config.json").read_text()
    (directory / "config.json").unlink()
    for step in (500, 1000):
        (directory / f"checkpoint-{step}").mkdir()
        (directory / f"checkpoint-{step}" / "config.json").write_text(text)


def be_named_otherwise(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (hold_an_adapter, "it holds an adapter: merge it"),
        (hold_parameters, "params.json is of the layout before transformers'"),
        (stand_inside, "checkpoint-1000, which has one"),
        (
            be_named_otherwise,
            "has no model.safetensors, but model-00001-of-00002.safetensors; give",
        ),
    ],
)
def test_another_layout_is_named(change, said, llama):
    directory = llama()
    change(directory)
    for read in (import_transformers, load_pretrained):
        with one_line(ModelError, said):
            read(str(directory))


def test_what_a_tokenizer_once_added_is_said(llama, capsys):
    """Classes of transformers put it around a text, whatever tokenizer.json says."""
    directory = llama()
    held = {
        "bos_token": {"content": "<|endoftext|>"},
        "add_bos_token": True,
        "add_eos_token": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(held))
    for read in (load_pretrained, import_transformers):
        read(str(directory))
        said = "says add_bos_token, tokenizer.json adds no <|endoftext|> to a text"
        assert capsys.readouterr().err.count(said) == 1
