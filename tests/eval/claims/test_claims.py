"""The registry of claims, and the verdicts made of evidence."""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from eval import RequestError
from eval.__main__ import main
from eval.claims import BENCH, registry
from eval.claims.columns import COLUMNS, ENOUGH, GRADIENTS, INFORMATION, REPLICATED, judge
from eval.claims.entries import FAIR, REPORTED, Arm, Claim, Criterion, Models, Protocol, Term
from eval.claims.evidence import answers, evidence
from eval.claims.pages import claims_table, description
from eval.claims.registry import GROUPS, bibliography, claims, read_group
from eval.rows import read_rows, write_rows
from eval.schema import SCHEMA
from tests.eval.claims.cases import SOURCE, record
from tests.eval.report.cases import make_row

FOREIGN = {*range(1, 41), *range(48, 58), 59, 62, 63, 64, 65, 83, 84}


def test_every_claim_is_there_once():
    assert list(claims()) == list(range(1, 102))
    assert {claim.group for claim in claims().values()} == set(GROUPS)


def test_every_claim_says_what_it_asks():
    for claim in claims().values():
        assert claim.judge
        assert len(claim.claim) < 120
        assert any(arm.fair for arm in claim.arms)
        for arm in claim.arms:
            if arm.fair and not arm.lens:
                assert arm.fair.count >= ENOUGH or arm.fair.text
                assert not arm.models.own or arm.models.trained or arm.fair.seeds >= 3
                assert "chance" in arm.fair.methods
            if arm.reported and not arm.lens:
                assert list(arm.reported.methods) == ["descent"]


def test_claims_on_pretrained_models_say_what_they_need():
    for number, claim in claims().items():
        foreign = [arm.models for arm in claim.arms if arm.fair and not arm.models.own]
        assert bool(foreign) == (number in FOREIGN), number
        for models in foreign:
            assert models.parameters > 1e8
            assert all(models.size)
            assert models.family in ("gpt2", "gptj", "llama", "mistral")


def test_every_command_is_one(capsys):
    for claim in claims().values():
        assert re.fullmatch(rf"python -m eval claims run {claim.number}", claim.command)
    assert main(["claims", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 101
    assert main(["claims", "show", "71", "4", "44"]) == 0
    shown = capsys.readouterr().out
    assert "An untrained flat mixer block of width 512" in shown
    assert "python -m eval claims run 4" in shown
    assert "source: Benjamin L. Badger, “Language Modeling and Discrete Encodings”" in shown
    assert "https://blbadger.github.io/language-discreteness.html" in shown
    assert "criterion changed after the data were seen: the trained model's bound" in shown


ENTRY = {
    "number": 1,
    "claim": "a",
    "expected": "b",
    "source": "badger-encodings",
    "models": {"mixers": ["flat"], "d_model": 16, "n_layers": 1},
    "judge": [{"figure": "self", "above": 0.5}],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"source": "002"},
            "claim 1: source '002'; there are badger-encodings",
        ),
        ({"slices": "x"}, "claim 1, arm : unknown field 'slices'; allowed: allowed, layer"),
        ({"slice": "[1]"}, "slice '[1]' cannot be read"),
        ({"models": {"mixers": ["no"]}}, "claim 1, arm : "),
        ({"models": {"hub": "gpt2", "mixers": ["flat"]}}, "need fields of a configuration, or hub"),
        ({"models": "no"}, "claim 1, arm : shape 'no'; there are "),
        ({"part": "nose"}, "part 'nose'"),
        ({"judge": [{"figure": "self"}]}, "needs one of above, below, more, less"),
        ({"judge": [{"figure": "self", "arm": "x", "above": 1}]}, "claim 1: arm 'x'; there are "),
        ({"reported": {"methods": {"magic": {}}}}, "method magic: there is no such method"),
        ({"reported": {"prompts": 1}}, "unknown field 'prompts'"),
        ({"fair": {"kind": "middle"}}, "kind 'middle'; there are story, inside, random"),
    ],
)
def test_an_entry_that_is_wrong_is_named(changes, message):
    with pytest.raises(RequestError) as caught:
        read_group("mixers", {"claims": [ENTRY | changes]})
    assert message in str(caught.value)


def test_every_claim_cites_a_document_with_author_title_year_and_address():
    for claim in claims().values():
        source = claim.source
        assert source == bibliography()[source.key]
        assert all((source.author, source.title))
        assert 2017 <= source.year <= 2030
        assert source.url.startswith("https://")
        assert all(part in str(source) for part in (source.author, source.title, source.url))


@pytest.mark.parametrize("name", ["author", "title", "year", "url"])
def test_a_source_that_lacks_a_field_is_named(name, monkeypatch, tmp_path):
    entry = {"author": "A", "title": "T", "year": 2020, "url": "https://example.org"}
    del entry[name]
    (tmp_path / "bibliography.yaml").write_text(yaml.safe_dump({"made-up": entry}))
    monkeypatch.setattr(registry, "DIRECTORY", tmp_path)
    with pytest.raises(RequestError, match=f"source 'made-up': .*has no {name}"):
        bibliography.__wrapped__()


def test_what_an_arm_asks_has_a_fingerprint():
    (claim,) = read_group("mixers", {"claims": [ENTRY]})
    (same,) = read_group("mixers", {"claims": [ENTRY | {"claim": "said otherwise"}]})
    (other,) = read_group("mixers", {"claims": [ENTRY | {"slice": "[:, 1:, :]"}]})
    assert claim.arms[0].fingerprint == same.arms[0].fingerprint != other.arms[0].fingerprint


# --- columns ------------------------------------------------------------------------------------

PROTOCOL = Protocol({"descent": {}}, text=("x",))


def claim_of(operation: str, bound: float, figure: str = "nonself", **models: object) -> Claim:
    config = {} if models else {"mixers": ("flat",)}
    arm = Arm("", Models(config, **models), reported=PROTOCOL, fair=PROTOCOL)  # pyright: ignore
    return Claim(
        7, "a", "b", SOURCE, "mixers", (arm,), (Criterion(Term(figure), operation, bound),)
    )


LOST = claim_of("below", 0.5)
FOUND = claim_of("above", 0.9)
SOME, MOST = record(FAIR, "adam", 0.2), record(FAIR, "adam", 0.9)
REPORTED_LOST, REPORTED_FOUND = (record(REPORTED, "descent", x) for x in (0.0, 1.0))
READ = record(FAIR, "descent", 1.0, control="identity")
CONTROLLED = replace(FOUND, control=(Criterion(Term("self"), "above", 0.9),))


@pytest.mark.parametrize(
    ("claim", "records", "answers"),
    [
        (LOST, [], "not asked, not asked, not asked"),
        (LOST, [REPORTED_LOST], "yes, not asked, not asked"),
        (FOUND, [REPORTED_LOST], "no, not asked, not asked"),
        (CONTROLLED, [REPORTED_FOUND | {"self": None}], "not asked, not asked, not asked"),
        (LOST, [record(FAIR, "chance", 0.0)], "not asked, not asked, not asked"),
        (LOST, [record(FAIR, "descent", 0.1), SOME], "not asked, yes, not asked"),
        (LOST, [record(FAIR, "descent", 0.1), MOST], "not asked, no, not asked"),
        (LOST, [record(FAIR, "adam", 0.45)], "not asked, open, not asked"),  # within the interval
        (LOST, [record(FAIR, "adam", 0.9, padded=True)], "not asked, not asked, not asked"),
        (FOUND, [record(FAIR, "alternating", 1.0)], "not asked, not asked, yes"),
        (FOUND, [record(FAIR, "alternating", 0.2, self=1.0)], "not asked, not asked, no"),
        (LOST, [record(FAIR, "alternating", 0.2, self=1.0)], "not asked, not asked, open"),
        (LOST, [record(FAIR, "alternating", 1.0)], "not asked, not asked, no"),
        (FOUND, [REPORTED_FOUND, SOME, record(FAIR, "propose", 1.0)], "yes, no, yes"),
    ],
)  # fmt: skip
def test_three_columns_have_answers_of_their_own(claim, records, answers):
    found = judge(claim, records)
    assert ", ".join(found.cells[column].answer for column in COLUMNS) == answers
    assert found.asked == (answers != "not asked, not asked, not asked")


@pytest.mark.parametrize(
    ("claim", "records", "column"),
    [
        (CONTROLLED, [record(REPORTED, "descent", 1.0, self=0.2)], REPLICATED),
        (FOUND, [record(FAIR, "adam", 1.0), READ | {"self": 0.2}], GRADIENTS),
        (FOUND, [record(FAIR, "alternating", 1.0, self=0.2)], INFORMATION),
    ],
)
def test_a_column_is_invalid_where_its_control_fails(claim, records, column):
    """It cannot be yes, though all that is claimed was measured; it is where the control passes."""
    own = judge(claim, records).cells[column]
    assert own.failed is not None
    assert (own.answer, own.failed.criterion.left.figure) == ("invalid", "self")
    assert [outcome.answer for outcome in own.outcomes] == ["yes"]
    passing = [r | {"self": 1.0} for r in records]
    assert judge(claim, passing).cells[column].answer == "yes"


def test_no_claim_that_was_asked_is_yes_where_a_control_fails():
    """Of all claims: with every control failing no replicated column is yes or no."""
    for claim in claims().values():
        arms = [arm for arm in claim.arms if arm.reported and not arm.lens]
        assert bool(claim.control) == bool(arms), claim.number
        names = ("self", "self_top5", "criterion", "anywhere", "minimised", "nonself", "exact",
                 "set_recall", "hidden_anywhere", "nonself_top5")  # fmt: skip
        tags = {"claim": claim.number, **dict.fromkeys(names, 0.0)}
        records = [record(REPORTED, "descent", 0.0, **tags, arm=arm.name) for arm in arms]
        if arms:
            assert judge(claim, records).cells[REPLICATED].answer == "invalid", claim.number


@pytest.mark.parametrize(
    ("left", "right", "answer"),
    [
        ((0.2, 0.1, 0.3), (0.6, 0.5, 0.7), "yes"),
        ((0.6, 0.5, 0.7), (0.2, 0.1, 0.3), "no"),
        ((0.4, 0.2, 0.6), (0.6, 0.5, 0.7), "open"),
        ((1.0, 0.9, 1.0), (1.0, 0.9, 1.0), "open"),  # a tie at a ceiling is no contrast
    ],
)
def test_two_figures_are_compared_by_their_intervals(left, right, answer):
    arms = tuple(Arm(name, Models({"mixers": ("flat",)}), fair=PROTOCOL) for name in "ab")
    criterion = Criterion(Term("self", "a"), "less", Term("self", "b"))
    claim = Claim(7, "a", "b", SOURCE, "mixers", arms, (criterion,))
    records = [
        record(FAIR, "adam", 0.0, arm=arm, self=share, self_low=low, self_high=high)
        for arm, (share, low, high) in (("a", left), ("b", right))
    ]
    assert judge(claim, records).cells[GRADIENTS].answer == answer


def test_criteria_that_are_not_those_of_the_rows_are_said_to_be_changed():
    same, other = ([REPORTED_LOST | {"criteria": c}] for c in (LOST.frozen, "older"))
    assert not judge(LOST, same).changed
    assert not judge(LOST, [REPORTED_LOST]).changed  # rows from before there were hashes
    assert judge(LOST, other).changed == "they are not those of its rows"
    assert LOST.frozen != claim_of("below", 0.6).frozen != CONTROLLED.frozen


def test_fewer_than_thirty_prompts_are_said_in_the_cell():
    few, enough = (
        claims_table([judge(LOST, [REPORTED_LOST | {"prompts": n}])], width=200) for n in (29, 30)
    )
    assert "yes (n 29, too few; d16 n1)" in few
    assert "too few" not in enough


def test_figures_of_lenses_are_pooled_and_compared():
    arm = Arm("", Models({"mixers": ("flat",)}, trained=True), lens="residual", fair=Protocol())
    last, first = (Term("norm", where={"part": "x"}, pool=pool) for pool in ("last", "first"))
    claim = Claim(7, "a", "b", SOURCE, "lenses", (arm,), (Criterion(last, "more", first),))

    def norm(layer, value, part="x"):
        return {
            "claim": 7, "arm": "", "protocol": FAIR, "lens": "residual", "figure": "norm",
            "where": {"layer": layer, "part": part}, "value": value, "low": None, "high": None,
            "sizes": [], "models": 1, "prompts": 1,
        }  # fmt: skip

    records = [norm(10, 3.0), norm(2, 1.0), norm(11, 0.5, "y")]
    own = judge(claim, records)
    assert own.cells[INFORMATION].answer == "yes"
    assert "information: ✓ norm, part x (last) 3, > 1 (first)" in description(own)
    turned = judge(claim, [norm(10, 1.0), norm(2, 3.0)])
    assert turned.cells[INFORMATION].answer == "no"


def part(setting: str, model: str, of: int = 1, **others: Any) -> list[dict]:
    """A row, and the one that says that it answers claim 7 of one of so many models."""
    row: dict[str, Any] = make_row(hidden=1, method="descent") | {"control": None, "notes": {}}
    row |= {"key": f"{setting} {model}", "kind": "recovery", "padded": False}
    row["checkpoint"] = row["checkpoint"] | {"weights_sha256": model}
    end = {"key": f"end {setting} {model}", "kind": "claim", "claim": 7, "arm": "",
           "protocol": FAIR, "bench": BENCH, "entry": LOST.arms[0].fingerprint,
           "setting": setting, "of": of, "keys": [row["key"]]}  # fmt: skip
    return [row, end | others]


def test_what_the_registry_asks_otherwise_is_named_not_mixed():
    rows = [
        *part("a", "one", bench=BENCH + 1),
        *part("b", "one", entry="older"),
        {"key": "c", "kind": "loss"},
    ]
    assert evidence(rows, {7: LOST}) == (
        [],
        [
            f"left out: claim 7, which version {BENCH + 1} of the bench asked, this is {BENCH}; "
            "run it again",
            "left out: claim 7, which is asked otherwise now; run it again",
        ],
    )


def test_what_was_not_asked_to_the_end_is_left_out():
    rows, torn = (
        part("x", "one", of=2),
        "left out: claim 7, fair: not asked to the end; run it again",
    )
    assert evidence(rows, {7: LOST}) == ([], [torn])
    assert evidence([rows[1], *part("x", "two", of=2)], {7: LOST}) == ([], [torn])
    (found,), notes = evidence([*rows, *part("x", "two", of=2)], {7: LOST})
    assert (found["models"], notes) == (2, [])


def test_models_and_stories_of_several_runs_are_not_mixed():
    rows = [*part("small", "one"), *part("large", "two")]
    (found,), notes = evidence(rows, {7: LOST})
    assert found["models"] == 1
    assert notes == ["left out: answers to claim 7 by other models or stories than its last"]
    (same,), again = evidence(rows, {7: LOST}, {(7, "", FAIR, ""): "small"})
    assert (same, again) == (found, notes)


def test_what_a_constant_guess_would_find_stands_beside():
    """Most stories begin alike: two of three hidden tokens are one, and only those are found."""
    row, end = part("x", "one")
    texts = [{"truth": [first, *(9,) * 15], "found": [5, *(9,) * 15]} for first in (5, 5, 7)]
    rows = [row | text | {"key": str(i), "prompt": i} for i, text in enumerate(texts)]
    (record,), _ = evidence([*rows, end | {"keys": list("012")}], {7: LOST})
    assert record["constant"] == pytest.approx(2 / 3, abs=1e-6)
    assert record["others"] == record["others_low"] == 0
    assert record["others_high"] == 1


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_rows_that_answer_and_rows_summed_up_are_kept_and_read_again(name, tmp_path):
    tags = {"bench": BENCH, "entry": LOST.arms[0].fingerprint, "kind": "claim record"}
    summed_up = REPORTED_LOST | tags | {"key": "summed up", "schema": SCHEMA}
    rows = [*part("x", "one"), summed_up, {"key": "other", "kind": "loss"}]
    write_rows(tmp_path / name, answers(rows))
    kept = read_rows([tmp_path / name])
    assert [row["key"] for row in kept] == ["x one", "end x one", "summed up"]
    assert evidence(kept, {7: LOST}) == evidence(rows, {7: LOST})
    assert len(evidence(kept, {7: LOST})[0]) == 2
