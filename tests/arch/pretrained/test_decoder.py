"""Any causal model of transformers, opened by its layers: transformers is the judge."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from arch import ModelError, load_pretrained
from arch.pretrained.decoder import Decoder
from arch.pretrained.pretrained import PretrainedModel, wrap_model
from tests.arch.cases import assert_model_continues, random_tokens
from tests.arch.pretrained.test_pretrained import GPT, OPT, D, V, random_model, saved
from tests.arch.pretrained.test_pretrained import LLAMA as GIVEN
from tests.said import one_line

transformers = pytest.importorskip("transformers")

T, L = 20, 3
LLAMA = GIVEN | {"num_key_value_heads": 4, "max_position_embeddings": T}
GROUPED = LLAMA | {"num_key_value_heads": 2, "head_dim": 8}
SLIDING = GROUPED | {"sliding_window": 6}
STATES = {"hidden_size": D, "num_hidden_layers": L, "state_size": 4, "initializer_range": 0.2}
NEO = {
    "hidden_size": D,
    "num_layers": L,
    "attention_types": [[["global", "local", "global"], 1]],
    "num_heads": 4,
    "max_position_embeddings": T,
    "window_size": 4,
    "intermediate_size": 48,
    "initializer_range": 0.2,
}
CACHED = {
    "gpt2": ("GPT2", GPT),
    "gptj": ("GPTJ", GPT | {"rotary_dim": 4}),
    "opt": ("OPT", OPT),
    "opt, norms after": ("OPT", OPT | {"do_layer_norm_before": False}),
    "gpt_neo": ("GPTNeo", NEO),
    "gpt_neox": ("GPTNeoX", LLAMA),
    "bloom": ("Bloom", {"hidden_size": D, "n_layer": L, "n_head": 4, "initializer_range": 0.2}),
    "llama": ("Llama", LLAMA),
    "mistral": ("Mistral", SLIDING),
    "qwen2": ("Qwen2", GROUPED),
    "qwen3": ("Qwen3", GROUPED),
    "gemma2": ("Gemma2", SLIDING),
    "gemma3": ("Gemma3Text", SLIDING),
    "phi3": ("Phi3", LLAMA | {"rope_scaling": None}),
    "olmo2": ("Olmo2", LLAMA),
    "falcon": ("Falcon", {"hidden_size": D, "num_hidden_layers": L, "num_attention_heads": 4}),
    "cohere": ("Cohere", LLAMA),
    "qwen2_moe": (
        "Qwen2Moe",
        GROUPED
        | {
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 8,
        },
    ),
    "mixtral": ("Mixtral", GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "modernbert-decoder": (
        "ModernBertDecoder",
        {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
        | {"local_attention": 12, "global_attn_every_n_layers": 2},
    ),
}
RECURRENT = {
    "mamba": ("Mamba", STATES),
    "mamba2": ("Mamba2", STATES | {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}),
    "rwkv": ("Rwkv", {"hidden_size": D, "num_hidden_layers": L, "attention_hidden_size": D,
                      "context_length": T}),
    "recurrent_gemma": ("RecurrentGemma", GROUPED),
    "falcon_h1": ("FalconH1", GROUPED | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16,
                                         "mamba_d_state": 8, "embedding_multiplier": 3.0}),
}  # fmt: skip
MODELS = CACHED | RECURRENT
SHIFTED = {"mamba", "mamba2", "rwkv"}  # their first hidden state is the first layer's output


def their_model(name, **changes):
    family, settings = MODELS[name]
    return random_model(family, torch.float32, {**settings, **changes})


@pytest.fixture
def tokens():
    return torch.randint(V, (2, T), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_streams_logits_gradients_and_states_are_transformers_own(name, tokens):
    theirs = their_model(name)
    ours = Decoder(theirs)
    assert ours.runner.cached == (name in CACHED)  # keys and values are remembered
    expected = theirs(tokens, output_hidden_states=True)
    embeddings = ours.embed(tokens)
    # Falcon-H1's body multiplies those of token ids alone: its logits were a third's.
    scale = getattr(theirs.config, "embedding_multiplier", 1.0)
    torch.testing.assert_close(embeddings, scale * theirs.get_input_embeddings()(tokens))
    assert torch.equal(embeddings, ours.embedding.weight[tokens])
    for layer in range(1, L):
        stream = ours.hidden(embeddings, layer)
        torch.testing.assert_close(stream, expected.hidden_states[layer - (name in SHIFTED)])
    torch.testing.assert_close(ours(tokens), expected.logits, atol=1e-4, rtol=1e-4)
    stream = ours.hidden(embeddings, L)
    joined = ours.logits(stream.reshape(1, -1, D))  # more positions than some families have
    torch.testing.assert_close(
        joined.view_as(expected.logits), expected.logits, atol=1e-4, rtol=1e-4
    )
    last = ours.norm(stream)
    torch.testing.assert_close(last, expected.hidden_states[-1], atol=1e-5, rtol=1e-4)
    assert_model_continues(ours, tokens, 2, (5, 12), atol=1e-4, rtol=1e-4)
    embeddings = embeddings.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(ours.hidden(embeddings, L)[:, 7].square().sum(), embeddings)
    assert gradient[:, :8].abs().sum() > 0
    assert not gradient[:, 8:].any()


def test_experts_are_read_whose_scores_training_asked_for(tokens):
    """Their scores are of layers that run; what steps over the layers has none."""
    theirs = their_model("mixtral", output_router_logits=True)
    expected = theirs(tokens, output_router_logits=False).logits
    torch.testing.assert_close(wrap_model(theirs)(tokens), expected, atol=1e-4, rtol=1e-4)


def test_the_model_works_as_before_when_it_is_opened(tokens):
    theirs = their_model("llama")
    before = theirs(tokens).logits
    Decoder(theirs)(tokens)
    assert torch.equal(theirs(tokens).logits, before)


def test_a_model_that_reads_more_than_embeddings_is_refused():
    theirs = their_model("qwen2")
    forward, rows = theirs.forward, theirs.get_input_embeddings()

    def read(input_ids=None, inputs_embeds=None, **options):
        given = rows(input_ids).flip(-1) if inputs_embeds is None else inputs_embeds
        return forward(inputs_embeds=given, **options)

    theirs.forward = read
    with pytest.raises(ModelError, match="other logits of token ids than of their embeddings"):
        Decoder(theirs)


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_a_layer_whose_forward_was_replaced_is_run_as_it_is(name, tokens):
    """As who steers a model by hand does; the replacement was dropped, without a word."""
    theirs = their_model(name)
    forward = theirs.model.layers[1].forward
    theirs.model.layers[1].forward = lambda x, *given, **more: forward(1.5 * x, *given, **more)
    expected = theirs(tokens).logits
    ours = wrap_model(theirs)
    torch.testing.assert_close(ours(tokens), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(theirs(tokens).logits, expected)


def test_what_is_known_of_a_family_is_used():
    assert isinstance(wrap_model(their_model("gpt2")), PretrainedModel)
    assert isinstance(wrap_model(their_model("opt, norms after")), Decoder)
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert isinstance(wrap_model(their_model("llama", rope_parameters=dynamic)), Decoder)


def test_a_saved_model_is_loaded(tmp_path):
    theirs = their_model("gemma3")
    loaded = load_pretrained(saved(theirs, tmp_path / "small"))
    moe = load_pretrained(saved(their_model("qwen2_moe"), tmp_path / "moe"))
    assert moe.config.mixers == ("qwen2_moe",)
    tokens = random_tokens(loaded.model)[:, :T]
    torch.testing.assert_close(loaded.model(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)
    assert loaded.config.mixers == (theirs.config.model_type,)
    assert (loaded.config.vocab_size, loaded.config.d_model, loaded.config.n_layers) == (V, D, L)


PICTURES = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2,
            "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}  # fmt: skip
TURNED = {"type": "mrope", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}  # as on the hub
SEEING = {
    "Gemma3": (SLIDING, PICTURES, {"mm_tokens_per_image": 4, "image_token_index": V - 1}),
    "Gemma3, as many layers": (SLIDING, PICTURES | {"num_hidden_layers": L},
                               {"mm_tokens_per_image": 4, "image_token_index": V - 1}),
    "Mistral3": (GROUPED | {"model_type": "mistral"},
                 PICTURES | {"model_type": "pixtral", "head_dim": 4},
                 {"image_token_index": V - 1}),
    "Qwen2_5_VL": (GROUPED | {"rope_parameters": TURNED},
                   {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2,
                    "out_hidden_size": D}, {}),
    "Llama4": (GROUPED | {"num_local_experts": 2, "intermediate_size_mlp": 48},
               PICTURES | {"vision_output_dim": 8}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEING)
def test_the_text_part_of_a_model_that_reads_pictures_too_is_loaded(name, tmp_path, tokens, capsys):
    """Its pictures' part has fewer positions than a text, and may have as many layers."""
    (text, pictures, more), family = SEEING[name], name.partition(",")[0]
    ids = {"vocab_size": V, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    parts = {"text_config": text | ids, "vision_config": pictures}
    config = getattr(transformers, f"{family}Config")(**parts, **more)
    torch.manual_seed(0)
    theirs = transformers.AutoModelForImageTextToText.from_config(config).eval()
    file = Path(saved(theirs, tmp_path / "small"), "config.json")
    known = json.loads(file.read_text())
    known["text_config"]["logit_scale"] = 3.0
    file.write_text(json.dumps(known))
    loaded = load_pretrained(str(file.parent))
    assert "logit_scale 3.0, which transformers'" in capsys.readouterr().err
    torch.testing.assert_close(loaded.model(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)
    assert_model_continues(loaded.model, tokens, 2, (5, 12), atol=1e-4, rtol=1e-4)


def test_a_recurrence_whose_stream_is_halved_on_the_way_is_loaded(tmp_path, tokens):
    """What transformers does against overflow in half precision changes no logit."""
    loaded = load_pretrained(saved(their_model("rwkv", rescale_every=1), tmp_path / "small"))
    expected = their_model("rwkv", rescale_every=1)(tokens).logits
    torch.testing.assert_close(loaded.model(tokens), expected, atol=1e-3, rtol=1e-3)


LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 9, "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
MPT = {"d_model": D, "n_layers": L, "n_heads": 4, "max_seq_len": 9}


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Gemma3Text", SLIDING | {"rope_parameters": {"sliding_attention": PLAIN,
                                                      "full_attention": LONG}}),
        ("Llama", LLAMA | {"rope_parameters": LONG}),
        ("Mpt", MPT),
    ],
)  # fmt: skip
def test_the_context_ends_where_angles_change_or_positions_end(family, settings):
    assert wrap_model(random_model(family, torch.float32, settings)).config.context == 9


def t5(path):
    config = transformers.T5Config(vocab_size=V, d_model=D, d_kv=8, d_ff=32, num_layers=1)
    return saved(transformers.T5ForConditionalGeneration(config), path)


def bert(path):
    settings = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    return saved(
        transformers.BertLMHeadModel(transformers.BertConfig(vocab_size=V, **settings)), path
    )


def misfit(path):
    return saved(their_model("bloom"), path, Tokenizer(WordLevel({str(n): n for n in range(260)})))


def narrow(path):
    return saved(their_model("opt", word_embed_proj_dim=D // 2), path)


def cut_short(path):
    path.mkdir()
    (path / "m.gguf").write_bytes(b"GGUF\x03\0\0\0")
    return str(path / "m.gguf")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (t5, "is an encoder and a decoder; give a decoder-only model"),
        (bert, "/m: bert is not causal: a later token changes earlier outputs"),
        (misfit, "its tokenizer has ids up to 259, its embedding 258 rows; give the tokenizer"),
        (narrow, f"opt has an embedding {D // 2} wide and a stream {D} wide"),
        (cut_short, "m.gguf cannot be loaded: "),
        (lambda path: str(path / "none.gguf"), "none.gguf cannot be loaded: there is no such file"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_opened_is_refused_in_one_line(make, message, tmp_path):
    with one_line(ModelError, message):
        load_pretrained(make(tmp_path / "m"))


def test_a_gguf_file_needs_its_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match="needs the package gguf; fix: pip install gguf"):
        load_pretrained(str(tmp_path / "m.gguf"))


def families_table() -> str:
    """The families that are tried here, as docs/pretrained.md lists them."""
    groups: dict[str, list[str]] = {}
    for name in MODELS:
        model = wrap_model(their_model(name))
        parts = isinstance(model, PretrainedModel)
        remembered = parts or (isinstance(model, Decoder) and model.runner.cached)
        block = "its parts" if parts else "a whole layer"
        group = f"{block} | {'keys and values' if remembered else 'inputs'}"
        groups.setdefault(group, []).append(name.replace(", norms after", " (norms after)"))
    lines = [
        "| a block here is | `prefix` remembers | families, as `model_type` |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| {group} | {', '.join(n)} |" for group, n in groups.items())])


def test_the_families_that_were_tried_stand_in_the_docs():
    text = (Path(__file__).parents[3] / "docs" / "pretrained.md").read_text(encoding="utf-8")
    assert families_table() in text


if __name__ == "__main__":
    print(families_table())
