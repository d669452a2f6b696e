"""What crosses a network: an outline in JSON and raw buffers, no pickle and no code.

The other side is not trusted: sizes are checked before anything is built, every tensor against its type, shape and
bytes, and every field against its annotation. Whatever is wrong is a `WireError` that says what.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.codec import TYPES, pack
from coterie.core.decoder import DecodeError, OutlineReader, parse_json
from coterie.core.errors import CoterieError

__all__ = ["LIMITS", "EncodedTensor", "Payload", "PayloadLimits", "WireError", "decode", "encode"]

AXES = 16  # of a tensor


class WireError(DecodeError):
    """A message is not what the protocol says."""

    code = "wire-malformed"


@dataclass(frozen=True, eq=False)
class EncodedTensor:
    """One tensor: its raw bytes, little-endian, in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, eq=False)
class Payload:
    """What a message carries: an outline (JSON), and the tensors that it names."""

    outline: str
    arrays: tuple[EncodedTensor, ...]

    @property
    def compressed(self) -> bool:
        """Whether it says so, as `encode` writes it: by this a reply is packed as the question was."""
        return self.outline.endswith('"zlib":true}')

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.outline.encode("utf-8", "surrogatepass")) + sum(len(packed.data) for packed in self.arrays)


@dataclass(frozen=True)
class PayloadLimits:
    """What is accepted: bytes of a payload (as sent, and as it is once decompressed), arrays, bytes of an outline."""

    largest: int = 1 << 30
    arrays: int = 10_000
    outline: int = 16 << 20


LIMITS = PayloadLimits()

# ------------------------------------------------------------------------------------------------------------ sending


def encode(tree: object, compress: bool = False) -> Payload:
    """A tree of dataclasses, tuples, numbers and tensors as a payload. Numbers that lie in memory once are sent once:
    a row of a table that is sent as well is named by its place in it."""
    outline, tensors = pack(tree)
    lying = [t.detach().contiguous() for t in tensors]
    holders = _holders(lying)
    numbers = {holder: number for number, holder in enumerate(sorted({holder for holder, _ in holders}))}
    places = [[numbers[holder], start, list(t.shape)] for (holder, start), t in zip(holders, lying, strict=True)]
    text = json.dumps({"tree": outline, "tensors": places, "zlib": compress}, allow_nan=False, separators=(",", ":"))
    return Payload(text, tuple(_packed(lying[holder], compress) for holder in numbers))


def _holders(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """For each tensor the one whose memory it lies in (mostly itself), and where in it."""
    found = [(i, 0) for i in range(len(tensors))]
    furthest: dict[torch.dtype, int] = {}
    filled = [i for i, t in enumerate(tensors) if t.numel()]
    for i in sorted(filled, key=lambda i: (tensors[i].data_ptr(), -tensors[i].nbytes)):
        t = tensors[i]
        holder = furthest.get(t.dtype)
        if holder is not None and _end(t) <= _end(tensors[holder]):
            start, odd = divmod(t.data_ptr() - tensors[holder].data_ptr(), t.element_size())
            if not odd:
                found[i] = (holder, start)
        else:
            furthest[t.dtype] = i
    return found


def _end(t: Tensor) -> int:
    return t.data_ptr() + t.nbytes


def _packed(t: Tensor, compress: bool) -> EncodedTensor:
    name = str(t.dtype).removeprefix("torch.")
    if name not in TYPES:
        raise CoterieError(
            f"cannot send a tensor of {t.dtype}; one of {', '.join(TYPES)} is needed", code="state-unsupported"
        )
    data = _little(t.reshape(-1).view(torch.uint8), t.element_size()).numpy().tobytes()
    return EncodedTensor(name, tuple(t.shape), zlib.compress(data, 1) if compress else data)


def _little(raw: Tensor, width: int) -> Tensor:
    """Bytes of this machine as little-endian ones, or the other way round."""
    return raw if sys.byteorder == "little" else raw.view(-1, width).flip(1).reshape(-1)


# ---------------------------------------------------------------------------------------------------------- receiving


def decode(payload: Payload, types: Sequence[type], limits: PayloadLimits = LIMITS) -> Any:
    """The tree again, of these dataclasses only, or a `WireError`."""
    try:
        _measure(payload, limits)
        tree, places, compressed = _parse(payload.outline, limits)
        _check_named(places, payload.arrays)
        arrays = [_array(packed, number, compressed) for number, packed in enumerate(payload.arrays)]
        reader = OutlineReader([_view(arrays, *place) for place in places], types, typed=True)
        found = reader.read(tree)
        if len(reader.used) < len(places):
            raise WireError(f"tensor {min(set(range(len(places))) - reader.used)} is sent and used nowhere")
        return found
    except DecodeError as error:
        raise WireError(str(error)) from None
    except (CoterieError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        what = "too deep" if isinstance(error, RecursionError) else " ".join(f"{type(error).__name__}: {error}".split())
        raise WireError(f"this message cannot be read: {what[:300]}") from None


def _measure(payload: Payload, limits: PayloadLimits) -> None:
    """Before anything is built: is it of the right kind, and not too much?"""
    if type(payload.outline) is not str or len(payload.outline) > limits.outline:
        raise WireError(f"the outline is not a text of at most {limits.outline} bytes", code="wire-too-large")
    if type(payload.arrays) is not tuple or len(payload.arrays) > limits.arrays:
        raise WireError(f"a message has at most {limits.arrays} arrays", code="wire-too-large")
    total = 0
    for number, packed in enumerate(payload.arrays):
        if type(packed) is not EncodedTensor or type(packed.data) is not bytes:
            raise WireError(f"array {number} is not an array")
        if type(packed.dtype) is not str or packed.dtype not in TYPES:
            raise WireError(f"array {number} is of type {str(packed.dtype)[:40]!r}; known: {', '.join(TYPES)}")
        _count(packed.shape, limits.largest, f"array {number}")
        total += _bytes(packed)
    if max(total, payload.size) > limits.largest:
        raise WireError(
            f"a message has at most {limits.largest} bytes, this one has {max(total, payload.size)}",
            code="wire-too-large",
        )


def _count(shape: object, largest: int, what: str) -> int:
    """How many numbers a shape means."""
    if type(shape) is not tuple or len(shape) > AXES or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError(f"{what}: a shape is a row of at most {AXES} numbers from 0 on, not {str(shape)[:80]}")
    if math.prod(max(n, 1) for n in shape) > largest:  # also where one of them is 0: torch multiplies the others
        raise WireError(
            f"{what}: the shape {str(shape)[:80]} is larger than the {largest} bytes of a message",
            code="wire-too-large",
        )
    return math.prod(shape)


def _bytes(packed: EncodedTensor) -> int:
    return math.prod(packed.shape) * TYPES[packed.dtype].itemsize


Place = tuple[int, int, tuple[int, ...]]  # which array, where in it, of which shape


def _parse(text: str, limits: PayloadLimits) -> tuple[object, list[Place], bool]:
    found = parse_json(text)
    if type(found) is not dict or set(found) != {"tree", "tensors", "zlib"} or type(found["zlib"]) is not bool:
        raise WireError('an outline has "tree", "tensors" and "zlib"')
    rows = found["tensors"]
    if type(rows) is not list or len(rows) > limits.arrays:
        raise WireError(f"a message has a list of at most {limits.arrays} tensors", code="wire-too-large")
    places: list[Place] = []
    for number, row in enumerate(rows):
        if type(row) is not list or [type(v) for v in row] != [int, int, list]:
            raise WireError(f"tensor {number} has no place: which array, where in it, of which shape")
        _count(tuple(row[2]), limits.largest, f"tensor {number}")
        places.append((row[0], row[1], tuple(row[2])))
    return found["tree"], places, found["zlib"]


def _check_named(places: Sequence[Place], arrays: Sequence[EncodedTensor]) -> None:
    """Before anything is decompressed: every array is one of the tensors, whole. (Others may be rows of it.)"""
    whole = {
        array
        for array, start, shape in places
        if 0 <= array < len(arrays) and start == 0 and shape == arrays[array].shape
    }
    if {array for array, _, _ in places} - set(range(len(arrays))):
        raise WireError("the outline names other arrays than were sent")
    unused = sorted(set(range(len(arrays))) - whole)
    if unused:
        raise WireError(f"array {unused[0]} {arrays[unused[0]].shape}: the outline does not name all of it as a tensor")


def _array(packed: EncodedTensor, number: int, compressed: bool) -> Tensor:
    """The tensor, in memory of its own."""
    size, data = _bytes(packed), packed.data
    if compressed:
        data = _inflated(data, size, number)
    if len(data) != size:
        raise WireError(f"array {number}: {packed.dtype} {packed.shape} has {size} bytes, {len(data)} came")
    dtype = TYPES[packed.dtype]
    raw = torch.empty(size, dtype=torch.uint8)  # torch's own: it lies where vector instructions like it
    raw.numpy()[:] = np.frombuffer(data, dtype=np.uint8)
    if dtype == torch.bool and bool((raw > 1).any()):
        raise WireError(f"array {number} is of truth values, and holds others than 0 and 1")
    t = _little(raw, dtype.itemsize).view(dtype)
    # The sum tells cheaply that all is well; one that is not finite may also have overflowed, so then look closely.
    if t.is_floating_point() and not math.isfinite(float(t.sum())) and not bool(t.isfinite().all()):
        raise WireError(f"array {number} ({packed.dtype} {packed.shape}) holds NaN or Inf", code="wire-not-finite")
    return t.view(packed.shape)


def _inflated(data: bytes, size: int, number: int) -> bytes:
    """Never more than was announced: one byte beyond it is enough to know."""
    stream = zlib.decompressobj()
    try:
        out = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise WireError(f"array {number} cannot be decompressed: {error}") from None
    if not stream.eof or stream.unused_data or stream.unconsumed_tail:
        raise WireError(f"array {number} does not decompress to the {size} bytes it announces")
    return out


def _view(arrays: Sequence[Tensor], array: int, start: int, shape: tuple[int, ...]) -> Tensor:
    if not 0 <= array < len(arrays):
        raise WireError(f"the outline names array {array} of {len(arrays)}")
    whole = arrays[array]
    if not 0 <= start <= whole.numel() - math.prod(shape):
        raise WireError(f"a tensor of shape {shape} at {start} does not lie in array {array} of {whole.numel()}")
    return whole.view(-1)[start : start + math.prod(shape)].view(shape)
