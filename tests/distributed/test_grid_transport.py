"""What the server fetches from a SuperLink, without one: answers in parts, parts that never come, parts nobody asked
for. A scripted clock and a scripted SuperLink, so nothing is waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.task_identity import TaskIdentity

from coterie.network.engine import NoReply, Outgoing
from coterie.network.flower import transport
from coterie.network.flower.transport import CUT_OFF, TYPE, FlowerTransport, to_records
from coterie.network.wire import EncodedTensor, Payload, PayloadLimits

pytestmark = pytest.mark.distributed

ANSWER = Payload('{"tree": 1}', (EncodedTensor("uint8", (3,), b"abc"), EncodedTensor("uint8", (2,), b"de")))
SMALL = PayloadLimits(largest=1000, arrays=2, outline=100)


@dataclass
class SuperLink:
    """A SuperLink: what was sent, the parts that were uploaded, and what it was asked for."""

    node: Any = field(default_factory=lambda: Node(node_id=1))
    run: Any = field(default_factory=lambda: SimpleNamespace(run_id=7))
    sent: list[Message] = field(default_factory=list)
    announced: list[tuple[Any, Any]] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)
    known: dict[str, bytes] = field(default_factory=dict)  # the same, also those that are still on their way
    pulls: int = 0
    confirmed: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of a pull, on the clock
    clock: Any = None

    @property
    def _runtime_client(self) -> SuperLink:
        return self

    def push_messages(self, messages: list[Message]) -> list[str]:
        with no_object_id_recompute():
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
        self.sent += messages
        return [message.metadata.message_id for message in messages]

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        wanted = [(m, t) for m, t in self.announced if m.metadata.reply_to_message_id in request.message_ids]
        self.announced = [pair for pair in self.announced if pair not in wanted]
        return PullAppMessagesResponse(
            messages_list=[m for m, _ in wanted], message_object_trees=[tree for _, tree in wanted]
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        self.pulls += 1
        self.clock.now += self.seconds
        content = self.parts.get(request.object_id)
        return PullObjectResponse(
            object_found=request.object_id in self.known,
            object_available=content is not None,
            object_content=content or b"",
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)

    def upload(self, to: int, payload: Payload, so_many: int | None = None) -> None:
        """Announce an answer to the message with this number, and upload so many of its parts."""
        reply = Message(to_records(payload), reply_to=self.sent[to])
        reply.metadata.__dict__["_message_id"] = reply.object_id
        parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        self.known |= parts
        self.parts |= dict(list(parts.items())[:so_many])
        with no_object_id_recompute():
            self.announced.append((message_to_proto(remove_content_from_message(reply)), get_object_tree(reply)))


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    for name, value in (("_task_id", 1), ("_run_id", 7), ("_node_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    clock: Any = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(transport, "time", clock)
    return SuperLink(clock=clock)


def sent(link: SuperLink, *nodes: int, limits: PayloadLimits = SMALL) -> tuple[FlowerTransport, list[str]]:
    transport = FlowerTransport(link)
    message_ids = transport.send([Outgoing(node, Payload(f'{{"to": {node}}}', ()), limits) for node in nodes], 30.0)
    assert all(message.metadata.message_type == TYPE for message in link.sent)
    return transport, [str(message_id) for message_id in message_ids]


def content(found: object) -> tuple[str, tuple[bytes, ...]]:
    assert isinstance(found, Payload), found
    return found.outline, tuple(packed.data for packed in found.arrays)


def test_an_answer_is_given_once_when_all_of_it_is_there(link: SuperLink) -> None:
    transport, (one, two) = sent(link, 11, 12)
    link.upload(0, ANSWER)
    ((message_id, what),) = transport.collect([one, two], 5)
    assert (message_id, content(what)) == (one, (ANSWER.outline, (b"abc", b"de")))
    assert len(link.confirmed) == 1
    assert transport.collect([two], 5) == []


@pytest.mark.parametrize("so_many", [0, 1, 4])
def test_a_client_that_dies_in_mid_upload_holds_nobody_up(link: SuperLink, so_many: int) -> None:
    transport, (dead, alive) = sent(link, 11, 12)
    link.upload(0, ANSWER, so_many)
    link.upload(1, Payload("{}", ()))
    assert [message_id for message_id, _ in transport.collect([dead, alive], 5)] == [alive]
    before = link.pulls
    assert transport.collect([dead], 5) == []
    assert link.pulls == before + 1, "one look at the part that is missing"
    link.clock.now = 31  # nobody waits for it any more
    assert transport.collect([dead], 5) == [(dead, NoReply(CUT_OFF))]
    assert len(link.confirmed) == 2, "the SuperLink may forget it"
    assert transport.collect([dead], 5) == []


def test_what_comes_late_comes_whole(link: SuperLink) -> None:
    transport, (one,) = sent(link, 11)
    link.upload(0, ANSWER, 3)
    assert transport.collect([one], 5) == []
    link.parts |= link.known
    ((_, what),) = transport.collect([one], 5)
    assert content(what)[1] == (b"abc", b"de")


def test_a_slow_superlink_is_left_when_the_time_is_over(link: SuperLink) -> None:
    transport, (one,) = sent(link, 11)
    link.upload(0, ANSWER)
    link.seconds = 2.0
    assert transport.collect([one], 5) == []
    assert link.clock.now == 6
    link.seconds = 0
    ((_, what),) = transport.collect([one], 5)
    assert content(what)[1] == (b"abc", b"de")


def test_an_abandoned_ticket_is_not_told_to_another_collector(link: SuperLink) -> None:
    transport, (old, new) = sent(link, 11, 12)
    link.upload(0, ANSWER, 2)
    transport.collect([old, new], 5)
    link.clock.now = 31
    assert transport.collect([new], 5) == []


def test_more_than_was_asked_for_is_not_even_fetched(link: SuperLink) -> None:
    transport, (large, many) = sent(link, 11, 12)
    size = 12 << 20
    link.upload(0, Payload("{}", (EncodedTensor("uint8", (size,), bytes(range(256)) * (size // 256)),)))
    link.upload(1, Payload("{}", tuple(EncodedTensor("uint8", (1,), bytes([i])) for i in range(200))))
    found = dict(transport.collect([large, many], 5))
    assert all(isinstance(what, NoReply) and what.malformed for what in found.values())
    assert "more than the 1000 bytes" in found[large].why  # type: ignore[union-attr]
    assert "parts, more than was asked for" in found[many].why  # type: ignore[union-attr]


def test_parts_that_are_none_are_a_lost_answer(link: SuperLink) -> None:
    transport, (one,) = sent(link, 11)
    link.upload(0, ANSWER)
    for name in link.parts:
        link.parts[name] = link.parts[name].replace(b"RecordDict", b"NoSuchClass")
    ((_, what),) = transport.collect([one], 5)
    assert isinstance(what, NoReply)
    assert "cannot be read" in what.why
    other, (two,) = sent(link, 12)
    link.upload(1, Payload("{1}", ()))
    link.known.clear()
    ((_, what),) = other.collect([two], 5)
    assert what == NoReply("its answer was lost on the way")
