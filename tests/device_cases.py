"""What must give the same answers on any device.

    python -m tests.device_cases solvers|questions|training

runs the cases of a group on the CPU and on a simulated accelerator, and prints as JSON in what each
of them differs: nothing, if all is well.
"""

import json
import math
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import eval as evals
from arch import LanguageModel, ModelConfig, generate, save_model
from eval.inversion.solver import solvers
from eval.lenses.lens import lenses
from eval.models import Checkpoint, open_checkpoint
from tests.arch.cases import MIXERS
from tests.eval.lenses.cases import story_checkpoint
from tests.simulated_device import simulated_device
from train.module import LanguageModule
from train.settings import OptimizerSettings, ScheduleSettings

TEXT, OTHER = "The dog was sad.", "The cat was sad."
TALES = ["Once upon a time, there was a cat.", "One day, a little dog felt sad."]
BRIEF = {"steps": 3, "resolve": 3, "starts": 1, "rounds": 1, "beams": 1}
"""Settings that make a solver's work short, by name."""
UNLIKE = {
    "seconds", "tokens_per_second", "device",
    "rank", "self", "nonself", "margin", "margin_bits", "notes",
}  # fmt: skip
"""Fields that may differ: times, and what rounding decides, such as the order of near equals."""
Case = Callable[[torch.device], Any]
Ask = Callable[[Checkpoint], Any]


def solver_cases(folder: Path) -> Iterator[tuple[str, Case]]:
    """Each solver, asked as many hidden tokens as it takes, one at most."""
    for solver in solvers().values():
        settings = {n: v for n, v in BRIEF.items() if n in solver.settings}
        hidden = 1 if solver.hidden is None else min(1, solver.hidden[-1])
        asked = partial(
            evals.invert,
            text=TEXT,
            layers="last",
            slices=f"[:, {hidden}:, :]",
            methods=solver.name,
            set_=[f"{solver.name}.{n}={v}" for n, v in settings.items()],
        )
        yield f"solver {solver.name}", of_model(folder / "llama", asked)


def question_cases(folder: Path) -> Iterator[tuple[str, Case]]:
    """Every other command that computes, and ways to ask `invert`."""
    small = {"count": 1, "length": 6}
    asked: dict[str, Ask] = {
        "invert, controls, noise, parts": partial(
            evals.invert,
            text=[TEXT, OTHER],
            layers="1+2",
            parts=["mixer", "stream", "block"],
            methods=["sweep", "propose"],
            noise=[0.1],
            controls=["shuffled", "identity"],
            slices="[:, :, :12]",
        ),
        "invert, ablations": partial(
            evals.invert, text=TEXT, layers="last", methods="sweep", without=["norms", "channel"]
        ),
        "bits": partial(evals.bits, count=1, before=2, distances=[0, 2], candidates=16,
                        tokens=64, draws=2),
        "bits, prior of the model": partial(evals.bits, count=1, before=2, distances=[1],
                        candidates=16, tokens=64, draws=2, prior="model"),
        "probe": partial(evals.probe, length=8, train_tokens=400, valid_tokens=80, steps=2,
                         offsets=[-1, 0]),
        "geometry": partial(evals.geometry, layers=1, hidden=1, **small),
        "loss": partial(evals.loss, text=TEXT),
        "generate": partial(evals.generate, prompt="Tom", count=2, max_new_tokens=8),
    }  # fmt: skip
    for name, ask in asked.items():
        for model in ("flat", "llama"):
            yield f"{name}, {model}", of_model(folder / model, ask)
    for name in lenses():
        ask = partial(evals.lens, lens=name, text=TALES, tokens=1024)
        yield f"lens {name}", of_model(folder / "llama", ask)


def of_model(path: Path, ask: Ask) -> Case:
    """A question asked of a model directory that is opened on the device."""

    def case(device: torch.device) -> Any:
        result = ask(open_checkpoint(path, device))
        return [*result.rows, *result.documents]

    return case


def training_cases(_: Path) -> Iterator[tuple[str, Case]]:
    """Each mixer, and the other optimiser: two training steps, a validation and a sample."""
    for mixer in MIXERS:
        yield f"train {mixer}", partial(trained, mixer, "adamw")
    yield "train by muon", partial(trained, "attention(heads=2)+flat", "muon")


def trained(mixer: str, optimizer: str, device: torch.device) -> Any:
    """Losses of two steps, a validation, a sample, and the weights."""
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig(64, 12, 16, 2, (mixer,))).to(device)
    module = LanguageModule(model, OptimizerSettings(name=optimizer), ScheduleSettings(), 4)  # pyright: ignore
    tokens = torch.randint(64, (2, 13)).to(device)
    batch = tokens[:, :-1], tokens[:, 1:], 24.0
    steps = module.configure_optimizers()["optimizer"]
    losses = []
    for _ in range(2):
        loss = module.training_step(batch, 0)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        steps.zero_grad()
        losses += [loss.item(), norm.item()]
    model.eval()
    with torch.no_grad():
        validation = module.validation_step(batch, 0).tolist()
    chance = torch.Generator(device).manual_seed(0)
    sample = generate(model, tokens[:, :3], 4, temperature=1.0, generator=chance).tolist()
    return [losses, validation, sample, [p.detach().cpu().tolist() for p in model.parameters()]]


def difference(a: Any, b: Any, place: str = "") -> str:
    """Where two answers differ, numbers by more than rounding; empty if they do not."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        pairs = [(f"{place}.{key}", a[key], b[key]) for key in a if key not in UNLIKE]
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        pairs = [(f"{place}[{i}]", *pair) for i, pair in enumerate(zip(a, b, strict=True))]
    elif isinstance(a, float) and isinstance(b, float):
        return "" if math.isclose(a, b, rel_tol=0.02, abs_tol=0.005) else f"{place}: {a} and {b}"
    else:
        return "" if a == b else f"{place}: {a} and {b}"
    found = (difference(one, other, where) for where, one, other in pairs)
    return next(filter(None, found), "")


GROUPS = {"solvers": solver_cases, "questions": question_cases, "training": training_cases}


def main(group: str) -> None:
    """Prints in what each case differs."""
    with tempfile.TemporaryDirectory() as folder:
        for name, mixer in (("flat", "flat"), ("llama", "attention(heads=4, kv_heads=2)")):
            saved = story_checkpoint(mixers=(mixer,))
            about = {"name": name, "step": 0}
            save_model(Path(folder) / name, saved.model, saved.tokenizer.to_str(), about)
        cases = dict(GROUPS[group](Path(folder)))
        expected = {name: case(torch.device("cpu")) for name, case in cases.items()}
        found = {}
        with simulated_device() as device:
            for name, case in cases.items():
                try:
                    found[name] = difference(expected[name], case(device))
                except Exception:
                    found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
