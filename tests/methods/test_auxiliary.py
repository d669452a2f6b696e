"""Auxiliary trainings, whose result is only looked at, leave no trace in what a client keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from scripted import LOCAL, ScriptedAsk, fitted
from torch import nn

import coterie
from conftest import UNTOLD, column, linear, make_federation, raises, vector
from coterie import CFL, FLHC, IFCA, Composed, FedEM, FedGroup, FedSoft, Local, Model, StoCFL
from coterie.client.batched.visits import BatchedTaskRunner
from coterie.client.contract import Moment
from coterie.client.visit import TaskRunner
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.tables import ByClient
from coterie.core.tasks import All, Fit, Pick
from coterie.engines.contract import Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.methods.cam import CAM, References, Residual
from coterie.methods.contract import Method

KEPT = Local(steps=2, batch="full", lr=0.3, momentum=0.9, keep_optimizer=True)
SPLITS: dict[str, Any] = {"eps1": 5.0, "eps2": 0.01, "local": KEPT}  # CFL splits at once: absent members walk the tree
VARIANTS: dict[str, Any] = {
    "ifca-auto": IFCA(k="auto", local=KEPT),
    "fedem-auto": FedEM(k="auto", local=KEPT),
    "fedsoft-auto": FedSoft(k="auto", local=KEPT),
    "cfl-splits": CFL(**SPLITS),
    "fl+hc-at-once": FLHC(k=2, warmup=0, cluster_on="cohort", local=KEPT),
    "fedgroup-few": FedGroup(k=2, alpha=1, pretrain=KEPT, local=KEPT),
    "stocfl-psi": StoCFL(tau=0.5, psi=KEPT, local=KEPT),
    "composed-once": Composed(k=2, when="once", local=KEPT),
    "composed-update": Composed(k=2, representation="update", when="once", local=KEPT),
    "composed-gradient": Composed(k=2, representation="gradient", local=KEPT),
    "composed-losses-auto": Composed(k="auto", representation="losses", clustering="argmin", local=KEPT),
    "cam-composed": CAM(base=Composed(k=2, when="once", local=KEPT), warmup=1, local=KEPT),
    "cam-cfl": CAM(base=CFL(**SPLITS), warmup=1, local=KEPT),
}


def of_the_catalogue(name: str) -> Method[Any]:
    fields = {f.name: f.default for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    params: dict[str, Any] = {key: value for key, value in {"local": KEPT, "k": 2}.items() if key in fields}
    if "base" in fields:
        given = fields["base"]
        params["base"] = IFCA(k=2) if given is dataclasses.MISSING else given
        params["base"] = dataclasses.replace(params["base"], local=KEPT)
        params |= {"section": ("bias",)} if "section" in fields else {"warmup": 1}
    made: Method[Any] = METHODS.build(name, params, NO_CODE)
    return made


class Writing(Sequential):
    """The reference engine, which notes the optimiser states that clients write, round by round."""

    def __init__(self, model: Model, federation: Any) -> None:
        super().__init__(model, federation)
        self.written: list[tuple[int, int, str]] = []

    def visit(self, visit: Visit) -> Outcome:
        for client in visit.ids.tolist():
            for task in visit.tasks_for(client):
                if isinstance(task, Fit) and task.keeps_optimizer and visit.keep:
                    self.written.append((visit.moment.round, client, task.optimizer_slot))
        return super().visit(visit)


@pytest.mark.parametrize("name", [*UNTOLD, *VARIANTS])
def test_an_optimiser_state_is_written_once_a_round(name: str) -> None:
    """A second training of one client with the same state in one round would be auxiliary, or of another model."""
    method = VARIANTS[name] if name in VARIANTS else of_the_catalogue(name)
    federation = make_federation(10)
    model = linear(bias=name.endswith("personal"))  # a section of it
    engine = Writing(model, federation)
    coterie.run(method, federation, model, rounds=4, participation=0.5, engine=engine)
    assert engine.written
    assert len(set(engine.written)) == len(engine.written)


@pytest.mark.parametrize("kind", [IFCA, FedEM, FedSoft])
def test_choosing_k_leaves_no_momentum_behind(kind: type[Any]) -> None:
    """In a first round there is no kept state to go on from, so that keeping it changes nothing."""
    federation = make_federation(8)
    results = [
        coterie.run(
            kind(k="auto", local=dataclasses.replace(KEPT, keep_optimizer=keep)), federation, linear(), rounds=1
        )
        for keep in (True, False)
    ]
    one, other = (r.state.centers if kind is FedSoft else r.state for r in results)
    assert torch.equal(one, other)


@pytest.mark.parametrize("bench", [TaskRunner, BatchedTaskRunner])
def test_a_training_that_is_not_kept_starts_afresh_and_writes_nothing(bench: type[TaskRunner]) -> None:
    data, theta = column([1.0, -1.0], [0, 1]), vector(0.0, 0.0)
    model = Model(lambda: nn.Linear(1, 2, bias=False))
    keeps = {"optimizer": vector(100.0, 100.0)}

    def trained(task: Fit, keeps: dict[str, torch.Tensor]) -> Any:
        return bench(model).visit([task], 0, data, keeps, Moment(0, 0, 0))

    looked = trained(Fit(All(theta), KEPT, keep=False), keeps)
    fresh = trained(Fit(All(theta), KEPT), {})
    assert not looked.keeps
    assert torch.equal(looked.answers[0].theta, fresh.answers[0].theta)
    assert set(fresh.keeps) == {"optimizer"}


def test_what_is_saved_is_kept() -> None:
    with raises("task-invalid", match="save='w' with keep=False"):
        Fit(All(vector(0.0)), LOCAL, save="w", keep=False)


def test_cam_does_not_take_an_auxiliary_training_for_one_of_the_cluster_models() -> None:
    """One task goes out, with the global logits added; the global model is not trained beside it."""
    ask = ScriptedAsk([fitted({3: [1.0, 1.0]}, choice=[0])])
    references = References(torch.zeros(1, 2), torch.full((1, 2), 7.0))
    residual = Residual(ask, All(vector(5.0, 5.0)), references, LOCAL, lam=0.1)
    start = Pick(torch.zeros(1, 2), ByClient(torch.tensor([3]), torch.tensor([0])))
    residual(Fit(start, LOCAL, keep=False, on=torch.tensor([3])))
    (task,) = ask.asked[0]
    assert isinstance(task.offset, All)
    assert task.offset.theta.tolist() == [5.0, 5.0]
    assert task.anchor is None
    assert not residual.clusters
    assert not residual.shared_replies
