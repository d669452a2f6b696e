"""What a robust aggregator costs: the server's part of a round with it, as a share of the round, within one run.

The clients' part is measured by the round itself (`client_seconds`), so a busy machine slows both. The plain mean is
measured too. Medians over rounds; the rule's own cost is what it adds to the plain mean's share.

    python bench/robust.py [--clients 40] [--rounds 6]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer
from torch import nn

import coterie
from coterie.clustering.aggregators import RULES


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


NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp, 51 thousand numbers": _mlp, "cnn, 215 thousand numbers": _cnn}


def _share(network: Callable[[], nn.Module], data: coterie.Federation, rounds: int, rule: Any) -> tuple[float, float]:
    """The server's share of a round, in percent, and the seconds of a round."""
    result = coterie.run(
        coterie.FedAvg(local=coterie.Local(epochs=5, batch=20, lr=0.05)),
        data,
        network,
        rounds=rounds,
        evaluate_every=rounds,
        engine="batched",
        workers=1,
        aggregator=rule,
    )
    later = result.history[1:]
    share = statistics.median(1 - event.client_seconds / event.seconds for event in later)
    return 100 * share, statistics.median(event.seconds for event in later)


def main(
    clients: Annotated[int, typer.Option(min=5)] = 40,
    samples: Annotated[int, typer.Option(min=10)] = 200,
    rounds: Annotated[int, typer.Option(min=3)] = 6,
) -> None:
    """Print a table."""
    data = _federation(clients, (1, 28, 28), samples)
    print("| model | aggregator | server, % of a round | seconds of a round |\n|---|---|---|---|")
    for name, network in NETWORKS.items():
        for rule in (None, *RULES):
            share, seconds = _share(network, data, rounds, rule)
            print(f"| {name} | {rule or 'the plain mean'} | {share:.1f} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
