"""A federation, a network and a run that the tests of two nodes give to a cluster; also a script that does it.

On a machine that is told to (ONLY_SO_MANY), clients stop in their tracks once so many have been visited there, and a
file tells: whoever watches it can kill the machine in the middle of a round. Where the number is 0, clients wait until
that has happened.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

import coterie
from coterie import Federation, Local
from coterie.data.federation import Samples, Split
from coterie.engines.contract import Engine
from coterie.training.result import Result

CLIENTS = 16


def network() -> nn.Module:
    """Wide enough that a client's model is left on the machine that trained it."""
    return nn.Sequential(nn.Linear(4, 8192), nn.ReLU(), nn.Linear(8192, 2))


@dataclasses.dataclass(frozen=True, eq=False)
class Watched(Federation):
    """Tells of every client that is visited on the machine that is going to be killed, and waits for that elsewhere."""

    notes: Path = Path()

    def samples(self, client: int, split: Split) -> Samples:
        """As ever, if the machine lives."""
        many = int(os.environ.get("ONLY_SO_MANY", "-1"))
        while many == 0 and not (self.notes / "stuck").exists():
            (self.notes / "waiting").touch()
            time.sleep(0.05)
        if many > 0 and split == "train":
            with (self.notes / "visited").open("a") as file:
                file.write(f"{client}\n")
            if len((self.notes / "visited").read_text().splitlines()) > many:
                (self.notes / "stuck").touch()
                time.sleep(600)
        return super().samples(client, split)


def federation(notes: Path | None = None) -> Federation:
    """Two kinds of clients, of opposite labels."""
    rng = np.random.default_rng(0)
    clients: list[tuple[Tensor, ...]] = []
    for client in range(CLIENTS):
        x = torch.from_numpy(rng.normal(size=(24 + client, 4))).float()
        clients.append((x, ((x[:, 0] > 0) != bool(client % 2)).long()))
    plain = Federation.from_arrays(clients, truth=[c % 2 for c in range(CLIENTS)], standardise=False)
    if notes is None:
        return plain
    return Watched(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(Federation)}, notes=notes)


def run(engine: Literal["sequential", "ray"] | Engine, data: Federation) -> Result[Any]:
    """Three rounds of IFCA, of which only the last is looked at."""
    method = coterie.IFCA(k=2, local=Local(steps=5, batch=8, lr=0.05))
    return coterie.run(method, data, network, rounds=3, evaluate_every=3, seed=3, engine=engine)


def save(result: Result[Any], file: Path) -> None:
    """What two runs are compared by."""
    found = {"centers": result.state, "assignments": torch.as_tensor(result.assignments), "loss": result.clients.loss}
    missing = [len(event.missing) for event in result.history]
    safetensors.torch.save_file(found | {"missing": torch.tensor(missing)}, file)


if __name__ == "__main__":
    notes = Path(sys.argv[1])
    save(run("ray", federation(notes)), notes / "result.safetensors")
