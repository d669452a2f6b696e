"""What the server of Halves does in a round, while a federation of 100,000 clients is met 1,000 at a time.

A round is the visit of its cohort, which real clients would do side by side, and the server's own work: nearest
means, the evidence of halves, averages. One process trains all clients here, as one computation, so their share of a
round is as small as a simulation can make it. Everyone is met once, then some clients are met again.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from growth import federation
from report import machine

from coterie import Halves, Local
from coterie.core.cohort import Cohort
from coterie.core.hardware import one_thread
from coterie.core.seeds import Purpose, generator
from coterie.engines.batched import Batched
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


def main(
    clients: int = 100_000,
    per_round: int = 1_000,
    again: Annotated[int, typer.Option(help="Rounds after everyone was met.")] = 5,
    hidden: int = 64,
    out: Annotated[Path, typer.Option(help="Where halves.json goes.")] = Path("bench/results"),
) -> None:
    """Measure, print, and write halves.json."""
    data = federation(clients)
    model = named_model("mlp", {"hidden": (hidden,)}, data)
    method = Halves(local=Local(steps=20, batch=10, lr=0.1))
    order = generator(0, Purpose.COHORT).permutation(clients)
    rows = []
    engine = Batched(model, data)
    with one_thread():
        state = method.init(model, data.roster, generator(0, Purpose.INIT))
        for t in range(clients // per_round + again):
            ids = data.roster.ids[sorted((order[(t * per_round + i) % clients]) for i in range(per_round))]
            cohort = Cohort(ids, t, data.roster, generator(0, Purpose.METHOD, t, 0))
            engine.memory.begin()
            ask, began = Timed(RoundAsk(engine, ids, 0, t)), time.process_time()
            state = method.round(state, cohort, ask)
            whole = time.process_time() - began
            met, k = len(state.labels.ids), len(state.centers)
            rows.append({"met": met, "k": k, "round": whole, "server": whole - ask.seconds})
            print(
                f"{t:4d}: met {met:7,}, K {k}, round {whole:6.2f} s, server {whole - ask.seconds:6.3f} s, "
                f"{1 - ask.seconds / whole:6.1%}",
                flush=True,
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    share = sum(r["server"] for r in rows) / sum(r["round"] for r in rows)
    worst = max(r["server"] / r["round"] for r in rows)
    print(f"the server's share: {share:.1%}, in the worst round {worst:.1%}; {peak:.2f} GiB")
    out.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine(), "clients": clients, "share": share, "worst": worst, "gib": peak, "rounds": rows}
    (out / "halves.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
