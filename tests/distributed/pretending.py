"""Real processes with the pretend accelerator of tests/sham.py in the place of a GPU.

A Ray worker that unpickles `network` takes it for `cuda`; `pretending.py client ...` is `coterie client ...` with it,
and says at the end of every visit how many copies went to the device.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))

import sham
from coterie.core import compute


def network() -> nn.Module:
    """The model."""
    return nn.Linear(4, 2)


def take_for_cuda() -> None:
    """From now on this process has a GPU called `cuda`."""
    sham.register()
    find = compute.find_device
    compute.find_device = lambda name: find(sham.NAME if name == "cuda" else name)


def client() -> None:
    """The command."""
    from coterie.network.worker import ClientWorker
    from coterie.tools.cli.main import main

    sham.register()
    answer = ClientWorker.answer

    def counted(self: ClientWorker, *args: object) -> object:
        found = answer(self, *args)  # type: ignore[arg-type]
        print(f"copied up {sham.COUNTS.up}, refused {sham.COUNTS.refused}", flush=True)
        return found

    ClientWorker.answer = counted  # type: ignore[assignment,method-assign]
    main()


if __name__ == "__main__":
    client()
elif "pytest" not in sys.modules:  # in a Ray worker, not in the test that starts it
    take_for_cuda()
