"""The network as an engine: a request to every client of a visit, and the replies that arrive in time.

Only tasks and answers are sent. A client that is away, late or sends an invalid reply is missing, with the reason; the
round goes on without it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.client.memory import Memory
from coterie.core.errors import CoterieError
from coterie.core.naming import client_name
from coterie.core.tasks import Evaluate, Task
from coterie.core.termination import Interruption
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Visit
from coterie.network.audit import AuditEntry, no_audit
from coterie.network.protocol.messages import (
    PROTOCOL,
    FrozenWanted,
    ModelSpec,
    VisitReply,
    VisitRequest,
)
from coterie.network.protocol.per_client import answer_limits, check_answers, for_client
from coterie.network.protocol.wire import Limits, Payload, WireError, encode
from coterie.network.server.admission import Admission
from coterie.network.server.announced import check_size
from coterie.network.server.bans import Bans, UnableError
from coterie.network.server.client_registry import ClientRegistry
from coterie.network.server.config import Network
from coterie.network.server.exchange import Exchange
from coterie.network.transport import NoReply, Outgoing, Transport

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

    def _limits(self, who: _Asked) -> Limits:
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
