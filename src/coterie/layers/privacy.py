"""Differential privacy of clients, by a server that they trust: clipped updates, and noise on all that is released.

What a run releases is worked out before its first round (`PrivacyPlan`), and what was spent on each client is counted
(`Ledger`). Clients' models are sealed: only a private mean sees them. Sketches and votes get noise, and what a client
says of its number of samples and its loss is left out: all clients weigh the same. What a method has not declared
(`methods.contract.Releases`) is refused when it is asked, so a wrong declaration is an error, never a wrong guarantee.

Without amplification, everything that is released of a client is Gaussian, and precisions (1 / noise^2) add up exactly:
the budget is a sum of precisions. A share of it (`privacy.signal`) is for sketches and votes where the method has any.
With Poisson sampling and a method that releases means only, a round is a subsampled Gaussian, and all clients have the
same epsilon. A sketch or a vote of one client shows that it takes part: then no amplification is claimed.

A mean is a noisy sum and a noisy count, of noise multipliers z and 3 z: together they cost what one release of noise
z / sqrt(1 + 1/9) does. A cluster's new model is its old one plus the noisy sum of its clients' clipped updates over
their noisy count; an update is what a client has moved from what it started from. A cluster whose noisy count is below
the minimum keeps its model. Noise is added whoever answered, also to nothing.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from pydantic import NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor
from torch.nn import functional

from coterie.core import settings as constructors
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.model import Model
from coterie.core.references import Ref, length_of, starts_of, vectors_of, walk
from coterie.core.settings import STRICT, explained
from coterie.core.tables import ByClient, Clients
from coterie.core.tasks import Describe, Described, Evaluate, Fit, Fitted, RemoteModels, Reply, Score, Scored, Task
from coterie.data.federation import Federation
from coterie.engines.contract import Outcome, Visit
from coterie.layers.accountant import (
    Gaussian,
    PoissonGaussian,
    Release,
    clipped,
    clipped_sums,
    epsilon_of,
    lifted,
    noise,
    noise_for,
    noisy_sketches,
    precision_for,
    require_accounting,
)
from coterie.layers.contract import NOBODY, Layer, Onward, Round, Setup
from coterie.methods.contract import Refusal, Releases, releases_of

FILE = "privacy.json"  # in a run's directory
RELATION = "one client's data added or removed; who is on the roster is known"
MOST = 1e6  # of noise and clip: beyond it, what is released is no model any more
LONGEST = 65_536  # numbers of a sketch: every client's gets noise, and is kept in memory
COUNTS = 3.0  # how much noisier the count of a cluster is than its sum, in units of their sensitivities
ENOUGH = 0.9  # of epsilon is spent, or it is said why not
SUM, COUNT, SKETCH, VOTE, MODELS = range(5)  # words of the keys that noise is drawn from
WRITE = "method.name=ifca (or fedavg, fedprox, wecfl, fesem, flux, halves) is accounted for"


@constructors.dataclass(frozen=True, config=STRICT)
class Privacy:
    """Client-level differential privacy by a trusted server: clipped updates, and noise on what is released."""

    epsilon: PositiveFloat | None = None  # what the whole run may cost; the noise is found for it
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    # In place of epsilon: the noise multiplier of a mean; 0 is no privacy.
    noise: Annotated[float, Ge(0), Le(MOST)] | None = None
    clip: Annotated[float, Gt(0), Le(MOST)] = 1.0  # the largest norm of a client's update, and of a sketch of it
    signal: Annotated[float, Gt(0), Lt(1)] = 0.5  # share of the budget for sketches and votes, where a method has any
    sketch: Annotated[int, Ge(1), Le(LONGEST)] = 16  # numbers for a client's model, where single models are clustered
    smallest: NonNegativeFloat = 5.0  # clients of a cluster, by a noisy count; a smaller cluster keeps its model
    evaluation: Literal["simulated", "trusted"] = "simulated"  # over a network scores of clients need "trusted"

    @model_validator(mode="after")
    def _one_of_both(self) -> Privacy:
        if (self.epsilon is None) == (self.noise is None):
            raise ValueError("give epsilon (8) or noise (1.1), one of them")
        return self


@constructors.dataclass(frozen=True, config=STRICT)
class PrivacySettings:
    """The option of a run."""

    privacy: Privacy | None = None  # differential privacy of clients (docs/privacy.md)

    @model_validator(mode="after")
    def _accounted(self) -> PrivacySettings:
        if self.privacy is not None and getattr(self, "aggregator", None) is not None:
            raise ValueError("privacy: a robust aggregator looks at all updates at once, which is not accounted for")
        if self.privacy is not None and getattr(self, "stop_after", None) is not None:
            raise ValueError(
                "privacy: stop_after ends the run by the validation losses of single clients, which is not accounted "
                "for; leave it out"
            )
        return self


# ------------------------------------------------------------------------------------------------ what will be released


def declared(method: Any) -> Releases:
    """What a method releases; an error with the reason where that is not accounted for."""
    found = releases_of(method)
    if isinstance(found, str):
        raise CoterieError(f"privacy: {type(method).__name__} is refused: {found}; {WRITE}", code="privacy-unaccounted")
    if refused := list(_refused_settings(method, found)):
        why = "; ".join(f"{what} is refused: {one.why}" for what, one in refused)
        write = " ".join(one.write for _, one in refused)
        then = "".join(f" ({one.then})" for _, one in refused if one.then)
        raise CoterieError(f"privacy: {why}. Write {write}{then}", code="privacy-unaccounted")
    return found


def _refused_settings(method: Any, found: Releases) -> Iterator[tuple[str, Refusal]]:
    """What of a method's settings is refused, why, and what to write instead."""
    k = getattr(method, "k", 1)
    if not isinstance(k, int):
        yield f"k={k!r}", Refusal(k, "the rule looks at single clients", "method.k=4")
    for name, refusal in found.refused.items():
        if getattr(method, name) == refusal.value:
            yield f"{name}={refusal.value!r}", refusal
    local = getattr(method, "local", None)
    if local is not None and local.lr == "auto":
        yield "local.lr=auto", Refusal("auto", "it tries rates on clients' data, and a number does not", "local.lr=0.1")


@dataclass(frozen=True)
class PrivacyPlan:
    """What a run releases, and how noisy. `noise` is the multiplier of a mean (sum and count together)."""

    settings: Privacy
    releases: Releases
    rounds: int
    most_signals: int  # how often a client's sketch or vote may be used
    noise: float
    signal_noise: float  # of a sketch or a vote; 0 where there is none, or no noise
    share: float | None  # of Poisson sampling, where amplification holds
    key: int  # what cohorts are drawn from, and in a simulation noise
    simulated: bool = True  # with real clients, noise is the operating system's

    @property
    def sum_noise(self) -> float:
        """The noise multiplier of a cluster's sum of updates."""
        return self.noise * math.sqrt(1 + COUNTS**-2)

    @property
    def count_noise(self) -> float:
        """The noise multiplier, and standard deviation, of a cluster's count."""
        return COUNTS * self.sum_noise

    @property
    def noise_key(self) -> int | None:
        """See `accountant.noise`."""
        return self.key if self.simulated else None

    @property
    def amplified(self) -> bool:
        """Whether unseen sampling counts in the clients' favour."""
        return self.share is not None

    def amplified_epsilon(self, attempts: int) -> float:
        """Of every client after so many rounds, repeated ones included."""
        assert self.share is not None
        return epsilon_of(_sampled(self.share, self.noise, self.releases.means, attempts), self.settings.delta)

    def epsilon(self, rounds: int, signals: int) -> float:
        """Of a client that answered in so many rounds and signalled so often, without amplification."""
        means, other = Gaussian(self.noise, rounds * self.releases.means), Gaussian(self.signal_noise, signals)
        return epsilon_of((means, other), self.settings.delta)


def _sampled(share: float, noise: float, means: int, times: int) -> tuple[Release, ...]:
    """Several means of a round are of the same cohort: one Gaussian, subsampled once."""
    return (PoissonGaussian(share, noise / math.sqrt(means), times),)


def plan(method: Any, model: Model, settings: Any, key: int, *, simulated: bool = True) -> PrivacyPlan | None:
    """The plan of a run, or None where it has no privacy; an error where the assumptions do not hold.

    key: what noise is drawn from. simulated: whether all clients are there from the first round on, and noise is drawn
    from the key; with real clients only cohorts are.
    """
    if settings.privacy is None:
        return None
    found = budget(method, settings, key, simulated=simulated)
    if model.size != model.parameters:
        raise CoterieError(
            "privacy: the network keeps running statistics (batch normalisation), which noise would ruin; "
            "use a network without them",
            code="privacy-model",
        )
    return found


def budget(method: Any, settings: Any, key: int, *, simulated: bool) -> PrivacyPlan:
    """The plan of a run with privacy whatever its network is."""
    asked = settings.privacy
    assert asked is not None
    require_accounting()
    releases = declared(method)
    share = None
    if settings.sampling == "poisson" and not releases.any_signal:
        share = float(settings.participation)
    everyone = simulated and settings.participation == 1.0 and not settings.dropout
    signals = releases.signals(settings.rounds, everyone) if releases.any_signal else 0
    noise, signal_noise = _noises(asked, releases, settings.rounds, signals, share)
    return PrivacyPlan(asked, releases, settings.rounds, signals, noise, signal_noise, share, key, simulated)


def _noises(asked: Privacy, releases: Releases, rounds: int, signals: int, share: float | None) -> tuple[float, float]:
    """The noise multipliers of means and of signals."""
    if asked.epsilon is None:  # a signal is as noisy as if the shares of the budget were kept to
        noise = float(asked.noise or 0.0)
        ratio = signals * (1 - asked.signal) / (rounds * releases.means * asked.signal)
        return noise, noise * math.sqrt(ratio) if signals else 0.0
    if share is not None:
        return noise_for(asked.epsilon, asked.delta, lambda noise: _sampled(share, noise, releases.means, rounds)), 0.0
    budget = precision_for(asked.epsilon, asked.delta)
    for_signals = asked.signal * budget if signals else 0.0
    noise = math.sqrt(rounds * releases.means / (budget - for_signals))
    return noise, math.sqrt(signals / for_signals) if signals else 0.0


def check_with_clients(method: Any, settings: Any) -> None:
    """What a server can refuse before it listens: everything but what the network is, which clients' data decide."""
    if settings.privacy is None:
        return
    if settings.privacy.evaluation != "trusted":
        raise CoterieError(
            "privacy: with real clients, the scores that they send in evaluations are not covered by epsilon. If the "
            "server and its run directory are trusted with them, write privacy.evaluation=trusted",
            code="privacy-evaluation",
        )
    if settings.checkpoint_every != 1:
        raise CoterieError(
            "privacy: with real clients every round must be saved before its models are sent out, or a server that "
            "crashed would forget what it has spent; leave checkpoint_every at 1",
            code="config-conflict",
        )
    budget(method, settings, 0, simulated=False)


def planned(method: Any, model: Model, clients: Clients, settings: Any) -> PrivacyPlan | None:
    """The plan of a run. In a simulation noise follows the seed; with real clients it is secret, and new every time."""
    if settings.privacy is None:
        return None
    simulated = isinstance(clients, Federation)
    if not simulated:
        check_with_clients(method, settings)
    key = settings.seed if simulated else secrets.randbits(128)
    found = plan(method, model, settings, key, simulated=simulated)
    if found is not None:
        _warn(found)
    return found


def _warn(found: PrivacyPlan) -> None:
    """What is allowed, but is not what was asked for."""
    asked = found.settings
    if asked.epsilon is None or asked.noise is not None:
        return
    spent = (
        found.amplified_epsilon(found.rounds) if found.amplified else found.epsilon(found.rounds, found.most_signals)
    )
    if spent < ENOUGH * asked.epsilon:
        warnings.warn(
            f"privacy.epsilon: {asked.epsilon:g} would need so little noise that its cost cannot be told: the run has "
            f"more, and ends at an epsilon of about {spent:.3g}. Above 20 or so, epsilon protects hardly anybody",
            CoterieWarning,
            stacklevel=2,
        )


# ------------------------------------------------------------------------------------------------------- what was spent


@explained
@dataclass(frozen=True)
class Spent:
    """What a run has cost its clients, after a round."""

    epsilon: float  # of the client on which most was spent
    delta: float
    noise: float  # the noise multiplier of a mean
    amplified: bool  # whether Poisson sampling was counted; then every client has the same epsilon
    clients: tuple[tuple[float, int], ...]  # how many clients have which epsilon, the largest first

    def said(self) -> dict[str, Any]:
        """As a round's line has it: an infinite epsilon is null."""
        clients = [[_number(epsilon), count] for epsilon, count in self.clients]
        return {**dataclasses.asdict(self), "epsilon": _number(self.epsilon), "clients": clients}

    @classmethod
    def read(cls, said: Mapping[str, Any] | None) -> Spent | None:
        """And back; None where the line has nothing of it."""
        if said is None:
            return None
        known = [(math.inf if epsilon is None else float(epsilon), int(many)) for epsilon, many in said["clients"]]
        worst = math.inf if said["epsilon"] is None else float(said["epsilon"])
        return cls(worst, said["delta"], said["noise"], said["amplified"], tuple(known))


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


def words(spent: Spent) -> str:
    """In one line."""
    if math.isinf(spent.epsilon):
        return "no noise: epsilon is infinite"
    how = "the same for every client" if len(spent.clients) == 1 else "of the client on which most was spent"
    return f"epsilon {spent.epsilon:.3g} at delta {spent.delta:g}, {how}"


# ----------------------------------------------------------------------------------------------------- what is released


class SealedModels:
    """Models (n, P) that are kept from the method."""

    def __init__(self, models: Tensor | RemoteModels, mean: PrivateMean, seen: Callable[[Tensor], Tensor]) -> None:
        """mean: the one that may open it. seen: what stands for the models where the method looks at them."""
        self._models, self._mean, self._seen = models, mean, seen
        self._shown: Tensor | None = None
        self.dtype = models.dtype

    def __len__(self) -> int:
        return len(self._models)

    @property
    def nbytes(self) -> int:
        """Of the models."""
        return int(self._models.nbytes)

    def opened(self, by: PrivateMean) -> Tensor:
        """The models, for the private mean."""
        assert by is self._mean, "of another round"
        return self._models if isinstance(self._models, Tensor) else self._models.gathered()

    def gathered(self) -> Tensor:
        """What stands for the models, drawn once."""
        if self._shown is None:
            self._shown = self._seen(self.opened(self._mean))
        return self._shown

    def combined(self, share: Tensor) -> Tensor:
        """A mean that is not private: refused."""
        raise CoterieError("privacy: a mean was taken without its noise", code="privacy-unaccounted")

    def norms(self, choice: Tensor | None) -> Tensor:
        """The norms of single updates: refused."""
        raise CoterieError("privacy: norms of single updates are not released", code="privacy-unaccounted")


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


class PrivateAttempt:
    """One attempt at a round. `ledger` has what was spent, this attempt included."""

    def __init__(self, ledger: Ledger, round: int, attempt: int, cohort: Tensor) -> None:
        self._plan, self._words, self._cohort = ledger.plan, (round, attempt), cohort
        self.ledger = ledger.begun()
        self._mean = PrivateMean(ledger.plan, round, attempt)
        self._charged, self._asked, self._missing = NOBODY, set[int](), set[int]()
        self._calls = 0  # so that no two releases get the same noise

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """Every answer is made private, and every use is counted."""
        for task in visit.tasks:
            self._check(task)
        self._asked.update(visit.ids.tolist())
        outcome = onward(visit)
        self._missing.update(missing.client for missing in outcome.missing)
        replies: Sequence[Reply] = outcome.replies
        if not any(len(reply.ids) for reply in replies):
            if not self._plan.amplified:
                return outcome
            replies = [_of_nobody(task) for task in visit.tasks]  # whether anybody was drawn must not show
        pairs = list(zip(visit.tasks, replies, strict=True))
        self._charge([r.ids for t, r in pairs if isinstance(t, Fit) and t.send])
        looks = [r.ids for t, r in pairs if isinstance(t, Fit) and t.sketch is not None]
        if looks:
            self.ledger = self.ledger.signalled(torch.cat(looks).unique())
        private = tuple(self._private(t, r, len(looks)) for t, r in pairs)
        return Outcome(private, outcome.missing, sealed=True)

    def given_up(self, missing: Sequence[Any]) -> None:
        """Too few answered, and the round will be repeated: whose answers came is charged all the same."""
        gone = self._missing | {one.client for one in missing}
        self._charge([torch.tensor(sorted(self._asked - gone), dtype=torch.int64)])

    def _charge(self, ids: list[Tensor]) -> None:
        """Count the round for clients whose models are used in it, each once."""
        new = torch.cat([NOBODY, *ids]).unique()
        new = new[~torch.isin(new, self._charged)]
        self._charged = torch.cat([self._charged, new])
        self.ledger = self.ledger.answered(new)

    def _check(self, task: Task) -> None:
        """Refuse a question whose answer has no noise planned for it."""
        allowed, what = self._plan.releases, ""
        if isinstance(task, Evaluate):
            what = "scores of single clients (Evaluate)"
        elif isinstance(task, Score) and (not allowed.votes or task.rule != "loss"):
            what = f"scores of single clients (Score by {task.rule})"
        elif isinstance(task, Fit) and task.sketch is not None and not allowed.sketches:
            what = "sketches of single updates"
        elif isinstance(task, Describe) and not allowed.descriptions:
            what = f"descriptions of single clients' data (Describe {task.kind})"
        elif self._plan.amplified and task.on is not None and not bool(torch.isin(task.on, self._cohort).all()):
            # Amplification is for clients that nobody knows to take part. These would have been picked.
            what = "clients that were not drawn for the round (on=...)"
        if what:
            raise CoterieError(
                f"privacy: the method asks for {what}, which its declaration does not account for",
                code="privacy-unaccounted",
            )

    def _private(self, task: Task, reply: Reply, sketched: int) -> Reply:
        """An answer as the method sees it. sketched: how many sketches a client sends in this visit."""
        if isinstance(task, Score) and isinstance(reply, Scored):
            return self._votes(reply)
        if isinstance(task, Describe) and isinstance(reply, Described):
            return self._described(reply)
        assert isinstance(task, Fit)
        assert isinstance(reply, Fitted)
        sent = None if reply.sent is None else SealedModels(reply.sent, self._mean, self._looked_at(task, reply))
        return dataclasses.replace(
            reply,
            n=torch.ones_like(reply.n),
            loss=torch.full_like(reply.loss, math.nan),
            sent=sent,
            sketch=None if reply.sketch is None else self._sketches(reply.sketch, sketched),
            aggregator=self._mean,
            start=task.start,
        )

    def _sketches(self, sketches: Tensor, together: int) -> Tensor:
        """Several sketches of a client in one visit are one release: its norm is sqrt(together) times the bound."""
        bound = self._plan.settings.clip
        deviation = self._plan.signal_noise * bound * math.sqrt(together)
        found = clipped(sketches, bound)
        return (found + noise(tuple(found.shape), deviation, *self._key(SKETCH))).to(sketches.dtype)

    def _votes(self, reply: Scored) -> Scored:
        """Which center fits best, as a vector of zeros and one 1, with noise: the most likely is still the best."""
        self.ledger = self.ledger.signalled(reply.ids)
        votes = functional.one_hot(reply.scores.argmin(1), reply.scores.shape[1]).double()
        votes += noise(tuple(votes.shape), self._plan.signal_noise, *self._key(VOTE))
        return dataclasses.replace(reply, n=torch.ones_like(reply.n), scores=(-votes).to(reply.scores.dtype))

    def _described(self, reply: Described) -> Described:
        """Descriptions, clipped and with noise as a sketch is; each is a signal of its own."""
        self.ledger = self.ledger.signalled(reply.ids)
        return dataclasses.replace(reply, n=torch.ones_like(reply.n), rows=self._sketches(reply.rows, 1))

    def _looked_at(self, task: Fit, reply: Fitted) -> Any:
        """What a method sees where it looks at single models: the start plus a noisy sketch of the update, once per
        client; later on the start alone, which tells nothing new."""

        def seen(models: Tensor) -> Tensor:
            plan, starts = self._plan, starts_of(task.start, reply.ids, reply.choice)
            if not plan.releases.models or starts is None:
                raise CoterieError(
                    "privacy: the method looks at single models, which its declaration does not account for",
                    code="privacy-unaccounted",
                )
            shown = starts.expand_as(models).clone()
            fresh = self.ledger.signals.at(reply.ids, default=0) < plan.most_signals
            if bool(fresh.any()):
                self.ledger = self.ledger.signalled(reply.ids[fresh])
                bound, deviation = plan.settings.clip, plan.signal_noise * plan.settings.clip
                updates = models[fresh] - shown[fresh]
                small = noisy_sketches(updates, plan.settings.sketch, bound, deviation, *self._key(MODELS))
                shown[fresh] += lifted(small, models.shape[1]).to(shown.dtype)
            return shown

        return seen

    def _key(self, kind: int) -> tuple[int | None, int, int, int, int]:
        self._calls += 1
        return (self._plan.noise_key, *self._words, self._calls, kind)


def _of_nobody(task: Task) -> Reply:
    """The reply where nobody answered."""
    ids = torch.empty(0, dtype=torch.int64)
    if isinstance(task, Score):
        return Scored(ids, ids, torch.empty(0, task.width))
    if isinstance(task, Describe):
        return Described(ids, ids, torch.empty(0, task.length))
    assert isinstance(task, Fit)
    sent = torch.empty(0, length_of(task.start), dtype=_dtype(task.start)) if task.send else None
    sketch = None if task.sketch is None else torch.empty(0, task.sketch)
    return Fitted(ids, ids, torch.empty(0), sent, ids, sketch)


def _dtype(start: Ref) -> torch.dtype:
    found = (vectors_of(node) for node in walk(start))
    return next((one.dtype for one in found if one is not None), torch.float32)


# ------------------------------------------------------------------------------------------------------ the layer


class Private(Layer):
    """Privacy in a run: what the method sees is private, and its cost lasts whether or not the round stands."""

    key = "privacy"
    replaces: ClassVar = ("screening",)  # updates are clipped
    fixes: ClassVar = {
        "rounds": "the noise of a run with privacy was found for its number of rounds",
        "privacy": "what a run has released of its clients cannot be made more or less private afterwards",
    }

    def __init__(self) -> None:
        self._round = 0
        self._simulated = True

    @classmethod
    def of(cls, settings: Any) -> Private | None:
        """None without privacy."""
        return None if settings.privacy is None else cls()

    def prepare(self, setup: Setup) -> Setup:
        """The plan of the run. Its cohorts are drawn from a key of its own, secret where clients are real."""
        plan = planned(setup.method, setup.model, setup.clients, setup.settings)
        assert plan is not None
        self.ledger, self._simulated = Ledger(plan), plan.simulated
        return replace(setup, cohort_key=plan.key, asks_nobody=plan.amplified, noisy=plan.noise > 0)

    def admits(self) -> bool:
        """See `Layer.admits`."""
        raise CoterieError(
            "privacy: clients cannot be added to a run with privacy: how they join its clusters is not accounted for",
            code="privacy-unaccounted",
        )

    def begin(self, round: Round) -> None:
        """See `Layer.begin`."""
        self._round = round.number
        self._attempt = PrivateAttempt(self.ledger, round.number, round.attempt, round.cohort)

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """See `Layer.visit`."""
        return self._attempt.visit(visit, onward)

    def commit(self, round: Round, before: Any, after: Any) -> Mapping[str, Any]:
        """What the run has cost everyone on the roster by now."""
        self.ledger = self._attempt.ledger
        return self.ledger.spent(round.roster.ids).said()

    def abort(self, round: Round, error: CoterieError) -> None:
        """What was released is spent, though the round does not stand."""
        self._attempt.given_up(getattr(error, "missing", ()))
        self.ledger = self._attempt.ledger

    def may_continue(self) -> CoterieError | None:
        """Whether another attempt fits into the budget of every client."""
        if self.ledger.allows_a_round:
            return None
        return CoterieError(
            f"privacy: the budget is spent by attempts at round {self._round + 1} that too few clients answered; a "
            "lower quorum repeats fewer of them",
            code="privacy-budget",
        )

    def pack(self) -> Mapping[str, Any]:
        """See `Layer.pack`."""
        return self.ledger.packed()

    def unpack(self, kept: Mapping[str, Any], lost: Sequence[Path]) -> None:
        """Refuse to go on from an older checkpoint than the newest: what was released after it would be forgotten. In
        a simulation the same noise is drawn again, so nothing more is released."""
        if lost and not self._simulated:
            raise CoterieError(
                f"{lost[0]}: damaged, and it has what the rounds since the checkpoint before it have cost the clients; "
                "a run with privacy cannot go on without. Restore this file, or begin another run",
                code="privacy-budget",
            )
        if not kept:
            raise CoterieError(
                "privacy: the checkpoint does not say what was spent so far, so the run cannot go on with privacy",
                code="run-not-resumable",
            )
        self.ledger = Ledger.unpacked(self.ledger.plan, kept)

    def document(self, clients: Clients) -> Mapping[str, Any]:
        """privacy.json: every client of the roster with its epsilon, by id."""
        ledger, ids = self.ledger, clients.roster.ids
        found = list(zip(ids.tolist(), ledger.epsilon_of(ids), strict=True))
        return {
            "relation": RELATION,
            "epsilon": _number(max((epsilon for _, epsilon in found), default=0.0)),
            "delta": ledger.plan.settings.delta,
            "clip": ledger.plan.settings.clip,
            "noise": ledger.plan.noise,
            "signal_noise": ledger.plan.signal_noise if ledger.plan.most_signals else None,
            "poisson_share": ledger.plan.share,
            "attempts": ledger.attempts,
            "clients": {str(client): _number(epsilon) for client, epsilon in found},
        }

    @classmethod
    def line(cls, said: Mapping[str, Any]) -> str | None:
        """What the run has cost its clients."""
        spent = Spent.read(said)
        return None if spent is None else f"privacy: {words(spent)}"

    @classmethod
    def warnings(cls, settings: Any, history: Sequence[Any], clients: Clients) -> Iterator[str]:
        """Where a run has fewer rounds than it was to have, or its delta promises nothing."""
        if settings.privacy is None:
            return
        done = history[-1].round if history else settings.rounds
        if done < settings.rounds:
            yield (
                f"privacy: the budget is spent after {done} of {settings.rounds} rounds, because rounds that were "
                "repeated count too; a lower quorum repeats fewer of them"
            )
        if (delta := settings.privacy.delta) * len(clients) >= 1:
            yield (
                f"privacy: delta {delta:g} is not below 1 / {len(clients)} clients: to publish all that one of them "
                "has would satisfy it. Write a much smaller one, such as 1e-5"
            )


def _number(epsilon: float) -> float | None:
    """Infinity is not JSON."""
    return None if math.isinf(epsilon) else epsilon


def check_unchanged(path: Path, config: Mapping[str, Any], what: str) -> None:
    """Refuse what a run with privacy cannot do, before anything is written down. what: `cannot ...`, and why."""
    if (path / FILE).is_file() or config.get("privacy") is not None:
        raise CoterieError(f"{path}: a run with privacy cannot {what}", code="privacy-budget")
