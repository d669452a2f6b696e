"""What there is, by name: nothing is imported before it is asked for.

A name with a colon, `module:Class`, is the user's own; it needs no registration.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.core.docstrings import UnreadableError, describe
from coterie.core.errors import CoterieError, suggest


@dataclass(frozen=True)
class Entry:
    """A line of a listing."""

    name: str
    summary: str
    paper: str


@dataclass(frozen=True)
class Catalogue:
    """The names of one kind of component, and the module of each."""

    kind: str  # also the key under which a configuration names it
    places: Mapping[str, str]
    registered: dict[str, str] = field(default_factory=dict)  # by others: found by name, but not listed

    def find(self, name: str) -> Any:
        """The class or function of this name."""
        if ":" in name:
            return self._import(name)
        known = {**self.registered, **self.places}
        if name not in known:
            what = self.kind.rpartition(".")[2]
            raise CoterieError(
                f"{self.kind}.name: unknown {what} '{name}'.{suggest(name, known)}", code="config-unknown-name"
            )
        return self._import(known[name])

    def build(self, name: str, params: Mapping[str, Any]) -> Any:
        """An object of this name with these parameters, validated."""
        from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

        from coterie.core.validation import explain, instead_of

        made = self.find(name)
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
                raise CoterieError(
                    f"{self.kind}.{key}: unknown key.{suggest(key, [*known, 'name'])}", code="config-unknown-key"
                )
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
        """All of them, with their first line and their paper: from their sources, so that nothing is imported."""
        for name, place in self.places.items():
            module, _, attribute = place.partition(":")
            try:
                found = describe(module, attribute)
                yield Entry(name, found.summary, found.paper)
            except UnreadableError:  # installed without sources
                made = self.find(name)
                yield Entry(name, (made.__doc__ or "").strip().splitlines()[0], getattr(made, "paper", ""))

    def _import(self, place: str) -> Any:
        module, _, attribute = place.partition(":")
        try:
            found = importlib.import_module(module)
        except Exception as error:  # a user's module may raise anything while it is imported
            why = f"{type(error).__name__}: {error}"
            raise CoterieError(
                f"{self.kind}.name: cannot import '{module}' for '{place}': {why}", code="component-not-found"
            ) from None
        try:
            return getattr(found, attribute)
        except AttributeError:
            public = [n for n, v in vars(found).items() if getattr(v, "__module__", "") == module]
            raise CoterieError(
                f"{self.kind}.name: module '{module}' has no '{attribute}'.{suggest(attribute, public)}",
                code="component-not-found",
            ) from None


METHODS = Catalogue(
    "method",
    {
        "halves": "coterie.methods.halves:Halves",
        "fedavg": "coterie.methods.fedavg:FedAvg",
        "fedprox": "coterie.methods.fedprox:FedProx",
        "fedavgm": "coterie.methods.fedavgm:FedAvgM",
        "fedadam": "coterie.methods.fedadam:FedAdam",
        "local": "coterie.methods.local_only:LocalOnly",
        "given": "coterie.methods.given:Given",
        "oracle": "coterie.methods.oracle:Oracle",
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
        "fedgrouprox": "coterie.methods.fedgrouprox:FedGrouProx",
        "stocfl": "coterie.methods.stocfl:StoCFL",
        "ifca-cam": "coterie.methods.cam_presets:IFCACAM",
        "fesem-cam": "coterie.methods.cam_presets:FeSEMCAM",
        "wecfl-cam": "coterie.methods.cam_presets:WeCFLCAM",
        "fedgroup-cam": "coterie.methods.cam_presets:FedGroupCAM",
        "stocfl-cam": "coterie.methods.cam_presets:StoCFLCAM",
        "cfl-cam": "coterie.methods.cam_presets:CFLCAM",
        "cam": "coterie.methods.cam:CAM",
        "composed": "coterie.methods.composed:Composed",
        "fedper": "coterie.methods.fedper:FedPer",
        "fedrep": "coterie.methods.fedrep:FedRep",
        "fedbn": "coterie.methods.fedbn:FedBN",
        "personal": "coterie.methods.personal:Personalised",
        "ifca-personal": "coterie.methods.personal:IFCAPersonal",
    },
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
        "transformer": "coterie.core.pretrained.transformer:Transformer",
        "torchvision": "coterie.core.pretrained.vision:TorchVision",
    },
)
DATASETS = Catalogue(
    "data",
    {
        "digits": "coterie.data.datasets.digits:Digits",
        "mnist": "coterie.data.datasets.idx:MNIST",
        "fashion-mnist": "coterie.data.datasets.idx:FashionMNIST",
        "emnist": "coterie.data.datasets.idx:EMNIST",
        "cifar10": "coterie.data.datasets.cifar:CIFAR10",
        "cifar100": "coterie.data.datasets.cifar:CIFAR100",
        "medmnist": "coterie.data.datasets.medmnist:MedMNIST",
        "femnist": "coterie.data.datasets.leaf:FEMNIST",
        "sent140": "coterie.data.datasets.leaf:Sent140",
        "uci-har": "coterie.data.datasets.har:UCIHAR",
        "synthetic": "coterie.data.datasets.synthetic:Synthetic",
        "synthetic-regression": "coterie.data.datasets.synthetic:SyntheticRegression",
        "npz": "coterie.data.readers.npz:NPZ",
        "csv": "coterie.data.readers.tables:CSV",
        "parquet": "coterie.data.readers.tables:Parquet",
        "texts": "coterie.data.readers.texts:Texts",
        "image-folder": "coterie.data.readers.images:ImageFolder",
    },
)
PARTITIONS = Catalogue(
    "data.partition",
    {
        "iid": "coterie.data.partitions.clientwise:IID",
        "quantity": "coterie.data.partitions.clientwise:Quantity",
        "dirichlet": "coterie.data.partitions.clientwise:Dirichlet",
        "classes": "coterie.data.partitions.clientwise:Classes",
        "power-law": "coterie.data.partitions.clientwise:PowerLaw",
        "cluster-dirichlet": "coterie.data.partitions.clusterwise:ClusterDirichlet",
        "cluster-classes": "coterie.data.partitions.clusterwise:ClusterClasses",
        "pathological": "coterie.data.partitions.clusterwise:Pathological",
        "rotated": "coterie.data.partitions.clusterwise:Rotated",
        "shifted": "coterie.data.partitions.clusterwise:Shifted",
        "swapped": "coterie.data.partitions.clusterwise:Swapped",
        "rotated-classes": "coterie.data.partitions.clusterwise:RotatedClasses",
        "hybrid": "coterie.data.partitions.clusterwise:Hybrid",
        "corrupted": "coterie.data.partitions.appearance:Corrupted",
        "rotated-by-label": "coterie.data.partitions.appearance:RotatedByLabel",
        "mixture": "coterie.data.partitions.mixture:Mixture",
        "natural": "coterie.data.partitions.natural:Natural",
        "subsample": "coterie.data.partitions.subsample:Subsample",
    },
)
LOSSES = Catalogue(
    "model.loss",
    {
        "multilabel": "coterie.core.objective:MultiLabel",
        "mae": "coterie.core.objective:AbsoluteError",
        "tokens": "coterie.core.objective:Tokens",
    },
)
# What a result can do that belongs to a package above it: named, not imported, as methods and models are.
AFTER_TRAINING = Catalogue("result", {"export": "coterie.serving.export.export:export"})
