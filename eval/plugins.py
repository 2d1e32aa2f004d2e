"""A user's own file of lenses or solvers: running it registers what it defines."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eval.cli import listed
from eval.errors import RequestError


def run_plugins(files: str | Sequence[str] | None, never: Iterable[Any] = ()) -> None:
    """Runs each file as a module of its own.

    Args:
        files: the user's.
        never: directories of results, and models by their directories or open, from which no code
            is taken; None and modules are of no directory.

    Raises:
        RequestError: there is no such file, it lies in such a directory, or it raises; the file's
            line is named.
    """
    places = [getattr(place, "path", place) for place in never]
    places = [place for place in places if isinstance(place, str | Path)]
    for file in listed(files or ()):
        path = Path(file)
        if path.suffix != ".py" or not path.is_file():
            raise RequestError(f"--plugin {file}: no such file; give a Python file (NAME.py)")
        for place in places:
            if path.resolve().is_relative_to(Path(place).resolve()):
                raise RequestError(
                    f"--plugin {file}: lies in {place}, and no code is taken from results or "
                    "models; copy it elsewhere if you trust it"
                )
        spec = importlib.util.spec_from_file_location(f"plugin_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except RequestError as error:
            raise RequestError(f"--plugin {file}: {error}") from error
        except Exception as error:
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)
                     if Path(f.filename).resolve() == path.resolve()]  # fmt: skip
            line = getattr(error, "lineno", None) or (lines[-1] if lines else 0)
            raise RequestError(
                f"--plugin {file}: line {line}: {type(error).__name__}: {error}"
            ) from error
