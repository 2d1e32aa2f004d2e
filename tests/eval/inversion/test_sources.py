"""Every system of the sources is run as its entry says; no solver sees the truth."""

from pathlib import Path
from typing import Any

import pytest

from eval import invert
from eval.commands.suites import read_suite
from eval.inversion.request import Inversion
from eval.inversion.solver import solvers
from eval.inversion.task import plan
from eval.models.checkpoint import open_checkpoint
from eval.models.text import Prompt
from eval.rows.schema import SHUFFLED
from eval.sites.slices import Slice
from tests.eval.inversion.search_cases import QUICK, prompts

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "tests" / "golden" / "models"
LLAMA = str(MODELS / "llama" / "step-000400")
FLAT = str(MODELS / "flat" / "step-000400")
ASKED: dict[str, Any] = {
    "models": LLAMA,
    "text": ["The dog was sad.", "The cat was sad."],
    "layers": "last",
    "corpus": str(ROOT / "tests" / "golden" / "stories"),
}
ENTRIES = read_suite("sources")


def ask(**more: Any):
    """The result of `invert` for the two texts, at the last layer of a small Llama."""
    asked: dict[str, Any] = {**ASKED, **more}
    return invert(**asked)


def coordinates(rows, *names):
    """What rows say under these names, of themselves, their site or their solver's settings."""
    return {
        tuple(
            str(value) if isinstance(value, list) else value
            for name in names
            for value in [({**row, **row["site"], **row["settings"]})[name]]
        )
        for row in rows
    }


EXPECTED = {
    "descent on embeddings": (("slice", "hidden", "variable"), {("[:, 0:, :]", 0, "embedding")}),
    "descent on a vector over the vocabulary": (("variable",), {("vocabulary",)}),
    "descent on its softmax": (("variable",), {("softmax",)}),
    "cosine": (("objective",), {("cosine",)}),
    "euclidean distance": (("objective",), {("l2",)}),
    "cosine and L1": (("objective",), {("mixed(1.0, 0.01)",)}),
    "token by token": (("sequential",), {(True,)}),
    "longer, at another rate": (("rate",), {(0.5,)}),
    "restricted vocabulary": (("hidden",), {(0,), (1,)}),
    "layers joined": (("layer", "solver"), {("[1, 2]", "descent"), ("[1, 2]", "propose")}),
    "hidden first token": (("hidden", "solver"),
        {(1, name) for name in ("descent", "adam", "alternating", "chance")}),
    "several hidden tokens": (("hidden",), {(2,), (3,)}),
    "first positions alone": (("slice",), {("[:, :2, :]",)}),
    "last position but one alone": (("slice",), {("[:, -2:-1, :]",)}),
    "last position alone": (("slice",), {("[:, -1, :]",)}),
    "channels": (("slice",), {(f"[:, 0:, :{n}]",) for n in (8, 4, 2)}),
    "noise": (("noise", "solver"), {(n, m) for n in (0.1, 1.0) for m in ("descent", "sweep")}),
    "token mixer alone": (("part", "hidden"), {("mixer", 0), ("mixer", 1)}),
    "token mixers stacked alone": (("without",), {("['channel', 'norms', 'residual']",)}),
    "no norms": (("without",), {("['norms']",)}),
    "no residual": (("without",), {("['residual']",)}),
    "no causal mask": (("without",), {("['mask']",)}),
    "swapped embedding": (("control",), {(None,), ("embedding=untrained",)}),
    "controls": (("control",), {(None,), ("shuffled",), ("identity",), ("scale=0.02",)}),
}  # fmt: skip


def test_every_entry_has_what_it_must_show():
    assert list(EXPECTED) == list(ENTRIES)


@pytest.mark.first(12)
@pytest.mark.parametrize("name", ENTRIES)
def test_a_system_of_the_sources_is_asked_as_it_says(name):
    entry: dict[str, Any] = dict(ENTRIES[name])
    methods = entry["solvers"] if isinstance(entry["solvers"], list) else [entry["solvers"]]
    fewer = [f"{solver}.steps=5" for solver in methods if solver in ("descent", "adam")]
    entry["set_"] = [*entry.get("set_", []), *fewer]
    rows = ask(**entry).rows
    fields, expected = EXPECTED[name]
    assert coordinates(rows, *fields) == expected
    for row in rows:
        assert len(row["found"]) == row["length"] == len(row["truth"])
        assert {"top1", "top5", "count"} <= (row["self"] or row["nonself"]).keys()
        assert (row["criterion"] is None) == (row["solver"] != "descent")
    searched = [row for row in rows if row["solver"] in ("sweep", "propose", "alternating")]
    plain = [row for row in searched if row["control"] != "shuffled" and not row["noise"]]
    assert all(row["self"]["top1"] == 1 for row in plain)


COUNT, LENGTH = 8, 5


@pytest.mark.first(3)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "decoder" else n for n in solvers()],
)
def test_a_shuffled_target_leaves_the_truth_at_chance(model_directory, name):
    checkpoint = open_checkpoint(model_directory())
    drawn = prompts(COUNT, LENGTH, seed=3).tolist()
    asked = [Prompt("random", i, tuple(tokens)) for i, tokens in enumerate(drawn)]
    solver = solvers()[name].configured(QUICK.get(name, {}))
    hidden = solver.hidden[0] if solver.hidden else 2  # what the evidence leaves open tells most
    request = Inversion(
        solvers=(name,),
        set_=tuple(f"{name}.{setting}={value}" for setting, value in QUICK.get(name, {}).items()),
        slices=(str(Slice(hidden)),),
        layers=("1",),
        controls=(SHUFFLED,),
    )
    tasks = plan(checkpoint, request, asked, "toy:2000")
    rows = [row for task in tasks for row in task.rows() if row["control"] == SHUFFLED]
    assert len(rows) == COUNT
    hits = others = 0
    for row in rows:
        other = drawn[(row["prompt"] + 1) % COUNT]
        hits += sum(a == b for a, b in zip(row["found"], row["truth"], strict=True))
        others += sum(a == b for a, b in zip(row["found"][hidden:], other[hidden:], strict=True))
        assert not row["exact"]
    assert hits <= 2  # of 40; 0.1 expected
    ranks = [rank for row in rows for rank in row["rank"]]
    assert 130 < sum(ranks) / len(ranks) < 270  # 199.5 by chance; standard error 18
    assert sum(rank < 5 for rank in ranks) <= 4
    if name == "chance":
        assert others <= 2
    else:
        assert others >= 0.8 * COUNT * (LENGTH - hidden)
