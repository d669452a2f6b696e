"""Predictions for the rows of a file, by the model of each row's client, written as they are made.

Rows of clients that the run knows, or whose model is named, are predicted chunk by chunk. Clients that it does not know
are placed first, one by one, and what is predicted for their rows waits in a temporary file until its row comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.client.visit import TaskRunner
from coterie.core.compute import one_thread
from coterie.core.errors import CoterieError
from coterie.core.settings import explained
from coterie.core.tables import number_of
from coterie.core.text import client_name, counted
from coterie.data.federation import Federation
from coterie.data.table import Rows, open_rows
from coterie.serving.assign import Placer, Run, as_result, clustered, known_clients
from coterie.serving.fit_of_newcomers import LEVEL
from coterie.serving.newcomers import Census, placed_by_labels, read_newcomers
from coterie.serving.row_form import Roles, RowForm, no_client_column
from coterie.serving.spool import RecordFile
from coterie.serving.table_files import open_table
from coterie.training.data_record import DataRecord, scale_of, target_of
from coterie.training.predict import outputs
from coterie.training.result import Result

SHOWN = 5  # clients in an error


class By(IntEnum):
    """How the model of a row was found."""

    run = 1  # the client is one of the run's
    assigned = 2  # a newcomer, placed by its labelled rows
    none_fits = 3  # the same, but no cluster fits: the nearest was used
    given = 4  # the user named the cluster


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of some rows."""

    first: int  # the number of the first row
    client: list[str | None]
    cluster: list[int | None]
    by: list[By]
    values: NDArray[np.float64]  # (n, outputs): probabilities of classes, or targets


@explained
@dataclass(frozen=True, eq=False)
class Predictions:
    """What was predicted: how many rows, and the table itself where no file was written."""

    rows: int
    out: Path | None
    columns: dict[str, list[Any]] | None

    def __repr__(self) -> str:
        return f"<{counted(self.rows, 'row')} predicted{'' if self.out is None else f' in {self.out}'}>"


def predict_table(
    run: Run,
    data: Any,
    out: str | Path | None = None,
    *,
    client: int | str | None = None,
    cluster: int | None = None,
    y: str | None = None,
    client_column: str | None = None,
    level: float = LEVEL,
) -> Predictions:
    """Predict every row of a file or table, by the model of its client.

    run: a result, or a run's directory. data: a csv, parquet or npz file or a table, with the columns of the training
    data; labels are needed only to place clients that the run does not know. out: a csv or parquet file; None: the
    table is returned. client: all rows are of this client of the run. cluster: all rows are predicted by the model of
    this cluster. y, client_column: columns that are called otherwise than in training. level: see `assign`.
    """
    result = as_result(run)
    form = RowForm.of(result)
    kinds = _kinds(form)
    chunks = predictions(result, data, client=client, cluster=cluster, y=y, client_column=client_column, level=level)
    done = 0
    if out is None:
        table: dict[str, list[Any]] = {name: [] for name in kinds}
        for part in chunks:
            for name, values in _columns(part, form).items():
                table[name].extend(values)
            done += len(part.client)
        return Predictions(done, None, table)
    with open_table(Path(out), kinds) as writer:
        for part in chunks:
            writer.add(_columns(part, form))
            done += len(part.client)
    return Predictions(done, Path(out), None)


def predictions(
    run: Run,
    data: Any,
    *,
    client: int | str | None = None,
    cluster: int | None = None,
    y: str | None = None,
    client_column: str | None = None,
    level: float = LEVEL,
) -> Iterator[Predicted]:
    """The same as `predict_table`, a chunk of rows at a time, in their order."""
    result = as_result(run)
    if client is not None and cluster is not None:
        raise CoterieError("client, cluster: give one of them", code="argument-conflict")
    form = RowForm.of(result)
    rows = open_rows(data, form.columns.x)
    roles = form.roles(rows, y, client_column)
    work = _Work(result, form, rows, roles)
    if cluster is not None:
        yield from work.by_one(result.network(cluster), None, cluster)
    elif client is not None:
        yield from work.by_one(None, number_of(result.known, client), None)
    else:
        yield from work.by_client(level)


class _Work:
    """The rows to be predicted, and the run that predicts them."""

    def __init__(self, result: Result[Any], form: RowForm, rows: Rows, roles: Roles) -> None:
        self.result, self.form, self.rows, self.roles = result, form, rows, roles
        self.features = form.inputs_of(rows, roles)
        self.clustered = clustered(result.method.predictor(result.state))
        self.places = result.assignments
        self.runner = TaskRunner(result.model)

    def by_one(self, network: nn.Module | None, client: int | None, cluster: int | None) -> Iterator[Predicted]:
        """All rows by the network of a cluster, or by the model of a client of the run."""
        names, column = self.result.known.names, self.roles.client
        place = self.place(client) if client is not None else cluster
        for chunk in self.rows.chunks(self.features, [] if client is not None or column is None else [column]):
            stored = self.form.stored(chunk, self.features, self.rows.title)
            if client is not None:
                who: list[str | None] = [str(client) if names is None else names[client]] * len(chunk)
            else:
                found = None if column is None else self.form.clients(chunk, column, self.rows.title)
                who = [None] * len(chunk) if found is None else list(found)
            said = self.of_client(client, stored) if network is None else self.said(network, stored, None)
            by = By.given if client is None else By.run
            yield Predicted(chunk.first, who, [place] * len(chunk), [by] * len(chunk), said)

    def by_client(self, level: float) -> Iterator[Predicted]:
        """Every row by the model of its client."""
        column, known = self.roles.client, known_clients(self.result.known)
        if column is None:
            instead = "write --client NAME where all are of one client, or --cluster K"
            raise no_client_column(self.rows, self.form, instead)
        census = Census.of(self.rows, self.form, self.roles, "")
        numbers = {name: known(name) for name in census.counts}
        new = [name for name, number in numbers.items() if number is None]
        with ExitStack() as stack:
            waiting = RecordFile(self._record()) if new else None
            if waiting is not None:
                stack.callback(waiting.close)
                self._predict_newcomers(census, numbers, waiting, level)
            for chunk in self.rows.chunks(self.features, [column]):
                who = self.form.clients(chunk, column, self.rows.title)
                stored = self.form.stored(chunk, self.features, self.rows.title)
                told = np.zeros(len(chunk), self._record()) if waiting is None else waiting.get(chunk.first, len(chunk))
                yield self._of_chunk(chunk.first, who, [numbers[name] for name in who], stored, told)

    def _of_chunk(
        self, first: int, who: list[str], numbers: list[int | None], stored: Tensor, told: NDArray[np.void]
    ) -> Predicted:
        """told: what was predicted for the rows of newcomers."""
        values, cluster, by = told["values"], told["cluster"].tolist(), told["by"].tolist()
        mine: dict[int, list[int]] = {}
        for row, number in enumerate(numbers):
            if number is not None:
                mine.setdefault(number, []).append(row)
        for number, rows in mine.items():
            values[rows] = self.of_client(number, stored[rows])
            place = self.place(number)
            for row in rows:
                cluster[row], by[row] = -1 if place is None else place, By.run
        places = [None if place < 0 else place for place in cluster]
        return Predicted(first, list(who), places, [By(one) for one in by], values)

    def _predict_newcomers(
        self, census: Census, numbers: dict[str, int | None], waiting: RecordFile, level: float
    ) -> None:
        new = [name for name in census.counts if numbers[name] is None]
        by_labels = placed_by_labels(self.result.method)
        if self.roles.y is None and by_labels:
            raise self._unplaced(new, f"and there is no column '{self.form.columns.y}' of labels to place them by")
        placer = Placer(self.result, level)
        read = partial(read_newcomers, required=False, by_labels=by_labels)
        found = read(self.rows, self.form, self.roles, census, new)
        for newcomer in found:
            placement, served = placer.place(newcomer)
            if served is None or newcomer.rows is None:
                raise self._unplaced([newcomer.name], f"and cannot be placed: {placement.problem}")
            records = np.zeros(len(newcomer.rows.row), waiting.kind)
            records["values"] = self.said(partial(served.outputs, 0), newcomer.rows.x, None)
            place = placement.nearest if placement.cluster is None else placement.cluster
            records["cluster"] = -1 if place is None else place
            records["by"] = By.none_fits if placement.none_fits else By.assigned
            waiting.put(newcomer.rows.row, records)

    def _unplaced(self, names: list[str], why: str) -> CoterieError:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        who = ", ".join(f"'{name}'" for name in names[:SHOWN]) + more
        return CoterieError(
            f"{self.rows.title}: the run does not know {who}, {why}. Give labelled rows of each (--y COLUMN), name a "
            "client of the run whose model is to be used (--client NAME), or a cluster (--cluster K)",
            code="client-unknown",
        )

    def _record(self) -> np.dtype[np.void]:
        return np.dtype([("cluster", "<i8"), ("by", "<i8"), ("values", "<f8", (self.form.outputs,))])

    def place(self, client: int) -> int | None:
        """The cluster of a client of the run; None where the method has none, or where it was not evaluated."""
        found = int(self.places[client])
        return found if self.clustered and found >= 0 else None

    def of_client(self, client: int | None, stored: Tensor) -> NDArray[np.float64]:
        """By the model of a client of the run."""
        assert client is not None
        return self.said(lambda x: outputs(self.result, client, x, self.runner), stored, client)

    def said(self, network: Callable[[Tensor], Tensor], stored: Tensor, client: int | None) -> NDArray[np.float64]:
        """Probabilities of classes, or targets in their units. client: of the run, whose scale it is; None: new."""
        known, form = self.result.known, self.form
        described = known if isinstance(known, Federation | DataRecord) else None
        x = form.scaled(stored)
        if described is not None and client is not None:
            scale = scale_of(described, client)
            x = stored if scale is None else scale(stored)
        with one_thread(), torch.inference_mode():
            try:
                found = network(x)
            except (RuntimeError, ValueError) as error:
                who = "" if client is None else f", {client_name(known.names, client)}"
                raise CoterieError(
                    f"{self.rows.title}{who}: these inputs do not fit the model: {' '.join(str(error).split())}",
                    code="data-shape",
                ) from None
        if form.kind == "classification":
            return np.asarray(torch.softmax(found.double(), 1)[:, : form.outputs].numpy())
        target = None if described is None else target_of(described, 0 if client is None else client)
        return np.asarray((found.double() if target is None else target.undo(found)).numpy())


def _kinds(form: RowForm) -> dict[str, type]:
    """The columns of the table, and their types."""
    out: dict[str, type] = {"row": int, "client": str, "cluster": int, "model": str}
    if form.kind == "classification":
        out["prediction"] = int if form.class_names is None else str
        return out | dict.fromkeys(_probabilities(form), float)
    return out | dict.fromkeys(_targets(form), float)


def _probabilities(form: RowForm) -> list[str]:
    return [f"p_{name}" for name in form.class_names or range(form.outputs)]


def _targets(form: RowForm) -> list[str]:
    return ["prediction"] if form.outputs == 1 else [f"prediction_{i}" for i in range(form.outputs)]


def _columns(part: Predicted, form: RowForm) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {
        "row": list(range(part.first, part.first + len(part.client))),
        "client": list(part.client),
        "cluster": list(part.cluster),
        "model": [by.name for by in part.by],
    }
    values = part.values.T.tolist()
    if form.kind == "regression":
        return table | dict(zip(_targets(form), values, strict=True))
    best = part.values.argmax(1).tolist()
    names = form.class_names
    table["prediction"] = best if names is None else [names[i] for i in best]
    return table | dict(zip(_probabilities(form), values, strict=True))
