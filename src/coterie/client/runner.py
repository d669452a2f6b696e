"""Runs tasks at clients, one client after another: the reference that every engine's arithmetic is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from coterie.client.answers import ClientTasks, Moment, VisitResult
from coterie.client.data import ClientData, ClientDataSource
from coterie.client.visit import ClientVisit, Networks
from coterie.core.allocation import BufferPool
from coterie.core.compute import HOST, Compute
from coterie.core.model import Model
from coterie.core.tasks import Evaluate, Task


class TaskRunner:
    """Visits clients one by one."""

    def __init__(self, model: Model, blocks: BufferPool | None = None, compute: Compute = HOST) -> None:
        """blocks: memory for trained models until they are gathered or kept; None: torch allocates it."""
        self.compute = compute
        self.networks = Networks(model, torch.clone if blocks is None else blocks.copy, compute)
        self.placement = self.networks.placement

    def visit(
        self,
        tasks: Sequence[Task | None],
        client: int,
        data: ClientData,
        keeps: Mapping[str, Tensor],
        moment: Moment,
    ) -> VisitResult:
        """Answer the tasks in their order (None: not for this client); later ones see what earlier ones saved."""
        return self._visit(tasks, client, self.placement.data(data), keeps, moment)

    def visit_one(self, call: ClientTasks, source: ClientDataSource, moment: Moment) -> VisitResult:
        """As `visit`, for a client whose data is found by its id."""
        data = self.placement.client(source, call.client)
        return self._visit(call.tasks, call.client, data, call.keeps, moment)

    def _visit(
        self,
        tasks: Sequence[Task | None],
        client: int,
        data: ClientData,
        keeps: Mapping[str, Tensor],
        moment: Moment,
    ) -> VisitResult:
        visit = ClientVisit(self.networks, client, data, dict(keeps), moment)
        placed = self.placement.tasks(tasks, moment)
        try:
            answers = [None if task is None else visit.answer(task, i) for i, task in enumerate(placed)]
            return self.placement.result(answers, visit.written)
        finally:
            self.placement.forget()

    def visit_all(
        self, calls: Sequence[ClientTasks], source: ClientDataSource, moment: Moment
    ) -> list[VisitResult | Exception]:
        """Visit clients one by one; an error at one client does not affect the others."""
        found: list[VisitResult | Exception] = []
        for call in calls:
            try:
                found.append(self.visit_one(call, source, moment))
            except Exception as error:
                found.append(error)
        return found

    def resolver(self, client: int, data: ClientData, keeps: Mapping[str, Tensor]) -> ClientVisit:
        """What references mean for this client, without a visit."""
        return ClientVisit(self.networks, client, data, dict(keeps), Moment(0, 0, 0))

    def predict(self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What this client's model predicts for new inputs: logits (n, outputs)."""
        visit, placed = self._to_predict(task, client, data, keeps)
        return visit.predict(placed, self.placement.up(x)).cpu()

    def network(self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor]) -> nn.Module:
        """The network that this client predicts with: a copy, which the caller may change."""
        visit, placed = self._to_predict(task, client, data, keeps)
        return visit.network(placed).cpu()

    def _to_predict(
        self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor]
    ) -> tuple[ClientVisit, Evaluate]:
        moment = Moment(0, 0, 0)
        visit = ClientVisit(self.networks, client, self.placement.data(data), dict(keeps), moment)
        return visit, self.placement.tasks((task,), moment)[0]
