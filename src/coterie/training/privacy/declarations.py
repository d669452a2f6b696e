"""What each method releases of a client beside the means that it takes, and why some methods are refused.

A method of yours declares it as a class attribute of its own, `releases = Releases(...)`; one that declares nothing is
refused. What a declaration does not allow is refused when it is asked (see `private_ask`), so a wrong one is an error,
never a wrong guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import CoterieError
from coterie.methods.fedadam import FedAdam
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavgm import FedAvgM
from coterie.methods.fedprox import FedProx
from coterie.methods.fesem import FeSEM
from coterie.methods.flux import FLUX
from coterie.methods.halves import Halves
from coterie.methods.halves_state import FIRST
from coterie.methods.ifca import IFCA
from coterie.methods.wecfl import WeCFL


def never(*_: int) -> int:
    """The clustering signal of a client is not used."""
    return 0


def once(*_: int) -> int:
    """It is used once: in the first clustering, or when a client that was not there joins."""
    return 1


def looks(rounds: int, everyone: bool) -> int:
    """Of Halves: a look when a client is met, and after 10, 20, 40, ... further visits, of which a round is at most
    one. Where not everyone takes part from the first round on, one more: a client joins the clusters by a vote."""
    count, until, round_ = 1 if everyone else 2, FIRST, FIRST + 1
    while round_ <= rounds:
        count, until = count + 1, 2 * until
        round_ += until + 1
    return count


@dataclass(frozen=True)
class Releases:
    """What a method releases of a client.

    means: mean models per round to which a client's update contributes (once to each; whether its own choice of a
    cluster decides to which row makes no difference to the sum's sensitivity).
    signals: how often single sketches or votes of a client are used to cluster, in so many rounds, and where everyone
    takes part in all of them or not.
    models: whether the clients' models are looked at one by one, as sketches. sketches: whether it asks for sketches.
    votes: whether it asks which center fits a client best. descriptions: whether it asks what a client's data is like.
    """

    means: int = 1
    signals: Callable[[int, bool], int] = never
    models: bool = False
    sketches: bool = False
    votes: bool = False
    descriptions: bool = False

    @property
    def any_signal(self) -> bool:
        """Whether there is a clustering signal beside the means."""
        return self.models or self.sketches or self.votes or self.descriptions


# Exactly these classes: a subclass may do more.
DECLARED: Mapping[type, Releases] = {
    FedAvg: Releases(),
    FedProx: Releases(),
    FedAvgM: Releases(),
    FedAdam: Releases(),
    IFCA: Releases(),
    WeCFL: Releases(signals=once, models=True, votes=True),
    FeSEM: Releases(signals=once, models=True, votes=True),
    FLUX: Releases(signals=once, descriptions=True),
    Halves: Releases(signals=looks, sketches=True, votes=True),
}
REFUSED: Mapping[str, str] = {
    "FedSoft": "every client sends its shares of all clusters, and its own model, again and again",
    "FedEM": "every client sends one model per component; all of them, and its mixture weights, are its data",
    "FedRC": "every client sends one model per component, and its soft label counts under each of them",
    **dict.fromkeys(
        ("FedPer", "FedRep", "FedBN", "Personal"),
        "clients keep a part of the model, and what they send of the rest has not been accounted for",
    ),
    "CLoVE": "every client sends its losses under all models, in every round",
    "FedDrift": "every client sends its losses under all models, at the start of every time step",
    "Ditto": "its personal models never leave the clients, but nobody has worked out what else it releases here",
    "CFL": "it splits by the cosines between single updates, and stops by the largest norm of one of them",
    "StoCFL": "it compares single full gradients of clients, in every round",
    "FLHC": "its hierarchy is of single models, and its cut depends on all of them",
    "PACFL": "every client sends thousands of numbers on its raw data: noise would leave nothing of them",
    "Fielding": "every client sends the shares of its labels in every round",
    "FedGroup": "it groups by an SVD of single updates",
    "FedGrouProx": "it groups by an SVD of single updates",
    "CAM": "it needs a global model beside those of the clusters, and scores with both of them",
    "Local": "no model leaves a client, so there is nothing to make private",
}
WRITE = "method.name=ifca (or fedavg, fedprox, wecfl, fesem, flux, halves) is accounted for"


def declared(method: Any) -> Releases:
    """What a method releases; an error with the reason where that is not accounted for."""
    kind = type(method)
    found: Releases | None = vars(kind).get("releases") or DECLARED.get(kind)
    if found is None:
        why = next((REFUSED[base.__name__] for base in kind.__mro__ if base.__name__ in REFUSED), None)
        why = why or "nobody has said what it releases of a client (a class attribute releases = Releases(...))"
        raise CoterieError(f"privacy: {kind.__name__} is refused: {why}; {WRITE}", code="privacy-unaccounted")
    if refused := list(_refused_settings(method)):
        why = "; ".join(f"{what} refused: {reason}" for what, reason, _ in refused)
        write = " ".join(word for _, _, word in refused)
        kept = " (without trials, clusters are kept as they are found)" if "trial" in write else ""
        raise CoterieError(f"privacy: {why}. Write {write}{kept}", code="privacy-unaccounted")
    return found


def _refused_settings(method: Any) -> Iterator[tuple[str, str, str]]:
    """What of a method's settings is refused, why, and what to write instead."""
    if not isinstance(getattr(method, "k", 1), int):
        yield f"k={method.k!r} is", "the rule looks at single clients", "method.k=4"
    if isinstance(method, Halves) and method.trial:
        yield (
            "the trials of Halves are",
            "clients send the scores of three models after every visit",
            "method.trial=false",
        )
    local = getattr(method, "local", None)
    if local is not None and local.lr == "auto":
        yield "local.lr=auto is", "it tries rates on clients' data, and a number does not", "local.lr=0.1"
