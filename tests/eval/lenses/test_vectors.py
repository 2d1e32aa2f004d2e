"""Tokens' vectors, bigrams, confidence and paths, against plain restatements of each."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from arch.pretrained.pretrained import wrap_model
from eval.lenses.direction import (
    PLACES,
    TEMPERATURES,
    draw_plane,
    heated,
    path,
    plane,
    rising,
    scaled,
    sharpness,
)
from eval.lenses.table import Table
from eval.lenses.trace import constants, norm_scale, readers
from eval.lenses.vectors import (
    METRICS,
    add_bigrams,
    add_round_trips,
    nearest,
    outliers,
    rank_pairs,
    ways_back,
)
from eval.messages import RequestError
from eval.models.checkpoint import open_checkpoint
from eval.models.pieces import Pieces
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import GROUPED
from tests.arch.pretrained.test_pretrained import random_model
from tests.eval.lenses.cases import figures, look, of, story_checkpoint

V, D = 40, 8


@pytest.fixture
def matrices():
    return torch.randn(2, V, D)


def test_outliers_are_the_rows_of_unusual_length():
    norms = torch.cat([torch.linspace(0.9, 1.1, 50), torch.tensor([9.0, 0.01])])
    assert outliers(norms) == [50, 51]
    assert outliers(torch.ones(5)) == []


def test_ways_back(matrices):
    first, second = matrices
    narrow = first.clone()
    narrow[:, 3] = narrow[:, 2]  # of lower rank than it is wide
    for inputs in (first, narrow):
        expected = (inputs.double() @ torch.linalg.pinv(inputs.double())).float()
        back = ways_back(inputs, second)
        torch.testing.assert_close(inputs @ back["pinv"].T, expected, atol=1e-5, rtol=0)
    unit = torch.diag(narrow @ back["scaled"].T)
    torch.testing.assert_close(unit, torch.ones(V))  # a row of length 1 gives itself 1
    assert torch.equal(back["transpose"], narrow)
    assert torch.equal(back["head"], second)


@pytest.mark.parametrize("metric", METRICS)
def test_nearest_is_nearest(matrices, metric):
    queries, keys = matrices
    far = {
        "euclid": torch.cdist(queries, keys),
        "cosine": -torch.cosine_similarity(queries[:, None], keys, dim=-1),
        "dot": -queries @ keys.T,
    }
    assert torch.equal(nearest(queries, keys, metric, 4), far[metric].argsort(dim=1)[:, :4])


def test_length_and_temperature_are_one_thing(small_model):
    model, hidden = small_model(mixers=("attention",), norm="rmsnorm"), torch.randn(7, 32)
    logits, scales = model.logits(hidden), (0.0, 0.5, 1.0, 2.0, 1e5)
    entropy, best = scaled(model, hidden, scales, "after norm").unbind(-1)
    size = logits.shape[-1]
    torch.testing.assert_close(entropy[0], torch.full((7,), math.log2(size)))
    torch.testing.assert_close(best[[0, -1]], torch.tensor([[1 / size], [1.0]]).expand(2, 7))
    assert entropy[-1].max() < 1e-6
    p = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(entropy[2], p.entropy() / math.log(2))
    torch.testing.assert_close(heated(logits, (2.0, 1.0, 0.5)), best[1:4])
    assert rising(best).all()
    assert rising(-entropy).all()
    assert not rising(-best).any()
    before = scaled(model, 10 * hidden, (1.0, 3.0), "before norm")
    torch.testing.assert_close(before[0], before[1], atol=1e-3, rtol=1e-3)


def test_logits_of_half_precision_are_divided_in_single():
    """A temperature of 0.001 made them infinite, and no confidence fell with heat."""
    logits = -torch.linspace(80, 100, 12).view(3, 4).half()
    heat = heated(logits, TEMPERATURES)
    torch.testing.assert_close(heat, heated(logits.float(), TEMPERATURES))
    assert rising(-heat).all()


def test_lengths_beyond_half_precision_are_said_and_are_no_fall(capsys):
    """Positions whose longest vectors were infinite counted as unsure ones."""
    half = story_checkpoint()
    norm: Any = half.model.half().norm
    norm.weight *= 26
    found = look("direction", half, range(2, 34))
    ((rises,), (longest,)) = (
        figures(found, name)
        for name in ("confidence rises with length", "best probability at length 1000")
    )
    assert rises["value"] > 0.9
    assert 0 < longest["n"] < rises["n"]
    said = f"float16 holds at {rises['n'] - longest['n']} of {rises['n']} positions"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Gemma", GROUPED),  # whose norms multiply by their weights and 1
        ("Gemma2", GROUPED | {"final_logit_softcapping": 2.0}),
        ("Nemotron", GROUPED),
        ("Granite", GROUPED | {"logits_scaling": 4.0}),
    ],
)
def test_logits_of_a_family_are_read_as_it_makes_them(family, settings):
    model = wrap_model(random_model(family, torch.float32, settings))
    hidden = torch.randn(6, model.config.d_model)
    logits, rows = model.logits(hidden), readers(model)
    torch.testing.assert_close(logits, model.logits(hidden[None])[0])
    read = norm_scale(model.norm, hidden) * hidden @ rows.T + sum(constants(model).values())
    assert torch.equal(read.topk(5).indices, logits.topk(5).indices)
    for place in PLACES:
        torch.testing.assert_close(scaled(model, hidden, (1.0,), place)[0], sharpness(logits))


@pytest.mark.filterwarnings("ignore")
def test_logits_behind_a_transform_are_not_read_part_by_part():
    """A BERT's were: the parts summed to other logits than the model has."""
    settings: Any = {k: v for k, v in GROUPED.items() if k != "num_key_value_heads"}
    config = transformers.BertConfig(vocab_size=V, is_decoder=True, **settings)
    with pytest.raises(RequestError, match="this bert model's last stream and its logits stand"):
        readers(wrap_model(transformers.BertLMHeadModel(config).eval()))


def test_a_plane_shows_what_lies_in_it():
    a, b, rest = torch.eye(5)[0] * 2, torch.tensor([1.0, 3.0, 0, 0, 0]), torch.eye(5)[4]
    basis, tokens = plane(a, b)
    torch.testing.assert_close(basis @ basis.T, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(tokens.float(), torch.tensor([[2.0, 0], [1, 3]]))
    vectors = torch.stack([rest, a, b, a + 3 * b, 3 * rest + 4 * torch.eye(5)[1]])
    x, y, share = path(vectors, basis).float().T
    torch.testing.assert_close(share, torch.tensor([0, 1, 1, 1, 16 / 25]))
    torch.testing.assert_close(torch.stack([x[3], y[3]]), torch.tensor([5.0, 9.0]))


def test_the_plane_that_is_drawn_is_that_of_the_last_prompt():
    found = look("direction", story_checkpoint(), range(2, 9), range(30, 37))
    ((heading, chart),) = draw_plane({"small": found})[0].panels.items()
    last = of(found, "path")[-1]
    assert "text 1" in heading
    drawn = [(row["x"], row["y"]) for row in chart.to_dict()["data"]["values"]]
    assert drawn == [pytest.approx((float(x), float(y))) for x, y, _ in last]
    for name in ("confidence rises with length", "confidence falls with heat"):
        (row,) = figures(found, name)
        assert 0 <= row["low"] <= row["value"] <= row["high"] <= 1


def test_the_control_of_an_answer_is_another_answer():
    """Of one token, and of positions with one answer, it was the answer itself."""
    checkpoint = story_checkpoint()
    for tokens in ([5], [5, 6, 5, 6, 7, 7]):
        found = look("direction", checkpoint, tokens)
        answers = checkpoint.model(torch.tensor([tokens]))[0].argmax(-1)
        others = answers.roll(len(answers) // 2)
        control = of(found, "cosine with answer", answer="another's")
        assert torch.equal(control[0].isnan(), answers == others)
        labels = {row["answer"] for row in figures(found, "cosine with answer")}
        assert ("another's" in labels) == bool((answers != others).any())


def test_white_space_alone_is_no_word_that_has_variants():
    pieces = ["\n", "\t", " ", " a", "A"]
    checkpoint: Any = SimpleNamespace(words=lambda tokens: [pieces[token] for token in tokens])
    rows, both = torch.arange(len(pieces)), torch.eye(len(pieces)).repeat(2, 1, 1)
    add_round_trips(found := Table(), checkpoint, both, rows, [3])
    for numbers in found.of("round trip variant among others"):
        assert numbers.axes["token"] == [3, 4]


def test_pairs_are_ranked_in_their_rows(matrices):
    first, second = torch.tensor([2, 2, 7]), torch.tensor([3, 9, 7])
    rows = matrices[0, first] @ matrices[1].T
    better = (rows > rows.gather(1, second[:, None])).sum(1) / (V - 1)
    torch.testing.assert_close(rank_pairs(matrices, first, second), better)


def test_a_table_made_of_bigrams_is_told_from_chance(model_directory):
    checkpoint = open_checkpoint(model_directory())
    tokens = torch.randint(20, (3000,)).cumsum(0) % 400
    numbers = torch.zeros(400, 400)
    numbers.index_put_((tokens[:-1], tokens[1:]), torch.tensor(1.0), accumulate=True)
    table = torch.where(numbers > 0, numbers.log(), -12 - torch.rand(400, 400))
    add_bigrams(found := Table(), checkpoint, torch.stack([torch.eye(400), table.T]), tokens, 0)
    known, chance = figures(found, "bigram rank")
    assert known["high"] < 0.03
    assert chance["low"] > 0.3
    (text,) = found.texts
    assert len(text["lines"][0][1]) == len(text["lines"][0][2]) == 5


def test_followers_are_no_text():
    """Bytes of a character that follow a token each by itself were read as that character."""
    tokenizer = byte_tokenizer()
    a, *parts = tokenizer.encode("a日").ids
    numbers = [n for count, part in zip((4, 3, 2), parts, strict=True) for n in [a, part] * count]
    pieces = Pieces(tokenizer)
    reading = {"words": lambda ids: [*map(pieces.alone, ids)], "pieces": pieces.of}
    checkpoint: Any = SimpleNamespace(**reading)
    size = tokenizer.get_vocab_size()
    add_bigrams(found := Table(), checkpoint, torch.rand(2, size, size), torch.tensor(numbers), 0)
    (text,) = found.texts
    assert text["lines"][0][:2] == [["a"], ["\\xe6", "\\x97", "\\xa5"]]
