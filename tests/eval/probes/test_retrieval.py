"""Stories found by one of their sentences."""

import json
from math import comb

import pytest
import torch

from arch import load_model
from eval import RequestError
from eval.__main__ import main
from eval.probes.retrieval import PairFit, Pairs, fit_on_pairs, nearer, sentence_pairs, states, top1
from eval.text import HeldOutText

STORIES = [
    "Tom had a cat. The cat ran away. Tom was sad.",
    'Sue saw a dog! "Hello," said Sue. They played all day.',
    "Tom had a cat. It slept in the sun. Then it ate a fish.",
    "Too short.",
]


@pytest.fixture
def corpus(tmp_path):
    stories = [*STORIES, *(f"Unused {number}." for number in STORIES)]  # not for evaluation
    (tmp_path / "valid.txt").write_text("\n<|endoftext|>\n".join(stories), encoding="utf-8")
    return str(tmp_path)


def test_a_pair_is_a_sentence_and_the_rest_of_its_story(corpus, small_tokenizer):
    def text(tokens):
        return small_tokenizer.decode(tokens)

    held_out = HeldOutText(corpus, small_tokenizer)
    first = sentence_pairs(held_out, "evaluation", "first", 500)
    assert [text(s) for s in first.sentences] == ["Tom had a cat.", "Sue saw a dog!"]
    assert text(first.stories[0]) == "The cat ran away. Tom was sad."
    last = sentence_pairs(held_out, "evaluation", "last", 500)
    assert text(last.sentences[1]) == "They played all day."
    assert text(last.stories[1]) == 'Sue saw a dog! "Hello," said Sue.'.replace('" ', '" ')
    assert len(last) == 3
    assert len(sentence_pairs(held_out, "evaluation", "last", 500, unlike=last)) == 0
    cut = sentence_pairs(held_out, "evaluation", "last", 4, count=2)
    assert [len(s) for s in cut.stories] == [4, 4]
    assert cut.stories[0] == last.stories[0][-4:]


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_texts_in_one_batch_are_read_as_if_alone(small_model, pool):
    model = small_model(mixers=["flat", "attention(heads=2)"])
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(50, (n,), generator=generator).tolist() for n in (3, 9, 1, 6)]
    together = states(model, texts, pool)
    for i, text in enumerate(texts):
        for layer in range(len(model.blocks) + 1):
            with torch.no_grad():
                alone = model.hidden(model.embed(torch.tensor([text])), layer)[0]
            alone = alone[-1] if pool == "last" else alone.mean(0)
            torch.testing.assert_close(together[layer, i], alone, rtol=1e-4, atol=1e-5)


def test_top1_is_the_share_over_all_ways_to_draw_candidates():
    sentences = torch.eye(3)
    stories = torch.cat([torch.eye(3), torch.tensor([[2.0, 0.5, 0.0], [1.0, 0.0, 0.0]])])
    better = nearer(sentences, stories)
    assert better.tolist() == [1, 0, 0]  # a tie counts against it
    for n in (2, 3, 5):
        expected = (comb(3, n - 1) / comb(4, n - 1) + 2) / 3
        assert top1(better, 5, n).estimate == pytest.approx(expected)
    found = top1(better, 5, 2)
    assert found.low < found.estimate <= found.high
    with pytest.raises(RequestError, match="6 candidates: allowed are 2 to 5"):
        top1(better, 5, 6)


def test_a_fit_brings_pairs_together_and_leaves_the_model_alone(small_model):
    model = small_model(mixers=["flat"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(50, (16, 6), generator=generator)
    pairs = Pairs(words[:, :3].tolist(), words[:, [1, 3, 4, 5]].tolist())
    fitted = fit_on_pairs(model, pairs, "mean", PairFit(30, 8, 1e-2))
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    ends = [states(fitted, texts, "mean")[-1] for texts in (pairs.sentences, pairs.stories)]
    assert nearer(ends[0], ends[1]).eq(0).sum() >= 12
    with pytest.raises(RequestError, match="16 pairs to fit on are fewer than a batch of 32"):
        fit_on_pairs(model, pairs, "mean", PairFit())


def test_the_command_writes_rows_once(model_directory, tmp_path, capsys):
    directory = model_directory()
    asked = "--queries 40 --candidates 64 --fit-steps 2 --fit-pairs 64 --batch 8"
    out = tmp_path / "results"
    words = ["retrieval", str(directory), "--corpus", "toy:4000", "--out", str(out), *asked.split()]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "fitted" in shown
    assert "64" in shown
    lines = (out / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    layers = len(load_model(directory).model.blocks) + 1
    assert len(rows) == 2 * 2 * (2 * layers + 1)  # pools x candidates x readings
    assert len({row["key"] for row in rows}) == len(rows)
    assert all(row["low"] <= row["top1"] <= row["high"] for row in rows)
