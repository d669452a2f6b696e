"""Clients that are refused too often are banned: why they fail is for the operator to find out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from coterie.network.audit import AuditEntry, no_audit
from coterie.network.protocol.wire import WireError
from coterie.network.server.client_registry import ClientRegistry


class UnableError(WireError):
    """A client could not answer, or has other data by now, and says so: nothing is held against it."""

    code = "client-unable"


class Bans:
    """Counts refusals by name. A ban lasts for the run: it is written to members.json, and lifted by editing that."""

    def __init__(
        self,
        registry: ClientRegistry,
        limit: int,
        say: Callable[[str], None],
        note: Callable[[AuditEntry], None] = no_audit,
    ) -> None:
        """limit: the refusals after which a client is banned; 0 is never. note: where they are written down."""
        self._registry, self._limit, self._say, self._note = registry, limit, say, note
        self._refused: Counter[str] = Counter()

    def refuse(self, name: str, why: str) -> None:
        """A reply of this client was not accepted."""
        self._refused[name] += 1
        self._note(AuditEntry("reply-refused", why, client=name))
        if not self._limit or self._refused[name] < self._limit or name in self._registry.banned:
            return
        self._registry.ban(name, why)
        self._note(AuditEntry("banned", why, client=name, times=self._refused[name]))
        self._say(f"banned: {name}: refused {self._refused[name]} times (network.refusals), the last time: {why}")

    def why(self, name: str) -> str | None:
        """Why this client is banned; None where it is not."""
        found = self._registry.banned.get(name)
        return None if found is None else f"is banned (members.json): {found}"
