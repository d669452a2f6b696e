"""The mean of a cluster's models, private: what takes the place of a mean in a run with `privacy`.

A cluster's new model is its old one plus the noisy sum of its clients' clipped updates over their noisy count. An
update is what a client has moved from what it started from. A cluster whose noisy count is below the minimum keeps its
model. Noise is added whoever answered, also to nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.references import starts_of
from coterie.core.tasks import Fitted
from coterie.training.privacy.mechanisms import clipped_sums, noise
from coterie.training.privacy.plan import PrivacyPlan
from coterie.training.privacy.sealed import SealedModels

SUM, COUNT = 0, 1  # words of the keys that noise is drawn from


class PrivateMean:
    """Serves one attempt at a round, and refuses more means than the plan has noise for."""

    also_of_nobody = True

    def __init__(self, plan: PrivacyPlan, round: int, attempt: int) -> None:
        self._plan, self._words, self.taken = plan, (round, attempt), 0

    def __call__(self, labels: Tensor, reply: Fitted, weights: Tensor, empty: Tensor) -> Tensor:
        """See `core.aggregation.Aggregator`."""
        plan, call = self._plan, self.taken
        if call >= plan.releases.means:
            raise CoterieError(
                f"privacy: the method takes more than {plan.releases.means} mean(s) per round, which is not accounted "
                "for",
                code="privacy-unaccounted",
            )
        self.taken += 1
        starts = None if reply.start is None else starts_of(reply.start, reply.ids, reply.choice)
        if starts is None and len(reply.ids):
            raise CoterieError(
                "privacy: clients started from models of their own, so their updates cannot be clipped by the server",
                code="privacy-unaccounted",
            )
        assert isinstance(reply.sent, SealedModels)
        clusters, bound = len(empty), plan.settings.clip
        if len(reply.ids):
            assert starts is not None
            sums, counts = clipped_sums(reply.sent.opened(self), starts, labels, weights, clusters, bound)
        else:
            sums, counts = torch.zeros_like(empty, dtype=torch.float64), torch.zeros(clusters, dtype=torch.float64)
        sums += noise(tuple(sums.shape), plan.sum_noise * bound, plan.noise_key, *self._words, call, SUM)
        counts += noise((clusters,), plan.count_noise, plan.noise_key, *self._words, call, COUNT)
        large = counts >= max(plan.settings.smallest, 1.0)
        moved = empty.double() + sums / counts.clamp(min=1.0)[:, None]
        return torch.where(large[:, None], moved, empty.double()).to(empty.dtype)
