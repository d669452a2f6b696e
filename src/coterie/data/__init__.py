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
    from coterie.data.dataset import Dataset as Dataset
    from coterie.data.drift import Drift as Drift
    from coterie.data.federation import Domain as Domain
    from coterie.data.federation import Ragged as Ragged
    from coterie.data.federation import changing as changing
    from coterie.data.images import ImageFolder as ImageFolder
    from coterie.data.npz import NPZ as NPZ
    from coterie.data.partitions.by_client import IID as IID
    from coterie.data.partitions.by_client import Classes as Classes
    from coterie.data.partitions.by_client import Dirichlet as Dirichlet
    from coterie.data.partitions.by_client import Natural as Natural
    from coterie.data.partitions.by_client import PowerLaw as PowerLaw
    from coterie.data.partitions.by_client import Quantity as Quantity
    from coterie.data.partitions.by_client import Subsample as Subsample
    from coterie.data.partitions.by_cluster import ClusterClasses as ClusterClasses
    from coterie.data.partitions.by_cluster import ClusterDirichlet as ClusterDirichlet
    from coterie.data.partitions.by_cluster import Corrupted as Corrupted
    from coterie.data.partitions.by_cluster import Hybrid as Hybrid
    from coterie.data.partitions.by_cluster import Pathological as Pathological
    from coterie.data.partitions.by_cluster import Rotated as Rotated
    from coterie.data.partitions.by_cluster import RotatedByLabel as RotatedByLabel
    from coterie.data.partitions.by_cluster import RotatedClasses as RotatedClasses
    from coterie.data.partitions.by_cluster import Shifted as Shifted
    from coterie.data.partitions.by_cluster import Swapped as Swapped
    from coterie.data.partitions.mixture import Mixture as Mixture
    from coterie.data.scale import Scale as Scale
    from coterie.data.sets.har import UCIHAR as UCIHAR
    from coterie.data.sets.images import CIFAR10 as CIFAR10
    from coterie.data.sets.images import CIFAR100 as CIFAR100
    from coterie.data.sets.images import EMNIST as EMNIST
    from coterie.data.sets.images import MNIST as MNIST
    from coterie.data.sets.images import Digits as Digits
    from coterie.data.sets.images import FashionMNIST as FashionMNIST
    from coterie.data.sets.images import MedMNIST as MedMNIST
    from coterie.data.sets.leaf import FEMNIST as FEMNIST
    from coterie.data.sets.leaf import Sent140 as Sent140
    from coterie.data.sets.synthetic import Synthetic as Synthetic
    from coterie.data.sets.synthetic import SyntheticRegression as SyntheticRegression
    from coterie.data.table import CSV as CSV
    from coterie.data.table import Parquet as Parquet
    from coterie.data.table import from_frame as from_frame
    from coterie.data.texts import Texts as Texts

_HOME = {
    "coterie.data.bridges.flower": ("from_flower",),
    "coterie.data.bridges.huggingface": ("from_huggingface",),
    "coterie.data.bridges.pytorch": (
        "federation_from_torch",
        "from_torch",
    ),
    "coterie.data.dataset": ("Dataset",),
    "coterie.data.drift": ("Drift",),
    "coterie.data.federation": (
        "Domain",
        "Ragged",
        "changing",
    ),
    "coterie.data.images": ("ImageFolder",),
    "coterie.data.npz": ("NPZ",),
    "coterie.data.partitions.by_client": (
        "Classes",
        "Dirichlet",
        "IID",
        "Natural",
        "PowerLaw",
        "Quantity",
        "Subsample",
    ),
    "coterie.data.partitions.by_cluster": (
        "ClusterClasses",
        "ClusterDirichlet",
        "Corrupted",
        "Hybrid",
        "Pathological",
        "Rotated",
        "RotatedByLabel",
        "RotatedClasses",
        "Shifted",
        "Swapped",
    ),
    "coterie.data.partitions.mixture": ("Mixture",),
    "coterie.data.scale": ("Scale",),
    "coterie.data.sets.har": ("UCIHAR",),
    "coterie.data.sets.images": (
        "CIFAR10",
        "CIFAR100",
        "Digits",
        "EMNIST",
        "FashionMNIST",
        "MNIST",
        "MedMNIST",
    ),
    "coterie.data.sets.leaf": (
        "FEMNIST",
        "Sent140",
    ),
    "coterie.data.sets.synthetic": (
        "Synthetic",
        "SyntheticRegression",
    ),
    "coterie.data.table": (
        "CSV",
        "Parquet",
        "from_frame",
    ),
    "coterie.data.texts": ("Texts",),
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
