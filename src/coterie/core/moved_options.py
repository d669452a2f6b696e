"""Options of version 0.1 that belong to a method of their own now (`stocfl-authors`, `fedgroup-rcc`), by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

HOMES: Mapping[str, str] = {
    "ifca-authors": "IFCAAuthors",
    "fesem-authors": "FeSEMAuthors",
    "wecfl-authors": "WeCFLAuthors",
    "fedgroup-authors": "FedGroupAuthors",
    "fedgrouprox-authors": "FedGrouProxAuthors",
    "stocfl-authors": "StoCFLAuthors",
    "cam-authors": "CAMAuthors",
    "fedgroup-rcc": "FedGroupRCC",
    "fedgroup-rac": "FedGroupRAC",
    "cam-without-global": "CAMWithoutGlobal",
}
PRESETS: Mapping[str, str] = {  # the method that each wraps
    "IFCACAM": "ifca",
    "FeSEMCAM": "fesem",
    "WeCFLCAM": "wecfl",
    "FedGroupCAM": "fedgroup",
    "StoCFLCAM": "stocfl",
    "CFLCAM": "cfl",
}


@dataclass(frozen=True)
class Moved:
    """Where an option is now."""

    to: Mapping[Any, str] | str  # the method that has it, or that each of its values is
    usual: Any  # the paper's value, which needs no option any more
    base: str = ""  # the method to be named as the new one's base

    def home(self, value: object) -> str | None:
        """The method to name instead, where this value needs another one."""
        if isinstance(self.to, str):
            return self.to if value != self.usual else None
        return self.to.get(value) if isinstance(value, str) else None

    @property
    def gone(self) -> bool:
        """Whether the method has the option no longer; else only some of its values moved."""
        return isinstance(self.to, str)


def _all(to: str, **usual: Any) -> dict[str, Moved]:
    return {key: Moved(to, value) for key, value in usual.items()}


_KMEANS = {"kmeans": "warm", "size_unit": "samples", "join": "loss"}
_GROUPING = {"grouping": Moved({"rcc": "fedgroup-rcc", "rac": "fedgroup-rac"}, "edc")}
_CAM = {
    **_all("cam-authors", order="simultaneous", score="additive"),
    "warmup_by": Moved({"local_unclustered": "cam-authors"}, "global"),
    **_all("cam-without-global", without_global=False),
}
OPTIONS: Mapping[str, Mapping[str, Moved]] = {
    "IFCA": _all("ifca-authors", choose_by="loss"),
    "FeSEM": _all("fesem-authors", **_KMEANS),
    "WeCFL": _all("wecfl-authors", **_KMEANS),
    "FedGroup": _all("fedgroup-authors", cold_start="on_selection") | _GROUPING,
    "FedGrouProx": _all("fedgrouprox-authors", cold_start="on_selection") | _GROUPING,
    "StoCFL": _all(
        "stocfl-authors",
        global_update="parallel",
        cluster_vector="all_members",
        merge_model="mean",
        recompute_after_merge=False,
        new_cluster="anchor",
    ),
    "CAM": _CAM,
    **{preset: {k: replace(moved, base=base) for k, moved in _CAM.items()} for preset, base in PRESETS.items()},
}
