"""Fetch the files that a configuration's data sets need, before they are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from coterie.core.registry import DATASETS, NO_CODE
from coterie.data.download.cache import get
from coterie.data.download.sources import Progress
from coterie.data.download.specs import DatasetSpec


class Named(Protocol):
    """A data set or a partition by its name and parameters."""

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> Mapping[str, Any]: ...


class PartitionedData(Named, Protocol):
    """A data set and how it is spread over clients."""

    @property
    def partition(self) -> Named | None: ...


def fetch_for(data: PartitionedData, showing: Callable[[], AbstractContextManager[Progress]]) -> None:
    """Fetch what is needed and not cached yet. showing: opens a progress display for one data set."""
    needed = [(data.name, data.params)]
    other = data.partition.params.get("other") if data.partition else None
    if isinstance(other, str | dict):  # the second data set of a hybrid
        params = {"name": other} if isinstance(other, str) else dict(other)
        needed.append((str(params.pop("name", "")), params))
    for name, given in needed:
        if name in DATASETS.places and hasattr(DATASETS.find(name, NO_CODE), "spec"):
            spec = needed_files(DATASETS.build(name, given, NO_CODE))
            if spec is not None:
                with showing() as tell:
                    get(spec, tell)


def needed_files(dataset: Any) -> DatasetSpec | None:
    """The files of a data set, of the variant it names; None if it reads from a path of its own."""
    if getattr(dataset, "path", None) is not None:
        return None
    spec: DatasetSpec | None = getattr(dataset, "needed_spec", None) or getattr(dataset, "spec", None)
    return spec
