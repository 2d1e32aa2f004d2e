"""Held-out text: which stories prompts, fits and background text are of, whatever the source."""

import json
import re
import shutil
from itertools import combinations, islice
from pathlib import Path
from typing import Any, get_args

import pytest
from tokenizers import Tokenizer
from torch import Tensor

import eval as evals
import eval.__main__ as evaluation
import tokenizer.__main__ as tokenizers
from arch import save_model
from eval import RequestError
from eval.measures.bits.measure import Question
from eval.measures.bits.task import Design
from eval.measures.loss import measure_loss
from eval.models.checkpoint import open_checkpoint
from eval.models.text import HeldOutText, Use, drawn_prompts, held_out_text
from tests.said import one_line
from tests.train.cases import fit
from tokenizer import END_OF_TEXT, CorpusError, open_corpus, pack, train_tokenizer
from tokenizer.pack import Layout

SOURCES = ("stories.txt", "stories.jsonl", "directory", "toy:1000", "packed")
BODY = "went to the park. " + "It was a sunny day. " * 20
OWN = "held-out stories of the training data"
STORIES = [f"Number {i % 350:03d} {BODY}" for i in range(490)]
HOSTILE = ["Zoë met 🙂.", "A <|pad|> in a text.", "\u201cTwo\u201d\nlines,  a gap.", "One.", "Two."]


@pytest.fixture
def tokenizer_file(tmp_path, small_tokenizer):
    file = tmp_path / "tokenizer.json"
    file.write_text(small_tokenizer.to_str())
    return file


@pytest.fixture
def make_source(tmp_path, tokenizer_file):
    """Lays out a corpus in which stories occur twice, in one split and in both."""

    def write(path, stories):
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps({"text": story}) + "\n" for story in stories))
        else:
            path.write_text("<|endoftext|>".join(stories))
        return str(path)

    def make(name):
        if name == "directory":
            write(tmp_path / name / "train.jsonl", STORIES[:300])
            write(tmp_path / name / "valid.txt", STORIES[280:330] + STORIES[290:310])
            return str(tmp_path / name)
        if name == "packed":
            source = write(tmp_path / "packed.txt", STORIES)
            pack(source, tokenizer_file, tmp_path / name, valid_fraction=0.1)
            return str(tmp_path / name)
        return name if name.startswith("toy") else write(tmp_path / name, STORIES)

    return make


@pytest.mark.first(3)
@pytest.mark.parametrize("name", SOURCES)
def test_no_text_has_two_uses(name, make_source, tokenizer_file, small_tokenizer, tmp_path):
    source = make_source(name)
    training = pack(source, tokenizer_file, tmp_path / "data", valid_fraction=0.1)
    ends = (small_tokenizer.token_to_id(END_OF_TEXT),)
    text = HeldOutText(source, small_tokenizer, 0.1, ends)
    groups = {"training": set(training.stories("train"))}
    groups |= {use: set(text.stories(use)) for use in get_args(Use)}
    assert all(groups.values())
    for one, other in combinations(groups, 2):
        assert not groups[one] & groups[other], (one, other)
    held_out = list(text.held_out())
    assert held_out == list(training.stories("valid"))
    assert set(held_out) == groups["evaluation"] | groups["fitting"] | groups["background"]

    def encoded(use):
        return [tuple(small_tokenizer.encode(story).ids) for story in text.stories(use)]

    # Prompts, windows and background text are of the stories of their use.
    whole = encoded("evaluation")
    assert {p.tokens for p in drawn_prompts("story", text, 2, 20)} <= {ids[:20] for ids in whole}
    inside = drawn_prompts("inside", text, 4, 20)
    for prompt, ids in zip(inside, [ids for ids in whole if len(ids) > 20], strict=False):
        assert prompt.tokens in {ids[i : i + 20] for i in range(1, len(ids) - 19)}
    windows: dict[Use, Tensor] = {
        "fitting": text.windows("fitting", 6, 32),
        "background": text.background,
    }
    for use, tokens in windows.items():
        joined = [token for ids in encoded(use) for token in (*ids, *ends)]
        assert tokens.flatten().tolist() == joined[: tokens.numel()]


@pytest.mark.parametrize("recorded", [None, 0.3])
def test_the_fraction_is_the_one_that_the_model_records(
    recorded, make_source, model_directory, tokenizer_file, tmp_path
):
    source, path = make_source("stories.txt"), model_directory()
    settings: dict[str, Any] = {} if recorded is None else {"valid_fraction": recorded}
    data = pack(source, tokenizer_file, tmp_path / "data", **settings)
    assert data.meta["valid_fraction"] == (recorded or 0.05)
    meta = path / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | settings))
    checkpoint = open_checkpoint(path)
    stories = list(held_out_text(checkpoint, source).held_out())
    assert stories == list(data.stories("valid"))
    counts = data.meta["splits"]["valid"]
    for corpus in (source, str(data.path)):
        loss = measure_loss(checkpoint, corpus)
        assert (loss["tokens"], loss["bytes"]) == (counts["tokens"] - 1, counts["bytes"])
        assert loss["stories"] == counts["stories"] < len(STORIES) / 2


def test_the_column_is_the_one_that_was_packed(model_directory, tokenizer_file, tmp_path):
    """Another column has other stories, of which others were held out."""
    source, path = tmp_path / "rows.jsonl", model_directory()
    rows = [{"text": f"Raw {i}.", "story": story} for i, story in enumerate(STORIES)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = pack(str(source), tokenizer_file, tmp_path / "data", field="story")
    about = json.loads((path / "meta.json").read_text()) | {"field": data.meta["field"]}
    (path / "meta.json").write_text(json.dumps(about))
    checkpoint, other = open_checkpoint(path), tmp_path / "other.jsonl"
    stories = list(held_out_text(checkpoint, str(source)).held_out())
    assert stories == list(data.stories("valid"))
    other.write_text('{"text": "a"}\n{"text": "b"}\n')
    with one_line(CorpusError, "no column story, only text"):
        list(held_out_text(checkpoint, str(other)).held_out())


def test_models_of_two_columns_are_each_asked_about_their_own(model_directory, tmp_path):
    """The second was asked about passages of the first's, of which others were held out."""
    table, models = tmp_path / "table.csv", []
    table.write_text("a,b\n" + "".join(f"One {i} {BODY},Two {i} {BODY}\n" for i in range(300)))
    for field in ("a", "b"):
        models.append(model_directory(field))
        about = json.loads((models[-1] / "meta.json").read_text()) | {"field": field}
        (models[-1] / "meta.json").write_text(json.dumps(about))
    designs = [Design(str(table), Question((0,)), count=2, before=2) for _ in range(3)]
    first, second = map(open_checkpoint, models)
    apart = [designs[0].of(first).passages, designs[1].of(second).passages]
    assert [designs[2].of(each).passages for each in (first, second)] == apart


def test_models_that_read_two_columns_of_a_table_are_named(model_directory, tmp_path, capsys):
    """One corpus' label stood at figures of two texts. Packed, it is one text for both."""
    source, models = tmp_path / "rows.jsonl", [model_directory("a"), model_directory("b")]
    rows = [{"story": story, "text": f"A {story}"} for story in STORIES]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = json.loads((models[0] / "meta.json").read_text())
    (models[0] / "meta.json").write_text(json.dumps(known | {"field": "story"}))
    first, second = evals.loss(models, corpus=str(source)).rows
    assert first["bytes"] != second["bytes"]
    assert f"corpus {source}: its columns" in capsys.readouterr().err
    data = tmp_path / "packed"
    pack(source, models[0] / "tokenizer.json", data, field="story")
    first, second = evals.loss(models, corpus=str(data)).rows
    assert first["bytes"] == second["bytes"] > 0
    assert "columns" not in capsys.readouterr().err


def test_results_beside_a_text_do_not_make_it_another(model_directory, tokenizer_file, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for split, stories in (("train", STORIES[:9]), ("valid", STORIES[9:20])):
        (folder / f"{split}.txt").write_text("<|endoftext|>".join(stories))
    asked = {"corpus": str(folder), "out": folder / "results", "stories": 4}
    first = evals.loss(model_directory(), **asked)
    shutil.copy(tokenizer_file, folder)
    pack(str(folder), tokenizer_file, folder / "packed")
    assert (
        evals.loss(model_directory("other"), **asked).rows[0]["corpus_hash"]
        == (first.rows[0]["corpus_hash"])
    )


# The corpus of a command that is given none.


@pytest.fixture
def trained(make_source, model_directory, tokenizer_file, tmp_path, monkeypatch):
    """Makes a model, and the packed data that it says it was trained on."""
    monkeypatch.chdir(tmp_path)
    make_source("stories.txt")

    def make(name, source="stories.txt", **changed):
        data = pack(source, tokenizer_file, Path(f"data-{name}"))
        about = {"data": str(data.path), "data_sha256": data.hash, "data_source": source}
        about["valid_fraction"] = data.meta["valid_fraction"]
        path = model_directory(name, step=10, n_layers=1)
        meta = path / "meta.json"
        meta.write_text(json.dumps(json.loads(meta.read_text()) | about | changed))
        return path

    return make


def said(capsys):
    """What was said of the corpus, without what else stood on the standard error."""
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if line.startswith("corpus: ")]


ASKED: dict[str, dict[str, Any]] = {
    "loss": {"stories": 2},
    "invert": {"count": 2, "length": 12, "layers": "last", "solvers": "sweep"},
    "probe": {"layers": 1, "length": 8, "train_tokens": 160, "valid_tokens": 80, "steps": 0},
    "geometry": {"layers": 1, "count": 1, "length": 6},
    "bits": {"count": 2, "before": 2, "distances": [0], "quantisers": "int4", "draws": 1},
    "lens": {"lens": "direction", "count": 1, "length": 6},
}


@pytest.mark.first(1)
@pytest.mark.parametrize("command", ASKED)
def test_models_are_asked_about_their_own_data(command, trained, capsys):
    path = trained("one")
    rows = [
        [row["key"] for row in getattr(evals, command)(path, **ASKED[command], **more).rows]
        for more in ({}, {"corpus": "data-one"}, {"corpus": "toy"})
    ]
    assert said(capsys) == [f"corpus: data-one, {OWN}; --corpus gives another"]
    assert rows[0] == rows[1]
    if command in ("loss", "probe", "bits", "lens"):  # others have it in no key, but in their text
        assert rows[0] != rows[2]


@pytest.mark.parametrize(
    ("changed", "corpus"),
    [
        ({"data": "nowhere"}, "stories.txt"),
        ({"data": None, "data_source": "toy:60"}, "toy:60"),
        ({"data_sha256": "0" * 64}, "stories.txt"),
        ({"data": "nowhere", "data_source": "hub:roneneldan/TinyStories"}, "toy"),
        (dict.fromkeys(("data", "data_source", "data_sha256")), "toy"),
    ],
)
def test_data_that_is_not_here_is_named(changed, corpus, trained, capsys):
    row = evals.loss(trained("one", **changed), stories=2).rows[0]
    assert [line.split(",")[0] for line in said(capsys)] == [f"corpus: {corpus}"]
    assert row["corpus"] == corpus


def test_models_of_different_data_are_asked_apart(trained, model_directory, capsys):
    models = [trained("one"), trained("two", source="toy:60")]
    with one_line(RequestError, "--corpus: the models were trained on different data ("):
        evals.loss(models, stories=2)
    assert len(evals.loss(models, corpus="toy:40", stories=2).rows) == 2
    evals.loss([model_directory("new"), models[1]], stories=2)
    assert said(capsys) == [f"corpus: data-two, {OWN}; --corpus gives another"]
    # A text is of no corpus: each model's search guesses from its own.
    evals.invert(models, text="Once upon", layers="last", solvers=["sweep", "propose"])
    assert [line.split(",")[0] for line in said(capsys)] == ["corpus: data-one", "corpus: data-two"]


# Plain text, and little of it.


@pytest.mark.slow
def test_a_small_plain_text_is_trained_on_and_inverted(tmp_path, monkeypatch, capsys):
    """README's commands on a book of 200 kB: what its few held-out passages have is used."""
    monkeypatch.chdir(tmp_path)
    words = " ".join(open_corpus("toy:400", "train")).split()
    lines = [" ".join(words[i : i + 12]) for i in range(0, len(words), 12)]
    paragraphs = ["\n".join(lines[i : i + 5]) for i in range(0, len(lines), 5)]
    Path("book.txt").write_text("\n\n".join(paragraphs)[:200_000])
    for command in (
        "train book.txt --vocab-size 400 --out tokenizer.json",
        "pack book.txt --tokenizer tokenizer.json --out data",
    ):
        assert tokenizers.main(command.split()) == 0
    settings = "--trainer.max_steps 1 --model.context 48"
    assert fit(Path("data"), Path("run"), *settings.split()) == 0
    capsys.readouterr()
    command = """invert run/models/step-000001 --suite standard --layers last --out out
        --solvers propose alternating adam --set adam.steps=1 alternating.starts=1"""
    assert evaluation.main([*map(str, command.split())]) == 0
    said = capsys.readouterr().err
    for line in (f"data, {OWN}", r"\d+ of 32 prompts", r"\d+ tokens of background"):
        assert re.search(f"(?m)^corpus( data)?: {line}", said), (line, said)
    assert evals.invert("run/models/step-000001", corpus="book.txt", count=2, length=6).rows


# Packed data as a corpus.


@pytest.mark.parametrize(
    "settings", [{}, {"shard_tokens": 40}, {"layout": Layout("rows", 40, "left")}]
)
@pytest.mark.parametrize("block", [1 << 20, 41])
def test_packed_data_decodes_to_its_stories(settings, block, tokenizer_file, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    splits = {"train": HOSTILE, "valid": [f"{story} Again." for story in HOSTILE]}
    for split, stories in splits.items():
        (tmp_path / "in" / f"{split}.txt").write_text("<|endoftext|>".join(stories), "utf-8")
    data = pack(str(tmp_path / "in"), tokenizer_file, tmp_path / "data", **settings)
    monkeypatch.setattr("tokenizer.data.BLOCK", block)
    for split, stories in splits.items():
        assert list(data.stories(split)) == stories
        corpus = open_corpus(str(data.path), split, valid_fraction=0.5)
        assert list(corpus) == stories
    again = pack(str(data.path), tokenizer_file, tmp_path / "again", **settings)
    assert again.hash == data.hash


def test_packed_data_that_hold_out_one_joined_story_are_asked_about(
    model_directory, tokenizer_file, small_tokenizer, tmp_path
):
    source = tmp_path / "book.txt"
    source.write_text("\n\n".join(STORIES[:90]))
    data = pack(source, tokenizer_file, tmp_path / "data", valid_fraction=0.3, story_tokens=99_999)
    loss = measure_loss(open_checkpoint(model_directory()), str(data.path))
    assert (loss["stories"], loss["bytes"]) == (1, data.meta["splits"]["valid"]["bytes"])
    with one_line(RequestError, f"--corpus {data.path}: its held-out stories for fitting"):
        HeldOutText(str(data.path), small_tokenizer).windows("fitting", 1, 8)


def test_data_fit_a_tokenizer_that_transformers_saved(small_tokenizer, tokenizer_file, tmp_path):
    """It writes a file of its own for the same vocabulary and merges."""
    transformers = pytest.importorskip("transformers")
    pack("toy:60", tokenizer_file, tmp_path / "data")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file), model_max_length=12, pad_token="<|pad|>"
    )
    theirs.save_pretrained(tmp_path / "theirs")
    saved = Tokenizer.from_file(str(tmp_path / "theirs" / "tokenizer.json"))
    saved.enable_truncation(3)
    assert saved.to_str() != small_tokenizer.to_str()
    assert list(HeldOutText(str(tmp_path / "data"), saved).held_out())
    other = json.loads(saved.to_str())
    other["model"]["merges"] = other["model"]["merges"][:-1]
    text = HeldOutText(str(tmp_path / "data"), Tokenizer.from_str(json.dumps(other)))
    assert all(story.ids is None for story in text.held_out())


def test_models_of_two_tokenizers_are_asked_about_the_data_of_one(trained, small_model, tmp_path):
    other = train_tokenizer(open_corpus("toy:60:9", "train"), vocab_size=390)
    theirs = save_model(tmp_path / "theirs", small_model(vocab_size=390), other.to_str(), {})
    own, read = evals.loss([trained("one"), theirs]).rows
    assert (read["corpus_hash"], read["bytes"]) == (own["corpus_hash"], own["bytes"])
    whole = measure_loss(open_checkpoint(theirs), str(tmp_path / "stories.txt"))
    assert (read["tokens"], read["nats_per_token"]) == (whole["tokens"], whole["nats_per_token"])


@pytest.mark.parametrize("context", [4, 5, 6, 7])
def test_a_character_that_a_row_cuts_is_left_out(context, tokenizer_file, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("<|endoftext|>".join("🙂" * n for n in range(5, 25)), "utf-8")
    rows = Layout("rows", context)
    data = pack(str(source), tokenizer_file, tmp_path / "data", rows, valid_fraction=0.5)
    assert {*data.stories("train"), *data.stories("valid")} == {"🙂" * (context // 4)}


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("invert", {"layers": 1, "count": 2, "length": 6, "solvers": "propose"}),
        ("bits", ASKED["bits"]),
        ("probe", ASKED["probe"]),
        ("lens", {"lens": "tuned", "count": 1, "length": 6, "tokens": 512}),
    ],
)
def test_an_open_model_reads_a_corpus_that_was_written_anew(
    command, asked, model_directory, tmp_path
):
    """Its old text was asked about, and named by the new hash."""

    def figures(model):
        rows = getattr(evals, command)(model, corpus=str(tmp_path / "text"), **asked).rows
        return [{name: row[name] for name in row.keys() - {"seconds"}} for row in rows]

    opened, found = evals.open_model(path := model_directory(n_layers=1)), []
    (tmp_path / "text").mkdir()
    for seed in (1, 2):
        stories = islice(open_corpus(f"toy:400:{seed}", "train"), 100)
        (tmp_path / "text" / "valid.txt").write_text("<|endoftext|>".join(stories))
        found.append(figures(opened))
        assert found[-1] == figures(evals.open_model(path))
    assert found[0] != found[1]
