"""Files of lenses and solvers that a user wrote: run as modules, told apart by their code."""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eval.messages import RequestError


def run_plugins(files: str | Sequence[str] | None) -> None:
    """Runs a user's files of lenses or solvers as modules; running one registers what it defines.

    Two files of one name in different folders are two modules.

    Raises:
        RequestError: there is no such file, or it raises; the file's line is named.
    """
    for file in [files] if isinstance(files, str) else files or ():
        path = Path(file)
        if path.suffix != ".py" or not path.is_file():
            raise RequestError(f"--plugin {file}: no such file; give a Python file (NAME.py)")
        folder = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
        spec = importlib.util.spec_from_file_location(f"plugin_{path.stem}_{folder}", path)
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


def hash_source(function: Callable[..., Any]) -> str | None:
    """The SHA-256 of the file that a function stands in; None if it is in none, or is our own."""
    if function.__module__.startswith("eval."):
        return None
    file = Path(inspect.getsourcefile(inspect.unwrap(function)) or "")
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
