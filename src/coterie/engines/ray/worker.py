"""What runs in a worker of the Ray engine: chunks of clients, and sums of the models they trained.

Ray carries objects by pickle between processes that trust each other; that is its own transport, and a cluster is one
trust domain. Tensors are given to it as flat buffers: its object store holds them once per machine, and readers
share this memory and must not write to it.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.client.contract import Answer, ClientTasks, FitAnswer, VisitResult
from coterie.client.visit import TaskRunner
from coterie.core.allocation import MODEL, BufferPool, keep_memory
from coterie.core.codec import TYPES
from coterie.core.compute import Compute, be_deterministic
from coterie.core.model import Model
from coterie.core.tasks import Fit
from coterie.data.federation import Federation
from coterie.engines.contract import Missing, Visit, reason
from coterie.engines.updates import norms_of

Flat = tuple[NDArray[np.uint8], str, tuple[int, ...]]  # the bytes of a tensor, its type and its shape


def flat(tensor: Tensor) -> Flat:
    """A tensor in the form that Ray stores without copying."""
    plain = tensor.detach().contiguous()
    kind = str(plain.dtype).removeprefix("torch.")
    return plain.reshape(-1).view(torch.uint8).numpy(), kind, tuple(plain.shape)


def tensor(parts: Flat) -> Tensor:
    """The tensor of a buffer, without a copy."""
    buffer, kind, shape = parts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the buffer is not to be written to
        return torch.from_numpy(buffer).view(TYPES[kind]).reshape(shape)


@contextmanager
def buffers() -> Iterator[None]:
    """What is given to Ray meanwhile has its tensors held as buffers."""
    import ray

    ray.util.register_serializer(Tensor, serializer=flat, deserializer=tensor)
    try:
        yield
    finally:
        ray.util.deregister_serializer(Tensor)


def sending(visit: Visit) -> list[int]:
    """The numbers of the tasks that bring models."""
    return [number for number, task in enumerate(visit.tasks) if isinstance(task, Fit) and task.send]


class Worker:
    """An actor: one process, one thread, one client after another. It keeps nothing about them."""

    def look_in(self, path: Sequence[str]) -> None:
        """Import modules from where the driver finds them too, if that is there."""
        sys.path += [place for place in path if place not in sys.path]

    def begin(self, job: tuple[Model, Federation, Compute]) -> str:
        """Get ready, and say on which node."""
        import ray

        torch.set_num_threads(1)
        keep_memory()
        ray.util.register_serializer(Tensor, serializer=flat, deserializer=tensor)
        model, self._federation, asked = job
        compute = asked.resolved()
        if compute.deterministic:
            be_deterministic()
        self._runner = TaskRunner(model, BufferPool(MODEL, torch.device(compute.device)), compute)
        node: str = ray.get_runtime_context().get_node_id()
        return node

    def visit_chunk(self, visit: Visit, clients: Sequence[int], keeps: Sequence[Mapping[str, Tensor]]) -> Any:
        """Visit a chunk of clients. What they answered comes first, then the models of each task that brings some."""
        calls = [ClientTasks(c, visit.tasks_for(c), kept) for c, kept in zip(clients, keeps, strict=True)]
        found = self._runner.visit_all(calls, self._federation.at(visit.moment.round), visit.moment)
        models: dict[int, list[Tensor]] = {number: [] for number in sending(visit)}
        results: list[VisitResult | Missing] = []
        for call, one in zip(calls, found, strict=True):
            if isinstance(one, Exception):
                results.append(Missing(call.client, reason(one)))
                continue
            for number, rows in models.items():
                answer = one.answers[number]
                if isinstance(answer, FitAnswer) and answer.theta is not None:
                    rows.append(answer.theta)
            results.append(VisitResult(tuple(_without_model(a) for a in one.answers), one.keeps))
        stacked = [torch.stack(rows) if rows else torch.empty(0) for rows in models.values()]
        return (results, *stacked) if stacked else results

    def combine(self, shares: Sequence[Tensor], *models: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of share (K, n) @ models (n, P): its nonzero rows, and their numbers.

        In double precision, so that it does not show in which order and on which nodes clients were summed up.
        """
        used = torch.nonzero(torch.stack([(share != 0).any(1) for share in shares]).any(0))[:, 0]
        total = torch.zeros(len(used), models[0].shape[1], dtype=torch.float64)
        for share, theta in zip(shares, models, strict=True):
            total += share[used].double() @ theta.double()
        return used, total

    def norms(self, visit: Visit, number: int, ids: Tensor, choice: Tensor | None, *models: Tensor) -> Tensor:
        """The norms of these clients' updates in one of a visit's trainings; models (n, P) of some after another."""
        task = visit.tasks[number]
        assert isinstance(task, Fit)
        lengths = [len(some) for some in models]
        chosen = [None] * len(models) if choice is None else choice.split(lengths)
        return torch.cat(
            [norms_of(*row) for row in zip(models, [task.start] * len(models), ids.split(lengths), chosen, strict=True)]
        )


def _without_model(answer: Answer | None) -> Answer | None:
    return dataclasses.replace(answer, theta=None) if isinstance(answer, FitAnswer) else answer
