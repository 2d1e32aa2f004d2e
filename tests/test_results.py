"""The frozen figures of docs/results are those of the rows beside them, counted with pandas."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

RESULTS = Path(__file__).parent.parent / "docs" / "results"
SEARCH = ["propose", "alternating"]
METHODS = [["descent"], ["adam"], SEARCH]


def lines(page: str, first: str) -> list[list[str]]:
    """The cells of a page's table whose first heading and number of columns are given."""
    table: list[list[str]] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith(f"| {first} |"):
            table = [cells]
        elif table and line.startswith("|"):
            table.append(cells)
        elif table:
            return table[2:]
    raise AssertionError(first)


def stored() -> list[dict[str, Any]]:
    """The rows that are kept, each a JSON object."""
    return [json.loads(row) for row in pd.read_parquet(RESULTS / "claims.parquet")["row"]]


@pytest.fixture(scope="module")
def page() -> str:
    return (RESULTS / "claims.md").read_text(encoding="utf-8")


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


def of_page(cells: list[str]) -> list[str]:
    """Figures of a table without their intervals."""
    return [cell.partition(" ")[0] for cell in cells]


def counted(rows: Any) -> list[str]:
    """Shown, then hidden tokens by descent, Adam and search."""
    plain = rows[~rows["padded"].astype(bool)]
    by = [plain[plain["method"].isin(methods)] for methods in METHODS]
    return [named(each, which) for which in ("self", "nonself") for each in by]


def test_the_shares_of_claims_are_those_of_their_rows(page: str, rows: Any) -> None:
    asked = [cells for cells in lines(page, "# | arm") if cells[-1] == "rows"]
    assert len(asked) == 29
    for number, arm, _, *shares, padded, n, _ in asked:
        own = rows[(rows["claim"] == int(number)) & (rows["arm"] == arm.replace("–", ""))]
        own = own[own["stand_in"] == ""]
        assert of_page(shares) == counted(own), (number, arm)
        assert of_page([padded]) == [named(own[own["padded"].astype(bool)], "nonself")]
        prompts = own["truth"].map(tuple)
        models = own["checkpoint"].map(lambda about: about["weights_sha256"])
        assert n == f"{prompts.nunique()}, {models.nunique()}", (number, arm)


def test_the_shares_of_smollm2_are_those_of_its_rows(page: str, rows: Any) -> None:
    stood = rows[rows["stand_in"] == "smollm2-135m"]
    found = set()
    for claims, *_, _, _, a, b, c, d, e, f, n in lines(page, "claims | outputs"):
        for number in map(int, claims.split(", ")):
            arms = stood[stood["claim"] == number].groupby("arm")
            found.add(number)
            assert any(
                (of_page([a, b, c, d, e, f]), int(n))
                == (counted(own), own["truth"].map(tuple).nunique())
                for _, own in arms
            ), number
    assert found == set(stood["claim"])


def test_the_table_says_which_claims_have_rows(page: str) -> None:
    parsed: Any = pd.DataFrame(stored())
    own = parsed[parsed["stand_in"].isna()]
    kinds = {"rows": "claim", "sums": "claim record"}
    table = lines(page, "# | claim")
    assert len(table) == 101
    for data, kind in kinds.items():
        numbers = {int(cells[0].partition("</a>")[2]) for cells in table if cells[-1] == data}
        assert numbers == set(own[own["kind"] == kind]["claim"].astype(int)), data
