"""Suites: calls of `eval.invert` by name, in a YAML file."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval.commands.flags import flag_name, listed, read_arguments
from eval.messages import RequestError, nearest

SUITES = Path(__file__).parent.parent / "suites"
NOT_OF_AN_ENTRY = {
    *("models", "out", "suite", "device", "plugin", "corpus"),
    *("batch", "limit", "resume", "shard"),
}
"""Parameters of `invert` that are the same for all entries of a suite."""


def read_suite(name: str) -> dict[str, dict[str, Any]]:
    """The entries of a suite: arguments of `eval.invert`, by the entry's name.

    Args:
        name: of a file in `eval/suites`, or a path.

    Raises:
        RequestError: no such suite or file, or not a YAML mapping of names to mappings.
    """
    import yaml

    known = sorted(path.stem for path in SUITES.glob("*.yaml"))
    path = SUITES / f"{name}.yaml" if name in known else Path(name)
    if not path.is_file():
        raise RequestError(
            f"--suite {name}: no such suite or file; use {', '.join(known)} or a YAML file"
        )
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RequestError(f"--suite {path}: not YAML ({str(error).splitlines()[0]})") from None
    if (
        not entries
        or not isinstance(entries, dict)
        or not all(isinstance(entry, dict) for entry in entries.values())
    ):
        raise RequestError(
            f"--suite {path}: must name calls of `eval invert`, as in "
            "'shown: {layers: all, methods: [sweep, adam]}'"
        )
    return entries


def read_entries(
    suite: str, function: Callable[..., Any], arguments: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The arguments of each entry of a suite: its own, flags in their place, else the defaults.

    Args:
        suite: as `read_suite` takes it.
        function: that its entries call.
        arguments: of the call that names the suite.

    Raises:
        RequestError: there is no such suite, an entry has another key, or a value that its flag
            refuses.
    """
    entries = read_suite(suite)
    defaults: dict[str, Any] = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in NOT_OF_AN_ENTRY
    }
    given = {name: arguments[name] for name in defaults if arguments[name] != defaults[name]}
    if "set_" in given and "methods" not in given:
        raise RequestError("--set: needs --methods, to say which solvers are asked")
    if "methods" in given:
        given.setdefault("set_", None)
    complete = {}
    for name, entry in entries.items():
        where = f"--suite {suite}, {name}"
        if unknown := [key for key in entry if key not in defaults]:
            raise RequestError(
                f"{where}: unknown key {unknown[0]!r}; {nearest(unknown[0], defaults)}"
            )
        for key, value in entry.items():
            if not all(isinstance(word, str | int | float) for word in listed(value)):
                raise RequestError(
                    f"{where}: {flag_name(key)}: {str(value)[:40]} is no word, number or list of "
                    "those; quote a text that YAML reads otherwise"
                )
        try:
            own = read_arguments(function, entry)
        except RequestError as error:
            raise RequestError(f"{where}: {error}") from None
        asked = defaults | own | given
        asked |= {"count": asked["count"] or 8, "length": asked["length"] or 16}
        asked["skip"] = asked["skip"] or 0
        asked["named"] = not given.keys().isdisjoint({"methods", "slices"})
        asked["least"] = None if "count" in given else 1  # prompts that will do
        if not asked["prompts"] and not asked["text"]:
            asked["prompts"] = ["story"]
        complete[name] = asked
    return complete
