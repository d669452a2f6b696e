"""What the tests of single methods share: clients that are imagined, and short ways to look at what was asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.errors import NoAnswerError
from coterie.core.model import Model
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import All, Best, Fit, Fitted, Local, Pick, Ref, Reply, Score, Scored, Task
from coterie.methods.cam import CAM
from coterie.methods.contract import Method
from coterie.methods.fedgroup import FedGroup, FedGrouProx
from coterie.methods.fesem import FeSEM
from coterie.methods.ifca import IFCA
from coterie.methods.stocfl import StoCFL
from coterie.methods.wecfl import WeCFL
from coterie.testing import ScriptedAsk as ScriptedAsk
from coterie.testing import fitted as fitted
from coterie.testing import make_cohort as make_cohort
from coterie.testing import make_roster as make_roster
from coterie.testing import scored as scored
from papers.methods.cam import CAMAuthors, CAMWithoutGlobal
from papers.methods.fedgroup import FedGroupAuthors, FedGroupRAC, FedGroupRCC, FedGrouProxAuthors
from papers.methods.fesem import FeSEMAuthors
from papers.methods.ifca import IFCAAuthors
from papers.methods.stocfl import StoCFLAuthors
from papers.methods.wecfl import WeCFLAuthors

LOCAL = Local(steps=7, lr=0.25)
TWO = Model(lambda: nn.Linear(2, 1, bias=False))  # a model is two numbers
FOUR = Model(lambda: nn.Linear(2, 2, bias=False))  # or four


def silence(task: object) -> Any:
    """Nobody answers, of which `ask` tells with an error."""
    raise NoAnswerError("round 1: no client answered")


def played(method: Method[Any], state: Any, cohort: Cohort, ask: Any) -> Any:
    """The state after a round, as the round loop has it: unchanged where nobody answers."""
    try:
        return method.round(state, cohort, ask)
    except NoAnswerError:
        return state


KMEANS = {"kmeans": "warm", "size_unit": "samples", "join": "loss"}
ABLATIONS = {"rcc": FedGroupRCC, "rac": FedGroupRAC}
AUTHORS: dict[type[Any], tuple[type[Any], dict[str, Any]]] = {  # of a method, with the paper's value of options
    IFCA: (IFCAAuthors, {"choose_by": "loss"}),
    FeSEM: (FeSEMAuthors, KMEANS),
    WeCFL: (WeCFLAuthors, KMEANS),
    FedGroup: (FedGroupAuthors, {"cold_start": "on_selection"}),
    FedGrouProx: (FedGrouProxAuthors, {"cold_start": "on_selection"}),
    CAM: (CAMAuthors, {"order": "simultaneous", "score": "additive"}),
    StoCFL: (
        StoCFLAuthors,
        {
            "tau": 0.5,  # the authors' code has no tau: auto
            "global_update": "parallel",
            "cluster_vector": "all_members",
            "merge_model": "mean",
            "recompute_after_merge": False,
            "new_cluster": "anchor",
        },
    ),
}


def variant(kind: type[Any], **options: Any) -> Any:
    """The variant of a method (its authors', or an ablation) that differs from the paper's in these options only."""
    made, paper = AUTHORS[kind]
    if kind is CAM and options.pop("without_global", False):
        made, paper = CAMWithoutGlobal, {}
        options.pop("order", None)
    if options.get("grouping") in ABLATIONS:
        made = ABLATIONS[options.pop("grouping")]
    names = {field.name for field in dataclasses.fields(kind)}
    plain = kind(**{key: value for key, value in (paper | options).items() if key in names and key != "warmup_by"})
    usual = {field.name: getattr(plain, field.name) for field in dataclasses.fields(kind)}
    return made(**(usual | paper | options))


class Imagined:
    """Clients that move every model by their own step: answers any Fit of the ids it is asked for, or of a cohort."""

    def __init__(
        self,
        step: Callable[[int, Tensor], Sequence[float]],
        cohort: Cohort,
        missing: Sequence[int] = (),
        losses: Mapping[int, Sequence[float]] | None = None,
    ) -> None:
        self.step, self.cohort, self.missing, self.losses = step, cohort, missing, losses or {}
        self.visits: list[list[Task]] = []

    def __call__(self, task: Any, /) -> Any:
        single = isinstance(task, Fit | Score)
        tasks: list[Task] = [task] if single else list(task)
        self.visits.append(tasks)
        replies = [self.answer(t) for t in tasks]
        return replies[0] if single else replies

    def answer(self, task: Task) -> Reply:
        ids = [i for i in (self.cohort.ids if task.on is None else task.on).tolist() if i not in self.missing]
        n = size(self.cohort.roster, ids)
        if isinstance(task, Score):
            rows = torch.tensor([self.score(i, task.centers) for i in ids]).reshape(len(ids), len(task.centers))
            return Scored(torch.tensor(ids, dtype=torch.int64), n, rows)
        assert isinstance(task, Fit)
        models: dict[int, list[float]] = {}
        choice: list[int] = []
        for i in ids:
            start, row = self.resolve(task.start, i)
            models[i] = (start + torch.tensor(list(self.step(i, start)))).tolist()
            choice += [] if row is None else [row]
        return fitted(models, n.tolist(), choice or None)

    def score(self, client: int, centers: Tensor) -> list[float]:
        """Its losses as they were given, or how far each center is from where it would go."""
        if client in self.losses:
            return list(self.losses[client])
        return [float((c - torch.tensor(list(self.step(client, c)))).square().sum()) for c in centers]

    def resolve(self, ref: Ref, client: int) -> tuple[Tensor, int | None]:
        match ref:
            case All(theta):
                return theta, None
            case Pick(centers, labels):
                row = int(labels.at(torch.tensor([client]))[0])
                return centers[row], row
            case Best(centers):
                row = int(np.argmin(self.losses[client]))
                return centers[row], row
        raise AssertionError(f"not imagined: {ref}")


def size(roster: Roster, ids: Sequence[int]) -> Tensor:
    """The sizes of these clients."""
    return ByClient(roster.ids, roster.n).at(torch.tensor(list(ids), dtype=torch.int64))


NOBODY = fitted({})


def kept(*ids: int) -> Fitted:
    """Answers to a Fit with send=False: who, and no models."""
    return Fitted(torch.tensor(ids), torch.full((len(ids),), 10), torch.zeros(len(ids)))


def by_client(table: Mapping[int, int]) -> ByClient:
    """Labels by client."""
    return ByClient(torch.tensor(list(table), dtype=torch.int64), torch.tensor(list(table.values()), dtype=torch.int64))


def table(labels: ByClient) -> dict[int, int]:
    """Labels by client, as a dict."""
    return dict(zip(labels.ids.tolist(), labels.values.tolist(), strict=True))


def on(task: Task) -> list[int] | None:
    """Whom a task is for; None is the whole cohort."""
    return None if task.on is None else task.on.tolist()


def a_fit(task: object) -> Fit:
    """The task, which is a Fit."""
    assert isinstance(task, Fit)
    return task


def all_of(ref: Ref | None) -> list[float]:
    """The vector of an All."""
    assert isinstance(ref, All)
    return ref.theta.tolist()


def pick_of(ref: Ref | None) -> Pick:
    """The reference, which is a Pick."""
    assert isinstance(ref, Pick)
    return ref


def starts(ref: Ref | None, *ids: int) -> list[list[float]]:
    """The vectors that a Pick means for these clients."""
    pick = pick_of(ref)
    return pick.centers[pick.labels.at(torch.tensor(ids))].tolist()


def close(actual: Tensor, expected: Any, within: float = 1e-6) -> None:
    """Equal, up to rounding."""
    want = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, want, rtol=0, atol=within)


def assert_same(one: Any, other: Any) -> None:
    """Two states are equal, number by number."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other
