"""Which tensors of a network are in its vector, and where: trainable parameters, then statistics; frozen ones are not.

The vector is what training changes, what is sent and what methods compare. Frozen parameters are part of what the
network is: they are identified by a hash (`Layout.fingerprint`), and shared by all copies of the network in a process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError


@dataclass(frozen=True)
class Layout:
    """The names of a network's floating-point tensors: in the vector, in this order, or frozen."""

    trained: tuple[str, ...]
    statistics: tuple[str, ...]  # buffers that training changes, such as BatchNorm's running means
    frozen: tuple[str, ...]  # parameters and buffers that nothing changes
    still: tuple[str, ...] = ()  # modules with frozen statistics: in evaluation mode while the others train

    def vector(self, network: nn.Module) -> list[Tensor]:
        """The tensors of the vector, in its order."""
        return _by_name(network, (*self.trained, *self.statistics))

    def outside(self, network: nn.Module) -> list[Tensor]:
        """The frozen tensors."""
        return _by_name(network, self.frozen)

    def fingerprint(self, network: nn.Module) -> str:
        """The hash of names, types, shapes and values of what is frozen; empty where nothing is."""
        if not self.frozen:
            return ""
        found = hashlib.sha256()
        for name, t in zip(self.frozen, self.outside(network), strict=True):
            found.update(f"{name} {t.dtype} {tuple(t.shape)}\n".encode())
            found.update(bits(t).numpy().data)
        return found.hexdigest()

    def frozen_bytes(self, network: nn.Module) -> Tensor:
        """The values of what is frozen, end to end."""
        return torch.cat([bits(t) for t in self.outside(network)])

    def set_frozen(self, network: nn.Module, values: Tensor) -> None:
        """Set what is frozen to these bytes."""
        tensors = self.outside(network)
        if sum(t.nbytes for t in tensors) != len(values):
            raise CoterieError(
                f"the frozen part of a network has {sum(t.nbytes for t in tensors)} bytes, this one {len(values)}",
                code="model-size",
            )
        start = 0
        with torch.no_grad():
            for t in tensors:
                part = values[start : start + t.nbytes].clone()  # at the start of memory, as other types need it
                t.copy_(part.view(t.dtype).view(t.shape))
                start += t.nbytes


def bits(t: Tensor) -> Tensor:
    """The bytes of a tensor's values (n,), in the order of its axes."""
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def layout_of(network: nn.Module, selected: bool = False) -> Layout:
    """By `requires_grad`. selected: statistics of a module whose own parameters do not train are frozen with them."""
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
    statistics: list[str] = []
    still: list[str] = []
    for name, buffer in network.named_buffers():
        if not buffer.is_floating_point():
            continue
        owner = name.rpartition(".")[0]
        module = network.get_submodule(owner)
        if selected and not any(p.requires_grad for p in module.parameters(recurse=False)):
            frozen.append(name)
            still += [] if owner in still else [owner]
        else:
            statistics.append(name)
    return Layout(tuple(trained), tuple(statistics), tuple(frozen), tuple(still))


def joined(tensors: Iterable[Tensor]) -> Tensor:
    """Tensors end to end, each with its axes in the order of the vector (a copy)."""
    return torch.cat([_lying(t.detach()).reshape(-1) for t in tensors])


def views(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The position of each of these tensors in the vector."""
    found, start = [], 0
    for t in like:
        lying = vector[start : start + t.numel()].view(_lying(t).shape)
        found.append(lying.permute(0, 3, 1, 2) if t.ndim == 4 else lying)
        start += t.numel()
    return found


def _lying(t: Tensor) -> Tensor:
    """A tensor with its axes in the order of the vector: the weights of convolutions with their channels last."""
    return t.permute(0, 2, 3, 1) if t.ndim == 4 else t


def _by_name(network: nn.Module, names: Iterable[str]) -> list[Tensor]:
    known: dict[str, Tensor] = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return [known[name] for name in names]
