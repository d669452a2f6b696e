"""What clients keep between visits: personal models, optimiser states, mixture weights.

An engine passes a client its values with the tasks and stores what a successful visit wrote. A visit that fails
writes nothing. Only clients that were visited use memory; the rest is stored in files (see `allocation.spill`).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from coterie.core.allocation import held, room, stored
from coterie.core.errors import CoterieError


class Memory:
    """Every client's values, by client and name."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = room() if limit is None else limit  # bytes
        self._held = 0  # of those
        self._clients: dict[int, dict[str, Tensor]] = {}
        self._before: dict[int, dict[str, Tensor]] = {}  # of those written to since `begin`

    def begin(self) -> None:
        """Start an attempt: `undo` returns to this point."""
        self._before = {}

    def undo(self) -> None:
        """Forget what was written since `begin`: an attempt that is repeated leaves no trace."""
        self._clients |= self._before
        self._clients = {client: kept for client, kept in self._clients.items() if kept}
        self._before = {}
        self._held = sum(held(value) for kept in self._clients.values() for value in kept.values())

    def read(self, client: int) -> Mapping[str, Tensor]:
        """What this client keeps (empty before its first visit)."""
        return self._clients.get(client, {})

    def write(self, client: int, values: Mapping[str, Tensor]) -> None:
        """Keep these values, in addition to those with other names."""
        if values:
            kept = self._clients.setdefault(client, {})
            self._before.setdefault(client, dict(kept))
            for slot, value in values.items():
                self._held -= held(kept.get(slot))
                kept[slot] = stored(value, self._limit - self._held)
                self._held += held(kept[slot])

    def tensors(self) -> dict[str, Tensor]:
        """All of it as named tensors, for a checkpoint."""
        return {f"{c}/{slot}": v for c, kept in sorted(self._clients.items()) for slot, v in sorted(kept.items())}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace all values by what `tensors` returned."""
        self._clients, self._held = {}, 0
        for key, value in tensors.items():
            client, _, slot = key.partition("/")
            if not client.isdigit() or not slot:
                raise CoterieError(f"'{key}' is not the name of something a client keeps", code="checkpoint-damaged")
            self.write(int(client), {slot: value})
