"""Draws the pictures of docs/how/ from runs of the methods: `python docs/draw_methods.py`.

A client's model has two parameters wherever possible, so that models are points of a plane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from draw_architecture import INK, LINE, PICTURES, svg
from numpy.typing import NDArray
from torch import nn

import coterie
from coterie.clustering.similarity import edc_features
from coterie.training.events import Event, RoundDone

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # told apart by colour-blind readers too
SIDE, TOP = 250, 46  # of a panel, and the room above it
Points: TypeAlias = NDArray[np.float64]
LOCAL = coterie.Local(epochs=2, batch=10, lr=0.05)


class Plane(nn.Linear):
    """A model of two parameters."""

    def __init__(self) -> None:
        super().__init__(2, 1, bias=False)


@dataclass(frozen=True)
class Panel:
    """A square with axes, from (low, low) to (high, high) of the data's own coordinates."""

    x: float
    title: str
    low: tuple[float, float]
    high: tuple[float, float]

    def at(self, point: Sequence[float]) -> tuple[float, float]:
        """Where a point of the data is in the picture."""
        share = [(p - a) / (b - a) for p, a, b in zip(point, self.low, self.high, strict=True)]
        return self.x + SIDE * share[0], TOP + SIDE * (1 - share[1])

    def frame(self, below: str = "") -> str:
        """The square, its title, and what its axes are."""
        middle = self.x + SIDE / 2
        return (
            f'<rect x="{self.x:g}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="#fbfcfc" stroke="{LINE}"/>'
            f'<text x="{middle:g}" y="{TOP - 14}" font-size="14" font-weight="bold">{self.title}</text>'
            f'<text x="{middle:g}" y="{TOP + SIDE + 20}" font-size="12">{below}</text>'
        )

    def dot(self, point: Sequence[float], colour: str, radius: float = 4.5) -> str:
        """A client."""
        x, y = self.at(point)
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity="0.75"/>'

    def cross(self, point: Sequence[float], colour: str) -> str:
        """A cluster's model."""
        x, y = self.at(point)
        path = f"M{x - 7:.1f} {y - 7:.1f} l14 14 m0 -14 l-14 14"
        return (
            f'<path d="{path}" stroke="{INK}" stroke-width="5"/><path d="{path}" stroke="{colour}" stroke-width="2.5"/>'
        )

    def line(self, points: Sequence[Sequence[float]], colour: str, more: str = "") -> str:
        """Points joined."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self.at, points))
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" {more}/>'

    def words(self, point: Sequence[float], said: str, anchor: str = "middle") -> str:
        """Words at a point."""
        x, y = self.at(point)
        return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}">{said}</text>'


def panels(titles: Sequence[str], low: tuple[float, float], high: tuple[float, float]) -> list[Panel]:
    """Side by side."""
    return [Panel(20 + i * (SIDE + 30), title, low, high) for i, title in enumerate(titles)]


def picture(name: str, title: str, count: int, parts: list[str]) -> None:
    """Write it."""
    (PICTURES / f"{name}.svg").write_text(svg(40 + count * (SIDE + 30) - 30, TOP + SIDE + 34, title, parts))


def regressions(truth: Sequence[Sequence[float]], clients: int = 24, seed: int = 3) -> coterie.Federation:
    """Clients whose targets are a weighted sum of two inputs; the weights are those of their group."""
    rng = np.random.default_rng(seed)
    made = []
    for client in range(clients):
        x = rng.normal(size=(int(rng.integers(12, 120)), 2))
        made.append((x, x @ np.array(truth[client % len(truth)]) + rng.normal(scale=0.7, size=len(x))))
    return coterie.Federation.from_arrays(made, task="regression", seed=1, standardise=False, standardise_y=False)


def watched(method: Any, data: coterie.Federation, rounds: int, **more: Any) -> tuple[list[RoundDone], Any]:
    """The events of a run, and its result."""
    seen: list[RoundDone] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone):
            seen.append(event)

    return seen, coterie.run(method, data, Plane, rounds=rounds, listeners=[listen], engine="sequential", **more)


def wecfl() -> None:
    """Models of clients and centers after three of the rounds."""
    data = regressions([(2.0, 0.5), (-1.5, 1.5), (0.0, -2.0)])
    local = coterie.Local(steps=3, batch=10, lr=0.1)
    seen, _ = watched(coterie.WeCFL(k=3, features="all", local=local), data, 8)
    parts = []
    for panel, number in zip(
        panels(["round 1", "round 3", "round 8"], (-2.6, -2.8), (2.8, 2.4)), (1, 3, 8), strict=True
    ):
        event = seen[number - 1].fresh
        assert event is not None
        assert event.trained is not None
        assert event.centers is not None
        parts.append(panel.frame("the two parameters of a model"))
        labels = event.clients.choice
        assert labels is not None
        found = dict(zip(event.clients.ids.tolist(), labels.tolist(), strict=True))
        for client, n, model in zip(
            event.trained.ids.tolist(), event.trained.n.tolist(), event.trained.models, strict=True
        ):
            parts.append(panel.dot(model.tolist(), COLOURS[found[client]], 2 + n**0.5 / 2))
        parts += [panel.cross(center.tolist(), COLOURS[k]) for k, center in enumerate(event.centers)]
    picture("how-wecfl", "WeCFL: clients' models move apart and centers follow", 3, parts)


def stocfl() -> None:
    """Directions of the representations, and how clusters merge as clients are met."""
    data = regressions([(2.0, 0.5), (-1.5, 1.5), (0.0, -2.0)], clients=40)
    events, result = watched(coterie.StoCFL(tau=0.9, psi=None, local=LOCAL), data, 20, participation=3)
    left, right = panels(["directions of the gradients", "clusters, and clients met"], (-1.2, -1.2), (1.2, 1.2))
    parts = [left.frame("at the anchor, each of length one"), right.frame("round 1 to 20")]
    anchor = result.state.anchor.double().numpy()
    for client in range(len(data)):
        x, y = (np.asarray(part, dtype=np.float64) for part in data.client(client).train)
        slope = x.T @ (y.reshape(-1) - x @ anchor)
        unit = slope / np.linalg.norm(slope)
        parts.append(
            left.line([(0, 0), unit], COLOURS[int(result.assignments[client]) % len(COLOURS)], 'stroke-opacity="0.6"')
        )
    met: set[int] = set()
    steps: list[tuple[float, float, float]] = []
    for event in events:
        fresh = event.fresh
        assert fresh is not None
        assert fresh.trained is not None
        met |= set(fresh.trained.ids.tolist())
        centers = fresh.centers
        steps.append((event.round, 0 if centers is None else len(centers), len(met)))
    top = max(row[2] for row in steps)

    def spot(t: float, value: float) -> tuple[float, float]:
        return -1.1 + 2.2 * (t - 1) / (len(steps) - 1), -1.05 + 2.0 * value / top

    parts.append(right.line([spot(t, m) for t, _, m in steps], LINE, 'stroke-dasharray="5 4"'))
    parts.append(right.line([spot(t, k) for t, k, _ in steps], COLOURS[0]))
    parts.append(right.words((-1.05, 0.95), f"dashed: {int(steps[-1][2])} of 40 clients met", "start"))
    parts.append(right.words((0.0, -0.55), f"clusters: {int(steps[-1][1])} at the end", "start"))
    picture("how-stocfl", "StoCFL: alike clusters merge while clients are met a few at a time", 2, parts)


class Line(nn.Linear):
    """A slope and an intercept."""

    def __init__(self) -> None:
        super().__init__(1, 1)


def cam() -> None:
    """What the global model says, and what it says together with each cluster's."""
    rng = np.random.default_rng(0)
    made = []
    for client in range(16):
        x = rng.uniform(-2, 2, size=(40, 1))
        made.append(
            (x, 0.8 * x[:, 0] + (1.2 if client % 2 else -1.2) * (1 + 0.3 * x[:, 0]) + rng.normal(scale=0.35, size=40))
        )
    data = coterie.Federation.from_arrays(made, task="regression", seed=1, standardise=False, standardise_y=False)
    base = coterie.FeSEM(k=2, features="all", local=LOCAL)
    method = coterie.FeSEMCAM(base=base, warmup=10, warmup_by="global", local=LOCAL)
    warm, result = (coterie.run(method, data, Line, rounds=n, engine="sequential") for n in (10, 25))
    (a, b) = panels(["after the warm-up: one model", "then: global + cluster model"], (-2.3, -4.6), (2.3, 4.9))
    parts = [a.frame("input and target"), b.frame("input and target")]
    for client, (x, y) in enumerate(made):
        for panel in (a, b):
            for xs, ys in list(zip(x[:, 0], y, strict=True))[:14]:
                parts.append(
                    panel.dot((xs, ys), COLOURS[int(result.assignments[client])] if panel is b else "#9aa8b0", 2)
                )
    ends = np.array([-2.1, 2.1])

    def drawn(theta: torch.Tensor) -> list[tuple[float, float]]:
        return [(float(x), float(theta[0] * x + theta[1])) for x in ends]

    parts.append(a.line(drawn(warm.state.shared), INK, 'stroke-dasharray="6 4"'))
    parts.append(b.line(drawn(result.state.shared), INK, 'stroke-dasharray="6 4"'))
    for k, center in enumerate(result.state.base.centers):
        parts.append(b.line(drawn(result.state.shared + center), COLOURS[k]))
    picture("how-cam", "Fed-CAM: what all clients share, plus what a cluster adds", 2, parts)


def fedsoft() -> None:
    """The weights that FedSoft estimates beside the true shares."""
    truth, rng = np.array([(2.0, 0.5), (-1.5, -1.5)]), np.random.default_rng(5)
    shares = np.linspace(0.05, 0.95, 13)
    made = []
    for share in shares:
        x = rng.normal(size=(120, 2))
        source = (rng.uniform(size=120) > share).astype(int)
        made.append((x, (x * truth[source]).sum(1) + rng.normal(scale=0.3, size=120)))
    data = coterie.Federation.from_arrays(made, task="regression", seed=1, standardise=False, standardise_y=False)
    _, result = watched(coterie.FedSoft(k=2, local=LOCAL), data, 25)
    u = result.state.u.at(torch.arange(len(shares)))[:, :2].double().numpy()
    first = 0 if np.corrcoef(u[:, 0], shares)[0, 1] > 0 else 1
    left, right = panels(["shares of two sources in each client", "true and estimated share"], (0, 0), (1, 1))
    parts = [left.frame("13 clients"), right.frame("true share of the first source")]
    wide = SIDE / len(shares)
    for i, row in enumerate(u):
        begin, cut = left.x + i * wide + 2, SIDE * row[first]
        parts.append(
            f'<rect x="{begin:.1f}" y="{TOP}" width="{wide - 4:.1f}" height="{SIDE - cut:.1f}" fill="{COLOURS[1]}"/>'
        )
        y = TOP + SIDE - cut
        parts.append(
            f'<rect x="{begin:.1f}" y="{y:.1f}" width="{wide - 4:.1f}" height="{cut:.1f}" fill="{COLOURS[0]}"/>'
        )
    parts.append(right.line([(0, 0), (1, 1)], LINE, 'stroke-dasharray="5 4"'))
    parts += [right.dot((share, row[first]), COLOURS[0]) for share, row in zip(shares, u, strict=True)]
    picture("how-fedsoft", "FedSoft: every client is a mixture", 2, parts)


def fedgroup() -> None:
    """Updates of clients on the demo's data, as FedGroup measures them."""
    from coterie.training.build import build
    from coterie.training.config import read

    job = build(read(None, ["method.name=fedgroup", "method.k=4", "rounds=1"]))
    result = coterie.run(job.method, job.federation, job.model, rounds=1, engine="sequential")
    seen: list[RoundDone] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone):
            seen.append(event)

    once = coterie.FedAvg(local=coterie.Local(steps=50, batch=10, lr=0.1))
    coterie.run(once, job.federation, job.model, rounds=1, engine="sequential", listeners=[listen])
    assert seen[0].fresh is not None
    assert seen[0].fresh.trained is not None
    updates = seen[0].fresh.trained.models - result.state.w0
    features = edc_features(updates, 4).double().numpy()
    parts = []
    for panel, (i, j) in zip(
        panels(["directions 1 and 2", "directions 3 and 4"], (-1, -1), (1, 1)), ((0, 1), (2, 3)), strict=True
    ):
        a, b = features[:, i], features[:, j]
        low, high = (a.min() - 0.05, b.min() - 0.05), (a.max() + 0.05, b.max() + 0.05)
        scaled = Panel(panel.x, panel.title, low, high)
        parts.append(scaled.frame("cosine with each direction"))
        parts += [scaled.dot((x, y), COLOURS[int(c)]) for x, y, c in zip(a, b, result.assignments, strict=True)]
    picture("how-fedgroup", "FedGroup: 40 clients by the cosines of their first updates", 2, parts)


DRAWN: tuple[Callable[[], None], ...] = (wecfl, stocfl, cam, fedsoft, fedgroup)


def main() -> None:
    """All of them."""
    for draw in DRAWN:
        draw()


if __name__ == "__main__":
    main()
