"""Patches: functions that change the outputs of a model's sites while it runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from arch import LanguageModel
from arch.pretrained.decoder import WholeBlock
from eval.messages import RequestError

Patch = Callable[[Tensor], Tensor]
"""The outputs `(B, T, D)` of a site to those that take their place."""
CONTINUING = ("prefix", "step")
"""A mixer's methods that go on from a prefix."""


@contextmanager
def patched_sites(model: LanguageModel, patches: Mapping[str, Patch]) -> Iterator[None]:
    """Changes the outputs of sites of a model until the block ends, however it ends.

    Args:
        model: whose passes over whole sequences are changed; passes that go on from a prefix, as
            generation makes, are refused.
        patches: by the names of `patchable`. A site that an outer block changes is changed again.

    Raises:
        RequestError: a site that the model has not, or a patch that is no function.
    """
    known = patchable(model)
    for name, patch in patches.items():
        if name not in known:
            raise RequestError(f"site {name!r} cannot be patched; there are {', '.join(known)}")
        if not callable(patch):
            raise RequestError(
                f"patch of {name}: a {type(patch).__name__}; give a function of the outputs, as "
                "lambda x: x * 0.5"
            )
    with ExitStack() as stack:
        for name, patch in patches.items():
            part, _, layer = name.partition(".")
            if layer == "0" or part == "final":
                module = model.norm if part == "final" else model.embedding
                stack.callback(module.register_forward_hook(_hook(name, patch)).remove)
            else:
                block: Any = model.blocks[int(layer) - 1]
                _replace(stack, block, "site", _at(block.site, part, name, patch))
        mixers: list[Any] = [block.token_mixer for block in model.blocks] if patches else []
        for mixer in mixers:
            for method in CONTINUING:
                _replace(stack, mixer, method, _refuse)
            stack.callback(mixer.register_forward_pre_hook(_allow).remove)
            stack.callback(mixer.register_forward_hook(_forbid, always_call=True).remove)
        yield


def patchable(model: LanguageModel) -> list[str]:
    """The names of the sites that can be patched: `block.0`, the embedding, then by layer."""
    whole = any(isinstance(block, WholeBlock) for block in model.blocks)
    parts = ("block",) if whole else ("mixer", "stream", "block")
    depth = len(model.blocks)
    names = [f"{part}.{layer}" for layer in range(1, depth + 1) for part in parts]
    final = [] if isinstance(model.norm, nn.Identity) else [f"final.{depth}"]
    return ["block.0", *names, *final]


def _at(before: Any, part: str, name: str, patch: Patch) -> Callable[[str, Tensor], Tensor]:
    """A block's `site` with a patch of one part."""

    def site(given: str, x: Tensor) -> Tensor:
        x = before(given, x)
        return _apply(name, patch, x) if given == part else x

    return site


def _hook(name: str, patch: Patch) -> Callable[..., Tensor]:
    return lambda module, inputs, output: _apply(name, patch, output)


def _apply(name: str, patch: Patch, x: Tensor) -> Tensor:
    y = patch(x)
    if not isinstance(y, Tensor) or _form(y) != _form(x):
        given = _form(y) if isinstance(y, Tensor) else type(y).__name__
        raise RequestError(
            f"patch of {name}: gives {given}; allowed: a tensor {_form(x)}, as it takes; y.to(x) "
            "has its type and device"
        )
    return y


def _form(x: Tensor) -> str:
    return f"{tuple(x.shape)} of {x.dtype} on {x.device}"


def _replace(stack: ExitStack, module: nn.Module, name: str, value: Any) -> None:
    """Sets a method of one module, and puts back what was there when the stack ends."""
    before = vars(module).get(name)
    if before is None:
        stack.callback(delattr, module, name)
    else:
        stack.callback(setattr, module, name, before)
    setattr(module, name, value)


def _allow(mixer: nn.Module, *_: Any) -> None:
    """Lets a mixer's own `forward` call its `prefix` and `step`."""
    for method in CONTINUING:
        vars(mixer).pop(method, None)


def _forbid(mixer: nn.Module, *_: Any) -> None:
    for method in CONTINUING:
        setattr(mixer, method, _refuse)


def _refuse(*_: Any) -> Any:
    raise RequestError(
        "patched: a patch sees whole sequences, and this question goes on from a prefix, as "
        "generation does; ask it without the patch"
    )
