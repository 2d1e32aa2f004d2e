"""What a directory of transformers says of a model that transformers does not read, and layouts."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, pre_tokenizers, processors

from arch import ModelError, import_transformers, load_model, load_pretrained
from arch.__main__ import main
from arch.storage.files import POINTER
from eval.models.checkpoint import open_model
from tests.arch.cases import byte_tokenizer
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
        ("Gemma2", {"hidden_act": "silu"}, "says hidden_act 'silu', which transformers' gemma2"),
        ("Gemma2", {"hidden_act": "gelu_pytorch_tanh"}, ""),
        ("Llama", {"hidden_activation": "gelu"}, "says hidden_activation 'gelu', which"),
        ("Llama", {"hidden_activation": None, "activation": "silu"}, ""),
        ("GPT2", {"n_ctx": 1024}, ""),  # as older ones saved it beside fewer n_positions
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


def test_a_base_that_a_scaling_beside_it_drops_is_refused(llama):
    """As in a Qwen3 that was saved by transformers 5, to which the YaRN of its README was added."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    rope = ROPE | {"rope_theta": 1e6}
    made = {"family": "Qwen3", "head_dim": 8, "rope_parameters": rope}
    directory = llama(config={"rope_scaling": yarn}, **made)
    said = f"{directory / 'config.json'}: rope_scaling stands beside rope_parameters, whose rope_"
    for read in (import_transformers, load_pretrained):
        with one_line(ModelError, said):
            read(str(directory))
    beside = {"rope_scaling": yarn, "rope_theta": 1e6}
    expected = load_pretrained(str(llama(config={"rope_parameters": rope | yarn}, **made)))
    tokens = torch.arange(20)[None]
    for config in (beside, {"rope_scaling": yarn | {"rope_theta": 1e6}}):
        found = load_pretrained(str(llama(config=config, **made))).model(tokens)
        torch.testing.assert_close(found, expected.model(tokens))


OTHER_NAMES = [
    ("Llama", {"rotary_dim": 4}), ("Llama", {"rotary_pct": 0.5}), ("Phi", {"rope_pct": 0.25}),
    ("Llama", {"rotary_percentage": 0.5}), ("Llama", {"rotary_emb_base": 777}),
    ("Llama", {"rope_base": 777.0}), ("Llama", {"attn_config": {"rope_theta": 777}}),
    ("Llama", {"rope_base": 777, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "config"), OTHER_NAMES, ids=str)
def test_a_rotation_by_the_name_of_another_family_is_refused(family, config, llama):
    """The setting had no effect: the rotation was of whole heads, or of the usual base."""
    directory = llama(family=family, head_dim=8, config=config)
    with one_line(ModelError, f"{directory}: {next(iter(config))}"):
        load_pretrained(str(directory))


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("Llama", {"rotary_dim": 8, "rope_pct": 1.0, "rope_base": 10000, "rotary_emb_base": None}),
        ("Phi", {"partial_rotary_factor": 0.5, "rotary_dim": 4}),
        ("GPTNeoX", {"rope_parameters": KeyError, "rotary_pct": 0.5, "rotary_emb_base": 777}),
    ],
)
def test_a_rotation_by_another_name_that_is_the_one_computed_is_read(family, config, llama):
    load_pretrained(str(llama(family=family, head_dim=8, config=config)))


@pytest.mark.parametrize("weight", ["up_proj", "down_proj"])
def test_codes_in_blocks_of_which_the_last_is_cut_short_are_refused(weight, llama):
    """A dimension of 40, in blocks of 12, was divided into four of 10."""
    name = f"model.layers.0.mlp.{weight}.weight"

    def quantise(held):
        rows, columns = (-(-size // 12) for size in held[name].shape)
        codes = held[name].to(torch.float8_e4m3fn)
        return held | {name: codes, f"{name}_scale_inv": torch.ones(rows, columns)}

    method = {"quant_method": "fp8", "weight_block_size": [12, 12]}
    directory = llama(config={"quantization_config": method}, weights=quantise)
    with one_line(ModelError, f"{name}_scale_inv is of blocks of [12, 12]"):
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


def stand_in_a_cache(directory: Path) -> None:
    inside = directory / "snapshots" / "4a0b"
    inside.mkdir(parents=True)
    (directory / "config.json").rename(inside / "config.json")


def lead_nowhere(name: str) -> Callable[[Path], None]:
    """As a file of a cache of the hub does, where its links are copied as links."""

    def change(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).symlink_to("../../blobs/4a0b")

    return change


def be_a_pointer(name: str) -> Callable[[Path], object]:
    """As of a clone of a repository of the hub without Git LFS."""
    return lambda directory: (directory / name).write_bytes(POINTER + b"v1\noid sha256:4a0b")


def be_named_otherwise(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")


def hold_other_weights(directory: Path) -> None:
    (directory / "other.safetensors").write_bytes((directory / "model.safetensors").read_bytes())
    config = json.loads((directory / "config.json").read_text())
    config["transformers_weights"] = "other.safetensors"
    (directory / "config.json").write_text(json.dumps(config))


def hold_a_part_of_a_process(directory: Path) -> None:
    part = directory / "shard-00001-model-00001-of-00001.safetensors"
    part.write_bytes((directory / "model.safetensors").read_bytes())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (hold_other_weights, "config.json: transformers_weights is 'other.safetensors'"),
        (hold_a_part_of_a_process, "has shard-00001-model-00001-of-00001.safetensors"),
        (hold_an_adapter, "it holds an adapter: merge it"),
        (hold_parameters, "params.json is of the layout before transformers'"),
        (stand_inside, "checkpoint-1000, which has one"),
        (
            be_named_otherwise,
            "has no model.safetensors, but model-00001-of-00002.safetensors; give",
        ),
        (stand_in_a_cache, "snapshots/4a0b, which has one"),
        *(
            (change(file), f"{file} is a {said}")
            for file in ("config.json", "tokenizer.json", "model.safetensors")
            for change, said in ((lead_nowhere, "link to"), (be_a_pointer, "pointer of Git LFS"))
        ),
    ],
)
def test_another_layout_is_named(change, said, llama, cache):
    directory = llama()
    change(directory)
    for read in (import_transformers, load_pretrained, lambda place: load_pretrained(cache(place))):
        with one_line(ModelError, said):
            read(str(directory))


def test_a_model_of_the_hub_is_read_as_its_directory(llama, cache, capsys):
    """It was handed to transformers by its name, and nothing of it was checked."""
    parallel = {"weights": lambda held: {f"module.{name}": held[name] for name in held}}
    directory = llama(config={"rope_theta": 9.0}, **parallel)
    loaded, expected = (load_pretrained(name) for name in (cache(directory), str(directory)))
    assert loaded.meta == expected.meta
    weights = expected.model.state_dict()
    assert all(torch.equal(held, weights[n]) for n, held in loaded.model.state_dict().items())
    assert capsys.readouterr().err.count("which alone is read") == 2


def test_a_directory_is_found_and_named_however_it_is_given(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(llama())
    for name in (".", "../m/", "~/m"):
        assert load_pretrained(name).meta["name"] == "m"
    for number, name in enumerate((".", "../m/")):
        out = str(tmp_path / f"out-{number}")
        assert main(["import", name, out]) == 0
        assert load_model(out).meta["name"] == "m"


UP = "model.layers.1.mlp.up_proj.weight"


def test_what_no_shard_has_is_missed_and_what_two_have_is_refused(llama):
    """An index says which files are read, and need not name all that is in them."""
    directory = llama()
    held = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()

    def write(*shards: dict[str, torch.Tensor]) -> None:
        for number, shard in enumerate(shards):
            save_file(shard, directory / f"model-{number}.safetensors")
        index = {
            name: f"model-{number}.safetensors"
            for number, shard in enumerate(shards[:2])
            for name in shard
        }
        text = json.dumps({"metadata": {}, "weight_map": index})
        (directory / "model.safetensors.index.json").write_text(text)

    first = {name: tensor for name, tensor in held.items() if "layers" not in name}
    second = {name: tensor for name, tensor in held.items() if "layers" in name}
    alone = {UP: second.pop(UP)}
    for shards, said in (
        ((first, second, alone), r"no .*\.up"),
        ((first, second | alone | {"lm_head.weight": first["lm_head.weight"]}), "lm_head"),
    ):
        write(*shards)
        for read in (import_transformers, load_pretrained):
            with pytest.raises(ModelError, match=said):
                read(str(directory))


def test_weights_that_are_all_zeros_are_said(llama, capsys):
    """As where a file has its size, and was not downloaded whole."""
    load_pretrained(str(llama()))
    assert UP not in capsys.readouterr().err
    load_pretrained(str(llama(weights=lambda held: held | {UP: held[UP] * 0})))
    assert UP in capsys.readouterr().err


GROUPED = r"\p{L}+|\p{N}{1,3}"


@pytest.mark.parametrize(
    ("family", "version", "pattern", "size", "said"),
    [
        ("Mistral", "4.50.0", GROUPED, 200, True),
        ("Mistral", KeyError, GROUPED, 200, True),
        ("Mistral", "4.50.0", GROUPED, 300, False),
        ("Mistral", "4.50.0", r"\p{L}+|\p{N}", 200, False),
        ("Mistral", "5.1.0", GROUPED, 200, False),
        ("Llama", "4.50.0", GROUPED, 200, False),
    ],
)
def test_a_pattern_that_transformers_once_gave_a_mistral_is_said(
    family, version, pattern, size, said, llama, capsys, monkeypatch
):
    """Texts were split into other tokens than those that the model was trained with."""
    monkeypatch.setattr("arch.pretrained.tokenizers.MISTRALS_TOKENS", size)
    tokenizer = byte_tokenizer()
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    config = {"transformers_version": version}
    load_pretrained(str(llama(family=family, config=config, tokenizer=tokenizer)))
    assert ("tokenizer" in capsys.readouterr().err) == said


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


@pytest.mark.parametrize(("flag", "said"), [(True, 1), (False, 0)])
def test_a_blank_that_a_class_puts_before_a_text_is_said(llama, capsys, flag, said):
    """GPT2Tokenizer reads `Tom` as ` Tom` then, whatever tokenizer.json says."""
    directory = llama()
    (directory / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": flag}))
    load_pretrained(str(directory))
    assert capsys.readouterr().err.count("says add_prefix_space True") == said


def test_added_tokens_that_the_embedding_has_no_row_for_are_left_out_and_said(llama, capsys):
    """As the one of pictures in Gemma 3's models of text alone, which were refused."""
    tokenizer, text = byte_tokenizer(), "an <image> a"
    tokenizer.add_special_tokens(["<image>"])
    directory = llama(tokenizer=tokenizer)
    module = transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
    doors = (
        lambda: Tokenizer.from_str(load_pretrained(str(directory)).tokenizer_json),
        lambda: Tokenizer.from_str(import_transformers(directory).tokenizer_json),
        lambda: open_model(module, tokenizer=tokenizer).tokenizer,
    )
    for read in doors:
        assert read().encode(text).ids == byte_tokenizer().encode(text).ids
        assert "<image> (258)" in capsys.readouterr().err
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<image> $A", special_tokens=[("<image>", 258)]
    )
    (directory / "tokenizer.json").write_text(tokenizer.to_str())
    for read in doors:
        with one_line(ModelError, "the model was trained with"):
            read()


@pytest.mark.parametrize(
    ("classes", "said"),
    [({"AutoModelForCausalLM": "mine.Bidirectional"}, "mine.Bidirectional"),
     ({"AutoConfig": "mine.C", "AutoTokenizer": ["mine.T", None]}, "")],
)  # fmt: skip
def test_a_model_that_is_not_computed_by_its_own_code_is_said(classes, said, llama, capsys):
    directory = llama(config={"auto_map": classes})
    for read in (load_pretrained, import_transformers):
        read(str(directory))
        err = capsys.readouterr().err
        assert said in err
        assert ("code of its own" in err) == bool(said)


def test_code_of_a_tokenizer_beside_its_file_is_not_run(llama, tmp_path):
    """Its directory was refused."""
    directory, marker = llama(), tmp_path / "marker"
    (directory / "mine.py").write_text(f"open({str(marker)!r}, 'w').close()")
    held = {"auto_map": {"AutoTokenizer": ["mine.T", "mine.T"]}, "tokenizer_class": "T"}
    (directory / "tokenizer_config.json").write_text(json.dumps(held))
    for read in (load_pretrained, import_transformers):
        found = Tokenizer.from_str(read(str(directory)).tokenizer_json)
        assert found.get_vocab() == byte_tokenizer().get_vocab()
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "PreTrainedTokenizerFast"])
def test_a_tokenizer_of_mistrals_own_file_is_read(kind, llama):
    pytest.importorskip("transformers.integrations.mistral.tokenizer")
    directory = llama(vocab_size=260)
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    spelt = [bytes([n]) for n in range(256)] + [b"20"]
    held = {
        "config": {"pattern": r"\p{L}+|\p{N}+", "default_num_special_tokens": 3},
        "vocab": [{"token_bytes": base64.b64encode(token).decode()} for token in spelt],
        "special_tokens": [
            {"rank": rank, "token_str": token}
            for rank, token in enumerate(("<unk>", "<s>", "</s>"))
        ],
    }
    (directory / "tekken.json").write_text(json.dumps(held))
    read = Tokenizer.from_str(load_pretrained(str(directory)).tokenizer_json)
    assert read.encode("a202").ids == [ord("a") + 3, 259, ord("2") + 3]
