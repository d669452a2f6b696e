"""k: auto: how many clusters there are is read off two halves of each client's data (see `clustering.halves`).

Before the first clustering up to 240 clients, the round's and others, train twice from the common start, once on each
half of their samples, and send sketches of the two updates. What one half says of a client must predict what the other
says; the fewest clusters that do this as well as any number are taken.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar

from torch import Tensor

from coterie.clustering.halves import SHOWN, Evidence, halves_evidence
from coterie.core.cohort import Cohort, Counted
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.tasks import Fit
from coterie.methods.cluster_count import MOST, at_least
from coterie.methods.contract import Ask

ASKED = 240  # clients that are looked at, if there are so many
LOOK = 50  # local steps on each half
SKETCH = 256  # numbers that stand for an update
M = TypeVar("M")


def count_by_halves(start: Tensor, local: Local, cohort: Cohort, ask: Ask) -> int:
    """The number of clusters, which the round then tells of."""
    look = dataclasses.replace(local, epochs=None, steps=LOOK, keep_optimizer=False)
    half = Fit(All(start), local=look, half=0, sketch=SKETCH, send=False, keep=False, on=at_least(ASKED, cohort))
    first, second = ask([half, dataclasses.replace(half, half=1)])
    assert first.sketch is not None
    assert second.sketch is not None
    evidence = halves_evidence(first.sketch, second.sketch, first.n)
    most = min(MOST - 1, len(evidence.risks))
    k = evidence.k if evidence.k <= most else int(evidence.risks[:most].argmin()) + 1
    scores = tuple((j, evidence.r2(j)) for j in range(1, min(SHOWN, len(evidence.risks)) + 1))
    cohort.counted.append(Counted(k, "auto (halves)", len(first.ids), scores, _why(evidence, k)))
    return k


def _why(evidence: Evidence, k: int) -> str:
    if evidence.k > k:
        return f"{evidence.k} clusters predict one half of the clients' data from the other best, but this is the most"
    if k == 1:
        return "no split predicts one half of the clients' data from the other better than one cluster does"
    return f"that many predict one half of the clients' data from the other {evidence.r2(k):.0%} better than one does"


def with_k(method: M, now: int, start: Tensor, cohort: Cohort, ask: Ask) -> M:
    """The method with the number of clusters there are `now` or, where there are none yet, the one that halves show."""
    a_method: Any = method
    k = now or count_by_halves(start, a_method.local, cohort, ask)
    chosen: M = dataclasses.replace(a_method, k=k)
    return chosen


def counts_by_halves(kind: type[M]) -> type[M]:
    """A decorator of methods that make K clusters of one in their first clustering, in which clients get labels."""
    plain: Any = kind.round  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def round(self: Any, state: Any, cohort: Cohort, ask: Ask) -> Any:
        if self.k == "auto":
            now = len(state.centers) if len(state.labels.ids) else 0
            self = with_k(self, now, state.centers[0], cohort, ask)
        return plain(self, state, cohort, ask)

    kind.round = round  # type: ignore[attr-defined]
    return kind
