"""What distinguishes clusters of clients: the labels they have and the means of their inputs. It reveals both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coterie.clustering.halves import Floats
from coterie.data.federation import Federation

SHARE, DEVIATIONS = 0.1, 0.25  # differences of a label's share, and of a mean, that are called so
SHOWN = 3  # differences of labels, and of inputs, of each cluster


@dataclass(frozen=True)
class Difference:
    """Something that a cluster has more or less of than all clients."""

    what: str
    here: float
    everywhere: float
    deviations: float  # of inputs or targets: how far apart the means are, in deviations over all samples; else 0


@dataclass(frozen=True)
class Contrast:
    """What distinguishes a cluster, the largest differences first."""

    cluster: int
    labels: tuple[Difference, ...]  # shares of labels; of a regression, means of targets
    inputs: tuple[Difference, ...]  # means of inputs


class _Sums:
    """Of the samples of some clients."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.count = 0
        self.x, self.squares = np.zeros(inputs), np.zeros(inputs)
        self.y, self.y_squares = np.zeros(outputs), np.zeros(outputs)

    def add(self, x: Floats, y: Floats) -> None:
        """More samples; y: of labels, one column each."""
        self.count += len(x)
        self.x += x.sum(0)
        self.squares += (x**2).sum(0)
        self.y += y.sum(0)
        self.y_squares += (y**2).sum(0)


def contrasts(federation: Federation, assignments: Mapping[int, int]) -> tuple[Contrast, ...]:
    """Each cluster beside all of these clients, by their training samples."""
    classes, outputs = federation.kind == "classification", federation.outputs
    words = not federation.samples(next(iter(assignments)), "train")[0].is_floating_point()
    inputs = 0 if words else math.prod(federation.input_shape)
    everyone = _Sums(inputs, outputs)
    clusters = {cluster: _Sums(inputs, outputs) for cluster in sorted(set(assignments.values()))}
    for client, cluster in assignments.items():
        x, y = federation.samples(client, "train")
        values = x.reshape(len(x), -1).double().numpy()[:, :inputs]
        targets = np.eye(outputs)[y.numpy()] if classes else y.reshape(len(y), -1).double().numpy()
        everyone.add(values, targets)
        clusters[cluster].add(values, targets)
    names = _input_names(federation, inputs)
    return tuple(
        Contrast(
            cluster,
            _labels(federation, sums, everyone) if classes else _targets(sums, everyone),
            _largest(sums.x / sums.count, everyone.x, everyone.squares, everyone.count, names),
        )
        for cluster, sums in clusters.items()
    )


def _labels(federation: Federation, sums: _Sums, everyone: _Sums) -> tuple[Difference, ...]:
    here, everywhere = sums.y / sums.count, everyone.y / everyone.count
    names = federation.class_names or tuple(f"label {i}" for i in range(federation.outputs))
    order = np.argsort(-np.abs(here - everywhere).round(12), kind="stable")[:SHOWN]
    return tuple(Difference(names[i], float(here[i]), float(everywhere[i]), 0.0) for i in order)


def _targets(sums: _Sums, everyone: _Sums) -> tuple[Difference, ...]:
    names = ["target"] if len(sums.y) == 1 else [f"target {i}" for i in range(len(sums.y))]
    return _largest(sums.y / sums.count, everyone.y, everyone.y_squares, everyone.count, names)


def _largest(here: Floats, total: Floats, squares: Floats, count: int, names: list[str]) -> tuple[Difference, ...]:
    """The means that differ most, in deviations over all samples."""
    everywhere = total / count
    deviation = np.sqrt(np.maximum(squares / count - everywhere**2, 0.0))
    apart = np.divide(here - everywhere, deviation, out=np.zeros_like(here), where=deviation > 0)
    order = np.argsort(-np.abs(apart).round(12), kind="stable")[:SHOWN]
    return tuple(Difference(names[i], float(here[i]), float(everywhere[i]), float(apart[i])) for i in order)


def _input_names(federation: Federation, many: int) -> list[str]:
    if federation.features is not None and len(federation.features) == many:
        return list(federation.features)
    shape = federation.input_shape
    if math.prod(shape) != many:
        return [f"input {i}" for i in range(many)]
    return [f"input {', '.join(map(str, place))}" for place in np.ndindex(*shape)]


# ------------------------------------------------------------------------------------------------- in words


def contrast(found: Contrast) -> str:
    """What distinguishes a cluster, in a line."""
    return f"Cluster {found.cluster}: {differences(found) or 'labels and inputs as everywhere'}."


def differences(found: Contrast) -> str:
    """What a cluster has more or less of than everybody; differences that are too small to matter are left out."""
    labels = "; ".join(_label(one) for one in found.labels if _tells(one))
    inputs = "; ".join(f"{one.what} {one.deviations:+.2f} deviations" for one in found.inputs if _tells(one))
    return "; ".join(([labels] if labels else []) + ([f"inputs: {inputs}"] if inputs else []))


def _tells(one: Difference) -> bool:
    return abs(one.deviations) >= DEVIATIONS if one.deviations else abs(one.here - one.everywhere) >= SHARE


def _label(one: Difference) -> str:
    if one.deviations:
        return f"{one.what} {one.deviations:+.2f} deviations"
    return f"{one.what} {percent(one.here)} (all: {percent(one.everywhere)})"


def percent(value: float) -> str:
    """A share as people read it."""
    return f"{100 * value:.0f} %"
