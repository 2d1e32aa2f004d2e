"""A simulated accelerator: its tensors compute on the CPU and say that they are on `sim:0`.

    with simulated_device() as device:
        model.to(device)

The import registers the device with torch, for good, and has to come before the process's first
gradient: use it in a process of its own.
What a GPU refuses is refused: operands on two devices, a CPU generator for its tensors, `numpy()`.
What a GPU allows is allowed: a CPU scalar beside its tensors, CPU indices of its tensors, copies.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "sim"
_setup_privateuseone_for_python_backend(NAME)  # autograd counts the devices at its first use
torch.get_device_module(NAME).get_amp_supported_dtype = lambda: [torch.bfloat16]  # autocast asks
CPU = torch.device("cpu")
COPIES = ("aten::copy_", "aten::_to_copy", "aten::_copy_from")
INDEXING = (
    "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",
    "aten::_index_put_impl_",
)  # fmt: skip
"""Operators whose second argument is a list of indices."""


class SimulatedTensor(Tensor):
    """A tensor on `sim:0` whose values lie in a CPU tensor."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "SimulatedTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(NAME, 0),
            requires_grad=values.requires_grad,
        )
        made.values = values
        return made

    def tolist(self) -> Any:
        return self.values.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {self.device} tensor to numpy: use Tensor.cpu() first")

    __array__ = numpy

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values"], None  # so that Module.to replaces the values with the type

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> "SimulatedTensor":
        return SimulatedTensor(inner["values"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Intercept(TorchDispatchMode):
    """Sees operators that make tensors, and those that mix devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


@contextmanager
def simulated_device() -> Iterator[torch.device]:
    """The device `sim:0`, while the context lasts.

    Gradients are computed by the thread that asks: one of the device's own would still hold Python
    objects while the process ends, which aborts it now and then.
    """
    kernels = torch.library.Library("aten", "IMPL")  # for calls that C++ makes without Python
    kernels.impl("_local_scalar_dense", lambda x: x.values.item(), "PrivateUse1")
    kernels.impl("empty_strided", _empty_strided, "PrivateUse1")
    kernels.impl("_copy_from", _copy_from, "PrivateUse1")
    try:
        one_thread = torch.autograd.set_multithreading_enabled(False)
        with patch.object(torch, "Generator", _Generator), one_thread, _Intercept():
            yield torch.device(NAME, 0)
    finally:
        kernels._destroy()
        _generators.clear()


_CPUGenerator = torch.Generator
_generators: dict[int, torch.Generator] = {}
"""Those of the device, by the address that an operator sees."""


class _Generator(torch.Generator):
    """Makes generators of the device as well; they are the CPU's, and known."""

    def __new__(cls, device: Any = CPU) -> torch.Generator:
        if torch.device(device).type != NAME:
            return _CPUGenerator(device)
        made = _CPUGenerator()
        return _generators.setdefault(made._cdata, made)  # pyright: ignore


def is_simulated(x: Any) -> bool:
    return isinstance(x, SimulatedTensor)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return SimulatedTensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _values(target).copy_(_values(source))
    return target


def _values(x: Tensor) -> Tensor:
    return x.values if isinstance(x, SimulatedTensor) else x


def _compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator on the values, and puts its results where a GPU would have them."""
    name, given = func._schema.name, _tensors((args, kwargs))
    if name in COPIES:
        on_device = is_simulated(args[0])
    elif name in INDEXING:
        on_device = is_simulated(args[0])
        _check(name, on_device, _tensors(args[2:]))
        if not on_device and any(map(is_simulated, _tensors(args[1]))):
            raise RuntimeError(f"{name}: a CPU tensor has indices on {NAME}:0")
    else:
        on_device = any(map(is_simulated, given))
        _check(name, on_device, given)
    if (wanted := kwargs.get("device")) is not None:
        on_device = torch.device(wanted).type == NAME
        kwargs = kwargs | {"device": CPU if on_device else wanted}
    generator = kwargs.get("generator")
    if generator is not None and on_device != (generator._cdata in _generators):
        raise RuntimeError(f"{name}: the generator is on another device than the tensor")
    args, kwargs = tree_map_only(Tensor, _values, (args, kwargs))
    result = func(*args, **kwargs)
    if not on_device:
        return result
    written = {id(x.values): x for x in given if isinstance(x, SimulatedTensor)}
    return tree_map_only(Tensor, lambda x: written.get(id(x), SimulatedTensor(x)), result)


def _tensors(value: Any) -> list[Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, Tensor)]


def _check(name: str, on_device: bool, operands: list[Tensor]) -> None:
    for x in operands:
        if on_device != is_simulated(x) and (x.dim() or not on_device):
            raise RuntimeError(
                f"{name}: expected all tensors on the same device, found {NAME}:0 and cpu "
                f"{tuple(x.shape)}"
            )
