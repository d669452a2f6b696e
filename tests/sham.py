"""A pretend accelerator, so that code for devices can be tested on a machine that has none.

`register()` gives PyTorch a device type `sham` with two devices, written in Python. Its tensors hold their numbers in
CPU tensors, so that results are those of the CPU to the bit; what is checked is who touches what. As on CUDA, an
operation refuses operands on different devices (a CPU number without dimensions may join elementwise ones, CPU indices
may index), `.numpy()` and a CPU generator. Transfers are counted (`COUNTS`). `without_doubles()` refuses float64, as
MPS does. Autograd works on the first device only: PyTorch asks Python for no more.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import torch
import torch.utils.backend_registration as backends
from torch import Tensor
from torch.utils import _pytree as pytree

from sham_counts import COUNTS, Counts, refused
from sham_kernels import INSTEAD, is_pinned, register_autocast, register_pinning

__all__ = ["COUNTS", "NAME", "SET_UP", "Counts", "Sham", "register", "without_doubles"]
NAME = "sham"
DEVICES = 2
SET_UP = "_setup_privateuseone_for_python_backend"  # private to PyTorch: it may go
CPU = torch.device("cpu")
COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize")
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index")
READS = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero")  # they give numbers, not tensors
NO_DOUBLES = TypeError("Cannot convert a sham Tensor to float64 dtype as the framework doesn't support float64.")


class _State:
    """What a device has besides tensors: its random numbers, and whether it knows float64."""

    generators: ClassVar = [torch.Generator() for _ in range(DEVICES)]
    current = 0
    doubles = True


class Sham(torch.Tensor):
    """A tensor on the pretend device; `raw` has its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor, device: torch.device) -> Sham:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=device,
            requires_grad=False,
        )

    def __init__(self, raw: Tensor, device: torch.device) -> None:
        self.raw = raw

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Sham({self.raw}, device='{self.device}')"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run(func, *args, **(kwargs or {}))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replaced = _PYTHON.get(func)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {})) if replaced is None else replaced(*args, **(kwargs or {}))


# --------------------------------------------------------------- what PyTorch does with tensors without the dispatcher


def _set_data(tensor: Tensor, value: Tensor) -> None:
    """`tensor.data = value`: the numbers have to follow the shape, or the old ones would stay."""
    if not isinstance(tensor, Sham) or not isinstance(value, Sham) or tensor.device != value.device:
        raise refused(RuntimeError("sham: .data can only be set to a tensor of the same device"))
    torch.Tensor.data.__set__(tensor, value)  # type: ignore[attr-defined]
    tensor.raw = value.raw


def _get_data(tensor: Sham) -> Tensor:
    return tensor.detach()


def _refuse_numpy(tensor: Tensor, *_: object, **__: object) -> Any:
    raise refused(
        TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )
    )


def _tolist(tensor: Tensor) -> Any:
    return tensor.cpu().tolist()


def _data_ptr(tensor: Sham) -> int:
    return tensor.raw.data_ptr()


_PYTHON: dict[Any, Callable[..., Any]] = {
    torch.Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
    torch.Tensor.data.__get__: _get_data,  # type: ignore[attr-defined]
    torch.Tensor.numpy: _refuse_numpy,
    torch.Tensor.__array__: _refuse_numpy,
    torch.Tensor.tolist: _tolist,
    torch.Tensor.data_ptr: _data_ptr,
}


# ------------------------------------------------------------------------------------------------------ operations


def run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Check the operands of an operation, compute it on the CPU, and put what it gives on the device."""
    if torch.is_inference_mode_enabled():  # where operations arrive that are otherwise made of others
        made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
    name = func._schema.name
    flat = pytree.tree_leaves((args, kwargs))
    operands = [value for value in flat if isinstance(value, Tensor)]
    shams = [value for value in operands if isinstance(value, Sham)]
    wanted = kwargs.get("device")
    here = shams[0].device if shams else CPU
    device = here if wanted is None else _indexed(torch.device(wanted))
    if name in COPIES:
        _count_copy(args, kwargs, device)
    else:
        _check_devices(func, name, args, operands, shams)
    _check_generator(kwargs.get("generator"), device if wanted is not None or shams else CPU)
    out = _computed(func, device, pytree.tree_map(_raw, args), pytree.tree_map(_raw, kwargs))
    if name in READS:
        COUNTS.reads += 1
        return out
    home = CPU if name in COPIES and wanted is not None and device.type != NAME else device
    if name == "aten::copy_":
        return args[0]
    mine = {id(one.raw): one for one in shams}
    # What is a view of a tensor made outside inference mode is an ordinary tensor, even inside.
    views = any(returned.alias_info is not None for returned in func._schema.returns)
    with torch.inference_mode(torch.is_inference_mode_enabled() and not (views and not shams[0].is_inference())):
        return pytree.tree_map(lambda value: _wrapped(value, home, mine), out)


def _raw(value: Any) -> Any:
    if isinstance(value, Sham):
        return value.raw
    return CPU if isinstance(value, torch.device) else value


def _wrapped(value: Any, device: torch.device, mine: dict[int, Sham]) -> Any:
    if not isinstance(value, Tensor):
        return value
    if id(value) in mine:
        return _reshaped(mine[id(value)])
    if device.type != NAME:
        return value
    if value.dtype == torch.float64 and not _State.doubles:
        raise refused(
            TypeError(f"Cannot convert a {device} Tensor to float64 dtype as the framework doesn't support float64.")
        )
    return Sham(value, device)


def _reshaped(tensor: Sham) -> Sham:
    """After an operation in place, which may have changed the shape (`squeeze_`, in the product of a vector)."""
    if tensor.shape != tensor.raw.shape or tensor.stride() != tensor.raw.stride():
        torch.Tensor.data.__set__(tensor, Sham(tensor.raw, tensor.device))  # type: ignore[attr-defined]
    return tensor


def _indexed(device: torch.device) -> torch.device:
    """With its index: `sham` is the current one."""
    return torch.device(NAME, _State.current) if device.type == NAME and device.index is None else device


def _check_devices(func: Any, name: str, args: Any, operands: list[Tensor], shams: list[Sham]) -> None:
    if not shams:
        return
    if name in INDEXING:
        if not isinstance(args[0], Sham):
            raise refused(
                RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
            )
        for index in args[1]:
            if index is not None and not isinstance(index, Sham):  # as on CUDA: it is copied, and waited for
                COUNTS.up, COUNTS.up_bytes = COUNTS.up + 1, COUNTS.up_bytes + index.nbytes
        indices = {id(index) for index in args[1]}
        operands = [one for one in operands if id(one) not in indices or isinstance(one, Sham)]
        numbers = True
    else:
        numbers = torch.Tag.pointwise in func.tags or name in ("aten::fill_", "aten::index_fill_")
    where = {one.device for one in operands if isinstance(one, Sham) or one.dim() or not numbers}
    if len(where) > 1:
        found = ", ".join(sorted(map(str, where)))
        raise refused(RuntimeError(f"{name}: Expected all tensors to be on the same device, but found {found}"))


def _check_generator(generator: torch.Generator | None, device: torch.device) -> None:
    if generator is not None and generator.device.type != device.type:
        raise refused(
            RuntimeError(f"Expected a '{device.type}' device type for generator but found '{generator.device.type}'")
        )


def _count_copy(args: Any, kwargs: Any, device: torch.device) -> None:
    into, source = (args[0], args[1]) if len(args) > 1 and isinstance(args[1], Tensor) else (None, args[0])
    ends = source.device, into.device if into is not None else device
    if ends[0].type == ends[1].type:
        return
    if ends[1].type == NAME:
        COUNTS.up, COUNTS.up_bytes = COUNTS.up + 1, COUNTS.up_bytes + source.nbytes
        COUNTS.pinned += is_pinned(source)
        if source.dtype == torch.float64 and not _State.doubles:
            raise refused(
                TypeError("Cannot convert a sham Tensor to float64 dtype as the framework doesn't support float64.")
            )
    else:
        COUNTS.down, COUNTS.down_bytes = COUNTS.down + 1, COUNTS.down_bytes + source.nbytes


def _computed(func: Any, device: torch.device, args: Any, kwargs: Any) -> Any:
    """On the CPU; random numbers come from the device's own generator."""
    func = INSTEAD.get(func._schema.name, func)
    if device.type != NAME or torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
        return func(*args, **kwargs)
    own, before = _State.generators[device.index], torch.get_rng_state()
    torch.set_rng_state(own.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        own.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


# ------------------------------------------------------------------------------------------------------- torch.sham


class _Module:
    """`torch.sham`: what PyTorch asks of a device's module."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return DEVICES

    def current_device(self) -> int:
        return _State.current

    def set_device(self, device: Any) -> None:
        _State.current = _number(device)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, _State.current = _State.current, _number(device)
        try:
            yield
        finally:
            _State.current = before

    def manual_seed(self, seed: int) -> None:
        _State.generators[_State.current].manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for generator in _State.generators:
            generator.manual_seed(seed)

    def get_rng_state(self, device: Any = NAME) -> Tensor:
        return _State.generators[_number(device)].get_state()

    def set_rng_state(self, state: Tensor, device: Any = NAME) -> None:
        _State.generators[_number(device)].set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def mem_get_info(self, device: Any = NAME) -> tuple[int, int]:
        return 1 << 30, 1 << 30  # free, and in all

    def synchronize(self, device: Any = NAME) -> None: ...


def _number(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return _State.current if index is None else index


@contextmanager
def without_doubles() -> Iterator[None]:
    """Meanwhile float64 is refused."""
    _State.doubles = False
    try:
        yield
    finally:
        _State.doubles = True


@cache
def register() -> bool:
    """Make the device known; False where this PyTorch cannot do that any more."""
    set_up = getattr(backends, SET_UP, None)
    if set_up is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        set_up(rename=NAME, backend_module=_Module())
        every, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        every.fallback(run, dispatch_key="PrivateUse1")
        every.fallback(torch.library.fallthrough_kernel, dispatch_key="AutocastPrivateUse1")
        register_autocast(aten)
        register_pinning(aten)
    _KEPT.extend((every, aten))
    return True


_KEPT: list[Any] = []  # a library is gone when nothing refers to it
