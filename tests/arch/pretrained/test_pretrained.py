"""Transformers models behind our contract, on small random ones; transformers is the judge."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import IncompleteSnapshotError
from tokenizers import Tokenizer

from arch import ModelError, generate, load_pretrained, save_model
from arch.__main__ import main
from arch.pretrained.decoder import is_whole
from arch.pretrained.pretrained import PretrainedModel
from tests.arch.cases import (
    assert_causal_model,
    assert_model_continues,
    byte_tokenizer,
    random_tokens,
    tokenizer_json,
)
from tests.said import one_line

transformers = pytest.importorskip("transformers")
AutoModelForCausalLM = transformers.AutoModelForCausalLM

V, T, D = 258, 24, 32
LLAMA = {"hidden_size": D, "intermediate_size": 48, "num_hidden_layers": 3,
         "num_attention_heads": 4, "max_position_embeddings": T,
         "initializer_range": 0.2}  # fmt: skip
GPT = {"n_positions": T, "n_embd": D, "n_layer": 3, "n_head": 4, "initializer_range": 0.2}
OPT = {"hidden_size": D, "word_embed_proj_dim": D, "ffn_dim": 48, "num_hidden_layers": 3,
       "num_attention_heads": 4, "max_position_embeddings": T, "init_std": 0.2}  # fmt: skip
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8}  # fmt: skip
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
GROUPED = {**LLAMA, "num_key_value_heads": 2}
FAMILIES = {
    "gpt2": ("GPT2", GPT),
    "gpt2, scores scaled by layer": ("GPT2", {**GPT, "scale_attn_by_inverse_layer_idx": True}),
    "llama 1": ("Llama", LLAMA),
    "llama 2, grouped, scaled": ("Llama", {**GROUPED, "rope_parameters": LINEAR_ROPE}),
    "llama 3": ("Llama", {**LLAMA, "num_key_value_heads": 1, "head_dim": 16,
                          "tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}),
    "llama, a window that it has not": ("Llama", {**GROUPED, "sliding_window": 4}),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": T + 1}),
    "mistral, a window": ("Mistral", {**GROUPED, "sliding_window": 7}),
}  # fmt: skip
families = pytest.mark.parametrize("family", FAMILIES)


def random_model(name: str, dtype: torch.dtype, settings: dict[str, Any]) -> Any:
    """A random model of transformers, by the name of its configuration."""
    tokens = {"vocab_size": V, "bos_token_id": 256, "eos_token_id": 256, "pad_token_id": 257}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**tokens, **settings})
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    return model.requires_grad_(False)


def their_model(family: str, dtype=torch.float64, **changes) -> Any:
    """A random model of theirs; biases and norms are random too."""
    name, settings = FAMILIES[family]
    model = random_model(name, dtype, {**settings, **changes})
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def saved(model: Any, path: Path, tokenizer: Any = None) -> str:
    """Saves a model of theirs with a tokenizer; the place."""
    model.save_pretrained(path)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer or byte_tokenizer())
    fast.save_pretrained(path)
    return str(path)


def pair(family: str, **changes) -> tuple[Any, Any]:
    theirs = their_model(family, **changes)
    return theirs, PretrainedModel(theirs)


def assert_near(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


@families
def test_hidden_states_and_logits_are_transformers_own(family):
    theirs, ours = pair(family)
    tokens = random_tokens(ours)
    assert ours.config.context == tokens.shape[1] == T
    expected = theirs(tokens, output_hidden_states=True)
    embeddings = ours.embed(tokens)
    assert torch.equal(embeddings, theirs.get_input_embeddings()(tokens))
    assert_near(ours.with_positions(embeddings), expected.hidden_states[0])
    for layer in (1, 2):
        assert_near(ours.hidden(embeddings, layer), expected.hidden_states[layer])
    last = ours.norm(ours.hidden(embeddings, 3))  # theirs is after the final norm
    assert_near(last, expected.hidden_states[3])
    assert_near(ours(tokens), expected.logits)
    assert_model_continues(ours, tokens, 2, (5, 14))
    assert_causal_model(ours, tokens, (1, 11, 23))


@families
def test_recomposed_parts_are_the_whole_layer(family):
    theirs, ours = pair(family)
    layers = next(m for m in theirs.modules() if isinstance(m, torch.nn.ModuleList))
    seen = []
    for layer in layers:
        layer.register_forward_hook(
            lambda _, inputs, options, output: seen.append(
                (inputs[0] if inputs else options["hidden_states"], output)
            ),
            with_kwargs=True,
        )
    theirs(random_tokens(ours))
    assert len(seen) == len(ours.blocks) == 3
    for block, (x, whole) in zip(ours.blocks, seen, strict=True):
        whole = whole[0] if isinstance(whole, tuple) else whole
        mixed = block.token_mixer(block.norm_token(x))
        recomposed = x + mixed + block.channel_mixer(block.norm_channel(x + mixed))
        assert_near(recomposed, whole)
        torch.testing.assert_close(block.combine(x, mixed), recomposed)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.bfloat16, 0.05), (torch.float16, 0.05), (torch.float32, 1e-3)]
)
def test_parts_may_differ_from_the_whole_model_by_what_their_precision_rounds(dtype, bound):
    parts = PretrainedModel(their_model("llama 1", dtype))

    def whole(error: float, value: float = 0.0) -> Any:
        def run(tokens: torch.Tensor, **_: Any) -> SimpleNamespace:
            logits = parts(tokens).double()
            logits[0, 0, 0] += error * max(1.0, float(logits.abs().max())) + value
            return SimpleNamespace(logits=logits)

        return run

    assert is_whole(parts, whole(0.0))
    assert is_whole(parts, whole(0.8 * bound))
    assert not is_whole(parts, whole(1.3 * bound))
    assert not is_whole(parts, whole(0.0, torch.nan))


@pytest.mark.parametrize("family", ["gpt2", "llama 2, grouped, scaled"])
def test_greedy_text_is_transformers_own(family):
    theirs, ours = pair(family, dtype=torch.float32)
    prompt = random_tokens(ours, batch=2, length=4)
    expected = theirs.generate(prompt, max_new_tokens=16, do_sample=False, eos_token_id=None)
    assert torch.equal(generate(ours, prompt, 16, temperature=0), expected)


@pytest.mark.parametrize("family", ["gpt2", "llama 1"])  # tied, not
def test_a_saved_model_loads_with_its_tokenizer_and_without_rows_that_no_token_has(
    family, tmp_path
):
    theirs = their_model(family, dtype=torch.float32, vocab_size=V + 14)
    saved(theirs, tmp_path / "small")
    loaded = load_pretrained(str(tmp_path / "small"))
    tokens, config = random_tokens(loaded.model), loaded.config
    assert not loaded.model.training
    expected = theirs(tokens).logits[..., :V]
    torch.testing.assert_close(loaded.model(tokens), expected, atol=1e-4, rtol=1e-5)
    assert config is loaded.model.config
    assert (config.vocab_size, config.d_model, config.n_layers) == (V, D, 3)
    assert loaded.model.embedding.num_embeddings == V
    assert config.mixers == (theirs.config.model_type,)
    assert config.norm == ("rmsnorm" if family == "llama 1" else "layernorm")
    assert config.tied == (family == "gpt2")
    assert (loaded.meta["name"], loaded.meta["precision"]) == ("small", "float32")
    found = Tokenizer.from_str(loaded.tokenizer_json).encode("hi\n").ids
    assert found == byte_tokenizer().encode("hi\n").ids
    half = load_pretrained(str(tmp_path / "small"), dtype=torch.bfloat16).model
    assert half.head.weight.dtype == torch.bfloat16
    assert half(tokens).isfinite().all()


@pytest.mark.parametrize("junk", [False, True])
def test_a_model_that_cannot_be_read_says_so_in_one_line(tmp_path, junk):
    place = Path(saved(their_model("gpt2"), tmp_path)) if junk else tmp_path / "nothing"
    if junk:
        (place / "model.safetensors").write_bytes(b"junk" * 100)
    with one_line(ModelError, str(place)):
        load_pretrained(str(place))


@pytest.mark.parametrize("kind", [{"model_type": "t5", "is_encoder_decoder": True},
                                  {"model_type": "vit"}, {"model_type": "unknown"}])  # fmt: skip
def test_another_kind_of_model_is_refused_before_its_weights_are_fetched(
    kind, llama, cache, monkeypatch, capsys, tmp_path
):
    name, fetched, fetch = cache(llama(config=kind)), [], huggingface_hub.snapshot_download

    def note(name, *, allow_patterns, **more):
        fetched.extend(allow_patterns)
        return fetch(name, allow_patterns=allow_patterns, **more)

    monkeypatch.setattr("huggingface_hub.snapshot_download", note)
    with one_line(ModelError, name):
        load_pretrained(name)
    assert main(["import", f"hub:{name}", str(tmp_path / "out")]) == 2
    assert f"model_type is '{kind['model_type']}'" in capsys.readouterr().err
    assert set(fetched) == {"*.json"}


def test_an_incomplete_copy_in_the_cache_is_said(llama, cache, monkeypatch, capsys):
    """Names of tokens, and so figures, were others than with the network, without a word."""
    name, fetch = cache(llama()), huggingface_hub.snapshot_download
    load_pretrained(name)
    assert "incomplete" not in capsys.readouterr().err

    def fetch_a_part(name, *, allow_patterns, **more):
        held = fetch(name, allow_patterns=allow_patterns, **more)
        raise IncompleteSnapshotError("is incomplete: tokenizer_config.json", snapshot_path=held)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch_a_part)
    load_pretrained(name)
    assert capsys.readouterr().err.count("tokenizer_config.json") == 1


def test_without_transformers_the_fix_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with one_line(ModelError, "need transformers; fix, in the checkout: pip install"):
        load_pretrained("gpt2")


def test_a_wrapped_model_is_not_saved_as_ours(tmp_path):
    with pytest.raises(ModelError, match="a wrapped gpt2 model cannot be saved here"):
        save_model(tmp_path / "m", pair("gpt2")[1], tokenizer_json(V), {})
    assert not any(tmp_path.iterdir())
