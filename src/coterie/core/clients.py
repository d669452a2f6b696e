"""What a server knows of its clients, whether it simulates them all or only hears of them over a network."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.cohort import Roster
from coterie.core.errors import CoterieError, suggest


class Clients(Protocol):
    """Clients come and go. An id is given out once and never again: ids are 0..len-1, also of those that are away.

    A `Federation`, which has all the data, is one: everyone is there, always.
    """

    @property
    def roster(self) -> Roster:
        """Those that can be asked now, ids ascending; the same object as long as nothing has changed."""

    @property
    def truth(self) -> NDArray[np.int64] | None:
        """(len,) the true cluster of each, where it is known."""

    @property
    def mixture(self) -> NDArray[np.float64] | None:
        """(len, S) how much of each distribution a client is, where that is known."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """(len,) where they have names."""

    def __len__(self) -> int:
        """How many ids were ever given out."""

    def describe(self) -> str:
        """One line about them."""

    def identity(self) -> str:
        """What must agree for a checkpoint to be of these clients; it does not change as they come and go."""

    def sizes(self, ids: Tensor) -> Tensor:
        """How many training samples these clients have, also those that are away."""


@runtime_checkable
class NamesData(Protocol):
    """Clients of whose data it is known what columns and classes are called."""

    @property
    def features(self) -> tuple[str, ...] | None:
        """What the inputs are, where they have names."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Where labels are numbered names."""


def number_of(clients: Clients, client: int | str) -> int:
    """The number of a client, given by that or by its name."""
    if isinstance(client, str):
        if clients.names is None or client not in clients.names:
            known = " They have none." if clients.names is None else suggest(client, clients.names)
            raise CoterieError(f"no client has the name '{client}'.{known}", code="client-unknown")
        return clients.names.index(client)
    if isinstance(client, bool) or not isinstance(client, int | np.integer):
        raise CoterieError(f"a client is a number or a name, not {client!r}", code="client-invalid")
    names = clients.names or ()
    if str(client) in names and not (client < len(names) and names[client] == str(client)):
        # Whoever numbers hospitals themselves means theirs, and would be given another one's model without a word.
        other = f", or '{names[client]}' for the one of that number" if 0 <= client < len(names) else ""
        raise CoterieError(f"client {client}: that is a name here; write '{client}'{other}", code="client-unknown")
    if not 0 <= client < len(clients):
        raise CoterieError(
            f"client {client}, but there are {len(clients)}: 0..{len(clients) - 1}", code="client-unknown"
        )
    return int(client)
