"""Which files of the library a call enters, in order of first entry: `python docs/walk.py run`, `fit` or `flower`.

The first two run once before, so that what happens while modules are imported is left out. `flower` follows the second
of three rounds over Flower, on the server and on one of two clients. It needs `coterie[flower]` and some minutes.
"""

from __future__ import annotations

import contextlib
import io
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

import coterie

ROOT = Path(coterie.__file__).parent
OUTSIDE = ("core/constructors.py", "core/errors.py", "core/validation.py")  # checks of arguments


@contextlib.contextmanager
def watching(entered: dict[str, str]) -> Iterator[None]:
    """Note for each file of the library the first function that is entered in it."""

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                entered.setdefault(path.relative_to(ROOT).as_posix(), frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)


def one_run() -> None:
    """`coterie run method.name=wecfl rounds=1`."""
    from coterie.tools.cli.main import app

    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        app(["run", "method.name=wecfl", "rounds=1", "--out", f"{out}/run", "--json"], standalone_mode=False)


def one_fit() -> None:
    """One `Fit` on the batched engine."""
    from coterie.client.contract import Moment
    from coterie.core.seeds import Purpose, generator
    from coterie.engines.batched import Batched
    from coterie.engines.contract import Visit
    from coterie.training.build import build
    from coterie.training.config import read

    made = build(read(None, ["method.name=fedavg"]))
    engine = Batched(made.model, made.federation)
    theta = made.model.init(generator(0, Purpose.INIT))
    task = coterie.Fit(coterie.All(theta), coterie.Local(epochs=1, batch=8, lr=0.1))
    with watching(FIT):
        engine.visit(Visit((task,), torch.arange(8), Moment(0, 0, 0), kind="probe"))
    engine.close()


FIT: dict[str, str] = {}
BEGIN = {"training/round.py: do_round", "network/flower/supernode.py: serve"}  # a round; a message at a client


def watch_command(log: Path, words: list[str]) -> None:
    """A command of ours. Each file that it enters is written to the log, again in each round or message."""
    from coterie.tools.cli.main import app

    seen: set[str] = set()
    out = log.open("w", buffering=1)

    def watch(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(str(ROOT)) or frame.f_code.co_name.startswith("<"):
            return
        file = path[len(str(ROOT)) + 1 :]
        entry = f"{file}: {frame.f_code.co_name}"
        if entry in BEGIN:
            seen.clear()
        if file not in seen:
            seen.add(file)
            out.write(f"{time.time()} {entry}\n")

    threading.setprofile(watch)  # a client answers each message in a thread
    sys.setprofile(watch)
    app(words)


def three_flower_rounds(folder: Path) -> None:
    """A server and two clients on this machine, for three rounds of WeCFL."""
    import numpy as np
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    names = ("anna", "bert")
    for i, name in enumerate(names):
        np.savez(folder / f"{name}.npz", x=x[i::20].astype(np.float32) / 16, y=y[i::20])
    certs = ["certs", "certs", *(word for name in names for word in ("--client", name))]
    command = [sys.executable, "-m", "coterie.tools.cli.main", *certs]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    train = ["method.name=wecfl", "method.k=2", "rounds=3", "model=linear", "local.epochs=1", "local.batch=8"]
    server = ["server", *train, "local.lr=0.1", "network.outputs=10", "network.clients=2"]
    commands = [[*server, "--certs", "certs", "--port", str(port), "--out", "run"]]
    for name in names:
        where = ["--server", f"127.0.0.1:{port}", "--data", f"{name}.npz", "--state", f"state-{name}"]
        commands.append(["client", *where, "--key", f"certs/clients/{name}"])
    started = []
    for log, words in zip(("server", *names), commands, strict=True):
        command = [sys.executable, str(Path(__file__).resolve()), "watch", str(folder / log), *words]
        quiet = subprocess.DEVNULL
        started.append(subprocess.Popen(command, cwd=folder, stdout=quiet, stderr=quiet))
    try:
        started[0].wait(timeout=500)
    finally:
        for process in started:
            process.terminate()
            process.wait()


def one_flower_round() -> dict[str, str]:
    """The files that the second round enters, on the server and on one client, in order of time."""
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out)
        three_flower_rounds(folder)
        lines = [(log, *line.split(" ", 1)) for log in ("server", "anna") for line in (folder / log).open()]
    rounds = [float(when) for log, when, entry in lines if log == "server" and entry.strip() in BEGIN]
    found: dict[str, str] = {}
    for when, log, entry in sorted((float(when), log, entry.strip()) for log, when, entry in lines):
        if rounds[1] <= when < rounds[2]:
            file, function = entry.split(": ")
            found.setdefault(f"{'server' if log == 'server' else 'client'}  {file}", function)
    return found


def walk(name: str) -> dict[str, str]:
    """The files that one of the calls enters, and the function first entered in each."""
    if name == "flower":
        found = one_flower_round()
    elif name not in ("run", "fit"):
        raise SystemExit(f"docs/walk.py: run, fit or flower, not {name}")
    elif name == "fit":
        one_fit()
        FIT.clear()
        one_fit()
        found = FIT
    else:
        found = {}
        one_run()
        with watching(found):
            one_run()
    return {file: function for file, function in found.items() if not file.endswith(OUTSIDE)}


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch_command(Path(sys.argv[2]), sys.argv[3:])
    else:
        for number, (file, function) in enumerate(walk(sys.argv[1]).items(), start=1):
            sys.stdout.write(f"{number:3d}  {file}: {function}\n")
