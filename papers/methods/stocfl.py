"""StoCFL as in its authors' code, where that differs from Algorithm 1.

The global model visits the clients one after another, and its snapshots are averaged (global_update: chain). A cluster
is represented by its sampled members; clusters without any do not merge (cluster_vector: sampled). A merged cluster
takes its largest part's model (merge_model: larger), a new one the global model (new_cluster: global). Clients have
equal weights, and are represented by what they learn in some epochs: psi: {epochs: 10} for rotated images, else 1 or 5.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean_of_chain
from coterie.clustering.kmeans import by_first_member
from coterie.clustering.linkage import greedy_merge
from coterie.clustering.similarity import cosines, gram
from coterie.core.errors import NoAnswerError
from coterie.core.local import GRADIENT
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.settings import STRICT, Cosine, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import Fit, Fitted
from coterie.methods.contract import Ask
from coterie.methods.stocfl import StoCFL, Stochastic, merged, represented, with_singletons
from papers.methods.rows import Rows


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled(Stochastic):
    """StoCFL's clusters, and every single representation."""

    seen: Rows

    def noting(self, ids: Tensor, psi: Tensor) -> Sampled:
        """Keep each representation, to represent its cluster when its client is sampled again."""
        return dataclasses.replace(self, seen=self.seen.put(ids, psi))


@dataclass(frozen=True, config=STRICT)
class StoCFLAuthors(StoCFL):
    """StoCFL as in its authors' code: a chain for the global model, clusters represented by sampled members."""

    tau: Cosine = 0.5  # the authors' code has a value per data set
    weights: Weighting = "equal"
    global_update: Literal["parallel", "chain"] = "chain"
    cluster_vector: Literal["all_members", "sampled"] = "sampled"
    merge_model: Literal["mean", "larger"] = "larger"
    recompute_after_merge: bool = False  # the similarities of merged clusters, within the round
    new_cluster: Literal["anchor", "global"] = "global"  # the model a cluster of one begins with

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Stochastic:
        """As StoCFL, without representations yet."""
        begun = super().init(model, roster, rng)
        return Sampled(**vars(begun), seen=Rows.empty()) if self.cluster_vector == "sampled" else begun

    def train(self, fit: Fit, shared: Fit, omega: Tensor, ask: Ask) -> tuple[Fitted, Tensor]:
        """The global model: each client continues from the result of the one before; the mean of all results."""
        if self.global_update == "parallel" or fit.on is None:
            return super().train(fit, shared, omega, ask)
        reply, last, found = ask(fit), omega, list[Fitted]()
        for client in fit.on.split(1):
            with contextlib.suppress(NoAnswerError):
                found.append(ask(dataclasses.replace(shared, start=All(last), on=client)))
                last = found[-1].models[0]
        return reply, mean_of_chain(found, omega) if found else omega

    def cluster(self, state: Stochastic, cohort: Cohort, ask: Ask) -> Stochastic:
        """As StoCFL; clusters are compared, and their models chosen, by the authors' rules."""
        parts = with_singletons(state, *represented(state, cohort.ids, self.psi or GRADIENT, ask))
        into = self.merge(parts, cohort.ids)
        if torch.equal(into, torch.arange(len(state.centers))):
            return state
        begin = state.anchor if self.new_cluster == "anchor" else state.omega
        return merged(parts, into, begin, average=self.merge_model == "mean")

    def merge(self, parts: Stochastic, sampled: Tensor) -> Tensor:
        """The cluster that each cluster is merged into; clusters without sampled members are left alone."""
        psi, rows = parts.psi, torch.arange(len(parts.psi))
        if isinstance(parts, Sampled):
            of = parts.labels.at(here := sampled[parts.labels.has(sampled)])
            psi, rows = parts.seen.sums(here, of, len(psi), psi), of.unique()
        into = torch.arange(len(psi))
        if len(rows) < 2:
            return into
        psi = psi if len(rows) == len(psi) else psi[rows]
        alike = merge_recomputing(psi, self.tau) if self.recompute_after_merge else greedy_merge(cosines(psi), self.tau)
        into[rows] = torch.stack([rows[alike == m][0] for m in alike])  # the lowest number of each
        return by_first_member(into)


def merge_recomputing(sums: Tensor, tau: float) -> Tensor:
    """Labels (n,): as `greedy_merge`, most similar first, with the merged cluster's mean recomputed after every merge.

    A sum of vectors represents their mean, which has the same direction. Inner products with a sum are sums of inner
    products, so the vectors themselves are used only once, and a merge costs one row.
    """
    dots = gram(sums)
    labels, alive = torch.arange(len(sums)), torch.ones(len(sums), dtype=torch.bool)
    alike = _cosines(dots, dots.diagonal()).fill_diagonal_(-torch.inf)
    best, partner = alike.max(1)  # of each row; the lowest column wins a tie, and then the lowest row
    for _ in range(len(sums) - 1):
        row = int(best.argmax())
        if float(best[row]) <= tau and tau > -1:
            break
        i, j = sorted((row, int(partner[row])))
        labels[labels == j] = i
        alive[j] = False
        before = float(dots[i, i] + dots[j, j])
        dots[i] += dots[j]
        dots[:, i] += dots[:, j]
        if float(dots[i, i]) <= 1e-13 * before:  # opposite vectors cancel out; the remainder is rounding
            dots[i] = dots[:, i] = 0.0
        alike[i] = torch.where(alive, _cosines(dots[i], dots.diagonal(), float(dots[i, i])), -torch.inf)
        alike[i, i] = -torch.inf
        alike[:, i] = alike[i]
        alike[j] = alike[:, j] = -torch.inf
        # Only rows whose nearest cluster was one of the two, or is the merged one, have to be updated.
        touched = torch.nonzero(alive & ((partner == i) | (partner == j) | (alike[i] >= best)))[:, 0]
        touched = torch.cat([touched, torch.tensor([i, j])])
        best[touched], partner[touched] = alike[touched].max(1)
    return by_first_member(labels)


def _cosines(dots: Tensor, squares: Tensor, own: float | None = None) -> Tensor:
    """Cosines from inner products: of all pairs, or of one vector with all; 0 for a zero vector."""
    lengths = squares.clamp(min=0).sqrt()
    lengths = lengths[:, None] * lengths[None] if own is None else lengths * max(own, 0.0) ** 0.5
    return torch.where(lengths > 0, dots / lengths.clamp(min=1e-300), 0.0).clamp(-1, 1)
