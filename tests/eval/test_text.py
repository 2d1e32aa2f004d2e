"""Held-out text: which stories prompts, fits and background text are of, whatever the source."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pytest
from torch import Tensor

from eval.commands.language import measure_loss
from eval.models import open_checkpoint
from eval.text import HeldOutText, Use, drawn_prompts, held_out_text
from tests.train.cases import fit
from tokenizer import open_corpus, pack
from tokenizer.pack import Layout

ROOT = Path(__file__).parents[2]
SOURCES = ("stories.txt", "stories.jsonl", "directory", "toy:1000", "packed")
BODY = "went to the park. " + "It was a sunny day. " * 20
STORIES = [f"Number {i % 500:03d} {BODY}" for i in range(700)]
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


@pytest.mark.parametrize("name", SOURCES)
def test_no_text_has_two_uses(name, make_source, tokenizer_file, small_tokenizer, tmp_path):
    source = make_source(name)
    training = pack(source, tokenizer_file, tmp_path / "data", valid_fraction=0.1)
    text = HeldOutText(source, small_tokenizer, 0.1)
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
    for prompt, ids in zip(drawn_prompts("inside", text, 4, 20), whole, strict=False):
        assert prompt.tokens in {ids[i : i + 20] for i in range(1, len(ids) - 19)}
    windows: dict[Use, Tensor] = {
        "fitting": text.windows("fitting", 6, 32),
        "background": text.background,
    }
    for use, tokens in windows.items():
        joined = [token for ids in encoded(use) for token in (*ids, *text.end)]
        assert tokens.flatten().tolist() == joined[: tokens.numel()]


def test_prompts_are_the_first_held_out_stories(small_tokenizer):
    expected = [tuple(small_tokenizer.encode(s).ids[:30]) for s in open_corpus("toy:400", "valid")]
    for corpus in ("toy:400", "toy:1000"):
        prompts = drawn_prompts("story", HeldOutText(corpus, small_tokenizer), 8, 30)
        assert [prompt.tokens for prompt in prompts] == expected[:8]


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


def test_only_one_module_opens_corpora():
    files = (ROOT / "eval").rglob("*.py")
    assert [file.name for file in files if "open_corpus(" in file.read_text()] == ["text.py"]


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
        assert corpus.expected() == len(stories)
    again = pack(str(data.path), tokenizer_file, tmp_path / "again", **settings)
    assert again.hash == data.hash


def test_packed_data_and_its_source_give_the_same_text(make_source, small_tokenizer, tmp_path):
    packed = HeldOutText(make_source("packed"), small_tokenizer, 0.7)  # it is divided already
    plain = HeldOutText(str(tmp_path / "packed.txt"), small_tokenizer, 0.1)
    for use in get_args(Use):
        assert packed.windows(use, 4, 32).equal(plain.windows(use, 4, 32))


def test_a_trained_model_records_the_fraction(make_source, tokenizer_file, tmp_path):
    source = make_source("stories.txt")
    data = pack(source, tokenizer_file, tmp_path / "data", valid_fraction=0.2)
    assert fit(data.path, tmp_path / "run", "--trainer.max_steps", "1") == 0
    for step in (0, 1):
        checkpoint = open_checkpoint(tmp_path / "run" / "models" / f"step-{step:06d}")
        stories = list(held_out_text(checkpoint, source).held_out())
        assert stories == list(data.stories("valid"))
