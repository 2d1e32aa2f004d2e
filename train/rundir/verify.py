"""What keeps a checkpoint that can be read from being gone on from: edited, or of another model."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

ENTRIES = {
    "remnant": dict,
    "remnant/recipe": dict,
    "remnant/history": list,
    "remnant/model": dict,
    "remnant/data_sha256": str,
    "global_step": int,
    "loops/fit_loop": dict,
    "callbacks": dict,
    "state_dict": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    "PackedDataModule/samples_seen": int,
    "PackedDataModule/tokens_seen": int,
}
"""Entries of a checkpoint that a run reads, and the kinds of their values."""
STATES = ({"step", "exp_avg", "exp_avg_sq"}, {"momentum_buffer"})
"""What AdamW and Muon keep of a weight."""


def find_wrong_entry(content: Any) -> str | None:
    """The first entry of a checkpoint that is missing, or of a wrong kind, in a few words."""
    for name, kind in ENTRIES.items():
        entry = content
        for key in name.split("/"):
            entry = entry.get(key) if isinstance(entry, dict) else None
        if not isinstance(entry, kind) or isinstance(entry, bool):
            return f"{name} is {'missing' if entry is None else f'a {type(entry).__name__}'}"
    if not all(map(_is_change, content["remnant"]["history"])):
        return "its history is no list of changes"
    spent = content["callbacks"].get("TimeBudget", {"seconds": 0.0, "pace": None})
    times = (spent.get("seconds"), spent.get("pace")) if isinstance(spent, dict) else (None, None)
    if type(times[0]) is not float or type(times[1]) not in (float, type(None)):
        return "its TimeBudget is no time"
    rates = content["lr_schedulers"]
    rate = rates[0] if len(rates) == 1 and isinstance(rates[0], dict) else {}
    return None if type(rate.get("last_epoch")) is int else "it has no learning rate"


def find_wrong_tensor(
    content: dict[str, Any], model: nn.Module, optimizer: Optimizer
) -> str | None:
    """The first tensor of a checkpoint that is not what a run needs, in a few words.

    Args:
        content: of a checkpoint without a wrong entry.
        model: whose weights it should have, all finite but for buffers.
        optimizer: a new one, whose states it should have.
    """
    weights = content["state_dict"]
    expected = {f"model.{name}": value for name, value in model.state_dict().items()}
    trained = {f"model.{name}" for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in {**expected, **weights}:
        if name not in weights or name not in expected:
            return f"{name} is {'missing' if name in expected else 'no weight of the model'}"
        if not isinstance(weights[name], Tensor) or weights[name].shape != expected[name].shape:
            return f"{name} is not of the shape {tuple(expected[name].shape)}"
        if name in trained and not weights[name].isfinite().all():  # a mask holds -inf
            return f"{name} is not finite"
    states = content["optimizer_states"]
    state = states[0] if len(states) == 1 and isinstance(states[0], dict) else {}
    return _find_wrong_state(state.get("param_groups"), state.get("state"), optimizer)


def _find_wrong_state(groups: Any, state: Any, optimizer: Optimizer) -> str | None:
    if not isinstance(groups, list) or not isinstance(state, dict) or not state:
        return "it has no state of the optimiser"
    shapes = [[p.shape for p in group["params"]] for group in optimizer.param_groups]
    params = (group.get("params") if isinstance(group, dict) else None for group in groups)
    numbers = [numbers for numbers in params if isinstance(numbers, list)]
    if [*map(len, numbers)] != [*map(len, shapes)]:
        return "its optimiser is of other weights"
    flat = zip(itertools.chain(*numbers), itertools.chain(*shapes), strict=True)
    for number, shape in flat:
        if number not in state:  # never had a gradient
            continue
        values = state[number]
        if not isinstance(values, dict) or {*values} not in STATES:
            return f"the optimiser's state of weight {number} is none of its states"
        for name, value in values.items():
            fits = isinstance(value, Tensor) and value.shape in (shape, torch.Size([]))
            if not fits or value.isnan().any():
                return f"the optimiser's {name} of weight {number} is damaged"
    return None


def _is_change(entry: Any) -> bool:
    """Whether it is like `{"from_step": 10, "changed": {"optimizer.lr": [0.1, 0.2]}}`."""
    changed = entry.get("changed") if isinstance(entry, dict) else None
    if not isinstance(changed, dict) or type(entry.get("from_step")) is not int:
        return False
    return all(isinstance(pair, list) and len(pair) == 2 for pair in changed.values())
