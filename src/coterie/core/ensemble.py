"""Several networks as one: their outputs are added, averaged, or mixed."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coterie.core.objective import AnyLoss
from coterie.core.replica import Replica


def combined(outputs: Tensor, mixture: Tensor | None, average: bool, loss: AnyLoss) -> Tensor:
    """One prediction (n, outputs) of several (models, n, outputs): logits, or log-probabilities of a mixture."""
    if mixture is None:
        return outputs.mean(0) if average else outputs.sum(0)
    weights = mixture.to(outputs.dtype).view(-1, *[1] * (outputs.ndim - 1))
    if loss != "cross_entropy":
        return (outputs * weights).sum(0)
    # In the log domain, where the cross-entropy of a mixture of probabilities is its own.
    return torch.logsumexp(torch.log_softmax(outputs, -1) + weights.log(), 0)


def as_network(replica: Replica, thetas: Sequence[Tensor], mixture: Tensor | None, average: bool) -> nn.Module:
    """The network of a model, or of several together: copies of their own, in evaluation mode."""
    networks = [copy.deepcopy(replica.load(theta).network).eval() for theta in thetas]
    if len(networks) == 1 and mixture is None:
        return networks[0]
    return Ensemble(networks, None if mixture is None else mixture.clone(), average, replica.loss).eval()


class Ensemble(nn.Module):
    """Networks that predict together, as a network to save or export."""

    mixture: Tensor | None

    def __init__(self, networks: Sequence[nn.Module], mixture: Tensor | None, average: bool, loss: AnyLoss) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.register_buffer("mixture", mixture)
        self.average, self.loss = average, loss

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, outputs); log-probabilities where it is a mixture; values for regression."""
        return combined(torch.stack([network(x) for network in self.networks]), self.mixture, self.average, self.loss)
