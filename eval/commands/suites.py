"""Suites: requests of `eval invert` by name, in a YAML file."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from arch.errors import reason
from eval.commands.flags import flag_name, listed, read_arguments
from eval.inversion.request import Inversion
from eval.messages import RequestError, nearest

SUITES = Path(__file__).parent.parent / "suites"


def read_suite(name: str) -> dict[str, dict[str, Any]]:
    """The entries of a suite: fields of a request, by the entry's name.

    Args:
        name: of a file in `eval/suites`, or a path.

    Raises:
        RequestError: no such suite or file, or not a YAML mapping of names to mappings, or
            one that has a key twice.
    """
    import yaml

    from arch.storage.values import YamlLoader

    known = sorted(path.stem for path in SUITES.glob("*.yaml"))
    path = SUITES / f"{name}.yaml" if name in known else Path(name)
    if not path.is_file():
        raise RequestError(
            f"--suite {name}: no such suite or file; use {', '.join(known)} or a YAML file"
        )
    try:
        entries = yaml.load(path.read_text(encoding="utf-8"), YamlLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RequestError(f"--suite {path}: not YAML ({reason(error)})") from None
    if (
        not entries
        or not isinstance(entries, dict)
        or not all(isinstance(entry, dict) for entry in entries.values())
    ):
        raise RequestError(
            f"--suite {path}: must name calls of `eval invert`, as in "
            "'shown: {layers: all, solvers: [sweep, adam]}'"
        )
    return entries


def read_entries(suite: str, given: dict[str, Any]) -> dict[str, Inversion]:
    """The request of each entry of a suite: its own fields, flags in their place, else defaults.

    Args:
        suite: as `read_suite` takes it.
        given: fields that flags set, for every entry.

    Raises:
        RequestError: there is no such suite, an entry has another key, or a value that its flag
            refuses.
    """
    if "set_" in given and "solvers" not in given:
        raise RequestError("--set: needs --solvers, to say which solvers are asked")
    if "solvers" in given:
        given = {"set_": ()} | given
    hints, requests = get_type_hints(Inversion), {}
    for name, entry in read_suite(suite).items():
        where = f"--suite {suite}, {name}"
        if unknown := [key for key in entry if key not in hints]:
            raise RequestError(f"{where}: unknown key {unknown[0]!r}; {nearest(unknown[0], hints)}")
        for key, value in entry.items():
            if not all(isinstance(word, str | int | float) for word in listed(value)):
                raise RequestError(
                    f"{where}: {flag_name(key)}: {str(value)[:40]} is no word, number or list of "
                    "those; quote a text that YAML reads otherwise"
                )
        try:
            own = Inversion(**read_arguments(hints, entry))
        except RequestError as error:
            raise RequestError(f"{where}: {error}") from None
        requests[name] = replace(own, **given)
        drawn = [flag_name(key) for key in ("count", "skip", "length") if key in given]
        if drawn and not requests[name].draws:
            raise RequestError(
                f"{drawn[0]}: is of prompts that are drawn, not of --text; leave it out, or give "
                "--prompts too"
            )
    return requests
