"""What the golden rows are of: one question for each command, solver, lens and kind of model.

They are asked of tiny trained models (`models/`) and of texts given as they are, so that no change
of a recipe, of an initialisation or of the toy stories moves them. `python -m tests.golden.renew`
stores them.
"""

import json
import math
import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import eval as evals
from eval.commands.views import summary

FOLDER = Path(__file__).parent
FILE, STORIES = FOLDER / "rows.jsonl", FOLDER / "stories"
MODELS = sorted(path.name for path in (FOLDER / "models").iterdir() if path.name != "flat-s1")
CAT, DOG, RED = "Once upon a time, there was a cat.", "The dog was sad.", "Max saw a red fox."
SHOWN, ONE, THREE = "[:, 0:, :]", "[:, 1:, :]", "[:, 3:, :]"
Figures = dict[str, Any]


def model(name: str, step: int = 400) -> str:
    """A committed model, as a command line names it."""
    path = FOLDER / "models" / name
    return f"hf:{path}" if name.startswith("hf-") else str(path / f"step-{step:06d}")


Case = tuple[str, dict[str, Any]]
READ: dict[str, Any] = {"corpus": str(STORIES)}


def invert(of: str, solver: str, slices: str = SHOWN, *settings: str, **more: Any) -> Case:
    """A solver asked for a text from the last layer of a model."""
    asked = {"models": model(of), "solvers": solver, "slices": slices, "text": CAT} | READ
    asked |= {"layers": "last", "set_": [f"{solver}.{setting}" for setting in settings]}
    return "invert", asked | more


def prompts(source: str) -> Case:
    """One prompt of each kind drawn from a source."""
    kinds = ["story", "inside", "random"]
    drawn = {"prompts": kinds, "count": 1, "length": 8, "corpus": source}
    return "invert", {"models": model("flat"), "solvers": "chance", "layers": "last"} | drawn


def loss(of: str) -> Case:
    """Loss on two stories."""
    return "loss", READ | {"models": model(of), "stories": 2}


def lens(of: str, *names: str) -> Case:
    """Lenses that look at two texts."""
    asked = {"lens": [*names], "text": [CAT, "One day, a little dog felt sad."], "tokens": 2048}
    return "lens", READ | {"models": model(of)} | asked


FIRST: dict[str, Any] = {"text": DOG, "layers": "1"}
TWO = [DOG, "The cat was sad."]
CASES: dict[str, Case] = {
    **{f"invert {name}": invert(name, "sweep") for name in MODELS},
    **{f"loss {name}": loss(name) for name in MODELS},
    "descent": invert("llama", "descent", SHOWN, "steps=300", **FIRST),
    "adam": invert("llama", "adam", SHOWN, "steps=100", **FIRST),
    "pez": invert("llama", "pez", SHOWN, "steps=400", **FIRST),
    "gcg": invert("llama", "gcg", THREE, "steps=2", **FIRST),
    "soda": invert("llama", "soda", THREE, "steps=3", **FIRST),
    "snap": invert("llama", "snap", ONE, text=DOG),
    "sipit": invert("llama", "sipit", SHOWN, "steps=20", "tried=4", text=DOG),
    "propose": invert("llama", "propose", layers=["1", "2"]),
    "alternating": invert("llama", "alternating", THREE),
    "alternating, few starts": invert("flat", "alternating", THREE, "starts=1", "rounds=1"),
    "decoder": invert("llama", "decoder", "[:, -1, :]", "steps=20", text="The dog."),
    "chance": invert("llama", "chance"),
    "sweep, four channels": invert("flat", "sweep", "[:, :, :4]"),
    "sweep, layers joined": invert("flat", "sweep", layers="1+2"),
    "sweep, token mixer": invert("flat", "sweep", parts="mixer"),
    "sweep, without norms": invert("flat", "sweep", without="norms"),
    "sweep, noise": invert("flat", "sweep", noise=2.0),
    "sweep, noise and a prior": invert("flat", "sweep", SHOWN, "prior=1", noise=2.0),
    "sweep, identity network": invert("flat", "sweep", controls="identity"),
    "sweep, shuffled": invert("flat", "sweep", controls="shuffled", text=TWO),
    "sweep, padded": invert("flat", "sweep", pad_to=16, text=DOG),
    "prompts, toy": prompts("toy:120:3"),
    "prompts, file": prompts(str(STORIES / "valid.txt")),
    "prompts, lines": prompts(str(FOLDER / "stories.jsonl")),
    "prompts, directory": prompts(str(STORIES)),
    "lens flat": lens("flat", "all"),
    "lens flat, patching": (
        "lens",
        READ | {"models": model("flat"), "lens": "patching", "text": CAT},
    ),
    "lens llama": lens("llama", "logit", "circuits"),
    "lens hf-gpt2": lens("hf-gpt2", "logit", "circuits"),
    "probe": (
        "probe",
        {"models": model("flat"), "length": 16, "train_tokens": 3200, "valid_tokens": 640}
        | {"offsets": [-1, 0, 1], "steps": 20, **READ},
    ),
    "geometry": (
        "geometry",
        {"models": model("llama"), "layers": 2, "hidden": 1, "count": 2, "length": 6} | READ,
    ),
    "bits": (
        "bits",
        {"models": model("flat"), "count": 2, "before": 2, "distances": [0, 2]}
        | {"draws": 4, "tokens": 2048, **READ},
    ),
    "generate": ("generate", {"model": model("flat"), "temperature": 0, "max_new_tokens": 12}),
    "recover": ("recover", READ | {"model": model("flat"), "layer": 2}),
    "summary": ("summary", {}),
    "compare": ("compare", {}),
}
"""By what a row is of, the command and what it is asked."""


def measure(case: str) -> Figures:
    """The figures of one row, by name."""
    command, asked = CASES[case]
    if command in ("summary", "compare"):
        return _of_tables(command)
    if command == "recover":
        return _recovered(**asked)
    named = "model" if "model" in asked else "models"
    result = getattr(evals, command)(**asked | {named: opened(asked[named])})
    if command == "generate":
        return {"text": result.text}
    if command == "invert":
        return {name: value for row in result.rows for name, value in _recovery(row).items()}
    found: dict[str, list[float]] = defaultdict(list)
    if command == "lens":
        for row in result.rows:
            found[f"{row['lens']}: {row['figure']}"].append(row["value"])
    else:
        lines = result.frame
        for name, value in zip(lines["quantity"], lines["value"], strict=True):
            if name not in LEFT_OUT:
                found[name].append(value)
    return {name: _digest(values) for name, values in found.items()}


@cache
def opened(name: str) -> Any:
    """A model that the rows of it share, with what was fitted on it."""
    return evals.open_model(name)


def _recovery(row: dict[str, Any]) -> Figures:
    """Of an answer that nothing proves, what rounding moves by little (`about`)."""
    ranks, control = sum(row["rank"]), row["control"] or "plain"
    before = f"{control} {row['prompt']}, layer {row['site']['layer']}: "
    if row["prompts"] != "text":
        return {f"{row['prompts']}: rank": ranks, f"{row['prompts']}: truth": row["text"]}
    figures: Figures = {"certificate": row["certificate"]}
    if row["certificate"] is None and row["family"] in ("gradient", "search"):
        figures["about right"] = row["verdict"].count("recovered")
        figures["about rank"] = ranks
        figures |= {f"about {name}": row[name] for name in ("residual", "evaluations")}
    else:
        figures |= {"found": "".join(row["found_text"]), "evaluations": row["evaluations"]}
        figures |= {} if row["exact"] else {"rank": ranks}
        figures |= {} if row["margin_bits"] is None else {"margin_bits": row["margin_bits"]}
    return {before + name: value for name, value in figures.items()}


def _recovered(model: str, layer: int, corpus: str) -> Figures:
    checkpoint = opened(model)
    (batch,) = evals.activations(checkpoint, [CAT, RED[:18]], layer)
    outputs = batch.outputs[f"block.{layer}"][:, :5]
    found = evals.recover(checkpoint, outputs, layer=layer, corpus=corpus)
    return {"texts": found.texts, "certificates": [row[0] for row in found.certificates]}


@cache
def _tables() -> dict[str, list[dict[str, Any]]]:
    """The records of four models, two of them training seeds of one, by command."""
    models = [model("flat", 0), *map(model, ("flat", "flat-s1", "llama"))]
    with tempfile.TemporaryDirectory() as out:
        asked: dict[str, Any] = READ | {"layers": "last", "slices": [SHOWN, ONE]}
        asked |= {"solvers": ["sweep", "alternating", "chance"], "text": [CAT, DOG, RED]}
        evals.invert([*map(opened, models)], out, **asked)
        evals.loss([*map(opened, models)], out=out, stories=4, **READ)
        return {"summary": summary(out).rows, "compare": evals.compare(out, prompts="text").rows}


def _of_tables(command: str) -> Figures:
    """What a table shows."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in _tables()[command]:
        for name in record.keys() & TABLES:
            found[name].append(record[name])
    return {name: _digest(found[name]) for name in sorted(found)}


LEFT_OUT = ("tokens_per_second", "condition", "perplexity", "nats_per_token")
"""Figures of a clock or of rounding, and what says the same as another."""
SHARES = ("self", "nonself", "exact", "bits_per_byte", "shown", "hidden_1")
TABLES = {f"{name}{end}" for name in SHARES for end in ("", "_low", "_high", "_n")}
"""Columns of `summary` and `compare`."""


def _digest(values: list[float]) -> list[float]:
    """How many numbers there are, their mean, the last of them."""
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    return [len(values), sum(known) / max(1, len(known)), known[-1] if known else 0.0]


RELATIVE, ABSOLUTE = 5e-4, 1e-4
LOOSE = {
    "evaluations": (0.05, 0.0),
    "margin_bits": (0.0, 4.0),
    "patching: patching effect": (0.02, 0.1),
}
"""Relative and absolute tolerance of figures, by the end of their names."""
ABOUT = {"about rank": 1.0, "about evaluations": 1.0, "about residual": 0.02}
"""How far log2(1 + x) may be, of an answer that a solver's steps led to and nothing proves."""


def alike(name: str, stored: Any, measured: Any) -> bool:
    """Whether a figure is what was stored: numbers nearly, all else exactly.

    Margins are multiples of rounding floors, and differ by 4 bits on other processors.
    """
    if isinstance(stored, list) and isinstance(measured, list):
        pairs = zip(stored, measured, strict=False)
        return len(stored) == len(measured) and all(alike(name, *pair) for pair in pairs)
    if type(stored) is bool or not isinstance(stored, int | float) or type(measured) is str:
        return stored == measured
    for part, bits in ABOUT.items():
        if name.endswith(part):
            return abs(math.log2((1 + stored) / (1 + measured))) <= bits
    if name.endswith("about right"):
        return abs(stored - measured) <= 1
    loose = (tolerance for part, tolerance in LOOSE.items() if name.endswith(part))
    relative, absolute = next(loose, (RELATIVE, ABSOLUTE))
    return math.isclose(stored, measured, rel_tol=relative, abs_tol=absolute)


def stored() -> dict[str, Figures]:
    """The stored figures by row."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    return {record.pop("row"): record for record in map(json.loads, lines)}


def differences(before: Figures, now: Figures) -> list[str]:
    """A line for each figure that is gone, new or another than stored."""
    return [
        f"{name}: {before.get(name, 'new')} -> {now.get(name, 'gone')}"
        for name in dict.fromkeys([*before, *now])
        if not (name in before and name in now and alike(name, before[name], now[name]))
    ]
