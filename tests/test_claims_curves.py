"""The curves behind the claims: asked of tiny models, resumed, and drawn from records alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from eval.__main__ import main
from eval.claims import BENCH, curves
from eval.claims.curves import BASE, FAMILIES, KINDS, NONSELF, SELF, TUNED, Plan, Point
from eval.claims.curves_page import figures
from eval.claims.curves_records import FIELDS, load
from eval.results import ROWS, Row, read_rows
from tests.claims_cases import prepared, use_tiny_curves

ARCHITECTURES = ["flat", "expanded", "parallel", "headed", "hybrid", "llama"]
AXES = ["width", "depth", "layer", "step", "channels", "observed", "noise"]
VALUES = {"width": [8, 16], "depth": [1, 2], "layer": [1, 2], "step": [0, 1000],
          "channels": [1, 4, 16], "observed": [1, 3], "noise": [0, 0.25]}  # fmt: skip
FAST = ("--corpus", "toy:400", "--device", "cpu")
SIZE = {"d_model": 16, "n_layers": 2, "context": 16}


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """What the file says, of tiny models, one story and few steps."""
    return use_tiny_curves(monkeypatch, VALUES)


@pytest.fixture
def out(tmp_path: Path, small_tokenizer: Tokenizer) -> Path:
    return prepared(tmp_path / "out", small_tokenizer)


def run(*words: object) -> int:
    return main(["claims", "curves", *map(str, words)])


def test_the_file_names_every_axis_and_architecture() -> None:
    whole = curves.plan()
    assert list(whole.axes) == AXES
    assert list(whole.architectures) == ARCHITECTURES
    for kind in KINDS:
        for axis in whole.axes.values():
            drawn = [curves.family(method) for method in axis.methods[kind].values()]
            assert drawn == list(FAMILIES)


def test_a_point_that_axes_share_is_one() -> None:
    whole = curves.plan()
    asks = whole.points()
    bases = [whole.base.at("step", step) for step in whole.steps]
    assert list(asks)[: len(bases)] == bases
    apart = 0
    for name, axis in whole.axes.items():
        own = whole.curve(name)
        assert whole.base in own, name
        assert {point.state for point in own} == (
            {"before"} if name in ("width", "depth") else {"before", "after"}
        )
        assert len(own) == len(axis.values) * len(axis.steps)
        apart += len(set(own) - set(bases))
    assert len(asks) == len(bases) + apart
    assert {asks[base].axis for base in bases} == {BASE}


def test_what_a_point_shows() -> None:
    point = Point(width=8, depth=2, layer=2, step=0, channels=8, length=4, noise=0.0)
    assert (str(point.shown(SELF)), str(point.shown(NONSELF))) == ("[:, 0:, :]", "[:, 1:, :]")
    assert str(point.at("channels", 4).shown(NONSELF)) == "[:, 1:, :4]"
    assert point.at("width", 4).channels == 4
    assert point.at("depth", 1).layer == 1
    seen = point.at("observed", 2)
    assert (seen.on("observed", SELF), seen.on("observed", NONSELF)) == (3, 2)


def test_every_point_is_asked_once_then_drawn_from_its_records(
    plan: Plan, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "curves.jsonl"
    assert run("--out", out, "--store", kept, *FAST) == 0
    missing = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in missing if "python -m train fit" in line] == ARCHITECTURES
    rows = read_rows([out])
    _check_rows(plan, rows)

    whole = (out / ROWS).read_text()
    lines = whole.splitlines(keepends=True)
    assert run("--out", out, *FAST) == 0
    assert (out / ROWS).read_text() == whole
    (out / ROWS).write_text("".join(lines[:-9]) + lines[-9][:20])
    assert run("--out", out, *FAST) == 0
    mended = read_rows([out])
    assert sorted(row["key"] for row in mended) == sorted(row["key"] for row in rows)

    records = load(kept)
    assert all(set(FIELDS) == set(record) for record in records)
    for record in records:
        assert 0 <= record["low"] <= record["share"] <= record["high"] <= 1
    for name in ARCHITECTURES:
        for axis in AXES:
            asked = [r["x"] for r in records
                     if (r["architecture"], r["axis"], r["slice"], r["family"])
                     == (name, axis, NONSELF, TUNED)]  # fmt: skip
            assert asked == (VALUES[axis][:1] if axis == "step" else VALUES[axis])
    _check_pages(kept, tmp_path)


def _check_rows(plan: Plan, rows: list[Row]) -> None:
    assert len({row["key"] for row in rows}) == len(rows)
    assert {row["architecture"] for row in rows} == set(ARCHITECTURES)
    assert {row["axis"] for row in rows} == {BASE, *AXES} - {"step"}  # of which 0 is the base
    assert {(row["state"], row["bench"]) for row in rows} == {("before", BENCH)}
    flat = [row for row in rows if row["architecture"] == "flat"]
    base = [row for row in flat if row["axis"] == BASE]
    assert len(base) == 2 * len(KINDS) * len(FAMILIES)  # two stories, asked once for all axes
    one = [row for row in flat if (row["axis"], row["x"]) == ("channels", 1)]
    assert {row["method"] for row in one} == {"adam", "propose"}
    assert {(row["x"], row["method"]) for row in flat if row["axis"] == "noise"} == {
        (0.25, method) for method in ("descent", "adam", "sweep", "alternating")
    }
    for row in flat:
        expected = 1 if row["curve"] == NONSELF else 0
        assert row["hidden"] == expected
        assert bool(row["nonself"]) == bool(expected)


def _check_pages(kept: Path, tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        place = tmp_path / name
        page = place / "curves.md"
        assert run("--records", kept, "--figures", place / "drawn", "--markdown", page) == 0
        made.append({path.name: path.read_bytes() for path in place.rglob("*.*")})
    assert made[0] == made[1]
    assert set(made[0]) == {"curves.md", "curves-summary.svg", *(f"curves-{a}.svg" for a in AXES)}
    text = made[0]["curves.md"].decode()
    for axis in AXES:
        assert f"(drawn/curves-{axis}.svg)" in text
        assert f"claims curves --models RUNS --corpus STORIES --axis {axis}" in text
    rows = [line for line in text.splitlines() if line.startswith("| llama | before")]
    first = [record for record in load(kept) if record["axis"] == BASE]
    mine = next(r for r in first if r["architecture"] == "llama" and r["slice"] == SELF)
    assert f"| {100 * mine['share']:.0f} (" in rows[0]


def test_trained_models_are_found_by_shape_and_step(
    plan: Plan,
    out: Path,
    tmp_path: Path,
    model_directory: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    own: dict[str, Any] = {"mixers": ("expanded",), **SIZE}  # two triangles by default
    model_directory("runs/here-s0", step=1000, **own)
    model_directory("runs/here-s1", step=1000, **own)
    model_directory("runs/early", step=10, mixers=("flat",), **SIZE)
    model_directory("runs/one", step=1000, mixers=("headed(heads=2)",), **SIZE)
    asked = ("--models", tmp_path / "runs", "--axis", "step", "--axis", "layer")
    assert run("--out", out, *asked, *FAST) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert [line.split()[0] for line in lines] == [n for n in ARCHITECTURES if n != "expanded"]
    assert lines[0].startswith(f"flat after 1000 steps: none under {tmp_path / 'runs'}")
    assert "--config llama-small" in lines[-1]
    after = [row for row in read_rows([out]) if row["state"] == "after"]
    assert {row["architecture"] for row in after} == {"expanded"}
    assert {row["checkpoint"]["name"] for row in after} == {"runs/here-s0"}
    assert {(row["axis"], row["x"]) for row in after} == {(BASE, None), ("layer", 1)}


def test_rows_that_are_asked_otherwise_are_left_out(
    plan: Plan, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "curves.jsonl"
    assert run("--out", out, "--axis", "step", "--limit", 1, *FAST) == 0
    rows = read_rows([out])
    old = [row | {"bench": BENCH + 1, "key": f"{row['key']}-"} for row in rows]
    (out / ROWS).write_text("".join(json.dumps(row) + "\n" for row in [*rows, *old]))
    assert run("--out", out, "--axis", "step", "--limit", 1, "--store", kept, *FAST) == 0
    assert f"left out: {len(old)} rows" in capsys.readouterr().out
    base = [record for record in load(kept) if record["axis"] == BASE]
    assert len(base) == len(KINDS) * len(FAMILIES)
    assert [figure.name for figure in figures(base)] == ["curves-summary"]


RECORD = dict.fromkeys(FIELDS, 0) | {"bench": BENCH + 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--axis", "size"), "--axis size: there is no such axis; use one of width, depth"),
        (("--models", "nowhere"), "--models nowhere: no such directory"),
        (("--records", "none.jsonl", "--figures", "f"), "--records none.jsonl: cannot be read"),
        (("--records", "torn.jsonl", "--figures", "f"), "--records torn.jsonl: cannot be read"),
        (("--records", "other.jsonl", "--figures", "f"), "no records of curves; make them with"),
        (("--records", "old.jsonl", "--figures", "f"), f"made by version {BENCH + 1} of the bench"),
        (("--records", "old.jsonl", "--store", "s"), "nothing is asked then; leave --store out"),
        (("--records", "old.jsonl"), "nothing to make of them; give --figures or --markdown"),
    ],
)
def test_refusals_are_one_line(
    words: tuple[str, ...],
    said: str,
    plan: Plan,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(out)
    Path("torn.jsonl").write_text('{"axis": ')
    Path("other.jsonl").write_text('{"claim": 1}\n')
    Path("old.jsonl").write_text(json.dumps(RECORD) + "\n")
    before = {path: path.read_bytes() for path in out.iterdir()}
    assert run(*words, "--out", out) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("error: ")
    assert said in captured.err
    after = {path: path.read_bytes() for path in out.iterdir() if path.name != ROWS}
    assert after == before
