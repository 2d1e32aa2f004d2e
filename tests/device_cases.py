"""What must give the same answers on any device: `differences()` runs it on two, and compares.

The process has to be one that has not computed a gradient yet, see tests/simulated_device.py.
"""

import math
import traceback
from collections.abc import Callable, Iterator
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import eval as evals
import eval.inversion.guesses as guesses
from arch import LanguageModel, ModelConfig, generate, save_model
from eval.inversion.solver import solvers
from eval.lenses.lens import lenses
from eval.models.checkpoint import open_checkpoint
from tests.arch.cases import MIXERS
from tests.eval.lenses.cases import story_checkpoint
from train.settings import OptimizerSettings, ScheduleSettings
from train.steps.module import LanguageModule

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


def asked_cases(folder: Path) -> Iterator[tuple[str, Case]]:
    """Every command that computes, every solver and every lens, asked of models in a folder."""
    toy: dict[str, Any] = {"corpus": "toy:400"}
    last = partial(evals.invert, text=TEXT, layers="last", **toy)
    for solver in solvers().values():
        brief = [f"{solver.name}.{n}={v}" for n, v in BRIEF.items() if n in solver.settings]
        hidden = 1 if solver.hidden is None else min(1, solver.hidden[-1])
        ask = partial(last, slices=f"[:, {hidden}:, :]", solvers=solver.name, set_=brief)
        yield f"solver {solver.name}", of_model(folder / "llama", ask)
    known = toy | {"count": 1, "before": 2, "candidates": 16, "tokens": 64, "draws": 2}
    window = {"train_tokens": 400, "valid_tokens": 80, "length": 8, "steps": 2, **toy}
    sweep = partial(last, solvers="sweep")
    changed = {"layers": "1+2", "parts": "mixer", "noise": [0.1], "slices": "[:, :, :12]"}
    questions = {
        "controls, noise, parts": partial(
            sweep, **changed | {"text": [TEXT, OTHER], "controls": ["shuffled"]}
        ),
        "ablations": partial(sweep, without=["norms", "channel"]),
        "bits": partial(evals.bits, distances=[0, 2], **known),
        "bits, prior of the model": partial(evals.bits, distances=[1], prior="model", **known),
        "probe": partial(evals.probe, offsets=[-1, 0], **window),
        "geometry": partial(evals.geometry, layers=1, hidden=1, count=1, length=6, **toy),
        "loss": partial(evals.loss, text=TEXT),
        "generate": partial(evals.generate, prompt="Tom", count=2, max_new_tokens=8),
    }
    for name in lenses():
        questions[f"lens {name}"] = partial(evals.lens, lens=name, text=TALES, tokens=400, **toy)
    for name, ask in questions.items():
        yield name, of_model(folder / "llama", ask)
    for name in ("ablations", "geometry", "generate"):
        yield f"{name}, flat", of_model(folder / "flat", questions[name])


opened = cache(open_checkpoint)


def of_model(path: Path, ask: Callable[..., Any]) -> Case:
    """A question asked of a model directory, which is opened on a device once for all of them."""

    def case(device: torch.device) -> Any:
        result = ask(opened(path, device))
        return [*result.rows, *result.documents]

    return case


def recovered(path: Path, form: str, device: torch.device) -> Any:
    """What `recover` finds behind outputs of a text, by a model on a device."""
    checkpoint = opened(path, device)
    tokens = torch.tensor([checkpoint.tokenizer.encode(TEXT).ids]).to(device)
    given: dict[str, Any] = {"outputs": checkpoint.model(tokens).cpu(), "part": "logits"}
    if form == "int8":
        states = checkpoint.model.hidden(checkpoint.model.embed(tokens), 1).cpu()
        scale = states.abs().amax(dim=-1, keepdim=True) / 127
        codes = (states / scale).round().to(torch.int8)
        given = {"outputs": codes, "scale": scale, "layer": 1}
    found = evals.recover(checkpoint, corpus="toy:400", **given)
    return [found.tokens.tolist(), found.grades]


def trained(optimizer: str, device: torch.device) -> Any:
    """Losses of two steps, a validation, a sample, and the weights: each kind of mixer a layer."""
    torch.manual_seed(0)
    mixers = tuple({mixer.partition("(")[0]: mixer for mixer in MIXERS}.values())
    model = LanguageModel(ModelConfig(64, 12, 16, len(mixers), mixers)).to(device)
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


def differences(folder: Path, answer: Connection) -> None:
    """Sends in what each case differs; maps are fitted after few prefixes."""
    from tests.simulated_device import check_refusals, simulated_device  # which registers a device

    torch.set_num_threads(1)
    guesses.PREFIXES = 8
    for name, mixer in (("flat", "flat"), ("llama", "attention(heads=4, kv_heads=2)")):
        saved = story_checkpoint(mixers=(mixer,))
        about = {"name": name, "step": 0}
        save_model(folder / name, saved.model, saved.tokenizer.to_str(), about)
    cases: dict[str, Case] = dict(asked_cases(folder))
    for form in ("logits", "int8"):
        cases[f"recover, {form}"] = partial(recovered, folder / "flat", form)
    cases |= {f"train by {name}": partial(trained, name) for name in ("adamw", "muon")}
    found = {}
    expected = {name: case(torch.device("cpu")) for name, case in cases.items()}
    with simulated_device() as device:
        check_refusals(device)
        for name, case in cases.items():
            try:
                found[name] = difference(expected[name], case(device))
            except Exception:
                found[name] = traceback.format_exc()
    answer.send(found)
