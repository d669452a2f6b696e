"""How a run goes on after a crash: state and client memory in one safetensors file, written all or not at all.

Random numbers need no saving: they are keyed by round. The file names what it belongs to, so that a
checkpoint of another run is refused, and carries a checksum, so that a damaged one is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from coterie.byclient import ByClient
from coterie.codec import pack, unpack
from coterie.errors import CoterieError
from coterie.memory import Memory

FORMAT = "coterie-checkpoint-1"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run after `round` rounds."""

    round: int
    state: Any
    memory: Mapping[str, Tensor]


def save(path: Path, state: object, memory: Memory, round: int, belongs: Mapping[str, str]) -> None:
    """Write atomically: after a crash there is the old file, the new file, or both, never half of one."""
    outline, parts = pack(state)
    tensors = {f"state/{i}": t for i, t in enumerate(parts)} | {f"memory/{k}": t for k, t in memory.tensors().items()}
    tensors = _apart(tensors)
    header = {
        "format": FORMAT,
        "round": str(round),
        "belongs": json.dumps(dict(belongs), sort_keys=True),
        "state": json.dumps(outline),
    }
    temporary = path.with_name(path.name + ".part")
    try:
        safetensors.torch.save_file(tensors, temporary, metadata=header | {"crc32": str(_checksum(header, tensors))})
        replace_durably(temporary, path)
    except (safetensors.SafetensorError, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise CoterieError(f"{path}: cannot be written ({error}); the run can be resumed from the one before") from None


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The format wants every tensor to lie in memory of its own: what overlaps another is copied, and nothing else.

    Personal models of thousands of clients may be most of what fits into memory.
    """
    found, ends = {}, dict[int, int]()
    for name, t in sorted(tensors.items(), key=lambda item: item[1].data_ptr()):
        storage = t.untyped_storage().data_ptr()
        # An empty one counts as contiguous whatever its strides are, and nothing is lost by copying it.
        if not t.numel() or not t.is_contiguous() or t.data_ptr() < ends.get(storage, 0):
            found[name] = t.detach().clone(memory_format=torch.contiguous_format)
        else:
            found[name] = t.detach()
            ends[storage] = t.data_ptr() + t.nbytes
    return found


def load(path: Path, template: object, method: object, belongs: Mapping[str, str]) -> Checkpoint:
    """Read a checkpoint of this very run; anything else is refused with the reason."""
    damaged = CoterieError(f"{path}: damaged, or not a checkpoint; delete it to go on from the one before it")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise damaged from error
    crc = header.pop("crc32", None)
    if crc is None or "format" not in header:
        raise CoterieError(f"{path}: not a checkpoint of this program")
    if crc != str(_checksum(header, tensors)):
        raise damaged
    if header["format"] != FORMAT:
        raise CoterieError(f"{path}: a checkpoint of format {header['format']}, this version reads {FORMAT}")
    theirs = json.loads(header["belongs"])
    for key, mine in belongs.items():
        if theirs.get(key) != mine:
            its, here = _differing(str(theirs.get(key)), mine)
            raise CoterieError(
                f"{path}: belongs to another run: its {key} is {its}, this run's is {here}; "
                "what is resumed goes on as it was, so leave the change out or choose another directory"
            )
    parts = [tensors[f"state/{i}"] for i in range(sum(k.startswith("state/") for k in tensors))]
    state = unpack(json.loads(header["state"]), parts, state_types(template, method))
    memory = {k.removeprefix("memory/"): t for k, t in tensors.items() if k.startswith("memory/")}
    return Checkpoint(int(header["round"]), state, memory)


def _differing(theirs: str, mine: str) -> tuple[str, str]:
    """Of two descriptions only the parameters that differ, where they have the same ones: k=3 and k=5."""
    ones, others = (re.split(r"[,()]\s*", text) for text in (theirs, mine))
    if len(ones) != len(others):
        return theirs, mine
    apart = [(a, b) for a, b in zip(ones, others, strict=True) if a != b]
    return ", ".join(a for a, _ in apart), ", ".join(b for _, b in apart)


def state_types(template: object, method: object) -> set[type]:
    """The dataclasses a method's state may consist of: those of its fresh state and of its modules."""
    types: set[type] = {ByClient}

    def walk(node: object) -> None:
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            types.add(type(node))
            for field in dataclasses.fields(node):
                walk(getattr(node, field.name))
        elif isinstance(node, list | tuple):
            for value in node:
                walk(value)

    walk(template)
    for base in type(method).__mro__:
        for value in vars(sys.modules.get(base.__module__, object())).values() if base is not object else ():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                types.add(value)
    return types


def replace_durably(temporary: Path, path: Path) -> None:
    """Put a finished file in its place, so that it is there even after the power fails."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _checksum(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> int:
    """Of everything the file says: its header, and every tensor's name, type, shape and bytes."""
    crc = zlib.crc32(json.dumps(dict(header), sort_keys=True).encode())
    for name in sorted(tensors):
        t = tensors[name]
        crc = zlib.crc32(f"{name} {t.dtype} {tuple(t.shape)}".encode(), crc)
        crc = zlib.crc32(t.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
