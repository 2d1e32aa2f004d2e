"""One door to models: a module answers as its directory does; what was fitted to one is kept."""

import json
from typing import Any

import pytest
import torch
import transformers
from torch.nn.utils import prune

import eval as evals
from arch import LanguageModel, ModelError, embedding_scale, load_model, save_model
from eval.models.checkpoint import model_directory, open_checkpoint, open_model
from eval.models.controls import derive
from eval.models.identity import weights_hash
from eval.models.memory import candidates_at_once, host_memory, rows_at_once
from eval.rows.fits import fitted
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained import test_decoder
from tests.arch.pretrained.test_pretrained import random_model, their_model
from tests.conftest import VOCAB
from tests.said import one_line
from tokenizer import open_corpus, train_tokenizer

ASKED: dict[str, Any] = {"text": "Tom sat.", "layers": 2, "solvers": "sweep"}


@pytest.fixture(params=["gpt2", "ours"])
def module(request, small_model):
    """A model in memory that is being trained."""
    made = their_model("gpt2", dtype=torch.float32) if request.param == "gpt2" else small_model()
    return made.train()


def test_a_module_answers_as_its_directory_does_and_stays_as_it_is(
    module, tmp_path, small_tokenizer
):
    ours = isinstance(module, LanguageModel)
    tokenizer: Any = small_tokenizer if ours else fast_tokenizer()
    before = {n: (p.shape, p.requires_grad) for n, p in module.named_parameters()}
    opened = evals.open_model(module, tokenizer=tokenizer, name="mine")
    result = evals.invert(opened, **ASKED)
    assert {n: (p.shape, p.requires_grad) for n, p in module.named_parameters()} == before
    assert module.training
    assert all(row["checkpoint"]["name"] == "mine" for row in result.rows)
    if ours:
        shown = opened.model.embedding.weight
        assert shown.untyped_storage().data_ptr() == module.embedding.weight.data_ptr()
        assert derive(opened, "identity").meta["name"] == "mine [identity]"
        return
    module.save_pretrained(tmp_path / "small")
    tokenizer.save_pretrained(tmp_path / "small")
    saved = evals.invert(f"hf:{tmp_path / 'small'}", **ASKED)
    fields = ("truth", "found", "rank", "floor", "residual")
    for name in fields:
        assert [row[name] for row in result.rows] == [row[name] for row in saved.rows]
    hashes = {r.rows[0]["checkpoint"]["weights_sha256"] for r in (result, saved)}
    assert hashes == {opened.weights_sha256}


def test_other_weights_in_memory_are_another_model(small_model, small_tokenizer):
    module = small_model()
    first = evals.open_model(module, tokenizer=small_tokenizer)
    with torch.no_grad():
        module.embedding.weight.mul_(2)
    second = evals.open_model(module, tokenizer=small_tokenizer)
    assert first.provenance["name"] == second.provenance["name"] == "LanguageModel"
    assert first.model_id != second.model_id


@pytest.mark.parametrize("fused", [False, True])  # a fused step writes without counting it
def test_an_open_model_that_is_trained_on_is_refused(small_model, small_tokenizer, fused):
    """Its rows would have been those of the weights before."""
    module = small_model().requires_grad_()
    opened = evals.open_model(module, tokenizer=small_tokenizer)
    module(torch.tensor([[1, 2, 3]])).logsumexp(-1).sum().backward()
    torch.optim.AdamW(module.parameters(), fused=fused).step()
    with one_line(evals.RequestError, "open it again"):
        evals.loss([opened], text="Tom sat.")


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.blocks[1].token_mixer.gate.fill_(0.5),
        lambda module: module.embedding.weight.data[5].zero_(),
    ],
    ids=["a buffer", "one row of a weight, uncounted"],
)
def test_an_open_model_that_is_written_to_is_refused(small_model, small_tokenizer, change):
    """What was computed of the model before was mixed with what it gives now."""
    module = small_model(mixers=("flat", "tests.arch.leaks.ForwardOnly"))
    opened = evals.open_model(module, tokenizer=small_tokenizer)
    assert evals.loss([opened], text="Tom sat.").rows
    change(module)
    with one_line(evals.RequestError, "open it again"):
        evals.loss([opened], text="Tom sat.")


def test_a_module_is_opened_however_it_was_made(small_model, small_tokenizer):
    """Compiled, wrapped to be trained in parallel, or made in inference mode."""
    with torch.inference_mode():
        made = small_model()
    compiled = torch.compile(small_model(), backend="eager")
    modules: Any = small_model(), compiled, torch.nn.DataParallel(small_model()), made
    models = [open_model(module, tokenizer=small_tokenizer, name="m") for module in modules]
    found = {model: evals.invert(model, **ASKED).rows for model in models}  # a model is a key
    assert len({rows[0]["residual"] for rows in found.values()}) == 1
    assert len({model.model_id for model in found}) == 1 < len(found)


def test_what_is_no_model_is_refused(model_directory):
    given: Any = load_model(model_directory())
    for ask in (evals.open_model, lambda model: evals.loss(model, text="Tom sat.")):
        with one_line(evals.RequestError, "LoadedModel"):
            ask(given)


def test_a_model_that_sees_the_future_is_refused(small_model, small_tokenizer):
    module = small_model(mixers=("flat", "tests.arch.leaks.Mean"))
    with one_line(ModelError, "layer 2 (Mean) is not causal"):
        evals.open_model(module, tokenizer=small_tokenizer)


def fast_tokenizer() -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())


GB = 1 << 30
UNLIMITED = 9223372036854771712  # as version 1 says it


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"": (8 * GB, 3 * GB, GB)}, 6 * GB),  # a container's root
        ("0::/a/b", {"a/b": (2 * GB, 0, 0), "a": (8 * GB, 7 * GB, 0)}, GB),
        ("0::/a", {"other": (GB, 0, 0)}, 64 * GB),
        ("4:memory:/d\n0::/", {"memory": (UNLIMITED, GB, 0), "memory/d": (4 * GB, GB, 0)}, 3 * GB),
        # the file system shows the container its own group as the root
        ("4:memory:/docker/1\n3:cpu:/", {"memory": (4 * GB, 3 * GB, GB)}, 2 * GB),
    ],
)
def test_a_container_s_limit_is_the_machine_s_memory(
    tmp_path, monkeypatch, groups, files, expected
):
    page = {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 1 << 24}
    monkeypatch.setattr("os.sysconf", page.get)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups + "\n")
    for group, values in files.items():
        place = tmp_path / "sys" / "fs" / "cgroup" / group
        place.mkdir(parents=True, exist_ok=True)
        first = group.startswith("memory")
        names = ("limit_in_bytes", "usage_in_bytes") if first else ("max", "current")
        for name, value in zip(names, values, strict=False):
            (place / f"memory.{name}").write_text(f"{value}\n")
        dropped = "total_inactive_file" if first else "inactive_file"
        (place / "memory.stat").write_text(f"anon 5\n{dropped} {values[2]}\nfile 7\n")
    assert host_memory(tmp_path) == expected


def test_a_batch_is_what_the_memory_bears(model_directory, monkeypatch):
    checkpoint = open_checkpoint(model_directory())
    assert rows_at_once(checkpoint.model, 8) == 64
    assert candidates_at_once(checkpoint.model) == 1024
    page = {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 1 << 10}
    monkeypatch.setattr("os.sysconf", page.get)
    few = [rows_at_once(checkpoint.model, length) for length in (1, 4, 16, 32)]
    assert few == sorted(few, reverse=True)
    assert 1 <= few[-1] < few[0] <= 64


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("run@best", "run/models/step-000000"),
        ("kept@best", "kept/best"),
        ("run", "run/models/step-000010"),
        ("run/models", "run/models/step-000010"),
        ("run@0", "run/models/step-000000"),
        ("run@10", "run/models/step-000010"),
        ("run/models/step-000000", "run/models/step-000000"),
        ("long", "long/models/step-1000000"),
        ("long@999500", "long/models/step-999500"),
        ("nowhere", "nowhere"),
    ],
)
def test_a_run_stands_for_its_models(given, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run, step in (("run", 0), ("run", 10), ("long", 999_500), ("long", 1_000_000)):
        path = tmp_path / run / "models" / f"step-{step:06d}"
        path.mkdir(parents=True)
        (path / "meta.json").write_text(json.dumps({"val_loss": 1 + step}))
    (tmp_path / "kept" / "best").mkdir(parents=True)
    (tmp_path / "kept" / "best" / "meta.json").write_text("{}")
    assert str(model_directory(given)) == expected


def test_a_folder_of_runs_is_refused_with_their_names(tmp_path):
    for run in ("flat", "llama"):
        path = tmp_path / "runs" / run / "models" / "step-000010"
        path.mkdir(parents=True)
        (path / "meta.json").write_text("{}")
    with pytest.raises(ModelError, match=r"runs/flat .*runs/llama"):
        model_directory(tmp_path / "runs")
    with pytest.raises(ModelError, match="flat@best"):
        model_directory(f"{tmp_path}/runs/flat@best")
    with pytest.raises(ModelError, match="steps saved: 10"):
        model_directory(f"{tmp_path}/runs/flat@7")


TEXT = [torch.arange(6)[None]]


def test_a_fit_is_kept_by_model_question_and_text(model_directory, tmp_path):
    models = [open_model(model_directory("flat", step, d_model=16), "cpu") for step in (0, 5)]
    kept = {"map": torch.randn(3, 2).T, "bias": torch.arange(4)}
    asked = [
        (models[0], {"layer": 1}, TEXT),
        (models[1], {"layer": 1}, TEXT),
        (models[0], {"layer": 2}, TEXT),
        (models[0], {"layer": 1}, [TEXT[0] + 1]),
    ]
    for times in (1, 0):
        for question in asked:
            fits = []
            found = fitted(tmp_path, *question, lambda fits=fits: fits.append(1) or kept)
            assert len(fits) == times
            assert all(torch.equal(found[name], tensor) for name, tensor in kept.items())
    files = sorted(tmp_path.glob("artefacts/*"))
    assert len(files) == len(asked)
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])
    with one_line(evals.RequestError, "damaged"):
        fitted(tmp_path, *asked[0], dict)


def test_a_module_with_a_scalar_is_hashed():
    class Scaled(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

    model = Scaled()
    before = weights_hash(model)
    model.scale.data += 1
    assert weights_hash(model) != before


def test_a_fresh_control_of_an_imported_model_is_untrained(small_model, small_tokenizer):
    model = open_model(small_model(), tokenizer=small_tokenizer)
    assert model.provenance["trained"]
    model.meta["tokens_seen"] = 9
    fresh = derive(model, "identity").provenance
    assert not fresh["trained"]
    assert "tokens_seen" not in fresh
    changed = derive(model, "embedding=untrained").provenance
    assert (changed["trained"], changed["tokens_seen"]) == (True, 9)


def test_an_embedding_of_another_tokenizer_is_refused(small_model, small_tokenizer, tmp_path):
    other = train_tokenizer(open_corpus("toy:60:9", "train"), vocab_size=VOCAB)
    theirs = save_model(tmp_path / "theirs", small_model(), other.to_str(), {})
    with one_line(evals.RequestError, f"--controls embedding={theirs}: its tokenizer is another"):
        derive(open_model(small_model(), tokenizer=small_tokenizer), f"embedding={theirs}")


def test_controls_have_embeddings_of_their_own(small_model, small_tokenizer, monkeypatch):
    """One was what training with seed 0 starts from; an identity network's was 50 times shorter."""
    config = small_model(embedding_std=None).config
    torch.manual_seed(0)
    model = LanguageModel(config).requires_grad_(False)
    monkeypatch.setattr("torch.cuda.manual_seed_all", None)  # other devices' numbers stay
    opened = open_model(model, tokenizer=small_tokenizer)
    drawn = derive(opened, "embedding=untrained").model.embedding.weight
    assert not torch.allclose(drawn, model.embedding.weight, atol=0.1)
    model.embedding.weight.mul_(3)
    opened = open_model(model, tokenizer=small_tokenizer)
    same = derive(opened, "identity").model
    assert embedding_scale(same) == pytest.approx(embedding_scale(model), rel=0.05)


@pytest.mark.parametrize("control", ["identity", "scale=0.02", "embedding=untrained"])
def test_controls_of_two_training_seeds_are_two_networks(control, small_model, small_tokenizer):
    """One was counted as two."""
    config, drawn, keys = small_model().config, [], set()
    for seed in (0, 1):
        torch.manual_seed(seed)
        opened = open_model(LanguageModel(config), tokenizer=small_tokenizer)
        first, again = (derive(opened, control) for _ in range(2))
        assert torch.equal(first.model.embedding.weight, again.model.embedding.weight)
        drawn.append(first.model.embedding.weight)
        keys.add(first.weights_sha256)
    assert len(keys) == 2
    assert torch.corrcoef(torch.stack(drawn).flatten(1))[0, 1].abs() < 0.1


@pytest.mark.parametrize(
    ("name", "padding"), [("gemma2", 0), ("gemma2", 6), ("falcon_h1", 0), ("llama", 6)]
)
def test_the_parameters_of_a_model_are_its_own(name, padding):
    """Rows that a model scales were counted twice, and once more where others were left out."""
    tied = {"vocab_size": 258 + padding, "tie_word_embeddings": True}
    module = test_decoder.their_model(name, **tied)
    about = open_model(module, tokenizer=byte_tokenizer()).provenance
    whole = sum(parameter.numel() for parameter in module.parameters())
    assert about["parameters"] == whole - padding * about["d_model"]


def test_a_pruned_module_is_opened():
    """Its weight is what masking makes of a parameter, which could not be copied."""
    module = their_model("llama 1", dtype=torch.float32).requires_grad_()
    tokens = torch.arange(20)[None]
    prune.l1_unstructured(module.model.layers[0].mlp.up_proj, "weight", 0.5)
    found = open_model(module, tokenizer=byte_tokenizer()).model(tokens)
    torch.testing.assert_close(found, module(tokens).logits)


def xlnet():
    config = transformers.XLNetConfig(vocab_size=258, d_model=16, n_layer=2, n_head=2, d_inner=32)
    return transformers.XLNetLMHeadModel(config)


def keeping_an_output():
    module = their_model("llama 1").requires_grad_()
    module.last = [module(torch.arange(4)[None]).logits]
    return module


@pytest.mark.parametrize(
    ("make", "said"),
    [(xlnet, "XLNetLMHeadModel cannot be loaded"),
     (keeping_an_output, "cannot be copied"),
     (lambda: their_model("llama 1").to("meta"), "on the device meta")],
)  # fmt: skip
def test_a_module_that_cannot_be_run_is_refused(make, said):
    with one_line(ModelError, said):
        open_model(make(), tokenizer=byte_tokenizer())


def test_an_rwkv_in_memory_stays_as_it_is():
    """Its weights were halved: transformers divides them where it evaluates, here in a copy."""
    module = test_decoder.their_model("rwkv", rescale_every=1)
    before = {name: weight.clone() for name, weight in module.named_parameters()}
    opened, tokens = open_model(module, tokenizer=byte_tokenizer()), torch.arange(8)[None]
    found = opened.model(tokens)
    assert all(torch.equal(weight, before[n]) for n, weight in module.named_parameters())
    torch.testing.assert_close(found, module(tokens).logits, atol=1e-3, rtol=1e-3)
    assert torch.equal(opened.model(tokens), found)
    with one_line(ModelError, "rescale_every is 1"):
        open_model(module, tokenizer=byte_tokenizer())


@pytest.mark.parametrize(
    ("generation", "config", "stops"),
    [([256, 257, 5], 256, {256, 257}), (None, 257, {256, 257}), (256, 257, {256})],
)
def test_a_module_stops_where_its_configuration_says(generation, config, stops):
    """As its directory does: at each end that is a special token."""
    module = their_model("gpt2", dtype=torch.float32)
    module.generation_config.eos_token_id, module.config.eos_token_id = generation, config
    assert set(open_model(module, tokenizer=fast_tokenizer()).stops) == stops


def test_the_length_at_which_a_rotation_changes_tells_models_apart():
    """Phi-3's factors of long texts hold from there on."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
             "num_attention_heads": 4}  # fmt: skip
    module = random_model("Phi3", torch.float32, sizes)
    hashes = set()
    for length in (16, 32):
        module.config.original_max_position_embeddings = length
        hashes.add(open_model(module, tokenizer=byte_tokenizer()).settings_sha256)
    assert len(hashes) == 2
