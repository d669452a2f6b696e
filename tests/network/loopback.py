"""An engine that plays both ends of a network in one process: everything passes through payloads, and is checked."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from coterie.client.contract import ClientDataSource, Memory
from coterie.client.visit import TaskRunner
from coterie.core.model import Model
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Visit
from coterie.layers.traffic import down
from coterie.network.messages import (
    PROTOCOL,
    ModelSpec,
    Refusal,
    VisitReply,
    VisitRequest,
    check_answers,
    for_client,
    read_as_client,
    read_as_server,
)
from coterie.network.wire import Payload, encode

PLAN = ModelSpec("linear", "{}", (2,), 2, "cross_entropy", 1)  # the loopback's clients have their model already


@dataclass(frozen=True, eq=False)
class Sent:
    """What one client was sent, beside what `traffic` counts."""

    payload: Payload
    tasks: int
    counted: int  # by `traffic.down` for a client that keeps nothing yet: the wire sends the default of an Own always
    trains: bool  # whether `traffic` counts it at all: a look is not counted


@dataclass(eq=False)
class Loopback:
    """Visits clients one by one, each by a request and a reply."""

    model: Model
    federation: ClientDataSource
    compress: bool = False
    memory: Memory = field(default_factory=Memory)
    sent: list[Sent] = field(default_factory=list)

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = ReplyBuilder(visit)
        missing: list[Missing] = []
        bench = TaskRunner(self.model)
        with torch.random.fork_rng(devices=[]):
            for client in visit.ids.tolist():
                tasks = for_client(visit, client)
                request = VisitRequest(PROTOCOL, "run-1", client, tasks, visit.moment, visit.keep, None, 0, PLAN)
                payload = encode(request, self.compress)
                self._note(visit, client, payload)
                reply = read_as_server(self._carry_out(bench, payload))
                if isinstance(reply, Refusal):
                    missing.append(Missing(client, reply.reason))
                    continue
                assert isinstance(reply, VisitReply)
                check_answers(reply.answers, tasks, self.model.size)
                answers.add(client, reply.answers)
        return Outcome(answers.replies(), tuple(missing))

    def close(self) -> None:
        """Nothing to let go of."""

    def _carry_out(self, bench: TaskRunner, payload: Payload) -> Payload:
        """The client's side, which sees nothing but the payload, its data and what it keeps."""
        request = read_as_client(payload)
        assert isinstance(request, VisitRequest)
        moment, client = request.moment, request.client
        try:
            data, keeps = self.federation.client(client), self.memory.read(client)
            done = bench.visit(request.tasks, client, data, keeps, moment)
        except Exception as error:
            return encode(Refusal.of(error), self.compress)
        if request.keep:
            self.memory.write(client, done.keeps)
        report = VisitReply(PROTOCOL, request.run, client, moment.round, moment.task, done.answers, None, afresh=False)
        return encode(report, self.compress)

    def _note(self, visit: Visit, client: int, payload: Payload) -> None:
        alone = Visit(visit.tasks, torch.tensor([client]), visit.moment)
        try:
            counted = down(alone, Memory())
        except Exception:  # a table without this client, which it is told when it needs it
            counted = 0
        self.sent.append(Sent(payload, len(visit.tasks), counted, visit.keep))
