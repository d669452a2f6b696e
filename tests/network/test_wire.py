"""Parcels: what goes in comes out, and nothing that is not a payload gets through, or does harm on its way."""

from __future__ import annotations

import dataclasses
import json
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor
from visit_requests import CENTERS, request, set_at

from conftest import raises
from coterie.core.codec import TYPES
from coterie.core.decoder import DEPTH, fits
from coterie.core.tasks import Local, Ref, Row
from coterie.network.messages import TO_CLIENT
from coterie.network.wire import EncodedTensor, Payload, PayloadLimits, decode, encode


@dataclass(frozen=True, eq=False)
class Box:
    """One tensor."""

    value: Tensor


@dataclass(frozen=True, eq=False)
class Pair:
    """Two of its kind."""

    left: Pair | None
    right: Pair | None


def opened(payload: Payload, **limits: int) -> Any:
    return decode(payload, TO_CLIENT, PayloadLimits(**limits))


def again(tree: object, compress: bool = False) -> Any:
    return decode(encode(tree, compress), (Box, *TO_CLIENT))


def edited(change: Callable[[Any], object], tree: object | None = None) -> Payload:
    """A payload whose outline was changed on the way."""
    payload = encode(request() if tree is None else tree)
    outline = json.loads(payload.outline)
    change(outline)
    return dataclasses.replace(payload, outline=json.dumps(outline))


def raw(dtype: str, shape: Any, data: bytes, compress: bool = False, place: Any = None) -> Payload:
    """A payload of one array, as somebody else might make it."""
    place = [0, 0, list(shape)] if place is None else place
    outline = {"tree": {"tensor": 0}, "tensors": [place], "zlib": compress}
    return Payload(json.dumps(outline), (EncodedTensor(dtype, shape, data),))


# ---------------------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("compress", [False, True])
def test_an_errand_comes_out_as_it_went_in(compress: bool) -> None:
    sent = request()
    came = again(sent, compress)
    assert repr(came) == repr(sent)
    assert came.tasks[0].start.theta.data_ptr() == came.tasks[0].anchor.theta.data_ptr()
    assert came.tasks[2].centers is came.tasks[4].models[0].centers


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("name", TYPES)
def test_tensors_of_every_type_and_shape(name: str, shape: tuple[int, ...], compress: bool) -> None:
    sent = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(4)).to(TYPES[name])
    came = again(Box(sent), compress).value
    assert (came.dtype, came.shape) == (sent.dtype, sent.shape)
    assert torch.equal(came, sent)


def test_bytes_are_little_endian_in_c_order() -> None:
    (packed,) = encode(torch.tensor([[1, 2], [3, 258]], dtype=torch.int32).T).arrays
    assert packed.data == bytes([1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, 1, 0, 0])
    assert (packed.dtype, packed.shape) == ("int32", (2, 2))


def test_a_big_endian_machine_turns_bytes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = raw("int16", (2,), bytes([1, 2, 3, 4]))
    assert decode(payload, ()).tolist() == [513, 1027]
    monkeypatch.setattr(sys, "byteorder", "big")  # which turns what is little here into what it would be there
    assert decode(payload, ()).tolist() == [258, 772]
    assert encode(torch.tensor([258, 772], dtype=torch.int16)).arrays[0].data == bytes([1, 2, 3, 4])


def test_what_is_not_contiguous_and_what_has_a_gradient() -> None:
    wide = torch.arange(20.0, requires_grad=True).reshape(4, 5)
    for view in (wide.T, wide[:, 1], wide[::2], torch.ones(1).expand(3)):
        assert torch.equal(again(Box(view)).value, view)


def test_a_view_is_named_by_its_place() -> None:
    payload = encode((CENTERS[2], CENTERS, CENTERS[1, 1:3], CENTERS.clone(), CENTERS[1:], CENTERS[:, 1], CENTERS[:0]))
    assert [packed.shape for packed in payload.arrays] == [(3, 4), (3, 4), (3,), (0, 4)]
    for came, sent in zip(decode(payload, ()), (CENTERS[2], CENTERS, CENTERS[1, 1:3]), strict=False):
        assert torch.equal(came, sent)
    overlapping = (CENTERS[:2], CENTERS[1:], CENTERS[1])
    payload = encode(overlapping)
    assert len(payload.arrays) == 2
    assert all(torch.equal(a, b) for a, b in zip(decode(payload, ()), overlapping, strict=True))


def test_what_comes_out_may_be_written_to() -> None:
    payload = encode(CENTERS)
    decode(payload, ()).zero_()
    assert torch.equal(decode(payload, ()), CENTERS)


def test_size_is_in_bytes() -> None:
    payload = encode(Box(CENTERS))
    assert payload.size == len(payload.outline) + 48
    assert encode(torch.zeros(10_000), compress=True).size < 1000


def test_numbers_and_texts() -> None:
    tree = (1, -(1 << 127), 0.1, float("inf"), float("-inf"), None, True, "ä\n\ud800", {"a": (1.5,)})
    assert decode(encode(tree), ()) == tree
    assert str(decode(encode(float("nan")), ())) == "nan"


# -------------------------------------------------------------------------------------------------- what is refused


def test_too_much_is_refused_before_anything_is_built() -> None:
    payload = encode(request())
    assert opened(payload, largest=payload.size) is not None
    for limits in ({"largest": payload.size - 1}, {"arrays": 1}, {"outline": len(payload.outline) - 1}):
        with raises("wire-malformed", match="at most"):
            opened(payload, **limits)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", (10**12,)),
        ("int8", (1 << 40, 1 << 40)),
        ("int8", (0, 1 << 62, 1 << 62)),
        ("float32", (-1,)),
        ("float32", (-1, -1)),
        ("float32", (1.0,)),
        ("float32", (True,)),
        ("float32", [1]),
        ("float32", (1,) * 40),
        ("float32", None),
        ("complex64", (1,)),
        ("object", (1,)),
        ("torch.float32", (1,)),
        (None, (1,)),
        ("float32", ()),
        ("float32", (2,)),
        ("int8", (4, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("compress", [False, True])
def test_an_array_that_cannot_be(dtype: Any, shape: Any, compress: bool) -> None:
    data = bytes(3)
    payload = raw(dtype, shape, zlib.compress(data) if compress else data, compress, place=[0, 0, [1]])
    with raises("wire-malformed", match="array 0"):
        decode(payload, ())


def test_nothing_of_a_huge_shape_is_too_much() -> None:
    assert decode(raw("int8", (0, 1 << 20), b""), ()).shape == (0, 1 << 20)
    with raises("wire-malformed", match="larger than"):
        decode(raw("int8", (0, 1 << 62, 1 << 62), b""), ())


@pytest.mark.parametrize("announced", [0, 1, 1000])
def test_a_bomb_is_not_inflated(announced: int) -> None:
    bomb = zlib.compress(bytes(200 << 20), 9)
    tracemalloc.start()
    with raises("wire-malformed", match="does not decompress"):
        decode(raw("uint8", (announced,), bomb, compress=True), ())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 20
    with raises("wire-malformed", match="larger than the 1000000 bytes"):
        decode(raw("uint8", (200 << 20,), bomb, compress=True), (), PayloadLimits(largest=10**6))
    with raises("wire-malformed", match="at most 1000000 bytes, this one has 1600000"):
        decode(raw("int64", (200_000,), bomb, compress=True), (), PayloadLimits(largest=10**6))


def test_an_array_of_which_only_a_part_is_named_is_not_even_inflated() -> None:
    bomb = zlib.compress(bytes(200 << 20), 9)
    tracemalloc.start()
    for place in ([0, 0, [1]], [0, 0, [0]], [0, 1, [(200 << 20) - 1]]):
        with raises("wire-malformed", match="does not name all of it"):
            decode(raw("uint8", (200 << 20,), bomb, compress=True, place=place), ())
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()


def test_a_tensor_that_nothing_uses_is_refused() -> None:
    payload = raw("uint8", (2,), bytes(2))
    with raises("wire-malformed", match="tensor 0 is sent and used nowhere"):
        decode(dataclasses.replace(payload, outline=payload.outline.replace('{"tensor": 0}', "1")), ())
    with raises("wire-malformed", match=r"array 0: uint8 .* has 2 bytes, 3 came"):
        decode(raw("uint8", (2,), bytes(3)), ())


def test_compressed_data_is_whole_and_nothing_else() -> None:
    good = zlib.compress(bytes(100), 1)
    assert decode(raw("uint8", (100,), good, compress=True), ()).sum() == 0
    for bad in (good[:-1], good[:-5], good + b"x", b"", b"nonsense", good + good, zlib.compress(bytes(99))):
        with raises("wire-malformed", match="array 0"):
            decode(raw("uint8", (100,), bad, compress=True), ())


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_and_inf_are_refused_by_the_array(dtype: torch.dtype, value: str) -> None:
    bad = torch.tensor([1, float(value), 3], dtype=dtype)
    with raises("wire-malformed", match=r"array 1 .*NaN or Inf"):
        decode(encode((CENTERS, bad)), ())
    large = torch.full((3,), torch.finfo(dtype).max, dtype=dtype)  # whose sum overflows, and that is all right
    assert torch.equal(decode(encode(large), ()), large)


def test_truth_values_are_0_or_1() -> None:
    assert decode(raw("bool", (2,), bytes([0, 1])), ()).tolist() == [False, True]
    with raises("wire-malformed", match="truth values"):
        decode(raw("bool", (2,), bytes([0, 2])), ())


@pytest.mark.parametrize(
    "place",
    [
        *([1, 0, [2]], [-1, 0, [2]], [0, 1, [2]], [0, -1, [2]], [0, 0, [3]], [0, 0, [-2]], [0, 0, [10**12]]),
        *([True, 0, [2]], [0, 0, [1, 1, 2.0]], [0, 0, 2], [0, 0], [], 0, [0, "0", [2]], [0, 1 << 70, [0]]),
        *([0, 0, [[2]]], [0, 0, [2], 0], {"0": 0}),
    ],
    ids=str,
)
def test_a_place_that_is_none(place: Any) -> None:
    with raises("wire-malformed", match=r"has no place|does not name all|other arrays than|a shape is|larger than"):
        decode(raw("int8", (2,), bytes(2), place=place), ())


BAD_OUTLINES = [
    *("", "{", "null", "[]", "3", '"x"', "{}", "\x00", "NaN", '{"tree": 1, "tensors": []}'),
    '{"tree": NaN, "tensors": [], "zlib": false}',
    '{"tree": 1e999, "tensors": [], "zlib": false}',
    '{"tree": 1, "tree": 1, "tensors": [], "zlib": false}',
    '{"tree": 1, "tensors": {}, "zlib": false}',
    '{"tree": 1, "tensors": [], "zlib": 0}',
    '{"tree": 1, "tensors": [], "zlib": false, "more": 1}',
    '{"tree": ' + "1" * 40 + ', "tensors": [], "zlib": false}',
    '{"tree": ' + "1" * 5000 + ', "tensors": [], "zlib": false}',
    '{"tree": ' + "[" * 100 + "]" * 100 + ', "tensors": [], "zlib": false}',
    '{"tree": ' + '{"map": {"a": ' * 100 + "1" + "}}" * 100 + ', "tensors": [], "zlib": false}',
    "[" * 200_000,
    '{"a":' * 200_000,
]


@pytest.mark.parametrize("text", BAD_OUTLINES, ids=lambda text: text[:50])
def test_an_outline_that_is_none(text: str) -> None:
    with raises("wire-malformed"):
        opened(Payload(text, ()))


def test_an_outline_may_be_so_deep_and_no_deeper() -> None:
    def nested(levels: int) -> Payload:
        return Payload('{"tree": ' + "[" * levels + "]" * levels + ', "tensors": [], "zlib": false}', ())

    decode(nested(DEPTH + 1), ())
    with raises("wire-malformed", match=f"at most {DEPTH} levels"):
        decode(nested(DEPTH + 2), ())


HAS = ("tree", "has")
FIT = (*HAS, "tasks", 0, "has")
MOMENT = {"is": "Moment", "number": 99, "has": {"seed": 0, "round": 0, "task": 0}}
EDITS: dict[str, tuple[Callable[[Any], object], str]] = {
    "another type": (set_at("tree", "is", to="Payload"), "'Payload' is not one of the types"),
    "a builtin": (set_at("tree", "is", to="__import__"), "is not one of the types"),
    "no type": (lambda o: o["tree"].pop("is"), "an outline cannot contain"),
    "more beside the type": (set_at("tree", "extra", to=1), "an outline cannot contain"),
    "an unknown field": (set_at(*HAS, "extra", to=1), "VisitRequest: unknown field 'extra'"),
    "a missing field": (lambda o: o["tree"]["has"].pop("keep"), "VisitRequest: missing field 'keep'"),
    "a missing field with a default": (lambda o: o["tree"]["has"]["tasks"][0]["has"].pop("mu"), "missing field 'mu'"),
    "a text for a tensor": (set_at(*FIT, "start", "has", "theta", to="x"), "Row.theta: expected Tensor"),
    "a tensor for a number": (set_at(*FIT, "start", "has", "row", to={"tensor": 0}), "Row.row: expected int"),
    "a number for a reference": (set_at(*FIT, "start", to=4), "Fit.start: expected All | Pick"),
    "a moment for a reference": (set_at(*FIT, "start", to=MOMENT), "Fit.start: expected All"),
    "true for a number": (set_at(*HAS, "client", to=True), "VisitRequest.client: expected int"),
    "a number for true": (set_at(*HAS, "keep", to=1), "VisitRequest.keep: expected bool"),
    "a fraction for a number": (set_at(*HAS, "client", to=1.0), "VisitRequest.client: expected int"),
    "none for a number": (set_at(*HAS, "client", to=None), "VisitRequest.client: expected int"),
    "true for a fraction": (set_at(*FIT, "mu", to=True), "Fit.mu: expected float | ByClient"),
    "another word": (set_at(*HAS, "tasks", 2, "has", "rule", to="best"), "Score.rule: expected Literal"),
    "a list for a task": (set_at(*HAS, "tasks", 0, to=[]), "VisitRequest.tasks: "),
    "one task without a list": (set_at(*HAS, "tasks", to=None), "VisitRequest.tasks: "),
    "a moment for a task": (set_at(*HAS, "tasks", 1, to=MOMENT), "VisitRequest.tasks: "),
    "a tensor that is not there": (set_at(*FIT, "start", "has", "theta", "tensor", to=99), "tensor 99 of"),
    "a tensor from behind": (set_at(*FIT, "start", "has", "theta", "tensor", to=-1), "tensor -1 of"),
    "the tensor true": (set_at(*FIT, "start", "has", "theta", "tensor", to=True), "an outline cannot contain"),
    "the same as nothing": (set_at(*FIT, "start", to={"same": 77}), "an outline cannot contain"),
    "the same as itself": (set_at(*FIT, "start", to={"same": 0}), "an outline cannot contain"),
    "the same as a list": (set_at(*FIT, "start", to={"same": []}), "an outline cannot contain"),
    "a number twice": (set_at(*HAS, "moment", "number", to=2), "was used before"),
    "a number that is none": (set_at(*HAS, "moment", "number", to="2"), "an outline cannot contain"),
    "another float": (set_at(*FIT, "mu", to={"float": "1e3"}), "an outline cannot contain"),
    "no learning rate": (set_at(*FIT, "local", "has", "lr", to=0.0), "Local.lr: must be greater than 0"),
    "a text for a learning rate": (set_at(*FIT, "local", "has", "lr", to="0.1"), "Local.lr: expected "),
    "a learning rate to be found": (set_at(*FIT, "local", "has", "lr", to="auto"), "its learning rate is auto"),
    "nan for a learning rate": (set_at(*FIT, "local", "has", "lr", to={"float": "nan"}), "Local.lr: "),
    "epochs and steps": (set_at(*FIT, "local", "has", "epochs", to=1), "give epochs or steps"),
    "a run that is a path": (set_at(*HAS, "run", to="../x"), "run: '../x' is not a name"),
    "a client below 0": (set_at(*HAS, "client", to=-1), "client, since: from 0"),
    "an array less": (lambda o: o["tensors"].pop(), ""),
    "arrays that nobody names": (set_at("tensors", to=[]), "array 0 (3, 4): the outline does not name"),
    "compressed, it says": (set_at("zlib", to=True), "array 0 cannot be decompressed"),
}


@pytest.mark.parametrize(("change", "message"), EDITS.values(), ids=EDITS)
def test_an_outline_that_was_tampered_with(change: Callable[[Any], object], message: str) -> None:
    with raises("wire-malformed") as caught:
        opened(edited(change))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_names_others_twice_is_checked_once() -> None:
    """Each level names the one below twice: to walk it as a tree would take 2 ** 60 steps."""
    node: Any = {"is": "Pair", "number": 0, "has": {"left": None, "right": None}}
    for number in range(1, DEPTH - 4):
        node = {"is": "Pair", "number": number, "has": {"left": node, "right": {"same": number - 1}}}
    outline = {"tree": node, "tensors": [], "zlib": False}
    found = decode(Payload(json.dumps(outline), ()), (Pair,))
    assert found.left is found.right


# ------------------------------------------------------------------------------------------------------------- types


def test_a_value_fits_its_type_to_the_letter() -> None:
    tensor, row = torch.ones(1), Row(torch.ones(1), 0)
    good: list[tuple[object, Any]] = [
        *(
            (1, int),
            (1.5, float),
            (1, float),
            (True, bool),
            ("a", str),
            (None, None),
            (None, int | None),
            (tensor, Tensor),
        ),
        *(((), tuple[int, ...]), ((1, 2), tuple[int, ...]), ((1, "a"), tuple[int, str]), ("a", Literal["a", "b"])),
        *((row, Row), (row, Ref), (row, Ref | None), ((row, None), tuple[Ref | None, ...])),
    ]
    bad: list[tuple[object, Any]] = [
        *((True, int), (True, float), (1, bool), (1.0, int), (b"a", str), (0, None), ("", int | None), (1, Tensor)),
        *(([], tuple[int, ...]), ((1, True), tuple[int, ...]), ((1,), tuple[int, str]), ("c", Literal["a", "b"])),
        *((True, Literal[1]), (Local(), Ref), (Row, Row), (tensor, Ref), ((row, 1), tuple[Ref | None, ...])),
    ]
    assert [pair for pair in good if not fits(*pair)] == []
    assert [pair for pair in bad if fits(*pair)] == []


def test_what_is_no_parcel_at_all() -> None:
    odd: list[Any] = [
        *(
            Payload(cast(Any, b"x"), ()),
            Payload("x", cast(Any, [])),
            Payload("x", cast(Any, (1,))),
            Payload("x", cast(Any, None)),
        ),
        *(raw("int8", (1,), cast(Any, "x")), raw("int8", (1,), cast(Any, None)), None, 3),
    ]
    for payload in odd:
        with raises("wire-malformed"):
            decode(payload, ())
