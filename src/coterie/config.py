"""A run as a YAML file and `key=value` words: validated as a whole before anything is built."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    PositiveInt,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass as validated

from coterie.catalogue import DATASETS, METHODS, MODELS, PARTITIONS, Catalogue
from coterie.data.dataset import Dataset
from coterie.data.federate import federate, makes_clients
from coterie.data.federation import Federation
from coterie.domains import STRICT
from coterie.errors import CoterieError
from coterie.explain import explain
from coterie.methods.contract import Method
from coterie.settings import Settings
from coterie.setup import Job, as_method, named_model
from coterie.tasks import Local

Tree = dict[str, Any]  # a YAML document, before it is validated


class Named(BaseModel):
    """Something of the catalogue (or `module:Class`) and its parameters, which the thing itself validates."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def params(self) -> Tree:
        """Everything but the name."""
        return dict(self.model_extra or {})


class DataConfig(Named):
    """A data set, and how it is spread over clients."""

    partition: Named | None = None


class EngineConfig(BaseModel):
    """Who carries the questions to the clients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["sequential", "workers", "batched", "ray", "auto"] = "sequential"
    workers: PositiveInt | None = None  # processes; as many as cores when not given
    address: str | None = None  # ray: the cluster's head, 10.0.0.1:6379; auto: RAY_ADDRESS, or this machine alone

    @model_validator(mode="after")
    def _address_of_a_cluster(self) -> EngineConfig:
        if self.address is not None and self.name != "ray":
            raise ValueError(f"address is that of a Ray cluster, engine '{self.name}' has none; write engine.name=ray")
        return self


class NamesMethod(Protocol):
    """A configuration that names a method, a model and how clients train."""

    @property
    def method(self) -> Named: ...

    @property
    def model(self) -> Named: ...

    @property
    def local(self) -> Local: ...


@validated(frozen=True, config=STRICT)
class RunConfig(Settings):
    """Everything `coterie run` needs. The defaults are the demo: 40 clients, rotated digits, four hidden clusters."""

    data: DataConfig = DataConfig(name="digits", partition=Named(name="rotated"))
    model: Named = Named(name="linear")
    method: Named = Named(name="wecfl")
    local: Local = Local(epochs=5, batch=8, lr=0.1)
    engine: EngineConfig = EngineConfig()

    @property
    def settings(self) -> Settings:
        """The part that the driver needs."""
        return Settings(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Settings)})

    def dump(self) -> Tree:
        """As a YAML document, every default written out."""
        out: Tree = TypeAdapter(RunConfig).dump_python(self, mode="json", exclude_none=True)
        return out


def read(file: Path | None, words: Sequence[str] = (), base: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a file (or of the demo), changed by `key=value` words."""
    tree = copy.deepcopy(dict(base)) if base is not None else RunConfig().dump()
    if file is not None:
        tree |= named_values(read_file(file))
    change(tree, words)
    try:
        return TypeAdapter(RunConfig).validate_python(tree)
    except ValidationError as error:
        raise explain(error, "", RunConfig) from None


def named_values(tree: Tree) -> Tree:
    """A document with its short forms written out."""
    return {key: _named(key, value) for key, value in tree.items()}


def change(tree: Tree, words: Sequence[str]) -> None:
    """Change a document by `key=value` words."""
    said = {word.partition("=")[0] for word in words}
    for key, value in (_word(word) for word in words):
        _set(tree, key.split("."), _named(key, value), said)


def split_words(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file of a command's words, if there is one, and the changes after it."""
    if words and "=" not in words[0]:
        return Path(words[0]), list(words[1:])
    return None, list(words)


def parameters(words: Sequence[str], kind: str) -> Tree:
    """`key=value` words as the parameters of one thing; `data.key=value` is the same as `key=value`."""
    return {key.removeprefix(f"{kind}."): value for key, value in map(_word, words)}


def _word(word: str) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise CoterieError(f"'{word}': expected key=value, for example method.k=4")
    try:
        return key, yaml.safe_load(text)
    except yaml.YAMLError:
        raise CoterieError(f"{key}: '{text}' is not a YAML value") from None


class _OnceEach(yaml.SafeLoader):
    """YAML in which no key stands twice: the second would silently be the one that counts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As always, once each key was seen."""
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.YAMLError(f"'{key.value}' stands there twice, again in line {key.start_mark.line + 1}")
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


def read_file(file: Path) -> Tree:
    """A YAML file of keys and values."""
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), _OnceEach)
    except OSError as error:
        raise CoterieError(f"{file}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CoterieError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise CoterieError(f"{file}: expected keys and values, found a {type(tree).__name__}")
    return tree


def _named(key: str, value: Any) -> Any:
    """`method: wecfl` is short for `method: {name: wecfl}`."""
    return {"name": value} if key in NAMED and isinstance(value, str) else value


def _set(tree: Tree, path: list[str], value: Any, said: set[str]) -> None:
    """Set a dotted key. A new name keeps only those old parameters that the new thing knows too."""
    if ".".join(path) in NAMED and isinstance(value, dict) and set(value) == {"name"}:
        path, value = [*path, "name"], value["name"]
    node = tree
    for part in path[:-1]:
        below = node.get(part)
        if not isinstance(below, dict):
            below = node[part] = {}
        node = below
    *above, last = path
    if last == "name" and above and node.get("name") != value:
        _rename(node, ".".join(above), str(value), said)
    if last in ("epochs", "steps"):  # one replaces the other, unless both were asked for, which is then refused
        other = "steps" if last == "epochs" else "epochs"
        if ".".join([*above, other]) not in said:
            node.pop(other, None)
    node[last] = value


NAMED = ("data", "data.partition", "model", "method", "engine")
_KINDS: Mapping[str, Catalogue] = {c.kind: c for c in (METHODS, MODELS, DATASETS, PARTITIONS)}


def _rename(node: Tree, kind: str, name: str, said: set[str]) -> None:
    """Forget the parameters that the new thing does not know; data that is `owned` brings its clients along."""
    if kind not in _KINDS:
        return
    found = _KINDS[kind].find(name)
    known = {f.name for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    if kind == "data":
        asked = any(key.startswith("data.partition") for key in said)  # then it stays, and is refused if it must be
        owned = getattr(found, "owned", False)
        if asked or not (makes_clients(found) or owned):
            known.add("partition")
        if owned and asked and not {"data.partition", "data.partition.name"} & said:
            given = {key.rpartition(".")[2] for key in said}
            node["partition"] = {"name": "natural"} | {k: v for k, v in node["partition"].items() if k in given}
    for key in set(node) - known - {"name"}:
        del node[key]


# ------------------------------------------------------------------------------------------- building


def build(config: RunConfig) -> Job:
    """Everything the configuration names, made and checked."""
    federation = build_data(config)
    return Job(build_method(config), federation, named_model(config.model.name, config.model.params, federation))


def resolved(config: RunConfig, method: Method[Any]) -> Tree:
    """The whole configuration with every parameter spelled out, so that a later default cannot change the run."""
    tree = config.dump()
    tree |= method_and_model(config, method)
    if ":" not in config.data.name:
        tree["data"] |= _spelled(DATASETS.build(config.data.name, config.data.params), config.data.params)
    partition = config.data.partition
    if partition is not None:
        tree["data"]["partition"] |= _spelled(PARTITIONS.build(partition.name, partition.params), partition.params)
    return tree


def method_and_model(config: NamesMethod, made: Method[Any]) -> Tree:
    """Both with every parameter spelled out."""
    method, model = config.method, config.model
    return {
        "method": {"name": method.name} | method.params | _spelled(made, method.params),
        "model": {"name": model.name} | model.params | _spelled(MODELS.build(model.name, model.params), model.params),
    }


def _spelled(thing: Any, given: Tree) -> Tree:
    """A thing's parameters. `local` only where it is the thing's own: elsewhere it is the run's."""
    if not dataclasses.is_dataclass(thing):
        return given
    try:
        out: Tree = TypeAdapter(type(thing)).dump_python(thing, mode="json", exclude_none=True)
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
    method: Method[Any] = as_method(_method(config.method.name, config.method.params, config.local))
    usual = {f.name: f.default for f in dataclasses.fields(config)}["local"]  # type: ignore[arg-type]
    if config.local != usual and not hasattr(method, "local") and not hasattr(method, "base"):
        raise CoterieError(
            f"local: {config.method.name} has no field `local`, so that nothing would come of it; "
            "give it one (local: Local = Local()), or leave local out"
        )
    return method


def _method(name: str, params: Tree, local: Local) -> Any:
    """A method and, where it wraps another, that one first; both train as `local` says unless they have their own."""
    found = METHODS.find(name)
    missing = [part for part in ("init", "round", "predictor") if not callable(getattr(found, part, None))]
    if missing:
        raise CoterieError(f"method.name: '{name}' is not a method: it has no {', '.join(missing)}")
    fields = {f.name: f for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else {}
    if "local" in fields:
        params["local"] = _merged(local, params.get("local"))
    if "base" in fields:
        params["base"] = _base(params.get("base"), fields["base"].default, local)
    return METHODS.build(name, params)


def _merged(local: Local, own: Any) -> Any:
    """A method's own `local`: the run's, with what the method says differently."""
    if own is None or not isinstance(own, dict):
        return local if own is None else own
    kept = TypeAdapter(Local).dump_python(local)
    if {"epochs", "steps"} & set(own):
        kept = {k: v for k, v in kept.items() if k not in ("epochs", "steps")}
    return kept | own


def _base(given: Any, default: Any, local: Local) -> Any:
    if given is not None and not isinstance(given, dict):
        raise CoterieError(f"method.base: expected {{name: ..., its parameters}}, got {given!r}")
    own = dict(given or {})
    if not dataclasses.is_dataclass(default):  # any method: it must be named
        if "name" not in own:
            raise CoterieError("method.base.name: which method is wrapped? For example method.base.name=ifca")
        return _method(own.pop("name"), own, local)
    kind: Any = type(default)
    known = {f.name: getattr(default, f.name) for f in dataclasses.fields(kind)}
    try:
        return kind(**(known | own | {"local": _merged(local, own.get("local"))}))
    except ValidationError as error:
        raise explain(error, "method.base", kind) from None


def build_data(config: RunConfig) -> Federation:
    """The federation."""
    partition = config.data.partition
    made = DATASETS.build(config.data.name, config.data.params)
    if ":" in config.data.name and not isinstance(made, Dataset | Federation):
        raise CoterieError(
            f"data.name: '{config.data.name}' gave a {type(made).__name__}; expected a Federation, "
            "for example from coterie.Federation.from_arrays, or a Dataset"
        )
    how = None if partition is None else PARTITIONS.build(partition.name, partition.params)
    return federate(made, how, seed=config.seed)
