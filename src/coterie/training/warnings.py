"""What a run should not pass over in silence: divergence, overfitting, models that are no better than a guess."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from coterie.core.decoder import DecodeError, parse_json
from coterie.core.errors import DivergedError
from coterie.core.files import plain_bytes
from coterie.core.local import Local
from coterie.core.metrics import Summary
from coterie.core.tables import Clients, clients_at
from coterie.core.tasks import Evaluated
from coterie.core.text import client_name, short
from coterie.data.federation import Federation
from coterie.engines.choose import local_of
from coterie.engines.contract import Missing
from coterie.engines.updates import SMALLEST
from coterie.layers.screening import Outlier
from coterie.training.checks import SPLITS
from coterie.training.drift_scores import changes_in
from coterie.training.evaluation import ScoredSplit, client_weights
from coterie.training.events import RoundDone
from coterie.training.settings import Settings


@dataclass(frozen=True)
class Commonest:
    """The commonest class of the training samples of all clients."""

    label: str
    accuracy: float  # of always saying it, over the samples and with the weights of the scores
    alone: bool  # whether there is no other class in what is trained or scored


def commonest(clients: Clients, reply: Evaluated, settings: Settings, split: ScoredSplit) -> Commonest | None:
    """None where labels are not known here, as over a network, or are no classes."""
    data = clients_at(clients, settings.rounds - 1)
    if not isinstance(data, Federation) or data.kind != "classification":
        return None
    scored = data.test if split == "test" else data.val
    seen = np.bincount(data.labels(data.train))
    if scored is None or not len(seen):
        return None
    place = int(seen.argmax())
    labels = data.labels(scored)
    right = np.bincount(scored.owners(), labels == place, minlength=len(data))
    ids = reply.ids.numpy()
    share = right[ids] / np.maximum(scored.lengths.numpy()[ids], 1)
    weights = client_weights(settings, data, reply).numpy()
    name = str(place) if data.class_names is None else data.class_names[place]
    alone = int((seen > 0).sum()) == 1 and bool((labels == place).all())
    return Commonest(name, float(weights @ share / max(weights.sum(), 1e-12)), alone)


def only_class(clients: Clients) -> str | None:
    """The one class that all samples have; None where there are others, or it is not known."""
    if not isinstance(clients, Federation) or clients.kind != "classification":
        return None
    seen = np.unique(np.concatenate([clients.labels(clients.train), clients.labels(clients.test)]))
    if len(seen) != 1:
        return None
    return str(seen[0]) if clients.class_names is None else clients.class_names[int(seen[0])]


FAR = 100  # times the error of a constant predictor or of guessing, which no model comes to whose steps do not diverge
WORTH = 0.99  # of the mistakes of always saying the commonest class; a model that makes more of them is worth nothing
OVERFIT = 1.03  # times the least error of earlier rounds: clearly worse
POINTS = 0.02  # the same of accuracy, as a difference
SMOOTH = 3  # evaluated rounds whose mean is compared
ROUNDING = 1e-9  # of the targets' variance
FILE = "warnings.json"  # of a run directory, where there are any


@runtime_checkable
class MayBeUndecided(Protocol):
    """The state of a method that tries something for some rounds before it decides."""

    @property
    def undecided(self) -> str | None: ...  # what, and what holds meanwhile; None: nothing is being tried


def warnings_of(
    method: Any,
    summary: Summary,
    history: Sequence[RoundDone],
    clients: Clients,
    usual: Commonest | None = None,
    state: object = None,
) -> tuple[str, ...]:
    """What is wrong with a run that has ended, in plain words; nothing where all is well."""
    scored = sum(summary.sizes)
    last = next((event for event in reversed(history) if event.summary is not None), None)
    found = [
        _unscored(last.unscored if last is not None else (), scored, clients),
        _worse_than_constant(summary, local_of(method).rate, clients),
        _guessing(summary, _outputs(clients), local_of(method).rate) or _like_the_commonest(summary, usual),
        _overfits(history, clients),
        _collapsed(method, summary),
        _left_behind(history, clients),
        _never_changed(history, clients),
        _undecided(state),
    ]
    return tuple(text for text in found if text is not None)


def _undecided(state: object) -> str | None:
    """Where a run ended before the method could decide."""
    found = state.undecided if isinstance(state, MayBeUndecided) else None
    return found and f"{found}; more rounds decide it (coterie run --resume DIR --more ROUNDS)"


def _never_changed(history: Sequence[RoundDone], clients: Clients) -> str | None:
    """Where the data would have changed in a round that never came."""
    changes, done = changes_in(clients), max((event.round for event in history), default=0)
    if not changes or not done or changes[0] <= done:
        return None
    return (
        f"the data was to change in round {changes[0]} first (data.drift.at), and the run ended after round {done}: "
        "nothing has changed in it"
    )


def write(path: Path, warnings: Sequence[str]) -> None:
    """Into a run directory, where the report finds them; none of before is left."""
    if not warnings:
        (path / FILE).unlink(missing_ok=True)
        return
    part = path / f"{FILE}.part"
    part.write_text(json.dumps(list(warnings), indent=1) + "\n", encoding="utf-8")
    part.replace(path / FILE)


def read(path: Path) -> tuple[str, ...]:
    """What `write` wrote; nothing where there is nothing, or not readable."""
    try:
        found = parse_json(plain_bytes(path / FILE))
    except (OSError, DecodeError):
        return ()
    return tuple(text for text in found if isinstance(text, str)) if isinstance(found, list) else ()


def _outputs(clients: Clients) -> int | None:
    """How many classes or targets there are; over a network, what the clients have agreed on."""
    found = getattr(clients, "outputs", None) or getattr(getattr(clients, "shape", None), "outputs", None)
    return found if isinstance(found, int) else None


def _unscored(unscored: Sequence[Missing], scored: int, clients: Clients) -> str | None:
    if not unscored:
        return None
    first = next((m for m in unscored if m.diverged), unscored[0])
    return (
        f"{len(unscored)} of {scored + len(unscored)} clients could not be evaluated and are not in the scores; "
        f"{client_name(clients.names, first.client)}: {first.reason}"
    )


def _worse_than_constant(summary: Summary, lr: float, clients: Clients) -> str | None:
    if summary.constant is None or summary.loss <= max(summary.constant, _rounding(clients)):
        return None
    said = (
        f"the error of the models (MSE {short(summary.loss)}) is above that of always saying the mean of a client's "
        f"training targets ({short(summary.constant)})"
    )
    if summary.loss > FAR * summary.constant > 0:
        return f"{said}: training diverged; try local.lr={lr / 10:g} instead of {lr:g}, or local.clip=1"
    return f"{said}: nothing useful was learnt; try more rounds, more clusters, or another local.lr"


def _rounding(clients: Clients) -> float:
    """The squared error up to which a model is right but for rounding, also where a constant is exactly right."""
    target = clients.target if isinstance(clients, Federation) else None
    return ROUNDING * (float(target.std.square().mean()) if target is not None else 1.0)


def _guessing(summary: Summary, outputs: int | None, lr: float) -> str | None:
    if summary.accuracy is None or not outputs or outputs < 2:
        return None
    if summary.loss > FAR * math.log(outputs):
        return (
            f"a loss of {short(summary.loss)}, where guessing one of {outputs} classes has "
            f"{short(math.log(outputs), 2)}: training diverged, whatever the accuracy; try local.lr={lr / 10:g} "
            f"instead of {lr:g}, or local.clip=1"
        )
    if summary.accuracy > 1 / outputs or summary.loss < math.log(outputs):
        return None
    return (
        f"accuracy {summary.accuracy:.1%} with a loss of {short(summary.loss)} is no better than guessing one of "
        f"{outputs} classes: training diverged, or has not begun to learn; try another local.lr"
    )


def _like_the_commonest(summary: Summary, usual: Commonest | None) -> str | None:
    if usual is None or summary.accuracy is None:
        return None
    if usual.alone:
        return (
            f"all labels are '{usual.label}': there is nothing to learn, and an accuracy of {summary.accuracy:.1%} "
            "says nothing; is data.y the right column?"
        )
    if 1 - summary.accuracy < WORTH * (1 - usual.accuracy):
        return None
    return (
        f"accuracy {summary.accuracy:.2%} is no better than always saying '{usual.label}', the commonest class "
        f"({usual.accuracy:.2%}): nothing useful was learnt; try more rounds or another local.lr, and see whether the "
        "inputs say anything about the labels"
    )


def _overfits(history: Sequence[RoundDone], clients: Clients) -> str | None:
    """Where scores were clearly better in earlier rounds; of data that changed, in rounds since the last change.

    Scores are means of three rounds, so that one lucky round is no best round.
    """
    since = max((change for change in changes_in(clients) if change <= len(history)), default=0)
    scored = [(event.round, event.validation or event.summary) for event in history if event.round >= since]
    known = [(number, summary) for number, summary in scored if summary is not None and math.isfinite(summary.loss)]
    if len(known) < 2 * SMOOTH:
        return None
    rounds, last = [number for number, _ in known], known[-1][1]
    accuracies = [summary.accuracy for _, summary in known if summary.accuracy is not None]
    values = accuracies if len(accuracies) == len(known) else [summary.loss for _, summary in known]
    smooth = np.convolve(values, np.full(SMOOTH, 1 / SMOOTH), mode="valid")
    if last.accuracy is None:
        best, now = int(smooth.argmin()), float(smooth[-1])
        if now <= OVERFIT * float(smooth[best]) or rounds[-1] - rounds[best + 1] < SMOOTH:
            return None
        fell = f"the error was least around round {rounds[best + 1]} (loss {short(float(smooth[best]))}) and is " + (
            f"{now / float(smooth[best]) - 1:.0%} larger since ({short(now)} in round {rounds[-1]})"
        )
    else:
        best, now = int(smooth.argmax()), float(smooth[-1])
        if now >= float(smooth[best]) - POINTS or rounds[-1] - rounds[best + 1] < SMOOTH:
            return None
        fell = f"accuracy was best around round {rounds[best + 1]} ({smooth[best]:.1%}) and fell to {now:.1%}"
    held = "" if history[-1].validation is not None else "validation=0.2 and "
    return (
        f"{fell}: later rounds overfit; {held}stop_after=5 end a run when it no longer gets better on held-out samples"
    )


def _collapsed(method: Any, summary: Summary) -> str | None:
    """A method that was given k and uses one cluster. If it finds the number itself, one may be right."""
    k = getattr(method, "k", None) or getattr(getattr(method, "base", None), "k", None)
    if not isinstance(k, int) or k < 2 or summary.clusters != 1 or sum(summary.sizes) < 2:
        return None
    return (
        f"{k} clusters were asked for, and all {sum(summary.sizes)} clients are in one: the others' models may have "
        "diverged or never been chosen, or the clients do not differ; try a smaller local.lr, or another seed"
    )


def _left_behind(history: Sequence[RoundDone], clients: Clients) -> str | None:
    """Clients whose training diverged while the run continued without them."""
    often = Counter(m.client for event in history for m in event.missing if m.diverged)
    if not often:
        return None
    (client, times), *others = often.most_common()
    more = f", and of {len(others)} more" if others else ""
    return (
        f"the training of {client_name(clients.names, client)} gave NaN or Inf in {times} of {len(history)} "
        f"rounds{more}, which continued without it; check the size of its numbers, "
        "or try a smaller local.lr or local.clip=1"
    )


OUTLIER = 10.0  # times the median client's size
LARGE = 5.0  # root mean square of inputs or targets that a learning rate of 0.1 is too high for
LOOKED_AT = 1000  # clients whose sizes are measured, at most


def mostly_diverged(missing: Sequence[Missing]) -> bool:
    """Whether clients are missing because their numbers became NaN or Inf, rather than for another reason."""
    return bool(missing) and 2 * sum(m.diverged for m in missing) >= len(missing)


def diverged(
    round: int,
    missing: Sequence[Missing],
    clients: Clients,
    method: Any,
    suspect: Outlier | None = None,
    noisy: bool = False,
) -> DivergedError:
    """The error that ends a run, with the likely cause and a value to try.

    suspect: whose update stood out in an earlier round, and was accepted. noisy: whether privacy adds noise to models.
    """
    gone = [m.client for m in missing if m.diverged]
    who = client_name(clients.names, gone[0])
    where = f"round {round}: the steps of training diverge, to NaN or Inf at " + (
        f"{len(gone)} clients, {who} first" if len(gone) > 1 else who
    )
    found, outliers = list[str](), False
    if isinstance(clients, Federation):
        sizes = _Sizes.of(clients)
        found, outliers = sizes.causes(clients), sizes.outliers
    if suspect is not None and not found:
        return DivergedError(
            f"{where}: the update of {client_name(clients.names, suspect.client)} was {suspect.times:.1e} times as "
            f"large as any other. Leave this client out, or have at least {SMALLEST} clients in a round and "
            "update_bound=10, which then rejects such an update"
        )
    local, causes = local_of(method), found or ["the learning rate is too high for this data"]
    tries = []
    if not outliers:
        tries.append(f"local.lr={float(f'{local.rate / 10:.3g}'):g} or less instead of {local.rate:g}")
    if not _clipped(local, clients):
        tries.append("bounded steps: local.clip=1")
    if noisy:
        causes = [*causes, "or the noise of privacy is too much for this model"]
        tries.append("less noise: a larger privacy.epsilon, or a smaller privacy.clip")
    return DivergedError(
        f"{where}: {'; '.join(causes)}. Try {', or '.join(tries)}" if tries else f"{where}: {'; '.join(causes)}"
    )


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
    def outliers(self) -> bool:
        """Whether a client's inputs or targets are far larger than those of most."""
        return any(_far(sizes) for sizes in (self.targets, self.inputs) if sizes is not None)

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
