"""What the server of Halves does in a round when it knows 100,000 clients and meets 1,000 new ones.

A round is the visit of its cohort, which real clients would do side by side, and the server's own work: the evidence
of halves, nearest means, averages. One process trains all clients here, as one computation, so their share of a round
is as small as a simulation can make it. The first cohort is measured; the other clients that the server knows then
get copies of its looks, so that the table is as large as it would be after a hundred rounds. CPU time of one thread.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from growth import federation
from report import machine
from torch import Tensor

from coterie import Halves, Local
from coterie.core.compute import one_thread
from coterie.core.registry import NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.engines.batched import Batched
from coterie.methods.halves import Halved
from coterie.training.ask import RoundAsk
from coterie.training.build import named_model


class Timed:
    """An `ask` that knows how long it took."""

    def __init__(self, ask: Any) -> None:
        self.ask, self.seconds = ask, 0.0

    def __call__(self, tasks: Any) -> Any:
        """Ask, and look at the clock of this process, which other work on the machine does not disturb."""
        began = time.process_time()
        replies = self.ask(tasks)
        self.seconds += time.process_time() - began
        return replies


def with_copies(state: Halved, ids: Tensor) -> Halved:
    """The state that knows these clients too: each is a copy of one of those that it knows."""
    known = state.labels.ids
    like = known[torch.arange(len(ids)) % len(known)]
    labels = state.labels.put(ids, state.labels.at(like))
    looks, samples = state.looks.put(ids, state.looks.at(like)), state.samples.put(ids, state.samples.at(like))
    return dataclasses.replace(state, labels=labels, looks=looks, samples=samples)


def main(
    clients: int = 100_000,
    per_round: int = 1_000,
    rounds: int = 10,
    hidden: int = 64,
    out: Annotated[Path, typer.Option(help="Where halves.json goes.")] = Path("bench/results"),
) -> None:
    """Measure, print, and write halves.json."""
    data = federation(clients)
    model = named_model("mlp", {"hidden": (hidden,)}, data, NO_CODE)
    method = Halves(local=Local(steps=20, batch=10, lr=0.1))
    cohorts = data.roster.ids[torch.from_numpy(generator(0, Purpose.COHORT).permutation(clients))].split(per_round)
    engine, rows = Batched(model, data), []
    with one_thread():
        state = method.init(model, data.roster, generator(0, Purpose.INIT))
        for t, drawn in enumerate(cohorts[:rounds]):
            ids = drawn.sort().values
            cohort = Cohort(ids, t, data.roster, generator(0, Purpose.METHOD, t, 0))
            engine.memory.begin()
            ask, began = Timed(RoundAsk(engine, ids, 0, t)), time.process_time()
            state = method.round(state, cohort, ask)
            whole = time.process_time() - began
            rows.append({"known": len(state.labels.ids), "round": whole, "server": whole - ask.seconds})
            print(
                f"{t + 1:3d}: {len(state.labels.ids):7,} clients, {len(state.centers)} clusters; round {whole:5.2f} s, "
                f"server {whole - ask.seconds:6.3f} s, {1 - ask.seconds / whole:6.1%}",
                flush=True,
            )
            if t == 0:
                state = with_copies(state, torch.cat(cohorts[rounds:]).sort().values)
    rest = rows[1:]
    share = sum(r["server"] for r in rest) / sum(r["round"] for r in rest)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"the server's share after the first round: {share:.1%}; {peak:.2f} GiB")
    out.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine(), "clients": clients, "share": share, "gib": peak, "rounds": rows}
    (out / "halves.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
