"""The family of token mixers: a name for each, and how a pattern becomes modules."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from arch.errors import ModelError, is_out_of_memory, printable
from arch.mixers.attention import Attention, CausalAttention, rotate, share_rotary
from arch.mixers.base import Identity, SideBySide, TokenMixer
from arch.mixers.masked import (
    Depthwise,
    Expanded,
    Flat,
    Headed,
    Kernel,
    Parallel,
    Rectangular,
    Triangle,
)
from arch.mixers.structured import Column, Combined, Mixed, Row, Structured, Toeplitz
from arch.patterns import locate_module, parse, read_terms
from arch.storage.files import file_sha256

__all__ = [
    "MIXERS", "CausalAttention", "Depthwise", "Structured", "TokenMixer", "Triangle", "build_mixer",
    "find_foreign", "has_foreign", "hash_foreign", "refuse_foreign", "rotate", "share_rotary",
    "without_numbers",
]  # fmt: skip
MIXERS: dict[str, type[TokenMixer]] = {
    "attention": Attention,
    "column": Column,
    "combined": Combined,
    "depthwise": Depthwise,
    "expanded": Expanded,
    "flat": Flat,
    "headed": Headed,
    "identity": Identity,
    "kernel": Kernel,
    "mixed": Mixed,
    "parallel": Parallel,
    "rectangular": Rectangular,
    "row": Row,
    "toeplitz": Toeplitz,
}


def build_mixer(entry: str, d_model: int, context: int) -> TokenMixer:
    """Builds one entry of a pattern: `flat`, or `attention(heads=4)+my_mixers.Recurrent`.

    Raises:
        ModelError: an unknown name or argument, a module that cannot be imported, or values that do
            not fit d_model.
    """
    terms = parse(entry, MIXERS, "mixer", TokenMixer)
    built = [_build(cls, d_model, context, arguments) for cls, arguments in terms]
    return built[0] if len(built) == 1 else SideBySide(built)


def find_foreign(entries: Iterable[str], what: str = "mixer") -> Iterator[str]:
    """Yields the names in a pattern that the family lacks; `what` begins an error.

    Raises:
        ModelError: an entry is not an expression of this form.
    """
    for entry in entries:
        terms = read_terms(entry, f"{what} {printable(repr(entry), 120)}")
        yield from (name for name, _ in terms if name not in MIXERS)


def has_foreign(entries: Iterable[str]) -> bool:
    """Whether a pattern names classes of somebody else's, which may read the numbers they hold.

    Tensors without numbers, of the meta device or fake, serve the family alone.
    """
    return any(find_foreign(entries))


def hash_foreign(entries: Iterable[str]) -> dict[str, str]:
    """As `code`, a hash of the files of classes of somebody else's; of a notebook there are none.

    Files of classes that they inherit from, and of what they import, have no part in it.
    """
    modules = {n.rpartition(".")[0] for n in find_foreign(entries)} - {""}  # which is no class's
    paths = {path for module in modules for path in locate_module(module)}
    hashes = sorted(file_sha256(path) for path in paths if path.is_file())
    digest = hashlib.sha256("".join(hashes).encode()).hexdigest()
    return {"code": digest[:12]} if hashes else {}


def without_numbers(entries: Iterable[str]) -> AbstractContextManager[Any]:
    """A context in which models of a pattern are built and run on shapes alone.

    With mixers of somebody else's tensors are real, and the caller's random numbers stay.
    """
    return torch.random.fork_rng(devices=[]) if has_foreign(entries) else FakeTensorMode()


def _build(
    kind: type[TokenMixer], d_model: int, context: int, arguments: dict[str, Any]
) -> TokenMixer:
    """A mixer; what a class of somebody else's raises is said in one line."""
    if kind in MIXERS.values():
        return kind(d_model, context, **arguments)
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        mixer = kind(d_model, context, **arguments)
        held = mixer.state_dict()
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        said = printable(f"{type(error).__name__}: {error}", 200)
        raise ModelError(f"mixer {name} cannot be built ({said})") from error
    for part, value in held.items():
        if not isinstance(value, torch.Tensor) or is_lazy(value):
            raise ModelError(
                f"mixer {name}: its {part} is no tensor of known shape, and could not be saved; "
                "give lazy layers their sizes, and keep a state in buffers"
            )
    return mixer


def _lies_in(path: Path, directory: Path) -> bool:
    """Whether a path, or what it links to, is in a directory, or in what that links to."""
    homes = directory.absolute(), directory.resolve()
    paths = path.absolute(), path.parent.resolve() / path.name, path.resolve()
    return any(path.is_relative_to(home) for path in paths for home in homes)


def refuse_foreign(
    entries: Iterable[str], directory: Path | None, trust_code: bool, source: str
) -> None:
    """Refuses mixers that a model directory names and that are not of the family.

    Args:
        directory: which the configuration was read from; None: no model directory.
        trust_code: whether the caller allows classes of installed modules, and of files in reach.
        source: of the configuration, for errors.

    Raises:
        ModelError: a class that the caller does not trust, or whose code lies in the directory.
    """
    for name in find_foreign(dict.fromkeys(entries), f"{source}: mixer"):
        module, dot, _ = name.rpartition(".")
        if not dot:
            continue  # no class: building names what is known
        shown = printable(name, 120)
        if not trust_code:
            raise ModelError(
                f"{source}: mixer {shown} is code that is no part of this project, and is not run "
                "unasked; give --trust_code if you trust it (in Python trust_code=True)"
            )
        for path in locate_module(module):
            if directory and _lies_in(path, directory):
                raise ModelError(
                    f"{source}: mixer {shown} lies in the model directory ({path}), whose code is "
                    "never run; put its file elsewhere if you trust it"
                )
