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
    from coterie.data.course import changing as changing
    from coterie.data.dataset import Dataset as Dataset
    from coterie.data.datasets.cifar import CIFAR10 as CIFAR10
    from coterie.data.datasets.cifar import CIFAR100 as CIFAR100
    from coterie.data.datasets.digits import Digits as Digits
    from coterie.data.datasets.har import UCIHAR as UCIHAR
    from coterie.data.datasets.idx import EMNIST as EMNIST
    from coterie.data.datasets.idx import MNIST as MNIST
    from coterie.data.datasets.idx import FashionMNIST as FashionMNIST
    from coterie.data.datasets.leaf import FEMNIST as FEMNIST
    from coterie.data.datasets.leaf import Sent140 as Sent140
    from coterie.data.datasets.medmnist import MedMNIST as MedMNIST
    from coterie.data.datasets.synthetic import Synthetic as Synthetic
    from coterie.data.datasets.synthetic import SyntheticRegression as SyntheticRegression
    from coterie.data.domain import Domain as Domain
    from coterie.data.drift import Drift as Drift
    from coterie.data.partitions.appearance import Corrupted as Corrupted
    from coterie.data.partitions.appearance import RotatedByLabel as RotatedByLabel
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
    from coterie.data.partitions.subsample import Subsample as Subsample
    from coterie.data.ragged import Ragged as Ragged
    from coterie.data.readers.images import ImageFolder as ImageFolder
    from coterie.data.readers.memory import from_frame as from_frame
    from coterie.data.readers.npz import NPZ as NPZ
    from coterie.data.readers.tables import CSV as CSV
    from coterie.data.readers.tables import Parquet as Parquet
    from coterie.data.readers.texts import Texts as Texts
    from coterie.data.scale import Scale as Scale

_HOME = {
    "coterie.data.bridges.flower": ("from_flower",),
    "coterie.data.bridges.huggingface": ("from_huggingface",),
    "coterie.data.bridges.pytorch": ("federation_from_torch", "from_torch"),
    "coterie.data.readers.npz": ("NPZ",),
    "coterie.data.datasets.cifar": ("CIFAR10", "CIFAR100"),
    "coterie.data.course": ("changing",),
    "coterie.data.drift": ("Drift",),
    "coterie.data.dataset": ("Dataset",),
    "coterie.data.datasets.digits": ("Digits",),
    "coterie.data.domain": ("Domain",),
    "coterie.data.ragged": ("Ragged",),
    "coterie.data.scale": ("Scale",),
    "coterie.data.readers.images": ("ImageFolder",),
    "coterie.data.readers.texts": ("Texts",),
    "coterie.data.datasets.har": ("UCIHAR",),
    "coterie.data.datasets.idx": ("EMNIST", "FashionMNIST", "MNIST"),
    "coterie.data.datasets.leaf": ("FEMNIST", "Sent140"),
    "coterie.data.datasets.medmnist": ("MedMNIST",),
    "coterie.data.partitions.appearance": ("Corrupted", "RotatedByLabel"),
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
    "coterie.data.partitions.subsample": ("Subsample",),
    "coterie.data.datasets.synthetic": ("Synthetic", "SyntheticRegression"),
    "coterie.data.readers.memory": ("from_frame",),
    "coterie.data.readers.tables": ("CSV", "Parquet"),
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
