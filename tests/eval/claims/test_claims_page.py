"""The page of claims: its rows, its text filled from records alone, and what refuses to be said."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval import RequestError
from eval.__main__ import main
from eval.claims import BENCH
from eval.claims.columns import judge
from eval.claims.entries import FAIR, REPORTED, Arm, Claim, Criterion, Models, Protocol, Term
from eval.claims.findings import END, START, Known, fill
from eval.claims.pages import claim_page, claims_page
from eval.claims.registry import bibliography, claims
from eval.rows import write_rows
from tests.eval.claims.cases import SOURCE, record

ROOT = Path(__file__).resolve().parents[3]
TO = ("--results", "{}/results.md")
CELL = 190  # letters; longer ones are not read
PROTOCOL = Protocol({"descent": {}}, text=("x",), pad_to=64)


def claim_of(number: int = 7, arms: tuple[str, ...] = ("",), lens: str = "") -> Claim:
    models = Models({"mixers": ("flat",)})
    reported = None if lens else PROTOCOL
    own = tuple(Arm(a, models, lens=lens, reported=reported, fair=PROTOCOL) for a in arms)
    term = Term("norm" if lens else "nonself", arms[0])
    return Claim(number, "a", "b", SOURCE, "mixers", own, (Criterion(term, "above", 0.95),))


def norm(layer: int, value: float, **others: Any) -> dict[str, Any]:
    return {
        "claim": 8, "arm": "flat", "protocol": FAIR, "lens": "residual", "figure": "norm",
        "where": {"layer": layer, "part": "x y"}, "value": value, "low": value - 1,
        "high": value + 1, "sizes": ["flat"], "models": 3, "prompts": 16,
    } | others  # fmt: skip


RECORDS = [
    record(REPORTED, "descent", 1.0, found="x|y\n*</s>"),
    record(FAIR, "descent", 0.12),
    record(FAIR, "descent", 0.97, padded=True),
    record(FAIR, "adam", 0.31),
    record(FAIR, "adam", 0.001, control="shuffled"),
    record(FAIR, "chance", 0.0),
    norm(1, 3.0),
    norm(2, 9.0),
    norm(10, 27.0, low=None, high=None),
]
JUDGED = [judge(claim_of(), RECORDS), judge(claim_of(8, ("flat", "llama"), "residual"), RECORDS)]


def filled(template: str, tmp_path: Path) -> str:
    path = tmp_path / "text.md"
    path.write_text(template)
    return fill(path, Known(JUDGED))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ('figure(7, "nonself")', "31.0 % (21.0 to 41.0)"),
        ('figure(7, "nonself", by="descent")', "12.0 % (2.0 to 22.0)"),
        ('figure(7, "nonself", "descent", padded=true)', "97.0 % (87.0 to 107.0)"),
        ('figure(7, "nonself", "chance")', "0.0 % (-10.0 to 10.0)"),
        ('figure(8, "norm", arm="flat")', "13"),
        ('answer(7, "replicated")', "yes"),
        ('answer(7, "gradients")', "no"),
        ('answer(8, "information")', "yes"),
        ("prompts(7)", "50"),
        ("sizes(7)", "flat d16 n1 untrained"),
        ('sizes(8, arm="flat")', "flat"),
        ('tally("gradients")', "1 no, 1 not asked"),
        ("claim(7, 8)", "[7](#claim-7), [8](#claim-8)"),
    ],
)
def test_placeholders_say_what_records_say(words, text, tmp_path):
    links = "{{ claim(7, 8) }}"
    expected = f"{text} [7](#claim-7), [8](#claim-8)\n"
    assert filled(f"{{{{ {words} }}}} {links}", tmp_path) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ('{{ figure(7, "nonself }}', "unexpected char"),
        ('{{ figure(9, "nonself") }}', "there is no claim 9"),
        ("{{ figure(7) }}", "missing 1 required positional argument: 'name'"),
        ('{{ share(7, "nonself") }}', "'share' is undefined"),
        ('{{ figure(8, "norm") }}', "arm='': claim 8 has 'flat', 'llama'"),
        ('{{ figure(8, "norm", arm="llama") }}', "no record of that; of that arm, fair, there are"),
        ('{{ figure(8, "size", arm="flat") }}', 'there are: "norm"'),
        (
            '{{ figure(7, "nonself", by="search") }}',
            "there are: self|nonself descent, self|nonself descent padded, self|nonself adam",
        ),
        ('{{ figure(7, "nonself", "adam", padded=true) }}', "no record of that"),
        ('{{ tally("fish") }}', "'fish' is no column; there are replicated, gradients, inf"),
        ('{{ sizes(8, arm="llama") }}', "sizes of claim 8 is not known: no record says it"),
        (
            '{% do check(figure(7, "nonself"), "!", 1) %}',
            "'!' compares nothing; use one of < <= == >= >",
        ),
        ('{% do check(answer(7, "gradients"), "==", 1) %}', "'no' cannot be compared with 1"),
        ('{% do check(figure(8, "norm", arm="flat").low, ">", 1) %}', "it has no interval"),
        (
            '{% do check(figure(7, "nonself"), ">", 0.32) %}',
            "the records say otherwise: 31.0 % (21.0 to 41.0) > 0.32 is not so",
        ),
        ('{% do check(answer(7, "gradients"), "==", "yes") %}', "no == yes is not so"),
    ],
)
def test_a_placeholder_that_means_nothing_is_named(words, message, tmp_path):
    with pytest.raises(RequestError) as caught:
        filled(f"# A\n\nText\n{words} ({{{{ claim(7, 8) }}}})\n", tmp_path)
    assert str(caught.value).startswith(f"text.md, line 4: {words} (")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_is_filled_and_assertions_leave_no_trace(tmp_path):
    template = """\
# What was found

{% do check(figure(7, "nonself"), ">", 0.3) %}
{% do check(answer(8, "information"), "==", "yes") %}

{% do check(figure(7, "nonself", "chance").high, "<", figure(7, "nonself").low) %}
Descent finds {{ figure(7, "nonself", by="descent") }}, Adam {{ figure(7, "nonself",
by="adam") }} ({{ claim(7) }}).
{% do check(figure(8, "norm", arm="flat"), ">=", 13) %}
Streams ({{ claim(8) }}) grow to {{ figure(8, "norm", arm="flat") }}.
"""
    assert (
        filled(template, tmp_path)
        == """\
# What was found

Descent finds 12.0 % (2.0 to 22.0), Adam 31.0 % (21.0 to 41.0) ([7](#claim-7)).
Streams ([8](#claim-8)) grow to 13.
"""
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'a\n\nIt finds {{ figure(7, "nonself") }}.',
            'line 3: It finds {{ figure(7, "nonself") }}.: figures without a link to',
        ),
        ('{{ answer(7, "gradients") }}', "figures without a link to their commands; add claim(7)"),
        ("{{ claim(7) }}\n\n{{ prompts(7) }}", "figures without a link to their commands; add cl"),
        ("a\n\nIt finds 12.5 % of them.", "line 3: It finds 12.5 % of them.: 12.5 % is typed by"),
        ('It is {{ figure(7, "nonself") }', "line 1: It is {{ figure(7"),
        ("It is 7 }}", "}} is typed by hand"),
    ],
)
def test_text_that_cannot_be_checked_is_refused(text, message, tmp_path):
    with pytest.raises(RequestError) as caught:
        filled(text, tmp_path)
    assert message in str(caught.value)


def test_a_page_has_a_row_for_every_claim_and_nothing_breaks_it():
    odd = replace(JUDGED[0], claim=replace(JUDGED[0].claim, claim="a | b <script>"))
    text = claims_page([JUDGED[1], odd], ["left out: something"])
    rows = [line for line in text.splitlines() if line.startswith("| <a id=")]
    assert [re.findall(r'id="claim-(\d+)"', row) for row in rows] == [["7"], ["8"]]
    assert rows[0] == (
        '| <a id="claim-7"></a>[7](claims/7.md) | a \\| b &lt;script> | **yes** (n 50; d16 n1) '
        "| **no** (n 50; d16 n1) | not asked |"
    )
    assert "> left out: something" in text
    assert "| gradients | – | 1 | – | – | 1 |" in text
    own = claim_page(JUDGED[0])
    assert "- gradients: ✗ hidden tokens 31.0 % (21.0 to 41.0), not ≥ 95 % (flat d16 n1" in own
    assert "- fair: hidden tokens by descent 12.0 % (2.0 to 22.0); descent (padded) 97.0 %" in own
    assert "; adam (shuffled) 0.1 % (-9.9 to 10.1); chance 0.0 %" in own
    assert "“x|y↵\\*&lt;/s>”" in own
    assert "`python -m eval claims run 7 --corpus STORIES`" in own
    assert "- information: ✓ flat: norm 13, ≥ 0.95 (flat; 16 prompts, 3 models)" in claim_page(
        JUDGED[1]
    )


def test_a_page_cites_its_sources_and_says_which_criteria_were_changed():
    text = claims_page([judge(claim, []) for claim in claims().values()], [])
    for source in bibliography().values():
        assert f"{source.author}, “[{source.title}]({source.url})”, {source.year}" in text
    assert re.findall(r"\)\. Claims? ([\d, -]+)\.", text) == ["1-84", "86-93", "85", "94-101"]
    assert "- † [" not in text  # all were asked again
    only = [replace(claim, again="") for claim in claims().values() if claim.changed]
    text = claims_page([judge(claim, []) for claim in only], [])
    changed = re.findall(r"- † \[(\d+)\]", text)
    assert changed == ["44", "45", "60", "72", "73", "78", "79", "82", "87", "97"]
    assert "- † [97](#claim-97): the mean over distances was replaced" in text


def test_a_claim_that_was_asked_again_is_listed_apart():
    said = {"changed": "a bound was raised", "again": "on other prompts"}
    one = judge(replace(claim_of(), **said), RECORDS)
    text = claims_page([one], [])
    assert "†" not in text
    assert "- [7](#claim-7): a bound was raised. Asked again: on other prompts" in text
    assert "**Asked again** since a bound was raised: on other prompts." in claim_page(one)


def run(*words: object) -> int:
    return main(["claims", "table", *map(str, words)])


@pytest.fixture
def records(tmp_path):
    """Records that this bench made, of claim 74."""
    arm = claims()[74].arms[0]
    tags = {"claim": 74, "bench": BENCH, "entry": arm.fingerprint, "kind": "claim record"}
    several = [record(REPORTED, "descent", 0.5, found="Mario"), record(FAIR, "adam", 0.5)]
    path = tmp_path / "records.jsonl"
    write_rows(path, [each | tags | {"key": str(i)} for i, each in enumerate(several)])
    return path


def test_pages_results_and_a_readme_are_made(records, tmp_path):
    text, readme, made = tmp_path / "text.md", tmp_path / "README.md", tmp_path / "docs" / "page.md"
    results = tmp_path / "docs" / "README.md"
    words = 'All: {{ figure(74, "nonself", by="adam") }} ({{ claim(74) }}).'
    text.write_text(f"## In short\n\n{START}\n{words}\n{END}\n")
    readme.write_text(f"# Name\n\n{START}\nold\n{END}\n\nrest\n")
    places = ("--markdown", made, "--results", results, "--readme", readme)
    assert run(records, "--findings", text, *places) == 0
    said = "All: 50.0 % (40.0 to 60.0) ([74]({}#claim-74))."
    assert said.format("page.md") in results.read_text()
    assert readme.read_text() == (
        f"# Name\n\n{START}\n{said.format('docs/page.md')}\n{END}\n\nrest\n"
    )
    assert "[74](page/74.md)" in made.read_text()
    assert (made.with_suffix("") / "74.md").read_text().startswith("# Claim 74\n")


TEMPLATE = ("--markdown", "{}/page.md", "--findings")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--figures", "x"], "--figures x: are of the curves, and no curve is in the results"),
        ([*TEMPLATE, "{}/false.md", *TO], "false.md, line 1: {{ 74 nonself }}"),
        ([*TEMPLATE, "{}/absent.md", *TO], "absent.md"),
        (["--markdown", "{}/page.md", "--group", "mixers"], "--group mixers: a page is of all cl"),
        ([*TEMPLATE, "{}/true.md", "--readme", "{}/no.md"], "no.md: needs one <!-- finding -->"),
        ([*TEMPLATE, "{}/short.md", "--readme", "{}/no.md"], "needs one <!-- finding -->"),
        (["--results", "x.md"], "--results x.md: it points to the page; give --markdown"),
        (["--readme", "x.md"], "--readme x.md: it points to the page; give --markdown"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_line(words, message, records, tmp_path, capsys):
    (tmp_path / "false.md").write_text("{{ 74 nonself }} {{ claim(74) }}")
    (tmp_path / "true.md").write_text(f"{START}\nyes\n{END}\n")
    (tmp_path / "short.md").write_text("yes\n")
    (tmp_path / "no.md").write_text("# Name\n")
    assert run(records, *(word.format(tmp_path) for word in words)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "page.md").exists()
    assert (tmp_path / "no.md").read_text() == "# Name\n"
