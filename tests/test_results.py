"""The frozen figures of docs/results are those of the rows beside them, counted with pandas."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats

from eval.__main__ import main as evaluate

RESULTS = Path(__file__).parent.parent / "docs" / "results"
SEARCH = ["propose", "alternating"]
METHODS = [["descent"], ["adam"], SEARCH]
BY = ["descent", "Adam", "search"]
SHARES = [f"{which} by {solver}" for which in ("shown", "hidden") for solver in BY]
PADDED = "hidden by descent, padded"


QUESTIONS = [
    (
        "shown",
        [41, 42, 43, 44, 47, 60, 82],
        r"^Llama .*untrained, (?:block 1(?: without norms)?|last) \[:, :, :\]",
    ),
    ("shown", [67, 69, 82], r"^(?:flat|expanded) .*untrained, .*\[:, :, :\]"),
    ("shown", [5, 17, 18, 22, 33], "^GPT-2.*block 1 "),
    ("shown", [33], "block 2 "),
    ("shown", [33], "block 4 "),
    ("shown", [45, 46, 58], "block 1 mixer"),
    ("shown", [46, 58], "block [24] mixer"),
    ("shown", [60], "without residual"),
    ("hidden", [68, 69, 71, 74, 76, 77], r"untrained, .*\[:, 1:, :\]"),
    ("hidden", [61, 75, 77], r"untrained, .*\[:, (?:3:|10:|-1), :\]"),
    ("hidden", [69, 70, 72, 78, 80, 81], r" trained, .*\[:, 1:, :\]"),
    ("hidden", [73], r" trained, .*\[:, 3:, :\]"),
    ("shown", [79], "Llama"),
    ("shown", [79], "flat"),
    ("hidden", [66], "d128"),
    ("hidden", [66], "d256"),
    ("shown", [83], "SmolLM2"),
    ("shown", [*range(1, 41), *range(48, 66)], r"SmolLM2.*\[:, :, :\]"),
]
"""Of each line of the page's first table: its tokens, its claims, and the outputs of its arms."""


def lines(page: str) -> list[list[str]]:
    """The cells of the page's table of shares, a list for each line."""
    table = page.partition("## Tokens")[2].partition("## Lenses")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if "|" in line]
    return cells[2:]


def least_to_most(found: list[str]) -> str:
    """The least and the most of printed figures, without their intervals."""
    values = sorted({each.partition(" ")[0] for each in found if each != "–"}, key=float)
    return " to ".join(dict.fromkeys([values[0], values[-1]])) if values else "–"


def numbers(claims: str) -> list[int]:
    """The claims that a line of figures is of."""
    return [int(number) for number in claims.split(", ")]


@cache
def stored() -> list[dict[str, Any]]:
    """The rows that are kept, each a JSON object."""
    return [json.loads(row) for row in pd.read_parquet(RESULTS / "claims.parquet")["row"]]


@pytest.fixture(scope="module")
def page() -> str:
    return (RESULTS / "claims.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def figures() -> Any:
    """A line for each arm: the claims that it is of, and what was named of its tokens."""
    found = pd.read_csv(RESULTS / "claims-figures.csv", dtype=str, keep_default_na=False)
    return found.assign(smollm2=found["outputs"].str.startswith("SmolLM2"))


@pytest.fixture(scope="module")
def rows() -> Any:
    """Every recovery of the fair protocol that is stored, once for each arm that it answers."""
    parsed = stored()
    frame = pd.DataFrame([row for row in parsed if row["kind"] == "recovery"]).set_index("key")
    asked: Any = pd.DataFrame([row for row in parsed if row["kind"] == "claim"])
    asked = asked[asked["protocol"] == "fair"].explode("keys").fillna({"stand_in": ""})
    asked = asked[["claim", "arm", "stand_in", "keys"]].drop_duplicates()
    joined = asked.merge(frame, left_on="keys", right_index=True)
    return joined[joined["control"].isna()]


def named(rows: Any, which: str) -> str:
    """Per cent of the shown or the hidden tokens that are named first; a dash without any."""
    counts: list[Any] = rows[which].dropna().to_list()
    tokens = sum(each["count"] for each in counts)
    hits = round(sum(each["top1"] * each["count"] for each in counts))
    if not tokens:
        return "–"
    if hits in (0, tokens):
        return str(100 * hits // tokens)
    return f"{100 * hits / tokens:.1f}".replace("100.0", ">99.9")


def printed(line: Any, columns: list[str]) -> list[str]:
    """Figures of a line without their intervals."""
    return [line[column].partition(" ")[0] for column in columns]


def counted(rows: Any) -> list[str]:
    """Shown, then hidden tokens by descent, Adam and search."""
    plain = rows[~rows["padded"].astype(bool)]
    by = [plain[plain["solver"].isin(methods)] for methods in METHODS]
    return [named(each, which) for which in ("self", "nonself") for each in by]


def test_the_shares_of_claims_are_those_of_their_rows(figures: Any, rows: Any) -> None:
    asked = figures[(figures["rows"] == "yes") & ~figures["smollm2"]]
    assert len(asked) == 29
    for _, line in asked.iterrows():
        arm = line["arm"].replace("–", "")
        own = rows[(rows["claim"] == int(line["claims"])) & (rows["arm"] == arm)]
        own = own[own["stand_in"] == ""]
        assert printed(line, SHARES) == counted(own), line.to_list()
        assert printed(line, [PADDED]) == [named(own[own["padded"].astype(bool)], "nonself")]
        assert int(line["prompts"]) == own["truth"].map(tuple).nunique(), line.to_list()
        models = own["checkpoint"].map(lambda about: about["weights_sha256"])
        assert int(line["models"]) == models.nunique(), line.to_list()


def test_the_shares_without_rows_are_those_of_their_sums(figures: Any) -> None:
    sums: Any = pd.DataFrame([row for row in stored() if row["kind"] == "claim record"])
    sums = sums[(sums["protocol"] == "fair") & sums["control"].isna()]
    asked = figures[figures["rows"] == "no"]
    assert len(asked) == 33
    for _, line in asked.iterrows():
        arm = line["arm"].replace("–", "")
        own = sums[(sums["claim"] == int(line["claims"])) & (sums["arm"] == arm)]
        for column in [*SHARES, PADDED]:
            which = "self" if column.startswith("shown") else "nonself"
            solver = own["solver"].isin(METHODS[[*SHARES, PADDED].index(column) % 3])
            one = own[solver & (own["padded"] == (column == PADDED))][which].dropna()
            share, _, _ = line[column].partition(" ")
            found = [f"{100 * x:.1f}".removesuffix(".0") for x in one]
            assert found == ([share.removesuffix(".0")] if share != "–" else []), line.to_list()


def test_the_shares_of_smollm2_are_those_of_its_rows(figures: Any, rows: Any) -> None:
    stood = rows[rows["stand_in"] == "smollm2-135m"]
    found = set()
    for _, line in figures[figures["smollm2"]].iterrows():
        for number in numbers(line["claims"]):
            arms = stood[stood["claim"] == number].groupby("arm")
            found.add(number)
            assert any(
                (printed(line, SHARES), int(line["prompts"]))
                == (counted(own), own["truth"].map(tuple).nunique())
                for _, own in arms
            ), number
    assert found == set(stood["claim"])


def test_the_claims_say_which_have_rows(figures: Any) -> None:
    claims = pd.read_csv(RESULTS / "claims.csv", keep_default_na=False)
    assert list(claims["claim"]) == list(range(1, 102))
    parsed: Any = pd.DataFrame(stored())
    own = parsed[parsed["stand_in"].isna()]
    for data, kind in {"yes": "claim", "no": "claim record"}.items():
        asked = set(claims["claim"][claims["rows"] == data])
        assert asked == set(own[own["kind"] == kind]["claim"].astype(int)), data
        lines_of = figures[(figures["rows"] == data) & ~figures["smollm2"]]
        assert {int(number) for number in lines_of["claims"]} <= asked
    assert (claims["rows"] != "").sum() == 49


@pytest.mark.parametrize("line", range(len(QUESTIONS)))
def test_a_question_has_the_shares_of_its_claims(line: int, page: str, figures: Any) -> None:
    which, claims, outputs = QUESTIONS[line]
    of = figures["claims"].map(lambda listed: bool(set(numbers(listed)) & set(claims)))
    arms = figures[of & figures["outputs"].str.contains(outputs)]
    cells = lines(page)[line]
    assert which in cells[2]
    assert cells[3:6] == [least_to_most(list(arms[f"{which} by {solver}"])) for solver in BY]
    assert cells[6] == least_to_most(list(arms["prompts"]))
    spans = [[int(end) for end in part.split("–")] for part in cells[7].split(", ")]
    assert [n for span in spans for n in range(span[0], span[-1] + 1)] == claims


def test_every_line_of_the_page_is_checked(page: str) -> None:
    assert len(lines(page)) == len(QUESTIONS)


def test_what_search_names_whole_is_counted(page: str, figures: Any) -> None:
    of_models = figures[~figures["smollm2"]]
    shares = pd.concat([of_models[column] for column in SHARES if column.endswith("search")])
    shares = shares[shares != "–"].str.partition(" ")[0]
    said = " ".join(page.split())
    assert f"Search found 100 % in {(shares == '100').sum()} of the {len(shares)} cases" in said


def test_stored_rows_are_summed_up_as_those_of_a_directory(capsys: Any) -> None:
    """As docs/pretrained.md does."""
    assert (
        evaluate(["summary", str(RESULTS / "smollm2" / "shown.parquet"), "--format", "json"]) == 0
    )
    assert {record["model"] for record in json.loads(capsys.readouterr().out)}


AUDITED = {
    "fp32": "block.{}.fp32", "bf16": "block.{}.bf16", "fp16": "block.{}.fp16",
    "int8, a scale a channel": "block.{}.int8c", "int8, a scale a token": "block.{}.int8t",
    "rotated keys, bf16": "rotated_key.{}.bf16", "values, bf16": "value.{}.bf16",
}  # fmt: skip
"""By what the page calls it: the case of a layer."""


def test_the_audit_is_that_of_its_rows() -> None:
    page = (RESULTS / "audit.md").read_text(encoding="utf-8")
    every: Any
    idle: Any
    every, idle = (
        pd.read_json(RESULTS / "smollm2" / f"{name}.jsonl", lines=True)
        for name in ("audit", "audit-idle")
    )
    assert not every.falsely_certain.any()
    assert not idle.falsely_certain.any()
    lines = re.findall(r"^\| (float32|bfloat16) \| ([^|]*) \| ([^|]*) \| (.*) \|$", page, re.M)
    counts = [line for line in lines if line[3].count("|") == 2]
    times = [line for line in lines if line[3].count("|") == 1]
    assert (len(counts), len(times)) == (10, 5)
    precision = {"float32": "fp32", "bfloat16": "bf16"}
    for computed, kind, layers, said in counts:
        for layer in layers.split(", "):
            rows = every[every.case == AUDITED[kind].format(layer)]
            rows = rows[rows.captured == precision[computed]]
            found = rows[["sentences", "right", "certain"]].sum()
            assert " | ".join(map(str, found)) == said, (computed, kind, layer)
    assert (idle[["right", "certain"]].to_numpy() == idle[["tokens"]].to_numpy()).all()
    alone, longer = idle[idle.tokens == 16], idle[idle.tokens > 16]
    assert len(longer) == 4
    assert all(f"{seconds:.0f} s" in page for seconds in longer.seconds)
    for computed, kind, layer, said in times:
        rows = alone[alone.case == AUDITED[kind].format(layer)]
        rows = rows[rows.captured == precision[computed]]
        assert f"{len(rows)} | {rows.seconds.median():.0f}" == said, (computed, kind, layer)
    sites = every[every.case.str.startswith("?")]
    assert f"{(sites.site == sites.asked).sum()} of {len(sites)} tries" in page


def test_the_first_page_counts_the_rows_of_the_audit() -> None:
    files = {"SmolLM2": ("smollm2/audit", "smollm2/audit-idle"),
             "small models": ("formats", "last", "likely")}  # fmt: skip
    counts = {of: sum(len((RESULTS / f"{name}.jsonl").read_text().splitlines()) for name in names)
              for of, names in files.items()}  # fmt: skip
    said = ", ".join(f"{count} of {of}" for of, count in counts.items())
    assert f"| {said} |" in (RESULTS / "README.md").read_text(encoding="utf-8")


def test_each_line_of_the_formats_is_that_of_the_rows() -> None:
    rows = [json.loads(line) for line in (RESULTS / "formats.jsonl").read_text().splitlines()]
    page = (RESULTS / "audit.md").read_text(encoding="utf-8")
    for row in rows:
        named = f"{row['right']} | {row['certain']} | {row['likely']} | {row['evaluations']:,} |"
        line = f"| {' + '.join(map(str, row['layers']))} | {named} {row['cpu_seconds']:.1f} |"
        assert line in page
        assert row["tokens"] == 480
        assert row["right"] == 480 or row["stored"] == "int2"
        assert row["certain_wrong"] == row["likely_wrong"] == 0


def test_each_line_of_the_last_position_is_that_of_the_rows() -> None:
    rows = pd.read_json(RESULTS / "last.jsonl", lines=True)
    page = (RESULTS / "audit.md").read_text(encoding="utf-8")
    cells = r"^\| (flat|Llama) \| (\d+) \| 50 \| (\d+) \((\d+) to (\d+) %\) \| (.*) \|$"
    lines = re.findall(cells, page, re.M)
    assert len(lines) == 8
    for model, length, recovered, low, high, said in lines:
        of = rows[(rows.model == f"{model.lower()}-small") & (rows.length == int(length))]
        whole = int((of.right == of.tokens).sum())
        ends = stats.binomtest(whole, len(of)).proportion_ci(method="wilson")
        limits = [f"{100 * end:.0f}" for end in (ends.low, ends.high)]
        assert [int(recovered), low, high, len(of)] == [whole, *limits, 50]
        right, spent = 100 * of.right.sum() / of.tokens.sum(), of.evaluations.median()
        counted = (
            f"{right:.0f} % | {of.certain.sum()} | {spent:,.0f} | {of.cpu_seconds.median():.1f}"
        )
        assert said == counted
        assert of.certain.sum() == whole * int(length)
    assert rows.certain_wrong.sum() == 0
    likely = f"the last token of {rows.likely.sum()} prompts"
    assert (likely in page, rows.likely_wrong.sum()) == (True, 1)
