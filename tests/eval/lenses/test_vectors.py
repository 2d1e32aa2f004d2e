"""Geometry of tokens, bigrams, confidence and paths, against plain restatements of each."""

import math

import pytest
import torch

from eval import RequestError
from eval.lenses.direction import heated, path, plane, rising, scaled, toward
from eval.lenses.vectors import (
    METRICS,
    both_embeddings,
    count_bigrams,
    mean_ranks,
    nearest,
    others,
    outliers,
    rank_pairs,
    robust_z,
    round_trip,
    table_rows,
    thinned,
)
from eval.models import open_checkpoint
from tests.eval.lenses.cases import figures, look, of

N, V, D = 6, 40, 8
ROWS = torch.tensor([3, 0, 17, 39, 8, 21])


@pytest.fixture
def matrices():
    return torch.randn(V, D), torch.randn(V, D)


def test_outliers_are_the_rows_of_unusual_length():
    norms = torch.cat([torch.linspace(0.9, 1.1, 50), torch.tensor([9.0, 0.01])])
    assert outliers(norms) == [50, 51]
    assert float(robust_z(norms).median().abs()) < 0.1
    assert outliers(torch.ones(5)) == []


def test_round_trips(matrices):
    first, second = matrices
    narrow = first.clone()
    narrow[:, 3] = narrow[:, 2]  # of lower rank than it is wide
    for inputs in (first, narrow):
        expected = (inputs.double() @ torch.linalg.pinv(inputs.double()))[ROWS].float()
        back = round_trip(inputs, second, ROWS, "pinv")
        torch.testing.assert_close(back, expected, atol=1e-5, rtol=0)
    for method, expected in (
        ("scaled", first @ (first / first.square().sum(dim=1, keepdim=True)).T),
        ("transpose", first @ first.T),
        ("head", first @ second.T),
    ):
        torch.testing.assert_close(round_trip(first, second, ROWS, method), expected[ROWS])
    values, tokens = others(back, ROWS, 3)
    for i, row in enumerate(ROWS.tolist()):
        rest = sorted(((float(x), t) for t, x in enumerate(back[i]) if t != row), reverse=True)[:3]
        assert [*zip(values[i].tolist(), tokens[i].tolist(), strict=True)] == rest


@pytest.mark.parametrize("metric", METRICS)
def test_nearest_is_nearest(matrices, metric):
    queries, keys = matrices
    found = nearest(queries, keys, metric, 4)
    if metric == "euclid":
        expected = torch.cdist(queries, keys).argsort(dim=1)
    elif metric == "cosine":
        expected = -torch.nn.functional.cosine_similarity(queries[:, None], keys, dim=-1)
        expected = expected.argsort(dim=1)
    else:
        expected = (-queries @ keys.T).argsort(dim=1)
    assert torch.equal(found, expected[:, :4])


def test_length_and_temperature_are_one_thing(small_model):
    model = small_model(mixers=("attention",), norm="rmsnorm")
    hidden = torch.randn(7, 32)
    logits = model.logits(hidden)
    scales = (0.0, 0.5, 1.0, 2.0, 1e5)
    entropy, best = scaled(model, hidden, scales, "after norm").unbind(-1)
    vocabulary = logits.shape[-1]
    torch.testing.assert_close(entropy[0], torch.full((7,), math.log2(vocabulary)))
    torch.testing.assert_close(best[0], torch.full((7,), 1 / vocabulary))
    torch.testing.assert_close(best[-1], torch.ones(7))
    assert entropy[-1].max() < 1e-6
    p = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(entropy[2], p.entropy() / math.log(2))
    torch.testing.assert_close(heated(logits, (2.0, 1.0, 0.5)), best[1:4])
    assert rising(best).all()
    assert rising(-entropy).all()
    assert not rising(-best).any()
    before = scaled(model, 10 * hidden, (1.0, 3.0), "before norm")
    torch.testing.assert_close(before[0], before[1], atol=1e-3, rtol=1e-3)


def test_a_plane_shows_what_lies_in_it():
    a, b, rest = torch.eye(5)[0] * 2, torch.tensor([1.0, 3.0, 0, 0, 0]), torch.eye(5)[4]
    basis, tokens = plane(a, b)
    torch.testing.assert_close(basis @ basis.T, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(tokens.float(), torch.tensor([[2.0, 0], [1, 3]]))
    vectors = torch.stack([rest, a, b, a + 3 * b, 3 * rest + 4 * torch.eye(5)[1]])
    x, y, share = path(vectors, basis).float().T
    torch.testing.assert_close(share, torch.tensor([0, 1, 1, 1, 16 / 25]))
    assert (float(x[3]), float(y[3])) == (5, 9)
    assert float(toward(a[None, None], a[None])) == pytest.approx(1)


def test_bigrams_are_counted():
    tokens = torch.tensor([1, 2, 1, 2, 3, 1, 3, 1])
    found = count_bigrams(tokens, 5)
    table = torch.stack([found.first, found.second, found.number.long()], dim=1)
    assert table.tolist() == [[1, 2, 2], [1, 3, 1], [2, 1, 1], [2, 3, 1], [3, 1, 2]]
    assert found.unigrams.tolist() == [0, 4, 2, 2, 0]
    few = thinned(found, 2, seed=0)
    kept = torch.stack([few.first, few.second, few.number.long()], dim=1).tolist()
    assert len(kept) == 2
    assert all(pair in table.tolist() for pair in kept)


@pytest.mark.parametrize("table", ["product", "direct"])
def test_pairs_are_ranked_in_their_rows(small_model, table):
    model = small_model()
    first, second = torch.tensor([2, 2, 7]), torch.tensor([[3, 9, 7], [1, 1, 1]])
    ranks = rank_pairs(model, first, second, table)
    rows = table_rows(model, first, table)
    both = both_embeddings(model)
    if table == "product":
        torch.testing.assert_close(rows, both["input"][first] @ both["output"].T)
    if table == "direct":
        torch.testing.assert_close(rows, model.head(model.norm(model.embedding(first))))
    for k in range(2):
        for i in range(3):
            own = rows[i, second[k, i]]
            assert int(ranks[k, i]) == int((rows[i] > own).sum())


def test_a_table_made_of_bigrams_is_told_from_chance(small_model):
    model = small_model(d_model=400, mixers=("identity",))
    tokens = torch.randint(20, (3000,)).cumsum(0) % 400
    found = count_bigrams(tokens, 400)
    with torch.no_grad():
        model.embedding.weight.copy_(torch.eye(400))
        table = -12 - torch.rand(400, 400)
        table[found.first, found.second] = found.number.log().float()
        model.head.weight.copy_(table.T)
    known, chance = mean_ranks(model, found, "product", seed=0).tolist()
    assert known < 0.03 < 0.3 < chance


@pytest.mark.parametrize("tied", [False, True])
def test_lenses_of_our_models(model_directory, small_tokenizer, tied):
    checkpoint = open_checkpoint(model_directory(tied=tied))
    ids = small_tokenizer.encode("Once upon a time there was a dog.").ids

    def found_by(lens, **settings):
        return look(lens, checkpoint, ids, ids[:5], tokens=2000, **settings)

    found = found_by("vectors")
    (cosine,) = figures(found, "own cosine")
    assert (cosine["value"] == pytest.approx(1)) is tied
    alike = figures(found, "length with frequency")
    assert all(-1 <= row["value"] <= 1 for row in alike)
    shown = {text["title"]: text["lines"] for text in found.texts}
    assert shown["input and output embedding"] == [["one matrix" if tied else "two matrices"]]
    answered = of(found, "agrees", query="after norm", keys="output", metric="dot")
    assert answered.all()
    assert of(found, "lengths").sum() == 2 * checkpoint.config.vocab_size
    back = shown["one-hot to vector and back to tokens"]
    assert {line[1] for line in back} == {"pinv", "scaled", "transpose", "head"}
    assert of(found, "bigram rank", table="product", pairs="corpus").isfinite()
    way = found_by("direction", words=(" a",))
    uniform = math.log2(checkpoint.config.vocab_size)
    (entropy,) = figures(way, "entropy at length 0")
    (confident,) = figures(way, "confidence rises with length")
    assert (entropy["value"], confident["value"]) == (pytest.approx(uniform), 1)
    assert of(way, "path").shape == (2, 3, 3)
    assert [pair[0] for pair in way.notes["ends"].values()] == [" a", " a"]
    with pytest.raises(RequestError, match=r"is \d+ tokens here"):
        found_by("vectors", words=("zebra crossing",))
