"""Today's answers are the stored ones, and every seeded fault turns some of them red."""

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import eval as evals
from arch.mixers import MIXERS
from eval.inversion.solver import solvers
from eval.lenses.lens import lenses
from tests.golden import table
from tests.golden.adaptor import Table, ask
from tests.golden.fault import Fault
from tests.golden.faults import FAULTS
from tests.golden.make_models import OURS
from tests.golden.renew import measure
from tests.golden.suite import SUITE, Step

HELP = "read each line; if all are meant, run `python -m tests.golden.renew` and commit"


@pytest.mark.parametrize("part", SUITE)
def test_golden_rows(part: str, tmp_path: Path) -> None:
    lines = list(table.differences(table.read(part), measure(part, tmp_path)))
    shown = "\n".join(lines[:40])
    assert not lines, f"{len(lines)} golden quantities differ; {HELP}:\n{shown}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("part", SUITE)
def test_rounding_moves_no_row(
    part: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights moved by a unit of rounding stand for another processor."""
    load, draw = torch.nn.Module.load_state_dict, torch.Generator().manual_seed(seed)

    def load_moved(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        loaded = load(model, *args, **kwargs)
        with torch.no_grad():
            for weight in model.parameters():
                signs = torch.randint(-1, 2, weight.shape, generator=draw)
                weight *= 1 + signs * torch.finfo(weight.dtype).eps
        return loaded

    monkeypatch.setattr(torch.nn.Module, "load_state_dict", load_moved)
    assert not list(table.differences(table.read(part), measure(part, tmp_path)))


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
        ("margin_bits", 20.3, 17.3, True),
        ("margin_bits", 20.3, 13.7, False),
        ("margin", 1.0, None, False),
        ("evaluations", 1000, 1020, True),
        ("evaluations", 1000, 1100, False),
        ("about rank", [0, 240.0], [1, 300.0], True),
        ("about rank", [0, 240.0], [2, 240.0], False),
        ("about evaluations", 205, 245, True),
        ("about evaluations", 205, 500, False),
        ("about residual", 1.40, 1.45, False),
        ("about right", 3, 4, True),
        ("about right", 3, 5, False),
        ("condition", 1e17, 3e16, True),
        ("condition", 10.0, 11.0, False),
    ],
)
def test_tolerances(name: str, stored: object, measured: object, same: bool) -> None:
    assert table.alike(name, stored, measured) == same


def narrowed(step: Step, fault: Fault) -> Step:
    """A step that asks the fault's solver or lens and its model alone."""
    chosen = dict(step)
    if fault.solver:
        chosen["lens" if step["ask"] == "lens" else "methods"] = [fault.solver]
        chosen["set"] = [s for s in step.get("set", []) if s.startswith(f"{fault.solver}.")]
    if fault.model:
        chosen["models"] = [fault.model]
    return chosen


def asked(fault: Fault, folder: Path) -> tuple[Table, Table]:
    """What is stored of the fault's case, and what is measured."""
    for case in fault.cases:
        measured = ask(narrowed(SUITE[fault.part][case], fault), case, folder)
    name = Path(fault.model).parent.name if "step-" in fault.model else Path(fault.model).name
    stored = {
        place: values
        for place, values in table.read(fault.part).items()
        if place.case == fault.cases[-1]
        and (not fault.solver or place.solver == fault.solver)
        and (not name or place.model.split()[0] == name)
    }
    return stored, measured


@cache
def import_all() -> None:
    """Imports all of eval: a module first imported with a fault in would keep it."""
    for module in pkgutil.walk_packages(evals.__path__, "eval."):
        importlib.import_module(module.name)


def seed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the fault in."""
    import_all()
    target, _, key = fault.target.rstrip("]").partition("[")
    module, _, path = target.partition(":")
    holder: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    right = getattr(holder, name)
    if key:
        monkeypatch.setitem(right, key, fault.change(right[key]))
    else:
        monkeypatch.setattr(holder, name, fault.change(right))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_is_seen(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed(fault, monkeypatch)
    stored, measured = asked(fault, tmp_path)
    seen = list(table.differences(stored, measured))
    # what the narrowed case does not ask is gone in any case
    assert any(" is gone: " not in line for line in seen), seen


CASES = {(fault.part, fault.cases, fault.solver, fault.model): fault for fault in FAULTS}


@pytest.mark.slow
@pytest.mark.parametrize("fault", CASES.values(), ids=lambda fault: fault.what)
def test_without_the_fault_nothing_is_seen(fault: Fault, tmp_path: Path) -> None:
    """A narrowed case gives what the whole one gave: the fault alone makes the difference."""
    stored, measured = asked(fault, tmp_path)
    assert not list(table.differences(stored, measured))
