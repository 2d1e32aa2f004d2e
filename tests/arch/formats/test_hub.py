"""Models in the hub's layout: transformers reads them by their own code, remnant without it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import arch
from arch import ModelError, export_hub, load_model, load_pretrained, save_model
from arch.__main__ import main
from arch.formats.hub import modeling_remnant
from arch.formats.hub.configuration_remnant import RemnantConfig
from arch.formats.hub.modeling_remnant import RemnantForCausalLM
from arch.pretrained.pretrained import wrap_model
from tests.arch.cases import MIXERS, byte_tokenizer, edit, random_tokens, small_model
from tests.said import complaint, one_line

TOKENIZER = byte_tokenizer()
V = TOKENIZER.get_vocab_size()
META = {
    "name": "mixed", "step": 30, "tokens_seen": 12_000, "seed": 3, "model_id": "mixed-0123456789",
    "data": "/home/somebody/data/packed", "data_source": "hub:somebody/stories",
    "val_bits_per_byte": 1.25,
}  # fmt: skip
SETTINGS = [
    {"norm": "rmsnorm", "channel_mixer": "swiglu"},
    {"channel_mixer": "silu(bias=false)"},
    {"channel_mixer": "gelu(bias=false)", "tied": True},
    {"channel_mixer": "swiglu(bias=true)", "final_norm": False, "norm_eps": 1e-3},
]


def hub_model(*mixers, **settings):
    """A model whose every tensor is drawn, its logits of order one."""
    model = small_model(*mixers, vocab_size=V, context=16, d_ff=24, **settings)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 1.0 if name.startswith("embedding") else 0.5
            torch.nn.init.normal_(parameter, std=scale / parameter.shape[-1] ** 0.5)
            parameter += float("norm" in name)
    return model


@pytest.fixture
def exported(tmp_path):
    """Writes a model of mixers; gives it and its export."""

    def make(*mixers, **settings):
        model = hub_model(*mixers, **settings)
        return model, export_hub(tmp_path / "out", model, TOKENIZER.to_str(), META)

    return make


@pytest.fixture
def hybrid(exported):
    return exported("attention(heads=2, qk_norm=true)+flat", "headed(heads=2)")


@pytest.fixture
def auto(monkeypatch, tmp_path):
    """Opens a directory as a user of transformers does, who trusts its code."""
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    monkeypatch.syspath_prepend(tmp_path / "modules")

    def load(directory):
        return AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True).eval()

    return load


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_code_of_an_export_computes_every_mixer(exported, mixer):
    model, directory = exported(mixer, **SETTINGS[len(mixer) % 3])
    theirs = RemnantForCausalLM.from_pretrained(directory).eval()
    for length in (16, 1, 7):
        tokens = random_tokens(model, length=length)
        expected = model(tokens)
        assert expected.std() > 0.1
        torch.testing.assert_close(theirs(tokens).logits, expected, atol=1e-6, rtol=1e-6)
    assert theirs(tokens, logits_to_keep=2).logits.shape == (2, 2, V)


def test_the_code_of_an_export_has_every_mixer():
    assert set(modeling_remnant.MIXERS) == set(arch.MIXERS)


def test_transformers_opens_an_export_and_generates_the_same_tokens(hybrid, auto):
    model, directory = hybrid
    theirs = auto(directory)
    assert not isinstance(theirs, RemnantForCausalLM)  # it is the directory's own class
    tokens = random_tokens(model, length=5)
    expected = arch.generate(model, tokens, 8, temperature=0)
    assert torch.equal(theirs.generate(tokens, max_new_tokens=8, do_sample=False), expected)
    streams = theirs(tokens, output_hidden_states=True).hidden_states
    assert len(streams) == 3
    torch.testing.assert_close(streams[1], model.hidden(model.embed(tokens), 1))
    loss = theirs(tokens, labels=tokens).loss
    probabilities = model(tokens)[:, :-1].log_softmax(-1)
    torch.testing.assert_close(loss, -probabilities.gather(2, tokens[:, 1:, None]).mean())
    text = "Once upon a time,\n there wäs…"
    loaded = AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
    assert loaded(text)["input_ids"] == TOKENIZER.encode(text).ids
    again = directory.parent / "again"
    theirs.save_pretrained(again)  # as after further training there
    loaded.save_pretrained(again)
    assert (again / "modeling_remnant.py").is_file()
    assert torch.equal(load_pretrained(str(again)).model(tokens), model(tokens))


def test_what_transformers_saved_of_an_export_is_another_model(tmp_path, capsys):
    """It kept the name, the step and the id: a fine-tuned model was averaged with its first."""
    model = hub_model("flat")
    provenance = {"end": "<|endoftext|>", "field": "story", "valid_fraction": 0.01}
    export_hub(tmp_path / "out", model, TOKENIZER.to_str(), META | provenance)
    RemnantForCausalLM.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "tuned")
    padded = byte_tokenizer()
    padded.add_special_tokens(["[PAD]"])  # as for training there
    (tmp_path / "tuned/tokenizer.json").write_text(padded.to_str())
    loaded = load_pretrained(str(tmp_path / "tuned"))
    known = {"name": "tuned", "source": "transformers", "stops": ["<|endoftext|>"]}
    assert loaded.meta == known | provenance
    assert "[PAD]" in capsys.readouterr().err
    assert loaded.config.vocab_size == V


def test_tokens_that_were_added_in_transformers_are_read(tmp_path):
    """As TRL adds those of a chat: the rows did not fit, the new EOS stayed unknown."""
    model = hub_model("flat")
    export_hub(tmp_path / "out", model, TOKENIZER.to_str(), META | {"end": "<|endoftext|>"})
    theirs: Any = RemnantForCausalLM.from_pretrained(tmp_path / "out")
    theirs.resize_token_embeddings(V + 1, pad_to_multiple_of=64)
    theirs.generation_config.eos_token_id = [V, 256]
    tuned = tmp_path / "tuned"
    theirs.save_pretrained(tuned)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<|im_end|>"])
    (tuned / "tokenizer.json").write_text(tokenizer.to_str())
    (tuned / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    loaded = load_pretrained(str(tuned))
    assert loaded.meta["end"] == "<|im_end|>"
    assert loaded.meta["stops"] == ["<|im_end|>", "<|endoftext|>"]
    tokens = torch.tensor([[0, 5, V]])
    expected = theirs.eval()(tokens).logits
    assert expected.shape[-1] == 320
    torch.testing.assert_close(loaded.model(tokens), expected[..., : V + 1])


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
def test_an_export_is_trained_with_checkpointed_activations(hybrid):
    """As TRL does by default: it was refused."""
    model, directory = hybrid
    theirs: Any = RemnantForCausalLM.from_pretrained(directory).train()
    tokens, gradients = random_tokens(model), []
    for _ in range(2):
        theirs.zero_grad()
        theirs(tokens, labels=tokens).loss.backward()
        gradients.append([parameter.grad for parameter in theirs.parameters()])
        theirs.gradient_checkpointing_enable()
    assert all(block.gradient_checkpointing for block in theirs.blocks)
    torch.testing.assert_close(*gradients)


def test_what_would_be_computed_wrongly_is_refused(hybrid):
    model, directory = hybrid
    theirs: Any = RemnantForCausalLM.from_pretrained(directory).eval()
    with pytest.raises(ModelError, match="hf:DIR"):  # in memory, as after a fine-tuning
        wrap_model(theirs)
    tokens = random_tokens(model, length=5)
    whole = theirs(tokens).logits
    behind = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    assert torch.equal(theirs(tokens, attention_mask=behind).logits, whole)
    for options, named in (
        ({"use_cache": True}, "use_cache"),
        ({"past_key_values": DynamicCache()}, "past_key_values"),
        ({"cache": DynamicCache()}, "cache"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1]] * 2)}, "attention_mask"),
        ({"attention_mask": torch.tensor([[1, 1, 0, 1, 1]] * 2)}, "attention_mask"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 2, 2]] * 2)}, "attention_mask"),
        ({"attention_mask": torch.zeros(2, 5)}, "attention_mask"),
        ({"attention_mask": torch.ones(2, 1, 5, 5)}, "attention_mask"),
        ({"position_ids": torch.arange(1, 6)[None]}, "position_ids"),
        ({"inputs_embeds": theirs.embedding(tokens)}, "inputs_embeds"),
        ({"labels": tokens, "shift_labels": tokens}, "shift_labels"),
        ({"labels": tokens, "logits_to_keep": 2}, "labels"),
    ):
        with one_line(ValueError, named):
            theirs(tokens, **options)
    with one_line(ValueError, "17 tokens; allowed: up to the context of 16"):
        theirs(random_tokens(model, length=17))
    for options, named in (
        ({"use_cache": True}, "cache"),
        ({"attention_mask": behind}, "attention_mask"),
        ({"attention_mask": behind.flip(1)}, "attention_mask"),
        ({"max_new_tokens": 20}, "context"),
    ):
        with one_line(ValueError, named):
            theirs.generate(tokens, **{"max_new_tokens": 1, "do_sample": False, **options})


def test_a_model_of_a_configuration_alone_is_drawn_whole():
    config = RemnantConfig(
        vocab_size=V, hidden_size=8, intermediate_size=16, num_hidden_layers=4,
        max_position_embeddings=16,
        mixers=["expanded", "depthwise+attention", "mixed(decay=learnt)", "toeplitz"],
    )  # fmt: skip
    model = RemnantForCausalLM(config)
    assert all(p.isfinite().all() and p.abs().max() < 10 for p in model.parameters())


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({}, torch.float32), ({"tied": True, "vocab_multiple": 64}, torch.bfloat16)],
)
def test_remnant_opens_an_export_as_the_model_it_is(tmp_path, settings, kind):
    model = hub_model("attention(heads=2)+flat", "kernel", **settings).to(kind)
    export_hub(tmp_path / "out", model, TOKENIZER.to_str(), META)
    (tmp_path / "out/modeling_remnant.py").write_text("raise SystemExit('this code has run')")
    loaded = load_pretrained(str(tmp_path / "out"))
    tokens = random_tokens(model)
    assert torch.equal(loaded.model(tokens), model(tokens))
    assert loaded.config.mixers == model.config.mixers
    known = {name: loaded.meta.get(name) for name in META}
    assert known == {**META, "data": None}  # a path of another machine
    assert main(["import", str(tmp_path / "out"), str(tmp_path / "back")]) == 0
    assert torch.equal(load_model(tmp_path / "back").model(tokens), model(tokens))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixers": ["os.Evil"]}, "mixer os.Evil is not built in"),
        ({"mixers": ["flt"]}, "mixer flt is not built in"),
        ({"mixers": "flat(branches=2)"}, "flat has no argument 'branches'"),
        ({"mixers": [7]}, "mixers holds 7"),
        ({"final_norm": ...}, "config.json lacks final_norm"),
        ({"norm": "batchnorm"}, "config.json: norm is 'batchnorm'"),
        ({"sliding_window": 4}, "config.json: sliding_window is 4"),
        ({"quantization_config": {"bits": 4}}, "config.json: quantization_config is {'bits': 4}"),
        ({"hidden_size": 16}, "d_model is 16, the weights have 8"),
        ({"max_position_embeddings": 12}, "mix.weight is (2, 16, 16)"),
        ({"tie_word_embeddings": True}, "config.json: tie_word_embeddings is true"),
        ({"remnant": [1]}, "config.json: remnant is [1]"),
        ({"remnant": {"step": "x"}}, "config.json: step is 'x'"),
    ],
)
def test_a_configuration_that_is_not_ours_is_refused(hybrid, changes, message):
    _, directory = hybrid
    edit(directory, **changes)
    with one_line(ModelError, message):
        load_pretrained(str(directory))


def test_an_export_that_was_compiled_is_read(hybrid, capsys):
    model, directory = hybrid
    weights = load_file(directory / "model.safetensors")
    save_file({f"_orig_mod.{n}": t for n, t in weights.items()}, directory / "model.safetensors")
    tokens = random_tokens(model)
    assert torch.equal(load_pretrained(str(directory)).model(tokens), model(tokens))
    assert "_orig_mod. is left out" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["missing", "extra", "shape", "nan"])
def test_weights_that_are_not_the_models_are_refused(hybrid, change):
    _, directory = hybrid
    weights = load_file(directory / "model.safetensors")
    name = "blocks.1.token_mixer.mix.bias"
    if change == "missing":
        del weights[name]
    elif change == "extra":
        weights["blocks.1.more"] = torch.ones(2)
    else:
        weights[name] = torch.full((2, 16 if change == "nan" else 15), torch.nan)
    save_file(weights, directory / "model.safetensors")
    with one_line(ModelError, "blocks.1.more" if change == "extra" else name):
        load_pretrained(str(directory))


def test_the_command_writes_a_card_and_uploads_when_asked(tmp_path, capsys, monkeypatch):
    calls = []

    class Hub:
        def create_repo(self, repo, **options):
            calls.append((repo, options["private"]))

        def upload_folder(self, repo_id, folder_path, **options):
            calls.append((repo_id, sorted(path.name for path in Path(folder_path).iterdir())))

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    save_model(tmp_path / "model", hub_model("flat"), TOKENIZER.to_str(), META)
    words = ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--layout", "hub"]
    assert main(words) == 0
    assert not calls
    card = ModelCard.load(tmp_path / "out/README.md", ignore_metadata_errors=False)
    front = card.data.to_dict()
    assert (front["library_name"], front["datasets"]) == ("transformers", ["somebody/stories"])
    assert "license" not in front
    (result,) = card.data.eval_results  # pyright: ignore
    assert (result.metric_type, result.metric_value) == ("bits_per_byte", 1.25)
    assert "12,000" in card.text
    texts = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    assert not [text for text in texts if b"/home" in text]

    (tmp_path / "tables.md").write_text("| self % |\n| ---: |\n| 87.5 |\n")
    (tmp_path / "out/__pycache__").mkdir()  # of whoever has loaded it
    more = ["--push", "me/flat", "--license", "mit", "--recovered", str(tmp_path / "tables.md")]
    assert main([*words, *more]) == 0
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.to_dict()["license"] == "mit"
    assert "| 87.5 |" in card.text
    assert 'from_pretrained("me/flat"' in card.text
    files = ["README.md", "config.json", "configuration_remnant.py", "generation_config.json",
             "model.safetensors", "modeling_remnant.py", "structured_remnant.py", "tokenizer.json",
             "tokenizer_config.json"]  # fmt: skip
    assert calls == [("me/flat", True), ("me/flat", files)]

    def fail(*_, **__):
        raise type("ConnectError", (Exception,), {})("no network\nmore")

    monkeypatch.setattr(Hub, "upload_folder", fail)
    capsys.readouterr()
    assert main([*words, "--push", "me/flat"]) == 2
    assert "--push me/flat: not uploaded (no network more)" in complaint(capsys)


def test_what_cannot_be_exported_is_refused(tmp_path, capsys):
    save_model(tmp_path / "model", hub_model("flat"), TOKENIZER.to_str(), META)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("kept")
    words = ["export", str(tmp_path / "model"), str(tmp_path / "out")]
    for flag, value in (("--license", "mit"), ("--recovered", "tables.md")):
        assert main([*words, flag, value]) == 2
        assert f"{flag} {value}" in complaint(capsys)
    assert main([*words, "--layout", "hub", "--recovered", str(tmp_path / "none.md")]) == 2
    assert "none.md" in complaint(capsys)
    words = ["export", str(tmp_path / "model"), str(tmp_path / "other"), "--layout", "hub"]
    assert main(words) == 2
    assert "is not a model directory" in complaint(capsys)
    model = hub_model("flat")
    model.config = replace(model.config, mixers=("own.Mixer",))
    with one_line(ModelError, "mixer own.Mixer is not built in"):
        export_hub(tmp_path / "out", model, TOKENIZER.to_str())
    assert not (tmp_path / "out").exists()
