"""Which models are the same: one answer, in the summary, on the page, in W&B and in `compare`."""

import itertools
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers

from arch import save_model
from eval.__main__ import main
from eval.analysis.summary import summarise_rows
from eval.models.checkpoint import open_checkpoint, open_model
from eval.models.controls import derive
from eval.models.identity import labels, seed_labels
from eval.rows.store import Results, Row
from eval.views.comparison.gather import gather_models
from eval.views.page.page import render_page
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_pretrained import their_model
from tests.eval.views.compare_cases import compared
from tests.eval.views.page.cases import Page, checkpoint_of, make_row
from tests.said import complaint
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


def test_one_seed_under_two_names_is_no_two_seeds(save, tmp_path, capsys):
    """Where --seed was forgotten, two equal models were two seeds, with an interval and a p."""
    models = [save(f"flat-s{number}", recipe={"seed": 0}, val_loss=3.0) for number in (0, 1)]
    Results(tmp_path / "out").append(rows_about(*models))
    for words in (["compare", *models], ["summary", tmp_path / "out"]):
        assert main(list(map(str, words))) == 2
        line = complaint(capsys)
        assert all(word in line for word in ("flat-s0 and", "flat-s1: ", "--seed 0"))
    apart = ["loss", *models, "--text", "Tom ran."], ["compare", *models, "--every_seed"]
    for words in apart:  # a line each
        assert main(list(map(str, words))) == 0
    renamed = rows_about(save("one/flat", recipe={"seed": 0}))
    renamed.append(renamed[0] | {"key": "later", "checkpoint": {
        **renamed[0]["checkpoint"], "name": "flat-s0", "val_loss": 2.0}})  # fmt: skip
    assert seeds_of(renamed, tmp_path / "renamed") == [1]


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


def test_seeds_that_two_versions_of_a_mixer_trained_are_said(save, tmp_path, capsys):
    """Their mean and its interval stood as those of one model, in silence."""
    for edited in (False, True):
        place = tmp_path / str(edited)
        codes = [{"machine": {"code": code}} for code in ("a", "b" if edited else "a")]
        models = [save(f"{edited}/flat-s{seed}", recipe={"seed": seed} | recipe)
                  for seed, recipe in enumerate(codes)]  # fmt: skip
        Results(place / "out").append(rows_about(*models))
        for words in (["compare", *models], ["compare", place / "out"], ["summary", place / "out"]):
            capsys.readouterr()
            assert main(list(map(str, words))) == 0
            said = [line for line in capsys.readouterr().err.splitlines() if "the code of" in line]
            assert len(said) == edited
            assert all(f"flat-s{seed}" in line for seed in (0, 1) for line in said)


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
