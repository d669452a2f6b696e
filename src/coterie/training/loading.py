"""A run read back from its directory. The training data is not needed: the directory records all that is required."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from coterie.client.contract import Memory
from coterie.core.compute import one_thread
from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.registry import METHODS, MODELS, NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.settings import settings_from
from coterie.data.federation import Federation
from coterie.data.membership import identity_without
from coterie.engines.batched import Batched
from coterie.engines.sequential import Sequential
from coterie.layers.attack import read_attack
from coterie.methods.contract import Method
from coterie.training import checkpoint, lineage, serving_file
from coterie.training.beginning import recorded_arithmetic
from coterie.training.build import AnyModel, as_method, as_model, build_data, build_method, build_model
from coterie.training.config import RunConfig, read
from coterie.training.data_record import DataRecord, Described
from coterie.training.evaluation import client_weights, evaluate, evaluate_newcomers, unpacked
from coterie.training.execute import as_it_is_now
from coterie.training.job import Job
from coterie.training.learning_rate import recorded, with_rates
from coterie.training.lineage import without_forgotten
from coterie.training.result import Result
from coterie.training.run_directory import belongs, read_history
from coterie.training.sampling import clients_to_evaluate, split_newcomers, training_data
from coterie.training.serving_file import ServingFile
from coterie.training.settings import Settings
from coterie.training.trust import consent_of
from coterie.training.tuned import separated, tuned


def load_run(
    path: Path,
    tree: Mapping[str, Any],
    saves: Sequence[Path],
    *,
    method: Method[Any] | None = None,
    federation: Federation | Sequence[tuple[ArrayLike, ...]] | None = None,
    model: AnyModel | None = None,
    trust: Sequence[str] = (),
) -> Result[Any]:
    """A run of this machine, from its configuration and its checkpoints; see `coterie.load`."""
    parts = parts_of(path, tree, method=method, federation=federation, model=model, trust=trust)
    return _read_back(path, saves, parts)


@dataclass(frozen=True, eq=False)
class RunParts:
    """What a run was made of."""

    method: Method[Any]
    model: Model
    known: Described
    settings: Settings

    def template(self) -> Any:
        """A fresh state, which says of which types a state consists."""
        roster, _ = split_newcomers(self.known, self.settings)
        return self.method.init(self.model, roster, generator(self.settings.seed, Purpose.INIT))


def parts_of(
    path: Path,
    tree: Mapping[str, Any],
    *,
    method: Method[Any] | None = None,
    federation: Federation | Sequence[tuple[ArrayLike, ...]] | None = None,
    model: AnyModel | None = None,
    trust: Sequence[str] = (),
) -> RunParts:
    """What a run of this machine was made of, from its configuration or as given."""
    if "data" in tree:
        given = {"method": method, "data": federation, "model": model}
        config = _configured(path, tree, given, trust)
        source = partial(_data, config, path)
        said = serving_file.read(path, source)
        if federation is not None:
            federation = training_data(Federation.of(federation), config)
            federation = as_it_is_now(path, federation, config)
        known = _known(federation, said) or _of_version_0_1(source)
        used = build_method(config) if method is None else as_method(method)
        network = _model(known, model, lambda: build_model(config, known))
        settings = config.settings
    else:
        said = serving_file.read(path, None)
        settings = settings_from(Settings, **{k: v for k, v in tree.items() if k != "method"})
        if federation is not None:
            federation = training_data(Federation.of(federation), settings)
            federation = lineage.applied(lineage.read(path), federation, None)
        known, used, network = made_in_python(path, method, federation, model, said)
    return RunParts(with_rates(used, recorded(path)), network, known, settings)


def _known(federation: Any, said: ServingFile | None) -> Described | None:
    if federation is not None:
        return Federation.of(federation)
    return None if said is None else said.data


def _configured(path: Path, tree: Mapping[str, Any], given: Mapping[str, object], trust: Sequence[str]) -> RunConfig:
    """The run's configuration; what it names may be given only where the name is of the user's own code."""
    config = read(None, base=tree, consent=consent_of(path, trust))
    names = {"method": config.method.name, "data": config.data.name, "model": config.model.name}
    if any(value is not None and ":" not in names[key] for key, value in given.items()):
        raise CoterieError(f"{path}: says itself what it was made of; write load(dir) alone", code="argument-conflict")
    return config


def _data(config: RunConfig, path: Path, clients: int | None = None) -> Federation:
    """The training data, built where it is needed."""
    return as_it_is_now(path, build_data(config), config, clients)


def _of_version_0_1(source: Callable[[], Federation]) -> Federation:
    try:
        return source()
    except CoterieError as error:
        raise CoterieError(
            f"{error} (the run directory has no {serving_file.FILE}, being of version 0.1, so it needs its training "
            "data; resume it once where the data is, and it no longer does)",
            code=error.code,
        ) from None


def _model(known: Described, model: AnyModel | None, otherwise: Callable[[], Model]) -> Model:
    return otherwise() if model is None else as_model(model, known)


def made_in_python(
    path: Path, method: Any, federation: Any, model: Any, said: ServingFile | None
) -> tuple[Described, Method[Any], Model]:
    """What a run was made of: given, or recorded where it is the library's own."""
    known = _known(federation, said)
    recorded_method, recorded_model = (None, None) if said is None else (said.method, said.model)
    missing = [
        f"{key}=..."
        for key, here in (
            ("method", method or recorded_method),
            ("federation", known),
            ("model", model or recorded_model),
        )
        if here is None
    ]
    if known is None or missing:
        raise CoterieError(
            f"{path}: was made in Python of objects of your own; give them: load(dir, {', '.join(missing)})",
            code="argument-missing",
        )
    used = as_method(method) if recorded_method is None or method else serving_file.rebuilt(METHODS, recorded_method)
    if model is not None or recorded_model is None:
        return known, used, as_model(model, known)
    own, what = separated(recorded_model)
    return known, used, as_model(tuned(serving_file.rebuilt(MODELS, own), what, NO_CODE), known)


def _read_back(path: Path, saves: Sequence[Path], parts: RunParts) -> Result[Any]:
    method, model, known, settings = parts.method, parts.model, parts.known, parts.settings
    template, history = parts.template(), lineage.read(path)
    if isinstance(known, DataRecord):
        known = known.without(history.forgotten)
    earlier = lineage.is_earlier(history, known)
    saved = checkpoint.newest(saves, template, method, belongs(method, model, known, settings), earlier, model)
    if isinstance(known, DataRecord):
        known = _as_saved(known, saved.data, history)
    saved = without_forgotten(saved, history.forgotten, partial(client_weights, settings, known))
    if isinstance(known, DataRecord) and "evaluation" not in saved.also:
        try:
            known = known.federation()
        except CoterieError as error:
            raise CoterieError(
                f"{path}: round {saved.round}, its last checkpoint, was not evaluated, so the training data is needed "
                f"to find out where its clients belong: {error}",
                code=error.code,
            ) from None
    if isinstance(known, Federation):
        return _evaluated_anew(path, saved, method, model, known, settings)
    memory, rounds = Memory(), read_history(path, saved.round)
    memory.restore(saved.memory)
    found = unpacked(saved.also["evaluation"])
    new = unpacked(saved.also["newcomers"]) if "newcomers" in saved.also else None
    last = found.evaluation
    return Result(
        *(method, model, saved.state, rounds, last.clients, last.summary),
        *(sum(event.seconds for event in rounds), known, settings, memory),
        *(None if new is None else new.evaluation, last.state),
        run_dir=path,
        chosen=found.chosen,
        newcomers_chosen=None if new is None else new.chosen,
        attack=read_attack(path),
    )


def _as_saved(known: DataRecord, identity: str, history: lineage.Lineage) -> DataRecord:
    """The record of the clients that a checkpoint knows: others may have been added after it."""
    clients = history.clients_in(identity)
    if clients is None or clients >= len(known):
        return known
    part = known.first(clients, identity_without(identity, history.forgotten))
    return part if known.source is None else replace(part, source=partial(known.source, clients=clients))


def _evaluated_anew(
    path: Path,
    saved: checkpoint.Checkpoint,
    method: Method[Any],
    model: Model,
    known: Federation,
    settings: Settings,
) -> Result[Any]:
    """With the data at hand every client is evaluated as after the checkpoint's round."""
    roster, newcomers = split_newcomers(known, settings)
    together = recorded_arithmetic(path) == "batched"  # to the same digits as the run itself
    engine = Batched(model, known) if together else Sequential(model, known)
    history = read_history(path, saved.round)
    engine.memory.restore(saved.memory)
    job = Job(method, model, known, settings, engine, layers=())
    to_evaluate = clients_to_evaluate(roster, settings, [event.attempts for event in history])
    with one_thread():
        found = evaluate(job, saved.state, saved.round - 1, to_evaluate)
        admitted = evaluate_newcomers(job, saved.state, newcomers)
    return Result(
        *(method, model, saved.state, history, found.clients, found.summary),
        *(sum(event.seconds for event in history), known, settings, engine.memory, admitted, found.state),
        run_dir=path,
        attack=read_attack(path),
    )
