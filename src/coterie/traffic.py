"""How many bytes a round would send over a network: what a client must be given to do its tasks, and what it returns.

A vector that several tasks of a visit use is sent once. Where a client keeps its own model, the default is sent to it
on its first visit only. Evaluation is a simulation's way to look at itself and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from coterie.byclient import ByClient
from coterie.engines.contract import Visit
from coterie.memory import Memory
from coterie.tasks import All, Best, Estimated, Fit, Fitted, Mix, Own, Pick, Ref, Reply, Row, Score, Scored

NUMBER = 4  # bytes of what is not a tensor: a cluster's number, a loss


def down(visit: Visit, memory: Memory) -> int:
    """Bytes to all clients of a visit."""
    return sum(_to_one(visit, client, memory) for client in visit.ids.tolist())


def up(replies: Sequence[Reply]) -> int:
    """Bytes from all clients that answered."""
    total = 0
    for reply in replies:
        if isinstance(reply, Fitted):
            total += 0 if reply.sent is None else reply.sent.nbytes
        elif isinstance(reply, Scored):
            total += _size(reply.scores)
        total += len(reply.ids) * NUMBER
    return total


def _to_one(visit: Visit, client: int, memory: Memory) -> int:
    sent: dict[tuple[int, int], int] = {}  # by where a vector lies, so that none is counted twice
    for task in visit.asked_of(client):
        refs: tuple[Ref | None, ...] = ()
        if isinstance(task, Fit):
            refs = (task.start, task.anchor, task.offset)
            if task.weights is not None:
                sent |= _rows(task.weights.centers)
                refs = (*refs, task.weights.prior)
        elif isinstance(task, Score):
            sent |= _rows(task.centers)
            refs = (task.given, task.prior)
        for ref in refs:
            sent |= dict(_vectors(ref, client, memory))
    return sum(sent.values())


def _vectors(ref: Ref | None, client: int, memory: Memory) -> Iterator[tuple[tuple[int, int], int]]:
    match ref:
        case All(theta) | Row(theta, _):
            yield (theta.data_ptr(), -1), _size(theta)
        case Pick(centers, labels):
            row = int(labels.at(labels.ids.new_tensor([client]))[0])
            yield (centers[row].data_ptr(), -1), _size(centers[row])
        case Best(centers, given, _):
            yield from _rows(centers).items()
            yield from _vectors(given, client, memory)
        case Estimated(centers, _, _):
            yield from _rows(centers).items()
        case Mix(centers, weights):
            if isinstance(weights, ByClient):  # mixed by the server: one vector
                yield (centers.data_ptr(), weights.values.data_ptr()), _size(centers[0])
            else:
                yield from _rows(centers).items()
        case Own(slot, default):
            if slot not in memory.read(client):
                yield from _vectors(default, client, memory)


def _rows(centers: Tensor) -> dict[tuple[int, int], int]:
    return {(row.data_ptr(), -1): _size(row) for row in centers}


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
