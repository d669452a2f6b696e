"""Oracle: the true clusters of a simulated federation; FedAvg in each. For comparison only: no method can know them.

It says what perfect clustering is worth: what a method is below it, it loses by its clusters. It needs data that was
divided into clusters by a partition (rotated, shifted, ...), or Federation.from_arrays(..., truth=[...]). Where clients
are mixtures there is no true cluster, and over a network nobody knows it: it is refused there.
A newcomer of a simulation (`newcomers`) joins its true cluster; one that is admitted later, that of least loss.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.core.client_table import ByClient
from coterie.core.cohort import Roster
from coterie.core.constructors import dataclass
from coterie.core.types import STRICT
from coterie.methods.given import Given


@dataclass(frozen=True, config=STRICT)
class Oracle(Given):
    """The true clusters of a simulated federation; FedAvg in each (for comparison only)."""

    missing: ClassVar[str] = (
        "method.name: oracle: these clients have no true clusters that are known. A simulation has them where a "
        "partition makes them (data.partition.name=rotated, ...) or with Federation.from_arrays(..., truth=[...]); "
        "mixtures, your own data and clients over a network do not"
    )

    def known(self, roster: Roster) -> ByClient | None:
        """The true cluster of each client."""
        return roster.truth
