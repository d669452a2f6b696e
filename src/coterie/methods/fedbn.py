"""FedBN: FedAvg without the normalisation layers, which stay with each client.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021 (Algorithm 1): all
layers but normalisation are averaged, with equal weights; scales, shifts and running statistics stay.
A layer is a normalisation by its type (BatchNorm, InstanceNorm, GroupNorm, LayerNorm, RMSNorm), wherever it is in the
network; the authors' code goes by "bn" in its name. A network without any gives FedAvg with equal weights, to the bit.
The server needs the mean of the clients' shared layers only (secure aggregation possible).
The paper tells of newcomers that have no data. Here one has: it fits normalisation layers to its data for `tune` epochs
before it predicts, with the rest frozen, and keeps none of it.
The paper's tables were not run again: of its five sets of digits this library loads only MNIST.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.clustering.averaging import Weighting
from coterie.core.parts import Section
from coterie.core.settings import STRICT, dataclass
from coterie.methods.fedper import FedPer


@dataclass(frozen=True, config=STRICT)
class FedBN(FedPer):
    """FedAvg without the normalisation layers, which stay with each client."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2102.07623"

    weights: Weighting = "equal"  # 1/K, as in Algorithm 1
    section: Section = "norms"
