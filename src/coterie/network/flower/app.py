"""Coterie as a plain Flower app, for SuperLinks and SuperNodes that are already there: `flwr run`.

The server's side reads its configuration from the run's (`config`, `words`, `out`, `resume`), a client's side from its
node's: `--node-config "name='a' data='/data/a.npz' state='/var/lib/coterie'"`. Flower starts a process for every
message and runs the app's code as the SuperLink sends it: `coterie client` does neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from coterie.core.codec import TYPES
from coterie.core.compute import AUTO, Compute
from coterie.core.errors import CoterieError
from coterie.core.settings import settings_from
from coterie.network.client_data import own_data
from coterie.network.client_state import FROZEN, DirectoryStore, StateStore
from coterie.network.config import read
from coterie.network.flower.transport import FlowerTransport, from_records, to_records
from coterie.network.messages import Refusal
from coterie.network.server import train_with_clients
from coterie.network.wire import WireError, encode
from coterie.network.worker import ClientWorker


def train_on_grid(grid: Grid, context: Context) -> None:
    """The server's side."""
    said = context.run_config
    if not said.get("out"):
        raise CoterieError(
            'the run\'s configuration must say where the run directory is: out="/var/lib/coterie/run"',
            code="option-missing",
        )
    file = Path(str(said["config"])) if said.get("config") else None
    config = read(file, str(said.get("words", "")).split())
    path = Path(str(said["out"]))
    resume = bool(said.get("resume")) and (path / "config.yaml").is_file()
    train_with_clients(FlowerTransport(grid), config, path, resume=resume, say=print)


def answer(message: Message, context: Context) -> Message:
    """A client's side: one message."""
    said = context.node_config
    if not said.get("name") or not said.get("data"):
        raise CoterieError(
            "the node must say who it is and where its data lies: --node-config \"name='a' data='a.npz'\"",
            code="option-missing",
        )
    trusted = tuple(str(said.get("trust", "")).split())
    compute = settings_from(Compute, device=str(said.get("device", AUTO))).resolved()
    worker = ClientWorker(
        *(str(said["name"]), lambda: own_data(str(said["data"])), _store(said, context)),
        trusted=trusted,
        allowed=tuple(str(said.get("allow", "")).split()),
        compute=compute,
    )
    try:
        reply = worker.answer(from_records(message.content))
    except WireError as error:
        reply = encode(Refusal.of(error))
    return Message(to_records(reply), reply_to=message)


def _store(said: Mapping[str, object], context: Context) -> StateStore:
    return DirectoryStore(Path(str(said["state"]))) if said.get("state") else ContextStore(context.state)


@dataclass(frozen=True)
class ContextStore:
    """A store in Flower's own state of a node, which is lost with the node's process, or when Flower's run is."""

    state: RecordDict

    def read(self, run: str, version: int) -> Mapping[str, Tensor] | None:
        """See `StateStore.read`."""
        found = self.state.get(f"{run}/{version}")
        return {k: _tensor(a) for k, a in found.items()} if isinstance(found, ArrayRecord) else None

    def write(self, run: str, version: int, values: Mapping[str, Tensor]) -> None:
        """See `StateStore.write`."""
        self.state[f"{run}/{version}"] = ArrayRecord({k: _array(v) for k, v in values.items()})

    def forget(self, run: str, versions: list[int]) -> None:
        """See `StateStore.forget`."""
        for version in versions:
            del self.state[f"{run}/{version}"]

    def versions(self, run: str) -> list[int]:
        """See `StateStore.versions`."""
        return sorted(int(key.rpartition("/")[2]) for key in self.state if key.startswith(f"{run}/"))

    def frozen(self, hash: str) -> Tensor | None:
        """See `StateStore.frozen`."""
        found = self.state.get(f"{FROZEN}/{hash}")
        return _tensor(found["bytes"]) if isinstance(found, ArrayRecord) else None

    def keep_frozen(self, hash: str, values: Tensor) -> None:
        """See `StateStore.keep_frozen`."""
        self.state[f"{FROZEN}/{hash}"] = ArrayRecord({"bytes": _array(values)})


def _array(value: Tensor) -> Array:
    value = value.detach().contiguous()
    raw = value.reshape(-1).view(torch.uint8).numpy().tobytes()
    return Array(str(value.dtype).removeprefix("torch."), tuple(value.shape), "raw", raw)


def _tensor(array: Array) -> Tensor:
    return torch.frombuffer(bytearray(array.data), dtype=TYPES[array.dtype]).view(array.shape)
