"""Clustered federated learning: find the groups hidden among clients and train a model per group.

The public names, nothing else. They are imported when first used, so that `coterie --help` need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.byclient import ByClient as ByClient
    from coterie.config import RunConfig as RunConfig
    from coterie.data.federate import federate as federate
    from coterie.data.federation import Federation as Federation
    from coterie.driver import run as run
    from coterie.errors import CoterieError as CoterieError
    from coterie.means import mean as mean
    from coterie.means import mean_by as mean_by
    from coterie.methods.cam import CAM as CAM
    from coterie.methods.cfl import CFL as CFL
    from coterie.methods.composed import Composed as Composed
    from coterie.methods.ditto import Ditto as Ditto
    from coterie.methods.ensemble import FedAvgPlus as FedAvgPlus
    from coterie.methods.ensemble import FedProxPlus as FedProxPlus
    from coterie.methods.fedavg import FedAvg as FedAvg
    from coterie.methods.fedem import FedEM as FedEM
    from coterie.methods.fedgroup import FedGroup as FedGroup
    from coterie.methods.fedgroup import FedGrouProx as FedGrouProx
    from coterie.methods.fedprox import FedProx as FedProx
    from coterie.methods.fedsoft import FedSoft as FedSoft
    from coterie.methods.fesem import FeSEM as FeSEM
    from coterie.methods.flhc import FLHC as FLHC
    from coterie.methods.ifca import IFCA as IFCA
    from coterie.methods.stocfl import StoCFL as StoCFL
    from coterie.methods.wecfl import WeCFL as WeCFL
    from coterie.model import Model as Model
    from coterie.result import Result as Result
    from coterie.serving import Served as Served
    from coterie.serving import load as load
    from coterie.tasks import All as All
    from coterie.tasks import Best as Best
    from coterie.tasks import Cohort as Cohort
    from coterie.tasks import Estimated as Estimated
    from coterie.tasks import Evaluate as Evaluate
    from coterie.tasks import Fit as Fit
    from coterie.tasks import Local as Local
    from coterie.tasks import Mix as Mix
    from coterie.tasks import Own as Own
    from coterie.tasks import Pick as Pick
    from coterie.tasks import Posterior as Posterior
    from coterie.tasks import Roster as Roster
    from coterie.tasks import Score as Score

__version__ = "0.1.0"

_HOME = {
    "coterie.byclient": ("ByClient",),
    "coterie.config": ("RunConfig",),
    "coterie.data.federate": ("federate",),
    "coterie.data.federation": ("Federation",),
    "coterie.errors": ("CoterieError",),
    "coterie.means": ("mean", "mean_by"),
    "coterie.methods.ditto": ("Ditto",),
    "coterie.methods.ensemble": (
        "FedAvgPlus",
        "FedProxPlus",
    ),
    "coterie.methods.cfl": ("CFL",),
    "coterie.methods.flhc": ("FLHC",),
    "coterie.methods.fedem": ("FedEM",),
    "coterie.methods.fedsoft": ("FedSoft",),
    "coterie.methods.fedgroup": (
        "FedGroup",
        "FedGrouProx",
    ),
    "coterie.methods.stocfl": ("StoCFL",),
    "coterie.methods.cam": ("CAM",),
    "coterie.methods.composed": ("Composed",),
    "coterie.methods.fedavg": ("FedAvg",),
    "coterie.methods.fedprox": ("FedProx",),
    "coterie.methods.fesem": ("FeSEM",),
    "coterie.methods.ifca": ("IFCA",),
    "coterie.methods.wecfl": ("WeCFL",),
    "coterie.model": ("Model",),
    "coterie.driver": ("run",),
    "coterie.result": ("Result",),
    "coterie.serving": ("Served", "load"),
    "coterie.tasks": (
        *("All", "Best", "Cohort", "Estimated", "Evaluate", "Fit", "Local"),
        *("Mix", "Own", "Pick", "Posterior", "Roster", "Score"),
    ),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_WHERE, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
