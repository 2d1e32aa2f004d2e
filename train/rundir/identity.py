"""Which model a step is of: what the steps and the seeds of one recipe share."""

import dataclasses
import hashlib
import json
from typing import Any

from arch import ModelConfig
from arch.storage.runs import without_seed
from train.recipe import flat
from train.settings import INIT_HASH, NOT_IN_MODEL_ID


def model_id(name: str, config: ModelConfig, settings: dict[str, Any], data_sha256: str) -> str:
    """Equal for the steps and the seeds of one recipe on the same data: `flat-3f2a91c07d`.

    It is the name without its seed, and ten hexadecimal digits. Fields of the configuration at
    their defaults do not count, so that a field that is added changes no id. Nor does the path of
    weights that a run started from, where their hash is known.

    Args:
        settings: that the run began with; sections are dictionaries.
    """
    built, defaults = dataclasses.asdict(config), dataclasses.asdict(ModelConfig())
    facts = {
        f"model.{name}": value
        for name, value in built.items()
        if value != defaults[name] and name not in NOT_IN_MODEL_ID
    }
    facts |= {flag: value for flag, value in flat(settings).items() if flag not in NOT_IN_MODEL_ID}
    if INIT_HASH in facts:
        del facts["init_from"]
    text = json.dumps(facts | {"data": data_sha256}, sort_keys=True, default=str)
    return f"{without_seed(name)}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
