"""What every contender's process needs, with numpy and torch alone: the work, the model, the talk with the harness.

The harness writes `round` to stdin; the contender trains the next cohort, aggregates, and answers with a line of JSON.
`quit` (or the end of stdin) ends it. Whatever a framework prints goes to stderr. BENCH_DEVICE says where clients are
computed; data lies wholly on an accelerator, and a round is over when the device has nothing left to do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

TORCH = "2.13.0"
DEVICE = torch.device(os.environ.get("BENCH_DEVICE", "cpu"))


def settle() -> None:
    """Wait until the device has done what it was told."""
    if DEVICE.type != "cpu":
        torch.get_device_module(DEVICE.type).synchronize()


@dataclass(frozen=True)
class Work:
    """A workload as it was written by the harness."""

    about: dict[str, Any]
    x: Tensor  # float32; on a CPU mapped from the file: pages are read when a client is first trained
    y: Tensor
    ends: list[int]
    cohorts: list[list[int]]
    initial: Tensor

    @staticmethod
    def load(place: str) -> Work:
        """From its directory."""
        root = Path(place)
        return Work(
            json.loads((root / "work.json").read_text()),
            torch.from_numpy(np.load(root / "x.npy", mmap_mode="c")).to(DEVICE),
            torch.from_numpy(np.load(root / "y.npy")).to(DEVICE),
            np.load(root / "ends.npy").tolist(),
            np.load(root / "cohorts.npy").tolist(),
            torch.from_numpy(np.load(root / "initial.npy")),
        )

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lr(self) -> float:
        return float(self.about["local"]["lr"])

    @property
    def momentum(self) -> float:
        return float(self.about["local"]["momentum"])

    @property
    def epochs(self) -> int | None:
        found: int | None = self.about["local"]["epochs"]
        return found

    @property
    def steps(self) -> int | None:
        found: int | None = self.about["local"]["steps"]
        return found

    def cohort(self, round: int) -> list[int]:
        """Who trains in this round (from 0)."""
        return self.cohorts[round % len(self.cohorts)]

    def size(self, client: int) -> int:
        """How many samples a client has."""
        return self.ends[client + 1] - self.ends[client]

    def batch(self, client: int) -> int:
        """Samples per step of this client."""
        batch = self.about["local"]["batch"]
        return self.size(client) if batch == "full" else min(int(batch), self.size(client))

    def steps_of(self, client: int) -> int:
        """Local steps of this client."""
        per_epoch = -(-self.size(client) // self.batch(client))
        return self.steps if self.steps is not None else per_epoch * (self.epochs or 1)

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's data: views, not copies."""
        rows = slice(self.ends[client], self.ends[client + 1])
        return self.x[rows], self.y[rows]

    def dataset(self, client: int) -> Dataset[tuple[Tensor, ...]]:
        """A client's data as torch has it."""
        return TensorDataset(*self.samples(client))

    def loader(self, client: int) -> DataLoader[tuple[Tensor, ...]]:
        """A client's data in shuffled batches, the last one as short as it comes."""
        return DataLoader(self.dataset(client), batch_size=self.batch(client), shuffle=True)

    def batches(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One shuffled epoch without a DataLoader: the fastest an ordinary loop can be fed."""
        x, y = self.samples(client)
        for rows in torch.randperm(len(y)).to(y.device).split(self.batch(client)):
            yield x[rows], y[rows]

    def stream(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch after epoch of them."""
        while True:
            yield from self.batches(client)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Fresh in every round."""
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum)

    def network(self) -> nn.Module:
        """The model, with the common first weights."""
        made = build(self.about["model"], tuple(self.about["shape"]), self.about["outputs"], self.about["params"])
        start = 0
        for t in tensors(made):
            t.data.copy_(self.initial[start : start + t.numel()].view(t.shape))
            start += t.numel()
        assert start == len(self.initial)
        return made.to(DEVICE)


def build(name: str, shape: tuple[int, ...], outputs: int, params: dict[str, Any]) -> nn.Module:
    """The networks of the workloads, layer by layer as the project has them."""
    if name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), outputs))
    if name == "mlp":
        (hidden,) = params["hidden"]
        first = nn.Linear(int(np.prod(shape)), hidden)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(hidden, outputs))
    channels, height, width = shape
    if name == "cnn":
        return nn.Sequential(
            *(nn.Conv2d(channels, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), outputs)),
        )
    if name == "lenet":
        h, w = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        return nn.Sequential(
            *(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(16 * h * w, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)),
        )
    raise ValueError(f"no network is called {name}")


def tensors(network: nn.Module) -> list[Tensor]:
    """What a model is made of: parameters, then floating-point buffers."""
    return [*network.parameters(), *(b for b in network.buffers() if b.is_floating_point())]


def travelled(network: nn.Module, work: Work) -> float:
    """How far the parameters are from where they started: contenders that train alike come about equally far."""
    now = torch.cat([p.detach().reshape(-1) for p in network.parameters()]).cpu()
    return float((now - work.initial[: len(now)]).double().norm())


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Its batches, epoch after epoch."""
    while True:
        yield from loader


def train(network: nn.Module, batches: Iterable[Any], steps: int, optimizer: torch.optim.Optimizer) -> float:
    """The ordinary PyTorch loop; returns the mean loss of the steps."""
    network.train()
    total = torch.zeros((), device=DEVICE)
    for x, y in islice(batches, steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return float(total) / steps


def declare_vision_ops() -> torch.library.Library:
    """Make torchvision importable beside the CPU build of torch; keep what this returns.

    Some package indexes have torchvision for the CUDA build only. Its compiled operators do not load then, and
    importing it stops at the first one it wants to describe. No contender uses them.
    """
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


class Harness:
    """The contender's end of the conversation."""

    def __init__(self) -> None:
        # The harness's pipe is kept aside, so that nothing a framework prints can get into it.
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        torch.set_num_threads(1)

    def _say(self, **what: object) -> None:
        self._out.write(json.dumps(what) + "\n")

    def ready(self, **more: object) -> None:
        """After everything is loaded, before the first round."""
        version = torch.__version__.partition("+")[0]
        if version != TORCH or (DEVICE.type == "cpu" and torch.version.cuda is not None):
            build = "the CPU build of " if DEVICE.type == "cpu" else ""
            self.skip(f"torch {torch.__version__} (CUDA {torch.version.cuda}), not {build}{TORCH}")
        self._say(ready=True, torch=torch.__version__, device=str(DEVICE), threads=torch.get_num_threads(), **more)

    def skip(self, reason: str) -> None:
        """This contender cannot run here; say why, and end."""
        self._say(skipped=reason)
        sys.exit(0)

    def wait(self) -> bool:
        """Until another round is wanted (True), or no more (False)."""
        return sys.stdin.readline().strip() == "round"

    def done(self, seconds: float, loss: float | None, checksum: float) -> None:
        """A round is over."""
        self._say(seconds=seconds, loss=loss, checksum=checksum)

    def serve(self, step: Callable[[int], tuple[float | None, float]], **more: object) -> None:
        """For a contender that is a function of the round number giving (loss, checksum)."""
        self.ready(**more)
        t = 0
        while self.wait():
            began = time.perf_counter()
            loss, checksum = step(t)
            settle()
            self.done(time.perf_counter() - began, loss, checksum)
            t += 1
