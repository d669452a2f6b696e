"""What a server knows about its clients, in a simulation or over a network."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.cohort import Roster
from coterie.core.errors import CoterieError, suggest


class Clients(Protocol):
    """Clients come and go. An id is assigned once and never reused: ids are 0..len-1, including absent clients.

    A `Federation`, which has all the data, implements this: all its clients are always present.
    """

    @property
    def roster(self) -> Roster:
        """The clients that can be asked now, by ascending id; the same object as long as nothing has changed."""

    @property
    def truth(self) -> NDArray[np.int64] | None:
        """(len,) the true cluster of each client, if known."""

    @property
    def mixture(self) -> NDArray[np.float64] | None:
        """(len, S) the share of each distribution in a client's data, if known."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """(len,) the names of the clients, if they have names."""

    def __len__(self) -> int:
        """The number of ids assigned so far."""

    def describe(self) -> str:
        """One line about them."""

    def identity(self) -> str:
        """Identifies these clients in a checkpoint; it does not change as clients come and go."""

    def sizes(self, ids: Tensor) -> Tensor:
        """How many training samples these clients have, including absent ones."""


@runtime_checkable
class ChangingClients(Protocol):
    """Clients of a simulation whose data may change by round."""

    def at(self, round: int) -> Clients:
        """The clients as they are in a round, counted from 0."""


def clients_at(clients: Clients, round: int) -> Clients:
    """The clients as they are in a round; over a network nobody knows how their data changes."""
    return clients.at(round) if isinstance(clients, ChangingClients) else clients


@runtime_checkable
class NamesData(Protocol):
    """Clients whose columns and classes have known names."""

    @property
    def features(self) -> tuple[str, ...] | None:
        """The names of the inputs, if they have names."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of the classes, if labels are numbered names."""


def number_of(clients: Clients, client: int | str) -> int:
    """The id of a client, given by id or by name."""
    if isinstance(client, str):
        if clients.names is None or client not in clients.names:
            known = " They have none." if clients.names is None else suggest(client, clients.names)
            raise CoterieError(f"no client has the name '{client}'.{known}", code="client-unknown")
        return clients.names.index(client)
    if isinstance(client, bool) or not isinstance(client, int | np.integer):
        raise CoterieError(f"a client is a number or a name, not {client!r}", code="client-invalid")
    names = clients.names or ()
    if str(client) in names and not (client < len(names) and names[client] == str(client)):
        # If names are numbers, an int is ambiguous, and the user could silently get another client's model.
        other = f", or '{names[client]}' for the one of that number" if 0 <= client < len(names) else ""
        raise CoterieError(f"client {client}: that is a name here; write '{client}'{other}", code="client-unknown")
    if not 0 <= client < len(clients):
        raise CoterieError(
            f"client {client}, but there are {len(clients)}: 0..{len(clients) - 1}", code="client-unknown"
        )
    return int(client)
