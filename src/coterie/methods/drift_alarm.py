"""Has a client's data changed? A change shows in what it answers anyway: the loss of its training jumps.

On data that stays as it is a client's loss falls, and trembles when it is small. So a jump is only the reason to ask:
an alarmed client measures its loss under all models. If another model has less than half the loss of its own, it has
moved there. If none has, and the next visit is no better, its data is new to all models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.client_table import ByClient
from coterie.core.cohort import Counted
from coterie.core.errors import NoAnswerError
from coterie.core.tasks import Score
from coterie.methods.contract import Ask

JUMP = 2.0  # times the loss of the last visit: an alarm; and times that of another model: a move


def alarmed(before: ByClient, ids: Tensor, losses: Tensor, worst: float, jump: float = JUMP) -> Tensor:
    """Which of these clients (n,) have a training loss of more than `jump` times that of their last visit.

    It must also be half way back, on a scale of factors, to the highest mean loss there was, that of the beginning:
    small losses tremble by factors.
    """
    last = before.at(ids, default=torch.inf)
    return (losses > jump * last) & (losses > (last * worst).sqrt())


def rescaled(before: ByClient, ids: Tensor, losses: Tensor) -> ByClient:
    """The losses of before as they would be now, if most of them are higher now: by the median of the ratios."""
    last = before.at(ids, default=torch.nan)
    ratios = (losses / last)[~last.isnan()]
    return ByClient(before.ids, before.values * float(ratios.median().clamp(min=1))) if len(ratios) else before


def found_elsewhere(centers: Tensor, labels: ByClient, ids: Tensor, ask: Ask, jump: float = JUMP) -> ByClient:
    """Those of these clients that another model serves with so many times less loss than their own, and which one."""
    none = ByClient.empty()
    if len(centers) == 1 or not len(ids):
        return none
    try:
        reply = ask(Score(centers, on=ids))
    except NoAnswerError:
        return none
    own = reply.scores.gather(1, labels.at(reply.ids)[:, None])[:, 0]
    least, best = reply.scores.min(1)
    moved = jump * least < own
    return ByClient(reply.ids[moved], best[moved])


def told(ids: Tensor, clusters: int, asked: int, what: str) -> Counted:
    """A drift, as a run tells it."""
    many = "1 client" if len(ids) == 1 else f"{len(ids)} clients"
    some = ", ".join(map(str, ids.tolist()[:10])) + (", ..." if len(ids) > 10 else "")
    return Counted(clusters, "drift", asked, (), f"the loss of {many} ({some}) has jumped: {what}")
