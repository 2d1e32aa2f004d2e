"""E12: the rows that toy models give, and the verdicts on rows that are made up."""

from pathlib import Path

import pytest

from scripts.experiments import shared
from scripts.experiments.structured import asking, fall, table
from scripts.experiments.structured.__main__ import run_models

TOY = {
    "seeds": [80],
    "fewer_seeds": [80],
    "steps": [0, 3],
    "three_steps": [0],
    "ends": [0, 3],
    "models": {"column": {}, "flat": {}},
}
SMALL = {
    "bits": {"count": 2, "places": [3, 5], "distances": [1, 4], "far": 8, "candidates": 64},
    "decoder": {
        "position": 12,
        "distances": [1, 4],
        "candidates": 8,
        "examples": {"train": 64, "less": 32, "judge": 16, "exact": 2},
        "training": {"batch": 16, "steps": 6, "rate": 1e-3, "decay": 0.0},
    },
    "geometry": {"windows": [4, 16]},
    "recovery": {
        "count": 1,
        "length": 6,
        "shown": ["propose"],
        "hidden": ["alternating"],
        "budget": 2000,
    },
    "order": {
        "count": 1,
        "length": 6,
        "hidden": [1, 3],
        "budget": 2000,
        "ten": {"families": []},
    },
}
COUNTS = {"geometry": 4, "inverse": 1, "bits": 8, "order": 8, "recovery": 8, "decoder": 4}


@pytest.fixture
def asked(model_directory, tmp_path, monkeypatch):
    """Asks two toy models at two steps every part, and gives the rows."""
    monkeypatch.setattr(shared, "LOSS_WINDOWS", (4, 16))
    monkeypatch.setattr(asking, "NEIGHBOURS", (4, 16))
    monkeypatch.setattr(asking, "PARTS", {name: asking.PARTS[name] for name in COUNTS})
    design = shared.read_design("e12")
    design |= TOY | {name: design[name] | changes for name, changes in SMALL.items()}
    for family in TOY["models"]:
        models = tmp_path / "runs" / f"{family}-s80" / "models"
        models.mkdir(parents=True)
        for step in TOY["steps"]:
            made = model_directory(f"{family}-s80", step=step, mixers=(family,))
            made.rename(models / made.name)

    def ask():
        assert not run_models(Path("toy:400"), tmp_path, design, [])
        return [row for file in sorted(tmp_path.glob("*.jsonl")) for row in shared.read_rows(file)]

    return ask


@pytest.mark.slow
def test_every_part_answers_and_nothing_is_asked_twice(asked):
    all_rows = asked()
    rows = {name: [row for row in all_rows if row["kind"] == name] for name in COUNTS}
    assert {name: len(of) for name, of in rows.items()} == COUNTS
    assert len({row["key"] for row in all_rows}) == len(all_rows)
    assert asked() == all_rows
    assert rows["inverse"][0]["named"] == rows["inverse"][0]["tokens"]
    assert all(0 <= bits <= 6 for row in rows["bits"] for bits in row["bits"]["int8"]["alone"])
    trained = {row["step"]: set(row["decoder"]) for row in rows["decoder"]}
    assert trained[0] < trained[3]
    assert table.judge_inverse(table.read_frame(all_rows)).verdict == "confirmed"


def of_models(kind, values, **fields):
    """Rows of a figure by family, one for each seed."""
    return [
        {"kind": kind, "model": f"{family}-s{seed}", "step": 3125} | fields | row
        for family, rows in values.items()
        for seed, row in enumerate(rows)
    ]


def losses(flat, toeplitz, column):
    values = {"flat": flat, "toeplitz": toeplitz, "column": column}
    return of_models(
        "geometry", {name: [{"nats": nats} for nats in of] for name, of in values.items()}
    )


@pytest.mark.parametrize(
    ("toeplitz", "verdict"),
    [
        ([2.5, 2.51, 2.49], "confirmed"),
        ([2.9, 2.91, 2.89], "refuted"),
        ([2.5, 2.9, 2.7], "open"),
    ],
)
def test_a_difference_between_families_needs_its_p(toeplitz, verdict):
    rows = losses([2.7, 2.71, 2.69], toeplitz, [3.0, 3.01, 2.99])
    assert table.judge_loss(table.read_frame(rows)).verdict == verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [((0.8, 0.9), "confirmed"), ((0.8, 6.0), "refuted"), ((0.5, 4.0), "open")],
)
def test_a_decoder_is_judged_by_its_limits_in_each_family(found, verdict):
    exact = {"int8": [8.0, 2.0], table.NOISE: [1.0, 1.0]}
    low, high = found
    bits = [[[low + 0.01 * seed, 0.0] for seed in range(3)]]
    bits.append([[high + (2.0 if verdict == "open" else 0.01) * seed, 0] for seed in range(3)])
    values = {
        family: [{"decoder": {"blind clean": of_seed}, "exact": exact} for of_seed in of]
        for family, of in zip(("flat", "mixed"), bits, strict=True)
    }
    frame = table.read_frame(of_models("decoder", values, distances=[1, 4]))
    assert table.judge_decoder(frame, "blind clean", 0.3).verdict == verdict


@pytest.mark.parametrize(("shift", "verdict"), [(1, "confirmed"), (2, "refuted")])
def test_two_dips_are_one_where_they_are_a_saved_step_apart(shift, verdict):
    rows = []
    for family in table.DIPPED:
        for seed in range(5):
            for number, step in enumerate([0, 24, 49, 98, 195]):
                about = {"model": f"{family}-s{seed}", "step": step}
                bits = {table.NOISE: {"alone": [float(number != 1)]}}
                rows.append({"kind": "bits", "distances": [8], "bits": bits} | about)
                rank = float(number != 1 + shift)
                rows.append({"kind": "geometry", "rankme": rank} | about)
    assert table.judge_dip(table.read_frame(rows)).verdict == verdict


@pytest.mark.parametrize(
    ("winding", "ratio", "verdict"),
    [
        (0, 10.0, "confirmed"),
        (0, 1e4, "refuted"),  # the ratio rises
        (0, 1500.0, "open"),
        (4, 10.0, "refuted"),
    ],
)
def test_layers_are_invertible_where_no_zero_lies_inside_and_the_ratio_falls(
    winding, ratio, verdict
):
    rows = [
        {"kind": "toeplitz", "model": f"toeplitz-s{seed}", "step": step, "winding": winding,
         "least": 1.0, "largest": ratio if step else 1e3 * 10 ** (seed / 10)}
        for seed in range(5) for _ in range(4) for step in (0, table.LAST)
    ]  # fmt: skip
    assert table.judge_invertibility(table.read_frame(rows)).verdict == verdict


def test_p_is_corrected_step_down():
    estimates = {name: table.Estimate(0, 0, 0, p) for name, p in
                 {"a": 0.04, "b": 0.01, "c": 0.03}.items()}  # fmt: skip
    corrected = {name: of.p for name, of in table.correct(estimates).items()}
    assert corrected == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})


def trained_longer(*lines):
    """E14's rows of families whose bits by step are given; passages differ by little."""
    rows = []
    for family, line in zip("abc", lines, strict=True):
        for step, value in enumerate(line):
            about = {"model": f"{family}-s90", "step": step}
            rows.append({"kind": "geometry", "key": "", "rankme": value} | about)
            for number in range(20):
                bits = [value + 0.1 * (number * step % 7 / 7)] * 3
                rows.append({"kind": "bits", "key": f"bits {number}", "distances": [4, 8, 16],
                             "bits": {table.NOISE: {"alone": bits}}} | about)  # fmt: skip
    return table.read_frame(rows)


UP, DOWN, LEVEL = [1.0, 3.0, 5.0], [1.0, 6.0, 4.0], [1.0, 5.02, 5.0]


@pytest.mark.parametrize(
    ("lines", "verdicts"),
    [
        ((DOWN, DOWN, DOWN), ["confirmed", "confirmed"]),
        ((DOWN, LEVEL, DOWN), ["open", "confirmed"]),
        ((DOWN, UP, UP), ["refuted", "confirmed"]),
        ((UP, UP, UP), ["refuted", "open"]),
    ],
)
def test_bits_fall_where_they_do_behind_their_most(lines, verdicts):
    frame = trained_longer(*lines)
    falls, ranks = fall.measure_falls(frame), table.figure_of(frame, "geometry", "rankme")
    found = fall.judge_fall(falls, 2), fall.judge_rank(falls, ranks)
    assert [of.verdict for of in found] == verdicts
    assert falls["a"].step == (1 if lines[0] is DOWN else 2)
