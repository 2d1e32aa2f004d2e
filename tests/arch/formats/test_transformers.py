"""Llama-style models to and from transformers' layout; transformers is the judge."""

import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from arch import (
    ModelError,
    export_hub,
    export_transformers,
    import_transformers,
    load_model,
    load_pretrained,
    save_model,
)
from arch.formats.llama import open_directory
from tests.arch.cases import byte_tokenizer, edit, random_tokens, scramble, small_model
from tests.said import one_line

TOKENIZER = byte_tokenizer()
V = TOKENIZER.get_vocab_size()
SHAPES = {
    "plain": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "tied": {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "grouped": {"num_attention_heads": 8, "num_key_value_heads": 2, "rms_norm_eps": 1e-3},
    "one key head, biases": {"num_attention_heads": 4, "num_key_value_heads": 1,
                             "attention_bias": True, "mlp_bias": True},
    "other base": {"num_attention_heads": 2, "num_key_value_heads": 2,
                   "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "normed queries": {"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 2,
                       "head_dim": 8, "rms_norm_eps": 1e-5},
}  # fmt: skip


def their_model(model_type: str = "llama", **settings) -> LlamaForCausalLM | Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "max_position_embeddings": 40,
        "bos_token_id": None,
        "eos_token_id": None,
        "initializer_range": 0.1,
        "vocab_size": V,
        **settings,
    }
    if model_type == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**sizes)).eval()
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # norms and biases, which start at one and zero
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        assert parameter.std() > 0, name
    return model


def our_model(**settings):
    sizes = {"vocab_size": V, "context": 40, "d_model": 32, "n_layers": 3, "d_ff": 48}
    llama = {"channel_mixer": "swiglu", "norm": "rmsnorm"}
    mixers = settings.pop("mixers", ("attention(heads=4, kv_heads=2)",))
    return small_model(*mixers, **{**sizes, **llama, **settings})


def saved(model, directory):
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(TOKENIZER.to_str(), encoding="utf-8")
    return directory


@pytest.fixture
def llama_directory(tmp_path):
    return saved(their_model(**SHAPES["plain"]), tmp_path / "theirs")


@pytest.mark.parametrize("shape", SHAPES)
def test_an_imported_llama_gives_transformers_logits(tmp_path, shape):
    theirs = their_model(**SHAPES[shape])
    loaded = import_transformers(saved(theirs, tmp_path / "theirs"))
    tokens = random_tokens(loaded.model)
    expected = theirs(tokens).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(loaded.model(tokens), expected, atol=1e-5, rtol=1e-5)
    save_model(tmp_path / "ours", loaded.model, loaded.tokenizer_json, loaded.meta)
    again = load_model(tmp_path / "ours")
    assert torch.equal(again.model(tokens), loaded.model(tokens))
    assert again.meta["source"] == "transformers"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tied": True},
        {"mixers": ("attention(heads=8, kv_heads=1, bias=true, rope_base=77)",)},
        {"mixers": ("attention", "attention(heads=4)"), "channel_mixer": "swiglu(bias=true)"},
        {"mixers": ("attention(qk_norm=true, kv_heads=2)",), "channel_mixer": "swiglu(bias=false)"},
    ],
)
def test_transformers_gives_an_exported_models_logits(tmp_path, settings):
    ours = scramble(our_model(**settings))
    export_transformers(tmp_path / "out", ours, TOKENIZER.to_str())
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    normed = "qk_norm" in ours.config.mixers[0]
    assert isinstance(theirs, Qwen3ForCausalLM if normed else LlamaForCausalLM)
    tokens = random_tokens(ours)
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, atol=1e-4, rtol=1e-5)  # logits up to 50
    back = import_transformers(tmp_path / "out").model
    assert torch.equal(back(tokens), ours(tokens))


@pytest.mark.parametrize(
    ("rows", "tied"), [(264, False), (288, True), (320, False), (384, True), (512, False)]
)
def test_a_padded_llama_is_imported_without_its_padding(tmp_path, rows, tied):
    theirs = their_model(**SHAPES["plain"], tie_word_embeddings=tied, vocab_size=rows)
    loaded = import_transformers(saved(theirs, tmp_path / "theirs"))
    assert loaded.config.vocab_size == loaded.model.embedding.num_embeddings == V
    tokens = random_tokens(loaded.model)
    expected = theirs(tokens).logits[..., :V]
    torch.testing.assert_close(loaded.model(tokens), expected, atol=1e-5, rtol=1e-5)
    save_model(tmp_path / "ours", loaded.model, loaded.tokenizer_json, loaded.meta)
    assert torch.equal(load_model(tmp_path / "ours").model(tokens), loaded.model(tokens))


def test_a_model_in_training_is_exported_with_its_padding(tmp_path):
    ours = scramble(our_model(vocab_multiple=64)).bfloat16()
    export_transformers(tmp_path / "out", ours, TOKENIZER.to_str())
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert theirs.dtype == torch.bfloat16
    ours, theirs = ours.float(), theirs.float()
    tokens = random_tokens(ours)
    expected = theirs(tokens).logits
    assert expected.shape[-1] == 320
    torch.testing.assert_close(ours(tokens), expected[..., :V], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", [AutoTokenizer, PreTrainedTokenizerFast])
def test_the_exported_tokenizer_loads_and_splits_the_same(tmp_path, kind):
    export_transformers(tmp_path / "out", our_model(), TOKENIZER.to_str())
    theirs = kind.from_pretrained(tmp_path / "out")
    text = "Once upon a time,\n there wäs…<|endoftext|>"
    assert theirs(text)["input_ids"] == TOKENIZER.encode(text).ids
    assert theirs.decode(TOKENIZER.encode(text).ids) == text
    assert (theirs.eos_token, theirs.pad_token) == ("<|endoftext|>", "<|pad|>")
    assert theirs.model_max_length == 40
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["clean_up_tokenization_spaces"] is False  # transformers before 4.45 cleans up
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"]) == (256, 257)


@pytest.mark.parametrize("export", [export_transformers, export_hub])
def test_an_export_ends_a_text_at_each_token_that_ended_it_here(tmp_path, export):
    """It had one EOS, and transformers wrote on past the others."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<|eot|>"])
    ours = our_model(vocab_size=V + 1)
    meta = {"end": "<|eot|>", "stops": ["<|pad|>", "<|eot|>"]}
    export(tmp_path / "out", ours, tokenizer.to_str(), meta)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eos_token_id"] == [V, 256, 257]  # the second is <|endoftext|>
    loaded = open_directory(tmp_path / "out")
    assert loaded.meta["end"] == "<|eot|>"
    assert set(meta["stops"]) <= set(loaded.meta["stops"])


KNOWN = {"field": "story", "valid_fraction": 0.01}


@pytest.mark.parametrize("export", [export_transformers, export_hub])
def test_an_export_says_which_stories_were_held_out(tmp_path, export):
    """It was asked about stories that it had been trained on."""
    export(tmp_path / "out", our_model(), TOKENIZER.to_str(), KNOWN)
    for opened in (open_directory(tmp_path / "out"), load_pretrained(str(tmp_path / "out"))):
        assert opened.meta.items() >= KNOWN.items()


def test_a_llama_that_transformers_saved_says_it_too(tmp_path):
    export_transformers(tmp_path / "out", our_model(), TOKENIZER.to_str(), KNOWN)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=False)
    directory = saved(theirs, tmp_path / "theirs")
    assert import_transformers(directory).meta.items() >= KNOWN.items()
    edit(directory, remnant={"valid_fraction": "x"})
    for read in (import_transformers, load_pretrained):
        with one_line(ModelError, "config.json: valid_fraction is 'x'"):
            read(str(directory))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"mixers": ("flat",)}, "mixers=['flat']"),
        ({"mixers": ("attention", "flat")}, "mixers=['attention', 'flat']"),
        ({"mixers": ("attention+flat",)}, "mixers=['attention+flat']"),
        ({"mixers": ("attention", "attention(heads=2)")}, "mixers=['attention', 'attention(he"),
        ({"mixers": ("tests.arch.leaks.Turned",)}, "mixers=['tests.arch.leaks.Turned']"),
        ({"channel_mixer": "gelu"}, "channel_mixer=gelu"),
        ({"norm": "layernorm"}, "norm=layernorm"),
        ({"final_norm": False}, "final_norm=False"),
        (
            {"mixers": ("attention", "attention(qk_norm=true)")},
            "mixers=['attention', 'attention(qk",
        ),
        (
            {"mixers": ("attention(qk_norm=true)",), "norm_eps": 1e-6},
            "norm_eps=1e-06 beside qk_norm",
        ),
        (
            {"mixers": ("attention(qk_norm=true)",), "channel_mixer": "swiglu(bias=true)"},
            "channel_mixer=swiglu(bias=true)",
        ),
    ],
)
def test_a_model_that_is_no_llama_is_not_exported(tmp_path, settings, named):
    with one_line(ModelError, f"not Llama-style: {named}"):
        export_transformers(tmp_path / "out", our_model(**settings), TOKENIZER.to_str())
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; allowed for an import: 'llama'"),
        ({"vocab_size": ...}, "config.json lacks vocab_size"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; allowed for an import: 'silu'"),
        ({"model_type": "qwen3"}, "rms_norm_eps is 1e-06; allowed for an import: 1e-05"),
        ({"head_dim": 16}, "head_dim is 16; allowed for an import: 8"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type is 'llama3'; allowed for an imp"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type is 'linear'"),
        ({"vocab_size": V + 1}, f"has {V} entries, the model has {V + 1}; use the tokenizer that"),
        ({"intermediate_size": 47}, "the weights do not fit the configuration"),
        ({"num_hidden_layers": 4}, "n_layers is 4"),
        ({"num_attention_heads": 3, "head_dim": None}, "heads=3 must divide d_model=32"),
    ],
)
def test_a_llama_that_cannot_be_ours_says_why(llama_directory, changes, message):
    edit(llama_directory, **changes)
    with one_line(ModelError, message):
        import_transformers(llama_directory)
