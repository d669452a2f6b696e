"""A run's directory: what was asked (config.yaml), by whom (run.json), what happened (rounds.jsonl), how to resume.

config.yaml        the resolved configuration            rounds.jsonl    one line per round, flushed
run.json           versions, seed, start                 checkpoints/    round-000005.safetensors ...
assignments.json   the cluster of each client            clients.json    the last evaluation, client by client
trace.jsonl, sketch.safetensors   the clusters in every evaluated round, and sketches of models (see trace.py)
newcomers.json     the same of clients kept from training, where there are any
attack.json ...    what a layer of the run writes, by its key (see `layers`)
serving.json       the form of the data, so that models can be used without it (see serving_file.py)
learning_rate.json what `local.lr: auto` tried and found, if it was asked (see learning_rate.py)
status.json        running, done, stopped or failed, and why (see status.py)
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from warnings import warn

import torch
import yaml
from filelock import FileLock, Timeout

from coterie.client.contract import Memory
from coterie.core.errors import CoterieError, ResumeError
from coterie.core.files import LineLog, check_run_files, make_directory, sync_directory, write_durably, writing
from coterie.core.model import Model
from coterie.core.tables import Clients, clients_at
from coterie.data.federation import Federation
from coterie.layers import fixed, free, own_of, reasons
from coterie.layers.contract import Stack
from coterie.methods.contract import Method
from coterie.training import checkpoint, drift_scores, lineage, round_history, status
from coterie.training import warnings as run_warnings
from coterie.training.beginning import began_otherwise
from coterie.training.client_rows import assignment, client_rows
from coterie.training.evaluation import Evaluation, packable
from coterie.training.events import Event, RoundDone, RunEnded
from coterie.training.lineage import without_forgotten
from coterie.training.serving_file import FILE as SERVING
from coterie.training.serving_file import contents
from coterie.training.sketches import Trace
from coterie.training.status import LOCK

MAY_CHANGE = (  # of the settings, when a run is resumed; layers say which of theirs may
    "rounds",
    "checkpoint_every",
    "keep_checkpoints",
    "validation",  # which the identity of the data has in it
    "stop_after",
)
FLOWER = "flower"  # in the directory of a run over a network: what Flower itself keeps
AUDIT_LOG = "audit.jsonl"  # and there: who was let in, and who and what was refused
PATIENCE = 0.5  # seconds to wait for the lock: a check whether the run is alive holds it for a moment


def describe(method: object) -> str:
    """A method with its hyper-parameters, in one line."""
    if not dataclasses.is_dataclass(method) or isinstance(method, type):
        return type(method).__qualname__
    later: Mapping[str, Any] = getattr(method, "later", {})
    values = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    shown = (f"{name}={value!r}" for name, value in values.items() if name not in later or later[name] != value)
    return f"{type(method).__qualname__}({', '.join(shown)})"


def plain(settings: Any) -> dict[str, Any]:
    """Settings as a document has them; those of a layer may say themselves how."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    own = {name: value.plain() for name, value in values.items() if hasattr(value, "plain")}
    return dataclasses.asdict(settings) | own


def belongs(method: object, model: Model, clients: Clients, settings: Any) -> dict[str, str]:
    """Identifies the run that a checkpoint belongs to."""
    may_change = {*MAY_CHANGE, *free()} - fixed(settings)
    return {  # the settings first: another seed is also other data, and the seed is what was changed
        **{k: repr(v) for k, v in plain(settings).items() if k not in may_change},
        "method": describe(method),
        "model": model.description,
        "data": clients.identity(),
    }


def read_history(path: Path, rounds: int) -> tuple[RoundDone, ...]:
    """The first rounds of a run, from rounds.jsonl; lines that cannot be read are left out."""
    return tuple(event for number, (_, event) in round_history.read(path).items() if number <= rounds)


class RunDirectory:
    """Records a run as it happens. Nothing is written before `begin`."""

    def __init__(
        self,
        path: Path,
        method: Method[Any],
        model: Model,
        clients: Clients,
        settings: Any,
        resume: bool = False,
        config: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = warn,
        also: Mapping[str, str] | None = None,
        stack: Stack | None = None,
    ) -> None:
        """say: called with a message about damaged files. also: other files, with their text. stack: the run's engine
        with its layers, whose state is saved and restored."""
        self.path, self._resume, self._method = path, resume, method
        self._settings, self._config, self._say, self._also = settings, config, say, also or {}
        self._belongs = belongs(method, model, clients, settings)
        if own := own_of(() if stack is None else stack.layers):
            self._belongs["layers"] = ", ".join(map(describe, own))
        self._clients, self._model = clients, model
        self._recorded: set[str] = set()  # the evaluations that the last checkpoint has in it
        self.precision = "float32"  # that clients compute in
        self._stack = stack
        self.joined = torch.empty(0, dtype=torch.int64)  # clients that were added since the last checkpoint
        self._trace = Trace(path, len(clients), settings.seed, model.part("last_weight"), model.size)
        self._log: LineLog | None = None
        self._lock = FileLock(path / LOCK, timeout=PATIENCE)
        check_directory(path, resume)

    def begin(self, fresh: Any, memory: Memory, arithmetic: str = "sequential", device: str = "cpu") -> tuple[Any, int]:
        """Open the directory; returns the state to start from and the rounds already done.

        arithmetic: how the engine rounds (see `engines.contract.arithmetic`); another one gives other bits, and so does
        another kind of device.
        """
        try:
            make_directory(self.path, mode=0o775)  # never for everybody to write
            self._lock.acquire()
        except Timeout:
            raise CoterieError(f"{self.path}: another process is working on this run", code="run-locked") from None
        except OSError as error:
            raise CoterieError(f"{self.path}: cannot be written ({error.strerror})", code="disk-write") from None
        state, done = self._go_on(fresh, memory) if self._resume else (fresh, 0)
        for line in began_otherwise(self.path, arithmetic, device) if done else ():
            self._say(line)
        try:
            self._write_start(arithmetic, device)
            (self.path / "checkpoints").mkdir(exist_ok=True)
            self._forget_after(done)
            self._log = LineLog(self.path / round_history.FILE)
            self._trace.begin(done)
            sync_directory(self.path)  # the log is new
            status.write(self.path, "running")
        except OSError as error:
            instead = self._instead
            if not self._resume:
                self._leave_nothing()
                instead = "make room, or choose another directory"
            raise CoterieError(
                f"{self.path}: cannot be written ({error.strerror}); {instead}", code="disk-write"
            ) from None
        return state, done

    def _leave_nothing(self) -> None:
        """A run that could not begin leaves its directory as it found it: free for the next one."""
        if self._log is not None:
            self._log.close()
            self._log = None
        self._trace.close()
        for name in ("config.yaml", *self._also, SERVING, "run.json", round_history.FILE, "trace.jsonl", status.FILE):
            with contextlib.suppress(OSError):
                (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.path / "checkpoints").rmdir()

    def _go_on(self, fresh: Any, memory: Memory) -> tuple[Any, int]:
        if not (found := self.saves()):
            return fresh, 0
        try:
            history = lineage.read(self.path)
            earlier = lineage.is_earlier(history, self._clients)
            last, damaged = checkpoint.load_newest(
                *(found, fresh, self._method, self._belongs, earlier, self._model, reasons())
            )
        except CoterieError as error:
            raise ResumeError(str(error), code=error.code) from error
        if self._stack is not None:
            self._stack.unpack(last.also.get("layers", {}), damaged)
        for file in damaged:
            self._say(f"{file}: damaged; the run continues after round {last.round}, from the checkpoint before it")
            with writing(file):
                file.replace(file.with_name(f"{file.name}.damaged"))
        if last.round > self._settings.rounds:
            raise ResumeError(f"rounds: {self.path} has {last.round} done already, more than {self._settings.rounds}")
        known = history.clients_in(last.data)
        self.joined = torch.arange(len(self._clients) if known is None else known, len(self._clients))
        last = without_forgotten(last, history.forgotten)
        memory.restore(last.memory)  # which a full disk may prevent: that says nothing against the checkpoint
        self._recorded = set() if len(self.joined) else set(last.also)
        return last.state, last.round

    def saves(self) -> list[Path]:
        """Its checkpoints, the oldest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def history(self, done: int) -> tuple[RoundDone, ...]:
        """What is known of the rounds that are done."""
        return read_history(self.path, done)

    def close(self) -> None:
        """Let go of the log, however the run ended."""
        if self._log is not None:
            self._log.close()
        self._trace.close()
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # Windows keeps what is locked
                (self.path / LOCK).unlink()
            self._lock.release()

    def leave(self, error: BaseException) -> None:
        """Write down why the run ends before its time. A run that never began here is left as it was found."""
        if self._log is not None:
            status.write_end(self.path, error)

    def save(self, state: object, memory: Memory, round: int, evaluated: Evaluation | None) -> None:
        """A checkpoint after this round, with its evaluation if there was one; older ones go."""
        assert self._log is not None
        with writing(self.path, self._instead):
            self._log.sync()  # before the checkpoint: who resumes finds the lines of all its rounds
            self._trace.save()
        self._save(state, memory, round, evaluated, None)
        kept = self._settings.keep_checkpoints  # at least two: a disk may damage the last
        with contextlib.suppress(OSError):  # one too many does no harm
            for old in [] if kept == "all" else self.saves()[:-kept]:
                old.unlink()

    def complete(
        self, state: object, memory: Memory, round: int, evaluated: Evaluation, newcomers: Evaluation | None
    ) -> None:
        """The last checkpoint once more, where an evaluation came after it."""
        if "evaluation" not in self._recorded or (newcomers is not None and "newcomers" not in self._recorded):
            self._save(state, memory, round, evaluated, newcomers)

    def _save(
        self, state: object, memory: Memory, round: int, evaluated: Evaluation | None, newcomers: Evaluation | None
    ) -> None:
        found = {"evaluation": evaluated, "newcomers": newcomers}
        run = (self._method, self._model, self._clients if isinstance(self._clients, Federation) else None, memory)
        also: dict[str, Any] = {name: packable(one, *run) for name, one in found.items() if one is not None}
        self._write_documents()
        if self._stack is not None:
            also["layers"] = self._stack.pack()
        file = self.path / "checkpoints" / f"round-{round:06d}.safetensors"
        checkpoint.save(file, state, memory, round, self._belongs, also)
        self._recorded = set(also)

    def listen(self, event: Event) -> None:
        """Write what happened."""
        with writing(self.path, self._instead):
            self._listen(event)

    def _listen(self, event: Event) -> None:
        if isinstance(event, RoundDone):
            assert self._log is not None
            self._log.add(round_history.line_of(event))
            if event.fresh is not None:
                self._trace.watch(len(self._clients))
                self._trace.add(event.round, event.fresh)
        elif isinstance(event, RunEnded):
            rows = client_rows(clients_at(self._clients, self._settings.rounds - 1), event.clients, event.scored_on)
            self._write("assignments.json", {str(row["client"]): assignment(row) for row in rows})
            self._write("clients.json", rows)
            if event.newcomers is not None:
                self._write("newcomers.json", client_rows(self._clients, event.newcomers))
            self._write_documents()
            run_warnings.write(self.path, event.warnings)
            status.write(self.path, "done")

    def _write_start(self, arithmetic: str, device: str) -> None:
        from coterie.core.version import versions

        settings = plain(self._settings)
        config = self._config or {"method": describe(self._method), **settings}
        write_durably(self.path / "config.yaml", yaml.safe_dump(dict(config), sort_keys=False))
        for name, more in self._also.items():
            write_durably(self.path / name, more)
        if isinstance(self._clients, Federation):  # over a network members.json says what is known of the data
            own = self._config is None
            self._write(SERVING, contents(self._clients, *((self._method, self._model) if own else (None, None))))
        if (self.path / "run.json").is_file():  # resumed: it says when and with what the run began
            return
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        about = {"started": started, "seed": settings["seed"], "belongs": self._belongs, "versions": versions()}
        about |= {"arithmetic": arithmetic, "device": device, "precision": self.precision}
        about |= {"changes": changes} if (changes := drift_scores.changes_in(self._clients)) else {}
        self._write("run.json", about)

    def _forget_after(self, done: int) -> None:
        """Drop the lines of rounds that will be done again, and those that a crash cut short or something damaged."""
        found = round_history.read(self.path)
        lost = round_history.missing_rounds(found, done)
        if lost is not None:
            self._say(
                f"{self.path / round_history.FILE}: rounds {lost} are missing or damaged; the run continues from its "
                "checkpoint, its curves will have gaps"
            )
        if (self.path / round_history.FILE).is_file():
            kept = "".join(f"{text}\n" for number, (text, _) in found.items() if number <= done)
            write_durably(self.path / round_history.FILE, kept)

    def _write_documents(self) -> None:
        """The files of layers."""
        for name, found in ({} if self._stack is None else self._stack.documents(self._clients)).items():
            with writing(self.path / name):
                self._write(name, found)

    def _write(self, name: str, value: object) -> None:
        write_durably(self.path / name, json.dumps(value, indent=1) + "\n")

    @property
    def _instead(self) -> str:
        return f"free some space and continue with --resume {self.path} (resume=True)"


def check_directory(path: Path, resume: bool) -> None:
    """Refuse a directory that has no run to resume, or that is in use when a run is to start there."""
    if not resume:
        check_free(path)
        return
    check_run_files(path)
    if not (path / "config.yaml").is_file():
        raise CoterieError(f"{path}: no run to resume there (it has no config.yaml)", code="run-not-found")


def free_directory(name: str) -> Path:
    """runs/NAME-1, or the next that does not exist."""
    name, number = name.replace(":", "-"), 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


def check_free(path: Path) -> None:
    """Nothing is there, or nothing but what a run that was killed in its first moment leaves (or Flower keeps)."""
    if path.is_dir() and all(
        file.name.endswith(".part")
        or file.name in (FLOWER, AUDIT_LOG, LOCK)
        or (file.name == "checkpoints" and not any(file.iterdir()))
        for file in path.iterdir()
    ):
        return
    if path.exists():
        else_ = f"exists already; choose another directory, or resume it (--resume {path}, resume=True)"
        what = else_ if path.is_dir() else "is a file; name a directory for the run, which need not exist"
        raise CoterieError(f"{path}: {what}", code="run-exists")
