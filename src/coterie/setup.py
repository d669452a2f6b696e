"""From what a user says to the objects of a run, with everything checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from coterie.catalogue import METHODS, MODELS
from coterie.data.federation import Federation, Kind
from coterie.engines.batched import Batched
from coterie.engines.contract import Engine
from coterie.engines.sequential import Sequential
from coterie.engines.workers import Workers
from coterie.errors import CoterieError, suggest
from coterie.explain import explain
from coterie.methods.contract import Method
from coterie.model import Loss, Model
from coterie.tasks import Local
from coterie.zoo import Architecture

if TYPE_CHECKING:
    from coterie.engines.choose import Choice
    from coterie.settings import Settings

T = TypeVar("T")
ENGINES = ("sequential", "workers", "batched", "ray", "auto")
SPLITS: tuple[Literal["train"], Literal["test"]] = ("train", "test")


@dataclass(frozen=True, eq=False)
class Job:
    """The objects of a run."""

    method: Method[Any]
    federation: Federation
    model: Model


def settings_from(kind: type[T], **values: object) -> T:
    """A validated settings object, its errors in plain words."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise explain(error, "", kind) from None


def as_method(method: Any) -> Any:
    """A method object, from its name or as it is."""
    if isinstance(method, str):
        return METHODS.build(method, {})
    missing = [name for name in ("init", "round", "predictor") if not callable(getattr(method, name, None))]
    if missing or isinstance(method, type):
        hint = f"write {method.__name__}(...)" if isinstance(method, type) else f"it has no {', '.join(missing)}"
        raise CoterieError(f"method: {method!r} is not a method object: {hint}")
    return method


class Shaped(Protocol):
    """What a model must fit: a federation's data, or what clients say of theirs."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def outputs(self) -> int: ...

    @property
    def kind(self) -> Kind: ...


def loss_of(federation: Shaped) -> Loss:
    """The loss that fits the labels."""
    return "cross_entropy" if federation.kind == "classification" else "mse"


def as_model(model: str | Model | Architecture | nn.Module | Callable[[], nn.Module], federation: Federation) -> Model:
    """A model, from a name of the zoo or one of its architectures, a network or a function that builds one."""
    if isinstance(model, str):
        return named_model(model, {}, federation)
    made: Any = model() if isinstance(model, type) and issubclass(model, Architecture) else model
    if isinstance(made, Architecture):
        return Model(partial(made, federation.input_shape, federation.outputs), loss_of(federation))
    return Model.of(made, loss_of(federation))


def named_model(name: str, params: dict[str, Any], federation: Shaped) -> Model:
    """A model of the zoo, or a user's `module:Net`, built for the federation's shapes."""
    made = MODELS.build(name, params)
    if isinstance(made, Model):
        return made
    if isinstance(made, nn.Module):
        return Model.of(made, loss_of(federation))
    return Model(partial(made, federation.input_shape, federation.outputs), loss_of(federation))


def check(model: Model, federation: Federation, settings: Settings) -> None:
    """Everything that can be known to fail before a run starts."""
    federation.check()
    trained = len(federation) - settings.kept_back(len(federation))
    settings.per_round(trained)
    settings.evaluated(trained)
    if not len(federation.test.numbers):
        raise CoterieError("data: no client has test samples to evaluate on; hold some out (test > 0)")
    from coterie.attendance import crowd

    for who, roster in zip(("clients that train", "newcomers"), crowd(federation, settings), strict=True):
        if len(roster.ids) and not int(federation.test.lengths[roster.ids].sum()):
            raise CoterieError(f"newcomers: none of the {who} has test samples; hold some out (test > 0)")
    check_fit(model, federation)


def _some_inputs(federation: Federation) -> Tensor:
    why = ""
    for client in range(len(federation)):
        try:
            return federation.samples(client, "train")[0]
        except Exception as error:  # a client that cannot be read is left out later, and named
            why = str(error)
    raise CoterieError(f"data: no client can be read; the last one: {why}")


def check_fit(model: Model, federation: Federation) -> None:
    """Push two samples through, so that a shape that does not fit is told before anything starts."""
    x = _some_inputs(federation)
    x = x[:1].repeat(2, *([1] * (x.ndim - 1)))
    replica = model.replica()
    replica.theta.zero_()
    try:
        logits = replica.logits(x)
    except CoterieError:
        raise
    except Exception as error:
        raise CoterieError(
            f"model: samples of shape {tuple(x.shape[1:])} do not fit the network: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(logits, Tensor):
        kind = type(logits).__name__
        raise CoterieError(f"model: the network gave a {kind}, expected a tensor (n, outputs): return the logits alone")
    if logits.ndim != 2 or len(logits) != 2:
        raise CoterieError(f"model: for 2 samples the network gave {tuple(logits.shape)}, expected (2, outputs)")
    wanted = federation.outputs
    if federation.kind == "regression" and logits.shape[1] != wanted:
        raise CoterieError(f"model: the network has {logits.shape[1]} outputs, the data {wanted} targets")
    if federation.kind == "classification" and logits.shape[1] < wanted:
        _blame_label(federation, logits.shape[1])


def _blame_label(federation: Federation, head: int) -> None:
    for client in range(len(federation)):
        for split in SPLITS:
            y = federation.samples(client, split)[1]
            if len(y) and int(y.max()) >= head:
                raise CoterieError(
                    f"model: client {client} has label {int(y.max())}, "
                    f"but the network has only {head} outputs (0..{head - 1})"
                )


def cores() -> int:
    """The processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_of(method: Any) -> Local:
    """How a method has clients train, or the one it wraps."""
    found = getattr(method, "local", None) or getattr(getattr(method, "base", None), "local", None)
    return found if isinstance(found, Local) else Local()


def chosen(
    name: str, workers: int | None, model: Model, federation: Federation, local: Local, settings: Settings
) -> Choice | None:
    """What `engine: auto` comes to; None for an engine that was named."""
    if name != "auto":
        return None
    from coterie.engines.choose import choose

    trained = len(federation) - settings.kept_back(len(federation))
    return choose(model, federation, local, settings.per_round(trained), workers or cores())


@contextmanager
def make_engine(
    engine: str | Engine, model: Model, federation: Federation, workers: int | None, address: str | None = None
) -> Iterator[Engine]:
    """An engine by name, closed afterwards; an engine object is used as it is and left open."""
    if not isinstance(engine, str):
        yield engine
        return
    if workers is not None and workers < 1:
        raise CoterieError(f"engine.workers: at least 1, not {workers}")
    made: Engine
    if engine == "sequential":
        if workers is not None:
            raise CoterieError("engine.workers: the sequential engine has none; write engine.name=workers")
        made = Sequential(model, federation)
    elif engine == "workers":
        made = Workers(model, federation, min(workers or cores(), len(federation)))
    elif engine == "batched":
        many = min(workers or cores(), len(federation))
        made = Batched(model, federation) if many == 1 else Workers(model, federation, many, batched=True)
    elif engine == "ray":
        from coterie.engines.ray import Ray

        made = Ray(model, federation, workers, address, cores())
    else:
        raise CoterieError(f"engine.name: unknown engine '{engine}'.{suggest(engine, ENGINES)}")
    try:
        yield made
    finally:
        made.close()


def versions() -> dict[str, str]:
    """What a result depends on besides its configuration."""
    import platform

    import numpy
    import sklearn

    from coterie import __version__

    return {
        "coterie": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scikit-learn": sklearn.__version__,
        "platform": platform.platform(),
    }
