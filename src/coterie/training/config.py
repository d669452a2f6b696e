"""A run as a YAML file and `key=value` words, validated before anything is built."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from coterie.core.compute import Compute, DeviceName, Precision
from coterie.core.errors import CoterieError
from coterie.core.registry import DATASETS, METHODS, MODELS, NO_CODE, PARTITIONS, Catalogue, Consent
from coterie.core.settings import STRICT, explain
from coterie.core.settings import dataclass as validated
from coterie.core.tasks import Local
from coterie.core.text import YamlError, parse_yaml
from coterie.data.drift import Drift
from coterie.data.federate import makes_clients
from coterie.engines.choose import EngineName
from coterie.training.settings import Settings
from coterie.training.tuned import KEYS

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
    drift: Drift | None = None  # how it changes in the course of the run


class EngineConfig(BaseModel):
    """The engine that carries tasks to the clients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: EngineName = "auto"  # by a rule: see `engines.auto`; a run directory has the engine that it came to
    workers: PositiveInt | None = None  # processes; as many as cores when not given
    address: str | None = None  # ray: the cluster's head, 10.0.0.1:6379; auto: RAY_ADDRESS, or this machine alone

    num_gpus: PositiveFloat | None = None  # ray: of a GPU for each process (0.25: four share one); 1 with device=cuda

    @model_validator(mode="after")
    def _address_of_a_cluster(self) -> EngineConfig:
        if self.num_gpus is not None and self.name != "ray":
            raise ValueError(
                f"num_gpus is of Ray's processes, engine '{self.name}' has none; write engine.name=ray, or device=cuda"
            )
        if self.address is not None and self.name != "ray":
            raise ValueError(f"address is that of a Ray cluster, engine '{self.name}' has none; write engine.name=ray")
        return self


@validated(frozen=True, config=STRICT)
class RunConfig(Settings):
    """Everything `coterie run` needs. The defaults are the demo: 40 clients, rotated digits, four hidden clusters."""

    data: DataConfig = DataConfig(name="digits", partition=Named(name="rotated"))
    model: Named = Named(name="linear")
    method: Named = Named(name="halves")
    local: Local = Local(epochs=5, batch=8, lr=0.1)
    engine: EngineConfig = EngineConfig()
    device: DeviceName = "auto"  # that computes clients: cpu, cuda, cuda:1, mps, xpu; auto: an accelerator, if any
    precision: Precision = "float32"  # that networks compute in: float32, or bf16, fp16 by autocast
    compile: bool = False  # networks, with torch.compile
    deterministic: bool = False  # only algorithms that give the same bits again; an error where there are none
    # To import code that it names. No file has it, and configurations are compared without.
    consent: Annotated[InstanceOf[Consent], Field(exclude=True)] = field(default=NO_CODE, compare=False)

    @property
    def compute(self) -> Compute:
        """Where clients are computed, and how precisely."""
        return Compute(self.device, self.precision, self.compile, self.deterministic)

    @property
    def settings(self) -> Settings:
        """The settings of the round loop."""
        return Settings(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Settings)})

    def dump(self) -> Tree:
        """As a YAML document, every default written out."""
        out: Tree = TypeAdapter(RunConfig).dump_python(self, mode="json", exclude_none=True)
        return out


def read(
    file: Path | None,
    words: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
    consent: Consent = NO_CODE,
) -> RunConfig:
    """The configuration of a file (or of the demo), changed by `key=value` words.

    consent: to import code of the user's own that the file or `base` names; for what the words name, they are consent.
    """
    tree = copy.deepcopy(dict(base)) if base is not None else RunConfig().dump()
    if file is not None:
        tree |= named_values(read_file(file))
    consent = consent_to(file, words, consent)
    change(tree, words, consent)
    try:
        return TypeAdapter(RunConfig).validate_python(checked(tree) | {"consent": consent})
    except ValidationError as error:
        raise explain(error, "", RunConfig) from None


def consent_to(file: Path | None, words: Sequence[str], given: Consent) -> Consent:
    """With what the user typed, and with modules beside a file that is no run's: run directories are received whole."""
    if file is not None:
        beside = None if (file.parent / "run.json").exists() else file.parent
        given = replace(given, source=given.source or str(file), beside=beside)
    return given.typed([_word(word)[1] for word in words])


def checked(tree: Tree) -> Tree:
    """A document without the key that only this library sets."""
    if "consent" in tree:
        raise CoterieError("consent: unknown key; consent to code is given by --trust", code="config-unknown-key")
    return tree


def named_values(tree: Tree) -> Tree:
    """A document with its short forms written out."""
    return {key: _named(key, value) for key, value in tree.items()}


def change(tree: Tree, words: Sequence[str], consent: Consent) -> None:
    """Change a document by `key=value` words."""
    said = {word.partition("=")[0] for word in words}
    for key, value in (_word(word) for word in words):
        _set(tree, key.split("."), _named(key, value), said, consent)


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
        raise CoterieError(f"'{word}': expected key=value, for example method.k=4", code="config-unreadable")
    try:
        return key, parse_yaml(text)
    except YamlError:
        raise CoterieError(f"{key[:200]}: '{text[:200]}' is not a YAML value", code="config-invalid-value") from None


class _OnceEach(yaml.SafeLoader):
    """YAML without duplicate keys: the second would silently replace the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As always, once each key was seen."""
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.YAMLError(f"duplicate key '{key.value}' (repeated on line {key.start_mark.line + 1})")
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


def read_file(file: Path) -> Tree:
    """A YAML file of keys and values."""
    try:
        tree = parse_yaml(file.read_text(encoding="utf-8"), _OnceEach)
    except OSError as error:
        raise CoterieError(f"{file}: cannot be read ({error.strerror})", code="config-unreadable") from None
    except (YamlError, UnicodeDecodeError) as error:
        raise CoterieError(f"{file}: not YAML: {error}{_of_data(file)}", code="config-unreadable") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        said = f"expected keys and values, found a {type(tree).__name__}{_of_data(file)}"
        raise CoterieError(f"{file}: {said}", code="config-unreadable")
    if (file.parent / "run.json").is_file():
        _as_then(tree)
    return tree


def _of_data(file: Path) -> str:
    """What to do with data where a configuration is expected."""
    tables = (".csv", ".tsv", ".parquet", ".npz")
    return f"; coterie init {file} writes a configuration for this data" if file.suffix.lower() in tables else ""


def _as_then(tree: Tree) -> None:
    """A run's own config.yaml has every option: one that is missing did not exist yet, so the old behaviour is kept."""
    if "data" in tree:  # a run that was made in Python, or a server's, has no such key
        tree.setdefault("device", "cpu")
    data = tree.get("data")
    if not isinstance(data, dict) or data.get("name") not in ("csv", "parquet"):
        return
    if "standardise_y" not in data:
        data["standardise_y"] = False
        if data.get("standardise") is True:
            data["standardise"] = "all"
    if "missing" not in data:
        data |= {"missing": "refuse", "categories": "none"}
    data.setdefault("na", "value")


def _named(key: str, value: Any) -> Any:
    """`method: wecfl` is short for `method: {name: wecfl}`, `drift: sudden` for `drift: {kind: sudden}`."""
    if isinstance(value, dict):
        return {inner: _named(f"{key}.{inner}", below) for inner, below in value.items()}
    return {SHORT[key]: value} if key in SHORT and isinstance(value, str) else value


def _set(tree: Tree, path: list[str], value: Any, said: set[str], consent: Consent) -> None:
    """Set a dotted key. A new name keeps only those old parameters that the new thing knows too."""
    short = SHORT.get(".".join(path), "")
    if isinstance(value, dict) and set(value) == {short}:
        path, value = [*path, short], value[short]
    node = tree
    for part in path[:-1]:
        below = node.get(part)
        if not isinstance(below, dict):
            below = node[part] = {}
        node = below
    *above, last = path
    if last == "name" and above and node.get("name") != value:
        _rename(node, ".".join(above), str(value), said, consent)
    if last in ("epochs", "steps"):  # one replaces the other, unless both were asked for, which is then refused
        other = "steps" if last == "epochs" else "epochs"
        if ".".join([*above, other]) not in said:
            node.pop(other, None)
    node[last] = value


NAMED = ("data", "data.partition", "model", "method", "method.base", "engine", "aggregator", "server_optimizer")
SHORT = dict.fromkeys(NAMED, "name") | {"data.drift": "kind"}  # the key that a single word is the value of
_KINDS: Mapping[str, Catalogue] = {c.kind: c for c in (METHODS, MODELS, DATASETS, PARTITIONS)}


def _rename(node: Tree, kind: str, name: str, said: set[str], consent: Consent) -> None:
    """Forget the parameters that the new thing does not know; data that is `owned` brings its clients along."""
    if kind not in _KINDS:
        return
    found = _KINDS[kind].find(name, consent)
    known = {f.name for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    if kind == "data":
        known.add("drift")
        asked = any(key.startswith("data.partition") for key in said)  # then it stays, and is refused if it must be
        owned = getattr(found, "owned", False)
        if asked or not (makes_clients(found) or owned):
            known.add("partition")
        if owned and asked and not {"data.partition", "data.partition.name"} & said:
            given = {key.rpartition(".")[2] for key in said}
            node["partition"] = {"name": "natural"} | {k: v for k, v in node["partition"].items() if k in given}
    if kind == "model":
        known |= set(KEYS)
    for key in set(node) - known - {"name"}:
        del node[key]
