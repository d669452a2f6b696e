"""The result of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.client.contract import Memory
from coterie.core.errors import CoterieError
from coterie.core.metrics import Summary
from coterie.core.model import Model
from coterie.core.registry import AFTER_TRAINING, NO_CODE
from coterie.core.tables import Clients, NamesData, number_of
from coterie.core.tasks import Evaluated
from coterie.data.federation import Federation
from coterie.data.scale import Scale, TargetScale
from coterie.layers.attack import AttackReport
from coterie.layers.privacy import Spent
from coterie.methods.contract import Method
from coterie.training.data_record import DataRecord
from coterie.training.evaluation import Evaluation
from coterie.training.events import RoundDone
from coterie.training.settings import Settings
from coterie.training.warnings import Commonest

if TYPE_CHECKING:
    from coterie.insight.explain import Explanation
    from coterie.training.drift_scores import Following
    from coterie.training.exported import ExportedModel
    from coterie.training.predict import Served
    from coterie.training.serves import Serves

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Result(Generic[State]):
    """The result of a run.

    accuracy, macro_f1, summary: over all clients, after the last round. clients: the same, client by client.
    assignments: the cluster of each client. history: what happened in each round. state: the trained models.
    predict(client, x), network(cluster), network(client=...), admit(newcomers), export(path): use it.
    """

    method: Method[State]
    model: Model
    state: State
    history: tuple[RoundDone, ...]  # the rounds of this call (a resumed run's earlier ones are in its directory)
    clients: Evaluated  # the last evaluation, client by client
    summary: Summary  # the last evaluation, over all clients
    seconds: float
    known: Clients = field(repr=False)  # the clients it was trained on; over a network without their data
    settings: Settings
    memory: Memory = field(repr=False)  # what clients keep (personal models and the like)
    newcomers: Evaluation | None = None  # those held out of training (`newcomers=0.3`), after they were admitted
    placed: Any = field(default=None, repr=False)  # the state with every evaluated client in its place
    run_dir: Path | None = None
    # Of a run read back without its data: what each evaluated client, and each newcomer, chose by its own data.
    chosen: tuple[Tensor, ...] | None = field(default=None, repr=False)
    newcomers_chosen: tuple[Tensor, ...] | None = field(default=None, repr=False)
    attack: AttackReport | None = None  # where some clients were hostile: all scores are of the honest ones
    usual: Commonest | None = field(default=None, repr=False)  # the class to beat, where labels were here

    @property
    def assignments(self) -> NDArray[np.int64]:
        """The cluster of each client, by id: 0 for methods without clusters, -1 for clients not evaluated."""
        found = np.full(len(self.known), -1, dtype=np.int64)
        for reply in [self.clients, *([self.newcomers.clients] if self.newcomers else [])]:
            found[reply.ids.numpy()] = 0 if reply.choice is None else reply.choice.numpy()
        return found

    @property
    def federation(self) -> Federation:
        """The data it was trained on; a run read back from its directory reads it now, and it must be the same."""
        if isinstance(self.known, Federation):
            return self.known
        if isinstance(self.known, DataRecord):
            return self.known.federation()
        raise CoterieError(
            "result.federation: the data is with the clients; result.clients has their scores, "
            "result.network(cluster) a model to take to new data",
            code="data-needed",
        )

    @property
    def last_data(self) -> Federation:
        """The same as it was in the last round, where it changed by round."""
        return self.federation.at(self.settings.rounds - 1)

    @property
    def accuracy(self) -> float | None:
        """Accuracy over all clients; None for regression."""
        return self.summary.accuracy

    @property
    def macro_f1(self) -> float | None:
        """Macro-F1, the mean over clients; None for regression."""
        return self.summary.macro_f1

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with it though it has ended: clients without a score, models no better than a constant, ..."""
        from coterie.layers import warnings_of as layers_warn
        from coterie.training.warnings import warnings_of

        found = warnings_of(self.method, self.summary, self.history, self.known, self.usual, self.state)
        return (*found, *layers_warn(self.settings, self.history, self.known))

    @property
    def serves(self) -> Serves:
        """What serves a client (its cluster's model, one of its own, ...), since which round, and why."""
        from coterie.training.serves import what_serves

        return what_serves(self)

    @property
    def following(self) -> Following | None:
        """How the method followed data that changed by round: rounds until the clusters were found again, scores since.

        None where the data did not change. How far below the oracle it is: subtract from what `method.name=oracle` has.
        """
        from coterie.training.drift_scores import following

        return following(self)

    @property
    def privacy(self) -> Spent | None:
        """What the run has cost its clients, if it has privacy (epsilon of each is in privacy.json)."""
        return Spent.read(self.history[-1].layers.get("privacy")) if self.history else None

    def admit(self, newcomers: Federation | Sequence[tuple[Any, ...]]) -> Served:
        """Admit clients that were not part of training, by the method's own rule and without retraining.

        newcomers: a Federation, or a list of (x, y) per client. Their inputs are stored as those it was trained on, and
        scaled as those were; columns of a table are found by name, and labels may be names where those were.
        """
        from coterie.training.predict import admit

        return admit(self, newcomers)

    def predict(self, client: int | str, x: Any, *, proba: bool = False) -> NDArray[Any]:
        """Labels (or targets) of new inputs, by the model of this client; inputs stored as its own data is.

        client: its number, or its name. x: an array or a tensor; or a table (a pandas DataFrame, a dict of columns),
        whose columns are found by name where those of the training data have names; other columns are ignored.
        proba: the probability of each class (n, classes) instead of labels. Labels that were names come as numbers,
        into `class_names`, which names the columns of the probabilities too.
        """
        from coterie.training.predict import predict, predict_by_cluster

        client = number_of(self.known, client)
        if isinstance(self.known, Federation | DataRecord):
            return predict(self, self.known, client, x, proba)
        return predict_by_cluster(self, client, x, proba)

    def network(self, cluster: int = 0, *, client: int | str | None = None) -> nn.Module:
        """The trained network of a cluster, or of a client, to use or save as any other.

        A client has one with every method: its cluster's, its own, or several that predict together (a mixture gives
        log-probabilities). It takes inputs as `scale` gives them; of a regression, `target_scale.undo` gives its
        outputs their units, where targets were standardised.
        """
        from coterie.training.predict import cluster_of, network, network_of

        if client is None:
            return network(self, cluster)
        client = number_of(self.known, client)
        if not isinstance(self.known, Federation | DataRecord):
            return network(self, cluster_of(self, client))
        return network_of(self, client)

    def export(
        self,
        path: str | Path,
        *,
        cluster: int | None = None,
        client: int | str | None = None,
        format: str | None = None,
    ) -> ExportedModel:
        """Write the model of a cluster, or of a client, as a file that others use without this library.

        path: a file, or a directory. format: onnx, safetensors or torch (torch.export); by the file's ending if not
        given. Scaling is inside, or beside safetensors; a model card is beside all. A file that differs is not kept.
        """
        exported: ExportedModel = AFTER_TRAINING.find("export", NO_CODE)(
            self, path, cluster=cluster, client=client, format=format
        )
        return exported

    def explain(self, client: int | str) -> Explanation:
        """Why this client is in its cluster: losses of the clusters' models, runner-up, nearest clients.

        client: its number, or its name. Without the clients' data only the clusters' models are compared.
        """
        from coterie.insight.explain import explain

        return explain(self, client)

    @property
    def scale(self) -> Scale | None:
        """What stored inputs go through before a network sees them (columns of a table by name); None: nothing."""
        known = self.known if isinstance(self.known, DataRecord) else self.federation
        first, *others = known.scales
        if others:
            raise CoterieError(
                "result.scale: the data is scaled in several ways; result.known.scales has them",
                code="result-ambiguous",
            )
        return None if first is None else replace(first, features=known.features)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the numbers of predicted labels mean, where labels were names."""
        return self.known.class_names if isinstance(self.known, NamesData) else None

    @property
    def target_scale(self) -> TargetScale | None:
        """How targets of a regression were standardised; `undo` turns a network's outputs into original units."""
        return self.known.target if isinstance(self.known, Federation | DataRecord) else None

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        from coterie.training.summary_html import html

        return html(self)

    def __repr__(self) -> str:
        score = f"loss {self.summary.loss:.4g}" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        warned = f", {len(self.warnings)} warning(s): see .warnings" if self.warnings else ""
        return f"<Result of {type(self.method).__name__}: {score}, clusters {self.summary.sizes}{warned}>"
