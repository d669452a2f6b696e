"""StoCFL's tau: auto, read off two halves of each client's data; the paper chooses tau by trial, per data set.

When the first clients are met, up to 240, the round's and others, are represented three times: by all their samples and
by either half. The halves say which of these clients belong together (see `clustering.halves`). Of the values of tau
on a grid, that one is taken with which StoCFL's own rule, merging whatever is more alike than tau, comes closest to it
on the whole representations; where several do alike, the middle one.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from coterie.clustering.halves import SHOWN, halves_evidence
from coterie.clustering.linkage import greedy_merge
from coterie.clustering.similarity import cosines
from coterie.core.cohort import Cohort, Counted
from coterie.core.local import GRADIENT, Local
from coterie.core.references import All
from coterie.core.tasks import Fit
from coterie.methods.cluster_count import at_least
from coterie.methods.contract import Ask
from coterie.methods.count_by_halves import ASKED, LOOK, SKETCH
from coterie.methods.stocfl_clusters import S, Stochastic

GRID = [-1.0, *(i / 50 for i in range(-10, 50))]  # -1 merges everyone


def representing(psi: Local | None, tau: float | Literal["auto"], local: Local) -> Local:
    """How a client is represented: by psi, by the paper's one gradient or, with tau: auto, by more local steps."""
    if psi is not None:
        return psi
    return GRADIENT if tau != "auto" else dataclasses.replace(local, epochs=None, steps=LOOK, keep_optimizer=False)


def chosen(state: Stochastic, tau: float | Literal["auto"]) -> float:
    """The tau that is given, or that was chosen."""
    return (0.0 if state.tau is None else state.tau) if tau == "auto" else tau


def with_tau(state: S, tau: float | Literal["auto"], psi: Local, cohort: Cohort, ask: Ask) -> S:
    """The state with the tau that halves show, where it is to be found, which the round then tells of."""
    if tau != "auto" or state.tau is not None:
        return state
    whole = Fit(All(state.anchor), local=psi, sketch=SKETCH, send=False, keep=False, on=at_least(ASKED, cohort))
    halves = [dataclasses.replace(whole, half=0), dataclasses.replace(whole, half=1)]
    all_of, first, second = ask([whole, *halves])
    assert all_of.sketch is not None
    assert first.sketch is not None
    assert second.sketch is not None
    evidence = halves_evidence(first.sketch, second.sketch, first.n)
    labels, alike = evidence.labels(evidence.k), cosines(all_of.sketch)
    together = labels[:, None] == labels[None]
    fits = torch.tensor([_agreement(together, greedy_merge(alike, tau)) for tau in GRID])
    best = (fits == fits.max()).nonzero().flatten()
    found = GRID[int(best[len(best) // 2])]
    scores = tuple((j, evidence.r2(j)) for j in range(1, min(SHOWN, len(labels)) + 1))
    why = f"two halves of the clients' data show that many; tau = {found:g} merges clients most nearly like that"
    cohort.counted.append(Counted(evidence.k, "tau: auto (halves)", len(labels), scores, why))
    return dataclasses.replace(state, tau=found)


def _agreement(together: torch.Tensor, labels: torch.Tensor) -> float:
    """Of the pairs that either clustering puts together, the share that both do (Jaccard)."""
    same = labels[:, None] == labels[None]
    return float((same & together).sum() / (same | together).sum())
