"""The method, the data and the model of a run, from what a user names or gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from torch import nn

from coterie.core.errors import CoterieError
from coterie.core.local import Local
from coterie.core.model import Model, Shaped, loss_of
from coterie.core.registry import ANY_CODE, DATASETS, METHODS, MODELS, PARTITIONS, Consent
from coterie.core.settings import explain
from coterie.data.dataset import Dataset
from coterie.data.federate import federate, with_validation
from coterie.data.federation import Federation
from coterie.methods.contract import Method
from coterie.training.config import DataConfig, Named, RunConfig, Tree
from coterie.training.sampling import training_data
from coterie.training.tuned import Tuned, separated, spelled, tuned
from coterie.zoo import Architecture

LENGTH = ("epochs", "steps")  # one replaces the other
# A Local that names all of these was written out whole, as run directories have it: nothing is missing from it.
WHOLE = {"batch", "lr", "lr_decay", "optimizer", "momentum", "weight_decay", "keep_optimizer", "shuffle"}


def merged(local: Local | Tree, own: Any) -> Any:
    """A method's own `local`: the run's, with what the method says differently."""
    if own is None or not isinstance(own, dict):
        return local if own is None else own
    kept = TypeAdapter(Local).dump_python(local) if isinstance(local, Local) else dict(local)
    if set(LENGTH) & set(own):
        kept = {k: v for k, v in kept.items() if k not in LENGTH}
    return kept | own


def completed(kind: Any, params: Tree, local: Local) -> Tree:
    """A method's parameters: its `local`, and any other Local given in part (psi, pretrain), goes by the run's."""
    if not dataclasses.is_dataclass(kind):
        return params
    types = {f.name: f.type if isinstance(f.type, str) else str(f.type) for f in dataclasses.fields(kind)}
    found = dict(params)
    own = params.get("local")
    if local.lr == "auto" and isinstance(own, dict) and own.get("lr", "auto") != "auto":
        raise CoterieError(
            f"method.local.lr: is {own['lr']}, but local.lr is auto, a search for a rate that this method would not "
            "use; leave one of them out",
            code="config-conflict",
        )
    usual: Local | Tree = local
    if "local" in types:
        usual = found["local"] = merged(local, params.get("local"))
    for name, kept in params.items():
        another = name != "local" and isinstance(kept, dict) and "Local" in types.get(name, "")
        if another and not set(kept) >= WHOLE and isinstance(usual, Local | dict):
            found[name] = merged(usual, kept)
    return found


class NamesMethod(Protocol):
    """A configuration that names a method, a model and how clients train."""

    @property
    def method(self) -> Named: ...

    @property
    def model(self) -> Named: ...

    @property
    def local(self) -> Local: ...

    @property
    def consent(self) -> Consent: ...


@dataclass(frozen=True, eq=False)
class Components:
    """What a configuration names, built."""

    method: Method[Any]
    federation: Federation
    model: Model


def as_method(method: Any) -> Any:
    """A method object, from its name or given directly."""
    if isinstance(method, str):
        return METHODS.build(method, {}, ANY_CODE)
    missing = [name for name in ("init", "round", "predictor") if not callable(getattr(method, name, None))]
    if missing or isinstance(method, type):
        hint = f"write {method.__name__}(...)" if isinstance(method, type) else f"it has no {', '.join(missing)}"
        raise CoterieError(f"method: {method!r} is not a method object: {hint}", code="component-invalid")
    return method


AnyModel: TypeAlias = str | Model | Architecture | nn.Module | Callable[[], nn.Module] | Tuned


def as_model(model: AnyModel, federation: Shaped) -> Model:
    """A model, from a name of the zoo or one of its architectures, a network or a function that builds one."""
    how = model if isinstance(model, Tuned) else Tuned(model)
    usual = loss_of(federation)
    if isinstance(how.network, str):
        return how.of(named_model(how.network, {}, federation, ANY_CODE))
    made: Any = how.network
    made = made() if isinstance(made, type) and issubclass(made, Architecture) else made
    if isinstance(made, Architecture):
        return how.of(Model(partial(made, federation.input_shape, federation.outputs), usual))
    return how.of(Model.of(made, usual, how.train))


def named_model(name: str, params: dict[str, Any], federation: Shaped, consent: Consent) -> Model:
    """A model of the zoo, or a user's `module:Net`, built for the federation's shapes."""
    own, what = separated(params)
    made = MODELS.build(name, own, consent)
    if not isinstance(made, Model | nn.Module) and not callable(made):
        raise CoterieError(
            f"model.name: '{name}' gave a {type(made).__name__}; expected a torch.nn.Module", code="component-invalid"
        )
    how = tuned(made, what, consent)
    if isinstance(made, Model):
        return how.of(made)
    if isinstance(made, nn.Module) and how.train != "all":  # built again under a seed: what is frozen is part of it
        return how.of(Model(partial(MODELS.build, name, own, consent), loss_of(federation)))
    if isinstance(made, nn.Module):
        return how.of(Model.of(made, loss_of(federation), how.train))
    return how.of(Model(partial(made, federation.input_shape, federation.outputs), loss_of(federation)))


# ------------------------------------------------------------------------------------ from a configuration


def build(config: RunConfig) -> Components:
    """Everything the configuration names, made and checked."""
    federation = build_data(config)
    return Components(build_method(config), federation, build_model(config, federation))


def build_model(config: NamesMethod, federation: Shaped) -> Model:
    """The network, for data of this shape."""
    return named_model(config.model.name, config.model.params, federation, config.consent)


def resolved(config: RunConfig, method: Method[Any]) -> Tree:
    """The whole configuration with every parameter spelled out, so that a later default cannot change the run."""
    tree = config.dump()
    tree |= method_and_model(config, method)
    if ":" not in config.data.name:
        made = DATASETS.build(config.data.name, config.data.params, config.consent)
        tree["data"] |= _spelled(made, config.data.params)
    partition = config.data.partition
    if partition is not None:
        made = PARTITIONS.build(partition.name, partition.params, config.consent)
        tree["data"]["partition"] |= _spelled(made, partition.params)
    return tree


def method_and_model(config: NamesMethod, made: Method[Any]) -> Tree:
    """Both with every parameter spelled out."""
    method, model = config.method, config.model
    own, what = separated(model.params)
    network = MODELS.build(model.name, own, config.consent)
    return {
        "method": {"name": method.name} | method.params | _spelled(made, method.params),
        "model": {"name": model.name} | own | _spelled(network, own) | spelled(what, config.consent),
    }


def _spelled(thing: Any, given: Tree) -> Tree:
    """The parameters of a component. `local` is included only if it is its own, not the run's."""
    if not dataclasses.is_dataclass(thing):
        return given
    # What names a component is as it was written: a user's own was made of it, which is no document.
    written = {key: given[key] for key in getattr(thing, "components", {}) if key in given}
    try:
        out: Tree = TypeAdapter(type(thing)).dump_python(thing, mode="json", exclude_none=True, exclude=set(written))
        out |= written
    except PydanticSchemaGenerationError:  # a user's dataclass with fields that pydantic does not know
        return given
    if "local" not in given:
        out.pop("local", None)
    if "base" in out:
        below = given.get("base") or {}
        out["base"] = {k: v for k, v in below.items() if k == "name"} | _spelled(getattr(thing, "base", None), below)
    return out


def build_method(config: NamesMethod) -> Method[Any]:
    """The method, with the run's `local` unless it has its own."""
    method: Method[Any] = as_method(_method(config.method.name, config.method.params, config.local, config.consent))
    usual = {f.name: f.default for f in dataclasses.fields(config)}["local"]  # type: ignore[arg-type]
    if config.local != usual and not hasattr(method, "local") and not hasattr(method, "base"):
        raise CoterieError(
            f"local: {config.method.name} has no field `local`, so this setting would be ignored; "
            "give it one (local: Local = Local()), or leave local out",
            code="config-conflict",
        )
    return method


def _method(name: str, params: Tree, local: Local, consent: Consent) -> Any:
    """A method and, where it wraps another, that one first; both train as `local` says unless they have their own."""
    found = METHODS.find(name, consent)
    fields = {f.name: f for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else {}
    params = completed(found, params, local)
    if "base" in fields:
        params["base"] = _base(params.get("base"), fields["base"].default, local, consent)
    return METHODS.build(name, params, consent)


def _base(given: Any, default: Any, local: Local, consent: Consent) -> Any:
    if given is not None and not isinstance(given, dict):
        raise CoterieError(
            f"method.base: expected {{name: ..., its parameters}}, got {given!r}", code="config-invalid-value"
        )
    own = dict(given or {})
    if not dataclasses.is_dataclass(default):  # any method: it must be named
        if "name" not in own:
            raise CoterieError(
                "method.base.name: which method is wrapped? For example method.base.name=ifca",
                code="config-missing-key",
            )
        return _method(own.pop("name"), own, local, consent)
    kind: Any = type(default)
    known = {f.name: getattr(default, f.name) for f in dataclasses.fields(kind)}
    if "name" in own:  # a variant of the method that is wrapped, with its own defaults
        named, known = METHODS.find(own.pop("name"), consent), {}
        if not isinstance(named, type) or not issubclass(named, kind):
            raise CoterieError(
                f"method.base.name: this method wraps {kind.__name__}; to wrap another, method.name=cam (or personal)",
                code="config-invalid-value",
            )
        kind = named
    try:
        return TypeAdapter(kind).validate_python(known | completed(kind, own, local))
    except ValidationError as error:
        raise explain(error, "method.base", kind) from None


def build_data(config: RunConfig) -> Federation:
    """The federation."""
    return training_data(_spread(config), config)


def _spread(config: RunConfig) -> Federation:
    partition = config.data.partition
    made = DATASETS.build(config.data.name, config.data.params, config.consent)
    if ":" in config.data.name and not isinstance(made, Dataset | Federation):
        raise CoterieError(
            f"data.name: '{config.data.name}' gave a {type(made).__name__}; expected a Federation, "
            "for example from coterie.Federation.from_arrays, or a Dataset",
            code="component-invalid",
        )
    how = None if partition is None else PARTITIONS.build(partition.name, partition.params, config.consent)
    return federate(made, how, drift=config.data.drift, seed=config.seed)


def build_addition(config: RunConfig, data: Mapping[str, Any]) -> Federation:
    """Clients to add to a run: their data as a configuration names it, split as that of the run."""
    try:
        named = DataConfig.model_validate(data)
    except ValidationError as error:
        raise explain(error, "data", DataConfig) from None
    if ":" in named.name:
        raise CoterieError(
            f"data.name: '{named.name}' is code beyond this library; add its data in Python: coterie.go_on",
            code="trust-needed",
        )
    return with_validation(_spread(dataclasses.replace(config, data=named)), config.validation, config.seed)
