"""What the engine needs of a network: connected nodes, messages to them, and their replies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from coterie.client.contract import DescribeAnswer, EvaluateAnswer, FitAnswer, Memory, ScoreAnswer
from coterie.core.errors import CoterieError
from coterie.core.processes import Interruption
from coterie.core.tasks import Evaluate, Fitted, Task
from coterie.core.text import client_name
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Traffic, Visit
from coterie.layers.robust import isolated
from coterie.network.audit import AuditEntry, no_audit
from coterie.network.config import QUARANTINE, Network
from coterie.network.messages import (
    PROTOCOL,
    ClientInfo,
    FrozenWanted,
    Hello,
    ModelSpec,
    Refusal,
    VisitReply,
    VisitRequest,
    answer_limits,
    check_answers,
    for_client,
    read_as_server,
)
from coterie.network.registry import ClientRegistry, describe_kinds
from coterie.network.wire import LIMITS, Payload, PayloadLimits, WireError, encode


@dataclass(frozen=True)
class Outgoing:
    """A message to a node, and the limits of its reply."""

    node: int
    payload: Payload
    answer: PayloadLimits = LIMITS


@dataclass(frozen=True)
class NoReply:
    """Why there is no reply. malformed: something arrived, but it cannot be a reply."""

    why: str
    malformed: bool = False


class Transport(Protocol):
    """Sends messages to nodes and collects their replies."""

    def connected(self) -> Mapping[int, str]:
        """The connected nodes, and the public key of each."""

    def send(self, messages: Sequence[Outgoing], keep_for: float) -> list[str | None]:
        """Send messages that are delivered within so many seconds. Returns their ids, None for one not sent."""

    def collect(self, message_ids: Sequence[str], within: float) -> list[tuple[str, Payload | NoReply]]:
        """The replies to these messages that have arrived in full, each once.

        Takes about `within` seconds at most, even if a client stops in the middle of its reply.
        """


class Exchange:
    """Sends messages and reads replies; counts the bytes of both."""

    def __init__(self, transport: Transport) -> None:
        self.transport, self.traffic = transport, Traffic()

    def send(self, messages: Sequence[Outgoing], keep_for: float) -> list[str | None]:
        """See `Transport.send`."""
        self.traffic.messages += len(messages)
        self.traffic.down += sum(message.payload.size for message in messages)
        return self.transport.send(messages, keep_for) if messages else []

    def opened(self, what: Payload | NoReply, limits: PayloadLimits) -> ClientInfo | VisitReply | FrozenWanted:
        """A reply, decoded and checked; a `WireError` says why there is none."""
        if isinstance(what, NoReply):
            raise WireError(what.why) if what.malformed else UnableError(what.why)
        self.traffic.up += what.size
        self.traffic.messages += 1
        found = read_as_server(what, limits)
        if isinstance(found, Refusal):
            raise UnableError(f"failed: {found.reason}")
        return found


class UnableError(WireError):
    """A client could not answer, or has other data by now, and says so: nothing is held against it."""

    code = "client-unable"


class Bans:
    """Counts refusals by name. A ban lasts for the run: it is written to members.json, and lifted by editing that."""

    def __init__(
        self,
        registry: ClientRegistry,
        limit: int,
        say: Callable[[str], None],
        note: Callable[[AuditEntry], None] = no_audit,
    ) -> None:
        """limit: the refusals after which a client is banned; 0 is never. note: where they are written down."""
        self._registry, self._limit, self._say, self._note = registry, limit, say, note
        self._refused: Counter[str] = Counter()

    def refuse(self, name: str, why: str) -> None:
        """A reply of this client was not accepted."""
        self._refused[name] += 1
        self._note(AuditEntry("reply-refused", why, client=name))
        if not self._limit or self._refused[name] < self._limit or name in self._registry.banned:
            return
        self._registry.ban(name, why)
        self._note(AuditEntry("banned", why, client=name, times=self._refused[name]))
        self._say(f"banned: {name}: refused {self._refused[name]} times (network.refusals), the last time: {why}")

    def why(self, name: str) -> str | None:
        """Why this client is banned; None where it is not."""
        found = self._registry.banned.get(name)
        return None if found is None else f"is banned (members.json): {found}"


def check_size(registry: ClientRegistry, client: int, report: VisitReply, tasks: Sequence[Task | None]) -> None:
    """A client's weight is the sample count it announced. If its data changed, it must introduce itself again."""
    said, tested = registry.known[client].train, registry.known[client].test
    for task, answer in zip(tasks, report.answers, strict=True):
        halves = (said // 2, said - said // 2) if isinstance(task, Evaluate) and task.half is not None else ()
        if isinstance(answer, EvaluateAnswer) and answer.n not in (0, said, tested, *halves):
            raise WireError(
                f"was evaluated on {answer.n} samples, but announced {said} for training and {tested} for tests",
                code="wire-answer-invalid",
            )
        if isinstance(answer, FitAnswer | ScoreAnswer | DescribeAnswer) and answer.n != said:
            registry.here.pop(client, None)
            raise UnableError(f"trained on {answer.n} samples, but announced {said}")


INTRODUCTION = 120.0  # seconds that a new node has at least to introduce itself
GREETING = 10.0  # seconds to collect the replies of new nodes, between two rounds
ABOUT = PayloadLimits(largest=1 << 16, arrays=0, outline=1 << 16)  # of the answer to a Hello


@dataclass
class _PendingNodes:
    """Nodes that are not clients yet."""

    asked: dict[str, int] = field(default_factory=dict)  # nodes whose reply is awaited, by message id
    first: dict[int, ClientInfo] = field(default_factory=dict)  # nodes that wait until enough are connected to start
    refused: set[int] = field(default_factory=set)


class Admission:
    """Registers the clients that may take part, and strikes off those whose key is gone."""

    def __init__(
        self,
        exchange: Exchange,
        registry: ClientRegistry,
        network: Network,
        bans: Bans,
        keys: Callable[[], dict[str, str]] | None = None,
        say: Callable[[str], None] = lambda _: None,
        note: Callable[[AuditEntry], None] = no_audit,
    ) -> None:
        """keys: the names of the clients by their public keys; None if keys are not used. note: the audit log."""
        self._exchange, self._registry, self._settings, self._bans = exchange, registry, network, bans
        self._keys, self._say, self._note = keys, say, note
        self._pending = _PendingNodes()

    def enough(self) -> bool:
        """Whether a round can begin."""
        return len(self._registry.here) >= self._settings.clients and self._registry.shape is not None

    def progress(self) -> tuple[int, str]:
        """How many clients are there, and how their data differs, if that is what keeps them waiting."""
        first = self._pending.first.values()
        differences = describe_kinds(first) if self._registry.shape is None else ""
        differ = f", but their data is not of one kind: {differences}" if differences else ""
        return len(self._registry.here) or len(first), differ

    def greet(self) -> None:
        """Ask new nodes to introduce themselves, and register those that have; nobody is waited for."""
        present = self._exchange.transport.connected()
        self._registry.set_connected(self.keyed(present))
        pending = self._pending
        known = {*self._registry.here.values(), *pending.asked.values(), *pending.first, *pending.refused}
        fresh = [node for node in present if node not in known and self._admitted(node, present[node])]
        self._send(fresh, encode(Hello(PROTOCOL, self._registry.run)))
        infos = self._introduced(present)
        pending.asked = {message_id: node for message_id, node in pending.asked.items() if node in present}
        pending.first = {
            node: info
            for node, info in (pending.first | infos).items()
            if node in present and (self._keys is None or present[node].strip() in self._keys())
        }
        pending.refused &= set(present)
        self._register_pending()

    def keyed(self, present: Mapping[int, str]) -> set[int]:
        """The nodes whose key is among those of the clients: it may have been revoked since they were let in."""
        return {node for node, key in present.items() if self._keyed(node, key)}

    def _introduced(self, present: Mapping[int, str]) -> dict[int, ClientInfo]:
        """What nodes that may take part have said of themselves since the last look."""
        infos: dict[int, ClientInfo] = {}
        asked = self._pending.asked
        for message_id, what in self._exchange.transport.collect(list(asked), GREETING) if asked else ():
            node = asked.pop(message_id)
            if isinstance(what, NoReply) or node in self._pending.refused:
                continue  # it will be asked again; or it has only confirmed that it was told
            try:
                info = self._exchange.opened(what, ABOUT)
                if not isinstance(info, ClientInfo):
                    raise WireError("it did not introduce itself", code="wire-unexpected")
                infos[node] = self._named(info, present.get(node, ""))
                self._check_info(infos[node])
            except WireError as error:
                found = infos.pop(node, None)
                name = self._name(present.get(node, "")) if found is None else found.name
                self._refuse(node, str(error), name or "")
        return infos

    def _register_pending(self) -> None:
        infos = self._pending.first
        # Before training, nodes wait until enough of them have data of the same kind.
        if self._registry.shape is None and not self._registry.agree_on_shape(
            infos, self._settings.clients, self._settings.outputs
        ):
            return
        self._pending.first, before = {}, dict(self._registry.here)
        for node, why in self._registry.register(infos).items():
            self._refuse(node, why, infos[node].name)
        for client, node in self._registry.here.items():
            if before.get(client) != node:
                self._say(f"{client_name(self._registry.names, client)} has joined")
                self._note(AuditEntry("joined", client=self._registry.names[client], node=node))

    def _keyed(self, node: int, key: str) -> bool:
        if self._keys is None or key.strip() in self._keys():
            return True
        for client in [client for client, its in self._registry.here.items() if its == node]:
            del self._registry.here[client]
            why = "its key was revoked, replaced or has expired; it is asked no more"
            self._say(f"{client_name(self._registry.names, client)}: {why}")
            self._note(AuditEntry("refused", why, client=self._registry.names[client], node=node))
        return False

    def _admitted(self, node: int, key: str) -> bool:
        if self._keys is None:
            return True
        name = self._name(key)
        why = "its key is not among those of the clients" if name is None else self._bans.why(name)
        if why is not None:
            self._refuse(node, why, name or "")
        return why is None

    def _check_info(self, info: ClientInfo) -> None:
        """Refuse a client that is banned or claims more samples than allowed."""
        why, most = self._bans.why(info.name), self._settings.samples
        if why is None and max(info.train, info.test) > most:
            why = f"claims to have {max(info.train, info.test)} samples, network.samples allows {most}"
            self._bans.refuse(info.name, why)
        if why is not None:
            raise WireError(why, code="client-refused")

    def _name(self, key: str) -> str | None:
        """Whose key it is; None where it is nobody's, and where keys are not used."""
        return None if self._keys is None else self._keys().get(key.strip())

    def _named(self, info: ClientInfo, key: str) -> ClientInfo:
        """With keys, a client's name is the one of its key."""
        if self._keys is None:
            return info
        name = self._name(key)
        if name is None:
            raise WireError("its key was revoked", code="client-refused")
        return replace(info, name=name)

    def _refuse(self, node: int, why: str, name: str) -> None:
        """Say so, once, also to the client itself; to a node without a registered key nothing is sent."""
        if node in self._pending.refused:
            return
        self._pending.refused.add(node)
        self._say(f"refused: node {node}: {name}: {why}" if name else f"refused: node {node}: {why}")
        self._note(AuditEntry("refused", why, client=name, node=node))
        if self._keys is None or name:
            self._send([node], encode(Refusal.of(WireError(why))))

    def _send(self, nodes: Sequence[int], payload: Payload) -> None:
        sent = self._exchange.send(
            [Outgoing(node, payload, ABOUT) for node in nodes], max(self._settings.deadline, INTRODUCTION)
        )
        self._pending.asked |= {
            message_id: node for message_id, node in zip(sent, nodes, strict=True) if message_id is not None
        }


POLL = (0.2, 1.0)  # seconds between two checks for replies: at first, and at most
CONNECTION_CHECK = 5.0  # seconds between two checks of who is connected, while waiting for replies
AT_ONCE = 16  # requests sent together
MOST = 3  # times that a client is sent what is frozen: a disk may be lost, but it is most of a large network
VERSION = "version"  # in the server's memory of a client: the last known version of its state


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
        self._exchange = Exchange(transport)
        self.memory, self.traffic, self.interruption = Memory(), self._exchange.traffic, Interruption()
        self.network: ModelSpec | None = None  # the model that clients train; set before the first visit
        self.frozen: Callable[[], Tensor] | None = None  # the bytes of what is frozen of it, for clients that need them
        self.registry, self._settings, self._keep_rounds, self._say = registry, network, keep_rounds, say
        self.reports_isolated = False  # whether updates that are far from all others are reported
        self._isolated: set[str] = set()  # who was reported
        self._note = note
        self._frozen_sent, self._bans = Counter[int](), Bans(registry, network.refusals, say, note)
        self._admission = Admission(self._exchange, registry, network, self._bans, keys, say, note)

    # ------------------------------------------------------------------------------------------ who is there

    def wait(self) -> None:
        """Before a round: wait until enough clients are connected, and register new ones."""
        began, told = time.monotonic(), ""
        while True:
            self.interruption.heed()
            self._admission.greet()
            if self._admission.enough():
                return
            many, differences = self._admission.progress()
            line = f"{many} of {self._settings.clients}"
            if line + differences != told:
                told = line + differences
                self._say(f"waiting for clients: {line} connected{differences}")
            if self._settings.patience and time.monotonic() - began > self._settings.patience:
                only = "only " if many < self._settings.clients else ""
                raise CoterieError(
                    f"network.patience: after {self._settings.patience} s {only}{line} clients are there{differences}",
                    code="clients-absent",
                )
            time.sleep(POLL[1] / 2)

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
            arrived = self._exchange.transport.collect(list(waiting), until - time.monotonic())
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
        outcome = Outcome(answers.replies(), tuple(missing[c] for c in sorted(missing)))
        if self.reports_isolated and visit.keep:
            self._report_isolated(visit, outcome)
        return outcome

    def _report_isolated(self, visit: Visit, outcome: Outcome) -> None:
        """Say once of each client that its update was far from all others; the audit log has every time."""
        found = {
            client for reply in outcome.replies if isinstance(reply, Fitted) for client in isolated(reply, QUARANTINE)
        }
        for client in sorted(found):
            name = self.registry.names[client]
            few, round_ = QUARANTINE.smallest - 1, visit.moment.round + 1
            why = f"fewer than {few} other clients are near its update in round {round_}"
            self._note(AuditEntry("isolated", why, client=name))
            if name not in self._isolated:
                self._isolated.add(name)
                self._say(
                    f"warning: {client_name(self.registry.names, client)}: {why}: it is hostile, or its data is like "
                    f"nobody else's. It counts; aggregator.smallest={QUARANTINE.smallest} would quarantine it"
                )

    def rejected(self, client: int, why: str) -> None:
        """See `RejectionListener.rejected`."""
        self._say(f"{client_name(self.registry.names, client)}: {why}")
        self._bans.refuse(self.registry.names[client], why)

    def close(self) -> None:
        """The transport is closed by whoever opened it."""

    def _send_requests(self, visit: Visit, missing: dict[int, Missing]) -> dict[str, _Asked]:
        """Send a request to every connected client; returns the awaited clients by message id."""
        waiting: dict[str, _Asked] = {}
        there: list[_Asked] = []
        for client in visit.ids.tolist():
            who = _Asked(client, for_client(visit, client))
            why = self._not_asked(who)
            if why is None:
                there.append(who)
            else:
                missing[client] = Missing(client, why)
        for first in range(0, len(there), AT_ONCE):
            waiting |= self._request_all(visit, there[first : first + AT_ONCE], missing)
        return waiting

    def _not_asked(self, who: _Asked) -> str | None:
        """Why a client is sent no request, if so."""
        if who.client not in self.registry.here:
            return "not connected"
        looked_at = any(isinstance(task, Evaluate) for task in who.tasks)
        if looked_at and not self.registry.known[who.client].evaluations:
            return "refuses every evaluation (local privacy), so it is not asked for one"
        return None

    def _request_all(self, visit: Visit, some: Sequence[_Asked], missing: dict[int, Missing]) -> dict[str, _Asked]:
        messages = [
            Outgoing(node, encode(self._request(visit, who), self._settings.compress), self._limits(who))
            for who, node in ((who, self.registry.here[who.client]) for who in some)
        ]
        sent = list(zip(some, self._exchange.send(messages, self._settings.deadline), strict=True))
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
        report, client = self._exchange.opened(what, self._limits(who)), who.client
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

    def _limits(self, who: _Asked) -> PayloadLimits:
        """How large the reply of a client may be, given its tasks."""
        implied = answer_limits(who.tasks, self._plan.size)
        return replace(implied, largest=min(implied.largest, self._settings.largest))

    def _drop_disconnected(self, waiting: dict[str, _Asked], missing: dict[int, Missing]) -> None:
        """Do not wait for clients that are no longer connected."""
        present = self._admission.keyed(self._exchange.transport.connected())
        for message_id, who in list(waiting.items()):
            if self.registry.here.get(who.client) not in present:
                del waiting[message_id]
                missing[who.client] = Missing(who.client, "disconnected during the visit")
