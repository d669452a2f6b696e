"""Run directories written by hand, and the dashboard as a process over them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import yaml

CLIENTS = 12
CLUSTERS = 3
# The command as cli.py registers it, with its way to end on a user's mistake.
COMMAND = """
import sys, typer
from coterie.tools.cli.report import dashboard
from coterie.core.errors import CoterieError
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(dashboard)
try:
    app()
except CoterieError as error:
    sys.stderr.write(f"error: {error}\\n")
    sys.exit(2)
"""


def add_round(path: Path, number: int, accuracy: float | None = None) -> None:
    """A line more in rounds.jsonl and trace.jsonl."""
    score = accuracy if accuracy is not None else round(1 - 0.7 * 0.8**number, 4)
    cluster = [client % CLUSTERS for client in range(CLIENTS)]
    line: dict[str, Any] = {"round": number, "asked": CLIENTS, "answered": CLIENTS - 1, "attempts": 1, "seconds": 0.1}
    line |= {"missing": [{"client": 3, "reason": "dropped out"}], "unscored": [], "client_seconds": 0.08}
    line |= {
        "layers": {"traffic": {"down": 48000, "up": 44000}},
        "loss": 1 - score,
        "accuracy": score,
        "macro_f1": score - 0.02,
    }
    line |= {"clusters": CLUSTERS, "sizes": [CLIENTS // CLUSTERS] * CLUSTERS, "ari": 1.0, "nmi": 1.0}
    trace = {"round": number, "cluster": cluster, "accuracy": [score] * CLIENTS, "macro_f1": [score - 0.02] * CLIENTS}
    with (path / "rounds.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
    with (path / "trace.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(trace) + "\n")


def save_sketch(path: Path, trained: int = CLIENTS, seed: int = 0) -> None:
    """Models of this many clients, near to others of their cluster."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(CLUSTERS, 256)).astype(np.float32)
    models = centers[np.arange(CLIENTS) % CLUSTERS] + 0.1 * rng.normal(size=(CLIENTS, 256)).astype(np.float32)
    rounds = np.where(np.arange(CLIENTS) < trained, 1, 0).astype(np.int64)
    what: dict[str, Any] = {
        "ids": np.arange(CLIENTS),
        "sketch": models.astype(np.float32),
        "round": rounds,
        "centers": centers,
    }
    part = path / "sketch.part"
    part.write_bytes(safetensors.numpy.save(what))
    part.replace(path / "sketch.safetensors")


def begin(
    path: Path, method: str = "wecfl", seed: int = 0, rounds: int = 6, started: str = "2026-01-02T03:04:05Z"
) -> Path:
    """A run that has not finished a round."""
    path.mkdir(parents=True)
    config = {"method": {"name": method}, "data": {"name": "digits"}, "rounds": rounds, "seed": seed}
    (path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (path / "run.json").write_text(json.dumps({"started": started, "seed": seed}), encoding="utf-8")
    (path / "rounds.jsonl").write_text("", encoding="utf-8")
    (path / "trace.jsonl").write_text(json.dumps({"ids": list(range(CLIENTS))}) + "\n", encoding="utf-8")
    return path


def finish(path: Path) -> None:
    """What a run writes at its end."""
    scores = {"samples": 9, "loss": 0.2, "accuracy": 0.9, "macro_f1": 0.8}
    rows = [{"client": c, "cluster": c % CLUSTERS, "hidden": c % CLUSTERS} | scores for c in range(CLIENTS)]
    (path / "clients.json").write_text(json.dumps(rows), encoding="utf-8")


def a_run(path: Path, method: str = "wecfl", seed: int = 0, rounds: int = 6, last: float | None = None) -> Path:
    """A run that is done."""
    begin(path, method, seed, rounds)
    for number in range(1, rounds + 1):
        add_round(path, number, last if number == rounds else None)
    save_sketch(path, seed=seed)
    finish(path)
    return path


def age(path: Path, seconds: float = 3600) -> None:
    """As if nothing had happened since."""
    for file in path.iterdir():
        about = file.stat()
        os.utime(file, (about.st_atime - seconds, about.st_mtime - seconds))


def start(*words: str | Path) -> subprocess.Popen[str]:
    """The command, not waited for."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores interrupts, and its children inherit that.
        preexec_fn=None if os.name == "nt" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@contextmanager
def dashboard(directory: Path) -> Iterator[str]:
    """The address of a dashboard over this directory; it must end well, and without a word of complaint."""
    with start(directory, "--port", "0") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line + process.stderr.read()
        try:
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (0, "", "")
