"""Data sets, ways to spread them over clients, and the Federation they become.

Imported when first used: coterie.data.MNIST, coterie.data.Rotated, ... are the classes behind the catalogue's names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.data.bridges.flower import from_flower as from_flower
    from coterie.data.bridges.huggingface import from_huggingface as from_huggingface
    from coterie.data.bridges.pytorch import federation_from_torch as federation_from_torch
    from coterie.data.bridges.pytorch import from_torch as from_torch
    from coterie.data.cifar import CIFAR10 as CIFAR10
    from coterie.data.dataset import Dataset as Dataset
    from coterie.data.digits import Digits as Digits
    from coterie.data.federation import Domain as Domain
    from coterie.data.federation import Ragged as Ragged
    from coterie.data.federation import Scale as Scale
    from coterie.data.folder import ImageFolder as ImageFolder
    from coterie.data.har import UCIHAR as UCIHAR
    from coterie.data.idx import EMNIST as EMNIST
    from coterie.data.idx import MNIST as MNIST
    from coterie.data.idx import FashionMNIST as FashionMNIST
    from coterie.data.leaf import FEMNIST as FEMNIST
    from coterie.data.leaf import Sent140 as Sent140
    from coterie.data.medmnist import MedMNIST as MedMNIST
    from coterie.data.npz import NPZ as NPZ
    from coterie.data.partitions.clientwise import IID as IID
    from coterie.data.partitions.clientwise import Classes as Classes
    from coterie.data.partitions.clientwise import Dirichlet as Dirichlet
    from coterie.data.partitions.clientwise import PowerLaw as PowerLaw
    from coterie.data.partitions.clientwise import Quantity as Quantity
    from coterie.data.partitions.clusterwise import ClusterClasses as ClusterClasses
    from coterie.data.partitions.clusterwise import ClusterDirichlet as ClusterDirichlet
    from coterie.data.partitions.clusterwise import Hybrid as Hybrid
    from coterie.data.partitions.clusterwise import Pathological as Pathological
    from coterie.data.partitions.clusterwise import Rotated as Rotated
    from coterie.data.partitions.clusterwise import RotatedClasses as RotatedClasses
    from coterie.data.partitions.clusterwise import Shifted as Shifted
    from coterie.data.partitions.clusterwise import Swapped as Swapped
    from coterie.data.partitions.mixture import Mixture as Mixture
    from coterie.data.partitions.natural import Natural as Natural
    from coterie.data.synthetic import Synthetic as Synthetic
    from coterie.data.synthetic import SyntheticRegression as SyntheticRegression
    from coterie.data.tables import CSV as CSV
    from coterie.data.tables import Parquet as Parquet

_HOME = {
    "coterie.data.bridges.flower": ("from_flower",),
    "coterie.data.bridges.huggingface": ("from_huggingface",),
    "coterie.data.bridges.pytorch": ("federation_from_torch", "from_torch"),
    "coterie.data.npz": ("NPZ",),
    "coterie.data.cifar": ("CIFAR10",),
    "coterie.data.dataset": ("Dataset",),
    "coterie.data.digits": ("Digits",),
    "coterie.data.federation": ("Domain", "Ragged", "Scale"),
    "coterie.data.folder": ("ImageFolder",),
    "coterie.data.har": ("UCIHAR",),
    "coterie.data.idx": ("EMNIST", "FashionMNIST", "MNIST"),
    "coterie.data.leaf": ("FEMNIST", "Sent140"),
    "coterie.data.medmnist": ("MedMNIST",),
    "coterie.data.partitions.clientwise": ("Classes", "Dirichlet", "IID", "PowerLaw", "Quantity"),
    "coterie.data.partitions.clusterwise": (
        "ClusterClasses",
        "ClusterDirichlet",
        "Hybrid",
        "Pathological",
        "Rotated",
        "RotatedClasses",
        "Shifted",
        "Swapped",
    ),
    "coterie.data.partitions.mixture": ("Mixture",),
    "coterie.data.partitions.natural": ("Natural",),
    "coterie.data.synthetic": ("Synthetic", "SyntheticRegression"),
    "coterie.data.tables": ("CSV", "Parquet"),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'coterie.data' has no attribute '{name}'")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
