"""Who is let in: new nodes introduce themselves, are checked, and become clients or are told why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coterie.core.naming import client_name
from coterie.network.audit import AuditEntry, no_audit
from coterie.network.protocol.messages import PROTOCOL, ClientInfo, Hello, Refusal
from coterie.network.protocol.wire import Limits, Payload, WireError, encode
from coterie.network.server.bans import Bans
from coterie.network.server.client_registry import ClientRegistry, describe_kinds
from coterie.network.server.config import Network
from coterie.network.server.exchange import Exchange
from coterie.network.transport import NoReply, Outgoing

INTRODUCTION = 120.0  # seconds that a new node has at least to introduce itself
GREETING = 10.0  # seconds to collect the replies of new nodes, between two rounds
ABOUT = Limits(largest=1 << 16, arrays=0, outline=1 << 16)  # of the answer to a Hello


@dataclass
class _PendingNodes:
    """Nodes that are not clients yet."""

    asked: dict[str, int] = field(default_factory=dict)  # nodes whose reply is awaited, by message id
    first: dict[int, ClientInfo] = field(default_factory=dict)  # nodes that wait until enough are connected to start
    refused: set[int] = field(default_factory=set)


class Admission:
    """Registers the clients that may take part, and strikes off those whose key is gone."""

    def __init__(
        self,
        exchange: Exchange,
        registry: ClientRegistry,
        network: Network,
        bans: Bans,
        keys: Callable[[], dict[str, str]] | None = None,
        say: Callable[[str], None] = lambda _: None,
        note: Callable[[AuditEntry], None] = no_audit,
    ) -> None:
        """keys: the names of the clients by their public keys; None if keys are not used. note: the audit log."""
        self._exchange, self._registry, self._settings, self._bans = exchange, registry, network, bans
        self._keys, self._say, self._note = keys, say, note
        self._pending = _PendingNodes()

    def enough(self) -> bool:
        """Whether a round can begin."""
        return len(self._registry.here) >= self._settings.clients and self._registry.shape is not None

    def progress(self) -> tuple[int, str]:
        """How many clients are there, and how their data differs, if that is what keeps them waiting."""
        first = self._pending.first.values()
        differences = describe_kinds(first) if self._registry.shape is None else ""
        differ = f", but their data is not of one kind: {differences}" if differences else ""
        return len(self._registry.here) or len(first), differ

    def greet(self) -> None:
        """Ask new nodes to introduce themselves, and register those that have; nobody is waited for."""
        present = self._exchange.transport.connected()
        self._registry.set_connected(self.keyed(present))
        pending = self._pending
        known = {*self._registry.here.values(), *pending.asked.values(), *pending.first, *pending.refused}
        fresh = [node for node in present if node not in known and self._admitted(node, present[node])]
        self._send(fresh, encode(Hello(PROTOCOL, self._registry.run)))
        infos = self._introduced(present)
        pending.asked = {message_id: node for message_id, node in pending.asked.items() if node in present}
        pending.first = {
            node: info
            for node, info in (pending.first | infos).items()
            if node in present and (self._keys is None or present[node].strip() in self._keys())
        }
        pending.refused &= set(present)
        self._register_pending()

    def keyed(self, present: Mapping[int, str]) -> set[int]:
        """The nodes whose key is among those of the clients: it may have been revoked since they were let in."""
        return {node for node, key in present.items() if self._keyed(node, key)}

    def _introduced(self, present: Mapping[int, str]) -> dict[int, ClientInfo]:
        """What nodes that may take part have said of themselves since the last look."""
        infos: dict[int, ClientInfo] = {}
        asked = self._pending.asked
        for message_id, what in self._exchange.transport.collect(list(asked), GREETING) if asked else ():
            node = asked.pop(message_id)
            if isinstance(what, NoReply) or node in self._pending.refused:
                continue  # it will be asked again; or it has only confirmed that it was told
            try:
                info = self._exchange.opened(what, ABOUT)
                if not isinstance(info, ClientInfo):
                    raise WireError("it did not introduce itself", code="wire-unexpected")
                infos[node] = self._named(info, present.get(node, ""))
                self._check_info(infos[node])
            except WireError as error:
                found = infos.pop(node, None)
                name = self._name(present.get(node, "")) if found is None else found.name
                self._refuse(node, str(error), name or "")
        return infos

    def _register_pending(self) -> None:
        infos = self._pending.first
        # Before training, nodes wait until enough of them have data of the same kind.
        if self._registry.shape is None and not self._registry.agree_on_shape(
            infos, self._settings.clients, self._settings.outputs
        ):
            return
        self._pending.first, before = {}, dict(self._registry.here)
        for node, why in self._registry.register(infos).items():
            self._refuse(node, why, infos[node].name)
        for client, node in self._registry.here.items():
            if before.get(client) != node:
                self._say(f"{client_name(self._registry.names, client)} has joined")
                self._note(AuditEntry("joined", client=self._registry.names[client], node=node))

    def _keyed(self, node: int, key: str) -> bool:
        if self._keys is None or key.strip() in self._keys():
            return True
        for client in [client for client, its in self._registry.here.items() if its == node]:
            del self._registry.here[client]
            why = "its key was revoked, replaced or has expired; it is asked no more"
            self._say(f"{client_name(self._registry.names, client)}: {why}")
            self._note(AuditEntry("refused", why, client=self._registry.names[client], node=node))
        return False

    def _admitted(self, node: int, key: str) -> bool:
        if self._keys is None:
            return True
        name = self._name(key)
        why = "its key is not among those of the clients" if name is None else self._bans.why(name)
        if why is not None:
            self._refuse(node, why, name or "")
        return why is None

    def _check_info(self, info: ClientInfo) -> None:
        """Refuse a client that is banned or claims more samples than allowed."""
        why, most = self._bans.why(info.name), self._settings.samples
        if why is None and max(info.train, info.test) > most:
            why = f"claims to have {max(info.train, info.test)} samples, network.samples allows {most}"
            self._bans.refuse(info.name, why)
        if why is not None:
            raise WireError(why, code="client-refused")

    def _name(self, key: str) -> str | None:
        """Whose key it is; None where it is nobody's, and where keys are not used."""
        return None if self._keys is None else self._keys().get(key.strip())

    def _named(self, info: ClientInfo, key: str) -> ClientInfo:
        """With keys, a client's name is the one of its key."""
        if self._keys is None:
            return info
        name = self._name(key)
        if name is None:
            raise WireError("its key was revoked", code="client-refused")
        return replace(info, name=name)

    def _refuse(self, node: int, why: str, name: str) -> None:
        """Say so, once, also to the client itself; to a node without a registered key nothing is sent."""
        if node in self._pending.refused:
            return
        self._pending.refused.add(node)
        self._say(f"refused: node {node}: {name}: {why}" if name else f"refused: node {node}: {why}")
        self._note(AuditEntry("refused", why, client=name, node=node))
        if self._keys is None or name:
            self._send([node], encode(Refusal.of(WireError(why))))

    def _send(self, nodes: Sequence[int], payload: Payload) -> None:
        sent = self._exchange.send(
            [Outgoing(node, payload, ABOUT) for node in nodes], max(self._settings.deadline, INTRODUCTION)
        )
        self._pending.asked |= {
            message_id: node for message_id, node in zip(sent, nodes, strict=True) if message_id is not None
        }
