"""Clients never seen, put into clusters by the method's own rule: one after another, in bounded memory.

Each newcomer is placed as if it came alone: what `result.admit` says of it. So neither the order of a file nor how much
of it is read at a time changes anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from coterie.client.visit import TaskRunner
from coterie.core.errors import CoterieError
from coterie.core.references import Best, Estimated, Mix, Pick, walk
from coterie.core.settings import explained
from coterie.core.tables import Clients
from coterie.core.tasks import Evaluate
from coterie.data.federation import Federation
from coterie.data.table import open_rows
from coterie.insight.explain import cluster_models
from coterie.network.server import load
from coterie.serving.fit_of_newcomers import LEVEL, Yardstick, far_below
from coterie.serving.newcomers import Census, Newcomer, given_newcomers, placed_by_labels, read_newcomers
from coterie.serving.row_form import RowForm, no_client_column
from coterie.serving.table_files import open_table
from coterie.training.predict import Served, admit
from coterie.training.result import Result

Run: TypeAlias = Result[Any] | str | Path
Data: TypeAlias = Any  # a file, a table, a Federation, or an iterable of (x, y)


@explained
@dataclass(frozen=True)
class Placement:
    """Where a client was put.

    cluster: None where no cluster fits, where the method has no clusters, or where it could not be placed (`problem`).
    nearest: what the method's own rule says, whether or not it fits.
    confidence: the probability that no other cluster's model serves it better; its share in the cluster for methods
    that mix clusters. fits: None where it cannot be said. p_value: see `fit_of_newcomers`.
    usual: the mean accuracy (of a regression: loss) of the clients of its nearest cluster, each counted once.
    far_below: its accuracy is far below that (`fit_of_newcomers`), which may still be what clients differ by.
    """

    client: str
    cluster: int | None
    nearest: int | None = None
    confidence: float | None = None
    fits: bool | None = None
    p_value: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    samples: int = 0  # that it was scored on
    known: bool = False  # a client of the run, which keeps its place
    shares: tuple[float, ...] | None = None  # of methods that mix clusters
    problem: str = ""
    usual: float | None = None
    far_below: bool = False

    @property
    def none_fits(self) -> bool:
        """None of these."""
        return self.fits is False


@explained
@dataclass(frozen=True, eq=False)
class Placements:
    """Where the clients of a file were put; `print` shows how many went where."""

    method: str
    clustered: bool  # whether the method has clusters
    placements: tuple[Placement, ...]

    def __len__(self) -> int:
        return len(self.placements)

    def __iter__(self) -> Iterator[Placement]:
        return iter(self.placements)

    def __str__(self) -> str:
        new = [one for one in self.placements if not one.known and not one.problem]
        words = [f"{len(new)} newcomers"] if len(new) != 1 else ["1 newcomer"]
        if not self.clustered:
            words.append(f"{self.method} has no clusters: all are given the one model there is")
        else:
            sizes = Counter(one.cluster for one in new if one.cluster is not None)
            words += [f"{many} in cluster {cluster}" for cluster, many in sorted(sizes.items())]
        for many, what in (
            (sum(one.none_fits for one in new), "fit none of these"),
            (sum(one.known for one in self.placements), "of the run already"),
            (sum(bool(one.problem) for one in self.placements), "could not be placed"),
        ):
            words += [f"{many} {what}"] if many else []
        return ", ".join(words)


KINDS: dict[str, type] = {
    "client": str,
    "cluster": int,
    "nearest": int,
    "confidence": float,
    "fits": bool,
    "p_value": float,
    "accuracy": float,
    "loss": float,
    "samples": int,
    "known": bool,
    "problem": str,
    "usual": float,
    "far_below": bool,
}


def assign(
    run: Run,
    data: Data,
    *,
    out: str | Path | None = None,
    y: str | None = None,
    client: str | None = None,
    newcomer: str | None = None,
    level: float = LEVEL,
) -> Placements:
    """Put clients that were not part of training into clusters, by the method's own rule and without retraining.

    run: a result, or a run's directory. data: a csv, parquet or npz file or a table, with a client column and labels as
    the training data has them; or a Federation, or any iterable of (x, y) per client. Without a column of labels, flux
    and pacfl place clients all the same, and nothing is said of how well they fit. out: a csv or parquet file to write.
    y, client: the columns of the labels and clients, where they are called otherwise than in training.
    newcomer: all rows are of this one new client; a file without a client column needs it.
    level: of the newcomers that fit, so many are said to fit none. The training data is not needed.
    """
    result = as_result(run)
    found: list[Placement] = []
    if out is None:
        found.extend(placements(result, data, y=y, client=client, newcomer=newcomer, level=level))
    else:
        with open_table(Path(out), KINDS) as writer:
            for one in placements(result, data, y=y, client=client, newcomer=newcomer, level=level):
                writer.add({name: [getattr(one, name)] for name in KINDS})
                found.append(one)
    return Placements(method_name(result), clustered(result.method.predictor(result.state)), tuple(found))


def placements(
    run: Run,
    data: Data,
    *,
    y: str | None = None,
    client: str | None = None,
    newcomer: str | None = None,
    level: float = LEVEL,
) -> Iterator[Placement]:
    """The same as `assign`, one client at a time."""
    result = as_result(run)
    if not 0 < level < 1:
        raise CoterieError(f"level: a probability between 0 and 1, not {level}", code="argument-invalid")
    placer, known = Placer(result, level), known_clients(result.known)
    for one in _newcomers(result, data, y, client, newcomer):
        mine = None if one.rows is None else known(one.name)
        yield placer.place(one)[0] if mine is None else placer.of_the_run(mine, one.name)


def _newcomers(
    result: Result[Any], data: Data, y: str | None, client: str | None, alone: str | None
) -> Iterable[Newcomer]:
    if isinstance(data, Federation) or (not isinstance(data, str | Path) and _is_pairs(data)):
        return given_newcomers(data)
    form = RowForm.of(result)
    rows = open_rows(data, form.columns.x)
    roles = form.roles(rows, y, client)
    by_labels = placed_by_labels(result.method)
    if roles.y is None and by_labels:
        raise CoterieError(
            f"{rows.title}: has no column '{form.columns.y}' of labels, by which clients are placed; name it: "
            "--y COLUMN (y=...)",
            code="data-column-unknown",
        )
    if roles.client is None and alone is None:
        raise no_client_column(rows, form, "write --client NAME (newcomer=...) where all are of one new client")
    if roles.client is not None and alone is not None:
        raise CoterieError(
            f"{rows.title}: has a column '{roles.client}' that says whose the rows are; leave --client (newcomer=...) "
            "out, or the column",
            code="option-conflict",
        )
    census = Census.of(rows, form, roles, alone=alone or "")
    return read_newcomers(
        rows, form, roles, census, list(census.counts), required=roles.y is not None, by_labels=by_labels
    )


def _is_pairs(data: Any) -> bool:
    from coterie.data.cells import column_names

    return column_names(data) is None and isinstance(data, Iterable)


class Placer:
    """Places one newcomer after another."""

    def __init__(self, result: Result[Any], level: float = LEVEL) -> None:
        self._result = result
        self._yardstick = Yardstick.of(result, level)
        self._classes = result.model.loss == "cross_entropy"
        task = result.method.predictor(result.state)
        self._clustered, models = clustered(task), cluster_models(task)
        self._many = 0 if models is None else len(models[0])
        self._runner: TaskRunner | None = None  # networks, made for the first newcomer and used for all

    def of_the_run(self, client: int, name: str) -> Placement:
        """A client that the run knows."""
        place = int(self._result.assignments[client])
        return Placement(name, place if place >= 0 and self._clustered else None, known=True)

    def place(self, newcomer: Newcomer) -> tuple[Placement, Served | None]:
        """Where it belongs, and how it predicts."""
        name = newcomer.name
        if newcomer.data is None:
            return Placement(name, None, problem="no labelled rows to place it by"), None
        if why := getattr(self._result.method, "shares_no_model", ""):
            return Placement(name, None, fits=False, problem=why), None
        try:
            served = admit(self._result, newcomer.data, self._runner)
        except CoterieError as error:
            raise CoterieError(f"client '{name}': {error}", code=error.code) from None
        self._runner = self._runner or TaskRunner(self._result.model)
        if served.missing or not len(served.clients.ids):
            why = served.missing[0].reason if served.missing else "it gave no answer"
            return Placement(name, None, problem=why), None
        return self.judged(name, served, newcomer.labelled), served

    def judged(self, name: str, served: Served, labelled: bool = True) -> Placement:
        """Where a newcomer that was admitted belongs, and whether it fits there, which only labels can say."""
        nearest, reply = int(served.assignments[0]), served.clients
        if not labelled:
            return Placement(name, nearest if self._clustered else None, nearest if self._clustered else None)
        errors = served.errors(0)
        shares = None if reply.shares is None else tuple(reply.shares[0].tolist())
        own = nearest >= self._many > 0  # a cluster of its own: the method says itself that none fits
        fits = False if own else self._yardstick.fits(errors, nearest)
        sure = shares[nearest] if shares is not None else math.nan if own else served.confidence(0)
        p_value = None if own else self._yardstick.p_value(errors, nearest)
        samples, mean = int(reply.n[0]), None if own else self._yardstick.mean(nearest)
        accuracy = 1 - float(errors.mean()) if samples and self._classes else None
        usual = None if mean is None else 1 - mean if self._classes else mean
        return Placement(
            client=name,
            cluster=nearest if self._clustered and fits is not False else None,
            nearest=nearest if self._clustered and not own else None,
            confidence=_number(sure) if self._clustered else None,
            fits=fits,
            p_value=p_value,
            accuracy=accuracy,
            loss=_number(float(reply.loss[0])) if samples else None,
            samples=samples,
            shares=shares,
            usual=usual,
            far_below=self._clustered and far_below(accuracy, usual, samples),
        )


def as_result(run: Run) -> Result[Any]:
    """A result, or the run of a directory."""
    return run if isinstance(run, Result) else load(run)


def clustered(task: Evaluate) -> bool:
    """Whether clients choose from or mix several models, rather than all have the same or each its own."""
    inside: Sequence[object] = [node for node in walk(task) if isinstance(node, Pick | Best | Mix | Estimated)]
    return bool(inside) or task.mixture is not None


def method_name(result: Result[Any]) -> str:
    """What the method is called."""
    return type(result.method).__name__


def known_clients(clients: Clients) -> Callable[[str], int | None]:
    """The id of a client of the run by its name, or by its number where clients have no names; None: it is new."""
    if clients.names is not None:
        return {name: number for number, name in enumerate(clients.names)}.get
    return lambda name: int(name) if name.isdecimal() and int(name) < len(clients) else None


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
