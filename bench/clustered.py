"""W5: what clustered methods cost per round on W2's and W3's data, client work and server work apart.

The methods take turns, round by round. What they cost against the first one (FedAvg) is processor time, which a busy
machine disturbs least: of this process, so with --workers 1.

Client time is what passes inside the engine's visits, server time the rest of the method's round: clustering, means,
and the making of tasks. The round in which the server does most, for it clusters, is shown beside the others.
scikit-learn is imported beforehand: loading it takes longer than any clustering here, and happens once in a process.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import sklearn.cluster  # noqa: F401
import torch
import typer
from report import Json, machine
from workloads import SEED, Workload, engine_named, one_named

from coterie import Federation, FeSEM
from coterie.core.compute import HOST, Compute, one_thread
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.core.tasks import Local
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
        return METHODS.build(name, {"local": local, "warmup": 1, "base": FeSEM(k=K, local=local)}, NO_CODE)
    return METHODS.build(name, {"local": local} | ({} if name in ("stocfl", "fedavg") else {"k": K}), NO_CODE)


class Running:
    """A method in the middle of its rounds."""

    def __init__(self, name: str, work: Workload, federation: Federation, engine: Engine) -> None:
        self.timed, self.federation, self.t = Timed(engine), federation, 0
        self.method = method(name, work.local)
        self.state = self.method.init(work.network(federation), federation.roster, generator(SEED, Purpose.INIT))
        self.cohorts = torch.from_numpy(work.drawn(len(federation)))
        self.rounds: list[Json] = []

    def round(self) -> None:
        """One round, and the seconds of clients and server."""
        t, self.t = self.t, self.t + 1
        draws = generator(SEED, Purpose.METHOD, t, 0)
        cohort = Cohort(self.cohorts[t % len(self.cohorts)], t, self.federation.roster, draws)
        self.timed.memory.begin()
        self.timed.seconds, began, used = 0.0, time.perf_counter(), time.process_time()
        self.state = self.method.round(self.state, cohort, RoundAsk(self.timed, cohort.ids, SEED, t))
        total, cpu = time.perf_counter() - began, time.process_time() - used
        self.rounds.append({"clients": self.timed.seconds, "server": total - self.timed.seconds, "cpu": cpu})


def measure(
    rounds: int,
    engine: str = "auto",
    names: tuple[str, ...] = NAMES,
    on: tuple[str, ...] = ON,
    compute: Compute = HOST,
    workers: int | None = None,
) -> Json:
    """All methods on all data, in turns."""
    result: Json = {}
    for key in on:
        work = one_named(key)
        federation = work.federation(clustered=True)
        model = work.network(federation)
        with one_thread(), ExitStack() as stack:
            running: dict[str, Running] = {}
            for name in names:
                asked = engine, workers, model, federation, work.local, work.per_round, compute
                making, what = engine_named(*asked)
                running[name] = Running(name, work, federation, stack.enter_context(making))
            for _ in range(rounds):
                for one in running.values():
                    one.round()
        result[key] = {name: {"engine": what, "rounds": one.rounds} for name, one in running.items()}
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
        best = {name: min(r["cpu"] for r in one["rounds"][1:] or one["rounds"]) for name, one in methods.items()}
        first = next(iter(best.values()))
        lines += [f"{key} processor time, best round after the first:"]
        lines += [f"{key} {name:11}{cpu:8.2f} s{cpu / first:8.2f}x" for name, cpu in best.items()]
    return lines


def main(
    rounds: Annotated[int, typer.Option(help="per method")] = 4,
    engine: Annotated[str, typer.Option(help="which engine")] = "auto",
    workers: Annotated[int, typer.Option(help="processes; 0: as the engine chooses")] = 0,
    methods: Annotated[str, typer.Option(help="names")] = ",".join(NAMES),
    workloads: Annotated[str, typer.Option(help="W2, W3 or both")] = ",".join(ON),
    out: Annotated[Path, typer.Option(help="where the JSON goes")] = Path("bench/results"),
) -> None:
    """Measure, print and write clustered.json."""
    result = measure(rounds, engine, tuple(methods.split(",")), tuple(workloads.split(",")), workers=workers or None)
    print("\n".join(table(result)))
    out.mkdir(parents=True, exist_ok=True)
    (out / "clustered.json").write_text(json.dumps({"machine": machine(), "clustered": result}, indent=1))


if __name__ == "__main__":
    typer.run(main)
