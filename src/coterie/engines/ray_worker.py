"""What runs in a worker of the Ray engine: hands of clients, and sums of the models they trained.

Ray carries objects by pickle between processes that trust each other; that is its own transport, and a cluster is one
trust domain. Tensors are given to it as flat buffers: its object store holds those once per machine, and whoever
reads them sees the store itself and must not write.
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

from coterie.client import Answer, Call, Done, FitAnswer, Workbench
from coterie.codec import TYPES
from coterie.data.federation import Federation
from coterie.engines.contract import Missing, Visit, reason
from coterie.model import Model
from coterie.tasks import Fit
from coterie.threads import keep_memory

Flat = tuple[NDArray[np.uint8], str, tuple[int, ...]]  # the bytes of a tensor, its type and its shape


def flat(tensor: Tensor) -> Flat:
    """A tensor as Ray likes it best."""
    plain = tensor.detach().contiguous()
    kind = str(plain.dtype).removeprefix("torch.")
    return plain.reshape(-1).view(torch.uint8).numpy(), kind, tuple(plain.shape)


def tensor(parts: Flat) -> Tensor:
    """The tensor again, where its bytes lie."""
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
    """An actor: one process, one thread, some clients after another. It remembers nothing of them."""

    def look_in(self, path: Sequence[str]) -> None:
        """Import modules from where the driver finds them too, if that is there."""
        sys.path += [place for place in path if place not in sys.path]

    def begin(self, job: tuple[Model, Federation]) -> str:
        """Get ready, and say on which node."""
        import ray

        torch.set_num_threads(1)
        keep_memory()
        ray.util.register_serializer(Tensor, serializer=flat, deserializer=tensor)
        model, self._federation = job
        self._bench = Workbench(model)
        node: str = ray.get_runtime_context().get_node_id()
        return node

    def play(self, visit: Visit, clients: Sequence[int], keeps: Sequence[Mapping[str, Tensor]]) -> Any:
        """Visit a hand of clients. What they answered comes first, then the models of each task that brings some."""
        calls = [Call(c, visit.asked_of(c), kept) for c, kept in zip(clients, keeps, strict=True)]
        found = self._bench.visit_all(calls, self._federation, visit.moment)
        models: dict[int, list[Tensor]] = {number: [] for number in sending(visit)}
        results: list[Done | Missing] = []
        for call, one in zip(calls, found, strict=True):
            if isinstance(one, Exception):
                results.append(Missing(call.client, reason(one)))
                continue
            for number, rows in models.items():
                answer = one.answers[number]
                if isinstance(answer, FitAnswer) and answer.theta is not None:
                    rows.append(answer.theta)
            results.append(Done(tuple(_without_model(a) for a in one.answers), one.keeps))
        stacked = [torch.stack(rows) if rows else torch.empty(0) for rows in models.values()]
        return (results, *stacked) if stacked else results

    def combine(self, shares: Sequence[Tensor], *models: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of share (K, n) @ models (n, P): the rows of it that are not nothing, and which they are.

        In double precision, so that it does not show in which order and on which nodes clients were summed up.
        """
        used = torch.nonzero(torch.stack([(share != 0).any(1) for share in shares]).any(0))[:, 0]
        total = torch.zeros(len(used), models[0].shape[1], dtype=torch.float64)
        for share, theta in zip(shares, models, strict=True):
            total += share[used].double() @ theta.double()
        return used, total


def _without_model(answer: Answer | None) -> Answer | None:
    return dataclasses.replace(answer, theta=None) if isinstance(answer, FitAnswer) else answer
