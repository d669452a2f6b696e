"""Fed-CAM around each method with hard clusters: IFCA-CAM, FeSEM-CAM and WeCFL-CAM are the paper's.

y = h(x; Theta_g) + f(x; Theta_k): the method trains, scores and clusters residuals of a global model. `cam` describes
how, and wraps any other method: method.name=cam method.base.name=clove.
FeSEM-CAM weighs k-means by n_i (Eq. 10-11); the authors' code does not (base.kmeans_weights: equal).
"""

from __future__ import annotations

from pydantic import NonNegativeFloat

from coterie.core.constructors import dataclass
from coterie.core.types import STRICT
from coterie.methods.cam import CAM
from coterie.methods.cam_warm_up import WarmUpBy
from coterie.methods.cfl import CFL
from coterie.methods.fedgroup import FedGroup
from coterie.methods.fesem import FeSEM
from coterie.methods.ifca import IFCA
from coterie.methods.stocfl import StoCFL
from coterie.methods.wecfl import WeCFL


@dataclass(frozen=True, config=STRICT)
class IFCACAM(CAM):
    """IFCA on the residuals of a global model (IFCA-CAM)."""

    base: IFCA = IFCA()


@dataclass(frozen=True, config=STRICT)
class FeSEMCAM(CAM):
    """FeSEM on the residuals of a global model (FeSEM-CAM)."""

    base: FeSEM = FeSEM(features="classifier", kmeans_weights="size", weights="size")  # section 5, Eq. 10-11
    warmup_by: WarmUpBy = "local"
    lam: NonNegativeFloat = 0.01


@dataclass(frozen=True, config=STRICT)
class WeCFLCAM(CAM):
    """WeCFL on the residuals of a global model (WeCFL-CAM)."""

    base: WeCFL = WeCFL()
    warmup_by: WarmUpBy = "local"
    lam: NonNegativeFloat = 0.01


@dataclass(frozen=True, config=STRICT)
class FedGroupCAM(CAM):
    """FedGroup on the residuals of a global model."""

    base: FedGroup = FedGroup()


@dataclass(frozen=True, config=STRICT)
class StoCFLCAM(CAM):
    """StoCFL on the residuals of a global model."""

    base: StoCFL = StoCFL()


@dataclass(frozen=True, config=STRICT)
class CFLCAM(CAM):
    """CFL on the residuals of a global model."""

    base: CFL = CFL()
