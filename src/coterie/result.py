"""What a run gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from coterie.clients import Clients, number_of
from coterie.data.federation import Federation, Scale
from coterie.errors import CoterieError
from coterie.evaluation import Evaluation
from coterie.events import RoundDone
from coterie.memory import Memory
from coterie.methods.contract import Method
from coterie.metrics import Summary
from coterie.model import Model
from coterie.settings import Settings
from coterie.tasks import Evaluated

if TYPE_CHECKING:
    from coterie.serving import Served

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Result(Generic[State]):
    """What a run gives back.

    accuracy, macro_f1, summary: over all clients, after the last round. clients: the same, client by client.
    assignments: the cluster of each client. history: what happened in each round. state: the trained models.
    predict(client, x), network(cluster), network(client=...), admit(newcomers): use it.
    """

    method: Method[State]
    model: Model
    state: State
    history: tuple[RoundDone, ...]  # the rounds of this call (a resumed run's earlier ones are in its directory)
    clients: Evaluated  # the last evaluation, client by client
    summary: Summary  # the last evaluation, over all clients
    seconds: float
    known: Clients = field(repr=False)  # the clients it was trained on; on a network the server has not their data
    settings: Settings
    memory: Memory = field(repr=False)  # what clients keep (personal models and the like)
    newcomers: Evaluation | None = None  # those kept from training (`newcomers=0.3`), after they were taken in
    placed: Any = field(default=None, repr=False)  # the state with every evaluated client in its place
    run_dir: Path | None = None

    @property
    def assignments(self) -> NDArray[np.int64]:
        """The cluster of each client, by id: 0 for methods without clusters, -1 for clients not evaluated."""
        found = np.full(len(self.known), -1, dtype=np.int64)
        for reply in [self.clients, *([self.newcomers.clients] if self.newcomers else [])]:
            found[reply.ids.numpy()] = 0 if reply.choice is None else reply.choice.numpy()
        return found

    @property
    def federation(self) -> Federation:
        """The data it was trained on, where it is here."""
        if isinstance(self.known, Federation):
            return self.known
        raise CoterieError(
            "result.federation: the data is with the clients; result.clients has their scores, "
            "result.network(cluster) a model to take to new data"
        )

    @property
    def accuracy(self) -> float | None:
        """Accuracy over all clients; None for regression."""
        return self.summary.accuracy

    @property
    def macro_f1(self) -> float | None:
        """Macro-F1, the mean over clients; None for regression."""
        return self.summary.macro_f1

    def admit(self, newcomers: Federation | Sequence[tuple[ArrayLike, ...]]) -> Served:
        """Find the place of clients that had no part in training, by the method's own rule; nobody is retrained.

        Their inputs are stored as those it was trained on, and scaled as those were.
        """
        from coterie.serving import admit

        return admit(self, Federation.of(newcomers))

    def predict(self, client: int | str, x: ArrayLike | Tensor) -> NDArray[Any]:
        """Labels (or targets) of new inputs, by the model of this client; inputs stored as its own data is.

        client: its number, or its name. Labels that were names come as numbers, into federation.class_names.
        """
        from coterie.serving import predict, predict_by_cluster

        client = number_of(self.known, client)
        if not isinstance(self.known, Federation):
            return predict_by_cluster(self, client, x)
        return predict(self, self._state_for(client), self.federation, client, 0, x)

    def network(self, cluster: int = 0, *, client: int | str | None = None) -> nn.Module:
        """The trained network of a cluster, or of a client, to use or save as any other.

        A client has one with every method: its cluster's, its own, or several that predict together (a mixture gives
        log-probabilities). It takes inputs as `scale` gives them.
        """
        from coterie.serving import cluster_of, network, network_of

        if client is None:
            return network(self, cluster)
        client = number_of(self.known, client)
        if not isinstance(self.known, Federation):
            return network(self, cluster_of(self, client))
        return network_of(self, self._state_for(client), self.federation, client, 0)

    def _state_for(self, client: int) -> Any:
        """The state in which a client has its place."""
        new = self.newcomers is not None and client in self.newcomers.clients.ids
        return self.newcomers.state if self.newcomers is not None and new else self.placed

    @property
    def scale(self) -> Scale | None:
        """What stored inputs (a tensor of them) go through before a network sees them; None: nothing."""
        first, *others = self.federation.scales
        if others:
            raise CoterieError("result.scale: the data is scaled in several ways; result.federation.scales has them")
        return first

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from coterie.notebook import html

        return html(self)

    def __repr__(self) -> str:
        score = f"loss {self.summary.loss:.4g}" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        return f"<Result of {type(self.method).__name__}: {score}, clusters {self.summary.sizes}>"
