"""What there is, by name: nothing is imported before it is asked for.

A name with a colon, `module:Class`, is the user's own; it needs no registration.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, suggest


@dataclass(frozen=True)
class Entry:
    """A line of a listing."""

    name: str
    summary: str
    paper: str


@dataclass(frozen=True)
class Consent:
    """Which code beyond this library may be imported because something names it as `module:Name`.

    Files are shared and received: a name in one is imported only if the user said so, or if its module lies beside the
    file. A name that the user typed, on the command line or in Python, is consent in itself.
    """

    names: frozenset[str] = frozenset()  # typed, or allowed by --trust
    beside: Path | None = None  # the folder of a configuration file: modules in it are of the file's author
    anything: bool = False
    source: str = ""  # where the names come from, for messages: runs/a/config.yaml
    how: str = "--trust {name}"  # what to write instead

    def typed(self, words: object) -> Consent:
        """With every name in what the user typed."""
        return replace(self, names=self.names | frozenset(own_code(words)))

    def refusal(self, key: str, name: str) -> CoterieError:
        """What to write instead."""
        where = f"{self.source}: {key}" if self.source else key
        beside = f", or put the module into {self.beside}" if self.beside is not None else ""
        return CoterieError(
            f"{where}: '{name}' is code beyond this library, which would be imported and run. If you know it, say so: "
            f"{self.how.format(name=name)}{beside}",
            code="trust-needed",
        )

    def lies_beside(self, module: str) -> bool:
        """Whether this module is one of the folder; nothing is imported to find out."""
        if self.beside is None:
            return False
        folder, top = self.beside.resolve(), module.partition(".")[0]
        beside = {folder / f"{top}.py", folder / top / "__init__.py"}
        if not any(place.is_file() for place in beside):
            return False
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # the last: nothing in it stands in for what is installed
        try:
            spec = importlib.util.find_spec(top)
        except ValueError:  # imported already, by something that leaves no trace of where from
            return False
        return spec is not None and spec.origin is not None and Path(spec.origin).resolve() in beside


NO_CODE = Consent()  # names of this library alone
ANY_CODE = Consent(anything=True)  # whoever calls has typed the name


def own_code(value: object) -> Iterator[str]:
    """Every string in a document, at any depth, that may name code beyond this library."""
    if isinstance(value, str):
        if ":" in value:
            yield value
    elif isinstance(value, Mapping):
        for below in value.values():
            yield from own_code(below)
    elif isinstance(value, list | tuple):
        for below in value:
            yield from own_code(below)


@dataclass(frozen=True)
class Catalogue:
    """The names of one kind of component, and the module of each."""

    kind: str  # also the key under which a configuration names it
    places: Mapping[str, str]
    expected: str = ""  # what a user's own has to be, in words
    parts: tuple[str, ...] = ("__call__",)  # what it has to have
    functions: bool = True  # whether a function will do
    key: str = "name"  # under which a configuration names it
    registered: dict[str, str] = field(default_factory=dict)  # by others: found by name, but not listed

    def find(self, name: str, consent: Consent) -> Any:
        """The class or function of this name."""
        if ":" in name:
            return self._import(name, consent)
        known = {**self.registered, **self.places}
        if name not in known:
            what = self.kind.rpartition(".")[2]
            raise CoterieError(
                f"{self.kind}.{self.key}: unknown {what} '{name}'.{suggest(name, known)}",
                code="config-unknown-name",
            )
        return self._import(known[name], ANY_CODE)

    def build(self, name: str, params: Mapping[str, Any], consent: Consent) -> Any:
        """An object of this name with these parameters, validated."""
        from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

        from coterie.core.settings import explain, instead_of, unknown_key

        made = self.find(name, consent)
        components: Mapping[str, Catalogue] = getattr(made, "components", {})
        params = {
            key: components[key].named(value, consent) if key in components and any(own_code(value)) else value
            for key, value in params.items()
        }
        try:
            if dataclasses.is_dataclass(made):
                # Standard dataclasses (of users) ignore unknown keys silently; ours refuse them.
                unknown = set(params) - {f.name for f in dataclasses.fields(made) if f.init}
                if not unknown or not isinstance(made, type):
                    return TypeAdapter(made).validate_python(dict(params))
                known = [f.name for f in dataclasses.fields(made) if f.init]
                key = sorted(unknown)[0]
                instead = instead_of(made.__name__, key, params[key], self.kind)
                if instead is not None:
                    raise CoterieError(f"{self.kind}.{key}: {instead}", code="config-unknown-key")
                said = unknown_key(made, key, [*known, "name"], prefix=f"{self.kind}.")
                raise CoterieError(f"{self.kind}.{key}: {said}", code="config-unknown-key")
            return made(**params)
        except ValidationError as error:
            raise explain(error, self.kind, made) from None
        except PydanticSchemaGenerationError:  # a user's dataclass with fields that pydantic cannot check
            return made(**params)
        except TypeError as error:
            raise CoterieError(
                f"{self.kind}: '{name}' does not take these parameters: {error}", code="config-invalid-value"
            ) from None
        except Exception as error:
            if ":" not in name or isinstance(error, CoterieError):
                raise
            # Whatever a user's function does.
            raise CoterieError(
                f"{self.kind}: '{name}' failed: {type(error).__name__}: {error}", code="component-failed"
            ) from error

    def entries(self) -> Iterator[Entry]:
        """All of them, with the first line of their documentation and their paper."""
        for name in self.places:
            made = self.find(name, NO_CODE)
            yield Entry(name, (made.__doc__ or "").strip().splitlines()[0], getattr(made, "paper", ""))

    def named(self, given: Any, consent: Consent) -> Any:
        """From a name, {name: ..., its parameters}, or an object, which stays as it is."""
        if not isinstance(given, str | Mapping):
            return given
        params = {"name": given} if isinstance(given, str) else dict(given)
        return self.build(str(params.pop("name", "")), params, consent)

    def _import(self, place: str, consent: Consent) -> Any:
        """The only importer of a name. Without consent nothing is imported, and nothing unexpected is ever called."""
        module, _, attribute = place.partition(":")
        key = f"{self.kind}.{self.key}"
        beside = consent.lies_beside(module)
        allowed = consent.anything or place in consent.names
        if not allowed and not beside:
            raise consent.refusal(key, place)
        try:
            found = importlib.import_module(module)
        except Exception as error:  # a user's module may raise anything while it is imported
            why = f"{type(error).__name__}: {error}"
            raise CoterieError(
                f"{key}: cannot import '{module}' for '{place}': {why}", code="component-not-found"
            ) from None
        try:
            made = getattr(found, attribute)
        except AttributeError:
            public = [n for n, v in vars(found).items() if getattr(v, "__module__", "") == module]
            raise CoterieError(
                f"{key}: module '{module}' has no '{attribute}'.{suggest(attribute, public)}",
                code="component-not-found",
            ) from None
        if place not in self.places.values() and not self._is_expected(made):
            raise CoterieError(f"{key}: '{place}' is not {self.expected}", code="component-invalid")
        if not allowed and str(getattr(made, "__module__", "")).partition(".")[0] != module.partition(".")[0]:
            raise consent.refusal(key, place)  # it lies beside the file, but only imports this from elsewhere
        return made

    def _is_expected(self, made: Any) -> bool:
        if isinstance(made, type):  # every class can be called; its objects only if it defines that
            return {part for kind in made.__mro__[:-1] for part in vars(kind)} >= set(self.parts)
        return (self.functions and callable(made)) or all(hasattr(made, part) for part in self.parts)


METHODS = Catalogue(
    "method",
    {
        "halves": "coterie.methods.halves:Halves",
        "fedavg": "coterie.methods.fedavg:FedAvg",
        "fedprox": "coterie.methods.fedprox:FedProx",
        "fedavgm": "coterie.methods.server_optimized:FedAvgM",
        "fedadam": "coterie.methods.server_optimized:FedAdam",
        "local": "coterie.methods.local_only:LocalOnly",
        "given": "coterie.methods.given:Given",
        "oracle": "coterie.methods.given:Oracle",
        "ifca": "coterie.methods.ifca:IFCA",
        "fesem": "coterie.methods.fesem:FeSEM",
        "wecfl": "coterie.methods.wecfl:WeCFL",
        "clove": "coterie.methods.clove:CLoVE",
        "feddrift": "coterie.methods.feddrift:FedDrift",
        "ditto": "coterie.methods.ditto:Ditto",
        "fedavg+": "coterie.methods.ensemble:FedAvgPlus",
        "fedprox+": "coterie.methods.ensemble:FedProxPlus",
        "cfl": "coterie.methods.cfl:CFL",
        "fl+hc": "coterie.methods.flhc:FLHC",
        "fedclust": "coterie.methods.fedclust:FedClust",
        "pacfl": "coterie.methods.pacfl:PACFL",
        "fielding": "coterie.methods.fielding:Fielding",
        "flux": "coterie.methods.flux:FLUX",
        "fedem": "coterie.methods.fedem:FedEM",
        "fedrc": "coterie.methods.fedrc:FedRC",
        "fedsoft": "coterie.methods.fedsoft:FedSoft",
        "fedgroup": "coterie.methods.fedgroup:FedGroup",
        "fedgrouprox": "coterie.methods.fedgroup:FedGrouProx",
        "stocfl": "coterie.methods.stocfl:StoCFL",
        "ifca-cam": "coterie.methods.cam:IFCACAM",
        "fesem-cam": "coterie.methods.cam:FeSEMCAM",
        "wecfl-cam": "coterie.methods.cam:WeCFLCAM",
        "fedgroup-cam": "coterie.methods.cam:FedGroupCAM",
        "stocfl-cam": "coterie.methods.cam:StoCFLCAM",
        "cfl-cam": "coterie.methods.cam:CFLCAM",
        "cam": "coterie.methods.cam:CAM",
        "composed": "coterie.methods.composed:Composed",
        "fedper": "coterie.methods.fedper:FedPer",
        "fedrep": "coterie.methods.fedrep:FedRep",
        "fedbn": "coterie.methods.fedbn:FedBN",
        "personal": "coterie.methods.personal:Personalised",
        "ifca-personal": "coterie.methods.personal:IFCAPersonal",
    },
    "a method (a class with init, round and predictor)",
    ("init", "round", "predictor"),
    functions=False,
)
MODELS = Catalogue(
    "model",
    {
        "linear": "coterie.zoo:LinearModel",
        "mlp": "coterie.zoo:MLP",
        "cnn": "coterie.zoo:CNN",
        "lenet": "coterie.zoo:LeNet",
        "cnn1d": "coterie.zoo:CNN1D",
        "lstm": "coterie.zoo:LSTM",
        "transformer": "coterie.core.pretrained:Transformer",
        "torchvision": "coterie.core.pretrained:TorchVision",
    },
    "a network (a subclass of torch.nn.Module, or a function that builds one)",
)
DATASETS = Catalogue(
    "data",
    {
        "digits": "coterie.data.sets.images:Digits",
        "mnist": "coterie.data.sets.images:MNIST",
        "fashion-mnist": "coterie.data.sets.images:FashionMNIST",
        "emnist": "coterie.data.sets.images:EMNIST",
        "cifar10": "coterie.data.sets.images:CIFAR10",
        "cifar100": "coterie.data.sets.images:CIFAR100",
        "medmnist": "coterie.data.sets.images:MedMNIST",
        "femnist": "coterie.data.sets.leaf:FEMNIST",
        "sent140": "coterie.data.sets.leaf:Sent140",
        "uci-har": "coterie.data.sets.har:UCIHAR",
        "synthetic": "coterie.data.sets.synthetic:Synthetic",
        "synthetic-regression": "coterie.data.sets.synthetic:SyntheticRegression",
        "npz": "coterie.data.npz:NPZ",
        "csv": "coterie.data.table:CSV",
        "parquet": "coterie.data.table:Parquet",
        "texts": "coterie.data.texts:Texts",
        "image-folder": "coterie.data.images:ImageFolder",
    },
    "a data set (a function, or a class whose objects can be called, that gives a Federation or a Dataset)",
)
PARTITIONS = Catalogue(
    "data.partition",
    {
        "iid": "coterie.data.partitions.by_client:IID",
        "quantity": "coterie.data.partitions.by_client:Quantity",
        "dirichlet": "coterie.data.partitions.by_client:Dirichlet",
        "classes": "coterie.data.partitions.by_client:Classes",
        "power-law": "coterie.data.partitions.by_client:PowerLaw",
        "cluster-dirichlet": "coterie.data.partitions.by_cluster:ClusterDirichlet",
        "cluster-classes": "coterie.data.partitions.by_cluster:ClusterClasses",
        "pathological": "coterie.data.partitions.by_cluster:Pathological",
        "rotated": "coterie.data.partitions.by_cluster:Rotated",
        "shifted": "coterie.data.partitions.by_cluster:Shifted",
        "swapped": "coterie.data.partitions.by_cluster:Swapped",
        "rotated-classes": "coterie.data.partitions.by_cluster:RotatedClasses",
        "hybrid": "coterie.data.partitions.by_cluster:Hybrid",
        "corrupted": "coterie.data.partitions.by_cluster:Corrupted",
        "rotated-by-label": "coterie.data.partitions.by_cluster:RotatedByLabel",
        "mixture": "coterie.data.partitions.mixture:Mixture",
        "natural": "coterie.data.partitions.by_client:Natural",
        "subsample": "coterie.data.partitions.by_client:Subsample",
    },
    "a partition (a class whose objects, or a function whose result, spread a Dataset over clients)",
)
LOSSES = Catalogue(
    "model.loss",
    {
        "multilabel": "coterie.core.objective:MultiLabel",
        "mae": "coterie.core.objective:AbsoluteError",
        "tokens": "coterie.core.objective:Tokens",
    },
    "a loss (a function of outputs and labels, or an object with losses and scores)",
    ("losses", "scores"),
)
ATTACKS = Catalogue("attack", {}, "a function of an AttackView that returns a Lie", key="kind")
# What a result can do that belongs to a package above it: named, not imported, as methods and models are.
AFTER_TRAINING = Catalogue("result", {"export": "coterie.serving.export.export:export"})
