"""Runs tasks at clients, one client after another: the reference that every engine's arithmetic is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from coterie.client.answers import ClientTasks, Moment, VisitResult
from coterie.client.data import ClientData, ClientDataSource
from coterie.client.visit import ClientVisit, Networks
from coterie.core.allocation.buffers import BufferPool
from coterie.core.model import Model
from coterie.core.tasks import Evaluate, Task


class TaskRunner:
    """Visits clients one by one."""

    def __init__(self, model: Model, blocks: BufferPool | None = None) -> None:
        """blocks: memory for trained models until they are gathered or kept; None: torch allocates it."""
        self.networks = Networks(model) if blocks is None else Networks(model, blocks.copy)

    def visit(
        self,
        tasks: Sequence[Task | None],
        client: int,
        data: ClientData,
        keeps: Mapping[str, Tensor],
        moment: Moment,
    ) -> VisitResult:
        """Answer the tasks in their order (None: not for this client); later ones see what earlier ones saved."""
        visit = ClientVisit(self.networks, client, data, dict(keeps), moment)
        answers = tuple(None if task is None else visit.answer(task, i) for i, task in enumerate(tasks))
        return VisitResult(answers, visit.written)

    def visit_all(
        self, calls: Sequence[ClientTasks], source: ClientDataSource, moment: Moment
    ) -> list[VisitResult | Exception]:
        """Visit clients one by one; an error at one client does not affect the others."""
        found: list[VisitResult | Exception] = []
        for call in calls:
            try:
                found.append(self.visit(call.tasks, call.client, source.client(call.client), call.keeps, moment))
            except Exception as error:
                found.append(error)
        return found

    def resolver(self, client: int, data: ClientData, keeps: Mapping[str, Tensor]) -> ClientVisit:
        """What references mean for this client, without a visit."""
        return ClientVisit(self.networks, client, data, dict(keeps), Moment(0, 0, 0))

    def predict(self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What this client's model predicts for new inputs: logits (n, outputs)."""
        return ClientVisit(self.networks, client, data, dict(keeps), Moment(0, 0, 0)).predict(task, x)

    def network(self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor]) -> nn.Module:
        """The network that this client predicts with: a copy, which the caller may change."""
        return ClientVisit(self.networks, client, data, dict(keeps), Moment(0, 0, 0)).network(task)
