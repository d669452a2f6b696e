"""`coterie watch`: is this still the right clustering? New samples of known clients against what the run recorded.

Of each client two things are tested on its new samples. Whether its own model's loss rose: against its mean test loss
in the run. Whether another cluster serves it better: if the method's own rule for newcomers places it in another one
now, the losses of that cluster's model and of its own cluster's are compared, sample by sample; the p-value is
multiplied by the number of other clusters, since that one was chosen by the same samples. Where the run's data is
there, a client that was better off elsewhere then must be more so now. Of each cluster: whether more of its clients
have a p-value below 5 % than chance explains, and whether their mean loss rose. All p-values are corrected together
(Holm), so that a watch without any drift calls one with probability alpha or less. Nothing is changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.client.visit import TaskRunner
from coterie.core.compute import one_thread
from coterie.core.errors import CoterieError
from coterie.core.objective import sample_losses
from coterie.core.references import personal_of
from coterie.core.settings import explained, explained_call
from coterie.core.tasks import Evaluate
from coterie.core.text import client_name
from coterie.data.federation import Federation, Ragged
from coterie.network.server import load
from coterie.serving.drift_tests import either, higher, holm, rose, too_many
from coterie.serving.fresh_rows import fresh_rows
from coterie.training.data_record import DataRecord
from coterie.training.going_on import Clients
from coterie.training.predict import as_federation, of_cluster, predictor_of, rows_of, seen_alike
from coterie.training.result import Result

FEWEST = 4  # new samples of a client that is tested
CHANCE = 0.05  # a client's p-value below this counts in the test of its cluster


@explained
@dataclass(frozen=True)
class WatchedClient:
    """A known client and its new samples."""

    client: int
    name: str | None
    samples: int
    cluster: int  # recorded
    placed: int  # where the method would place it now; -1: in none of the clusters there are
    loss_before: float | None  # of its model, on its test samples in the run
    loss_now: float
    p: float  # that nothing changed; 1 where it has too few samples to tell
    drifts: bool
    suspicious: bool = False  # p is below 5 %, which is not enough among so many clients to call it drift


@explained
@dataclass(frozen=True)
class WatchedCluster:
    """A cluster and what the new samples of its clients show."""

    cluster: int
    clients: int  # with new samples enough to test
    doubtful: int  # of those: with a p-value below 5 %
    loss_before: float | None  # means over its clients
    loss_now: float | None
    p: float
    drifts: bool


@explained
@dataclass(frozen=True)
class Drift:
    """Whether a clustering still fits; `print` shows it in words."""

    drifts: bool
    alpha: float
    clients: tuple[WatchedClient, ...]
    clusters: tuple[WatchedCluster, ...]
    unknown: tuple[tuple[str, int], ...]  # clients that the run does not know, and where it would place them
    silent: int  # clients of the run without new samples
    reference: bool  # whether the run's own data was there to compare with
    left_out: int = 0  # rows that the run had already
    unclear: int = 0  # rows that are like some of the run's, which may be the same or not

    def __str__(self) -> str:
        from coterie.serving.drift_words import words

        return "\n".join(words(self))


@explained_call
def watch(run: str | Path | Result[Any], data: Clients, *, alpha: float = 0.01, trust: Sequence[str] = ()) -> Drift:
    """Test on new samples of known clients whether a run's clustering still fits. Nothing is changed.

    run: its directory, or a result. data: new samples, as a Federation or a list of (x, y) per client; clients are
    found by their names or, where the run has none, by their numbers; others are reported as unknown. Rows that the run
    had already are left out where its own data can be read: see `fresh_rows`.
    alpha: how often a watch without any drift may call one.
    """
    result = run if isinstance(run, Result) else load(run, trust=trust)
    if not isinstance(result.known, Federation | DataRecord):
        raise CoterieError("watch: the clients of a network watch their own data", code="run-kind")
    if not 0 < alpha < 1:
        raise CoterieError(f"watch: alpha: {alpha}; expected a number between 0 and 1", code="argument-invalid")
    given = seen_alike(as_federation(data, result.known), result.known)
    given.check()
    ids = [_number(result, given, i) for i in range(len(given))]
    with one_thread():
        return _drift(result, given, ids, alpha)


def _number(result: Result[Any], given: Federation, client: int) -> int | None:
    """The id in the run of a client of the new data; None where it is unknown."""
    names = result.known.names
    if names is not None:
        name = str(client) if given.names is None else given.names[client]
        found = names.index(name) if name in names else None
    else:
        text = str(client) if given.names is None else given.names[client]
        found = int(text) if text.isdigit() and int(text) < len(result.known) else None
    return found if found is not None and result.assignments[found] >= 0 else None


def _drift(result: Result[Any], given: Federation, ids: Sequence[int | None], alpha: float) -> Drift:
    reference = _reference(result)
    fresh = fresh_rows(given, ids, reference)
    there = [i for i, rows in enumerate(fresh.rows) if len(rows)]
    ids, everything = [ids[i] for i in there], [fresh.rows[i] for i in there]
    given = given if len(there) == len(given) or not there else given.take(there)
    placed = _placed(result, given, everything) if there else []
    found = [
        _client(result, given, reference, number, placed[i], everything[i])
        for i, number in enumerate(ids)
        if number is not None
    ]
    found.sort(key=lambda one: one.client)
    clusters = [_cluster(c, [one for one in found if one.cluster == c]) for c in sorted({o.cluster for o in found})]
    significant = holm([*(one.p for one in found), *(one.p for one in clusters)], alpha)
    clients = tuple(
        replace(one, drifts=yes, suspicious=one.p < CHANCE and not yes)
        for one, yes in zip(found, significant, strict=False)
    )
    of_clusters = tuple(replace(one, drifts=yes) for one, yes in zip(clusters, significant[len(found) :], strict=True))
    unknown = tuple((client_name(given.names, i), placed[i]) for i, number in enumerate(ids) if number is None)
    silent = int((result.assignments >= 0).sum()) - len(found)
    counts = (fresh.old, fresh.unclear)
    return Drift(any(significant), alpha, clients, of_clusters, unknown, silent, reference is not None, *counts)


def _placed(result: Result[Any], given: Federation, rows: Sequence[NDArray[np.int64]]) -> list[int]:
    """Where the method places clients with these samples, as newcomers."""
    plain = {f: getattr(given, f) for f in ("domains", "kind", "outputs", "features", "class_names")}
    split = Ragged.of(rows)
    found = result.admit(Federation(**plain, train=split, test=split)).assignments
    many = int(result.assignments.max()) + 1
    return [int(c) if c < many else -1 for c in found]


def _reference(result: Result[Any]) -> Federation | None:
    """The run's own data, where it can be read."""
    try:
        return result.federation
    except CoterieError:
        return None


def _client(
    result: Result[Any],
    given: Federation,
    reference: Federation | None,
    number: int,
    placed: int,
    everything: NDArray[np.int64],
) -> WatchedClient:
    runner, cluster = TaskRunner(result.model), int(result.assignments[number])
    own, data = predictor_of(result, number)
    now = _losses(result, given, everything, lambda x: runner.predict(own, number, data, result.memory.read(number), x))
    row = (result.clients.ids == number).nonzero().flatten()
    before, samples = math.nan, 0
    if len(row):
        before, samples = float(result.clients.loss[row[0]]), int(result.clients.n[row[0]])
    names = result.known.names
    p = 1.0
    if len(everything) >= FEWEST:
        moved = _moved(result, given, reference, number, cluster, placed, everything)
        p = either(rose(now, before, samples), moved)
    return WatchedClient(
        number,
        None if names is None else names[number],
        len(everything),
        cluster,
        placed,
        before if math.isfinite(before) else None,
        float(now.mean()),
        p,
        False,
    )


def _losses(result: Result[Any], given: Federation, rows: NDArray[np.int64], predict: Any) -> NDArray[np.float64]:
    """The loss on each of these samples, in the units in which the run recorded it."""
    split = Ragged.of([rows])
    x, y = replace(given, train=split, test=split, val=None).samples(0, "train")
    said = predict(x)
    target = given.domains[0].target
    if result.model.loss == "cross_entropy" or target is None:
        return sample_losses(said, y, result.model.loss).double().numpy()
    off = target.undo(said.double()) - target.undo(y.double())
    return off.reshape(len(off), -1).square().mean(1).numpy()


def _moved(
    result: Result[Any],
    given: Federation,
    reference: Federation | None,
    number: int,
    cluster: int,
    placed: int,
    everything: NDArray[np.int64],
) -> float:
    """The p-value of: the cluster where the method would place it now is no better for it than its own."""
    task = result.method.predictor(result.state)
    many = rows_of(task)
    if placed in (-1, cluster) or not many or max(placed, cluster) >= many or not _comparable(task):
        return 1.0
    runner = TaskRunner(result.model)

    def difference(source: Federation, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        def losses(c: int) -> NDArray[np.float64]:
            one = of_cluster(task, c, many)
            return _losses(result, source, rows, lambda x: runner.predict(one, 0, _Nothing(), {}, x))

        return np.asarray(losses(cluster) - losses(placed))

    then = None if reference is None else difference(reference, reference.test.row(number).numpy())
    return min(1.0, (many - 1) * higher(difference(given, everything), then))


def _comparable(task: Evaluate) -> bool:
    """Whether clusters have models of their own: neither shares of several, nor bodies that need a client's head."""
    whole = all(personal_of(model) is None for model in task.models)
    return whole and task.mixture is None and task.belongs is None


class _Nothing:
    """No data: a cluster's model needs none to predict."""

    @property
    def train(self) -> Any:
        raise CoterieError("no data", code="data-needed")

    test = target = target_mean = train


def _cluster(cluster: int, clients: Sequence[WatchedClient]) -> WatchedCluster:
    tested = [one for one in clients if one.samples >= FEWEST]
    doubtful = sum(one.p < CHANCE for one in tested)
    both = np.array([(one.loss_before, one.loss_now) for one in tested if one.loss_before is not None])
    mean = higher(both[:, 1] - both[:, 0]) if len(both) > 2 else 1.0
    before, now = both.mean(0).tolist() if len(both) else (None, None)
    p = either(too_many(doubtful, len(tested), CHANCE), mean)
    return WatchedCluster(cluster, len(tested), doubtful, before, now, p, False)
