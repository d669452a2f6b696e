"""How many bytes a round would send over a network: what a client must be given to do its tasks, and what it returns.

A vector that several tasks of a visit use is sent once. Where a client keeps its own model, the default is sent to it
on its first visit only. Evaluation only serves the simulation and is not counted. An engine that really
sends (`CountsTraffic`) counts for itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from coterie.client.contract import Memory
from coterie.core.references import Mix, Pick, vectors_of, walk
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Described, Fit, Fitted, Reply, Score, Scored
from coterie.engines.contract import CountsTraffic, Outcome, Visit
from coterie.layers.contract import Layer, Onward, Round

NUMBER = 4  # bytes of what is not a tensor: a cluster's number, a loss


class Traffic(Layer):
    """Counts the bytes of an attempt's visits; on a wire, those that the engine has counted."""

    key = "traffic"

    @classmethod
    def of(cls, settings: Any) -> Traffic:
        """There always is one."""
        return cls()

    def begin(self, round: Round) -> None:
        """See `Layer.begin`."""
        self._engine, self._down, self._up = round.engine, 0, 0

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """See `Layer.visit`."""
        if isinstance(self._engine, CountsTraffic):
            before = dataclasses.replace(self._engine.traffic)
            outcome = onward(visit)
            self._down += self._engine.traffic.down - before.down
            self._up += self._engine.traffic.up - before.up
            return outcome
        self._down += down(visit, self._engine.memory)  # before the visit changes what clients keep
        outcome = onward(visit)
        self._up += up(outcome.replies)
        return outcome

    def commit(self, round: Round, before: Any, after: Any) -> Mapping[str, Any]:
        """Bytes to the clients, and back from them."""
        return {"down": self._down, "up": self._up}


def down(visit: Visit, memory: Memory) -> int:
    """Bytes to all clients of a visit."""
    return sum(_to_one(visit, client, memory) for client in visit.ids.tolist())


def up(replies: Sequence[Reply]) -> int:
    """Bytes from all clients that answered."""
    total = 0
    for reply in replies:
        if isinstance(reply, Fitted):
            total += 0 if reply.sent is None else reply.sent.nbytes
            total += 0 if reply.sketch is None else _size(reply.sketch)
        elif isinstance(reply, Scored):
            total += _size(reply.scores)
        elif isinstance(reply, Described):
            total += _size(reply.rows)
        total += len(reply.ids) * NUMBER
    return total


def _to_one(visit: Visit, client: int, memory: Memory) -> int:
    sent: dict[tuple[int, int], int] = {}  # by address, so that no vector is counted twice
    kept = memory.read(client)
    for task in visit.tasks_for(client):
        if isinstance(task, Fit | Score | Describe):
            for node in walk(task, kept):
                sent |= _vectors(node, client)
    return sum(sent.values())


def _vectors(node: object, client: int) -> dict[tuple[int, int], int]:
    """What a client is sent for one reference: the vectors (by address) and their sizes in bytes."""
    match node:
        case Pick(centers):
            row = node.row_of(client)  # without one the client is sent nothing, and reported as missing
            return {} if row is None else _rows(centers[row : row + 1])
        case Mix(centers, ByClient() as weights):  # mixed by the server: one vector
            known = weights.get(client) is not None
            return {(centers.data_ptr(), weights.values.data_ptr()): _size(centers[0])} if known else {}
    vectors, shares = vectors_of(node), getattr(node, "class_shares", None)
    found = {} if vectors is None else _rows(vectors)
    return found if shares is None else found | {(shares.data_ptr(), -1): _size(shares)}


def _rows(centers: Tensor) -> dict[tuple[int, int], int]:
    return {(row.data_ptr(), -1): _size(row) for row in centers}


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
