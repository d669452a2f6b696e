"""Rounds per second of this project, a plain loop and its peers on the papers' workloads, interleaved in one run.

Every contender is a process of its own (peers in environments of their own) that trains the same clients on the same
data from the same model, one round when it is its turn. The first round of each is not counted. Times are what the
harness sees; memory is looked at in rounds that are not timed.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import chart
import clustered
import peak as machine_peak
import typer
from contender import Contender, Skipped
from environments import LOCATION, PEERS, python_of
from report import Json, machine, summary, table
from workloads import Workload, exported, named

PEER_SCRIPTS = Path(__file__).parent / "peers"
OURS = ("coterie-sequential", "coterie-workers", "coterie-batched", "coterie-auto")
PLAIN = ("plain", "plain-no-dataloader")
OTHERS = ("pfl-1", "pfl-2", "flwr", "fluke", "fedlab")
QUICK = {"W1": 4, "W2": 1, "W3": 1, "W4": 2}  # rounds


def command(name: str, work: Workload, place: Path, environments: Path) -> list[str]:
    """How a contender is started. `coterie-workers:1` is the engine `workers` with one worker, `coterie-batched@torch`
    the engine `batched` without compiled code."""
    if name in PLAIN:
        more = [] if name == "plain" else ["--no-loader"]
        return [sys.executable, str(PEER_SCRIPTS / "plain.py"), str(place), *more]
    if name.startswith("coterie-"):
        whole, _, how = name.removeprefix("coterie-").partition("@")
        engine, _, workers = whole.partition(":")
        before = ["env", "COTERIE_LANES=off"] if how == "torch" else []
        script = str(PEER_SCRIPTS / "ours.py")
        return [*before, sys.executable, script, work.name, engine, *([workers] if workers else [])]
    peer, _, processes = name.partition("-")
    if peer not in PEERS:
        raise typer.BadParameter(f"{name}: known are {', '.join((*PLAIN, *OURS, *OTHERS))}")
    try:
        python = python_of(peer, environments)
    except (RuntimeError, OSError) as error:
        raise Skipped(str(error)) from None
    more = {"pfl": [processes or "2"], "flwr": ["2"]}.get(peer, [])
    return [str(python), str(PEER_SCRIPTS / PEERS[peer].script), str(place), *more]


def race(
    work: Workload, names: list[str], rounds: int, peak: Json, out: Path, environments: Path, thorough: bool
) -> Json:
    """One workload: everyone's rounds, taking turns."""
    place = exported(work)
    about = json.loads((place / "work.json").read_text())
    found: Json = {"about": about, "contenders": {name: {} for name in names}}
    running: dict[str, Contender] = {}
    with ExitStack() as stack:
        for name in names:
            try:
                (out / "logs").mkdir(parents=True, exist_ok=True)
                log = out / "logs" / f"{work.name}-{name.replace(':', '-')}.log"
                running[name] = Contender(name, command(name, work, place, environments), log)
                stack.callback(running[name].close)
            except Skipped as error:
                found["contenders"][name]["skipped"] = str(error)
        times: dict[str, list[Json]] = {name: [] for name in running}

        def turn(name: str, t: int, counted: bool) -> None:
            try:
                if t == 0:
                    running[name].ready()
                if counted:
                    times[name].append({"round": t, **asdict(running[name].round())})
                else:
                    with running[name].watched():
                        running[name].round()
            except Skipped as error:
                found["contenders"][name] = {"skipped": str(error)}
                running.pop(name).close()

        for name in names:  # all of them load at the same time, and are waited for one by one
            if name in running:
                print(f"\r{work.name} warming {name:30}", end="", flush=True)
                turn(name, 0, counted=False)
        for t in range(1, rounds + 1):
            for name in list(running):
                turn(name, t, counted=True)
            print(f"\r{work.name} round {t} of {rounds}{'':30}", end="", flush=True)
        for name in list(running) if thorough else []:
            turn(name, rounds + 1, counted=False)
        print("\r" + " " * 40, end="\r")
        for name, contender in running.items():
            found["contenders"][name] = {
                "summary": summary(times[name], about, peak),
                "memory": contender.peak,
                "about": contender.about,
                "rounds": times[name],
            }
    return found


def measured_peak(repeats: int = 3) -> Json:
    """Floating-point operations per second of one and of two processes, the best of several."""
    return {f"processes_{n}": max(machine_peak.measure(n, 1.0) for _ in range(repeats)) for n in (1, 2)}


def main(
    workloads: Annotated[str, typer.Option(help="which, W1 to W5")] = "W1,W2,W3,W4,W5",
    contenders: Annotated[str, typer.Option(help="names; all by default, `ours` without peers")] = "",
    rounds: Annotated[int, typer.Option(help="measured rounds; the workload's own number by default")] = 0,
    quick: Annotated[bool, typer.Option(help="no peers, few rounds: W1-W4 in under three minutes")] = False,
    out: Annotated[Path, typer.Option(help="where JSON and charts go")] = Path("bench/results"),
    environments: Annotated[Path, typer.Option(help="where the peers' virtual environments are")] = LOCATION,
) -> None:
    """Measure, print, and write compare.json and charts."""
    wanted = [w.strip() for w in workloads.split(",")]
    if quick and workloads == "W1,W2,W3,W4,W5":
        wanted.remove("W5")
    ours = [*PLAIN, *OURS]
    usual = ["plain", *OURS] if quick else [*ours, *OTHERS]
    names = [c.strip() for c in contenders.split(",")] if contenders else usual
    if names == ["ours"]:
        names = ours
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # contenders are closed on the way out
    result: Json = {"machine": machine(), "peak": measured_peak(), "workloads": {}}
    where, peak = result["machine"], result["peak"]
    print(f"{where['processor']}, {where['cores']} cores, torch {where['torch']}, load {where['load_before']:.1f}")
    one, two = (peak[f"processes_{n}"] / 1e9 for n in (1, 2))
    print(f"matrix product: {one:.0f} GFLOP/s by one process, {two:.0f} by two")
    for work in named(",".join(w for w in wanted if w != "W5")) if wanted != ["W5"] else []:
        many = rounds or (QUICK[work.name] if quick else work.rounds)
        found = race(work, names, many, peak, out, environments, thorough=not quick)
        result["workloads"][work.name] = found
        print(f"\n{work.name} {work.title}: {work.per_round} clients a round, {many} rounds")
        print("\n".join(table(found)), flush=True)
    if "W5" in wanted:
        result["clustered"] = clustered.measure(rounds or 4)
        print("\n" + "\n".join(clustered.table(result["clustered"])))
    if not quick:
        result["peak_after"] = measured_peak()  # far from the first one: the machine was not quiet
    name = "quick" if quick else "compare"
    (out / f"{name}.json").write_text(json.dumps(result, indent=1))
    chart.draw(result, out / name)
    print(f"\nwritten: {out / name}.json, .png, .svg")


if __name__ == "__main__":
    typer.run(main)
