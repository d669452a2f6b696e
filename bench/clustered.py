"""W5: what clustered methods cost per round on W2's and W3's data, client work and server work apart.

Client time is what passes inside the engine's visits, server time the rest of the method's round: clustering, means,
and the making of tasks. The round in which the server does most, for it clusters, is shown beside the others.
scikit-learn is imported beforehand: loading it takes longer than any clustering here, and happens once in a process.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import sklearn.cluster  # noqa: F401
import torch
import typer
from report import Json, machine
from workloads import SEED, Workload, engine_named, one_named

from coterie import FeSEM
from coterie.core.cohort import Cohort
from coterie.core.compute import HOST, Compute
from coterie.core.hardware import one_thread
from coterie.core.local import Local
from coterie.core.registry import METHODS
from coterie.core.seeds import Purpose, generator
from coterie.engines.contract import Engine, Outcome, Visit
from coterie.training.ask import RoundAsk

K = 10
ON = ("W2", "W3")
NAMES = ("fedavg", "ifca", "wecfl", "stocfl", "fedgroup", "fedsoft", "fesem-cam")


class Timed:
    """An engine that knows how long its visits took."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.memory = engine, engine.memory
        self.seconds = 0.0

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        began = time.perf_counter()
        outcome = self._engine.visit(visit)
        self.seconds += time.perf_counter() - began
        return outcome

    def close(self) -> None:
        """The engine is closed by whoever made it."""


def method(name: str, local: Local) -> Any:
    """A method with K clusters where it wants a number."""
    if name == "fesem-cam":
        return METHODS.build(name, {"local": local, "warmup": 1, "base": FeSEM(k=K, local=local)})
    return METHODS.build(name, {"local": local} | ({} if name in ("stocfl", "fedavg") else {"k": K}))


def rounds_of(name: str, work: Workload, engine: Engine, many: int) -> list[Json]:
    """Seconds of each round, clients' and server's."""
    timed, found = Timed(engine), []
    federation = work.federation(clustered=True)
    the_method = method(name, work.local)
    state = the_method.init(work.network(federation), federation.roster, generator(SEED, Purpose.INIT))
    cohorts = torch.from_numpy(work.drawn(len(federation)))
    for t in range(many):
        cohort = Cohort(cohorts[t % len(cohorts)], t, federation.roster, generator(SEED, Purpose.METHOD, t, 0))
        timed.memory.begin()
        timed.seconds, began = 0.0, time.perf_counter()
        state = the_method.round(state, cohort, RoundAsk(timed, cohort.ids, SEED, t))
        total = time.perf_counter() - began
        found.append({"clients": timed.seconds, "server": total - timed.seconds})
    return found


def measure(
    rounds: int,
    engine: str = "auto",
    names: tuple[str, ...] = NAMES,
    on: tuple[str, ...] = ON,
    compute: Compute = HOST,
) -> Json:
    """All methods on all data."""
    result: Json = {}
    for key in on:
        work = one_named(key)
        federation = work.federation(clustered=True)
        model = work.network(federation)
        for name in names:
            with one_thread():
                making, what = engine_named(engine, None, model, federation, work.local, work.per_round, compute)
                with making as made:
                    found = rounds_of(name, work, made, rounds)
            result.setdefault(key, {})[name] = {"engine": what, "rounds": found}
    return result


def table(result: Json) -> list[str]:
    """The round in which the server had most to do (it clusters), and the median of the others."""
    lines = [
        "W5 clustered methods, seconds per round",
        f"{'':14}{'clustering round':>22}{'':4}{'others (median)':>22}{'':4}{'server share':>22}",
        f"{'':14}{'clients':>11}{'server':>11}{'':4}{'clients':>11}{'server':>11}{'':4}{'clustering':>12}{'others':>10}",
    ]
    for key, methods in result.items():
        for name, one in methods.items():
            rounds = sorted(one["rounds"], key=lambda r: float(r["server"]))
            most, rest = rounds[-1], rounds[:-1] or rounds
            clients, server = (statistics.median(r[part] for r in rest) for part in ("clients", "server"))
            lines.append(
                f"{key} {name:11}{most['clients']:11.2f}{most['server']:11.4f}"
                f"{'':4}{clients:11.2f}{server:11.4f}{'':4}"
                f"{most['server'] / (most['clients'] + most['server']):12.2%}{server / (clients + server):10.2%}"
            )
    return lines


def main(
    rounds: Annotated[int, typer.Option(help="per method")] = 4,
    engine: Annotated[str, typer.Option(help="which engine")] = "auto",
    methods: Annotated[str, typer.Option(help="names")] = ",".join(NAMES),
    workloads: Annotated[str, typer.Option(help="W2, W3 or both")] = ",".join(ON),
    out: Annotated[Path, typer.Option(help="where the JSON goes")] = Path("bench/results"),
) -> None:
    """Measure, print and write clustered.json."""
    result = measure(rounds, engine, tuple(methods.split(",")), tuple(workloads.split(",")))
    print("\n".join(table(result)))
    out.mkdir(parents=True, exist_ok=True)
    (out / "clustered.json").write_text(json.dumps({"machine": machine(), "clustered": result}, indent=1))


if __name__ == "__main__":
    typer.run(main)
