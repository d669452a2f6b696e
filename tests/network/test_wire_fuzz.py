"""Parcels at random: whatever comes, it is read or it is refused, and takes no more room than is allowed."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
import zlib
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from torch import Tensor
from visit_requests import request, set_at

from conftest import examples
from coterie.core.codec import TYPES
from coterie.network.messages import TO_CLIENT
from coterie.network.wire import EncodedTensor, Payload, PayloadLimits, WireError, decode, encode

SMALL = PayloadLimits(largest=1 << 20, arrays=50, outline=1 << 16)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**13), 10**13)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["Fit", "All", "Own", "loss", "nan", "../..", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tensor", "same", "is", "has", "number", "map", "float", "mu"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def places_in(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in an outline."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in places_in(value, (*path, key)))]


VALID = encode(request())
PLACES = [place for place in places_in(json.loads(VALID.outline)) if place]


def survives(payload: Payload) -> None:
    """Nothing but a `WireError` is raised, and little room is taken by Python and by torch."""
    taken: list[int] = []
    empty = torch.empty

    def counted(*shape: Any, **more: Any) -> Tensor:
        found = empty(*shape, **more)
        taken.append(found.nbytes)
        return found

    tracemalloc.start()
    with patch("coterie.network.wire.torch.empty", counted):
        try:
            decode(payload, TO_CLIENT, SMALL)
        except WireError as error:
            said = str(error)
            if "\n" in said or not 0 < len(said) < 500:
                raise
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert sum(taken) <= SMALL.largest
    assert peak < 4 << 20


@examples(50, 400, st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=3))
def test_any_part_of_an_outline_may_be_anything(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    outline = json.loads(VALID.outline)
    for place, value in changes:
        try:
            set_at(*place, to=value)(outline)
        except (KeyError, IndexError, TypeError):  # what an earlier change has taken away
            continue
    survives(dataclasses.replace(VALID, outline=json.dumps(outline)))


@examples(50, 300, st.sampled_from(PLACES), st.booleans())
def test_any_part_of_an_outline_may_be_gone_or_twice(place: tuple[Any, ...], double: bool) -> None:
    outline = json.loads(VALID.outline)
    parent = outline
    for step in place[:-1]:
        parent = parent[step]
    if double and isinstance(parent, list):
        parent.append(parent[place[-1]])
    else:
        del parent[place[-1]]
    survives(dataclasses.replace(VALID, outline=json.dumps(outline)))


@examples(50, 300, st.integers(0, len(VALID.outline) - 1), st.characters(), st.sampled_from(["flip", "cut", "insert"]))
def test_any_letter_of_an_outline_may_be_another(at: int, message: str, how: str) -> None:
    rest = {"flip": message + VALID.outline[at + 1 :], "cut": "", "insert": message + VALID.outline[at:]}[how]
    survives(dataclasses.replace(VALID, outline=VALID.outline[:at] + rest))


@examples(
    50,
    300,
    st.integers(0, len(VALID.arrays) - 1),
    st.sampled_from([*TYPES, "complex64", "", "str"]),
    st.lists(st.integers(-2, 10**13) | st.integers(0, 5), max_size=4).map(tuple),
    st.binary(max_size=64),
    st.booleans(),
)
def test_any_array_may_be_any_other(at: int, dtype: str, shape: tuple[int, ...], data: bytes, compress: bool) -> None:
    arrays = list(VALID.arrays)
    arrays[at] = EncodedTensor(dtype, shape, zlib.compress(data) if compress else data)
    outline = VALID.outline.replace('"zlib":false', '"zlib":true') if compress else VALID.outline
    survives(Payload(outline, tuple(arrays)))


@examples(50, 300, st.integers(0, 10**6), st.integers(0, 255), st.booleans(), st.booleans())
def test_any_byte_may_be_another(at: int, byte: int, cut: bool, compress: bool) -> None:
    payload = encode(request(), compress)
    number = at % len(payload.arrays)
    data = bytearray(payload.arrays[number].data)
    place = at // len(payload.arrays) % len(data)
    data[place:] = b"" if cut else bytes([byte]) + data[place + 1 :]
    arrays = list(payload.arrays)
    arrays[number] = dataclasses.replace(arrays[number], data=bytes(data))
    survives(dataclasses.replace(payload, arrays=tuple(arrays)))
