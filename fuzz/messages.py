"""Target: messages between server and clients."""

from __future__ import annotations

import json
from functools import cache

import torch
from target import Target

from coterie.client.contract import Moment
from coterie.core.tasks import All, Best, Estimated, Evaluate, Fit, Local, Mix, Own, Row, Score
from coterie.network.messages import (
    PROTOCOL,
    ClientInfo,
    Hello,
    ModelSpec,
    Refusal,
    VisitRequest,
    read_as_client,
    read_as_server,
)
from coterie.network.wire import EncodedTensor, Payload, PayloadLimits, WireError, encode

SMALL = PayloadLimits(largest=1 << 20, arrays=50, outline=1 << 16)


def _request() -> VisitRequest:
    centers = torch.arange(12.0).reshape(3, 4)
    tasks = (
        Fit(Row(centers[1], 1), Local(steps=3, batch="full"), anchor=All(centers[0]), mu=0.5, save="x"),
        None,
        Score(centers, "posterior", given=Best(centers, All(centers[1]), "accuracy"), prior=All(torch.ones(3) / 3)),
        Score(centers, "classes", class_shares=torch.ones(3, 2) / 2),
        Evaluate((Mix(centers, Estimated(centers, "votes")), Own("pi", Row(centers[2], 2)))),
    )
    plan = ModelSpec("mlp", '{"hidden": [4]}', (2, 2), 2, "cross_entropy", 4)
    return VisitRequest(PROTOCOL, "run-1", 3, tasks, Moment(1 << 90, 2, 3), True, None, 0, plan)


def packed(payload: Payload) -> bytes:
    """A message as one line of JSON about it, and the bytes of its arrays."""
    about = [[a.dtype, list(a.shape), len(a.data)] for a in payload.arrays]
    head = json.dumps({"outline": payload.outline, "arrays": about}).encode()
    return head + b"\n" + b"".join(a.data for a in payload.arrays)


def unpacked(data: bytes) -> Payload | None:
    """The message of such bytes; None where they are none. Types and sizes are as they come."""
    head, _, rest = data.partition(b"\n")
    try:
        about = json.loads(head)
        outline, rows, arrays, at = about["outline"], about["arrays"], [], 0
        for dtype, shape, size in rows:
            arrays.append(EncodedTensor(dtype, tuple(shape), rest[at : at + int(size)]))
            at += int(size)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return Payload(outline, tuple(arrays))


@cache
def _messages() -> tuple[bytes, ...]:
    valid = [encode(_request()), encode(_request(), True), encode(Hello(PROTOCOL, "run1")), encode(Refusal("no"))]
    info = ClientInfo(PROTOCOL, "anna", 10, 5, (2, 2), "classification", 2, "1.0")
    valid.append(encode(info))
    return tuple(map(packed, valid))


def read_message(data: bytes) -> object:
    """As a client and as a server reads it: one of them, or refused."""
    payload = unpacked(data)
    if payload is None:
        return None
    for read in (read_as_client, read_as_server):
        try:
            read(payload, SMALL)
        except WireError as error:
            said = str(error)
            if "\n" in said or not 0 < len(said) < 1000:
                raise AssertionError(f"not one short line: {said[:200]!r}") from error
    return None


WORDS = (b"tensor", b"same", b"number", b"has", b"is", b"Fit", b"All", b"float32", b"int64", b"zlib", b"tree")
TARGETS = (Target("wire", lambda: list(_messages()), read_message, WORDS),)
