"""What a user knows about a clustering beforehand: how small a cluster may be, and which clients belong together."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.clustering.kmeans import by_first_member


def cluster_means(labels: Tensor, points: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted mean (K, d) and the total weight (K,) of every cluster; every label up to the largest is used."""
    share = torch.zeros(int(labels.max()) + 1, len(labels), dtype=torch.float64)
    share[labels, torch.arange(len(labels))] = n.double()
    total = share.sum(1)
    return (share / total[:, None]) @ points.double(), total


def constrained(labels: Tensor, points: Tensor, n: Tensor, pins: Tensor, smallest: int) -> Tensor:
    """The clusters, changed as little as pins (-1 for a free client) and the smallest size ask for."""
    return at_least(with_pins(labels, points, n, pins), points, n, smallest, exempt=pins >= 0)


def with_pins(labels: Tensor, points: Tensor, n: Tensor, pins: Tensor) -> Tensor:
    """Clients of one pin in one cluster, clients of different pins in different ones; pins (clients,) are -1 for free.

    A pin takes the cluster that most of its clients are in, unless a larger pin has taken it; then its clients form a
    new one, and the free clients of that cluster join the nearest of the clusters it has become.
    """
    found, homes = labels.clone(), dict[int, list[int]]()
    members = {pin: (pins == pin).nonzero().flatten() for pin in pins[pins >= 0].unique().tolist()}
    for pin in sorted(members, key=lambda pin: (-len(members[pin]), pin)):
        home = int(labels[members[pin]].mode().values)
        place = int(found.max()) + 1 if home in homes else home
        homes[home] = [*homes.get(home, []), place]
        found[members[pin]] = place
    for home, places in homes.items():
        here = (labels == home) & (pins < 0)
        if len(places) > 1 and bool(here.any()):
            rows = [(found == place) & (pins >= 0) for place in places]
            centers = torch.stack([(n[row].double() @ points[row].double()) / n[row].double().sum() for row in rows])
            found[here] = torch.tensor(places)[torch.cdist(points[here].double(), centers).argmin(1)]
    return by_first_member(found)


def at_least(labels: Tensor, points: Tensor, n: Tensor, smallest: int, exempt: Tensor | None = None) -> Tensor:
    """Clusters of at least `smallest` clients: smaller ones join another, the smallest first, where it costs least.

    The cost is Ward's, w_i w_j / (w_i + w_j) |mean_i - mean_j|^2. Clusters with a client that is `exempt` stay.
    """
    labels = by_first_member(labels)
    while int(labels.max()) > 0:
        sizes = torch.bincount(labels)
        small = sizes < smallest
        if exempt is not None:
            small[labels[exempt]] = False
        if not bool(small.any()):
            break
        one = int(torch.where(small, sizes, len(labels) + 1).argmin())
        centers, total = cluster_means(labels, points, n)
        costs = ((centers - centers[one]) ** 2).sum(1) * total * total[one] / (total + total[one])
        costs[one] = torch.inf
        labels = by_first_member(torch.where(labels == one, costs.argmin(), labels))
    return labels
