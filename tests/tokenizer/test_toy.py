"""The built-in stories: the same everywhere, never twice the same, grammatical, rich enough."""

import hashlib
import os
import re
import subprocess
import sys

import pytest

from tokenizer.splits import held_out
from tokenizer.toy import HELD_OUT, library, story, toy_stories

WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*", re.IGNORECASE)
AN = re.compile(r"\b(an?) ([a-z]+)", re.IGNORECASE)
CAST = {
    *("friend", "elder", "mom", "neighbor", "man", "boy", "hero", "friend_name", "feature", "home"),
    *("he", "him", "his", "himself", "in_place", "the_place", "to_place"),
}


@pytest.fixture(scope="module")
def stories():
    return list(toy_stories(1000))


def test_a_story_is_a_function_of_its_arguments(stories):
    assert [story(0, index) for index in (7, 999, 7)] == [stories[7], stories[999], stories[7]]
    assert len({story(0, 1), story(1, 1), story(0, 2), story(0, 1, "valid")}) == 4
    assert len(set(stories)) == len(stories)


@pytest.mark.parametrize(
    ("split", "sha256"),
    [
        ("train", "4ad1b2f18d24ebe2419ab1ba94a8bc78124e33a31a124085602773b4df0db6b7"),
        ("valid", "d56efeb894482e53cb06143afedc8007ac4b22b70af7fe9a290e7b4c417450b2"),
    ],
)
def test_the_stories_are_the_ones_that_figures_were_measured_on(split, sha256):
    # A change here is a change of the corpus: every figure measured on it has to be taken again.
    text = "\n".join(toy_stories(200, 0, split))
    assert hashlib.sha256(text.encode()).hexdigest() == sha256


def test_the_import_of_the_room_reads_no_story_and_no_large_library():
    """And in that process, with hashes of its own, the stories are the same."""
    script = (
        "import sys, tokenizer, tokenizer.__main__; from tokenizer.toy import library, toy_stories;"
        "assert not library.cache_info().currsize;"
        "assert not {'datasets', 'pyarrow', 'torch'} & sys.modules.keys();"
        "print('\\n'.join(toy_stories(20, seed=3)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("\n".join(toy_stories(20, seed=3)) + "\n", "")


def test_no_valid_story_is_ever_in_train(stories):
    valid = set(toy_stories(200, 0, "valid")) | set(toy_stories(200, 5, "valid"))
    assert len(valid) == 400
    assert not valid & set(stories)
    # Not by luck: which side a text is on depends on the text alone.
    assert all(held_out(text, HELD_OUT) for text in valid)
    assert not any(held_out(text, HELD_OUT) for text in stories)


def test_the_stories_are_written_correctly(stories):
    for text in stories:
        assert not re.search(r"[{}\[\]|_=]|  | \n|\n |\n\n| [.,!?]", text), text
        assert not re.search(r"\b(a|an|the|his|her|and|to|in|of|was|it|so|very) \1\b", text), text
        for line in text.split("\n"):
            assert line[0] == '"' or line[0].isupper()
            assert line[-1] in '.!?"'
            assert line.count('"') % 2 == 0
        assert not re.search(r"[.!?] [a-z]", re.sub(r'[!?]" [a-z]', "", text)), text
        for article, word in AN.findall(text):
            vowel = word[0].lower() in "aeiou" and not word.startswith(("one", "uni", "use"))
            assert (article.lower() == "an") == (vowel or word.startswith(("hour", "honest"))), word


def test_every_name_in_a_line_is_known():
    def names(lines):
        found = re.findall(r"\{(\w+?)\d*\}", " ".join(lines))
        return {name[0].lower() + name[1:] for name in found}

    read = library()
    known = CAST | read.words.keys()
    for word, lines in read.words.items():
        assert not names(lines) - known, word
    plots = {plot.title: plot for plots in read.plots.values() for plot in plots}
    assert len(plots) >= 40
    for title, plot in plots.items():
        used = set().union(*map(names, plot.beats))
        assert not used - known - plot.words.keys(), title
        assert not plot.words.keys() - used, title
