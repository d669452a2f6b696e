"""How a run goes, whatever the method."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import NonNegativeInt, PositiveInt, Strict, model_validator
from pydantic.dataclasses import dataclass

from coterie.domains import STRICT, Share, ShareBelowOne
from coterie.errors import CoterieError

Participation = Annotated[int, Strict(), Ge(1)] | Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True, config=STRICT)
class Settings:
    """How a run goes, whatever the method."""

    rounds: PositiveInt = 30
    participation: Participation = 1.0  # a share of the clients (0.1, 1.0) or a count (20) per round
    seed: NonNegativeInt = 0
    evaluate_every: PositiveInt = 1  # rounds
    evaluate_last: PositiveInt = 1  # each of so many last rounds is evaluated, whatever evaluate_every says
    evaluate_on: Participation = 1.0  # a share or a count of the clients, drawn once for the whole run
    evaluate_whom: Literal["all", "met"] = "all"  # "met": only clients drawn for a round so far (FedGroup's authors)
    weigh_clients: Literal["test", "train", "equal"] = "test"  # in accuracy and macro-F1 over clients
    quorum: Share = 0.5  # share of the asked clients that must answer
    retries: NonNegativeInt = 2  # how often a round below the quorum is repeated with other clients
    dropout: ShareBelowOne = 0.0  # simulated: the chance that a client asked does not answer
    newcomers: ShareBelowOne = 0.0  # share of the clients kept from training, and taken in by the method after it
    checkpoint_every: PositiveInt = 5  # rounds, where the run has a directory; the last one always

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.evaluate_whom == "met" and (isinstance(self.evaluate_on, int) or self.evaluate_on != 1.0):
            raise ValueError("evaluate_whom: met is everyone met so far; leave evaluate_on at 1.0")
        return self

    def looks(self, t: int) -> bool:
        """Whether round t, from 0, is evaluated."""
        return (t + 1) % self.evaluate_every == 0 or t >= self.rounds - self.evaluate_last

    def per_round(self, clients: int) -> int:
        """How many clients take part in a round."""
        return how_many("participation", self.participation, clients)

    def evaluated(self, clients: int) -> int:
        """How many clients are evaluated."""
        return how_many("evaluate_on", self.evaluate_on, clients)

    def kept_back(self, clients: int) -> int:
        """How many clients are newcomers."""
        many = round(self.newcomers * clients)
        if many >= clients:
            raise CoterieError(f"newcomers: {self.newcomers:g} of {clients} clients leaves none to train on")
        return many


def how_many(key: str, share: int | float, clients: int) -> int:
    """A share or a count of the clients, as a count."""
    if isinstance(share, int):
        if share > clients:
            raise CoterieError(f"{key}: {share} clients, but there are only {clients}")
        return share
    return max(1, round(share * clients))
