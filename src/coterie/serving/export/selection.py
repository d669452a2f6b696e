"""Which model is exported: that of a cluster, or the one that a client predicts with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.core.errors import CoterieError
from coterie.core.objective import AnyLoss
from coterie.core.parts import merge
from coterie.core.references import Mix, Own, walk
from coterie.core.tables import number_of
from coterie.data.columns import TableScale
from coterie.data.federation import Federation
from coterie.data.scale import Scale, TargetScale
from coterie.network.registry import ClientRegistry
from coterie.training.data_record import DataRecord, Described, scale_of, target_of, targets_of
from coterie.training.predict import cluster_of, network, network_of
from coterie.training.result import Result


@dataclass(frozen=True, eq=False)
class Selected:
    """A model to export, and what its inputs and outputs go through."""

    network: nn.Module
    loss: AnyLoss
    shape: tuple[int, ...]  # of one sample, as it is given to the exported model
    dtype: torch.dtype  # of the inputs
    scale: Scale | None
    target: TargetScale | None
    cluster: int | None  # None where a client's model is its own
    client: int | None
    client_name: str | None
    clients: tuple[int, ...]  # whose model it is
    scaled_by_clients: bool = False  # over a network: clients scale their data themselves

    @property
    def name(self) -> str:
        """The name of its file, without ending."""
        if self.client is None:
            return f"cluster-{self.cluster}"
        return "client-" + re.sub(r"[^\w.-]+", "_", self.client_name or str(self.client))


def select(result: Result[Any], cluster: int | None = None, client: int | str | None = None) -> Selected:
    """The model of a cluster, or of a client; without either, the only one that the run has."""
    if cluster is not None and client is not None:
        raise CoterieError("export: a cluster or a client, not both", code="argument-conflict")
    if client is not None:
        return _of_client(result, number_of(result.known, client))
    return _of_cluster(result, the_only_cluster(result) if cluster is None else cluster)


def clusters_in_use(result: Result[Any]) -> tuple[int, ...]:
    """The clusters that have clients, by ascending number."""
    return tuple(int(c) for c in np.unique(result.assignments) if c >= 0)


def the_only_cluster(result: Result[Any]) -> int:
    """The cluster of a run that has one model; else an error that says what to write."""
    used = clusters_in_use(result)
    if len(used) > 1:
        _refuse_without_models(result)
        raise CoterieError(
            f"export: this run has {len(used)} clusters ({', '.join(map(str, used))}); write --cluster {used[0]}, "
            f"--all or --client ID (in Python cluster={used[0]} or client=...)",
            code="argument-missing",
        )
    return used[0] if used else 0


def _of_cluster(result: Result[Any], cluster: int) -> Selected:
    _refuse_without_models(result)
    try:
        found = network(result, cluster)
    except CoterieError as error:
        raise CoterieError(re.sub("^network:", "export:", str(error)), code=error.code) from None
    clients = tuple(np.flatnonzero(result.assignments == cluster).tolist())
    scale: Scale | None = None
    target: TargetScale | None = None
    if isinstance(result.known, Federation | DataRecord):
        known, what = result.known, f"cluster {cluster}"
        scale = _same([scale_of(known, c) for c in clients] or known.scales, "inputs", what)
        target = _same([target_of(known, c) for c in clients] or targets_of(known), "targets", what)
    return _selected(result, found, scale, target, cluster, None, clients)


def _of_client(result: Result[Any], client: int) -> Selected:
    here = isinstance(result.known, Federation | DataRecord)
    found = network_of(result, client) if here else network(result, cluster_of(result, client))
    cluster = int(result.assignments[client])
    known = result.known if isinstance(result.known, Federation | DataRecord) else None
    scale, target = (None, None) if known is None else (scale_of(known, client), target_of(known, client))
    return _selected(result, found, scale, target, cluster if cluster >= 0 else None, client, (client,))


def _selected(
    result: Result[Any],
    found: nn.Module,
    scale: Scale | None,
    target: TargetScale | None,
    cluster: int | None,
    client: int | None,
    clients: tuple[int, ...],
) -> Selected:
    found = merge(found)
    _own_memory(found.eval())
    mixes = max(int(getattr(m, "mixes_samples", 0)) for m in found.modules())
    if mixes:
        raise CoterieError(
            f"export: this network normalises by the batch at hand ({mixes} samples at a time), so that a prediction "
            "depends on the other samples; train with model.batch_statistics left out to export it",
            code="export-unsupported",
        )
    if isinstance(scale, TableScale) and scale.texts:
        raise CoterieError(
            f"export: column '{scale.texts[0]}' is text, whose words are hashed before the network sees them, which an "
            "exported model cannot do; use coterie predict or coterie api with the run",
            code="export-unsupported",
        )
    encoded = _input_shape(result.known)
    dtype = next((p.dtype for p in found.parameters()), torch.get_default_dtype())
    if scale is None and _takes_integers(found, encoded, dtype):
        dtype = torch.int64
    shape = (len(scale.columns),) if isinstance(scale, TableScale) else encoded
    names = result.known.names
    return Selected(
        *(found, result.model.loss, shape, dtype, scale, target, cluster, client),
        *(None if names is None or client is None else names[client], clients),
        scaled_by_clients=not isinstance(result.known, Federation | DataRecord),
    )


def _own_memory(found: nn.Module) -> None:
    """The tensors of a network are views of one vector here; in a file each lies by itself."""
    for tensor in (*found.parameters(), *found.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)


def _input_shape(known: object) -> tuple[int, ...]:
    if isinstance(known, Described):
        return known.input_shape
    if isinstance(known, ClientRegistry) and known.shape is not None:
        return known.shape.input_shape
    raise CoterieError("export: this run does not say what shape its inputs have", code="run-damaged")


def _takes_integers(found: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether the network looks its inputs up (words), which it does by whole numbers only."""
    problem = ""
    for kind in (dtype, torch.int64):
        try:
            with torch.inference_mode():
                found(torch.zeros(2, *shape, dtype=kind))
            return kind == torch.int64
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            problem = problem or " ".join(str(error).split())
    raise CoterieError(f"export: the network does not take inputs of shape {shape}: {problem}", code="export-failed")


def _same(found: Sequence[Any], what: str, who: str) -> Any:
    """The scale that all of these are; they are compared by what they do."""
    kinds = {b"" if scale is None else scale.bytes(): scale for scale in found}
    if len(kinds) > 1:
        raise CoterieError(
            f"export: the clients of {who} have {what} that are scaled in {len(kinds)} ways, and a model file has one; "
            "write --client ID (in Python client=...)",
            code="result-ambiguous",
        )
    return next(iter(kinds.values()))


def _refuse_without_models(result: Result[Any]) -> None:
    """Methods whose clients predict with models of their own have none for a cluster."""
    task, reason = result.method.predictor(result.state), ""
    if task.mixture is not None:
        reason = "each client mixes the models by weights of its own"
    elif any(isinstance(node, Own | Mix) for ref in task.models for node in walk(ref)):
        reason = "each client predicts with a model of its own"
    if reason:
        raise CoterieError(
            f"export: {type(result.method).__name__} has no single model per cluster: {reason}; write --client ID "
            "(in Python client=...)",
            code="result-ambiguous",
        )
