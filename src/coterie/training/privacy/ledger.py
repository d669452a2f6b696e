"""What was spent on each client so far. A round that is repeated counts again: its answers were used once already."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.settings import explained
from coterie.core.tables import ByClient
from coterie.training.privacy.plan import PrivacyPlan


@explained
@dataclass(frozen=True)
class Spent:
    """What a run has cost its clients, after a round."""

    epsilon: float  # of the client on which most was spent
    delta: float
    noise: float  # the noise multiplier of a mean
    amplified: bool  # whether Poisson sampling was counted; then every client has the same epsilon
    clients: tuple[tuple[float, int], ...]  # how many clients have which epsilon, the largest first


@dataclass(frozen=True, eq=False)
class Ledger:
    """A plan, the attempts at rounds so far, and how often each client's answers were used."""

    plan: PrivacyPlan
    attempts: int = 0
    rounds: ByClient = field(default_factory=ByClient.empty)  # attempts at rounds in which a client has answered
    signals: ByClient = field(default_factory=ByClient.empty)  # how often a client's sketch or vote was used

    def begun(self) -> Ledger:
        """One more attempt at a round."""
        return replace(self, attempts=self.attempts + 1)

    def answered(self, ids: Tensor) -> Ledger:
        """The answers of these clients are used in the means of a round."""
        return replace(self, rounds=self.rounds.put(ids, self.rounds.at(ids, default=0) + 1))

    def signalled(self, ids: Tensor) -> Ledger:
        """A sketch or a vote of these clients is used. Beyond the plan, it is refused before anybody sees it."""
        times, most = self.signals.at(ids, default=0) + 1, self.plan.most_signals
        if len(ids) and int(times.max()) > most:
            raise CoterieError(
                f"privacy: the clustering signal of client {int(ids[times.argmax()])} was used {most} times, as "
                "planned; once more is not accounted for",
                code="privacy-budget",
            )
        return replace(self, signals=self.signals.put(ids, times))

    @property
    def allows_a_round(self) -> bool:
        """Whether one more round fits into the budget, for every client; repeated rounds have used it up sooner."""
        if self.plan.settings.epsilon is None:
            return True
        used = self.attempts if self.plan.amplified else int(self.rounds.values.max()) if len(self.rounds.ids) else 0
        return used < self.plan.rounds

    def epsilon_of(self, ids: Tensor) -> list[float]:
        """Of each of these clients, by now."""
        if self.plan.amplified:
            return [self.plan.amplified_epsilon(self.attempts)] * len(ids)
        used = zip(self.rounds.at(ids, default=0).tolist(), self.signals.at(ids, default=0).tolist(), strict=True)
        return [self.plan.epsilon(rounds, signals) for rounds, signals in used]

    def spent(self, ids: Tensor) -> Spent:
        """Of everyone on the roster."""
        found = self.epsilon_of(ids)
        clients = tuple((one, found.count(one)) for one in sorted(set(found), reverse=True))
        worst = max(found, default=0.0)
        return Spent(worst, self.plan.settings.delta, self.plan.noise, self.plan.amplified, clients)

    # ------------------------------------------------------------------------------------------- in a checkpoint

    def packed(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        return {
            "attempts": self.attempts,
            "ids": self.rounds.ids,
            "rounds": self.rounds.values,
            "signalled": self.signals.ids,
            "signals": self.signals.values,
        }

    @classmethod
    def unpacked(cls, plan: PrivacyPlan, kept: Mapping[str, Any]) -> Ledger:
        """From a checkpoint."""
        rounds, signals = ByClient(kept["ids"], kept["rounds"]), ByClient(kept["signalled"], kept["signals"])
        return cls(plan, int(kept["attempts"]), rounds, signals)


class BudgetSpentError(CoterieError):
    """Another attempt at a round does not fit into the budget."""

    code = "privacy-budget"

    def __init__(self, ledger: Ledger, round: int) -> None:
        super().__init__(
            f"privacy: the budget is spent by attempts at round {round} that too few clients answered; a lower quorum "
            "repeats fewer of them"
        )
        self.ledger = ledger


def words(spent: Spent) -> str:
    """In one line."""
    if math.isinf(spent.epsilon):
        return "no noise: epsilon is infinite"
    how = "the same for every client" if len(spent.clients) == 1 else "of the client on which most was spent"
    return f"epsilon {spent.epsilon:.3g} at delta {spent.delta:g}, {how}"
