"""What there is, by name: nothing is imported before it is asked for.

A name with a colon, `module:Class`, is the user's own; it needs no registration.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from coterie.errors import CoterieError, suggest
from coterie.explain import explain


@dataclass(frozen=True)
class Entry:
    """A line of a listing."""

    name: str
    summary: str
    paper: str


@dataclass(frozen=True)
class Catalogue:
    """Names of one kind of thing, and where each lives."""

    kind: str  # also the key under which a configuration names it
    places: Mapping[str, str]

    def find(self, name: str) -> Any:
        """The class or function of this name."""
        if ":" in name:
            return self._import(name)
        if name not in self.places:
            what = self.kind.rpartition(".")[2]
            raise CoterieError(f"{self.kind}.name: unknown {what} '{name}'.{suggest(name, self.places)}")
        return self._import(self.places[name])

    def build(self, name: str, params: Mapping[str, Any]) -> Any:
        """An object of this name with these parameters, validated."""
        made = self.find(name)
        try:
            if dataclasses.is_dataclass(made):
                # Stdlib dataclasses (a user's) drop unknown keys without a word; ours refuse them.
                unknown = set(params) - {f.name for f in dataclasses.fields(made) if f.init}
                if not unknown or not isinstance(made, type):
                    return TypeAdapter(made).validate_python(dict(params))
                known = [f.name for f in dataclasses.fields(made) if f.init]
                key = sorted(unknown)[0]
                raise CoterieError(f"{self.kind}.{key}: unknown key.{suggest(key, known)}")
            return made(**params)
        except ValidationError as error:
            raise explain(error, self.kind, made) from None
        except PydanticSchemaGenerationError:  # a user's dataclass with fields that pydantic cannot check
            return made(**params)
        except TypeError as error:
            raise CoterieError(f"{self.kind}: '{name}' does not take these parameters: {error}") from None
        except Exception as error:
            if ":" not in name or isinstance(error, CoterieError):
                raise
            # Whatever a user's function does.
            raise CoterieError(f"{self.kind}: '{name}' failed: {type(error).__name__}: {error}") from error

    def entries(self) -> Iterator[Entry]:
        """All of them, with their first line and their paper."""
        for name in self.places:
            found = self.find(name)
            yield Entry(name, (found.__doc__ or "").strip().splitlines()[0], getattr(found, "paper", ""))

    def _import(self, place: str) -> Any:
        module, _, attribute = place.partition(":")
        try:
            found = importlib.import_module(module)
        except Exception as error:  # whatever a user's module does while it is imported
            why = f"{type(error).__name__}: {error}"
            raise CoterieError(f"{self.kind}.name: cannot import '{module}' for '{place}': {why}") from None
        try:
            return getattr(found, attribute)
        except AttributeError:
            public = [n for n, v in vars(found).items() if getattr(v, "__module__", "") == module]
            raise CoterieError(
                f"{self.kind}.name: module '{module}' has no '{attribute}'.{suggest(attribute, public)}"
            ) from None


METHODS = Catalogue(
    "method",
    {
        "fedavg": "coterie.methods.fedavg:FedAvg",
        "fedprox": "coterie.methods.fedprox:FedProx",
        "ifca": "coterie.methods.ifca:IFCA",
        "fesem": "coterie.methods.fesem:FeSEM",
        "wecfl": "coterie.methods.wecfl:WeCFL",
        "ditto": "coterie.methods.ditto:Ditto",
        "fedavg+": "coterie.methods.ensemble:FedAvgPlus",
        "fedprox+": "coterie.methods.ensemble:FedProxPlus",
        "cfl": "coterie.methods.cfl:CFL",
        "fl+hc": "coterie.methods.flhc:FLHC",
        "fedem": "coterie.methods.fedem:FedEM",
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
    },
)
DATASETS = Catalogue(
    "data",
    {
        "digits": "coterie.data.digits:Digits",
        "mnist": "coterie.data.idx:MNIST",
        "fashion-mnist": "coterie.data.idx:FashionMNIST",
        "emnist": "coterie.data.idx:EMNIST",
        "cifar10": "coterie.data.cifar:CIFAR10",
        "medmnist": "coterie.data.medmnist:MedMNIST",
        "femnist": "coterie.data.leaf:FEMNIST",
        "sent140": "coterie.data.leaf:Sent140",
        "uci-har": "coterie.data.har:UCIHAR",
        "synthetic": "coterie.data.synthetic:Synthetic",
        "synthetic-regression": "coterie.data.synthetic:SyntheticRegression",
        "npz": "coterie.data.npz:NPZ",
        "csv": "coterie.data.tables:CSV",
        "parquet": "coterie.data.tables:Parquet",
        "image-folder": "coterie.data.folder:ImageFolder",
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
        "mixture": "coterie.data.partitions.mixture:Mixture",
        "natural": "coterie.data.partitions.natural:Natural",
    },
)
