"""Why a run diverges and what to try, determined on the data if it is available."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.client.contract import FitAnswer, Moment
from coterie.client.visit import TaskRunner
from coterie.core.errors import CoterieError, DivergedError
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Clients
from coterie.core.tasks import Fit
from coterie.core.text import client_name
from coterie.data.federation import Federation
from coterie.engines.choose import local_of
from coterie.engines.contract import Missing
from coterie.engines.updates import SMALLEST
from coterie.layers.screening import Outlier
from coterie.training.checks import SPLITS

OUTLIER = 10.0  # times the median client's size
LARGE = 5.0  # root mean square of inputs or targets that a learning rate of 0.1 is too high for
LOOKED_AT = 1000  # clients whose sizes are measured, at most
TRIED = 2  # clients on which a learning rate is tried ...
VISITS = 2  # ... one after the other so often ...
TENTHS = 6  # ... each time a tenth of the one before, so often


def mostly_diverged(missing: Sequence[Missing]) -> bool:
    """Whether clients are missing because their numbers became NaN or Inf, rather than for another reason."""
    return bool(missing) and 2 * sum(m.diverged for m in missing) >= len(missing)


def diverged(
    round: int,
    missing: Sequence[Missing],
    clients: Clients,
    method: Any,
    model: Model,
    seed: int,
    suspect: Outlier | None = None,
    noisy: bool = False,
) -> DivergedError:
    """The error that ends a run, with the likely cause and a value to try.

    suspect: whose update stood out in an earlier round, and was accepted. noisy: whether privacy adds noise to models.
    """
    gone = [m.client for m in missing if m.diverged]
    who = (
        f"{len(gone)} clients, {client_name(clients.names, gone[0])} first"
        if len(gone) > 1
        else client_name(clients.names, gone[0])
    )
    local, causes = local_of(method), ["the learning rate is too high for this data"]
    rate: float | None = _tenth(local.rate)
    tried = ""
    if suspect is not None and _blameless(clients, [c for c in gone if c != suspect.client], local, model, seed):
        return DivergedError(
            f"round {round}: the steps of training diverge, to NaN or Inf at {who}: the update of "
            f"{client_name(clients.names, suspect.client)} was {suspect.times:.1e} times as large as any other. Leave "
            f"this client out, or have at least {SMALLEST} clients in a round and update_bound=10, which then rejects "
            "such an update"
        )
    if isinstance(clients, Federation):
        sizes = _Sizes.of(clients)
        causes = sizes.causes(clients) or causes
        rate = _stable_rate(clients, [*sizes.outliers, *gone], local, model, seed)
        tried = ", which trains these clients without it"
    tries = [] if rate is None else [f"local.lr={rate:g} instead of {local.rate:g}{tried}"]
    if not _clipped(local, clients):
        tries.append("bounded steps: local.clip=1")
    if noisy:
        causes = [*causes, "or the noise of privacy is too much for this model"]
        tries.append("less noise: a larger privacy.epsilon, or a smaller privacy.clip")
    advice = f". Try {', or '.join(tries)}" if tries else ""
    return DivergedError(
        f"round {round}: the steps of training diverge, to NaN or Inf at {who}: {'; '.join(causes)}{advice}"
    )


def _blameless(clients: Clients, others: Sequence[int], local: Local, model: Model, seed: int) -> bool:
    """Whether the others train well by themselves; over a network nobody can tell, and who stood out is to blame."""
    if not isinstance(clients, Federation):
        return True
    start = model.init(generator(seed, Purpose.INIT))
    some = [client for client in others if client < len(clients)][:TRIED]
    return all(_learns(clients, client, local, model, start, seed) for client in some)


def _clipped(local: Local, clients: Clients) -> bool:
    if local.clip == "auto":
        return isinstance(clients, Federation) and clients.target is not None
    return local.clip != "off"


@dataclass(frozen=True, eq=False)
class _Sizes:
    """Root mean squares of the clients' data, as their models see it."""

    ids: Tensor
    inputs: Tensor  # (n,)
    targets: Tensor | None  # (n,) of a regression

    @staticmethod
    def of(data: Federation) -> _Sizes:
        ids: list[int] = []
        inputs: list[float] = []
        targets: list[float] = []
        for client in range(min(len(data), LOOKED_AT)):
            try:
                both = [data.samples(client, split) for split in SPLITS]
            except Exception:  # a client that cannot be read is named elsewhere
                continue
            ids.append(client)
            for sizes, place in ((inputs, 0), (targets, 1)):
                sizes.append(float(torch.cat([samples[place] for samples in both]).double().square().mean().sqrt()))
        regression = data.kind == "regression"
        return _Sizes(torch.tensor(ids), torch.tensor(inputs), torch.tensor(targets) if regression else None)

    @property
    def outliers(self) -> list[int]:
        """Clients whose inputs or targets are far larger than those of most, the largest first."""
        found = [(row, size) for sizes in self._measured for row, size in _far(sizes)]
        return [int(self.ids[row]) for row, _ in sorted(found, key=lambda item: -item[1])]

    @property
    def _measured(self) -> list[Tensor]:
        return [sizes for sizes in (self.targets, self.inputs) if sizes is not None]

    def causes(self, data: Federation) -> list[str]:
        found = []
        for what, sizes in (("targets", self.targets), ("inputs", self.inputs)):
            if sizes is None or not len(sizes):
                continue
            for row, times in _far(sizes)[:1]:
                found.append(
                    f"{client_name(data.names, int(self.ids[row]))} is an outlier, its {what} are {times:.3g} times "
                    "as large as the median client's (check its units, or leave it out)"
                )
            usual = float(sizes.median())
            if usual > LARGE:
                found.append(f"{what} are about {usual:.3g} in size ({_remedy(what)})")
        return found


def _remedy(what: str) -> str:
    if what == "inputs":
        return "scale them to about 1; data.standardise=true does"
    return "standardise them; data.standardise_y=true does"


def _far(sizes: Tensor) -> list[tuple[int, float]]:
    """The rows far above the median, as multiples of it, the largest first."""
    if len(sizes) < 3:
        return []
    times = sizes / sizes.median().clamp(min=1e-30)
    rows = torch.nonzero(times > OUTLIER)[:, 0].tolist()
    return sorted(((row, float(times[row])) for row in rows), key=lambda item: -item[1])


def _stable_rate(data: Federation, clients: Sequence[int], local: Local, model: Model, seed: int) -> float | None:
    """The largest of some tenths of the learning rate with which these clients' first visits stay finite and learn."""
    some = [c for c in dict.fromkeys(clients) if c < len(data)][:TRIED]
    start = model.init(generator(seed, Purpose.INIT))
    rate = local.rate
    for _ in range(TENTHS):
        rate = _tenth(rate)
        if all(_learns(data, client, replace(local, lr=rate), model, start, seed) for client in some):
            return rate
    return None


def _learns(data: Federation, client: int, local: Local, model: Model, theta: Tensor, seed: int) -> bool:
    runner, losses = TaskRunner(model), []
    for visit in range(VISITS):
        try:
            done = runner.visit([Fit(All(theta), local)], client, data.client(client), {}, Moment(seed, visit, 0))
        except CoterieError:
            return False
        (answer,) = done.answers
        assert isinstance(answer, FitAnswer)
        assert answer.theta is not None
        theta = answer.theta
        losses.append(answer.loss)
    return losses[-1] <= losses[0]


def _tenth(rate: float) -> float:
    return float(f"{rate / 10:.3g}")
