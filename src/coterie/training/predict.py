"""After training: predictions, and newcomers admitted by the method's own rule on their data, without retraining."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtr
from torch import Tensor, nn

from coterie.client.contract import ClientData
from coterie.client.visit import TaskRunner, needs_data, settled
from coterie.core.compute import one_thread
from coterie.core.errors import CoterieError
from coterie.core.model import as_network
from coterie.core.objective import sample_losses
from coterie.core.references import All, OneRow, Ref, personal_of, substitute, vectors_of, walk
from coterie.core.seeds import Purpose, generator
from coterie.core.settings import Kind
from coterie.core.tables import Clients, Cohort, NamesData, Roster, number_of
from coterie.core.tasks import Evaluate, Evaluated
from coterie.core.text import client_name
from coterie.data.cells import column_names, columns
from coterie.data.columns import TableScale
from coterie.data.federation import Domain, Federation
from coterie.data.scale import Scale, TargetScale
from coterie.engines.contract import Missing
from coterie.engines.sequential import Sequential
from coterie.methods.contract import admitted
from coterie.training.ask import RoundAsk
from coterie.training.checks import check_fit
from coterie.training.data_record import DataRecord, Described, scale_of, target_of, targets_of
from coterie.training.result import Result

SHOWN = 12  # names of columns in an error, where there are more


@dataclass(frozen=True, eq=False)
class _Behind:
    """A federation whose client ids follow those of the trained clients."""

    newcomers: Federation
    first: int

    def client(self, client: int) -> ClientData:
        return self.newcomers.client(client - self.first)


@dataclass(frozen=True, eq=False)
class Served:
    """Admitted newcomers. Client i of the newcomers' federation is i here."""

    assignments: NDArray[np.int64]  # the cluster of each: -1 where it could not be found
    clients: Evaluated  # their scores on their own test data (ids as the server numbers them)
    missing: tuple[Missing, ...]
    _result: Result[Any]
    _state: Any
    _behind: _Behind
    _shared: TaskRunner | None = None  # networks to compute with, one client after another; None: new ones each time

    @property
    def _runner(self) -> TaskRunner:
        return TaskRunner(self._result.model) if self._shared is None else self._shared

    @property
    def newcomers(self) -> Federation:
        """Their data, as the run's data was seen."""
        return self._behind.newcomers

    @property
    def accuracy(self) -> float | None:
        """Over all of them, by their test samples; None for regression."""
        tested = self.clients.n > 0
        weights = self.clients.n[tested].double()
        found = float((self.clients.accuracy[tested] * weights).sum() / weights.sum())
        return None if math.isnan(found) else found

    def __repr__(self) -> str:
        return f"<{len(self.assignments)} newcomers: clusters {self.assignments.tolist()}>"

    def predict(self, client: int | str, x: Any, *, proba: bool = False) -> NDArray[Any]:
        """Labels (or targets) of new inputs, by the model of the newcomer's place; see `Result.predict`."""
        number, newcomers = number_of(self._behind.newcomers, client), self._behind.newcomers
        inputs, task = as_inputs(x, newcomers, scale_of(newcomers, number)), self._result.method.predictor(self._state)
        with one_thread():
            said = self._runner.predict(task, self._behind.first + number, newcomers.client(number), {}, inputs)
        return answer(self._result, said, proba, newcomers.target)

    def outputs(self, client: int | str, inputs: Tensor) -> Tensor:
        """What the newcomer's model gives for scaled inputs: logits, log-probabilities of a mixture, or targets."""
        number, task = number_of(self._behind.newcomers, client), self._result.method.predictor(self._state)
        data = self._behind.newcomers.client(number)
        with one_thread():
            return self._runner.predict(task, self._behind.first + number, data, {}, inputs)

    def confidence(self, client: int | str) -> float:
        """The probability that no other cluster's model serves this newcomer better, by its own samples.

        A paired t-test of the losses; NaN where clients share in several clusters.
        """
        number = number_of(self._behind.newcomers, client)
        task, data = self._result.method.predictor(self._state), self._behind.newcomers.client(number)
        with one_thread():
            place = int(self.assignments[number])
            return confidence(self._runner, task, self._behind.first + number, data, place)

    def errors(self, client: int | str) -> NDArray[np.float64]:
        """Of each of its test samples: 1 where the label is wrong, else 0; the squared error of a regression."""
        number, newcomers = number_of(self._behind.newcomers, client), self._behind.newcomers
        task, (x, y) = self._result.method.predictor(self._state), newcomers.client(number).test
        with one_thread():
            said = self._runner.predict(task, self._behind.first + number, newcomers.client(number), {}, x)
        if self._result.model.loss == "cross_entropy":
            return np.asarray((said.argmax(1) != y).double().numpy())
        target = newcomers.target
        off = said.double() - y.double() if target is None else target.undo(said) - target.undo(y)
        return np.asarray(off.square().reshape(len(y), -1).mean(1).numpy())

    def network(self, client: int | str) -> nn.Module:
        """The network of the newcomer's place, to use or save as any other; it takes inputs as they are scaled."""
        number, newcomers = number_of(self._behind.newcomers, client), self._behind.newcomers
        with one_thread():
            task, data = self._result.method.predictor(self._state), newcomers.client(number)
            return self._runner.network(task, self._behind.first + number, data, {})


def predict(result: Result[Any], known: Described, client: int, x: Any, proba: bool) -> NDArray[Any]:
    """Predictions of a client's model for new inputs."""
    said = outputs(result, client, as_inputs(x, known, scale_of(known, client)), TaskRunner(result.model))
    return answer(result, said, proba, target_of(known, client))


def outputs(result: Result[Any], client: int, inputs: Tensor, runner: TaskRunner) -> Tensor:
    """What the model of a client gives for scaled inputs: logits, log-probabilities of a mixture, or targets."""
    if not isinstance(result.known, Federation | DataRecord):
        with one_thread(), torch.inference_mode():
            found: Tensor = network(result, cluster_of(result, client))(inputs)
            return found
    task, data = predictor_of(result, client)
    with one_thread(), _about(result, client):
        return runner.predict(task, client, data, result.memory.read(client), inputs)


@contextmanager
def _about(result: Result[Any], client: int) -> Iterator[None]:
    """Errors name this client, and say if it was never part of the run."""
    try:
        yield
    except CoterieError as error:
        met = client in result.clients.ids or (result.newcomers is not None and client in result.newcomers.clients.ids)
        hint = "" if met else "; it was not evaluated in this run, and result.admit([(x, y)]) finds its place"
        raise CoterieError(
            f"predict: {client_name(result.known.names, client)}: {error}{hint}", code=error.code
        ) from None


def answer(result: Result[Any], said: Tensor, proba: bool, target: TargetScale | None = None) -> NDArray[Any]:
    """Labels, or the probability of each (n, classes); or the values of a regression, in its targets' units."""
    if proba and result.model.loss != "cross_entropy":
        raise CoterieError(
            "predict: proba=True is for classes; a regression has none, so leave it out", code="argument-conflict"
        )
    if proba:  # logits, or the log-probabilities of a mixture, which this leaves as they are
        return np.asarray(torch.softmax(said.double(), 1).numpy())
    if result.model.loss == "cross_entropy":
        return said.argmax(1).numpy()
    return said.numpy() if target is None else target.undo(said).to(said.dtype).numpy()


def as_inputs(x: Any, known: Described, scale: Scale | None) -> Tensor:
    """New samples, given as the training data is stored, as a network takes them; columns of a table by their names."""
    if isinstance(scale, TableScale):
        return scale(scale.stored(x, "predict"))
    stored = stored_inputs(x, known.features)
    if stored.ndim != 1 + len(known.input_shape) or tuple(stored.shape[1:]) != known.input_shape:
        wanted = ", ".join(map(str, known.input_shape))
        named = f" ({', '.join(known.features)})" if known.features and len(known.features) <= SHOWN else ""
        raise CoterieError(
            f"predict: expected inputs of shape (n, {wanted}){named}, got {tuple(stored.shape)}", code="data-shape"
        )
    inputs = stored if scale is None else scale(stored)
    # If the sum is finite, all values are. It may overflow, so all values are checked if it is not.
    if not math.isfinite(float(inputs.sum())) and not bool(inputs.isfinite().all()):
        raise CoterieError("predict: NaN or Inf in the inputs; clean or drop those samples", code="data-not-finite")
    return inputs


def predictor_of(result: Result[Any], client: int) -> tuple[Evaluate, ClientData]:
    """How a client of the run predicts, and its data, which a run that was read back seldom needs."""
    new = result.newcomers is not None and client in result.newcomers.clients.ids
    state = result.newcomers.state if result.newcomers is not None and new else result.placed
    task = result.method.predictor(state)
    if isinstance(result.known, Federation):
        return task, result.known.client(client)
    keeps = result.memory.read(client)
    if not needs_data(task, keeps):
        return task, _NoData()
    ids, found = result.clients.ids, result.chosen
    if result.newcomers is not None and new:
        ids, found = result.newcomers.clients.ids, result.newcomers_chosen
    if found is not None and client in ids:
        task = settled(task, ids, found)
        if not needs_data(task, keeps):
            return task, _NoData()
    try:
        return task, result.last_data.client(client)
    except CoterieError as error:
        who = client_name(result.known.names, client)
        why = (
            "did not take part in training, so it fits its own section of the model when it predicts"
            if client in ids
            else "was not evaluated at the end of this run, so the model it would choose is not recorded"
        )
        raise CoterieError(f"predict: {who} {why}, and its data is needed: {error}", code="data-needed") from None


class _NoData:
    """A client whose data is not available."""

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        raise CoterieError("the training data is not here", code="data-needed")

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        raise CoterieError("the test data is not here", code="data-needed")

    @property
    def target(self) -> TargetScale | None:
        raise CoterieError("the training data is not here", code="data-needed")

    @property
    def target_mean(self) -> Tensor:
        raise CoterieError("the training data is not here", code="data-needed")


def stored_inputs(x: Any, features: tuple[str, ...] | None) -> Tensor:
    """Samples as a tensor: those columns of a table that the model was trained on, in their order."""
    if isinstance(x, Tensor):
        return x
    names = column_names(x)
    if names is not None:
        return torch.from_numpy(columns(x, names if features is None else features, "predict"))
    try:
        return torch.from_numpy(np.array(x))
    except (TypeError, ValueError) as error:
        raise CoterieError(f"predict: the inputs are not an array of numbers ({error})", code="data-type") from None


def predict_by_cluster(result: Result[Any], client: int, x: Any, proba: bool) -> NDArray[Any]:
    """Predictions of the model of a client's cluster for scaled inputs, if the data is elsewhere."""
    said = network(result, cluster_of(result, client))
    inputs = stored_inputs(x, result.known.features if isinstance(result.known, NamesData) else None)
    with one_thread(), torch.inference_mode():
        try:
            out = said(inputs.to(torch.get_default_dtype()))
        except (RuntimeError, ValueError) as error:
            raise CoterieError(
                f"predict: these inputs do not fit the model: {' '.join(str(error).split())}", code="data-shape"
            ) from None
    return answer(result, out, proba)


def cluster_of(result: Result[Any], client: int) -> int:
    """The cluster of a client."""
    if not 0 <= client < len(result.assignments) or result.assignments[client] < 0:
        who = client_name(result.known.names, client)
        raise CoterieError(f"{who} has no cluster in this run; see result.clients.ids", code="client-no-value")
    return int(result.assignments[client])


def cluster_models(result: Result[Any]) -> list[Tensor]:
    """The models (K, P) of the clusters, or one of all (1, P): several, if a method adds or averages models."""
    task = result.method.predictor(result.state)
    found = [vectors_of(ref) for ref in task.models if isinstance(ref, All | OneRow)]
    models = [one for one in found if one is not None]
    if len(models) < len(task.models) or task.mixture is not None:
        name, here = type(result.method).__name__, isinstance(result.known, Federation | DataRecord)
        raise CoterieError(
            f"network: {name} has no single network per cluster; "
            + ("write network(client=...)" if here else "those of its clients are stored with them"),
            code="result-ambiguous",
        )
    return models


def network(result: Result[Any], cluster: int) -> nn.Module:
    """The trained network of a cluster; if a method adds or averages models, all of them combined."""
    task, models = result.method.predictor(result.state), cluster_models(result)
    many = max(len(vectors) for vectors in models)
    if not 0 <= cluster < many:
        raise CoterieError(f"network: cluster {cluster}, but there are {many}: 0..{many - 1}", code="cluster-unknown")
    thetas = [vectors[0 if isinstance(ref, All) else cluster] for ref, vectors in zip(task.models, models, strict=True)]
    return as_network(result.model.replica(), thetas, None, task.average)


def network_of(result: Result[Any], client: int) -> nn.Module:
    """The network that `predict` uses for a client, with any method; it takes scaled inputs."""
    task, data = predictor_of(result, client)
    with one_thread(), _about(result, client):
        return TaskRunner(result.model).network(task, client, data, result.memory.read(client))


def admit(
    result: Result[Any], given: Federation | Sequence[tuple[Any, ...]], runner: TaskRunner | None = None
) -> Served:
    """Admit clients that were not part of training.

    runner: networks for one admission after another, by a caller that has seen that inputs of this shape fit.
    """
    newcomers = seen_alike(as_federation(given, result.known), result.known).check()
    if runner is None:
        check_fit(result.model, newcomers)
    first = len(result.known)
    behind = _Behind(newcomers, first)
    ids = torch.arange(first, first + len(newcomers))
    roster = Roster(ids, newcomers.roster.n)
    engine = Sequential(result.model, behind, runner)
    done = result.settings.rounds
    ask: Any = RoundAsk(engine, ids, result.settings.seed, done, kind="probe")
    state = result.state
    with one_thread():
        rng = generator(result.settings.seed, Purpose.METHOD, done, 0)
        state = admitted(result.method, state, Cohort(ids, done, roster, rng), ask)
        reply: Evaluated = ask(result.method.predictor(state))
    found = np.full(len(newcomers), -1, dtype=np.int64)
    found[reply.ids.numpy() - first] = 0 if reply.choice is None else reply.choice.numpy()
    return Served(found, reply, _named(ask.lost, newcomers.names, first), result, state, behind, runner)


def _named(lost: Sequence[Missing], names: Sequence[str] | None, first: int) -> tuple[Missing, ...]:
    """Newcomers by their names; their ids follow those of the trained clients."""
    return tuple(m if names is None else replace(m, name=names[m.client - first]) for m in lost)


def as_federation(given: Federation | Sequence[tuple[Any, ...]], trained: Clients) -> Federation:
    """Newcomers as a federation; of tables those columns that the model was trained on."""
    if isinstance(given, Federation) or not isinstance(trained, NamesData):
        return given if isinstance(given, Federation) else _as_given(given)
    if isinstance(given, Sequence) and all(isinstance(c, tuple | list) for c in given):
        given = [
            tuple(
                _stored(part, trained, f"newcomers: client {client}") if place % 2 == 0 else part
                for place, part in enumerate(arrays)
            )
            for client, arrays in enumerate(given)
        ]
    kind = trained.kind if isinstance(trained, Federation | DataRecord) else None
    made = _as_given(given, kind)
    if made.class_names is not None and trained.class_names is None:
        theirs = ", ".join(made.class_names[:SHOWN])
        raise CoterieError(
            f"newcomers: their labels are names ({theirs}), it was trained on numbers; give those", code="data-labels"
        )
    table = _table_scale(trained)
    return made if table is None else replace(made, domains=tuple(replace(d, scale=table) for d in made.domains))


def _as_given(clients: Sequence[tuple[Any, ...]], task: Kind | None = None) -> Federation:
    """Clients' arrays as they are: their scale is that of the run, not one of their own."""
    if isinstance(clients, Sequence) and all(isinstance(client, tuple | list) for client in clients):
        return Federation.from_arrays(clients, task=task, standardise=False, standardise_y=False)
    return Federation.of(clients)  # which says what is wrong


def _stored(part: Any, trained: NamesData, where: str) -> Any:
    """The inputs of a newcomer as the training data is stored."""
    scale = _table_scale(trained)
    if scale is not None:
        return scale.stored(part, where)
    if trained.features is None or column_names(part) is None:
        return part
    return columns(part, trained.features, where)


def _table_scale(trained: NamesData) -> TableScale | None:
    """How the columns of the training data become inputs, where it has holes or categories."""
    if not isinstance(trained, Federation | DataRecord):
        return None
    scale, *others = trained.scales
    return scale if isinstance(scale, TableScale) and not others else None


def seen_alike(newcomers: Federation, trained: Clients) -> Federation:
    """Newcomers as the training data was seen: its scale, not a mean of their own; its numbers for named classes."""
    if not isinstance(trained, NamesData):
        return newcomers
    table = _table_scale(trained)
    newcomers = _same_columns(newcomers, trained.features) if table is None else _encoded_alike(newcomers, table)
    domains = newcomers.domains
    if isinstance(trained, Federation | DataRecord):  # over a network clients scale their data themselves
        if newcomers.kind != trained.kind:
            raise CoterieError(
                f"newcomers: theirs is a {newcomers.kind}, it was trained on a {trained.kind}", code="data-labels"
            )
        scale, *others = trained.scales
        own = newcomers.preparation is not None and newcomers.preparation.inputs  # measured on them alone
        if scale is not None and (own or not scale.plain) and not others:
            domains = tuple(replace(domain, scale=scale) for domain in domains)
        newcomers = replace(newcomers, preparation=None)
        target, *other_targets = targets_of(trained)
        if not other_targets:
            domains = tuple(replace(domain, target=target) for domain in domains)
    names, known = newcomers.class_names, trained.class_names
    if names is None or known is None or names == known:
        return replace(newcomers, domains=domains)
    if unknown := [name for name in names if name not in known]:
        raise CoterieError(
            f"newcomers: it was trained on the classes {', '.join(known)}, not on {unknown[0]}", code="data-labels"
        )
    numbers = torch.tensor([known.index(name) for name in names])
    domains = tuple(replace(d, relabel=numbers if d.relabel is None else numbers[d.relabel]) for d in domains)
    return replace(newcomers, domains=domains, class_names=known, outputs=len(known))


def _encoded_alike(newcomers: Federation, scale: TableScale) -> Federation:
    """A table read on its own, with the columns and the categories of the training data."""
    if gone := [name for name in scale.names if name in newcomers.left_out]:
        key = "text" if gone[0] in scale.texts else "categories"
        raise CoterieError(
            f"newcomers: column '{gone[0]}' was left out when their table was read; read it with "
            f"{key}=({', '.join(map(repr, gone))},), or give DataFrames: result.admit([(frame, y)])",
            code="data-column-unknown",
        )

    def recoded(domain: Domain) -> Domain:
        own = domain.scale
        if own is scale:  # stored so by `as_federation`
            return domain
        names = own.names if isinstance(own, TableScale) else newcomers.features or scale.names
        return replace(domain, x=scale.recoded(domain.x, own, names, "newcomers"))

    return replace(newcomers, domains=tuple(map(recoded, newcomers.domains)), features=scale.inputs)


def _same_columns(newcomers: Federation, wanted: tuple[str, ...] | None) -> Federation:
    """Newcomers with the columns that the model was trained on, in their order."""
    newcomers = _plain_inputs(newcomers, wanted)
    names = newcomers.features
    if names is None or wanted is None or names == wanted:
        return newcomers if wanted is None else replace(newcomers, features=wanted)
    if missing := [name for name in wanted if name not in names]:
        theirs, known = ", ".join(names), ", ".join(wanted)
        raise CoterieError(
            f"newcomers: they have no column '{missing[0]}': theirs are {theirs}; it was trained on {known}",
            code="data-column-unknown",
        )
    order = torch.tensor([names.index(name) for name in wanted])

    def ordered(domain: Domain) -> Domain:
        scale = domain.scale
        if scale is not None:
            mean, std = (v[order] if isinstance(v, Tensor) and v.ndim else v for v in (scale.mean, scale.std))
            scale = replace(scale, mean=mean, std=std)
        return replace(domain, x=domain.x[:, order], scale=scale)

    return replace(newcomers, domains=tuple(map(ordered, newcomers.domains)), features=wanted)


def _plain_inputs(newcomers: Federation, wanted: tuple[str, ...] | None) -> Federation:
    """A table with holes or categories, where the training data has none: its wanted columns must be all numbers.

    Over a network, where inputs have names such as region=north, its inputs are those."""
    domain = newcomers.domains[0]
    scale = domain.scale
    if not isinstance(scale, TableScale):
        return newcomers
    if wanted is not None and any(name not in scale.names for name in wanted):
        plain = tuple(replace(d, x=scale(d.x), scale=Scale()) for d in newcomers.domains)
        return replace(newcomers, domains=plain)
    for column in scale.columns:
        if column.values is not None and (wanted is None or column.name in wanted):
            raise CoterieError(
                f"newcomers: column '{column.name}' has text ({', '.join(column.values[:SHOWN])}); it was trained on "
                "numbers",
                code="data-column-invalid",
            )
    plain = tuple(replace(d, scale=Scale()) for d in newcomers.domains)
    return replace(newcomers, domains=plain, features=scale.names)


def confidence(runner: TaskRunner, task: Evaluate, client: int, data: ClientData, cluster: int) -> float:
    """The probability, by a paired t-test over the client's samples, that no other cluster's model serves it better.

    1 where there is one cluster only; NaN where clients share in several clusters, or have none.
    """
    many = rows_of(task)
    if cluster < 0 or not many or task.mixture is not None or task.belongs is not None:
        return math.nan
    x, y = data.train
    losses = []
    for row in range(many):
        predicted = runner.predict(of_cluster(task, row, many), client, data, {}, x)
        losses.append(sample_losses(predicted, y, runner.networks.loss).double().numpy())
    return min((_better(losses[row] - losses[cluster]) for row in range(many) if row != cluster), default=1.0)


def rows_of(task: Evaluate) -> int:
    """How many clusters have a model in this prediction."""
    return max((len(rows) for rows in map(_rows, walk(task)) if rows is not None), default=0)


def _rows(node: object) -> Tensor | None:
    return vectors_of(node) if isinstance(node, OneRow) else None


def of_cluster(task: Evaluate, row: int, many: int) -> Evaluate:
    """The same prediction by the models of one cluster, whatever cluster a client is in."""

    def swap(ref: Ref) -> Any:
        rows = _rows(ref)
        return All(rows[row], personal_of(ref)) if rows is not None and len(rows) == many else substitute(ref, swap)

    return substitute(task, swap)


def _better(differences: NDArray[np.float64]) -> float:
    """The probability that the mean of these is above 0."""
    n, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    if error == 0:
        return 0.5 if mean == 0 else float(mean > 0)
    return float(stdtr(max(n - 1, 1), mean / error))
