"""What a robust aggregator costs: the server's part of a round with it, as a share of the round, within one run.

Processor time of this process, so that a busy machine does not matter much. The plain mean is measured too; the rule's
own cost is what it adds to the plain mean's share. Medians over rounds.

    python bench/robust.py [--clients 40] [--rounds 4]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import typer
from torch import nn

import coterie
from coterie.engines.choose import make_engine
from coterie.engines.contract import Engine, Outcome, Visit
from coterie.layers.robust import RULES


def _federation(clients: int, shape: tuple[int, ...], samples: int) -> coterie.Federation:
    rng = np.random.default_rng(0)
    return coterie.Federation.of(
        [
            (rng.standard_normal((samples, *shape)).astype(np.float32), rng.integers(0, 10, samples))
            for _ in range(clients)
        ]
    )


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


MIXED = {"name": "centered-clipping", "mix": True, "opposed": False}
NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp, 51 thousand numbers": _mlp, "cnn, 215 thousand numbers": _cnn}


class Timed:
    """An engine that adds up the processor time of its visits."""

    def __init__(self, engine: Engine) -> None:
        self.memory, self._engine, self.seconds = engine.memory, engine, 0.0

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        began = time.process_time()
        outcome = self._engine.visit(visit)
        self.seconds += time.process_time() - began
        return outcome

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()


def _share(network: Callable[[], nn.Module], data: coterie.Federation, rounds: int, rule: Any) -> tuple[float, float]:
    """The server's share of a round, in percent, and the processor seconds of a round; the last round is evaluated."""
    seen: list[tuple[float, float]] = []  # after each round: of the process, and of visits
    with make_engine("batched", coterie.Model(network), data, 1) as opened:
        engine = Timed(opened)
        coterie.run(
            coterie.FedAvg(local=coterie.Local(epochs=5, batch=20, lr=0.05)),
            data,
            network,
            rounds=rounds + 2,
            evaluate_every=rounds + 2,
            engine=engine,
            aggregator=rule,
            listeners=[lambda _: seen.append((time.process_time(), engine.seconds))],
        )
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(seen[1 : rounds + 2])]  # without the first and the last
    return statistics.median(100 * (1 - at / whole) for whole, at in steps), statistics.median(w for w, _ in steps)


def main(
    clients: Annotated[int, typer.Option(min=5)] = 40,
    samples: Annotated[int, typer.Option(min=10)] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 4,
) -> None:
    """Print a table."""
    data = _federation(clients, (1, 28, 28), samples)
    print("| model | aggregator | server, % of a round | processor seconds of a round |\n|---|---|---|---|")
    for name, network in NETWORKS.items():
        rules: dict[str, Any] = {"the plain mean": None, **{rule: rule for rule in RULES}, "mixed": MIXED}
        for what, rule in rules.items():
            share, seconds = _share(network, data, rounds, rule)
            print(f"| {name} | {what} | {share:.1f} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
