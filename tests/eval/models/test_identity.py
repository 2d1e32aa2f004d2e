"""Which models are the same: one answer, in the summary, on the page, in W&B and in `compare`."""

import itertools
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from arch import save_model
from eval import RequestError, loss
from eval.__main__ import main
from eval.analysis.summary import summarise_rows
from eval.models.checkpoint import open_checkpoint, open_model
from eval.models.controls import derive
from eval.models.identity import labels, seed_labels
from eval.rows.store import Results, Row
from eval.views.comparison.gather import gather_models
from eval.views.page.page import render_page
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained import test_decoder
from tests.arch.pretrained.test_pretrained import their_model
from tests.eval.views.compare_cases import compared
from tests.eval.views.page.cases import Page, checkpoint_of, make_row
from tests.said import complaint, one_line
from tests.train.cases import fit, pack_toy


@pytest.fixture
def save(tmp_path, small_model, small_tokenizer):
    """Saves a model as a run does, each time other weights: `save("a/flat-s0", model_id="b")`."""
    drawn = itertools.count(1)

    def make(run, step=10, model_id="a", **about):
        model = small_model()
        torch.manual_seed(next(drawn))
        torch.nn.init.normal_(model.embedding.weight)
        meta = {"name": Path(run).name, "step": step, "model_id": model_id} | about
        path = tmp_path / run / "models" / f"step-{step:06d}"
        return save_model(path, model, small_tokenizer.to_str(), meta)

    return make


def rows_about(*models: str | Path) -> list[Row]:
    """A recovery and a lens's figure of each."""
    rows = []
    for model in models:
        about = {"checkpoint": open_checkpoint(model).provenance}
        recovery = make_row(layer=2, solver="sweep", hidden=0)
        lens = {"kind": "lens", "lens": "logit", "figure": "entropy", "layer": 2, "value": 1.0,
                "prompts": 1, "prompt_kind": "story", "length": 4, "look": "look"}  # fmt: skip
        rows += [recovery | about | {"key": f"{model}"}, lens | about | {"key": f"{model} lens"}]
    return rows


def seeds_of(rows: list[Row], out: Path) -> list[int]:
    """How many training seeds each model has, which every reader of rows says alike."""
    recoveries = [row for row in rows if row["kind"] == "recovery"]
    Results(out).append(rows)
    page = Page(render_page(recoveries))
    titles = " ".join(str(value) for name, value in page.attributes if name == "title")
    pooled = [int(n) for n in re.findall(r" x (\d+) training", titles)][:1]
    found = [
        sorted(record["models"] for record in summarise_rows(recoveries)),
        pooled or [1] * page.classes["table", "shares"],
        sorted(record["seeds"] for record in compared(out)),
    ]
    assert found == [found[0]] * 3
    return found[0]


# All readers.


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"run": "b/flat-s1"}, [2]),
        ({"run": "b/flat-s1", "model_id": "b"}, [1, 1]),
        ({"run": "b/flat-cold-s0"}, [1, 1]),
    ],
    ids=str,
)
def test_seeds_of_one_recipe_are_pooled_and_others_apart(save, tmp_path, second, expected):
    models = [save("a/flat-s0"), save(**second)]
    assert seeds_of(rows_about(*models), tmp_path / "out") == expected


def test_two_trainings_of_one_seed_are_no_seeds_of_one_model(save, tmp_path, capsys):
    """Such as a short and a long one; they were averaged, or the last step hid one of them."""
    losses = {"a/flat": (0, 3.0), "b/flat": (0, 3.5), "c/flat": (1, 3.7)}
    models = [save(run, recipe={"seed": seed}, val_loss=loss)
              for run, (seed, loss) in losses.items()]  # fmt: skip
    told = f"{tmp_path / 'a' / 'flat'} and {tmp_path / 'b' / 'flat'}: "
    rows = rows_about(*models[:2])
    Results(tmp_path / "out").append(rows)
    for words in (
        ["compare", *models[:2], "--last"],
        ["compare", *models[:2], "--every_seed"],
        ["compare", tmp_path / "out"],
        ["summary", tmp_path / "out"],
    ):
        capsys.readouterr()
        assert main(list(map(str, words))) == 2
        assert told in complaint(capsys)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    for place, seeds in (("copy", 1), ("c", 2)):
        assert [r["seeds"] for r in compared(tmp_path / "a", tmp_path / place)] == [seeds]
    assert seeds_of(rows_about(models[0], models[2]), tmp_path / "two") == [2]


def test_trainings_of_two_lengths_are_no_seeds_of_one_model(save, tmp_path, capsys):
    """At a step that both have saved their rates had fallen by as much as their lengths tell."""

    def runs(*recipes, step=40):
        return [save(f"{len(recipe)}/flat-s{seed}", step, recipe={"seed": seed} | recipe)
                for seed, recipe in enumerate(recipes)]  # fmt: skip

    short, long = ({"trainer": {"max_steps": steps}} for steps in (40, 120))
    models = runs(short, long)
    Results(tmp_path / "out").append(rows_about(*models))
    for words in (["compare", *models], ["summary", tmp_path / "out"]):
        assert main(list(map(str, words))) == 2
        line = complaint(capsys)
        assert all(word in line for word in ("flat-s0 and", "flat-s1: at step 40", "40 and 120"))
    for alike in (runs(long, long), runs(short, long, step=0)):
        assert [record["seeds"] for record in compared(*alike)] == [2]
    minutes = runs(short | {"minutes": 1}, long | {"minutes": 1})
    assert [record["seeds"] for record in compared(*minutes)] == [2]


def test_models_of_transformers_are_known_by_their_weights(tmp_path):
    """A fine-tuned copy is another model; a copy elsewhere is the same."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())
    for seed, place in enumerate(("theirs/gpt2", "mine/gpt2")):
        model = their_model("gpt2", dtype=torch.float32)
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.get_input_embeddings().weight)
        model.save_pretrained(tmp_path / place)
        tokenizer.save_pretrained(tmp_path / place)
    shutil.copytree(tmp_path / "theirs" / "gpt2", tmp_path / "copied" / "gpt2")
    models = [f"hf:{tmp_path / place}" for place in ("theirs/gpt2", "mine/gpt2", "copied/gpt2")]
    first, second, copy = (open_checkpoint(model).model_id for model in models)
    assert first == copy != second
    assert seeds_of(rows_about(*models[:2]), tmp_path / "out") == [1, 1]


# Where it comes from.


@pytest.mark.slow
def test_what_train_writes_tells_recipes_apart(small_tokenizer, tmp_path):
    data = pack_toy(small_tokenizer, tmp_path / "packed", 40).path
    ids = {}
    for name, flags in {
        "a/flat-s0": ("--seed", 0, "--trainer.max_steps", 2),
        "a/flat-s1": ("--seed", 1, "--trainer.max_steps", 3, "--log_every", 2),
        "b/flat-s0": ("--seed", 0, "--trainer.max_steps", 2, "--optimizer.lr", 0.01),
        "c/padded-s0": ("--trainer.max_steps", 2, "--model.vocab_multiple", 64),
    }.items():
        assert fit(data, tmp_path / name, *map(str, flags)) == 0
        for path in sorted((tmp_path / name / "models").iterdir()):
            ids.setdefault(name, set()).add(open_checkpoint(path).model_id)
    assert all(len(own) == 1 for own in ids.values())
    assert ids["a/flat-s0"] == ids["a/flat-s1"] != ids["b/flat-s0"]
    compared = {one.checkpoint["model_id"] for one in gather_models([tmp_path])}
    assert compared == set.union(*ids.values())


def test_a_model_that_was_changed_for_a_control_is_another(save):
    first, second = (open_checkpoint(save(f"flat-s{seed}")) for seed in (0, 1))
    assert first.model_id == second.model_id
    ids = {derive(first, control).model_id for control in ("identity", "scale=1", "scale=2")}
    assert len(ids | {first.model_id}) == 4
    assert derive(first, "identity").model_id == derive(second, "identity").model_id


OWN = {
    "own_base": "from arch.mixers.masked import Flat\nclass Base(Flat):\n    number = 1\n",
    "own_part": "class Part:\n    number = 1\n",
    "own_mixer": "import own_base, own_part\nclass Mine(own_part.Part, own_base.Base):\n    pass\n",
}


def test_code_that_a_mixer_inherits_is_its_own(small_model, small_tokenizer, tmp_path, monkeypatch):
    """Rows of the code before an edit were given as those of the code after it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    hashes = []
    for edited in (None, None, *OWN):
        for name, text in OWN.items():
            (tmp_path / f"{name}.py").write_text(text + "# edited\n" * (name == edited))
            monkeypatch.delitem(sys.modules, name, raising=False)
        model = small_model(mixers=("own_mixer.Mine",))
        hashes.append(open_model(model, tokenizer=small_tokenizer).settings_sha256)
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 4


# What models are called.


def named(name: str, **checkpoint: object) -> Row:
    row = make_row()
    about = checkpoint_of(row["checkpoint"], name=name, **{"weights_sha256": name} | checkpoint)
    return row | {"key": str(about), "checkpoint": about}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([named("flat-s0")], ["flat-s0"]),
        ([named("flat-s0 [scale=1]"), named("flat-s1 [scale=1]")], ["flat [scale=1]"]),
        ([named("s0"), named("s1")], ["attention(heads=4)"]),
        ([named("plain"), named("other")], ["plain", "other"]),
        (
            [named("flat", d_model=128), named("flat", d_model=256), named("llama", d_model=512)],
            ["flat (HASH)", "flat (HASH)", "llama"],
        ),
        ([named("flat"), named("flat [embedding=x]")], ["flat", "flat [embedding=x]"]),
        ([named("flat"), named("flat") | {"control": "shuffled"}], ["flat"]),
        ([named("gpt2", step=0), named("gpt2", step=0, path="b/gpt2")], ["gpt2"]),
    ],
    ids=lambda value: str(value) if isinstance(value[0], str) else "",
)
def test_models_are_called_by_name_and_by_what_tells_them_apart(rows, found):
    said = list(labels(rows).values())
    assert [re.sub(r"\([0-9a-f]{10}\)", "(HASH)", label) for label in said] == found
    assert len(set(said)) == len(said)


def test_training_seeds_of_one_name_are_called_by_their_seed(save, tmp_path):
    """Their mean stood as one run, and of two probes the second took the place of the first."""
    models = [save(f"{seed}/flat", recipe={"seed": seed}, val_loss=3.0 + seed) for seed in (0, 1)]
    rows, names = rows_about(*models), ["flat seed 0", "flat seed 1"]
    Results(tmp_path / "out").append(rows)
    for places in (models, [tmp_path / "out"]):
        assert [record["model"] for record in compared(*places, every=True)] == names
    assert [r["model"] for r in summarise_rows(rows, "lens", every_seed=True)] == names
    untold = named("flat")
    untold["checkpoint"] |= {"model_id": rows[0]["checkpoint"]["model_id"]}
    assert list(seed_labels([untold, *rows[:2]]).values()) == ["flat"] * 2  # of no other seed


def test_an_attention_of_a_user_s_own_is_what_is_asked(monkeypatch):
    """A plain one was, under the rows of the plain model: its window is beyond what is checked."""

    def near(module, q, k, v, mask, **options):
        keys = torch.arange(k.shape[2])
        seen = (keys[:, None] >= keys) & (keys[:, None] - keys < 12)
        return sdpa_attention_forward(module, q, k, v, seen[-q.shape[2] :], **options)

    known = transformers.AttentionInterface._global_mapping
    monkeypatch.setitem(known, "near", near)
    module, tokens = their_model("llama 1", dtype=torch.float32), torch.arange(20)[None]
    plain = open_model(module, tokenizer=byte_tokenizer())
    module.set_attn_implementation("near")
    opened = open_model(module, tokenizer=byte_tokenizer())
    expected = module(tokens).logits
    torch.testing.assert_close(opened.model(tokens), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(plain.model(tokens), expected, atol=1e-2)
    assert opened.identity != plain.identity


class Steered(torch.nn.Module):
    """Adds to what its model gives."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits, and 1."""
        return self.module(x) + 1


def test_a_module_around_a_model_is_not_that_model(small_model, small_tokenizer):
    with one_line(RequestError, "Steered"):
        open_model(Steered(small_model()), tokenizer=small_tokenizer)


class Controlled(torch.nn.Module):
    """A layer with a vector added, as libraries of control vectors put it into a model."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer, self.coefficient, self.vector = layer, 0.0, torch.ones(32)
        self.held = {"operator": lambda x, y: x + y}
        self.register_buffer("mask", torch.ones(32), persistent=False)

    def forward(self, *given: Any, **options: Any) -> torch.Tensor:
        """The layer's output, changed."""
        added = self.coefficient * self.vector * self.get_buffer("mask")
        return self.held["operator"](self.layer(*given, **options), added)


def test_what_steers_a_module_is_a_part_of_it(tmp_path):
    """A sweep of coefficients was given the figure of the first."""
    module = their_model("llama 1", dtype=torch.float32)
    known = open_model(module, tokenizer=byte_tokenizer(), name="m").identity
    module.model.layers[1] = control = Controlled(module.model.layers[1])
    figures, ids = [], [known]
    for name, value in (
        ("coefficient", 0.0),
        ("coefficient", 4.0),
        ("vector", torch.arange(32.0)),
        ("mask", torch.arange(32) % 2),
        ("held", {"operator": lambda x, y: x - y}),
    ):
        setattr(control, name, value)
        opened = open_model(module, tokenizer=byte_tokenizer(), name="m")
        ids.append(opened.identity)
        figures += [row["nats_per_token"] for row in loss(opened, text="a", out=tmp_path).rows]
    assert open_model(module, tokenizer=byte_tokenizer(), name="m").identity == ids[-1]
    assert len({*ids}) == 6
    assert len({*figures}) == 5


def test_sets_and_functions_with_their_arguments_tell_models_apart(small_model, small_tokenizer):
    """They were told by their kind alone, and a sweep was given the figure of the first."""
    module, ids = small_model(), ([], [])
    module.blocks[1].norm_token = control = Controlled(module.blocks[1].norm_token)
    for found in ids:
        for held in ({0}, {3}, *(kind(max, n) for kind in (partial, MethodType) for n in (2, 4))):
            vars(control)["rule"] = held
            found.append(open_model(module, tokenizer=small_tokenizer).identity)
    assert ids[0] == ids[1]
    assert len({*ids[0]}) == 6


def test_a_model_around_one_of_theirs_is_that_model():
    """It was another, beside whose rows those of an ablation stood; with a user's part it is."""
    for module in (their_model("gpt2", dtype=torch.float32), test_decoder.their_model("qwen2")):
        first = open_model(module, tokenizer=byte_tokenizer())
        again = open_model(first.model, tokenizer=first.tokenizer)
        assert again.weights_sha256 == first.weights_sha256
        again.model.norm = control = Controlled(again.model.norm)
        ids = {first.weights_sha256}
        for control.coefficient in (0.0, 4.0):
            ids.add(open_model(again.model, tokenizer=first.tokenizer).weights_sha256)
        assert len(ids) == 3


@pytest.mark.parametrize("family", ["gpt2", "llama 1"])
def test_what_training_alone_reads_makes_no_other_model(family):
    """Its rows were computed again, and the model that was opened before was refused."""
    module = their_model(family, dtype=torch.float32)
    first = open_model(module, tokenizer=byte_tokenizer())
    module.config.pad_token_id = 256
    for part in module.modules():
        for name in {"p", "attention_dropout"} & vars(part).keys():
            setattr(part, name, 0.25)
    assert loss(first, text="Tom sat.").rows
    assert open_model(module, tokenizer=byte_tokenizer()).weights_sha256 == first.weights_sha256


def swap_columns(weight: torch.Tensor) -> None:
    """The first two, of every row."""
    weight[:, :2] = weight[:, :2].flip(1)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, module: module.blocks[0].channel_mixer.down.weight.data[:, 5].zero_(),
        lambda model, module: model.embedding.weight.numpy().__setitem__((1, 1), 3),
        lambda model, module: module.blocks[1].token_mixer.o_proj.weight.data[:, 8:16].zero_(),
        lambda model, module: swap_columns(module.blocks[0].channel_mixer.up.weight.data),
        lambda model, module: module.counts.fill_(2),
        lambda model, module: model.blocks[1].register_forward_hook(print),
        lambda model, module: module.blocks[1].register_forward_hook(print),
        lambda model, module: model.blocks[1].register_full_backward_hook(print),
        lambda model, module: setattr(model.blocks[1], "channel_mixer", torch.nn.Identity()),
        lambda model, module: setattr(model.blocks[1].norm_token, "eps", 0.5),
    ],
)
def test_an_open_model_that_is_changed_is_refused(change, small_model, small_tokenizer):
    """By ways that count no writes; or hooks, of which those of the original were never run."""
    module = small_model(mixers=("attention",))
    module.register_buffer("counts", torch.ones(2))
    opened = open_model(module, tokenizer=small_tokenizer, name="m")
    loss(opened, text="Tom sat.")
    change(opened.model, module)

    def ask_patched() -> None:
        with opened.patched({}):
            loss(opened, text="Tom sat.")

    for ask in (lambda: loss(opened, text="Tom sat."), ask_patched):
        with one_line(RequestError, "open it again"):
            ask()
