"""How clients' models become a cluster's model: by a plain weighted mean, or by what a reply carries instead.

A method takes a mean with `mean` or `mean_by` (see `clustering.averaging`) and gives it the reply. A reply that carries
an `Aggregator` has it computed by that: robust aggregation, clipping and noise work for every method, and no method
knows of them. Layers attach it; without one, means are plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from coterie.core.tasks import Fitted


class Aggregator(Protocol):
    """Takes the place of the weighted mean, cluster by cluster, for the replies of one round.

    `Fitted.start` says what the clients trained from; `references.starts_of(reply.start, reply.ids, reply.choice)` is
    that as vectors, or None where only the client knows. Models on other machines are fetched by `reply.models`.
    """

    def __call__(self, labels: Tensor, reply: Fitted, weights: Tensor, empty: Tensor) -> Tensor:
        """The model of each cluster (K, P), of the type of `empty`.

        labels (n,): the cluster of each row of the reply. weights (n,): those of the mean; a client of weight 0 has no
        part in it. empty (K, P): the models that clusters have now; one without a member keeps it.
        """


def takes(aggregator: Aggregator, answers: int) -> bool:
    """Whether it is asked for so many answers. Of none, a cluster keeps its model, except where noise is added: whether
    anybody answered must not show."""
    return answers > 0 or bool(getattr(aggregator, "also_of_nobody", False))
