"""What must give the same answers on any device.

    python -m tests.device_cases

runs all cases on the CPU and on a simulated accelerator, and prints as JSON in what each of them
differs: nothing, if all is well. First it checks that the accelerator refuses what a GPU does.
"""

import json
import math
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import eval as evals
import eval.inversion.guesses as guesses
from arch import LanguageModel, ModelConfig, generate, save_model
from eval.inversion.solver import solvers
from eval.lenses.lens import lenses
from eval.models.checkpoint import Checkpoint, open_checkpoint
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
TOY: dict[str, Any] = {"corpus": "toy:400"}
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
            **TOY,
            slices=f"[:, {hidden}:, :]",
            solvers=solver.name,
            set_=[f"{solver.name}.{n}={v}" for n, v in settings.items()],
        )
        yield f"solver {solver.name}", of_model(folder / "llama", asked)


def question_cases(folder: Path) -> Iterator[tuple[str, Case]]:
    """Every other command that computes, and ways to ask `invert`."""
    known = TOY | {"count": 1, "before": 2, "candidates": 16, "tokens": 64, "draws": 2}
    asked: dict[str, Ask] = {
        "invert, controls, noise, parts": partial(
            evals.invert,
            text=[TEXT, OTHER],
            layers="1+2",
            parts=["mixer", "stream"],
            solvers="sweep",
            noise=[0.1],
            controls=["shuffled"],
            slices="[:, :, :12]",
            **TOY,
        ),
        "invert, ablations": partial(
            evals.invert,
            text=TEXT,
            layers="last",
            solvers="sweep",
            without=["norms", "channel"],
            **TOY,
        ),
        "bits": partial(evals.bits, distances=[0, 2], **known),
        "bits, prior of the model": partial(evals.bits, distances=[1], prior="model", **known),
        "probe": partial(
            evals.probe,
            length=8,
            train_tokens=400,
            valid_tokens=80,
            steps=2,
            offsets=[-1, 0],
            **TOY,
        ),
        "geometry": partial(evals.geometry, layers=1, hidden=1, count=1, length=6, **TOY),
        "loss": partial(evals.loss, text=TEXT),
        "generate": partial(evals.generate, prompt="Tom", count=2, max_new_tokens=8),
    }
    for name, ask in asked.items():
        yield f"{name}, llama", of_model(folder / "llama", ask)
    for name in ("invert, ablations", "geometry", "generate"):
        yield f"{name}, flat", of_model(folder / "flat", asked[name])
    for name in lenses():
        ask = partial(evals.lens, lens=name, text=TALES, tokens=400, **TOY)
        yield f"lens {name}", of_model(folder / "llama", ask)


opened = cache(open_checkpoint)


def of_model(path: Path, ask: Ask) -> Case:
    """A question asked of a model directory, which is opened on a device once for all of them."""

    def case(device: torch.device) -> Any:
        result = ask(opened(path, device))
        return [*result.rows, *result.documents]

    return case


def training_cases() -> Iterator[tuple[str, Case]]:
    """Each kind of mixer, and the other optimiser: two steps, a validation and a sample."""
    for mixer in {mixer.partition("(")[0]: mixer for mixer in MIXERS}.values():
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


def check_refusals(device: torch.device) -> None:
    """The simulated device refuses what a GPU does, and allows what it allows."""

    def refused(case: Callable[[], object]) -> bool:
        try:
            case()
        except (RuntimeError, TypeError):
            return True
        return False

    x, on_cpu, few = torch.ones(3, 2).to(device), torch.ones(3, 2), torch.tensor([0, 1])
    assert (x.device.type, x.device.index, (x @ x.T).device) == ("sim", 0, device)
    assert refused(lambda: x + on_cpu)
    assert refused(lambda: on_cpu * x.sum())
    assert refused(lambda: on_cpu[few.to(device)])
    assert refused(lambda: x.index_put_((few,), torch.ones(2, 2)))
    assert refused(lambda: x.index_select(0, few))
    assert refused(lambda: x.numpy())
    assert refused(lambda: torch.randn(3, device=device, generator=torch.Generator()))
    assert refused(lambda: torch.randn(3, generator=torch.Generator(device)))
    assert (x * torch.tensor(2.0)).device == x[few].device == device
    assert torch.tensor([x.sum(), x[0, 0]]).tolist() == [6.0, 1.0]  # .item() by C++
    assert torch.zeros_like(x, device="cpu").device.type == x.cpu().device.type == "cpu"
    layer = torch.nn.Linear(2, 1).to(device)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == device


def main() -> None:
    """Prints in what each case differs; maps are fitted after few prefixes."""
    guesses.PREFIXES = 8
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for name, mixer in (("flat", "flat"), ("llama", "attention(heads=4, kv_heads=2)")):
            saved = story_checkpoint(mixers=(mixer,))
            about = {"name": name, "step": 0}
            save_model(folder / name, saved.model, saved.tokenizer.to_str(), about)
        groups = solver_cases(folder), question_cases(folder), training_cases()
        cases = {name: case for group in groups for name, case in group}
        expected = {name: case(torch.device("cpu")) for name, case in cases.items()}
        found = {}
        with simulated_device() as device:
            check_refusals(device)
            for name, case in cases.items():
                try:
                    found[name] = difference(expected[name], case(device))
                except Exception:
                    found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
