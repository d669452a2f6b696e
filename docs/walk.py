"""Which files of the library a call enters, in order of first entry: `python docs/walk.py run` or `... fit`.

Both run once before, so that what happens while modules are imported is left out.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
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
    from coterie.client.answers import Moment
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
        engine.visit(Visit((task,), torch.arange(8), Moment(0, 0, 0), keep=False))
    engine.close()


FIT: dict[str, str] = {}


def walk(name: str) -> dict[str, str]:
    """The files that one of the two calls enters, and the function first entered in each."""
    calls: dict[str, Callable[[], None]] = {"run": one_run, "fit": one_fit}
    if name not in calls:
        raise SystemExit(f"docs/walk.py: run or fit, not {name}")
    calls[name]()
    if name == "fit":
        FIT.clear()
        one_fit()
        found = FIT
    else:
        found = {}
        with watching(found):
            one_run()
    return {file: function for file, function in found.items() if file not in OUTSIDE}


if __name__ == "__main__":
    for number, (file, function) in enumerate(walk(sys.argv[1]).items(), start=1):
        sys.stdout.write(f"{number:3d}  {file}: {function}\n")
