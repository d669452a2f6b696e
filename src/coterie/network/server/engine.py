"""The network as an engine: a request to every client of a visit, and the replies that arrive in time.

Only tasks and answers are sent. A client that is away, late or sends an invalid reply is missing, with the reason; the
round goes on without it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.client.memory import Memory
from coterie.core.errors import CoterieError
from coterie.core.naming import client_name
from coterie.core.tasks import Task
from coterie.core.termination import Interruption
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Traffic, Visit
from coterie.network.protocol.messages import (
    PROTOCOL,
    ClientInfo,
    FrozenWanted,
    Hello,
    ModelSpec,
    Refusal,
    VisitReply,
    VisitRequest,
    read_as_server,
)
from coterie.network.protocol.per_client import answer_limits, check_answers, for_client
from coterie.network.protocol.wire import Limits, Payload, WireError, encode
from coterie.network.security.audit import AuditEntry, no_audit
from coterie.network.server.announced import check_size
from coterie.network.server.bans import Bans, UnableError
from coterie.network.server.client_registry import ClientRegistry
from coterie.network.server.config import Network
from coterie.network.transport import NoReply, Outgoing, Transport

POLL = (0.2, 1.0)  # seconds between two checks for replies: at first, and at most
CONNECTION_CHECK = 5.0  # seconds between two checks of who is connected, while waiting for replies
INTRODUCTION = 120.0  # seconds that a new node has at least to introduce itself
GREETING = 10.0  # seconds to collect the replies of new nodes, between two rounds
AT_ONCE = 16  # requests sent together
ABOUT = Limits(largest=1 << 16, arrays=0, outline=1 << 16)  # of the answer to a Hello
MOST = 3  # times that a client is sent what is frozen: a disk may be lost, but it is most of a large network
VERSION = "version"  # in the server's memory of a client: the last known version of its state


@dataclass
class _PendingNodes:
    """Nodes that are not clients yet."""

    asked: dict[str, int] = field(default_factory=dict)  # nodes that were sent a Hello, by message id
    first: dict[int, ClientInfo] = field(default_factory=dict)  # nodes that wait until enough are connected to start
    refused: set[int] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class _Asked:
    """A client whose reply is awaited, and the tasks it was sent; frozen: with what is frozen of the network."""

    client: int
    tasks: tuple[Task | None, ...]
    frozen: bool = False


class NetworkEngine:
    """Visits clients over a network."""

    def __init__(
        self,
        transport: Transport,
        registry: ClientRegistry,
        network: Network,
        *,
        keys: Callable[[], dict[str, str]] | None = None,
        keep_rounds: int = 1,
        say: Callable[[str], None] = lambda _: None,
        note: Callable[[AuditEntry], None] = no_audit,
    ) -> None:
        """keys: the names of the clients by their public keys; None if keys are not used.

        keep_rounds: how many rounds the server may go back; clients keep their states since then. note: the audit log.
        """
        self.memory, self.traffic, self.interruption = Memory(), Traffic(), Interruption()
        self.network: ModelSpec | None = None  # the model that clients train; set before the first visit
        self.frozen: Callable[[], Tensor] | None = None  # the bytes of what is frozen of it, for clients that need them
        self.registry, self._transport, self._settings, self._keys = registry, transport, network, keys
        self._keep_rounds, self._say, self._note = keep_rounds, say, note
        self._pending, self._frozen_sent = _PendingNodes(), Counter[int]()
        self._bans = Bans(registry, network.refusals, say, note)

    # ------------------------------------------------------------------------------------------ who is there

    def wait(self) -> None:
        """Before a round: wait until enough clients are connected, and register new ones."""
        began, told = time.monotonic(), -1
        while True:
            self.interruption.heed()
            self._greet()
            many = len(self.registry.here) or len(self._pending.first)
            if many >= self._settings.clients and self.registry.shape is not None:
                return
            if many != told:
                told = many
                self._say(f"waiting for clients: {many} of {self._settings.clients} connected")
            if self._settings.patience and time.monotonic() - began > self._settings.patience:
                raise CoterieError(
                    f"network.patience: after {self._settings.patience} s only {many} of "
                    f"{self._settings.clients} clients are there",
                    code="clients-absent",
                )
            time.sleep(POLL[1] / 2)

    def _greet(self) -> None:
        """Ask new nodes to introduce themselves, and register those that have; nobody is waited for."""
        present = self._transport.connected()
        self.registry.set_connected({node for node, key in present.items() if self._keyed(node, key)})
        pending = self._pending
        known = {*self.registry.here.values(), *pending.asked.values(), *pending.first, *pending.refused}
        fresh = [node for node in present if node not in known and self._admitted(node, present[node])]
        hello = encode(Hello(PROTOCOL, self.registry.run))
        message_ids = self._send(
            [Outgoing(node, hello, ABOUT) for node in fresh], max(self._settings.deadline, INTRODUCTION)
        )
        pending.asked |= {
            message_id: node for message_id, node in zip(message_ids, fresh, strict=True) if message_id is not None
        }
        infos: dict[int, ClientInfo] = {}
        for message_id, what in self._transport.collect(list(pending.asked), GREETING) if pending.asked else ():
            node = pending.asked.pop(message_id)
            if isinstance(what, NoReply):
                continue  # it will be asked again
            try:
                info = self._opened(what, ABOUT)
                if not isinstance(info, ClientInfo):
                    raise WireError("it did not introduce itself", code="wire-unexpected")
                info = self._named(info, present.get(node, ""))
                self._check_info(info)
                infos[node] = info
            except WireError as error:
                self._refuse(node, str(error))
        pending.asked = {message_id: node for message_id, node in pending.asked.items() if node in present}
        pending.first = {
            node: info
            for node, info in (pending.first | infos).items()
            if node in present and (self._keys is None or present[node].strip() in self._keys())
        }
        pending.refused &= set(present)
        self._register_pending()

    def _register_pending(self) -> None:
        infos = self._pending.first
        # Before training, nodes wait until enough of them have data of the same kind.
        if self.registry.shape is None and not self.registry.agree_on_shape(
            infos, self._settings.clients, self._settings.outputs
        ):
            return
        self._pending.first, before = {}, dict(self.registry.here)
        for node, why in self.registry.register(infos).items():
            self._refuse(node, f"{infos[node].name}: {why}")
        for client, node in self.registry.here.items():
            if before.get(client) != node:
                self._say(f"{client_name(self.registry.names, client)} has joined")
                self._note(AuditEntry("joined", client=self.registry.names[client], node=node))

    def _keyed(self, node: int, key: str) -> bool:
        """Whether the node's key is still among those of the clients: it may have been revoked since it was let in."""
        if self._keys is None or key.strip() in self._keys():
            return True
        for client in [client for client, its in self.registry.here.items() if its == node]:
            del self.registry.here[client]
            why = "its key was revoked, replaced or has expired; it is asked no more"
            self._say(f"{client_name(self.registry.names, client)}: {why}")
            self._note(AuditEntry("refused", why, client=self.registry.names[client], node=node))
        return False

    def _admitted(self, node: int, key: str) -> bool:
        if self._keys is None:
            return True
        name = self._keys().get(key.strip())
        why = "its key is not among those of the clients" if name is None else self._bans.why(name)
        if why is not None:
            self._refuse(node, why if name is None else f"{name}: {why}")
        return why is None

    def _check_info(self, info: ClientInfo) -> None:
        """Refuse a client that is banned or claims more samples than allowed."""
        why, most = self._bans.why(info.name), self._settings.samples
        if why is None and max(info.train, info.test) > most:
            why = f"claims to have {max(info.train, info.test)} samples, network.samples allows {most}"
            self._bans.refuse(info.name, why)
        if why is not None:
            raise WireError(f"{info.name}: {why}", code="client-refused")

    def _named(self, info: ClientInfo, key: str) -> ClientInfo:
        """With keys, a client's name is the one of its key."""
        if self._keys is None:
            return info
        name = self._keys().get(key.strip())
        if name is None:
            raise WireError("its key was revoked", code="client-refused")
        return replace(info, name=name)

    def _refuse(self, node: int, why: str) -> None:
        if node not in self._pending.refused:
            self._say(f"refused: node {node}: {why}")
            self._note(AuditEntry("refused", why, node=node))
        self._pending.refused.add(node)

    # ------------------------------------------------------------------------------------------------ visits

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = ReplyBuilder(visit)
        missing: dict[int, Missing] = {}
        waiting = self._send_requests(visit, missing)
        asked, until = len(waiting), time.monotonic() + self._settings.deadline
        needed = max(1, round(self._settings.enough * asked))
        answered, pause, next_check = 0, POLL[0], time.monotonic() + CONNECTION_CHECK
        while waiting and answered < needed and time.monotonic() < until:
            arrived = self._transport.collect(list(waiting), until - time.monotonic())
            for message_id, what in arrived:
                who = waiting.pop(message_id)
                try:
                    again = self._accept(visit, who, what, answers)
                    waiting |= {} if again is None else self._request_all(visit, [again], missing)
                    answered += again is None
                except WireError as error:
                    missing[who.client] = Missing(who.client, str(error))
                    self._say(f"{client_name(self.registry.names, who.client)}: {error}")
                    if not isinstance(error, UnableError):
                        self._bans.refuse(self.registry.names[who.client], str(error))
            if time.monotonic() > next_check:
                next_check = time.monotonic() + CONNECTION_CHECK
                self._drop_disconnected(waiting, missing)
            pause = POLL[0] if arrived else min(pause * 1.5, POLL[1])
            if waiting and answered < needed:
                time.sleep(pause)
        late = "no longer needed" if answered >= needed else f"no answer within {self._settings.deadline:g} s"
        for who in waiting.values():
            missing[who.client] = Missing(who.client, late)
        return Outcome(answers.replies(), tuple(missing[c] for c in sorted(missing)))

    def rejected(self, client: int, why: str) -> None:
        """See `RejectionListener.rejected`."""
        self._say(f"{client_name(self.registry.names, client)}: {why}")
        self._bans.refuse(self.registry.names[client], why)

    def close(self) -> None:
        """The transport is closed by whoever opened it."""

    def _send_requests(self, visit: Visit, missing: dict[int, Missing]) -> dict[str, _Asked]:
        """Send a request to every connected client; returns the awaited clients by message id."""
        waiting: dict[str, _Asked] = {}
        there = [client for client in visit.ids.tolist() if client in self.registry.here]
        for client in set(visit.ids.tolist()) - set(there):
            missing[client] = Missing(client, "not connected")
        for first in range(0, len(there), AT_ONCE):
            some = [_Asked(client, for_client(visit, client)) for client in there[first : first + AT_ONCE]]
            waiting |= self._request_all(visit, some, missing)
        return waiting

    def _request_all(self, visit: Visit, some: Sequence[_Asked], missing: dict[int, Missing]) -> dict[str, _Asked]:
        messages = [
            Outgoing(node, encode(self._request(visit, who), self._settings.compress), self._limits(who))
            for who, node in ((who, self.registry.here[who.client]) for who in some)
        ]
        sent = list(zip(some, self._send(messages, self._settings.deadline), strict=True))
        lost = [who.client for who, message_id in sent if message_id is None]
        missing |= {client: Missing(client, "the request could not be sent") for client in lost}
        return {message_id: who for who, message_id in sent if message_id is not None}

    def _request(self, visit: Visit, who: _Asked) -> VisitRequest:
        version = self.memory.read(who.client).get(VERSION)
        return VisitRequest(
            protocol=PROTOCOL,
            run=self.registry.run,
            client=who.client,
            tasks=who.tasks,
            moment=visit.moment,
            keep=visit.keep,
            base=None if version is None else int(version),
            since=max(visit.moment.round - self._keep_rounds, 0),
            network=self._plan,
            frozen=self.frozen() if who.frozen and self.frozen is not None else None,
        )

    @property
    def _plan(self) -> ModelSpec:
        if self.network is None:
            raise CoterieError("the network must be set before clients are visited", code="model-not-set")
        return self.network

    def _accept(self, visit: Visit, who: _Asked, what: Payload | NoReply, answers: ReplyBuilder) -> _Asked | None:
        """Accept a valid reply; a `WireError` says why it is not valid. Returns what to ask instead, if it lacks it."""
        report, client = self._opened(what, self._limits(who)), who.client
        if isinstance(report, FrozenWanted):
            again = who.frozen or self._frozen_sent[client] >= MOST
            if again or (report.client, report.frozen) != (client, self._plan.frozen):
                raise WireError("asked for a frozen part that it has, or that is not of this network")
            self._frozen_sent[client] += 1
            self._say(f"{client_name(self.registry.names, client)}: is sent what is frozen of the network, once")
            return replace(who, frozen=True)
        if not isinstance(report, VisitReply):
            raise WireError("did not answer with a VisitReply")
        meant = (self.registry.run, client, visit.moment.round, visit.moment.task)
        if (report.run, report.client, report.round, report.task) != meant:
            raise WireError("answered a different request")
        check_answers(report.answers, who.tasks, self._plan.size, norm=self._settings.norm)
        check_size(self.registry, client, report, who.tasks)
        if report.afresh:
            self._say(f"{client_name(self.registry.names, client)} had lost its state and started with a new one")
        if visit.keep and report.wrote is not None:
            self.memory.write(client, {VERSION: torch.tensor(report.wrote)})
        answers.add(client, report.answers)
        return None

    def _limits(self, who: _Asked) -> Limits:
        """How large the reply of a client may be, given its tasks."""
        implied = answer_limits(who.tasks, self._plan.size)
        return replace(implied, largest=min(implied.largest, self._settings.largest))

    def _opened(self, what: Payload | NoReply, limits: Limits) -> object:
        if isinstance(what, NoReply):
            raise WireError(what.why) if what.malformed else UnableError(what.why)
        self.traffic.up += what.size
        self.traffic.messages += 1
        found = read_as_server(what, limits)
        if isinstance(found, Refusal):
            raise UnableError(f"failed: {found.reason}")
        return found

    def _send(self, messages: list[Outgoing], keep_for: float) -> list[str | None]:
        self.traffic.messages += len(messages)
        self.traffic.down += sum(message.payload.size for message in messages)
        return self._transport.send(messages, keep_for) if messages else []

    def _drop_disconnected(self, waiting: dict[str, _Asked], missing: dict[int, Missing]) -> None:
        """Do not wait for clients that are no longer connected."""
        present = {node for node, key in self._transport.connected().items() if self._keyed(node, key)}
        for message_id, who in list(waiting.items()):
            if self.registry.here.get(who.client) not in present:
                del waiting[message_id]
                missing[who.client] = Missing(who.client, "disconnected during the visit")
