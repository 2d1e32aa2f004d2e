"""A simulated accelerator: its tensors compute on the CPU and say that they are on `sim:0`.

The import registers the device with torch, for good, and has to come before the process's first
gradient: use it in a process of its own.
What a GPU refuses is refused: operands on two devices, a CPU generator for its tensors, `numpy()`.
What a GPU allows is allowed: a CPU scalar beside its tensors, CPU indices of its tensors, copies.
"""

from collections.abc import Callable, Iterator
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
    of_first = name in COPIES or name in INDEXING
    on_device = is_simulated(args[0]) if of_first else any(map(is_simulated, given))
    if name not in COPIES:
        _check(name, on_device, _tensors(args[2:]) if on_device and of_first else given)
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


def check_refusals(device: torch.device) -> None:
    """The simulated device refuses what a GPU does, and allows what it allows."""

    def refused(case: Callable[[], object]) -> bool:
        try:
            case()
        except (RuntimeError, TypeError):
            return True
        return False

    x, on_cpu, few = torch.ones(3, 2).to(device), torch.ones(3, 2), torch.tensor([0, 1])
    assert (x.device.type, x.device.index, (x @ x.T).device) == ("sim", 0, device)
    assert refused(lambda: x + on_cpu)
    assert refused(lambda: on_cpu * x.sum())
    assert refused(lambda: on_cpu[few.to(device)])
    assert refused(lambda: x.index_put_((few,), torch.ones(2, 2)))
    assert refused(lambda: x.index_select(0, few))
    assert refused(lambda: x.numpy())
    assert refused(lambda: torch.randn(3, device=device, generator=torch.Generator()))
    assert refused(lambda: torch.randn(3, generator=torch.Generator(device)))
    assert (x * torch.tensor(2.0)).device == x[few].device == device
    assert torch.tensor([x.sum(), x[0, 0]]).tolist() == [6.0, 1.0]  # .item() by C++
    assert torch.zeros_like(x, device="cpu").device.type == x.cpu().device.type == "cpu"
    layer = torch.nn.Linear(2, 1).to(device)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == device
