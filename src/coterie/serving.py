"""After training: a finished run read back from its directory, newcomers taken in, predictions made.

Nobody is retrained. A newcomer brings its own (training) data, by which the method's own rule finds its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from coterie import checkpoint
from coterie.asking import Asker
from coterie.attendance import audience, crowd
from coterie.client import ClientData, Workbench
from coterie.clients import Clients, number_of
from coterie.data.federation import Federation
from coterie.engines.contract import Missing
from coterie.engines.sequential import Sequential
from coterie.errors import CoterieError
from coterie.evaluation import evaluate, meet
from coterie.methods.contract import Admits, Method
from coterie.model import Model
from coterie.result import Result
from coterie.seeds import Purpose, generator
from coterie.settings import Settings
from coterie.setup import Job, as_method, as_model, check_fit, settings_from
from coterie.store import belongs, read_history
from coterie.tasks import All, Best, Cohort, Evaluated, Pick, Roster
from coterie.threads import one_thread
from coterie.together import as_network
from coterie.zoo import Architecture


@dataclass(frozen=True, eq=False)
class _Behind:
    """A federation whose clients are numbered behind those that were trained on."""

    newcomers: Federation
    first: int

    def client(self, client: int) -> ClientData:
        return self.newcomers.client(client - self.first)


@dataclass(frozen=True, eq=False)
class Served:
    """Newcomers in their places. Client i of the newcomers' federation is i here."""

    assignments: NDArray[np.int64]  # the cluster of each: -1 where it could not be found
    clients: Evaluated  # their scores on their own test data (ids as the server numbers them)
    missing: tuple[Missing, ...]
    _result: Result[Any]
    _state: Any
    _behind: _Behind

    @property
    def accuracy(self) -> float | None:
        """Over all of them, by their test samples; None for regression."""
        tested = self.clients.n > 0
        weights = self.clients.n[tested].double()
        found = float((self.clients.accuracy[tested] * weights).sum() / weights.sum())
        return None if math.isnan(found) else found

    def __repr__(self) -> str:
        return f"<{len(self.assignments)} newcomers: clusters {self.assignments.tolist()}>"

    def predict(self, client: int | str, x: ArrayLike | Tensor) -> NDArray[Any]:
        """Labels (or targets) of new inputs, by the model of the newcomer's place; stored as its own data is."""
        number = number_of(self._behind.newcomers, client)
        return predict(self._result, self._state, self._behind.newcomers, number, self._behind.first, x)

    def network(self, client: int | str) -> nn.Module:
        """The network of the newcomer's place, to use or save as any other; it takes inputs as they are scaled."""
        number = number_of(self._behind.newcomers, client)
        return network_of(self._result, self._state, self._behind.newcomers, number, self._behind.first)


def predict(
    result: Result[Any], state: Any, federation: Federation, client: int, first: int, x: ArrayLike | Tensor
) -> NDArray[Any]:
    """What the model of a client says of new inputs; the client's number on the server is first + client."""
    inputs = federation.domain_of(client).inputs(x if isinstance(x, Tensor) else torch.from_numpy(np.array(x)))
    if tuple(inputs.shape[1:]) != federation.input_shape:
        raise CoterieError(
            f"predict: expected inputs of shape (n, {', '.join(map(str, federation.input_shape))}), "
            f"got {tuple(inputs.shape)}"
        )
    if not bool(inputs.isfinite().all()):
        raise CoterieError("predict: NaN or Inf in the inputs; clean or drop those samples")
    task = result.method.predictor(state)
    keeps = result.memory.read(client) if first == 0 else {}
    with one_thread():
        bench, data = Workbench(result.model), federation.client(client)
        said = bench.predict(task, first + client, data, keeps, inputs)
    labels: NDArray[Any] = said.argmax(1).numpy() if result.model.loss == "cross_entropy" else said.numpy()
    return labels


def predict_by_cluster(result: Result[Any], client: int, x: ArrayLike | Tensor) -> NDArray[Any]:
    """What the model of a client's cluster says of inputs as that model takes them: where the data is elsewhere."""
    said = network(result, cluster_of(result, client))
    inputs = x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    with one_thread(), torch.inference_mode():
        try:
            out = said(inputs.to(torch.get_default_dtype()))
        except (RuntimeError, ValueError) as error:
            raise CoterieError(f"predict: these inputs do not fit the model: {' '.join(str(error).split())}") from None
    labels: NDArray[Any] = out.argmax(1).numpy() if result.model.loss == "cross_entropy" else out.numpy()
    return labels


def cluster_of(result: Result[Any], client: int) -> int:
    """Where a client is."""
    if not 0 <= client < len(result.assignments) or result.assignments[client] < 0:
        raise CoterieError(f"client {client} has no cluster in this run; see result.clients.ids")
    return int(result.assignments[client])


def network(result: Result[Any], cluster: int) -> nn.Module:
    """The trained network of a cluster; where a method adds or averages models, all of them together."""
    task = result.method.predictor(result.state)
    refs = [ref for ref in task.models if isinstance(ref, All | Pick | Best)]
    if len(refs) < len(task.models) or task.mixture is not None:
        name, here = type(result.method).__name__, isinstance(result.known, Federation)
        raise CoterieError(
            f"network: {name} has no single network per cluster; "
            + ("write network(client=...)" if here else "those of its clients lie with them")
        )
    many = max(1 if isinstance(ref, All) else len(ref.centers) for ref in refs)
    if not 0 <= cluster < many:
        raise CoterieError(f"network: cluster {cluster}, but there are {many}: 0..{many - 1}")
    thetas = [ref.theta if isinstance(ref, All) else ref.centers[cluster] for ref in refs]
    return as_network(result.model.replica(), thetas, None, task.average)


def network_of(result: Result[Any], state: Any, federation: Federation, client: int, first: int) -> nn.Module:
    """The network that `predict` uses for a client, whatever the method; it takes inputs as they are scaled."""
    keeps = result.memory.read(client) if first == 0 else {}
    with one_thread():
        bench, data = Workbench(result.model), federation.client(client)
        return bench.network(result.method.predictor(state), first + client, data, keeps)


def admit(result: Result[Any], newcomers: Federation) -> Served:
    """Find the place of clients that had no part in training."""
    newcomers = _seen_alike(newcomers, result.known)
    check_fit(result.model, newcomers.check())
    first = len(result.known)
    behind = _Behind(newcomers, first)
    ids = torch.arange(first, first + len(newcomers))
    roster = Roster(ids, newcomers.roster.n)
    engine = Sequential(result.model, behind)
    done = result.settings.rounds
    ask: Any = Asker(engine, ids, result.settings.seed, done, keep=False)
    state = result.state
    with one_thread():
        if isinstance(result.method, Admits):
            rng = generator(result.settings.seed, Purpose.METHOD, done, 0)
            state = result.method.admit(state, Cohort(ids, done, roster, rng), ask)
        reply: Evaluated = ask(result.method.predictor(state))
    found = np.full(len(newcomers), -1, dtype=np.int64)
    found[reply.ids.numpy() - first] = 0 if reply.choice is None else reply.choice.numpy()
    return Served(found, reply, tuple(ask.missing[c] for c in sorted(ask.missing)), result, state, behind)


def _seen_alike(newcomers: Federation, trained: Clients) -> Federation:
    """Newcomers as the training data was seen: its scale, not a mean of their own; its numbers for named classes."""
    if not isinstance(trained, Federation):
        return newcomers
    if newcomers.features and trained.features and newcomers.features != trained.features:
        theirs, wanted = (", ".join(names) for names in (newcomers.features, trained.features))
        raise CoterieError(f"newcomers: their inputs are {theirs}; those it was trained on are {wanted}")
    domains, (scale, *others) = newcomers.domains, trained.scales
    if scale is not None and not scale.plain and not others:
        domains = tuple(replace(domain, scale=scale) for domain in domains)
    names, known = newcomers.class_names, trained.class_names
    if names is None or known is None or names == known:
        return replace(newcomers, domains=domains)
    if unknown := [name for name in names if name not in known]:
        raise CoterieError(f"newcomers: it was trained on the classes {', '.join(known)}, not on {unknown[0]}")
    numbers = torch.tensor([known.index(name) for name in names])
    domains = tuple(replace(d, relabel=numbers if d.relabel is None else numbers[d.relabel]) for d in domains)
    return replace(newcomers, domains=domains, class_names=known, outputs=trained.outputs)


def load(
    run_dir: str | Path,
    *,
    method: Method[Any] | None = None,
    federation: Federation | Sequence[tuple[ArrayLike, ...]] | None = None,
    model: str | Model | Architecture | nn.Module | Callable[[], nn.Module] | None = None,
) -> Result[Any]:
    """A run read back from its directory: state, history, clients' scores.

    A run of `coterie run` or `coterie server` needs nothing else. One made in Python needs the method, federation and
    model it was made of.
    """
    from coterie.config import read_file

    path = Path(run_dir)
    if not (path / "config.yaml").is_file():
        raise CoterieError(f"{path}: not a run (it has no config.yaml)")
    tree = read_file(path / "config.yaml")
    saves = sorted((path / "checkpoints").glob("round-*.safetensors"))
    if not saves:
        raise CoterieError(f"{path}: has no checkpoint to load")
    if "network" in tree:
        from coterie.network import loading

        return loading.load(path, tree, saves[-1])
    job, settings = _what_was_run(path, tree, method, federation, model)
    roster, kept_back = crowd(job.federation, settings)
    template = job.method.init(job.model, roster, generator(settings.seed, Purpose.INIT))
    saved = checkpoint.load(saves[-1], template, job.method, belongs(job.method, job.model, job.federation, settings))
    engine = Sequential(job.model, job.federation)
    engine.memory.restore(saved.memory)
    history = read_history(path, saved.round)
    whom = audience(roster, settings, [event.attempts for event in history])
    with one_thread():
        found = evaluate(job.method, saved.state, job.federation, settings, engine, saved.round - 1, whom)
        newcomers = meet(job.method, saved.state, job.federation, settings, engine, kept_back)
    return Result(
        *(job.method, job.model, saved.state, history, found.clients, found.summary),
        *(sum(event.seconds for event in history), job.federation, settings, engine.memory, newcomers, found.state),
        run_dir=path,
    )


def _what_was_run(
    path: Path, tree: Mapping[str, Any], method: Any, federation: Any, model: Any
) -> tuple[Job, Settings]:
    from coterie.config import build, read

    if "data" in tree:
        if not (method is None and federation is None and model is None):
            raise CoterieError(f"{path}: says itself what it was made of; write load(dir) alone")
        config = read(None, base=tree)
        return build(config), config.settings
    if method is None or federation is None or model is None:
        raise CoterieError(f"{path}: was made in Python; say what of: load(dir, method=..., federation=..., model=...)")
    settings = settings_from(Settings, **{k: v for k, v in tree.items() if k != "method"})
    clients = Federation.of(federation)
    return Job(as_method(method), clients, as_model(model, clients)), settings
