"""Today's figures are the stored ones: `rows.py` says of what, `README.md` how to renew them."""

from typing import Any

import pytest
import torch

from arch.mixers import MIXERS
from eval.inversion.solver import solvers
from eval.lenses.lens import lenses
from tests.golden import rows
from tests.golden.make_models import OURS
from tests.golden.rows import CASES, alike, differences, measure, stored

STORED = stored()


@pytest.mark.parametrize("case", CASES)
def test_golden_rows(case: str) -> None:
    lines = differences(STORED[case], measure(case))
    assert not lines, "read each line; if all are meant, run `python -m tests.golden.renew`"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_rounding_moves_no_row(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights moved by a unit of rounding stand for another processor."""
    load, draw = torch.nn.Module.load_state_dict, torch.Generator().manual_seed(1)

    def load_moved(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        loaded = load(model, *args, **kwargs)
        with torch.no_grad():
            for weight in model.parameters():
                signs = torch.randint(-1, 2, weight.shape, generator=draw)
                weight *= 1 + signs * torch.finfo(weight.dtype).eps
        return loaded

    monkeypatch.setattr(torch.nn.Module, "load_state_dict", load_moved)
    for kept in ("_tables", "opened"):
        monkeypatch.setattr(rows, kept, getattr(rows, kept).__wrapped__)
    assert not differences(STORED[case], measure(case))


def test_everything_is_asked() -> None:
    """A new solver, lens or mixer has a golden row too."""
    known = " ".join([*STORED, *STORED["lens flat"]]).translate(str.maketrans(":,", "  ")).split()
    assert {*solvers(), *lenses()} <= {*known}
    patterns = " ".join(name for settings in OURS.values() for name in settings["mixers"])
    assert {name for name in MIXERS if name not in patterns} == set()


@pytest.mark.parametrize(
    ("name", "before", "now", "same"),
    [
        ("nats", 2.0, 2.0009, True),
        ("nats", 2.0, 2.02, False),
        ("rank", [3, 1.0], [3], False),
        ("found", "a", "b", False),
        ("margin_bits", 20.3, 17.3, True),
        ("margin_bits", 20.3, 13.7, False),
        ("evaluations", 1000, 1020, True),
        ("evaluations", 1000, 1100, False),
        ("about rank", 240, 301, True),
        ("about evaluations", 205, 500, False),
        ("about residual", 1.40, 1.45, False),
        ("about right", 3, 4, True),
        ("about right", 3, 5, False),
    ],
)
def test_tolerances(name: str, before: object, now: object, same: bool) -> None:
    assert alike(f"plain 0: {name}", before, now) == same
