"""A run's directory: what was asked (config.yaml), by whom (run.json), what happened (rounds.jsonl), how to go on.

config.yaml        the resolved configuration            rounds.jsonl    one line per round, flushed
run.json           versions, seed, start                 checkpoints/    round-000005.safetensors ...
assignments.json   the cluster of each client            clients.json    the last evaluation, client by client
trace.jsonl, sketch.safetensors   who was where in every evaluated round, and how models lie (see trace.py)
newcomers.json     the same of clients kept from training, where there are any
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml
from filelock import FileLock, Timeout
from torch import Tensor

from coterie import checkpoint
from coterie.clients import Clients
from coterie.engines.contract import Missing
from coterie.errors import CoterieError, ResumeError
from coterie.events import Event, RoundDone, RunEnded
from coterie.memory import Memory
from coterie.metrics import Summary
from coterie.model import Model
from coterie.tasks import Evaluated
from coterie.trace import Trace

MAY_CHANGE = ("rounds", "checkpoint_every", "quorum", "retries")  # of the settings, when a run is resumed
MEASURED = ("discrepancy", "clusterability", "bytes_down", "bytes_up", "client_seconds")  # of a round
FLOWER = "flower"  # in the directory of a run over a network: what Flower itself keeps
LOCK = ".lock"  # held while a process is at work on the run
KEPT = 2  # checkpoints: the last one, and the one before it in case a disk damages the last


def describe(method: object) -> str:
    """A method with its hyper-parameters, in one line."""
    if not dataclasses.is_dataclass(method) or isinstance(method, type):
        return type(method).__qualname__
    fields = ", ".join(f"{f.name}={getattr(method, f.name)!r}" for f in dataclasses.fields(method))
    return f"{type(method).__qualname__}({fields})"


def belongs(method: object, model: Model, clients: Clients, settings: Any) -> dict[str, str]:
    """What must agree for a checkpoint to be this run's."""
    return {  # the settings first: another seed is also other data, and the seed is what was changed
        **{k: repr(v) for k, v in dataclasses.asdict(settings).items() if k not in MAY_CHANGE},
        "method": describe(method),
        "model": f"{model.size} numbers, {model.loss}, network {zlib.crc32(repr(model.blueprint).encode()):08x}",
        "data": clients.identity(),
    }


def read_history(path: Path, rounds: int) -> tuple[RoundDone, ...]:
    """What rounds.jsonl says of a run's first rounds."""
    log = path / "rounds.jsonl"
    if not log.is_file():
        return ()
    events = []
    for line in _whole_lines(log.read_text(encoding="utf-8")):
        missing, unscored = (tuple(Missing(**m) for m in line[key]) for key in ("missing", "unscored"))
        summary = None
        if "loss" in line:
            known = {f.name: line[f.name] for f in dataclasses.fields(Summary) if f.name in line}
            summary = Summary(**known | {"sizes": tuple(known["sizes"])})
        counts = {key: line[key] for key in ("round", "asked", "answered", "attempts", "seconds")}
        counts |= {key: line[key] for key in MEASURED if key in line}
        events.append(RoundDone(**counts, missing=missing, unscored=unscored, summary=summary))
    return tuple(event for event in events if event.round <= rounds)


def _whole_lines(text: str) -> Iterator[dict[str, Any]]:
    """Every line but one that a crash cut short."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found


class RunDirectory:
    """Writes a run down as it happens. Nothing is written before `begin`."""

    def __init__(
        self,
        path: Path,
        method: object,
        model: Model,
        clients: Clients,
        settings: Any,
        resume: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self._resume, self._method = path, resume, method
        self._settings, self._config = settings, config
        self._belongs = belongs(method, model, clients, settings)
        self._clients = clients
        self._trace = Trace(path, len(clients), settings.seed, model.part("last_weight"))
        self._log: IO[str] | None = None
        self._lock = FileLock(path / LOCK, blocking=False)
        if resume:
            if not (path / "config.yaml").is_file():
                raise CoterieError(f"{path}: no run to resume there (it has no config.yaml)")
        else:
            check_free(path)

    def begin(self, fresh: Any, memory: Memory) -> tuple[Any, int]:
        """Open the directory; returns the state to start from and the rounds already done."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise CoterieError(f"{self.path}: another process is at work on this run") from None
        except OSError as error:
            raise CoterieError(f"{self.path}: cannot be written ({error.strerror})") from None
        state, done = self._go_on(fresh, memory) if self._resume else (fresh, 0)
        try:
            self._write_start()
            (self.path / "checkpoints").mkdir(exist_ok=True)
            self._forget_after(done)
            self._log = (self.path / "rounds.jsonl").open("a", encoding="utf-8")
            self._trace.begin(done)
        except OSError as error:
            raise CoterieError(f"{self.path}: cannot be written ({error.strerror})") from None
        return state, done

    def _go_on(self, fresh: Any, memory: Memory) -> tuple[Any, int]:
        found = self.saves()
        if not found:
            return fresh, 0
        try:
            last = checkpoint.load(found[-1], fresh, self._method, self._belongs)
        except CoterieError as error:
            raise ResumeError(str(error)) from error
        if last.round > self._settings.rounds:
            raise ResumeError(f"rounds: {self.path} has {last.round} done already, more than {self._settings.rounds}")
        memory.restore(last.memory)  # which a full disk may prevent: that says nothing against the checkpoint
        return last.state, last.round

    def saves(self) -> list[Path]:
        """Its checkpoints, the oldest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def attempts(self, done: int) -> list[int]:
        """How often each of the rounds that are done was tried."""
        return [event.attempts for event in read_history(self.path, done)]

    def close(self) -> None:
        """Let go of the log, however the run ended."""
        if self._log is not None:
            self._log.close()
        self._trace.close()
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # Windows keeps what is locked
                (self.path / LOCK).unlink()
            self._lock.release()

    def save(self, state: object, memory: Memory, round: int) -> None:
        """A checkpoint after this round; older ones go."""
        self._trace.save()
        file = self.path / "checkpoints" / f"round-{round:06d}.safetensors"
        checkpoint.save(file, state, memory, round, self._belongs)
        for old in self.saves()[:-KEPT]:
            old.unlink()

    def listen(self, event: Event) -> None:
        """Write what happened."""
        if isinstance(event, RoundDone):
            assert self._log is not None
            self._log.write(json.dumps(_line(event)) + "\n")
            self._log.flush()
            if event.fresh is not None:
                self._trace.watch(len(self._clients))
                self._trace.add(event.round, event.fresh)
        elif isinstance(event, RunEnded):
            rows = self._rows(event.clients)
            self._write("assignments.json", {str(row["client"]): row["cluster"] for row in rows})
            self._write("clients.json", rows)
            if event.newcomers is not None:
                self._write("newcomers.json", self._rows(event.newcomers))

    def _rows(self, reply: Evaluated) -> list[dict[str, Any]]:
        """What is known of each client after the last round."""
        ids = reply.ids.tolist()
        found = reply.choice.tolist() if reply.choice is not None else [0] * len(ids)
        columns: dict[str, Tensor] = {
            "samples": reply.n,
            "loss": reply.loss,
            "accuracy": reply.accuracy,
            "macro_f1": reply.macro_f1,
        }
        names, truth, mixture = self._clients.names, self._clients.truth, self._clients.mixture
        return [
            {"client": c}
            | ({} if names is None else {"name": names[c]})
            | {"cluster": k}
            | ({} if truth is None else {"hidden": int(truth[c])})
            | {name: _number(column[i].item()) for name, column in columns.items()}
            | ({} if reply.shares is None else {"shares": [round(s, 5) for s in reply.shares[i].tolist()]})
            | ({} if mixture is None else {"mixture": [round(float(s), 5) for s in mixture[c]]})
            for i, (c, k) in enumerate(zip(ids, found, strict=True))
        ]

    def _write_start(self) -> None:
        from coterie.setup import versions

        settings = dataclasses.asdict(self._settings)
        config = self._config or {"method": describe(self._method), **settings}
        text = yaml.safe_dump(dict(config), sort_keys=False)
        temporary = self.path / "config.yaml.part"
        temporary.write_text(text, encoding="utf-8")
        checkpoint.replace_durably(temporary, self.path / "config.yaml")
        if (self.path / "run.json").is_file():  # resumed: it says when and with what the run began
            return
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        about = {"started": started, "seed": settings["seed"], "belongs": self._belongs, "versions": versions()}
        self._write("run.json", about)

    def _forget_after(self, done: int) -> None:
        """Drop the lines of rounds that will be done again, and a line cut short by a crash."""
        log = self.path / "rounds.jsonl"
        if not log.is_file():
            return
        kept = []
        for line in log.read_text(encoding="utf-8").splitlines():
            try:
                if int(json.loads(line)["round"]) <= done:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                continue
        temporary = log.with_name("rounds.jsonl.part")
        temporary.write_text("".join(kept), encoding="utf-8")
        checkpoint.replace_durably(temporary, log)

    def _write(self, name: str, value: object) -> None:
        temporary = self.path / f"{name}.part"
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        checkpoint.replace_durably(temporary, self.path / name)


def check_free(path: Path) -> None:
    """Nothing is there, or nothing but what a run that was killed in its first moment leaves (or Flower keeps)."""
    if path.is_dir() and all(
        file.name.endswith(".part")
        or file.name in (FLOWER, LOCK)
        or (file.name == "checkpoints" and not any(file.iterdir()))
        for file in path.iterdir()
    ):
        return
    if path.exists():
        raise CoterieError(
            f"{path}: exists already; choose another directory, or go on with it (--resume {path}, resume=True)"
        )


def _number(value: Any) -> Any:
    """NaN and Inf are not JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(event: RoundDone) -> dict[str, Any]:
    line = dataclasses.asdict(dataclasses.replace(event, fresh=None))
    del line["fresh"]
    summary = line.pop("summary") or {}
    return {name: _number(value) for name, value in (line | summary).items()}
