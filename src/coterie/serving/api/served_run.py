"""A run as it is served: its result, networks that are ready, and newcomers that were kept on request."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning, suggest
from coterie.core.tables import NamesData, number_of
from coterie.data.columns import TableScale
from coterie.data.federation import Federation
from coterie.data.scale import Scale, TargetScale
from coterie.serving.api.limits import ApiLimits
from coterie.serving.api.predictor import Predictor, ReadyNetworks
from coterie.serving.api.problems import RequestError, about, about_labels
from coterie.serving.api.requests import AssignRequest, PredictRequest
from coterie.serving.assign import Placer
from coterie.training.data_record import DataRecord, scale_of, target_of
from coterie.training.predict import (
    Served,
    answer,
    as_federation,
    as_inputs,
    cluster_models,
    cluster_of,
    network_of,
    stored_inputs,
)
from coterie.training.result import Result

_WARNING = threading.Lock()  # Python's way to catch warnings is not made for several threads


@dataclass(frozen=True, eq=False)
class Place:
    """Who predicts: a network, and what inputs and outputs go through."""

    predictor: Predictor
    cluster: int | None  # None where the client has no cluster of its own
    scale: Scale | None
    target: TargetScale | None


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answer to a request."""

    values: NDArray[Any]  # as `Result.predict` gives them
    cluster: int | None
    classes: tuple[str, ...] | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Assignment:
    """Where a new client belongs."""

    served: Served
    cluster: int | None  # None where none fits
    nearest: int | None  # by the method's rule, whether or not it fits; None: a cluster of its own
    fits: bool | None  # None where that cannot be said
    p_value: float | None
    confidence: float | None  # None where clients share in several clusters
    shares: tuple[float, ...] | None
    warnings: tuple[str, ...]


class ServedRun:
    """One state of a run. Nothing of it changes but caches and kept newcomers; a reload makes another one."""

    def __init__(self, result: Result[Any], limits: ApiLimits) -> None:
        self.result, self.limits = result, limits
        self._ready = ReadyNetworks(result.model, limits.networks * 1_000_000, limits.places)
        self._newcomers: dict[str, Served] = {}
        self.round = result.history[-1].round if result.history else 0

    # ------------------------------------------------------------------------------------------------------- predict

    def predict(self, asked: PredictRequest) -> Prediction:
        """The predictions that `Result.predict` would give."""
        place = self._place(asked)
        with torch.inference_mode():
            return self._predicted(asked, place)

    def _predicted(self, asked: PredictRequest, place: Place) -> Prediction:
        with about("rows"):
            inputs, said = self._inputs(asked.rows, place.scale)
        if asked.proba and self.result.model.loss != "cross_entropy":
            raise RequestError(
                "proba: true is for classes; a regression has none, so leave it out",
                code="argument-conflict",
                field="proba",
            )
        try:
            outputs = place.predictor(inputs)
        except (RuntimeError, ValueError, IndexError) as error:
            what = " ".join(str(error).split())
            raise RequestError(
                f"rows: these inputs do not fit the model: {what}", code="data-shape", field="rows"
            ) from None
        values = answer(self.result, outputs, asked.proba, place.target)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise RequestError(
                "rows: the model's outputs are not finite; are the inputs in the units of the training data?",
                code="data-not-finite",
                field="rows",
            )
        return Prediction(values, place.cluster, self.classes, said)

    @cached_property
    def classes(self) -> tuple[str, ...] | None:
        """What the numbers of labels mean."""
        return self.result.class_names

    @property
    def ready_bytes(self) -> int:
        """The size of the networks that are kept ready."""
        return self._ready.bytes

    def cost(self, rows: int) -> float:
        """About how many multiplications a prediction takes."""
        return rows * self._per_row

    @cached_property
    def _per_row(self) -> float:
        model = self.result.model
        images = any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in model.blueprint.modules())
        used = model.size + model.frozen_size
        return used * (100.0 if images else 1.0)  # a convolution uses its weights at every pixel

    def _place(self, asked: PredictRequest) -> Place:
        if asked.client is None:
            with about("cluster"):
                return self._of_cluster(asked.cluster or 0)
        with about("client"):
            kept = self._newcomers.get(asked.client) if isinstance(asked.client, str) else None
            if kept is not None:
                return self._of_newcomer(str(asked.client), kept)
            return self._of_client(self._number(asked.client))

    def _number(self, client: int | str) -> int:
        try:
            return number_of(self.result.known, client)
        except CoterieError as error:
            if self._newcomers and isinstance(client, str):
                hint = suggest(client, [*self._newcomers][:20])
                raise CoterieError(f"{error} Of newcomers that were kept:{hint}", code=error.code) from None
            raise

    def _of_client(self, client: int) -> Place:
        known = self.result.known
        if not isinstance(known, Federation | DataRecord):
            return self._of_cluster(cluster_of(self.result, client))
        found = self._ready.get(("client", client), partial(network_of, self.result, client))
        assigned = self._assignments[client] if client < len(self._assignments) else -1
        return Place(found, assigned if assigned >= 0 else None, scale_of(known, client), target_of(known, client))

    @cached_property
    def _assignments(self) -> list[int]:
        found: list[int] = self.result.assignments.tolist()
        return found

    def _of_cluster(self, cluster: int) -> Place:
        found = self._ready.get(("cluster", cluster), partial(self.result.network, cluster))
        if not isinstance(self.result.known, Federation | DataRecord):
            return Place(found, cluster, None, None)
        if len(self.result.known.scales) > 1:
            raise RequestError(
                "cluster: this run's clients scale their data in several ways; write client instead",
                code="result-ambiguous",
                field="cluster",
            )
        return Place(found, cluster, self.result.known.scales[0], self.result.target_scale)

    @cached_property
    def networks(self) -> int:
        """How many clusters have a network of their own; 0 where each client has one."""
        known = self.result.known
        if isinstance(known, Federation | DataRecord) and len(known.scales) > 1:
            return 0
        try:
            return max(len(models) for models in cluster_models(self.result))
        except CoterieError:
            return 0

    def _of_newcomer(self, name: str, kept: Served) -> Place:
        found = self._ready.get(("newcomer", name), partial(kept.network, 0))
        newcomers = kept.newcomers
        return Place(found, int(kept.assignments[0]), scale_of(newcomers, 0), newcomers.target)

    def _inputs(self, rows: Any, scale: Scale | None) -> tuple[Tensor, tuple[str, ...]]:
        known = self.result.known
        if not isinstance(known, Federation | DataRecord):  # its clients scale their data themselves
            inputs = stored_inputs(rows, known.features if isinstance(known, NamesData) else None)
            return inputs.to(torch.get_default_dtype()), ()
        if not isinstance(scale, TableScale):
            return as_inputs(rows, known, scale), ()
        with _WARNING, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            inputs = as_inputs(rows, known, scale)
        return inputs, _texts(told)

    # -------------------------------------------------------------------------------------------------------- assign

    def assign(self, asked: AssignRequest) -> Assignment:
        """The place of a new client, by `Result.admit`; it is kept only where the request says so."""
        if asked.keep is not None:
            self._check_name(asked.keep)
        newcomers, told = self._federation(asked)
        known = self.result.known
        unknown = isinstance(known, Federation | DataRecord) and newcomers.outputs > known.outputs
        with about("labels" if unknown else "rows"), about_labels():
            served = self.result.admit(newcomers)
        cluster = int(served.assignments[0])
        if served.missing or cluster < 0:
            why = served.missing[0].reason if served.missing else "the method has no place for it"
            raise RequestError(f"rows: the client cannot be placed: {why}", code="client-unable", field="rows")
        if asked.keep is not None:
            self._newcomers[asked.keep] = served
            self._ready.drop(("newcomer", asked.keep))
        sure, shares = served.confidence(0), served.clients.shares
        judged = self._placer.judged("the client", served)
        return Assignment(
            served,
            None if judged.fits is False else cluster,
            None if judged.fits is False and judged.nearest is None else cluster,
            judged.fits,
            judged.p_value,
            None if math.isnan(sure) else sure,
            None if shares is None else tuple(shares[0].tolist()),
            told,
        )

    @cached_property
    def _placer(self) -> Placer:
        return Placer(self.result)

    def _federation(self, asked: AssignRequest) -> tuple[Federation, tuple[str, ...]]:
        """The samples of a new client as those that the run was trained on, and what was warned of."""
        with about("rows"), about_labels(), _WARNING, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = as_federation([(_array(asked.rows), _labels(asked.labels))], self.result.known)
        return found, _texts(told)

    def _check_name(self, name: str) -> None:
        if name in (self.result.known.names or ()):
            raise RequestError(
                f"keep: '{name}' is the name of a client of the run; choose another",
                code="client-names",
                status=409,
                field="keep",
            )
        if name not in self._newcomers and len(self._newcomers) >= self.limits.newcomers:
            raise RequestError(
                f"keep: {self.limits.newcomers} newcomers are kept already, and no more; leave keep out",
                code="request-too-large",
                status=409,
                field="keep",
            )

    @property
    def kept(self) -> Mapping[str, Served]:
        """Newcomers that were kept, by name."""
        return self._newcomers

    def keep_again(self, before: Mapping[str, Served]) -> list[str]:
        """Newcomers that an earlier state kept, admitted again; the names of those that could not be."""
        lost = []
        for name, served in list(before.items()):
            try:
                self._check_name(name)
                again = self.result.admit(served.newcomers)
                if again.missing:
                    raise CoterieError(again.missing[0].reason, code="client-unable")
                self._newcomers[name] = again
            except CoterieError:
                lost.append(name)
        return lost


def _array(rows: Any) -> Any:
    """Rows for `admit`: a table as it is, anything else as an array."""
    return rows if isinstance(rows, Mapping) else np.asarray(rows)


def _labels(labels: list[Any]) -> Any:
    return labels if all(isinstance(label, str) for label in labels) else np.asarray(labels)


def _texts(told: list[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(str(one.message) for one in told if issubclass(one.category, CoterieWarning))
