"""What always saying the commonest class would be worth: the accuracy that a model has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.core.tables import Clients, clients_at
from coterie.core.tasks import Evaluated
from coterie.data.federation import Federation
from coterie.training.evaluation import ScoredSplit, client_weights
from coterie.training.settings import Settings


@dataclass(frozen=True)
class Commonest:
    """The commonest class of the training samples of all clients."""

    label: str
    accuracy: float  # of always saying it, over the samples and with the weights of the scores
    alone: bool  # whether there is no other class in what is trained or scored


def commonest(clients: Clients, reply: Evaluated, settings: Settings, split: ScoredSplit) -> Commonest | None:
    """None where labels are not known here, as over a network, or are no classes."""
    data = clients_at(clients, settings.rounds - 1)
    if not isinstance(data, Federation) or data.kind != "classification":
        return None
    scored = data.test if split == "test" else data.val
    seen = np.bincount(data.labels(data.train))
    if scored is None or not len(seen):
        return None
    place = int(seen.argmax())
    labels = data.labels(scored)
    right = np.bincount(scored.owners(), labels == place, minlength=len(data))
    ids = reply.ids.numpy()
    share = right[ids] / np.maximum(scored.lengths.numpy()[ids], 1)
    weights = client_weights(settings, data, reply).numpy()
    name = str(place) if data.class_names is None else data.class_names[place]
    alone = int((seen > 0).sum()) == 1 and bool((labels == place).all())
    return Commonest(name, float(weights @ share / max(weights.sum(), 1e-12)), alone)


def only_class(clients: Clients) -> str | None:
    """The one class that all samples have; None where there are others, or it is not known."""
    if not isinstance(clients, Federation) or clients.kind != "classification":
        return None
    seen = np.unique(np.concatenate([clients.labels(clients.train), clients.labels(clients.test)]))
    if len(seen) != 1:
        return None
    return str(seen[0]) if clients.class_names is None else clients.class_names[int(seen[0])]
