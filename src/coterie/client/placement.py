"""What is where when clients are computed on an accelerator: models and samples go up once, answers come down once.

On the CPU everything is where it is, and nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.client.answers import Answer, DescribeAnswer, EvaluateAnswer, FitAnswer, Moment, ScoreAnswer, VisitResult
from coterie.client.data import ClientData, ClientDataSource, Samples, samples_of
from coterie.core.compute import Compute
from coterie.core.references import Mix, substitute
from coterie.core.tables import ByClient
from coterie.data.federation import Federation, Split
from coterie.data.scale import TargetScale

ROOM = 0.5  # share of a device's free memory that samples may fill, so that they need not be copied again
UNKNOWN = 1 << 30  # bytes that they may fill where the device does not say what is free
CARRIED = ("theta", "centers", "class_shares")  # the tensors of tasks and references, which are used at a client
T = TypeVar("T")


class Placement:
    """Moves tasks, samples and answers between the host and the device that computes clients."""

    def __init__(self, compute: Compute) -> None:
        self.device = torch.device(compute.device)
        self.host = self.device.type == "cpu"
        self._moment: Moment | None = None
        self._up: dict[int, tuple[Any, Any]] = {}  # by id: what went up in this visit, and what it is there
        self._down: dict[int, tuple[Tensor, Tensor]] = {}  # by id: what came down already
        self._source: Federation | None = None
        self._samples: dict[tuple[int, Split], Samples] = {}  # of that source
        self._room = 0 if self.host else int(ROOM * free_memory(self.device))  # bytes

    def up(self, tensor: Tensor) -> Tensor:
        """A tensor on the device. From pinned memory, so that the host need not wait for the copy."""
        if self.host:
            return tensor
        if self.device.type == "mps":  # it shares the host's memory
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def tasks(self, tasks: Sequence[T], moment: Moment) -> tuple[T, ...]:
        """The tasks of a visit with their models on the device, where those of the same visit already may be."""
        if self.host:
            return tuple(tasks)
        if moment is not self._moment:
            self._moment, self._up = moment, {}
        return tuple(self._placed(task) for task in tasks)

    def _placed(self, node: Any) -> Any:
        """A task or reference with its models on the device. The same one gives the same one: caches go by identity."""
        if node is None:
            return None
        if id(node) not in self._up:
            found = substitute(node, self._placed)
            models: dict[str, Tensor | ByClient] = {
                name: self._model(carried) for name in CARRIED if (carried := getattr(node, name, None)) is not None
            }
            if isinstance(node, Mix) and isinstance(node.weights, ByClient):
                models["weights"] = ByClient(node.weights.ids, self._model(node.weights.values))
            self._up[id(node)] = node, replace(found, **models) if models else found
        return self._up[id(node)][1]

    def _model(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._up:
            self._up[id(tensor)] = tensor, self.up(tensor)
        there: Tensor = self._up[id(tensor)][1]
        return there

    # ------------------------------------------------------------------------------------------------------- samples

    def client(self, source: ClientDataSource, client: int) -> ClientData:
        """A client's data on the device."""
        data = source.client(client)
        # Other sources may give other samples next time.
        return data if self.host else self.data(data, (source, client) if type(source) is Federation else None)

    def data(self, data: ClientData, kept: tuple[Federation, int] | None = None) -> ClientData:
        """Data on the device. kept: whose it is, if it never changes: it stays there while there is room."""
        return data if self.host or isinstance(data, _PlacedData) else _PlacedData(self, data, kept)

    def samples(self, data: ClientData, split: Split, kept: tuple[Federation, int] | None) -> Samples:
        """The samples of one split, on the device."""
        if kept is None:
            return self._samples_up(data, split)
        source, client = kept
        if source is not self._source:
            self._room += sum(x.nbytes + y.nbytes for x, y in self._samples.values())
            self._source, self._samples = source, {}
        found = self._samples.get((client, split))
        if found is None:
            found = self._samples_up(data, split)
            size = sum(part.nbytes for part in found)
            if size <= self._room:
                self._samples[client, split], self._room = found, self._room - size
        return found

    def _samples_up(self, data: ClientData, split: Split) -> Samples:
        x, y = samples_of(data, split)
        return self.up(x), self.up(y)

    def together(self, source: Federation, clients: Tensor, split: Split) -> tuple[Tensor, Tensor, Tensor]:
        """See `Federation.together`."""
        if self.host:
            return source.together(clients, split)
        parts = [samples_of(self.client(source, client), split) for client in clients.tolist()]
        x, y = (torch.cat(column) for column in zip(*parts, strict=True))
        return x, y, torch.tensor([len(own) for _, own in parts])

    # ------------------------------------------------------------------------------------------------------- answers

    def down(self, tensor: Tensor) -> Tensor:
        """A tensor on the host; the same one comes down once in a visit."""
        if self.host or tensor.device.type == "cpu":
            return tensor
        if id(tensor) not in self._down:
            self._down[id(tensor)] = tensor, tensor.cpu()
        return self._down[id(tensor)][1]

    def down_together(self, rows: Sequence[Tensor]) -> None:
        """Have tensors of one length come down in one copy, for `down`."""
        if not self.host and rows:
            for row, copy in zip(rows, torch.stack(list(rows)).cpu(), strict=True):
                self._down[id(row)] = row, copy

    def result(self, answers: Sequence[Answer | None], written: Mapping[str, Tensor]) -> VisitResult:
        """The result of a visit, on the host."""
        if self.host:
            return VisitResult(tuple(answers), written)
        keeps = {slot: self.down(value) for slot, value in written.items()}
        return VisitResult(tuple(self._answer(answer) for answer in answers), keeps)

    def forget(self) -> None:
        """A visit has ended: what came down for it is not needed again."""
        self._down = {}

    def _answer(self, answer: Answer | None) -> Answer | None:
        match answer:
            case FitAnswer():
                return replace(answer, theta=self._maybe(answer.theta), sketch=self._maybe(answer.sketch))
            case ScoreAnswer():
                return replace(answer, scores=self.down(answer.scores))
            case EvaluateAnswer():
                return replace(answer, shares=self._maybe(answer.shares))
            case DescribeAnswer():
                return replace(answer, row=self.down(answer.row))
        return None

    def _maybe(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self.down(tensor)


@dataclass(frozen=True, eq=False)
class _PlacedData:
    """A client's data on a device; a split is copied there when first asked for."""

    placement: Placement
    data: ClientData
    kept: tuple[Federation, int] | None

    @cached_property
    def train(self) -> Samples:
        return self.placement.samples(self.data, "train", self.kept)

    @cached_property
    def val(self) -> Samples:
        return self.placement.samples(self.data, "val", self.kept)

    @cached_property
    def test(self) -> Samples:
        return self.placement.samples(self.data, "test", self.kept)

    @property
    def target(self) -> TargetScale | None:
        return self.data.target

    @property
    def target_mean(self) -> Tensor:
        return self.data.target_mean


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    ask = getattr(torch.get_device_module(device.type), "mem_get_info", None)
    return UNKNOWN if ask is None else int(ask(device)[0])
