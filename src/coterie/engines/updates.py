"""What is measured of clients' updates: norms, and which are far too long. And replies without some of the clients.

The norm of an update grows like the square root of the number of local steps, so a client that makes more steps than
the median is allowed that much more. And updates shrink as training converges, while a client with new data still has
far to go: the median is the largest of any round so far. Where the server does not know the start (a client's own
model), the norm of the model itself is compared. This stops broken and crude replies; it is not robust aggregation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.core.references import Estimated, Ref, start_known, starts_of, vectors_of
from coterie.core.tasks import Fit, Fitted, RemoteModels, Reply, Task
from coterie.engines.contract import Missing

SMALLEST = 5  # replies; with fewer, the median means little
MORE_STEPS = 100.0  # times the median's, at most: over a network they follow from what a client says it has
CHUNK = 1 << 21  # numbers that are subtracted at a time


def without(reply: Reply, clients: Sequence[int]) -> Reply:
    """A reply as if these clients had not answered."""
    keep = ~torch.isin(reply.ids, torch.tensor(list(clients), dtype=torch.int64))
    if bool(keep.all()):
        return reply
    rows = torch.nonzero(keep)[:, 0]
    all_rows = {f.name: getattr(reply, f.name) for f in dataclasses.fields(reply)}
    left: dict[str, Any] = {name: value[rows] for name, value in all_rows.items() if isinstance(value, Tensor)}
    if isinstance(reply, Fitted) and reply.sent is not None and not isinstance(reply.sent, Tensor):
        left["sent"] = SelectedModels(reply.sent, rows)
    return dataclasses.replace(reply, **left)


class SelectedModels:
    """Some rows of remote models."""

    def __init__(self, whole: RemoteModels, rows: Tensor) -> None:
        self._whole, self._rows, self.dtype = whole, rows, whole.dtype
        self._here: Tensor | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Of these rows."""
        return self._whole.nbytes // max(len(self._whole), 1) * len(self)

    def combined(self, share: Tensor) -> Tensor:
        """See `RemoteModels.combined`."""
        if self._here is not None:
            return share @ self._here
        wide = share.new_zeros(len(share), len(self._whole))
        wide[:, self._rows] = share
        return self._whole.combined(wide)

    def gathered(self) -> Tensor:
        """See `RemoteModels.gathered`."""
        if self._here is None:
            self._here = self._whole.gathered()[self._rows]
        return self._here

    def norms(self, choice: Tensor | None) -> Tensor:
        """See `RemoteModels.norms`."""
        wide = None
        if choice is not None:
            wide = choice.new_zeros(len(self._whole))
            wide[self._rows] = choice
        return self._whole.norms(wide)[self._rows]


def norms_of(models: Tensor, start: Ref, ids: Tensor, choice: Tensor | None) -> Tensor:
    """The norm of each client's update (n,), or of its model (n, P) where the server does not know the start."""
    if not len(models):
        return torch.empty(0)
    many = max(1, CHUNK // max(1, models.shape[1]))  # of a model whose every part is personal there is nothing
    found = []
    for first in range(0, len(models), many):
        some = slice(first, first + many)
        begin = starts_of(start, ids[some], None if choice is None else choice[some])
        moved = models[some] if begin is None else models[some] - begin
        found.append(torch.linalg.vector_norm(moved, dim=1, dtype=torch.promote_types(moved.dtype, torch.float32)))
    return torch.cat(found)


def norms(task: Fit, reply: Fitted) -> Tensor:
    """The norm of each update of a reply, computed where its models are, and once for each reply."""
    measured: tuple[Fit, Tensor] | None = reply.__dict__.get("_norms")
    if measured is not None and measured[0] is task:
        return measured[1]
    sent = reply.sent
    if isinstance(sent, Tensor):
        lengths = norms_of(sent, task.start, reply.ids, reply.choice).double()
    else:
        assert sent is not None
        lengths = sent.norms(reply.choice).double()
    reply.__dict__["_norms"] = task, lengths
    return lengths


def more_steps(task: Fit, n: Tensor) -> Tensor:
    """How much longer an update may be because its client makes more local steps than the median client."""
    local = task.local
    if local.steps is not None or local.batch == "full":
        return torch.ones(len(n), dtype=torch.float64)
    steps = (n.double() / local.batch).ceil()
    return (steps / steps.median()).clamp(1, MORE_STEPS).sqrt()


@dataclass(frozen=True)
class Screened:
    """Whose updates were rejected and why, and the median norm of a visit's updates (None where none was measured)."""

    rejected: tuple[Missing, ...] = ()
    median: float | None = None
    measured: Mapping[int, Tensor] = field(
        default_factory=dict, compare=False
    )  # by place of the reply: the norms, before rejection


def screen(
    tasks: Sequence[Task],
    replies: Sequence[Reply],
    bound: float,
    scale: float,
    option: str = "update_bound",
) -> Screened:
    """Compare the norms of a visit's updates. bound: 0 for no bound; scale: the largest median of earlier rounds.

    option: what sets the bound, for messages.
    """
    rejected: dict[int, Missing] = {}
    medians: list[float] = []
    found: dict[int, Tensor] = {}
    for place, (task, reply) in enumerate(zip(tasks, replies, strict=True)) if bound else ():
        if not isinstance(task, Fit) or not isinstance(reply, Fitted):
            continue
        if reply.sent is None or len(reply.ids) < SMALLEST:
            continue
        lengths = found[place] = norms(task, reply)
        known = start_known(task.start)
        median = float(lengths.nanmedian())
        if known:
            medians.append(median)
        least = max(scale if known else 0.0, median) or _size_of(task.start)
        if not least or not math.isfinite(least):  # most have diverged: none can be called an outlier
            continue
        allowed = bound * least * more_steps(task, reply.n)
        for i in torch.nonzero(~(lengths <= allowed))[:, 0].tolist():
            client = int(reply.ids[i])
            why = _why(float(lengths[i]), least, bound, known, option)
            rejected[client] = Missing(client, why, rejected=True)
    return Screened(tuple(rejected[c] for c in sorted(rejected)), max(medians, default=None), found)


def _size_of(start: Ref) -> float:
    """The norm of what clients start from: the scale to compare with if most did not move at all."""
    vectors = None if isinstance(start, Estimated) else vectors_of(start)
    return 0.0 if vectors is None else float(vectors.norm(dim=1).max())


def _why(norm: float, least: float, bound: float, known: bool, option: str) -> str:
    what = "update" if known else "model"
    return f"{what} rejected: its norm is {norm:.1e}, more than {bound:g} times the median {least:.1e} ({option})"
