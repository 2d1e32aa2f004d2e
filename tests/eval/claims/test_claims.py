"""The registry of claims, and the verdicts made of evidence."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.__main__ import main
from eval.claims import BENCH, registry
from eval.claims.entries import FAIR, REPORTED, Arm, Claim, Criterion, Models, Protocol, Term
from eval.claims.evidence import answers, evidence
from eval.claims.judge import FAILS, HOLDS, IDENTITY, NOT_RUN, ONLY_REPORTED, WEIGHTS, judge
from eval.claims.pages import terminal
from eval.claims.registry import GROUPS, bibliography, claims, read_group
from eval.errors import RequestError
from eval.rows import read_rows, write_rows
from eval.schema import SCHEMA
from tests.eval.claims.cases import SOURCE
from tests.eval.report.cases import make_row

FOREIGN = {*range(1, 41), *range(48, 58), 59, 62, 63, 64, 65, 83, 84}


def test_every_claim_is_there_once() -> None:
    assert list(claims()) == list(range(1, 102))
    assert {claim.group for claim in claims().values()} == set(GROUPS)


def test_every_claim_says_what_it_asks() -> None:
    for claim in claims().values():
        assert claim.judge
        assert len(claim.claim) < 120
        assert any(arm.fair for arm in claim.arms)
        for arm in claim.arms:
            if arm.fair and not arm.lens:
                assert arm.fair.count >= 50 or arm.fair.text
                assert not arm.models.own or arm.models.trained or arm.fair.seeds >= 3
                assert "chance" in arm.fair.methods
            if arm.reported and not arm.lens:
                assert list(arm.reported.methods) == ["descent"]


def test_claims_on_pretrained_models_say_what_they_need() -> None:
    for number, claim in claims().items():
        foreign = [arm.models for arm in claim.arms if arm.fair and not arm.models.own]
        assert bool(foreign) == (number in FOREIGN), number
        for models in foreign:
            assert models.parameters > 1e8
            assert all(models.size)
            assert models.family in ("gpt2", "gptj", "llama", "mistral")


def test_every_command_is_one(capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "102"], "claim 102: there is none of that number; they are numbered 1 to 101"),
        (["run", "0"], "'0' is not a whole number of at least 1"),
        (["run", "67", "--group", "gpt2"], "claim 67: there is none of that number in group gpt2"),
    ],
)
def test_a_claim_that_does_not_exist(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "out")] if words[0] == "run" else []
    if "whole number" in message:  # argparse says so, and stops
        with pytest.raises(SystemExit):
            main(["claims", *words, *out])
    else:
        assert main(["claims", *words, *out]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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
            "claim 1: no source '002' in bibliography.yaml; it has badger-encodings",
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
def test_an_entry_that_is_wrong_is_named(changes: dict, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_group("mixers", {"claims": [ENTRY | changes]})
    assert message in str(caught.value)


def test_every_claim_cites_a_document_with_author_title_year_and_address() -> None:
    for claim in claims().values():
        source = claim.source
        assert source == bibliography()[source.key]
        assert all((source.author, source.title))
        assert 2017 <= source.year <= 2030
        assert source.url.startswith("https://")
        assert all(part in str(source) for part in (source.author, source.title, source.url))


@pytest.mark.parametrize("name", ["author", "title", "year", "url"])
def test_a_source_that_lacks_a_field_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = {"author": "A", "title": "T", "year": 2020, "url": "https://example.org"}
    del entry[name]
    (tmp_path / "bibliography.yaml").write_text(yaml.safe_dump({"made-up": entry}))
    monkeypatch.setattr(registry, "DIRECTORY", tmp_path)
    with pytest.raises(RequestError, match=f"source 'made-up': .*has no {name}"):
        bibliography.__wrapped__()


def test_what_an_arm_asks_has_a_fingerprint() -> None:
    (claim,) = read_group("mixers", {"claims": [ENTRY]})
    (same,) = read_group("mixers", {"claims": [ENTRY | {"claim": "said otherwise"}]})
    (other,) = read_group("mixers", {"claims": [ENTRY | {"slice": "[:, 1:, :]"}]})
    assert claim.arms[0].fingerprint == same.arms[0].fingerprint != other.arms[0].fingerprint


# --- verdicts -----------------------------------------------------------------------------------

PROTOCOL = Protocol({"descent": {}}, text=("x",))


def claim_of(operation: str, bound: float, figure: str = "nonself", **models: object) -> Claim:
    config = {} if models else {"mixers": ("flat",)}
    arm = Arm("", Models(config, **models), reported=PROTOCOL, fair=PROTOCOL)  # pyright: ignore
    return Claim(
        7, "a", "b", SOURCE, "mixers", (arm,), (Criterion(Term(figure), operation, bound),)
    )


def record(protocol: str, method: str, share: float, **others: object) -> dict:
    family = {"descent": "gradient", "adam": "gradient", "chance": "control"}.get(method, "search")
    return {
        "claim": 7, "arm": "", "protocol": protocol, "method": method, "family": family,
        "control": None, "padded": False, "self": share, "nonself": share,
        "nonself_low": share - 0.1, "nonself_high": share + 0.1, "prompts": 50, "models": 3,
        "sizes": ["flat d16 n1"],
    } | others  # fmt: skip


LOST = claim_of("below", 0.5)
SHOWN_LOST = claim_of("below", 0.5, "self")
FOUND = claim_of("above", 0.9)
(ARM,) = FOUND.arms
NARROWER = replace(
    FOUND,
    arms=(
        replace(
            ARM,
            without=("mask",),
            reported=replace(PROTOCOL, methods={"descent": {"rate": 30}}, pad_to=64),
            fair=replace(PROTOCOL, methods={"descent": {"rate": 3}}),
        ),
    ),
)
REPORTED_LOST, REPORTED_FOUND = (record(REPORTED, "descent", x) for x in (0.0, 1.0))


@pytest.mark.parametrize(
    ("claim", "records", "verdict", "why"),
    [
        (LOST, [], NOT_RUN, ""),
        (LOST, [REPORTED_LOST], NOT_RUN, ""),
        (claim_of("below", 0.5, hub="gpt2"), [], WEIGHTS, ""),
        (LOST, [REPORTED_LOST, record(FAIR, "propose", 0.2)], HOLDS, ""),
        (LOST, [REPORTED_FOUND, record(FAIR, "propose", 0.2)], HOLDS, "not with the reported prot"),
        (LOST, [REPORTED_FOUND, record(FAIR, "propose", 0.9)], FAILS, ""),
        (
            LOST,
            [REPORTED_LOST, record(FAIR, "descent", 0.1), record(FAIR, "alternating", 1.0)],
            ONLY_REPORTED,
            "exact search finds what descent does not",
        ),
        (
            LOST,
            [REPORTED_LOST, record(FAIR, "descent", 0.1), record(FAIR, "adam", 1.0)],
            ONLY_REPORTED,
            "descent at the model's own scale",
        ),
        (
            SHOWN_LOST,
            [REPORTED_LOST, record(FAIR, "descent", 0.1), record(FAIR, "adam", 1.0),
             record(FAIR, "descent", 0.0, control="identity")],
            ONLY_REPORTED,
            IDENTITY,
        ),
        (
            LOST,  # of hidden tokens, of which the identity tells nothing
            [REPORTED_LOST, record(FAIR, "descent", 0.1), record(FAIR, "adam", 1.0),
             record(FAIR, "descent", 0.0, control="identity")],
            ONLY_REPORTED,
            "descent at the model's own scale",
        ),
        (
            NARROWER,
            [REPORTED_FOUND, record(FAIR, "descent", 0.3), record(FAIR, "adam", 0.2),
             record(FAIR, "descent", 1.0, padded=True)],
            ONLY_REPORTED,
            "the same descent without padding with a causal mask at rate 3, on many prompts",
        ),
        (FOUND, [REPORTED_FOUND, record(FAIR, "chance", 1.0)], NOT_RUN, ""),
        (
            FOUND,
            [REPORTED_FOUND, record(FAIR, "descent", 0.2), record(FAIR, "alternating", 1.0)],
            HOLDS,
            "by exact search; gradients alone do not show it",
        ),
        (
            LOST,
            [REPORTED_FOUND, record(FAIR, "descent", 0.1), record(FAIR, "alternating", 1.0)],
            FAILS,
            "gradients alone would bear it out; exact search does not",
        ),
        (LOST, [REPORTED_FOUND, record(FAIR, "adam", 0.55)], FAILS, "by no more than the interval"),
        (FOUND, [REPORTED_FOUND, record(FAIR, "adam", 0.92)], HOLDS, "in part within the interval"),
        (
            NARROWER,
            [REPORTED_FOUND, record(FAIR, "descent", 0.3, sizes=["flat d8 n1 untrained"])],
            ONLY_REPORTED,
            "the same descent without padding with a causal mask at rate 3 at d8 n1, on many",
        ),
        (
            FOUND,
            [REPORTED_FOUND, record(FAIR, "adam", 0.1),
             record(FAIR, "adam", 1.0, control="shuffled")],
            ONLY_REPORTED,
            "own scale",
        ),
    ],
)  # fmt: skip
def test_verdicts(claim: Claim, records: list[dict], verdict: str, why: str) -> None:
    found = judge(claim, records)
    assert found.verdict == verdict
    assert why in found.why
    assert bool(found.why) == bool(why)


def test_figures_of_lenses_are_pooled_and_compared() -> None:
    arm = Arm("", Models({"mixers": ("flat",)}, trained=True), lens="residual", fair=Protocol())
    last, first = (Term("norm", where={"part": "x"}, pool=pool) for pool in ("last", "first"))
    claim = Claim(7, "a", "b", SOURCE, "lenses", (arm,), (Criterion(last, "more", first),))

    def norm(layer: int, value: float, part: str = "x") -> dict:
        return {
            "claim": 7, "arm": "", "protocol": FAIR, "lens": "residual", "figure": "norm",
            "where": {"layer": layer, "part": part}, "value": value, "low": None, "high": None,
            "sizes": [], "models": 1, "prompts": 1,
        }  # fmt: skip

    records = [norm(10, 3.0), norm(2, 1.0), norm(11, 0.5, "y")]
    assert judge(claim, records).verdict == HOLDS
    assert "norm, x (last) 3, > 1 (first)" in terminal([judge(claim, records)], width=400)
    assert judge(claim, [norm(10, 1.0), norm(2, 3.0)]).verdict == FAILS


def part(setting: str, model: str, of: int = 1, **others: Any) -> list[dict]:
    """A row, and the one that says that it answers claim 7 of one of so many models."""
    row: dict[str, Any] = make_row(hidden=1, method="descent") | {"control": None, "notes": {}}
    row |= {"key": f"{setting} {model}", "kind": "recovery", "padded": False}
    row["checkpoint"] = row["checkpoint"] | {"weights_sha256": model}
    end = {"key": f"end {setting} {model}", "kind": "claim", "claim": 7, "arm": "",
           "protocol": FAIR, "bench": BENCH, "entry": LOST.arms[0].fingerprint,
           "setting": setting, "of": of, "keys": [row["key"]]}  # fmt: skip
    return [row, end | others]


def test_what_the_registry_asks_otherwise_is_named_not_mixed() -> None:
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


def test_what_was_not_asked_to_the_end_is_left_out() -> None:
    rows, torn = (
        part("x", "one", of=2),
        "left out: claim 7, fair: not asked to the end; run it again",
    )
    assert evidence(rows, {7: LOST}) == ([], [torn])
    assert evidence([rows[1], *part("x", "two", of=2)], {7: LOST}) == ([], [torn])
    (found,), notes = evidence([*rows, *part("x", "two", of=2)], {7: LOST})
    assert (found["models"], notes) == (2, [])


def test_models_and_stories_of_several_runs_are_not_mixed() -> None:
    rows = [*part("small", "one"), *part("large", "two")]
    (found,), notes = evidence(rows, {7: LOST})
    assert found["models"] == 1
    assert notes == ["left out: answers to claim 7 by other models or stories than its last"]
    (same,), again = evidence(rows, {7: LOST}, {(7, "", FAIR): "small"})
    assert (same, again) == (found, notes)


def test_what_a_constant_guess_would_find_stands_beside() -> None:
    """Most stories begin alike: two of three hidden tokens are one, and only those are found."""
    row, end = part("x", "one")
    texts = [{"truth": [first, *(9,) * 15], "found": [5, *(9,) * 15]} for first in (5, 5, 7)]
    rows = [row | text | {"key": str(i), "prompt": i} for i, text in enumerate(texts)]
    (record,), _ = evidence([*rows, end | {"keys": list("012")}], {7: LOST})
    assert record["constant"] == pytest.approx(2 / 3, abs=1e-6)
    assert record["others"] == record["others_low"] == 0
    assert record["others_high"] == 1


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_rows_that_answer_and_rows_summed_up_are_kept_and_read_again(
    name: str, tmp_path: Path
) -> None:
    tags = {"bench": BENCH, "entry": LOST.arms[0].fingerprint, "kind": "claim record"}
    summed_up = REPORTED_LOST | tags | {"key": "summed up", "schema": SCHEMA}
    rows = [*part("x", "one"), summed_up, {"key": "other", "kind": "loss"}]
    write_rows(tmp_path / name, answers(rows))
    kept = read_rows([tmp_path / name])
    assert [row["key"] for row in kept] == ["x one", "end x one", "summed up"]
    assert evidence(kept, {7: LOST}) == evidence(rows, {7: LOST})
    assert len(evidence(kept, {7: LOST})[0]) == 2


def test_rows_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Copies that claims had of rows are those rows again; which answer what is asked anew."""
    row, end = part("x", "one")
    tags = {name: end[name] for name in ("claim", "arm", "protocol", "bench", "entry", "setting")}
    copy = row | tags | {"key": "copy", "question": row["key"], "schema": 1}
    ended = {"key": "end", "kind": "claim", **tags, "of": 1, "seconds": 1.0, "schema": 1}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (copy, ended)))
    rows = read_rows([tmp_path])
    assert rows[0] == row | {"schema": SCHEMA}
    assert evidence(rows, {7: LOST}) == (
        [],
        [f"left out: claim 7, which version 0 of the bench asked, this is {BENCH}; run it again"],
    )
