"""FedRep: a shared body and a personal head, trained in turn: first the head for many epochs, then the body for a few.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021 (Algorithm 1):
tau epochs of the head h_i with the body phi frozen, then the body with the head frozen; phi <- mean of the phi_i.
What is frozen stays as it is to the last bit: to the optimiser of a phase the other part does not exist (in the
authors' code one optimiser has both, so that momentum and weight decay may still move what is frozen).
The server needs the mean of the clients' bodies only (secure aggregation possible); heads are never sent.
The means are weighted by n_i, as in the authors' code; the paper's clients have equally many samples. The last round
of their experiments, in which all clients train heads only, is what a newcomer does here (`tune`).
The paper's table was not run again: its smallest cell (CIFAR-10, 100 rounds of 10 + 1 epochs, the authors' network with
64 channels) would take about 70 minutes of a processor core, by its speed in a trial; others take longer or other data.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pydantic import PositiveInt

from coterie.clustering.averaging import mean, weigh
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort
from coterie.core.tasks import Fit
from coterie.methods.contract import Ask
from coterie.methods.fedper import FedPer
from coterie.methods.personal import HEAD_OPTIMIZER, Split


@dataclass(frozen=True, config=STRICT)
class FedRep(FedPer):
    """A shared body and a personal head, trained in turn: the head first, then the body."""

    paper: ClassVar[str] = "Collins et al. 2021, arXiv:2102.07078"

    head_epochs: PositiveInt = 10  # tau; the body trains as `local` says
    head_steps: PositiveInt | None = None  # a number of batches instead, as in `local.steps`
    later: ClassVar[dict[str, None]] = {"head_steps": None}

    def round(self, state: Split, cohort: Cohort, ask: Ask) -> Split:
        """h_i for head_epochs (or head_steps) with phi frozen, then phi_i with h_i frozen; phi <- sum_i n_i/n phi_i."""
        start, section = self.start(state), self.section
        if start.personal is None:
            return super().round(state, cohort, ask)
        epochs = self.head_epochs if self.head_steps is None else None
        head = dataclasses.replace(self.local, epochs=epochs, steps=self.head_steps)
        _, body = ask(
            [
                Fit(start, local=head, train=section, send=False, optimizer_slot=HEAD_OPTIMIZER),
                Fit(start, local=self.local, freeze=section),
            ]
        )
        return self.averaged(state, mean(body, weigh(body, self.weights), empty=state.base))
