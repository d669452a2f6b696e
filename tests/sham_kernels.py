"""What the pretend accelerator of `sham.py` needs beyond operations that it can leave to the CPU.

Cells of recurrent networks (PyTorch has them for accelerators only), autocast, and memory pinned for copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# ------------------------------------------------------------------------------------------------------ recurrent cells


def lstm_cell(
    from_input: Tensor, from_hidden: Tensor, cell: Tensor, bias: Tensor | None = None, more: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an LSTM: the new hidden state, the new cell, and the gates, which the way back needs."""
    gates = from_input + from_hidden
    gates = gates if bias is None else gates + bias
    gates = gates if more is None else gates + more
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * cell + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    hidden_grad: Tensor | None, cell_grad: Tensor | None, before: Tensor, after: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the gates, of the cell before and of the biases."""
    i, f, g, o = gates.chunk(4, 1)
    squashed = after.tanh()
    by_hidden = torch.zeros_like(after) if hidden_grad is None else hidden_grad
    by_cell = by_hidden * o * (1 - squashed**2)
    by_cell = by_cell if cell_grad is None else by_cell + cell_grad
    parts = (by_cell * g * i * (1 - i), by_cell * before * f * (1 - f), by_cell * i * (1 - g**2))
    found = torch.cat([*parts, by_hidden * squashed * o * (1 - o)], 1)
    return found, by_cell * f, found.sum(0) if has_bias else found.new_empty(0)


INSTEAD: dict[str, Callable[..., Any]] = {  # of operations that the CPU does not have
    "aten::_thnn_fused_lstm_cell": lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
}

# ------------------------------------------------------------------------------------------------------------ autocast

LOW = ("linear", "conv1d", "conv2d", "mm", "addmm", "bmm", "baddbmm", "matmul")  # in the low precision, as on CUDA
FULL = ("cross_entropy_loss", "nll_loss", "mse_loss", "log_softmax.int", "softmax.int", "logsumexp")  # in float32
_KEY = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))


def _casting(operation: Any, low: bool) -> Callable[..., Any]:
    def cast(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(cast, value))
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == torch.float64:
            return value
        return value.to(torch.get_autocast_dtype("sham") if low else torch.float32)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            return operation(*map(cast, args), **kwargs)

    return call


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def register_autocast(library: torch.library.Library) -> None:
    """`torch.autocast("sham")`: the operations that matter, in the precision in which CUDA has them."""
    for names, low in ((LOW, True), (FULL, False)):
        for name in names:
            library.impl(name, _casting(_operation(name), low), "AutocastPrivateUse1")


# ------------------------------------------------------------------------------------------------------------- pinning

_PINNED: dict[int, Tensor] = {}  # by the address of their memory, which must not be used again


def _pin(tensor: Tensor, device: object = None) -> Tensor:
    copy = tensor.clone()
    _PINNED[copy.untyped_storage().data_ptr()] = copy
    return copy


def is_pinned(tensor: Tensor, device: object = None) -> bool:
    """Whether a tensor of the host lies in memory that was pinned."""
    return tensor.untyped_storage().data_ptr() in _PINNED


def register_pinning(library: torch.library.Library) -> None:
    """`pin_memory` and `is_pinned`, which PyTorch would ask of the device's driver."""
    library.impl("_pin_memory", _pin, "CPU", allow_override=True)
    library.impl("is_pinned", is_pinned, "CPU", allow_override=True)
