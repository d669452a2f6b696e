"""Has a client's data changed? A change shows in what it answers anyway: the loss of its training jumps.

On data that stays as it is a client's loss falls, and trembles when it is small. So a jump is only the reason to ask:
an alarmed client measures its loss under all models. If another model has less than half the loss of its own, it has
moved there. If none has, and the next visit is no better, its data is new to all models.
Early, when losses have not fallen far, a change makes no such jump. A smaller rise is a suspicion: if another model
serves the client a little better, its two halves are measured again, and decide (see `clustering.halves`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from coterie.core.errors import NoAnswerError
from coterie.core.tables import ByClient, Counted
from coterie.core.tasks import Score
from coterie.methods.contract import Ask

JUMP = 2.0  # times the loss of the last visit: an alarm; and times that of another model: a move
SLIGHT = 1.25  # likewise: a suspicion; and worth two more halves
Changed: TypeAlias = Callable[[Tensor], Tensor]  # ids -> those of them whose halves say that their data has changed


def alarmed(before: ByClient, ids: Tensor, losses: Tensor, worst: float, jump: float = JUMP) -> Tensor:
    """Which of these clients (n,) have a training loss of more than `jump` times that of their last visit.

    It must also be half way back, on a scale of factors, to the highest mean loss there was, that of the beginning:
    small losses tremble by factors.
    """
    last = before.at(ids, default=torch.inf)
    return (losses > jump * last) & (losses > (last * worst).sqrt())


def suspected(before: ByClient, ids: Tensor, losses: Tensor, worst: float) -> Tensor:
    """Which of these clients (n,) have a loss that is a little higher, and a quarter of the way back.

    Higher than it would be now, had it fallen as much as that of most: early, a change only keeps it from falling.
    """
    last = before.at(ids, default=torch.inf)
    met = last.isfinite()
    fallen = float((losses / last)[met].median().clamp(max=1)) if bool(met.any()) else 1.0
    return (losses > SLIGHT * fallen * last) & (losses > (fallen * last).pow(0.75) * float(worst**0.25))


def rescaled(before: ByClient, ids: Tensor, losses: Tensor) -> ByClient:
    """The losses of before as they would be now, if most of them are higher now: by the median of the ratios."""
    last = before.at(ids, default=torch.nan)
    ratios = (losses / last)[~last.isnan()]
    return ByClient(before.ids, before.values * float(ratios.median().clamp(min=1))) if len(ratios) else before


def found_elsewhere(
    centers: Tensor, labels: ByClient, sure: Tensor, unsure: Tensor, ask: Ask, changed: Changed, jump: float = JUMP
) -> ByClient:
    """Those of these clients that another model serves better, and which one.

    sure: their loss has jumped; they go where it is so many times less. unsure: it has risen; they, and those of the
    sure that do not go, need but a slightly lower one where their halves say that their data has changed.
    """
    ids, none = torch.cat([sure, unsure]).sort().values, ByClient.empty()
    if len(centers) == 1 or not len(ids):
        return none
    try:
        reply = ask(Score(centers, on=ids))
    except NoAnswerError:
        return none
    own = reply.scores.gather(1, labels.at(reply.ids)[:, None])[:, 0]
    least, best = reply.scores.min(1)
    moved = (jump * least < own) & torch.isin(reply.ids, sure)
    rest = reply.ids[(SLIGHT * least < own) & ~moved]
    if len(rest):
        moved |= torch.isin(reply.ids, changed(rest))
    return ByClient(reply.ids[moved], best[moved])


def drift_line(ids: Tensor, clusters: int, asked: int, what: str) -> Counted:
    """A drift, as a run tells it."""
    many = "1 client" if len(ids) == 1 else f"{len(ids)} clients"
    some = ", ".join(map(str, ids.tolist()[:10])) + (", ..." if len(ids) > 10 else "")
    return Counted(clusters, "drift", asked, (), f"the loss of {many} ({some}) has jumped: {what}")
