"""The settings of a run that do not depend on the method: rounds, participation, evaluation, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from annotated_types import Ge, Gt, Le
from pydantic import NonNegativeInt, PositiveInt, Strict, model_validator

from coterie.clustering.server_optimizers import Adam, Momentum
from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, ShareBelowOne, dataclass
from coterie.layers import LayerSettings
from coterie.layers.attack import Attack
from coterie.layers.privacy import Privacy
from coterie.layers.robust import Robust

Kept = Annotated[int, Strict(), Ge(2)] | Literal["all"]
Participation = Annotated[int, Strict(), Ge(1)] | Annotated[float, Gt(0), Le(1)]


class SettingsOptions(TypedDict, total=False):
    """The settings as keyword arguments, for editors and type checkers; `Settings` has the defaults and the checks."""

    rounds: int
    participation: int | float
    sampling: Literal["fixed", "poisson"]
    seed: int
    evaluate_every: int
    evaluate_last: int
    evaluate_on: int | float
    evaluate_whom: Literal["all", "met"]
    weigh_clients: Literal["test", "train", "equal"]
    quorum: float
    retries: int
    update_bound: float
    dropout: float
    newcomers: float
    validation: float
    stop_after: int | None
    checkpoint_every: int
    keep_checkpoints: int | Literal["all"]
    aggregator: str | Robust | Mapping[str, Any] | None
    server_optimizer: str | Momentum | Adam | Mapping[str, Any] | None
    attack: Attack | Mapping[str, Any] | None
    privacy: Privacy | None


@dataclass(frozen=True, config=STRICT)
class RoundSettings:
    """What no layer has to do with."""

    rounds: PositiveInt = 30
    participation: Participation = 1.0  # a share of the clients (0.1, 1.0) or a count (20) per round
    sampling: Literal["fixed", "poisson"] = "fixed"  # poisson: each client takes part by a coin of its own
    seed: NonNegativeInt = 0
    evaluate_every: PositiveInt = 1  # rounds
    evaluate_last: PositiveInt = 1  # how many of the last rounds are all evaluated
    evaluate_on: Participation = 1.0  # a share or a count of the clients, drawn once for the whole run
    evaluate_whom: Literal["all", "met"] = "all"  # "met": only clients drawn for a round so far (FedGroup's authors)
    weigh_clients: Literal["test", "train", "equal"] = "test"  # in accuracy and macro-F1 over clients
    newcomers: ShareBelowOne = 0.0  # share of the clients that is not trained on and joins after training
    # Share of each client's training samples held out for validation, or the samples that the data marks (val). With
    # it, rounds are scored on validation samples, and test samples are used once, after the last round.
    validation: ShareBelowOne = 0.0
    stop_after: PositiveInt | None = None  # rounds without a lower validation loss after which the run ends
    checkpoint_every: PositiveInt = 5  # rounds, if the run has a directory; the last one always
    keep_checkpoints: Kept = 2  # how many of them, or "all": `coterie run --back-to ROUND` goes back to one of these

    @model_validator(mode="after")
    def _consistent(self) -> RoundSettings:
        if self.evaluate_whom == "met" and (isinstance(self.evaluate_on, int) or self.evaluate_on != 1.0):
            raise ValueError("evaluate_whom: met is everyone met so far; leave evaluate_on at 1.0")
        if self.sampling == "poisson" and isinstance(self.participation, int):
            raise ValueError("sampling: poisson draws each client with a chance; write participation as a share (0.1)")
        return self

    def evaluates(self, t: int) -> bool:
        """Whether round t, from 0, is evaluated."""
        return (t + 1) % self.evaluate_every == 0 or t >= self.rounds - self.evaluate_last

    @property
    def uses_validation(self) -> bool:
        """Whether rounds are scored on validation samples, and test samples used once, at the end."""
        return bool(self.validation) or self.stop_after is not None

    def per_round(self, clients: int) -> int:
        """How many clients take part in a round."""
        return how_many("participation", self.participation, clients)

    def clients_per_round(self, clients: int) -> int:
        """How many of all `clients` train in a round, newcomers not counted."""
        return self.per_round(clients - self.newcomer_count(clients))

    def evaluated(self, clients: int) -> int:
        """How many clients are evaluated."""
        return how_many("evaluate_on", self.evaluate_on, clients)

    def newcomer_count(self, clients: int) -> int:
        """How many clients are newcomers."""
        many = round(self.newcomers * clients)
        if many >= clients:
            raise CoterieError(
                f"newcomers: {self.newcomers:g} of {clients} clients leaves none to train on",
                code="config-invalid-value",
            )
        return many


@dataclass(frozen=True, config=STRICT)
class Settings(LayerSettings, RoundSettings):
    """The settings of a run that do not depend on the method: of its rounds, and of the layers around its visits."""


def how_many(key: str, share: int | float, clients: int) -> int:
    """A share or a count of the clients, as a count."""
    if isinstance(share, int):
        if share > clients:
            raise CoterieError(f"{key}: {share} clients, but there are only {clients}", code="config-invalid-value")
        return share
    return max(1, round(share * clients))
