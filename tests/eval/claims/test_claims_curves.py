"""The curves behind the claims: asked of tiny models, resumed, and drawn from records alone."""

from typing import Any

import pytest

from eval.__main__ import main
from eval.claims import BENCH, curves
from eval.claims.curves import (
    BASE,
    FAMILIES,
    KINDS,
    NONSELF,
    SELF,
    TUNED,
    Plan,
    Point,
    curve_records,
    write,
)
from eval.rows import ROWS, read_rows
from eval.tables import share_text
from tests.eval.claims.cases import prepared, use_tiny_curves

ARCHITECTURES = ["flat", "expanded", "parallel", "headed", "hybrid", "llama"]
AXES = ["width", "depth", "layer", "step", "channels", "observed", "noise"]
VALUES = {"width": [8, 16], "depth": [1, 2], "layer": [1, 2], "step": [0, 1000],
          "channels": [1, 4, 16], "observed": [1, 3], "noise": [0, 0.25]}  # fmt: skip
FAST = ("--corpus", "toy:400", "--device", "cpu")
SIZE = {"d_model": 16, "n_layers": 2, "context": 16}


@pytest.fixture
def plan(monkeypatch):
    """What the file says, of tiny models, one story and few steps."""
    return use_tiny_curves(monkeypatch, VALUES)


@pytest.fixture
def out(tmp_path, small_tokenizer):
    return prepared(tmp_path / "out", small_tokenizer)


def run(*words: object) -> int:
    return main(["claims", "curves", *map(str, words)])


def test_the_file_names_every_axis_and_architecture():
    whole = curves.plan()
    assert list(whole.axes) == [BASE, *AXES]
    assert list(whole.architectures) == ARCHITECTURES
    for kind in KINDS:
        for axis in whole.axes.values():
            drawn = [curves.family(method) for method in axis.methods[kind].values()]
            assert drawn == list(FAMILIES)


def test_a_point_that_axes_share_is_one():
    whole = curves.plan()
    asks = whole.points()
    bases = whole.curve(BASE)
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
    assert {asks[base].stories for base in bases} == {whole.stories[BASE]}


def test_what_a_point_shows():
    point = Point(width=8, depth=2, layer=2, step=0, channels=8, length=4, noise=0.0)
    assert (str(point.shown(SELF)), str(point.shown(NONSELF))) == ("[:, 0:, :]", "[:, 1:, :]")
    assert str(point.at("channels", 4).shown(NONSELF)) == "[:, 1:, :4]"
    assert point.at("width", 4).channels == 4
    assert point.at("depth", 1).layer == 1
    seen = point.at("observed", 2)
    assert (seen.on("observed", SELF), seen.on("observed", NONSELF)) == (3, 2)


def test_every_point_is_asked_once_then_drawn(plan, out, tmp_path, capsys):
    assert run("--out", out, *FAST) == 0
    missing = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in missing if "python -m train fit" in line] == ARCHITECTURES
    rows = read_rows([out])
    points, _ = curve_records(plan, rows)
    _check_points(plan, points)
    assert len({row["key"] for row in rows}) == len(rows)

    whole = (out / ROWS).read_text()
    lines = whole.splitlines(keepends=True)
    assert run("--out", out, *FAST) == 0
    assert (out / ROWS).read_text() == whole
    (out / ROWS).write_text("".join(lines[:-9]) + lines[-9][:20])
    kept = tmp_path / "rows.parquet"
    made = []
    for name in ("a", "b"):
        place = tmp_path / name
        page = "curves.md" if name == "a" else "claims.md"
        words = ["--figures", str(place / "drawn"), "--markdown", str(place / page)]
        if name == "a":
            assert run("--out", out, *FAST, *words) == 0
            assert main(["claims", "table", str(out), "--store", str(kept)]) == 0
        else:
            assert main(["claims", "table", str(kept), *words]) == 0
        made.append({path.name: path.read_bytes() for path in place.rglob("*.*")})
    mended = read_rows([out])
    assert sorted(row["key"] for row in mended) == sorted(row["key"] for row in rows)
    assert curve_records(plan, read_rows([kept])) == curve_records(plan, mended) == (points, [])
    _check_pages(points, *made)


def _check_points(plan: Plan, points: list[dict[str, Any]]) -> None:
    for p in points:
        assert 0 <= p["low"] <= p["share"] <= p["high"] <= 1
    for name in ARCHITECTURES:
        for axis in AXES:
            asked = [p["x"] for p in points
                     if (p["architecture"], p["axis"], p["slice"], p["family"])
                     == (name, axis, NONSELF, TUNED)]  # fmt: skip
            assert asked == (VALUES[axis][:1] if axis == "step" else VALUES[axis])
    flat = [p for p in points if p["architecture"] == "flat"]
    assert {p["state"] for p in flat} == {"before"}
    assert {p["axis"] for p in flat} == {BASE, *AXES}
    assert len([p for p in flat if p["axis"] == BASE]) == len(KINDS) * len(FAMILIES)
    one = [p for p in flat if (p["axis"], p["x"]) == ("channels", 1)]
    assert {p["method"] for p in one} == {"adam", "propose"}
    noisy = [p for p in flat if (p["axis"], p["x"]) == ("noise", 0.25)]
    assert {p["method"] for p in noisy} == {"descent", "adam", "sweep", "alternating"}
    assert all(p["tokens"] == p["prompts"] for p in flat if p["slice"] == NONSELF)


def _check_pages(
    points: list[dict[str, Any]], first: dict[str, bytes], second: dict[str, bytes]
) -> None:
    text = first.pop("curves.md").decode()
    assert "# The claims" in second.pop("claims.md").decode()
    assert text in second.pop("curves.md").decode().replace("](../drawn/", "](drawn/")
    assert first == second
    assert set(first) == {"curves-summary.svg", *(f"curves-{a}.svg" for a in AXES)}
    for axis in AXES:
        assert f"(drawn/curves-{axis}.svg)" in text
        assert f"claims curves --models RUNS --corpus STORIES --axis {axis}" in text
    rows = [line for line in text.splitlines() if line.startswith("| llama | before")]
    base = [p for p in points if (p["axis"], p["architecture"]) == (BASE, "llama")]
    point = next(p for p in base if p["slice"] == SELF)
    assert f"| {share_text(point['share'])} (" in rows[0]


def test_trained_models_are_found_by_shape_and_step(plan, out, tmp_path, model_directory, capsys):
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
    rows = [row for row in read_rows([out]) if row.get("checkpoint", {}).get("step")]
    assert {row["checkpoint"]["name"] for row in rows} == {"runs/here-s0"}
    points, _ = curve_records(plan, read_rows([out]))
    after = [p for p in points if p["state"] == "after"]
    assert {p["architecture"] for p in after} == {"expanded"}
    assert {(p["axis"], p["x"]) for p in after} >= {(BASE, None), ("layer", 1)}


def test_rows_that_are_asked_otherwise_are_left_out(plan, out):
    assert run("--out", out, "--axis", "step", "--limit", 1, *FAST) == 0
    rows = read_rows([out])
    points, notes = curve_records(plan, rows)
    base = [p for p in points if p["axis"] == BASE]
    assert (len(base), notes) == (len(KINDS) * len(FAMILIES), [])
    assert [path.name for path in write(out / "drawn", base)] == ["curves-summary.svg"]
    (end,) = (row for row in rows if row["kind"] == "claim")
    others = [row | {"settings": {"steps": 99}} for row in rows if row is not end]
    for changed in ([*others, end], [*rows, end | {"bench": BENCH + 1}]):
        assert curve_records(plan, changed) == (
            [],
            [f"left out: {len(end['keys'])} rows that this bench, or curves.yaml as it is now, "
             "asks otherwise"],
        )  # fmt: skip
