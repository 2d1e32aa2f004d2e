"""Today's answers are the stored ones, on every solver, lens, reader and family of models."""

from pathlib import Path

import pytest

from arch.mixers import MIXERS
from eval.inversion.solvers import solvers
from eval.lenses.lens import lenses
from tests.golden import table
from tests.golden.make_models import OURS
from tests.golden.renew import measure
from tests.golden.suite import SUITE

HELP = "read each line; if all are meant, run `python -m tests.golden.renew` and commit"


@pytest.mark.parametrize("part", SUITE)
def test_golden_rows(part: str, tmp_path: Path) -> None:
    lines = list(table.differences(table.read(part), measure(part, tmp_path)))
    shown = "\n".join(lines[:40])
    assert not lines, f"{len(lines)} golden quantities differ; {HELP}:\n{shown}"


def test_everything_is_asked() -> None:
    """A new solver, lens or mixer has golden rows too."""
    asked = {place.solver for part in SUITE for place in table.read(part)}
    assert set(solvers()) | set(lenses()) <= asked
    patterns = " ".join(name for settings in OURS.values() for name in settings["mixers"])
    assert {name for name in MIXERS if name not in patterns} == set()


@pytest.mark.parametrize(
    ("name", "stored", "measured", "same"),
    [
        ("nats", 2.0, 2.001, True),
        ("nats", 2.0, 2.02, False),
        ("rank", [0, 300.0], [0, 300.5], False),
        ("rank", [0, 3], [0], False),
        ("exact", True, False, False),
        ("floor", 1e-6, 3e-6, True),
        ("floor", 1e-6, 1e-4, False),
        ("margin_bits", 20.3, 21.3, True),
        ("margin_bits", 20.3, 13.7, False),
        ("margin", 1.0, None, False),
        ("evaluations", 1000, 1020, True),
        ("evaluations", 1000, 1100, False),
        ("condition", 1e17, 3e16, True),
        ("condition", 10.0, 11.0, False),
    ],
)
def test_tolerances(name: str, stored: object, measured: object, same: bool) -> None:
    assert table.alike(name, stored, measured) == same
