"""How cost grows: with the number of clients there are, with the number of clusters, with the size of the model.

100 clients a round, unless their number is what grows. Clients are index arrays into one small shared pool of samples,
so a million of them fit;
what is measured is what the driver, the method and the engine do in a round, without evaluation. Every point runs in a
process of its own; its time is the best round after the first ones, in which methods find clusters. Where there are
enough clients, every round meets new ones, so that a small roster is not flattered by clients already known (StoCFL
takes a gradient of everyone it has not met). Growth is judged by CPU time, which a busy machine disturbs least.
Two axes are not part of a usual run: `cohort` (up to 10,000 clients in a round) and `met` (a run that meets 100,000
clients, 1,000 new ones a round: what its first rounds cost, and its last).
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import numpy as np
import torch
import typer
from report import Json, machine
from workloads import engine_named

from coterie import Federation, Local
from coterie.core.compute import one_thread
from coterie.core.model import Model
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.data.federation import Domain, Ragged
from coterie.data.scale import Scale
from coterie.training.ask import RoundAsk
from coterie.training.build import named_model
from coterie.training.sampling import sample_cohort
from coterie.training.settings import Settings

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PER_ROUND, FEWER, SAMPLES, POOL, PIXELS = 100, 20, 20, 4000, 8  # FEWER: for large models
CLIENTS = (100, 1_000, 10_000, 100_000, 1_000_000)
METHOD_NAMES = ("fedavg", "ifca", "wecfl", "stocfl")
CLUSTERS = (2, 5, 10, 20, 50)
WIDTHS = (13, 133, 1_333, 13_333, 133_333)  # hidden units: about 10^3 to 10^7 parameters
COHORTS = (100, 1_000, 10_000)  # clients in a round, of 20,000
MEETS = ("fedavg", "stocfl", "halves")
MEETING = 13  # hidden units of their models
USUAL = ("clients", "clusters", "model")
ALLOWED = 1.5  # how much a round may cost more with 10^6 clients than with 10^3
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")


def federation(clients: int) -> Federation:
    """Tiny images of ten classes in four clusters that name the classes differently."""
    draw = np.random.default_rng(0)
    prototypes = draw.integers(0, 256, (10, 1, PIXELS, PIXELS))
    y = draw.integers(0, 10, POOL)
    x = np.clip(prototypes[y] * 0.7 + draw.normal(0, 20, (POOL, 1, PIXELS, PIXELS)), 0, 255).astype(np.uint8)
    table = torch.from_numpy(x), torch.from_numpy(y)
    domains = tuple(Domain(*table, Scale(255.0), relabel=(torch.arange(10) + 3 * shift) % 10) for shift in range(4))
    truth = np.arange(clients) % 4
    rows = draw.integers(0, POOL, (clients, SAMPLES), dtype=np.int64) + POOL * truth[:, None]
    train = Ragged(torch.from_numpy(rows.reshape(-1)), torch.arange(clients + 1) * SAMPLES)
    test = Ragged(torch.from_numpy(rows[:, 0].copy()), torch.arange(clients + 1))
    return Federation(domains, train, test, outputs=10, truth=truth, name="shared pool")


def point(name: str, clients: int, k: int, hidden: int, rounds: int, engine: str, per_round: int) -> Json:
    """One measurement, in this process."""
    local = Local(steps=2, batch="full", lr=0.1)
    data = federation(clients)
    model: Model = named_model("mlp", {"hidden": (hidden,)}, data, NO_CODE)
    params: dict[str, Any] = {"local": local} | ({"k": k} if name in ("ifca", "wecfl") else {})
    method = METHODS.build(name, params, NO_CODE)
    settings = Settings(participation=per_round, rounds=rounds)
    new = torch.randperm(clients, generator=torch.Generator().manual_seed(0))[: rounds * per_round].split(per_round)
    seconds, cpu = [], []
    making, _ = engine_named(engine, 1 if engine == "batched" else None, model, data, local, per_round)
    with making as made, one_thread():
        state = method.init(model, data.roster, generator(0, Purpose.INIT))
        for t in range(rounds):
            began, used = time.perf_counter(), time.process_time()
            ids = sample_cohort(data.roster, settings, t, 0)
            if len(new) == rounds:
                ids = new[t].sort().values
            cohort = Cohort(ids, t, data.roster, generator(0, Purpose.METHOD, t, 0))
            made.memory.begin()
            state = method.round(state, cohort, RoundAsk(made, ids, 0, t))
            seconds.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
    after = slice(min(2, rounds - 1), None)
    rest = seconds[after]
    return {
        "method": name,
        "clients": clients,
        "k": k,
        "parameters": model.parameters,
        "seconds": seconds,
        "first": seconds[0],
        "best": min(rest),
        "median": statistics.median(rest),
        "cpu": min(cpu[after]),
        "cpu_early": statistics.median(cpu[after][:5]),
        "cpu_late": statistics.median(cpu[after][-5:]),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def apart(name: str, clients: int, k: int, hidden: int, rounds: int, engine: str, per_round: int = PER_ROUND) -> Json:
    """One measurement, in a process of its own."""
    what = json.dumps([name, clients, k, hidden, rounds, engine, per_round])
    done = subprocess.run([sys.executable, __file__, "--one", what], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{what}: {done.stderr.strip().splitlines()[-1:]}")
    found: Json = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{name:8}{clients:>10,}{k:>5}{found['parameters']:>12,}{found['best'] * 1e3:>10.0f}"
        f"{found['median'] * 1e3:>9.0f}{found['cpu'] * 1e3:>9.0f}{1 / found['best']:>9.2f}"
        f"{found['first'] * 1e3:>9.0f}{found['peak_gib']:>8.2f}",
        flush=True,
    )
    return found


def violations(points: list[Json], engine: str) -> list[str]:
    """Methods whose round costs more with more clients."""
    found = []
    for name in dict.fromkeys(p["method"] for p in points):
        at = {p["clients"]: p["cpu" if engine == "sequential" else "best"] for p in points if p["method"] == name}
        if 1_000 in at and max(at) > 1_000:
            ratio = at[max(at)] / at[1_000]
            word = "ok" if ratio <= ALLOWED else "GROWS"
            found.append(f"{name:8} a round with {max(at):,} clients costs {ratio:.2f}x one with 1,000: {word}")
    return found


def draw(result: Json, path: Path) -> None:
    """path.png and path.svg: a column per axis, time above memory."""
    axes_of = {"clients": "clients", "clusters": "k", "model": "parameters"}
    shown = {axis: key for axis, key in axes_of.items() if result[axis]}
    figure, grid = plt.subplots(2, len(shown), figsize=(4.4 * len(shown), 6), squeeze=False, sharex="col")
    for column, (axis, key) in enumerate(shown.items()):
        for number, name in enumerate(dict.fromkeys(p["method"] for p in result[axis])):
            mine = [p for p in result[axis] if p["method"] == name]
            x = [p[key] for p in mine]
            style = {"marker": "osD^"[number % 4], "color": COLOURS[number % 4], "label": name}
            grid[0][column].plot(x, [1 / p["best"] for p in mine], **style)
            grid[1][column].plot(x, [p["peak_gib"] for p in mine], **style)
        for row, word in enumerate(("rounds per second", "peak memory, GiB")):
            grid[row][column].set_xscale("log")
            grid[row][column].set_ylabel(word)
            grid[row][column].grid(alpha=0.3)
            if key == "k":  # few values, less than two decades apart: each is named
                grid[row][column].set_xticks(x, [f"{value:,}" for value in x])
                grid[row][column].minorticks_off()
        grid[0][column].set_ylim(bottom=0)
        grid[1][column].set_ylim(bottom=0)
        grid[1][column].legend(fontsize=8, frameon=False, loc="upper left")
        grid[1][column].set_xlabel({"clients": "clients", "k": "clusters K", "parameters": "parameters"}[key])
    figure.suptitle(
        f"{PER_ROUND} clients a round ({FEWER} for model sizes), {SAMPLES} samples each, {result['engine']} engine",
        fontsize=10,
    )
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)
    plt.close(figure)


def main(
    axes: Annotated[str, typer.Option(help="which of clients, clusters, model, cohort, met")] = ",".join(USUAL),
    methods: Annotated[str, typer.Option(help="for the axis of clients")] = ",".join(METHOD_NAMES),
    meets: Annotated[str, typer.Option(help="for the axis of clients met")] = ",".join(MEETS),
    most: Annotated[int, typer.Option(help="largest number of clients")] = CLIENTS[-1],
    rounds: Annotated[int, typer.Option(help="rounds of each point")] = 8,
    engine: Annotated[str, typer.Option(help="which engine")] = "sequential",
    out: Annotated[Path, typer.Option(help="where JSON and plot go")] = Path("bench/results"),
    one: Annotated[str, typer.Option(help="one point, in this process", hidden=True)] = "",
) -> None:
    """Measure, print, and write growth.json and growth.png."""
    if one:
        print(json.dumps(point(*json.loads(one))))
        return
    result: Json = {"machine": machine(), "engine": engine} | {axis: [] for axis in (*USUAL, "cohort", "met")}
    words = ("best ms", "median", "CPU ms", "rounds/s", "first")
    print(f"{'method':8}{'clients':>10}{'K':>5}{'parameters':>12} " + "".join(f"{w:>9}" for w in words) + f"{'GiB':>8}")
    chosen = axes.split(",")
    if "clients" in chosen:
        for name in methods.split(","):
            for clients in (n for n in CLIENTS if n <= most):
                result["clients"].append(apart(name, clients, 4, 128, rounds, engine))
    if "clusters" in chosen:
        for k in CLUSTERS:
            result["clusters"].append(apart("ifca", 1_000, k, 128, rounds, engine))
    if "model" in chosen:
        for hidden in WIDTHS:
            result["model"].append(apart("fedavg", 1_000, 1, hidden, rounds, engine, FEWER))
    if "cohort" in chosen:
        for per_round in COHORTS:
            result["cohort"].append(apart("fedavg", 20_000, 1, 128, 4, engine, per_round))
    if "met" in chosen:
        for name in meets.split(","):
            found = apart(name, 100_000, 1, MEETING, 100, engine, 1_000)
            result["met"].append(found)
            early, late = (found[key] * 1e3 for key in ("cpu_early", "cpu_late"))
            print(f"{'':8}CPU ms of a round: {early:.0f} at first, {late:.0f} at last")
    result["verdict"] = violations(result["clients"], engine)
    print("\n".join(result["verdict"]))
    out.mkdir(parents=True, exist_ok=True)
    (out / "growth.json").write_text(json.dumps(result, indent=1))
    if any(result[axis] for axis in USUAL):
        draw(result, out / "growth")


if __name__ == "__main__":
    typer.run(main)
