"""The reference engine: one client after another, in this process."""

from __future__ import annotations

from coterie.client.contract import ClientDataSource, ClientTasks, Memory, at_round
from coterie.client.visit import TaskRunner
from coterie.core.compute import HOST, Compute
from coterie.core.model import Model
from coterie.core.seeds import own_random_numbers
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Visit, reason


class Sequential:
    """Visits clients one by one."""

    def __init__(
        self,
        model: Model,
        federation: ClientDataSource,
        runner: TaskRunner | None = None,
        compute: Compute = HOST,
    ) -> None:
        """runner: networks that are there already, of this model."""
        self.federation = federation
        self.memory = Memory()
        self._runner = TaskRunner(model, compute=compute) if runner is None else runner
        self.device = self._runner.compute.device

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = ReplyBuilder(visit)
        missing: list[Missing] = []
        source = at_round(self.federation, visit.moment.round)
        with own_random_numbers(self._runner.placement.device):
            for client in visit.ids.tolist():
                try:
                    call = ClientTasks(client, visit.tasks_for(client), self.memory.read(client))
                    result = self._runner.visit_one(call, source, visit.moment)
                except Exception as error:
                    missing.append(Missing(client, reason(error)))
                    continue
                if visit.keep:
                    self.memory.write(client, result.keeps)
                answers.add(client, result.answers)
        return Outcome(answers.replies(), tuple(missing))

    def close(self) -> None:
        """Nothing to release."""
