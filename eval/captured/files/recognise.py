"""Whose file it is: each kind looks at the content, and the one that knows it reads it."""

import codecs
import fcntl
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.captured.files.arrays import (
    STATE,
    TORCH_SAVED,
    Entry,
    check_size,
    first_line,
    list_columns,
    list_members,
)
from eval.captured.files.kinds import (
    hooks,
    llama_cpp,
    lmcache,
    mlx_cache,
    scores,
    vllm_cache,
    vllm_hook,
    vllm_states,
)
from eval.captured.files.kinds.kind import Capture, Source
from eval.captured.files.stored import NOT_PLAIN, is_plain
from eval.captured.files.tensors import MASK, find_mask, list_tensors, read_tensors
from eval.messages import RequestError, say_once
from eval.rows.misfits import parse_json

BINARY = (llama_cpp, lmcache)
"""Kinds that are known by their first bytes."""
TENSORS = (scores, vllm_states, vllm_hook, mlx_cache, hooks)
"""Kinds that are known by the names and shapes of their tensors, or by the header beside them."""
FOLDERS = (vllm_cache, hooks)
"""Kinds of which a folder holds several files."""
HEADER_BYTES = 64
LARGEST_SIDECAR = 1 << 24
"""Bytes."""
DEEPEST = 3
"""Lists inside of one another, of tensors in a file of torch.save."""
GENERATED = ("logits", "scores")
"""The names that `generate` gives to the scores of each next token."""
BEAMS = re.compile(r"(^|\.)beam_indices(\.\d+)*$")
PLAIN = "save a plain dict of tensors, as {name: x.cpu()}, and no other objects"
Held = tuple[dict[str, Entry], dict[str, Any]]
"""Tensors by name, and what else a file holds."""


def read_capture(
    path: str | Path,
    names: Sequence[str] | None = None,
    scale: str | None = None,
    layer: int | Sequence[int] | None = None,
    part: str | None = None,
    torch_file: bool = False,
    stored: str | None = None,
) -> Capture:
    """What a file or folder holds of the outputs that are wanted; its kind is said in a line.

    Args:
        path: the file or folder.
        names: of the tensors wanted; None: all.
        scale: the name of a tensor in a file of no known kind that is the scale of its numbers.
        layer: wanted, of a file that names its sites, or holds a stack of layers; None: all.
        part: wanted, of a file that names its sites; None: all.
        torch_file: the file is one of torch.save, of which tensors, numbers and texts alone are
            read, and nothing is run.
        stored: the format of numbers whose bits may stand as integers.

    Raises:
        RequestError: what cannot be read rightly, or what is wanted is not there.
    """
    path = Path(path)
    with locked(path):
        held = _list_torch(path) if torch_file else _list_folder(path)
        capture = _read(path, held)
    if capture is None:
        return Capture("", read_tensors(path, names, scale, stored, held and held[0]))
    if scale is not None:
        raise RequestError(f"--scale {scale}: {path} has its own scales; leave it out")
    say_once(f"{path}: {capture.kind}")
    if capture.refusal:
        return capture
    if names is not None:
        wanted = {name: capture.outputs.get(name) for name in names}
    elif layer is not None and capture.stacks:
        return replace(capture, outputs=capture.stacks)
    else:
        wanted = capture.outputs
        if capture.named and (layer is not None or part is not None):
            wanted = {name: wanted[name] for name in wanted if _is_wanted(name, layer, part)}
    known = {name: outputs for name, outputs in wanted.items() if outputs is not None}
    if not known or len(known) < len(wanted):
        flags = f"--tensor {' '.join(names)}" if names else f"--layer {layer}, --part {part}"
        raise RequestError(f"{flags}: {path} has {', '.join(capture.outputs)}"[:1000])
    return replace(capture, outputs=known)


def _is_wanted(name: str, layer: int | Sequence[int] | None, part: str | None) -> bool:
    """Whether a site's name is of the layers and the part that are wanted."""
    of_part, _, number = name.rpartition(".")
    layers = [layer] if isinstance(layer, int) else layer
    return part in (None, of_part) and (layers is None or int(number) in layers)


def _read(path: Path, held: Held | None) -> Capture | None:
    """The capture where a kind recognises the file; None: it is one of tensors by name.

    `held` is what a file of torch.save holds, if it is one.
    """
    if path.is_dir():
        return _read_folder(path, held)
    source = Source(path, _start(path))
    for kind in BINARY if held is None else ():
        if kind.recognise(source):
            return kind.read(source)
    entries, facts = held or (list_tensors(path), {})
    entries, facts = dict(sorted(entries.items())), _read_sidecar(path) | facts
    source = Source(path, source.start, entries, facts=facts)
    if {"activations", "locations"} <= set(entries):
        raise source.refuse(
            "latents of an SAE (delphi: activations, locations), which are no outputs of a site"
            + "; its tokens stand in it in clear" * ("tokens" in entries)
        )
    for kind in TENSORS:
        if kind.recognise(source):
            return kind.read(source)
    if held and any("__layers__" in name for name in entries):
        others = [name for name in entries if "__layers__" not in name]
        raise source.refuse(f"holds {', '.join(others)[:200]} beside captures of vLLM-Hook")
    return None


def _read_sidecar(path: Path) -> dict[str, Any]:
    """What the JSON file of the same name says; nothing where there is none that can be read.

    One that cannot is said: which file needs it is not known yet.
    """
    sidecar = path.with_suffix(".json")
    try:
        if sidecar.stat().st_size > LARGEST_SIDECAR:
            return {}
        facts = parse_json(sidecar.read_bytes().removeprefix(codecs.BOM_UTF8))
    except OSError:
        return {}
    except ValueError as error:
        say_once(f"{sidecar}: not read, as it is no JSON in UTF-8 ({first_line(error)})")
        return {}
    return facts if isinstance(facts, dict) else {}


def _list_torch(path: Path) -> Held:
    """The tensors in a file of torch.save, whose objects are not made, and what else it holds.

    Those inside of lists and dictionaries are named by their places: `hidden_states.3`.

    Raises:
        RequestError: it holds anything but tensors, numbers and texts, or no tensor.
    """
    if not _start(path).startswith(TORCH_SAVED):  # torch.load reads other kinds too
        fix = "leave the flag out, or save a pickle's tensors by torch.save"
        raise RequestError(f"{path}: --torch-file: no file of torch.save; {fix}")
    if zipfile.is_zipfile(path):
        list_members(path)
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, by what is damaged
        found = re.search(r"GLOBAL (\S+)", str(error))
        line = f"{f'holds a {found[1]}' if found else first_line(error)}; {PLAIN}"
        raise RequestError(f"{path}: --torch-file: no tensors of torch.save ({line})") from None
    tensors, facts, unread = dict[str, Tensor](), dict[str, Any](), list[str]()
    added = dict[str, int]()  # rows behind those of the prompt, where steps are joined
    for name, value in held.items() if isinstance(held, dict) else [(path.stem, held)]:
        inside = list(_name_tensors(str(name), value))
        for inner, tensor, count in inside:
            if inner in tensors:
                raise RequestError(f"{path}: --torch-file: {inner} is the name of two tensors")
            if tensor is None:
                unread.append(inner)
            else:
                tensors[inner], added[inner] = tensor, count
        facts |= {} if inside else {str(name): value}
    named = [*tensors, *(name for name, value in facts.items() if value is not None)]
    if any(BEAMS.search(name) for name in named):
        raise RequestError(
            f"{path}: --torch-file: of a beam search: rows of later steps are of other beams than "
            "these rows before; order them by beam_indices, and leave that out of the file"
        )
    if unread:
        say_once(
            f"{path}: not read, as its tensors lie in more than {DEEPEST} lists or dictionaries: "
            + ", ".join(unread)
        )
    if not tensors:
        raise RequestError(
            f"{path}: --torch-file: no tensors of torch.save ({type(held).__name__}); {PLAIN}"
        )
    if odd := [name for name, tensor in tensors.items() if not is_plain(tensor)]:
        raise RequestError(f"{path}: --torch-file: {odd[0]}: {NOT_PLAIN}")
    check_size(path, sum(x.numel() * x.element_size() for x in tensors.values()))
    plain = {name: x.detach().resolve_conj().resolve_neg() for name, x in tensors.items()}
    _extend_masks(plain, added)
    return {name: Entry.of(x) for name, x in plain.items()}, facts


def _join_steps(name: str, value: Any) -> Any:
    """The hidden states of `generate`, (steps, layers), as one tensor a layer; else the value.

    The first step holds the rows of the prompt, each later one a row. Also those of one layer, as a
    hook collects them, as one tensor; and the logits of `generate`, a row for each step.
    """
    kinds = (list, tuple)
    steps = list(value) if isinstance(value, kinds) and len(value) > 1 else []
    said = f"{name}: the rows of {len(steps)} steps of generation are joined"
    if (joined := _join_layer(steps)) is not None:
        say_once(said)
        return joined
    if name.rpartition(".")[2] in GENERATED and isinstance(value, tuple) and _are_rows(value):
        say_once(
            f"{name}: read as (B, steps, V) of generation, from each prompt's last token on: "
            "--first gives that token's position"
        )
        return torch.stack(value, dim=1)
    if not all(isinstance(x, kinds) and len(x) == len(steps[0]) for x in steps):
        return value
    # as `generate` gives them: lists of one's own are of prompts, of which one may be a token
    from_one = isinstance(value, tuple) and all(isinstance(x, tuple) and len(x) > 1 for x in steps)
    layers = [_join_layer(layer, from_one) for layer in zip(*steps, strict=True)]
    if not layers or any(layer is None for layer in layers):
        return value
    say_once(f"{said}, layer by layer")
    return layers


def _extend_masks(tensors: dict[str, Tensor], added: Mapping[str, int]) -> None:
    """Gives tensors whose steps are joined the mask of their prompts, with 1 at each added row.

    Of these `added` says how many there are. A mask itself remains where others have its axes.
    """
    extended, used = dict[str, Tensor](), set[str]()
    joined = {name: count for name, count in added.items() if count}
    for name, count in joined.items():
        B, T, _ = tensors[name].shape
        if mask := find_mask(name, tensors, {(B, T - count)}):
            more = tensors[mask].new_ones(B, count)
            extended[f"{name}.{MASK}"] = torch.cat([tensors[mask], more], dim=1)
            used.add(mask)
    for mask in used:
        shape = tensors[mask].shape
        if not any(x.dim() > 2 and x.shape[:2] == shape for x in tensors.values()):
            del tensors[mask]
    tensors |= extended


def _join_layer(steps: Sequence[Any], from_one: bool = False) -> Tensor | None:
    """`(B, T, D)` of a prompt and `(B, 1, D)` of each token behind it as one tensor; else None.

    Also those of one prompt without its axis: `(T, D)`, and `(1, D)` or `(D,)`. A prompt of one
    token has its axis, and is one by `from_one` alone.
    """
    if not all(isinstance(x, Tensor) and is_plain(x) and x.dim() for x in steps):
        return None
    axes = max((x.dim() for x in steps), default=3)
    if axes < 3:
        steps = [torch.atleast_2d(x)[None] for x in steps]
    if not steps or any(x.dim() != 3 for x in steps):
        return None
    B, T, D = steps[0].shape
    later = all(x.shape == (B, 1, D) and x.dtype == steps[0].dtype for x in steps[1:])
    return torch.cat(list(steps), dim=1) if later and (T > 1 or (from_one and axes == 3)) else None


def _are_rows(steps: Sequence[Any]) -> bool:
    """Whether these are `(B, V)` of one shape and type, as `generate` gives a tuple of them."""
    plain = all(isinstance(x, Tensor) and is_plain(x) and x.dim() == 2 for x in steps)
    return plain and len({(x.shape, x.dtype) for x in steps}) == 1


def _name_tensors(
    name: str, value: Any, depth: int = 0, added: int = 0
) -> Iterator[tuple[str, Tensor | None, int]]:
    """The tensors in a value of a file, with their names; lists may hold themselves.

    None stands for those in a list that lies in more than `DEEPEST` of them. The number is that of
    rows behind those of the prompt, where steps are joined.
    """
    value = _by_key(name, value)
    joined = _join_steps(name, value)
    added += 0 if joined is value else len(value) - 1
    if isinstance(joined, Tensor):
        yield name, joined, added
    elif isinstance(joined, dict | list | tuple) and depth < DEEPEST:
        inner = joined.items() if isinstance(joined, dict) else enumerate(joined)
        for key, part in inner:
            yield from _name_tensors(f"{name}.{key}", part, depth + 1, added)
    elif _holds_tensors(joined):
        yield name, None, added


def _by_key(name: str, steps: Any) -> Any:
    """A list of dictionaries, one a step of generation, as one of lists; else the value."""
    kinds = isinstance(steps, list | tuple) and all(isinstance(step, dict) for step in steps)
    if not kinds or len({tuple(step) for step in steps}) != 1:
        return steps
    lists = {key: [step[key] for step in steps] for key in steps[0]}
    joined = any(_join_steps(f"{name}.{key}", x) is not x for key, x in lists.items())
    return lists if joined else steps


def _holds_tensors(value: Any) -> bool:
    """Whether a tensor lies anywhere in a value."""
    seen, rest = set[int](), [value]
    while rest:
        part = rest.pop()
        if isinstance(part, Tensor):
            return True
        if isinstance(part, dict | list | tuple) and id(part) not in seen:
            seen.add(id(part))
            rest += part.values() if isinstance(part, dict) else part
    return False


def _list_folder(path: Path) -> Held | None:
    """The columns of a folder of `datasets`, arrays and ids; None of anything else."""
    if not (path / STATE).is_file():
        return None
    entries, ids = list_columns(path)
    return entries | {name: Entry.of(torch.tensor(rows)) for name, rows in ids.items()}, ids


def _read_folder(path: Path, held: Held | None) -> Capture | None:
    """The capture that a folder's files are together; None: columns of arrays of no known kind.

    Raises:
        RequestError: no kind recognises them.
    """
    files = sorted(path.glob("*.safetensors"))
    entries, facts = held or ({}, {})
    layers = {file.name: list_tensors(file) for file in files}
    source = Source(path, entries=entries, layers=layers, facts=facts)
    for kind in FOLDERS:
        if kind.recognise(source):
            return kind.read(source)
    if entries.keys() - facts:
        return None
    if splits := sorted(state.parent.name for state in path.glob(f"*/{STATE}")):
        raise RequestError(
            f"{path}: a folder of several data sets, {', '.join(splits)}"[:300]
            + f"; give one of them: {path / splits[0]}"
        )
    raise RequestError(
        f"{path}: a folder of {len(files)} safetensors files, of no kind that is known "
        "(docs/audit.md); give a file of it"
    )


def _start(path: Path) -> bytes:
    """The first bytes of a file; none where there is no file, which another function says."""
    if not path.is_file():  # a pipe would wait for its writer
        return b""
    try:
        with path.open("rb") as file:
            return file.read(HEADER_BYTES)
    except OSError:
        return b""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the shared lock of `FILE.lock`, if there is such a file, as its writer holds it alone.

    Raises:
        RequestError: it is being written.
    """
    lock = Path(f"{path.absolute()}.lock")
    with ExitStack() as opened:
        if lock.is_file():
            try:
                fcntl.flock(opened.enter_context(lock.open("rb")), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RequestError(f"{lock}: {path} is being written; try again later") from None
            except OSError as error:  # a disk without locks, or a lock of another user's
                say_once(f"{lock}: {error.strerror}: whether {path} is written yet is not known")
        yield
