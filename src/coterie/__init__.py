"""Clustered federated learning: find the groups hidden among clients and train a model per group.

The public names, nothing else. They are imported when first used, so that `coterie --help` need not wait for torch.
The block for type checkers and `_HOME` say the same: tests/test_testing.py compares them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from coterie.core.version import __version__ as __version__

if TYPE_CHECKING:
    from coterie import data as data
    from coterie import testing as testing
    from coterie import zoo as zoo
    from coterie.clustering.averaging import mean as mean
    from coterie.clustering.averaging import mean_by as mean_by
    from coterie.clustering.averaging import weigh as weigh
    from coterie.clustering.server_optimizers import Adam as Adam
    from coterie.clustering.server_optimizers import Momentum as Momentum
    from coterie.core.aggregation import Aggregator as Aggregator
    from coterie.core.errors import CoterieError as CoterieError
    from coterie.core.errors import CoterieWarning as CoterieWarning
    from coterie.core.errors import NoAnswerError as NoAnswerError
    from coterie.core.errors import QuorumError as QuorumError
    from coterie.core.errors import StoppedError as StoppedError
    from coterie.core.local import Local as Local
    from coterie.core.model import Model as Model
    from coterie.core.parts import Adapters as Adapters
    from coterie.core.references import All as All
    from coterie.core.references import Best as Best
    from coterie.core.references import Estimated as Estimated
    from coterie.core.references import Mix as Mix
    from coterie.core.references import Own as Own
    from coterie.core.references import Personal as Personal
    from coterie.core.references import Pick as Pick
    from coterie.core.references import Posterior as Posterior
    from coterie.core.references import Ref as Ref
    from coterie.core.tables import ByClient as ByClient
    from coterie.core.tables import Cohort as Cohort
    from coterie.core.tables import Counted as Counted
    from coterie.core.tables import Roster as Roster
    from coterie.core.tasks import Describe as Describe
    from coterie.core.tasks import Described as Described
    from coterie.core.tasks import Evaluate as Evaluate
    from coterie.core.tasks import Evaluated as Evaluated
    from coterie.core.tasks import Fit as Fit
    from coterie.core.tasks import Fitted as Fitted
    from coterie.core.tasks import Reply as Reply
    from coterie.core.tasks import Score as Score
    from coterie.core.tasks import Scored as Scored
    from coterie.core.tasks import Task as Task
    from coterie.data.federate import federate as federate
    from coterie.data.federation import Federation as Federation
    from coterie.insight.explain import Explanation as Explanation
    from coterie.insight.inspect import Inspection as Inspection
    from coterie.insight.inspect import inspect as inspect
    from coterie.layers.attack import Attack as Attack
    from coterie.layers.attack import AttackReport as AttackReport
    from coterie.layers.attack import AttackView as AttackView
    from coterie.layers.attack import Lie as Lie
    from coterie.layers.contract import Layer as Layer
    from coterie.layers.privacy import Privacy as Privacy
    from coterie.layers.robust import Robust as Robust
    from coterie.methods.cam import CAM as CAM
    from coterie.methods.cam import CFLCAM as CFLCAM
    from coterie.methods.cam import IFCACAM as IFCACAM
    from coterie.methods.cam import FedGroupCAM as FedGroupCAM
    from coterie.methods.cam import FeSEMCAM as FeSEMCAM
    from coterie.methods.cam import StoCFLCAM as StoCFLCAM
    from coterie.methods.cam import WeCFLCAM as WeCFLCAM
    from coterie.methods.cfl import CFL as CFL
    from coterie.methods.clove import CLoVE as CLoVE
    from coterie.methods.composed import Composed as Composed
    from coterie.methods.contract import Admits as Admits
    from coterie.methods.contract import Ask as Ask
    from coterie.methods.contract import Method as Method
    from coterie.methods.ditto import Ditto as Ditto
    from coterie.methods.ensemble import FedAvgPlus as FedAvgPlus
    from coterie.methods.ensemble import FedProxPlus as FedProxPlus
    from coterie.methods.fedavg import FedAvg as FedAvg
    from coterie.methods.fedbn import FedBN as FedBN
    from coterie.methods.fedclust import FedClust as FedClust
    from coterie.methods.feddrift import FedDrift as FedDrift
    from coterie.methods.fedem import FedEM as FedEM
    from coterie.methods.fedgroup import FedGroup as FedGroup
    from coterie.methods.fedgroup import FedGrouProx as FedGrouProx
    from coterie.methods.fedper import FedPer as FedPer
    from coterie.methods.fedprox import FedProx as FedProx
    from coterie.methods.fedrc import FedRC as FedRC
    from coterie.methods.fedrep import FedRep as FedRep
    from coterie.methods.fedsoft import FedSoft as FedSoft
    from coterie.methods.fesem import FeSEM as FeSEM
    from coterie.methods.fielding import Fielding as Fielding
    from coterie.methods.flhc import FLHC as FLHC
    from coterie.methods.flux import FLUX as FLUX
    from coterie.methods.given import Given as Given
    from coterie.methods.given import Oracle as Oracle
    from coterie.methods.halves import Halves as Halves
    from coterie.methods.ifca import IFCA as IFCA
    from coterie.methods.local_only import LocalOnly as LocalOnly
    from coterie.methods.pacfl import PACFL as PACFL
    from coterie.methods.personal import IFCAPersonal as IFCAPersonal
    from coterie.methods.personal import Personalised as Personalised
    from coterie.methods.server_optimized import FedAdam as FedAdam
    from coterie.methods.server_optimized import FedAvgM as FedAvgM
    from coterie.methods.stocfl import StoCFL as StoCFL
    from coterie.methods.wecfl import WeCFL as WeCFL
    from coterie.network.client_model import ClientModel as ClientModel
    from coterie.network.client_model import load_client_model as load_client_model
    from coterie.network.server import load as load
    from coterie.serving.assign import Placement as Placement
    from coterie.serving.assign import Placements as Placements
    from coterie.serving.assign import assign as assign
    from coterie.serving.cluster_report import ClusterReport as ClusterReport
    from coterie.serving.cluster_report import clusters as clusters
    from coterie.serving.forget import Forgotten as Forgotten
    from coterie.serving.forget import forget as forget
    from coterie.serving.model_card import model_card as model_card
    from coterie.serving.predict_table import Predictions as Predictions
    from coterie.serving.predict_table import predict_table as predict_table
    from coterie.serving.watch import Drift as Drift
    from coterie.serving.watch import WatchedClient as WatchedClient
    from coterie.serving.watch import WatchedCluster as WatchedCluster
    from coterie.serving.watch import watch as watch
    from coterie.training.config import RunConfig as RunConfig
    from coterie.training.events import Event as Event
    from coterie.training.events import Listener as Listener
    from coterie.training.events import RoundDone as RoundDone
    from coterie.training.events import RunEnded as RunEnded
    from coterie.training.events import RunStarted as RunStarted
    from coterie.training.events import Snapshot as Snapshot
    from coterie.training.exported import ExportedModel as ExportedModel
    from coterie.training.go_on import go_on as go_on
    from coterie.training.predict import Served as Served
    from coterie.training.result import Result as Result
    from coterie.training.run import run as run
    from coterie.training.tuned import Tuned as Tuned

_ROOMS = ("data", "testing", "zoo")  # modules whose names are public too
_HOME = {
    "coterie.layers.robust": ("Robust",),
    "coterie.clustering.server_optimizers": ("Adam", "Momentum"),
    "coterie.clustering.averaging": ("mean", "mean_by", "weigh"),
    "coterie.core.aggregation": ("Aggregator",),
    "coterie.core.parts": ("Adapters",),
    "coterie.core.tables": ("ByClient", "Cohort", "Counted", "Roster"),
    "coterie.core.errors": ("CoterieError", "CoterieWarning", "NoAnswerError", "QuorumError", "StoppedError"),
    "coterie.core.local": ("Local",),
    "coterie.core.model": ("Model",),
    "coterie.core.references": ("All", "Best", "Estimated", "Mix", "Own", "Personal", "Pick", "Posterior", "Ref"),
    "coterie.core.tasks": (
        *("Describe", "Evaluate", "Fit", "Score", "Task"),
        *("Described", "Evaluated", "Fitted", "Reply", "Scored"),
    ),
    "coterie.data.federate": ("federate",),
    "coterie.data.federation": ("Federation",),
    "coterie.layers.attack": ("Attack", "AttackReport", "AttackView", "Lie"),
    "coterie.layers.contract": ("Layer",),
    "coterie.methods.cam": ("CAM", "CFLCAM", "FedGroupCAM", "FeSEMCAM", "IFCACAM", "StoCFLCAM", "WeCFLCAM"),
    "coterie.methods.cfl": ("CFL",),
    "coterie.methods.clove": ("CLoVE",),
    "coterie.methods.feddrift": ("FedDrift",),
    "coterie.methods.composed": ("Composed",),
    "coterie.methods.contract": ("Admits", "Ask", "Method"),
    "coterie.methods.ditto": ("Ditto",),
    "coterie.methods.ensemble": ("FedAvgPlus", "FedProxPlus"),
    "coterie.methods.server_optimized": ("FedAdam", "FedAvgM"),
    "coterie.methods.fedavg": ("FedAvg",),
    "coterie.methods.fedbn": ("FedBN",),
    "coterie.methods.fedem": ("FedEM",),
    "coterie.methods.fedgroup": ("FedGroup", "FedGrouProx"),
    "coterie.methods.fedper": ("FedPer",),
    "coterie.methods.fedprox": ("FedProx",),
    "coterie.methods.fedrc": ("FedRC",),
    "coterie.methods.fedrep": ("FedRep",),
    "coterie.methods.fedsoft": ("FedSoft",),
    "coterie.methods.fesem": ("FeSEM",),
    "coterie.methods.flhc": ("FLHC",),
    "coterie.methods.flux": ("FLUX",),
    "coterie.methods.fielding": ("Fielding",),
    "coterie.methods.pacfl": ("PACFL",),
    "coterie.methods.fedclust": ("FedClust",),
    "coterie.methods.given": ("Given", "Oracle"),
    "coterie.methods.halves": ("Halves",),
    "coterie.methods.ifca": ("IFCA",),
    "coterie.methods.local_only": ("LocalOnly",),
    "coterie.methods.personal": ("IFCAPersonal", "Personalised"),
    "coterie.methods.stocfl": ("StoCFL",),
    "coterie.methods.wecfl": ("WeCFL",),
    "coterie.network.client_model": ("ClientModel", "load_client_model"),
    "coterie.network.server": ("load",),
    "coterie.serving.assign": ("Placement", "Placements", "assign"),
    "coterie.serving.cluster_report": ("ClusterReport", "clusters"),
    "coterie.serving.forget": ("Forgotten", "forget"),
    "coterie.serving.model_card": ("model_card",),
    "coterie.serving.predict_table": ("Predictions", "predict_table"),
    "coterie.serving.watch": ("Drift", "WatchedClient", "WatchedCluster", "watch"),
    "coterie.training.config": ("RunConfig",),
    "coterie.training.events": (
        "Event",
        "Listener",
        "RoundDone",
        "RunEnded",
        "RunStarted",
        "Snapshot",
    ),
    "coterie.layers.privacy": ("Privacy",),
    "coterie.insight.explain": ("Explanation",),
    "coterie.training.exported": ("ExportedModel",),
    "coterie.training.go_on": ("go_on",),
    "coterie.training.predict": ("Served",),
    "coterie.insight.inspect": ("Inspection", "inspect"),
    "coterie.training.run": ("run",),
    "coterie.training.tuned": ("Tuned",),
    "coterie.training.result": ("Result",),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_WHERE, *_ROOMS, "__version__"])


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return importlib.import_module(f"coterie.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
