"""An engine that plays both ends of a network in one process: everything passes through parcels, and is checked."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from coterie.client import HasClients, Workbench
from coterie.engines.contract import Gathering, Missing, Outcome, Visit
from coterie.memory import Memory
from coterie.model import Model
from coterie.network.errand import (
    PROTOCOL,
    Errand,
    Plan,
    Refusal,
    Report,
    check_answers,
    for_client,
    read_as_client,
    read_as_server,
)
from coterie.network.wire import Parcel, pack_up
from coterie.traffic import down

PLAN = Plan("linear", "{}", (2,), 2, "cross_entropy", 1)  # the loopback's clients have their model already


@dataclass(frozen=True, eq=False)
class Sent:
    """What one client was sent, beside what `traffic` counts."""

    parcel: Parcel
    tasks: int
    counted: int  # by `traffic.down` for a client that keeps nothing yet: the wire sends the default of an Own always
    trains: bool  # whether `traffic` counts it at all: a look is not counted


@dataclass(eq=False)
class Loopback:
    """Visits clients one by one, each by an errand and a report."""

    model: Model
    federation: HasClients
    compress: bool = False
    memory: Memory = field(default_factory=Memory)
    sent: list[Sent] = field(default_factory=list)

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = Gathering(visit)
        missing: list[Missing] = []
        bench = Workbench(self.model)
        with torch.random.fork_rng(devices=[]):
            for client in visit.ids.tolist():
                tasks = for_client(visit, client)
                errand = Errand(PROTOCOL, "run-1", client, tasks, visit.moment, visit.keep, None, 0, PLAN)
                parcel = pack_up(errand, self.compress)
                self._note(visit, client, parcel)
                reply = read_as_server(self._carry_out(bench, parcel))
                if isinstance(reply, Refusal):
                    missing.append(Missing(client, reply.reason))
                    continue
                assert isinstance(reply, Report)
                check_answers(reply.answers, tasks, self.model.size)
                answers.add(client, reply.answers)
        return Outcome(answers.replies(), tuple(missing))

    def close(self) -> None:
        """Nothing to let go of."""

    def _carry_out(self, bench: Workbench, parcel: Parcel) -> Parcel:
        """The client's side, which sees nothing but the parcel, its data and what it keeps."""
        errand = read_as_client(parcel)
        assert isinstance(errand, Errand)
        moment, client = errand.moment, errand.client
        try:
            data, keeps = self.federation.client(client), self.memory.read(client)
            done = bench.visit(errand.tasks, client, data, keeps, moment)
        except Exception as error:
            return pack_up(Refusal.of(error), self.compress)
        if errand.keep:
            self.memory.write(client, done.keeps)
        report = Report(PROTOCOL, errand.run, client, moment.round, moment.task, done.answers, None, afresh=False)
        return pack_up(report, self.compress)

    def _note(self, visit: Visit, client: int, parcel: Parcel) -> None:
        alone = Visit(visit.tasks, torch.tensor([client]), visit.moment)
        try:
            counted = down(alone, Memory())
        except Exception:  # a table without this client, which it is told when it needs it
            counted = 0
        self.sent.append(Sent(parcel, len(visit.tasks), counted, visit.keep))
