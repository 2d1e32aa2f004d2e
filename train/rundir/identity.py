"""Which model a step is of: what the steps and the seeds of one recipe share."""

import dataclasses
import hashlib
import json
from typing import Any

from arch import ModelConfig
from arch.storage.runs import without_seed

REPORTING = {
    "save_steps", "save_every", "save_best", "checkpoint_every", "validate_every",
    "validate_tokens", "early_stopping", "log_every", "loggers", "wandb", "wandb_project",
    "wandb_group", "wandb_tags",
}  # fmt: skip
"""Settings that change no weight of any step: when a run is saved, validated and reported."""
NOT_RECIPE = REPORTING | {
    "seed", "precision", "compile", "checkpoint_activations", "layout",
    "trainer.accelerator", "trainer.devices", "trainer.strategy", "trainer.num_nodes",
    "trainer.max_steps", "batch.micro", "vocab_multiple", "tf32",
    "machine.threads", "machine.instructions", "machine.torch", "machine.numpy",
}  # fmt: skip
"""Settings that steps and seeds of one model need not share: how often a run is saved and reported,
how long it is, and how a device computes a step."""
OF_PROCESS = {
    "run", "resume", "init_from", "trust_code", "recipe", "eval", "loggers", "wandb",
    "wandb_project", "wandb_group", "wandb_tags", "compile", "checkpoint_activations", "tf32",
    "trainer.accelerator", "trainer.devices",
}  # fmt: skip
"""Settings that the processes of a run need not share: where files lie on a machine, what the first
does alone, and how a device computes a step."""


def model_id(name: str, config: ModelConfig, settings: dict[str, Any], data_sha256: str) -> str:
    """Equal for the steps and the seeds of one recipe on the same data: `flat-3f2a91c07d`.

    It is the name without its seed, and ten hexadecimal digits. Fields of the configuration at
    their defaults do not count, so that a field that is added changes no id.

    Args:
        settings: that the run began with; sections are dictionaries.
    """
    built, defaults = dataclasses.asdict(config), dataclasses.asdict(ModelConfig())
    facts = {
        f"model.{name}": value
        for name, value in built.items()
        if value != defaults[name] and name not in NOT_RECIPE
    }
    for section, value in settings.items():
        flags = (
            {f"{section}.{name}": setting for name, setting in value.items()}
            if (isinstance(value, dict) and value)
            else {section: value}
        )
        facts |= {name: setting for name, setting in flags.items() if name not in NOT_RECIPE}
    text = json.dumps(facts | {"data": data_sha256}, sort_keys=True, default=str)
    return f"{without_seed(name)}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
