"""How many actors the Ray engine starts, and what each of them has: a core, and a share of a GPU where it uses one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.core.compute import AUTO, Compute
from coterie.core.errors import CoterieError


@dataclass(frozen=True)
class ActorResources:
    """What was asked for.

    workers: actors; None for as many as the cluster has room for. cores: of this machine, if it is the cluster.
    gpus: the share of a GPU that each actor has (0.25: four share one); None: a whole one where they compute on GPUs.
    """

    workers: int | None
    cores: int
    gpus: float | None = None

    def most(self, cluster: Mapping[str, float], gpus: float) -> int:
        """How many actors there should be, each with a core and so much of a GPU."""
        if not gpus:
            return self.workers or int(cluster.get("CPU", 0))
        room = int(cluster.get("GPU", 0) / gpus)
        return min(self.workers or int(cluster.get("CPU", 0)), room)


def on_gpus(compute: Compute, share: float | None, cluster: Mapping[str, float]) -> tuple[Compute, float]:
    """What actors compute with, and the share of a GPU that each has: 0 where they do not compute on GPUs.

    They do if that is asked for or, with `auto`, if the cluster has GPUs. Ray shows each actor only the GPU that it has
    given to it, so that it is `cuda` everywhere.
    """
    there = float(cluster.get("GPU", 0))
    if ":" in compute.device or (share is not None and compute.device not in (AUTO, "cuda")):
        raise CoterieError(
            f"device: '{compute.device}' with engine.name=ray: Ray gives each process its GPU; write device=cuda and, "
            "for a share of one, engine.num_gpus=0.5; or device=cpu alone",
            code="config-conflict",
        )
    if compute.device == AUTO and share is None and not there:
        return replace(compute, device="cpu"), 0.0
    if compute.device not in (AUTO, "cuda"):
        return compute, 0.0
    gpus = 1.0 if share is None else share
    if there < gpus:
        raise CoterieError(
            f"engine.num_gpus: each process is to have {gpus:g} of a GPU, and the Ray cluster has {there:g}; start its "
            "machines with GPUs (ray start --num-gpus), or write device=cpu",
            code="device-unavailable",
        )
    return replace(compute, device="cuda"), gpus
