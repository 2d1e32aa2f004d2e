"""The door of recipes and sweeps: a YAML file is read as what it says, or refused in one line."""

from pathlib import Path
from typing import Any

import yaml

from arch.storage.values import YamlLoader
from train.settings import RunError

BYTES = 1 << 20
"""Of a file, at most."""
LIMIT = 20_000
"""Values in a file at most, counted as often as aliases repeat them: a recipe has about 60."""


def read_yaml(path: Path, flag: str = "") -> dict[str, Any]:
    """The settings in a file.

    Args:
        flag: that named it, with a blank at its end.

    Raises:
        RunError: it cannot be read, is not YAML, holds a key twice or anything but plain values,
            or repeats more by aliases than a file of settings can hold.
    """
    try:
        with path.open("rb") as file:
            text = file.read(BYTES + 1)
        if len(text) > BYTES:
            raise RunError(f"{flag}{path}: is larger than {BYTES:,} bytes; give a file of settings")
        content = yaml.load(text.decode("utf-8-sig"), YamlLoader)
        _count(content, {})
    except OSError as error:
        raise RunError(f"{flag}{path}: cannot be read ({error.strerror})") from None
    except RunError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise RunError(f"{flag}{path}: not YAML ({reason[:200]})") from None
    if not isinstance(content, dict):
        raise RunError(
            f"{flag}{path}: holds no settings; see python -m train recipes, and train/sweeps"
        )
    return content


def _count(value: Any, counted: dict[int, int]) -> int:
    """How many values a value holds, itself included; an alias of it counts each time."""
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if id(value) not in counted:
        counted[id(value)] = LIMIT  # until it is known: it may hold itself
        parts = [*value.values()] if isinstance(value, dict) else [*value]
        counted[id(value)] = 1 + sum(_count(part, counted) for part in parts)
    if counted[id(value)] > LIMIT:
        raise ValueError(f"aliases make more than {LIMIT} values of it")
    return counted[id(value)]
