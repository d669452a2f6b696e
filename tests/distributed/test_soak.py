"""Fifty rounds during which clients, the SuperLink and the server are killed at random, and uploads break off in the
middle; then the run is done again in
one process, with the same clients answering in every round, and must come to the same models.

pytest -m "slow and distributed" tests/distributed/test_soak.py; its figures go to build/soak.json.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cutting import CUT
from federation import Stage, write_digits

from coterie.data.federation import Federation
from coterie.engines.contract import Missing, Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.network.client_data import own_data
from coterie.network.config import read
from coterie.training.assembly import Run
from coterie.training.build import as_model, build_method
from coterie.training.events import Event
from coterie.training.loop import train
from coterie.training.run_directory import RunDirectory

sys.path.append(str(Path(__file__).parent.parent / "conformance"))
from comings import Door

pytest.importorskip("flwr")
pytestmark = [pytest.mark.distributed, pytest.mark.slow]

ROUNDS = int(os.environ.get("COTERIE_SOAK_ROUNDS", "50"))
NAMES = ("anna", "bert", "cora", "dora", "emil")
WORDS = [
    *("method.name=ditto", "model=linear", "local.epochs=2", "local.batch=8", "local.lr=0.1", f"rounds={ROUNDS}"),
    *("quorum=0.2", "retries=20", "network.clients=3", "network.outputs=10", "network.deadline=10"),
]


@dataclass
class Figures:
    """What a soak is judged by."""

    rounds: int = 0
    clients_killed: int = 0
    clients_back: int = 0
    uploads_cut: int = 0  # the answer announced, a part of it sent, and the SuperNode gone
    superlinks_killed: int = 0
    servers_killed: int = 0
    missed: int = 0  # answers that never came, of all that were asked for
    answers: int = 0
    updates_lost: int = 0  # answers that the server had taken and the final models do not hold
    wrong_results: int = 0  # numbers of the final models that differ from the replay's
    seconds: int = 0
    longest: float = 0  # seconds of a round
    kinds: dict[str, int] = field(default_factory=dict)  # why answers were missed


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    write_digits(tmp_path, NAMES)
    made = Stage(tmp_path)
    clients = [word for name in NAMES for word in ("--client", name)]
    command = [sys.executable, "-m", "coterie.tools.cli.main", "certs", "certs", *clients]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    try:
        yield made
    finally:
        made.close()


def torment(stage: Stage, figures: Figures) -> None:
    """Start everything, and kill something every few seconds until all rounds are done."""
    chance = random.Random(8)
    clients = {name: stage.cutting_client(name) for name in NAMES}
    books = str(Path(__file__).with_name("keeping_books.py"))
    server = stage.start("server", books, "run", str(stage.port), *WORDS)
    began, next_blow = time.monotonic(), time.monotonic() + 40
    while len(stage.rounds("run")) < ROUNDS or server.poll() is None:
        assert time.monotonic() - began < 120 * ROUNDS, stage.everything_said()
        if server.poll() is not None:
            assert server.returncode == -signal.SIGKILL, stage.everything_said()
            server = stage.start("server", books, "run", str(stage.port), *WORDS)
        for name, process in clients.items():
            if process.poll() is not None and chance.random() < 0.1:  # a second: it is back after ten, on average
                clients[name] = stage.cutting_client(name)
                figures.clients_back += 1
        if time.monotonic() > next_blow and len(stage.rounds("run")) < ROUNDS - 1:
            next_blow = time.monotonic() + chance.uniform(10, 40)
            _blow(stage, chance, clients, server, figures)
        time.sleep(1)
    assert server.returncode == 0, stage.everything_said()


def _blow(
    stage: Stage,
    chance: random.Random,
    clients: dict[str, subprocess.Popen[bytes]],
    server: subprocess.Popen[bytes],
    figures: Figures,
) -> None:
    what = chance.choices(["client", "upload", "superlink", "server"], [3, 2, 1, 1])[0]
    alive = [process for process in clients.values() if process.poll() is None]
    links = [pid for pid, words in stage.alive() if "flower-superlink" in words]
    if what == "client" and len(alive) > 2:
        chance.choice(alive).kill()
        figures.clients_killed += 1
    elif what == "upload":
        mark = stage.path / f"state-{chance.choice(NAMES)}" / CUT
        if mark.parent.is_dir() and not mark.exists():
            mark.touch()
            figures.uploads_cut += 1
    elif what == "superlink" and links:
        os.kill(links[0], signal.SIGKILL)
        figures.superlinks_killed += 1
    elif what == "server" and server.poll() is None:
        server.kill()
        server.wait()
        figures.servers_killed += 1


class Replaying(Sequential):
    """Those answer who answered then."""

    def __init__(self, *words: object, answered: dict[int, set[int]]) -> None:
        super().__init__(*words)  # type: ignore[arg-type]
        self.answered = answered

    def visit(self, visit: Visit) -> Outcome:
        if not visit.keep:
            return super().visit(visit)
        keep = [c for c in visit.ids.tolist() if c in self.answered[visit.moment.round + 1]]
        outcome = super().visit(Visit(visit.tasks, torch.tensor(keep), visit.moment, visit.kind))
        gone = tuple(Missing(c, "then too") for c in visit.ids.tolist() if c not in keep)
        return Outcome(outcome.replies, (*outcome.missing, *gone))


def replay(stage: Stage, lines: dict[int, dict[str, list[int]]]) -> Path:
    """The same run in one process."""
    names = [m["name"] for m in json.loads((stage.path / "run" / "members.json").read_text())["members"]]
    parts = []
    for name in names:
        one = own_data(str(stage.path / f"{name}.npz"))
        parts.append((*one.samples(0, "train"), *one.samples(0, "test")))
    federation = Federation.from_arrays(parts, outputs=10, standardise=False)

    def there(done: int) -> list[int]:
        line = lines.get(min(done + 1, ROUNDS), {"answered": [0], "missing": []})
        return sorted({*line["answered"], *line["missing"]})

    door = Door(federation, there)
    config = read(None, [*WORDS, "quorum=0"])
    method, model = build_method(config), as_model("linear", federation)
    engine = Replaying(model, federation, answered={r: set(line["answered"]) for r, line in lines.items()})
    path = stage.path / "replayed"
    store = RunDirectory(path, method, model, door, config.settings)

    def listen(event: Event) -> None:
        door.listen(event)

    train(Run(method, model, door, config.settings, engine, store, [listen]))
    return path


def test_fifty_rounds_with_random_kills(stage: Stage) -> None:
    figures, began = Figures(), time.monotonic()
    torment(stage, figures)
    rounds = stage.rounds("run")
    assert [line["round"] for line in rounds] == list(range(1, ROUNDS + 1))
    # The last line of a round is the one that counted: a round whose checkpoint was not written yet is done again.
    lines = {line["round"]: line for line in map(json.loads, (stage.path / "run.books").read_text().splitlines())}
    ours = safetensors.torch.load_file(stage.path / "run" / "checkpoints" / f"round-{ROUNDS:06d}.safetensors")
    again = safetensors.torch.load_file(replay(stage, lines) / "checkpoints" / f"round-{ROUNDS:06d}.safetensors")
    for key in (key for key in ours if key.startswith("state/")):
        figures.wrong_results += int((~torch.isclose(ours[key], again[key], rtol=1e-6, atol=1e-6)).sum())
    theirs = {row["client"]: row for row in json.loads((stage.path / "replayed" / "clients.json").read_text())}
    for row in stage.clients_of("run"):  # scores of personal models, which only the clients have
        other = theirs.get(row["client"], row)
        figures.wrong_results += int(abs(row["loss"] - other["loss"]) > 1e-5)
    figures.rounds = len(rounds)
    figures.answers = sum(line["answered"] for line in rounds)
    figures.missed = sum(len(line["missing"]) for line in rounds)
    figures.updates_lost = sum(abs(line["answered"] - len(lines[line["round"]]["answered"])) for line in rounds)
    figures.kinds = dict(Counter(m["reason"].split(" (")[0] for line in rounds for m in line["missing"]))
    figures.uploads_cut -= len(list(stage.path.glob(f"state-*/{CUT}")))  # of clients that sent nothing any more
    figures.longest = round(max(line["seconds"] for line in rounds), 1)
    figures.seconds = round(time.monotonic() - began)
    build = Path(__file__).parent.parent.parent / "build"
    build.mkdir(exist_ok=True)
    (build / "soak.json").write_text(json.dumps(vars(figures), indent=1) + "\n")
    print(vars(figures))
    assert figures.wrong_results == 0
    assert figures.updates_lost == 0
