"""Parcels as Flower's records and back: raw buffers, which Flower cuts into chunks and sends once if they are equal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from coterie.core.errors import CoterieError
from coterie.network.engine import NoReply, Outgoing
from coterie.network.flower.internals import (
    ConfirmMessageReceivedRequest,
    ErrorCode,
    HttpGrid,
    ObjectPullError,
    ObjectUnavailableError,
    PullAppMessagesRequest,
    RunNotRunningException,
    inflate_object_from_contents,
    iterate_object_tree,
    make_pull_object_fn_protobuf,
    runtime_client,
)
from coterie.network.wire import LIMITS, EncodedTensor, Payload, PayloadLimits, WireError

OUTLINE, ARRAYS = "outline", "arrays"
KIND = "coterie"  # how the bytes of an array are to be read: as they are
TYPE = "query.coterie"  # of every message


def to_records(payload: Payload) -> RecordDict:
    """A payload as the content of a message."""
    arrays = {str(i): Array(a.dtype, a.shape, KIND, a.data) for i, a in enumerate(payload.arrays)}
    return RecordDict({OUTLINE: ConfigRecord({"json": payload.outline}), ARRAYS: ArrayRecord(arrays)})


def from_records(content: RecordDict) -> Payload:
    """The payload in a message, if there is one; what it says is not looked at."""
    outline, arrays = content.get(OUTLINE), content.get(ARRAYS)
    if (
        set(content) != {OUTLINE, ARRAYS}
        or not isinstance(outline, ConfigRecord)
        or not isinstance(arrays, ArrayRecord)
    ):
        raise WireError("a message without a payload")
    text = outline.get("json")
    if set(outline) != {"json"} or not isinstance(text, str):
        raise WireError("a payload without an outline")
    if list(arrays) != [str(i) for i in range(len(arrays))] or any(a.stype != KIND for a in arrays.values()):
        raise WireError("a payload whose arrays are not as they should be")
    return Payload(text, tuple(EncodedTensor(a.dtype, tuple(a.shape), a.data) for a in arrays.values()))


CUT_OFF = "its answer was cut off on the way"
PARTS = 8  # of a message beside its arrays: itself, its records, the outline
PARTS_OF_AN_ARRAY = 2  # itself, and its last chunk
CHUNK = 1 << 20  # bytes: Flower's chunks have five times as many
OVERHEAD = 1 << 12  # bytes of a part beside what it carries


class LinkDownError(CoterieError):
    """The SuperLink does not answer, or has forgotten the run."""

    code = "network-link-down"


WHY = {  # Flower's reasons, shorter
    ErrorCode.MESSAGE_UNAVAILABLE: "no answer in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer was lost on the way",
    ErrorCode.NODE_UNAVAILABLE: "has not been heard of for a while",
}


@dataclass
class _Arriving:
    """An answer that was announced, and the parts of it that are there."""

    message: str
    missing: list[str]  # parts that have not been fetched, the last one next
    parts: dict[str, bytes] = field(default_factory=dict)
    size: int = 0  # bytes so far


@dataclass(frozen=True)
class _Expected:
    """An answer that is waited for: how large it may be, and until when it is of use."""

    limits: PayloadLimits
    until: float


class FlowerTransport:
    """Carries payloads over a Flower network.

    Flower announces an answer before its parts are uploaded, and would wait up to two hours for a part of a client that
    died meanwhile. Here whatever is there is fetched, and nothing is waited for.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        self._expected: dict[str, _Expected] = {}
        self._arriving: dict[str, _Arriving] = {}

    def connected(self) -> Mapping[int, str]:
        """See `Transport.connected`."""
        with _reaching():
            nodes = list(self._grid.get_nodes())
        return {node.node_id: node.public_key.decode(errors="replace") for node in nodes if node.status == "online"}

    def send(self, outgoing: Sequence[Outgoing], keep_for: float) -> list[str | None]:
        """See `Transport.send`."""
        messages = [
            Message(to_records(one.payload), dst_node_id=one.node, message_type=TYPE, ttl=keep_for) for one in outgoing
        ]
        with _reaching():
            message_ids = list(self._grid.push_messages(messages))
        # Flower gives an empty list where all of it was too large, and None or "" where a node is gone.
        found: list[str | None] = (
            [message_id or None for message_id in message_ids] if message_ids else [None] * len(outgoing)
        )
        until = time.monotonic() + keep_for
        self._expected |= {t: _Expected(m.answer, until) for t, m in zip(found, outgoing, strict=True) if t is not None}
        return found

    def collect(self, message_ids: Sequence[str], within: float) -> list[tuple[str, Payload | NoReply]]:
        """See `Transport.collect`."""
        until = time.monotonic() + within
        found: list[tuple[str, Payload | NoReply]] = []
        with _reaching():
            found += self._announced([message_id for message_id in message_ids if message_id not in self._arriving])
            for message_id in [message_id for message_id in message_ids if message_id in self._arriving]:
                what = self._fetched(message_id, until)
                if what is not None:
                    found.append((message_id, what))
                    del self._arriving[message_id]
            for message_id, _ in found:
                self._expected.pop(message_id, None)
            return found + self._given_up(message_ids)

    def _announced(self, message_ids: Sequence[str]) -> list[tuple[str, Payload | NoReply]]:
        """Note whose answers are on their way; returns those that will not come."""
        if not message_ids:
            return []
        lost: list[tuple[str, Payload | NoReply]] = []
        answer = runtime_client(self._grid).PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            message_id = message.metadata.reply_to_message_id
            parts = [part.object_id for part in iterate_object_tree(tree)]
            allowed = self._limits(message_id)
            if message_id not in message_ids:
                continue
            if len(parts) > PARTS + PARTS_OF_AN_ARRAY * allowed.arrays + allowed.largest // CHUNK:
                lost.append(
                    (message_id, NoReply(f"its answer has {len(parts)} parts, more than was asked for", malformed=True))
                )
                continue
            self._arriving[message_id] = _Arriving(message.metadata.message_id, parts[::-1])
        return lost

    def _fetched(self, message_id: str, until: float) -> Payload | NoReply | None:
        """The answer, if all its parts are there; None where one is not there yet."""
        answer, allowed = self._arriving[message_id], self._limits(message_id)
        largest = allowed.largest + allowed.outline + OVERHEAD * len(answer.missing + list(answer.parts))
        pull = make_pull_object_fn_protobuf(
            runtime_client(self._grid).PullObject, self._grid.node, self._grid.run.run_id
        )
        while answer.missing and time.monotonic() < until:
            part = answer.missing[-1]
            try:
                answer.parts[part] = pull(part)
            except ObjectUnavailableError:
                return None
            except ObjectPullError:
                return NoReply("its answer was lost on the way")
            answer.missing.pop()
            answer.size += len(answer.parts[part])
            if answer.size > largest:
                return NoReply(
                    f"its answer has more than the {allowed.largest} bytes that were asked for", malformed=True
                )
        if answer.missing:
            return None
        self._confirm(answer.message)
        return _message(answer.message, answer.parts)

    def _limits(self, message_id: str) -> PayloadLimits:
        return self._expected[message_id].limits if message_id in self._expected else LIMITS

    def _given_up(self, message_ids: Sequence[str]) -> list[tuple[str, Payload | NoReply]]:
        """Answers that came in part only until they were of no use to anybody; returns those of `message_ids`."""
        now = time.monotonic()
        over = [message_id for message_id, expected in self._expected.items() if expected.until < now]
        cut_off = [message_id for message_id in over if message_id in self._arriving]
        for message_id in over:
            del self._expected[message_id]
        for message_id in cut_off:
            self._confirm(self._arriving.pop(message_id).message)
        return [(message_id, NoReply(CUT_OFF)) for message_id in cut_off if message_id in message_ids]

    def _confirm(self, message: str) -> None:
        """The SuperLink may throw it away."""
        node, run = self._grid.node, self._grid.run.run_id
        request = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=message)
        runtime_client(self._grid).ConfirmMessageReceived(request)


def _message(name: str, parts: dict[str, bytes]) -> Payload | NoReply:
    """A message put together; its parts are a stranger's."""
    try:
        message = inflate_object_from_contents(name, parts)
    except Exception as error:
        return NoReply(
            f"its answer cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:200]})", True
        )
    return _payload(message) if isinstance(message, Message) else NoReply("its answer is not a message", malformed=True)


def _payload(message: Message) -> Payload | NoReply:
    if message.has_error():
        known = WHY.get(message.error.code)
        return NoReply(known or f"Flower says: {' '.join((message.error.reason or '').split())[:200]}")
    try:
        return from_records(message.content)
    except WireError as error:
        return NoReply(str(error), malformed=True)


@contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, RunNotRunningException) as error:
        raise LinkDownError(f"the SuperLink does not answer ({type(error).__name__}: {error})") from None
