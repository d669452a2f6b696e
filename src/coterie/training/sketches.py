"""What is recorded of every evaluated round for figures: the cluster and the scores of each client, and a small sketch
of clients' models that approximately keeps their angles.

trace.jsonl          a line with the watched clients, then one per evaluated round: cluster, accuracy, macro_f1 / loss
sketch.safetensors   ids, sketch (n, 256) of each client's model as last trained in one, its round, centers (K, 256)

At most 2,000 clients are watched, drawn from the run's seed; sizes and means over all are in rounds.jsonl. Clients
that join during the run are watched too, up to this limit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy as safetensors
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from coterie.core.decoder import DecodeError, decode, parse_json
from coterie.core.files import LineLog, plain_bytes, write_durably
from coterie.core.seeds import Purpose, generator
from coterie.core.tasks import Evaluated
from coterie.training.events import Snapshot

SKETCH, BEFORE = "sketch.safetensors", "checkpoints/sketch-before.safetensors"  # of the last two checkpoints
WATCHED = 2000
WIDTH = 256
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TraceLine:
    """An evaluated round: each watched client's cluster (-1: not evaluated) and scores (None: not evaluated)."""

    round: int
    cluster: tuple[int, ...]
    accuracy: tuple[float | None, ...] | None = None  # of a classification
    macro_f1: tuple[float | None, ...] | None = None
    loss: tuple[float | None, ...] | None = None  # of a regression

    def text(self) -> str:
        """The line of trace.jsonl, without the scores that do not apply."""
        columns = {name: values for name, values in asdict(self).items() if values is not None}
        return json.dumps(columns, separators=(",", ":"))

    def widened(self, clients: int) -> TraceLine:
        """The same round for more watched clients, who joined later."""
        more = clients - len(self.cluster)

        def longer(scores: tuple[float | None, ...] | None) -> tuple[float | None, ...] | None:
            return None if scores is None else (*scores, *[None] * more)

        cluster = (*self.cluster, *[-1] * more)
        return TraceLine(self.round, cluster, longer(self.accuracy), longer(self.macro_f1), longer(self.loss))


@dataclass(frozen=True)
class _Watched:
    """The first line of trace.jsonl."""

    ids: tuple[int, ...]


def watched(clients: int, seed: int) -> NDArray[np.int64]:
    """The clients that figures show."""
    if clients <= WATCHED:
        return np.arange(clients)
    drawn: NDArray[np.int64] = np.sort(generator(seed, Purpose.EVALUATION, 2).choice(clients, WATCHED, replace=False))
    return drawn


class Sketcher:
    """Vectors (n, P) -> (n, 256) such that inner products are approximately kept: each entry is added to one of
    256 sums with a random sign. The same for every run, so that models of several runs can share a map."""

    def __init__(self, part: Tensor, size: int | None = None) -> None:
        """size: the length of a whole model. Of vectors of another length (a section stays with clients) all is used:
        the part's positions are not theirs."""
        self.part, self.size = part, size  # the weights of the last layer separate clients well enough
        rng = np.random.default_rng(0)
        self.place = torch.from_numpy(rng.integers(WIDTH, size=len(part)))
        self.sign = torch.from_numpy(rng.choice([-1.0, 1.0], size=len(part)).astype(np.float32))

    def __call__(self, models: Tensor) -> Floats:
        """Models (n, P) of a run."""
        if self.size not in (None, models.shape[1]):
            return Sketcher(torch.arange(models.shape[1]))(models)
        out = torch.zeros(len(models), WIDTH)
        for row, model in zip(out, models, strict=True):
            row.index_add_(0, self.place, model[self.part].float() * self.sign)
        return np.asarray(out.numpy())


class Trace:
    """Writes both files as rounds go by."""

    def __init__(self, path: Path, clients: int, seed: int, part: Tensor, size: int | None = None) -> None:
        self.path, self.ids = path, watched(clients, seed)
        self._sketch = Sketcher(part, size)
        self._sketches = np.zeros((0, WIDTH), dtype=np.float32)  # of each of `ids`, once it has begun
        self._round = np.zeros(0, dtype=np.int64)  # 0: not trained yet
        self._centers = np.zeros((0, WIDTH), dtype=np.float32)
        self._log: LineLog | None = None

    def begin(self, done: int) -> None:
        """Open the files; rounds after `done` are forgotten."""
        before, lines = read_trace(self.path)
        if done and len(before):  # even if so many clients joined since that others would be drawn now
            self.ids = before
        self._open([line for line in lines if line.round <= done])
        for name in (SKETCH, BEFORE):  # the last one may be of a round whose checkpoint is not there
            old = read_sketch(self.path, name)
            if not done or old is None or old["round"].max(initial=0) > done:
                continue
            if np.array_equal(old["ids"], self.ids[: len(old["ids"])]):
                self._sketches, self._round, self._centers = old["sketch"], old["round"], old["centers"]
                break
        self._lengthen()

    def watch(self, clients: int) -> None:
        """clients: how many there are now. Those that joined since are watched too, up to the limit."""
        first = int(self.ids[-1]) + 1 if len(self.ids) else 0
        new = np.arange(first, min(clients, first + WATCHED - len(self.ids)))
        if not len(new):
            return
        self.ids = np.concatenate([self.ids, new])
        self._lengthen()
        self.close()
        self._open(read_trace(self.path)[1])

    def _lengthen(self) -> None:
        """Add empty rows for the models of new clients."""
        more = len(self.ids) - len(self._round)
        self._sketches = np.concatenate([self._sketches, np.zeros((more, WIDTH), dtype=np.float32)])
        self._round = np.concatenate([self._round, np.zeros(more, dtype=np.int64)])

    def _open(self, lines: Sequence[TraceLine]) -> None:
        """Write the file with these lines, widened to all watched clients, and open it to append more."""
        kept = [json.dumps({"ids": self.ids.tolist()})]
        kept += [line.widened(len(self.ids)).text() for line in lines]
        write_durably(self.path / "trace.jsonl", "".join(line + "\n" for line in kept))
        self._log = LineLog(self.path / "trace.jsonl")

    def add(self, round_: int, fresh: Snapshot) -> None:
        """An evaluated round."""
        assert self._log is not None
        self._log.add(self._line(round_, fresh.clients).text())
        if fresh.trained is not None and fresh.trained.theta is not None:
            ids = fresh.trained.ids.numpy()
            here = np.isin(ids, self.ids)
            rows = np.searchsorted(self.ids, ids[here])
            for row, which in zip(rows, np.flatnonzero(here), strict=True):  # one by one: no copy of all the models
                self._sketches[row] = self._sketch(fresh.trained.theta[which : which + 1])[0]
            self._round[rows] = round_
        if fresh.centers is not None:
            self._centers = self._sketch(fresh.centers)

    def save(self) -> None:
        """Write the sketch, whole or not at all."""
        what: dict[str, NDArray[Any]] = {
            "ids": self.ids,
            "sketch": self._sketches,
            "round": self._round,
            "centers": self._centers,
        }
        if self._log is not None:
            self._log.sync()
        if (self.path / SKETCH).is_file():
            write_durably(self.path / BEFORE, (self.path / SKETCH).read_bytes())
        write_durably(self.path / SKETCH, safetensors.save(what))

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()

    def _line(self, round_: int, reply: Evaluated) -> TraceLine:
        ids = reply.ids.numpy()
        rows = np.searchsorted(ids, self.ids)
        rows[rows == len(ids)] = 0
        there = ids[rows] == self.ids
        found = np.zeros(len(ids), dtype=np.int64) if reply.choice is None else reply.choice.numpy()
        cluster = tuple(np.where(there, found[rows], -1).tolist())
        scored = there & (reply.n.numpy()[rows] > 0)

        def column(values: Tensor) -> tuple[float | None, ...]:
            numbers = np.where(scored, values.double().numpy()[rows], np.nan)
            return tuple(None if np.isnan(v) else float(f"{v:.4g}") for v in numbers)

        if bool(reply.accuracy.isnan().all()):  # a regression
            return TraceLine(round_, cluster, loss=column(reply.loss))
        return TraceLine(round_, cluster, column(reply.accuracy), column(reply.macro_f1))


def read_trace(path: Path) -> tuple[NDArray[np.int64], list[TraceLine]]:
    """The watched clients and a line per evaluated round. Lines that cannot be read, as after a crash, are left out."""
    file = path / "trace.jsonl"
    ids: tuple[int, ...] = ()
    lines = []
    for text in plain_bytes(file).split(b"\n") if file.is_file() else ():
        try:
            value = parse_json(text)
            if not ids and isinstance(value, dict) and "ids" in value:
                ids = decode(value, _Watched).ids
            else:
                lines.append(decode(value, TraceLine, ignore_unknown=True))
        except DecodeError:
            continue
    return np.asarray(ids, dtype=np.int64), lines


def read_sketch(path: Path, name: str = SKETCH) -> dict[str, NDArray[Any]] | None:
    """What sketch.safetensors holds; None where there is none, or it cannot be read."""
    try:
        found: dict[str, NDArray[Any]] = safetensors.load(plain_bytes(path / name))
    except (OSError, SafetensorError):
        return None
    return found if {"ids", "sketch", "round", "centers"} <= set(found) else None
