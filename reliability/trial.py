"""What the commands of this folder share: a very small run, a process for it that costs no imports, and its judgement.

A run is judged against one that was left alone: the same bits in its last checkpoint, the same lines, the same
assignments. Anything else is wrong. A round is lost if its checkpoint was in place before the fault and a resumed run
did not go on from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from coterie.core.errors import CoterieError, of_the_machine
from coterie.training.config import read
from coterie.training.events import Event, RunStarted
from coterie.training.execute import execute

RESULTS = Path(__file__).parent / "results"
ENGINES = ("sequential", "workers", "batched")
WORDS = (
    *("data.partition.clients=6", "method.name=wecfl", "method.k=2", "local.epochs=1", "local.momentum=0.9"),
    *("local.keep_optimizer=true", "local.lr=0.02", "participation=0.5", "checkpoint_every=2"),
)
DRIFTING = (  # clients move in rounds 3, 4 and 5, are found by their losses and by further looks, and change cluster
    *("data.partition.clients=8", "data.partition.angles=[0,180]", "data.drift.kind=staggered", "data.drift.at=3"),
    *("data.drift.every=1", "data.drift.changes=3", "method.name=halves", "method.look=10", "local.epochs=3"),
    *("local.batch=8", "local.lr=0.1", "local.momentum=0.5", "local.keep_optimizer=true", "checkpoint_every=2"),
)
CLEAR = 2  # the exit code of an error that is said in words, as on the command line
CRASH = 1  # that of a traceback


@dataclass(frozen=True)
class Row:
    """A line of docs/reliability.md."""

    fault: str
    command: str
    tried: int
    survived: int  # ended in the same bits, or with one clear error
    lost: int
    wrong: int
    remark: str = ""

    def write(self, name: str) -> None:
        """Keep it, and print it."""
        RESULTS.mkdir(exist_ok=True)
        about = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
        text = json.dumps(asdict(self) | about, indent=1)
        (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(text, flush=True)


def command_line() -> str:
    """What was typed, from the root of the repository."""
    return " ".join(["python", f"reliability/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def go(
    path: Path,
    engine: str = "sequential",
    listen: Callable[[Event], None] = lambda _: None,
    rounds: int = 6,
    settings: Sequence[str] = WORDS,
) -> None:
    """Begin the run in this directory, or go on with it."""
    words = [
        *settings,
        f"rounds={rounds}",
        f"engine.name={engine}",
        *([] if engine == "sequential" else ["engine.workers=2"]),
    ]
    resume = (path / "config.yaml").is_file()
    execute(read(None, words), path, resume=resume, listeners=[listen], say=lambda _: None)


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said."""

    code: int  # as `os.waitstatus_to_exitcode`: negative for a signal
    said: str


@dataclass
class Child:
    """A process of its own, forked from this one."""

    pid: int
    report: Path
    ended: int | None = None

    def wait(self) -> Ended:
        """Until it has ended."""
        if self.ended is None:
            self.ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        said = self.report.read_text(errors="replace") if self.report.exists() else ""
        self.report.unlink(missing_ok=True)
        return Ended(self.ended, said)

    def signal(self, number: int) -> None:
        """To it and to what it has started; to it alone in its first moment, when it has no group of its own yet."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            os.kill(self.pid, number)

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.ended = os.waitstatus_to_exitcode(status) if pid else None
        return self.ended is not None


def fork(work: Callable[[], None], report: Path) -> Child:
    """Do this in a process of its own, which is the leader of a group and says how it ended as the command does."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, report)
    code = CRASH
    try:
        os.setsid()
        with report.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        code = _done(work)
    finally:
        os._exit(code)


def _done(work: Callable[[], None]) -> int:
    try:
        work()
    except CoterieError as error:
        os.write(2, f"error: {error}\n".encode(errors="replace"))
        return CLEAR
    except Exception as error:
        refused = of_the_machine(error)  # as the command does
        os.write(2, (f"error: {refused}\n" if refused else traceback.format_exc()).encode(errors="replace"))
        return CLEAR if refused else CRASH
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
        return CRASH
    return 0


def resumed_from(path: Path, engine: str, report: Path) -> tuple[Ended, int]:
    """Go on with a run until its end; returns how that went, and after which round it went on."""
    note = report.with_suffix(".done")

    def listen(event: Event) -> None:
        if isinstance(event, RunStarted):
            note.write_text(str(event.done))

    ended = fork(lambda: go(path, engine, listen), report).wait()
    done = int(note.read_text()) if note.exists() else -1
    note.unlink(missing_ok=True)
    return ended, done


def saved_round(path: Path) -> int:
    """The round of the newest checkpoint that is in place; 0 where there is none."""
    names = [file.name for file in (path / "checkpoints").glob("round-*.safetensors")]
    return max((int(name[6:12]) for name in names), default=0)


def differences(one: Path, other: Path) -> list[str]:
    """What two finished runs do not share, apart from times."""
    a, b = _newest(one), _newest(other)
    if a is None or b is None or a.name != b.name:
        return [f"the last checkpoint is {a and a.name}, not {b and b.name}"]
    mine, theirs = safetensors.torch.load_file(a), safetensors.torch.load_file(b)
    found = sorted(set(mine) ^ set(theirs))
    found += [k for k in set(mine) & set(theirs) if mine[k].numpy().tobytes() != theirs[k].numpy().tobytes()]
    found += [] if _lines(one) == _lines(other) else ["rounds.jsonl"]
    for name in ("assignments.json", "clients.json"):
        same = (one / name).is_file() and (one / name).read_bytes() == (other / name).read_bytes()
        found += [] if same else [name]
    return found


def _newest(path: Path) -> Path | None:
    return max((path / "checkpoints").glob("round-*.safetensors"), default=None)


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = (path / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "client_seconds")} for line in lines]


@contextlib.contextmanager
def workshop() -> Iterator[Path]:
    """A directory for runs, on a real disk: one in memory would not take fsync seriously."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="coterie-faults-") as place:
        go(Path(place) / "first", rounds=1)  # imports everything, so that forked processes need not
        yield Path(place)


def left_alone(place: Path, engine: str, settings: Sequence[str] = WORDS) -> Path:
    """A run that nothing happened to."""
    path = place / f"whole-{engine}"
    ended = fork(lambda: go(path, engine, settings=settings), place / "report").wait()
    if ended.code:
        raise SystemExit(f"the run that was left alone ended with {ended.code}: {ended.said}")
    return path


def clear(path: Path) -> None:
    """Remove a run."""
    shutil.rmtree(path, ignore_errors=True)


def finish(rows: Sequence[Row]) -> None:
    """End the command: 1 if something was lost or wrong."""
    sys.exit(1 if any(row.lost or row.wrong for row in rows) else 0)
