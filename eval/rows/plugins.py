"""Solvers and lenses by name: ours, and those of files that a user wrote, told apart by code."""

import hashlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from arch.errors import is_out_of_memory, reason
from eval.messages import RequestError
from eval.models.identity import hash_source, sample_tensors, sample_weights
from eval.rows.progress import OF_WATCHER

if TYPE_CHECKING:
    from torch import Tensor

    from arch import LanguageModel

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Solvers, or lenses, by name.

    Args:
        kind: what they are, in errors.
        package: whose modules have ours; they are imported when the entries are first asked for.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self.entries: dict[str, Entry] = {}
        self._files: dict[str, str] = {}

    def enter(self, name: str, entry: Entry, function: Callable[..., Any]) -> None:
        """Adds an entry, or puts it in the place of an earlier one of the same file or a notebook.

        Raises:
            RequestError: another file has an entry of that name.
        """
        if not function.__module__.startswith("eval."):
            self.load()  # so that no name of ours is taken
        file = inspect.getsourcefile(inspect.unwrap(function)) or ""
        before = self._files[name] if name in self.entries else file
        if before != file and Path(before).is_file():
            raise RequestError(f"{self.kind} {name}: the name is taken by {before}; choose another")
        hash_source(function)  # of the code as it is loaded
        self.entries[name], self._files[name] = entry, file

    def load(self) -> dict[str, Entry]:
        """All entries by name, in the order of their entering."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        return dict(self.entries)


class _Loader(SourceFileLoader):
    """Runs a file as it stands: no bytecode is read, which may be older, and none is left there."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


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
        name = f"plugin_{path.stem}_{folder}"
        spec = importlib.util.spec_from_loader(name, _Loader(name, str(path)))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except RequestError as error:
            raise RequestError(f"--plugin {file}: {error}") from error
        except Exception as error:
            raise RequestError(f"--plugin {file}: {_describe(error, file)}") from error


@contextmanager
def foreign_code(
    who: str, function: Callable[..., Any], model: "LanguageModel", given: Iterable["Tensor"]
) -> Iterator[None]:
    """Runs a user's own function: what it raises is a line, and what it is given stays as it is.

    Args:
        who: as in errors, `solver hill`.
        function: whose file errors name.
        model: that it may run.
        given: tensors that it is handed, and that others read after it.

    Raises:
        RequestError: it raises; or it has written into the model or into a tensor.
    """
    code, tensors = inspect.unwrap(function).__code__, [*given]
    before = sample_weights(model), sample_tensors(tensors)
    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        if is_out_of_memory(error) or hasattr(error, OF_WATCHER):
            raise
        line = _describe(error, code.co_filename, code.co_firstlineno)
        raise RequestError(f"{who} ({code.co_filename}): {line}") from error
    if before != (sample_weights(model), sample_tensors(tensors)):
        model.kept.clear()  # some of which may be changed, too
        raise RequestError(
            f"{who} ({code.co_filename}): changes the model, or a tensor that it is given, in "
            "place; compute x = x / 2, not x /= 2, and open the model again"
        )


def _describe(error: Exception, file: str, first: int = 0) -> str:
    """An error of a user's file in one line, with its line there, or the first."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)
             if Path(f.filename).resolve() == Path(file).resolve()]  # fmt: skip
    own = error.lineno if isinstance(error, SyntaxError) else None
    line = own or (lines[-1] if lines else first)
    return f"line {line}: {type(error).__name__}: {reason(error)}"
