"""Every system of the sources can be run: an entry of eval/suites/sources.yaml each."""

from pathlib import Path
from typing import Any

import pytest

from eval import invert
from eval.inversion.suites import read_suite

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
    "layers joined": (("layer", "method"), {("[1, 2]", "descent"), ("[1, 2]", "propose")}),
    "hidden first token": (("hidden", "method"),
        {(1, name) for name in ("descent", "adam", "alternating", "chance")}),
    "several hidden tokens": (("hidden",), {(2,), (3,)}),
    "first positions alone": (("slice",), {("[:, :2, :]",)}),
    "last position alone": (("slice",), {("[:, -1, :]",)}),
    "channels": (("slice",), {(f"[:, 0:, :{n}]",) for n in (8, 4, 2)}),
    "noise": (("noise", "method"), {(n, m) for n in (0.1, 1.0) for m in ("descent", "sweep")}),
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


@pytest.mark.parametrize("name", ENTRIES)
def test_a_system_of_the_sources_is_asked_as_it_says(name):
    entry: dict[str, Any] = dict(ENTRIES[name])
    methods = entry["methods"] if isinstance(entry["methods"], list) else [entry["methods"]]
    fewer = [f"{method}.steps=5" for method in methods if method in ("descent", "adam")]
    entry["set_"] = [*entry.get("set_", []), *fewer]
    rows = ask(**entry).rows
    fields, expected = EXPECTED[name]
    assert coordinates(rows, *fields) == expected
    for row in rows:
        assert len(row["found"]) == row["length"] == len(row["truth"])
        assert {"top1", "top5", "count"} <= (row["self"] or row["nonself"]).keys()
        assert (row["criterion"] is None) == (row["method"] != "descent")
    searched = [row for row in rows if row["method"] in ("sweep", "propose", "alternating")]
    plain = [row for row in searched if row["control"] != "shuffled" and not row["noise"]]
    assert all(row["self"]["top1"] == 1 for row in plain)
