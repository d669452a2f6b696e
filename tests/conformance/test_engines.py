"""Every method on every engine, and every primitive against the sequential one.

A method in the catalogue or an engine in the configuration is picked up by the parametrisation.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
import toys
from torch import Tensor, nn

import coterie
from conftest import PAPERS, few
from coterie.client.contract import Moment
from coterie.core.local import Local
from coterie.core.references import All, Best, Estimated, Mix, Own, Personal, Pick, Posterior, walk
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Evaluate, Fit, Fitted, Score, Task
from coterie.data.federation import Federation
from coterie.engines.contract import Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.training.result import Result

# ------------------------------------------------------------------------------- every method on every engine


@dataclass(frozen=True)
class Scenario:
    """A way to run that has gone wrong in somebody's library."""

    build: Callable[[], nn.Module] = toys.linear
    task: Literal["classification", "regression"] = "classification"
    participation: float | int = 1.0
    local: Local = toys.LOCAL
    within: float = 1e-6


SCENARIOS: Mapping[str, Scenario] = {
    "plain": Scenario(),
    "partial": Scenario(participation=0.6),
    "momentum-kept": Scenario(participation=7, local=Local(batch=4, lr=0.05, momentum=0.9, keep_optimizer=True)),
    # Adam divides by the size of a gradient, and so makes rounding in a small one large.
    "adam-kept": Scenario(local=Local(steps=5, batch=4, lr=0.02, optimizer="adam", keep_optimizer=True), within=2e-5),
    "batchnorm": Scenario(build=toys.batchnorm),
    "dropout": Scenario(build=toys.dropout, local=Local(steps=10, batch=8, lr=0.1, lr_decay=0.9)),
    "regression": Scenario(build=toys.regressor, task="regression", local=Local(steps=6, batch=4, lr=0.05)),
}


REFUSED = {("fedrc", "regression")}  # which is of classes


@dataclass(frozen=True, eq=False)
class Ran:
    """A finished run and what its clients keep."""

    result: Result[Any]
    memory: Mapping[str, Tensor]


@functools.cache
def ran(kind: toys.Kind, name: str, scenario: str) -> Ran:
    s = SCENARIOS[scenario]
    federation = toys.toy(s.task)
    with toys.engine(kind, federation, s.build) as engine:
        result = coterie.run(
            toys.method(name, s.local),
            federation,
            model=s.build,
            rounds=4,
            participation=s.participation,
            seed=1,
            engine=engine,
        )
        return Ran(result, engine.memory.tensors())


def cell(kind: toys.Kind, name: str, scenario: str) -> Any:
    """`make test` has every method once, batched, and each kind of processes with a handful of methods."""
    names, scenarios = list(PAPERS), [s for s in SCENARIOS if (name, s) not in REFUSED]
    mine = scenarios[names.index(name) % len(scenarios)]
    daily = scenario == mine and (kind == ("batched", 1) or name in ("ditto", "fedem", "fedsoft", "ifca-cam"))
    return pytest.param(kind, name, scenario, marks=() if daily else pytest.mark.exhaustive)


@pytest.mark.parametrize(
    ("kind", "name", "scenario"),
    [
        cell(kind, name, scenario)
        for name in PAPERS
        for scenario in SCENARIOS
        for kind in toys.PARALLEL
        if (name, scenario) not in REFUSED
    ],
)
def test_a_method_does_the_same_on_every_engine(kind: toys.Kind, name: str, scenario: str) -> None:
    """To float noise; and engines with processes to the last bit, however many processes there are."""
    reference, mine = ran(toys.REFERENCE, name, scenario), ran(kind, name, scenario)
    within = SCENARIOS[scenario].within
    np.testing.assert_array_equal(mine.result.assignments, reference.result.assignments)
    toys.assert_same(mine.result.state, reference.result.state, within=within)
    toys.assert_same(mine.memory, reference.memory, within=within)
    toys.assert_same(mine.result.clients, reference.result.clients, within=10 * within)
    assert [e.answered for e in mine.result.history] == [e.answered for e in reference.result.history]
    one = ran((kind[0], 1), name, scenario)
    toys.assert_same(mine.result.state, one.result.state)
    toys.assert_same(mine.memory, one.memory)
    toys.assert_same(mine.result.clients, one.result.clients)


@pytest.mark.parametrize("name", few(PAPERS, *toys.HANDFUL))
@pytest.mark.parametrize("kind", few(toys.EITHER, toys.REFERENCE), ids=str)
def test_a_rerun_changes_no_bit(kind: toys.Kind, name: str) -> None:
    first = ran(kind, name, "momentum-kept")
    again = ran.__wrapped__(kind, name, "momentum-kept")
    toys.assert_same(first.result.state, again.result.state)
    toys.assert_same(first.memory, again.memory)


@pytest.mark.parametrize("kind", toys.PROCESSES, ids=str)
def test_a_rerun_with_processes_changes_no_bit(kind: toys.Kind) -> None:
    toys.assert_same(*(ran.__wrapped__(kind, "ditto", "momentum-kept").memory for _ in range(2)))


def test_the_scenarios_test_something() -> None:
    """The toy is separated: clustered methods find its clusters; seeds matter; optimiser states are really kept."""
    for name in ("ifca", "fesem", "wecfl"):
        assert ran(toys.REFERENCE, name, "plain").result.summary.ari == 1.0
    plain, kept = (ran(toys.REFERENCE, "fedavg", s).memory for s in ("plain", "momentum-kept"))
    assert not plain
    assert len(kept) > 7  # four rounds of seven out of ten


class Noting(Sequential):
    """The reference engine; it notes what kinds of things it is asked."""

    def __init__(self) -> None:
        super().__init__(coterie.Model(toys.linear), toys.toy())
        self.asked: set[str] = set()

    def visit(self, visit: Visit) -> Outcome:
        """Tasks, the references in them, and the options that are in use."""
        for node in (node for task in visit.tasks for node in walk(task)):
            given = [f.name for f in dataclasses.fields(node) if getattr(node, f.name) is not None]  # type: ignore
            self.asked |= {f"{type(node).__name__}.{name}" for name in given}
        return super().visit(visit)


def test_the_handful_of_methods_asks_all_that_methods_ask() -> None:
    asked: dict[str, set[str]] = {}
    for name in PAPERS:
        engine = Noting()
        coterie.run(toys.method(name), toys.toy(), model=toys.linear, rounds=2, engine=engine, evaluate_every=2)
        asked[name] = engine.asked
    assert set.union(*asked.values()) == set.union(*(asked[name] for name in toys.HANDFUL))


BY_ID = ("halves",)  # which samples are in which half of a client's data is drawn by its id
SAMPLED_ALIKE = [name for name in PAPERS if name not in BY_ID]
SOME = {*toys.HANDFUL, "cfl", "stocfl", "fedgroup"} - set(BY_ID)


@pytest.mark.parametrize("name", few(SAMPLED_ALIKE, *sorted(SOME)))
def test_other_ids_for_the_same_clients_only_rename_the_result(name: str) -> None:
    clients = toys.arrays()
    order = np.random.default_rng(5).permutation(len(clients))  # new client i is the old client order[i]
    local = Local(steps=6, batch="full", lr=0.3, shuffle=False)  # so that no plan depends on an id

    def run(federation: Federation) -> Result[Any]:
        return coterie.run(toys.method(name, local), federation, model=toys.linear, rounds=4, seed=1)

    truth, groups = np.array(toys.TRUTH), np.array(toys.GROUPS)
    old = run(
        Federation.from_arrays(
            clients, truth=truth.tolist(), groups=groups.tolist(), standardise=False, standardise_y=False
        )
    )
    reordered = {"truth": truth[order].tolist(), "groups": groups[order].tolist()}
    new = run(Federation.from_arrays([clients[c] for c in order], **reordered))
    torch.testing.assert_close(new.clients.loss, old.clients.loss[order], rtol=1e-4, atol=1e-5)
    assert torch.equal(new.clients.n, old.clients.n[order])
    together = old.assignments[order, None] == old.assignments[order]
    np.testing.assert_array_equal(new.assignments[:, None] == new.assignments, together)


# ------------------------------------------------------------------- every primitive against the sequential one

P = 10  # numbers in toys.linear: 2 x 4 weights and 2 biases
CENTERS = torch.randn(3, P, generator=torch.Generator().manual_seed(1))
THETA = CENTERS.mean(0)
EVERYONE = torch.arange(10)
LABELS = ByClient(EVERYONE, torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0]))
SHARES = ByClient(EVERYONE, torch.rand(10, 3, generator=torch.Generator().manual_seed(2)))
PRIOR = torch.tensor([0.5, 0.3, 0.2])
BY_CLASS = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])  # the share of each class in each cluster
LOCAL = Local(steps=5, batch=4, lr=0.1)
MOVED = Local(steps=5, batch=4, lr=0.1, momentum=0.9, weight_decay=0.1, keep_optimizer=True)
OWN = Personal(("bias",), Own("mine", All(THETA[8:])))  # the biases, which are the last two numbers
TUNED = dataclasses.replace(OWN, tune=Local(epochs=2, batch=4, lr=0.1))
BODIES = CENTERS[:, :8].contiguous()


def fit(**options: Any) -> Fit:
    defaults: dict[str, Any] = {"start": All(THETA), "local": LOCAL}
    return Fit(**(defaults | options))


TASKS: Mapping[str, list[Task]] = {
    "all": [fit()],
    "pick": [fit(start=Pick(CENTERS, LABELS))],
    "best": [fit(start=Best(CENTERS))],
    "best-given": [fit(start=Best(CENTERS, given=All(CENTERS[1])))],
    "mix": [fit(start=Mix(CENTERS, SHARES))],
    "own": [fit(start=Own("mine", All(THETA)), save="mine")],
    "own-default-pick": [fit(start=Own("nothing", Pick(CENTERS, LABELS)))],
    "anchor": [fit(anchor=All(CENTERS[0]), mu=0.5)],
    "anchor-stiff": [fit(anchor=Mix(CENTERS, SHARES), mu=1e3)],
    "anchor-mu-by-client": [fit(anchor=Best(CENTERS), mu=ByClient(EVERYONE, torch.linspace(0, 30, 10)))],
    "offset": [fit(offset=Pick(CENTERS, LABELS))],
    "sample-weights": [fit(weights=Posterior(CENTERS, 1, All(PRIOR)))],
    "sample-weights-own-prior": [fit(weights=Posterior(CENTERS, 2, Own("pi", Mix(torch.eye(3), SHARES))))],
    "sample-weights-by-class": [fit(weights=Posterior(CENTERS, 1, All(PRIOR), BY_CLASS))],
    "everything": [
        fit(
            start=Pick(CENTERS, LABELS),
            anchor=All(THETA),
            mu=0.1,
            offset=Best(CENTERS),
            weights=Posterior(CENTERS, 0, All(PRIOR)),
            local=Local(epochs=2, batch=8, lr=0.05, momentum=0.9, weight_decay=0.01, keep_optimizer=True),
            optimizer_slot="speed",
            save="mine",
        )
    ],
    "epochs": [fit(local=Local(epochs=3, batch=5, lr=0.1))],
    "full-batch": [fit(local=Local(steps=3, batch="full", lr=1.0))],
    "unshuffled": [fit(local=Local(steps=7, batch=3, lr=0.1, shuffle=False))],
    "adam": [fit(local=Local(steps=5, batch=4, lr=0.01, optimizer="adam", weight_decay=0.1))],
    "clip": [fit(local=Local(steps=5, batch=4, lr=0.1, clip=0.2))],
    "clip-anchor": [fit(anchor=All(CENTERS[0]), mu=3.0, local=Local(steps=5, batch=4, lr=0.1, clip=0.2))],
    "clip-momentum": [fit(local=Local(steps=5, batch=4, lr=0.1, clip=0.2, momentum=0.9, weight_decay=0.1))],
    "clip-full-batch": [fit(local=Local(steps=9, batch="full", lr=0.1, clip=0.2))],
    "sgd-kept-without-momentum": [fit(local=Local(steps=2, lr=0.1, keep_optimizer=True))],
    "halves": [fit(half=0), fit(half=1), fit(half=1, offset=All(CENTERS[0]))],
    "half-weights": [fit(half=0, weights=Posterior(CENTERS, 1, All(PRIOR)))],
    "sketch": [fit(sketch=3, send=False, keep=False), fit(start=Pick(CENTERS, LABELS), half=1, sketch=100)],
    "train-section": [fit(train=("bias",))],
    "freeze-section": [fit(freeze=("bias",), local=Local(steps=5, batch=4, lr=0.01, optimizer="adam"))],
    "train-section-kept": [fit(train=("bias",), local=MOVED, anchor=All(CENTERS[0]), mu=0.5, save="v")],
    "freeze-section-clip": [fit(freeze=("weight",), local=Local(steps=5, batch=4, lr=0.1, clip=0.2))],
    "personal": [fit(start=All(THETA[:8], OWN))],
    "personal-pick": [fit(start=Pick(BODIES, LABELS, OWN), local=MOVED)],
    "personal-best": [fit(start=Best(BODIES, personal=OWN)), Score(BODIES, personal=OWN)],
    "personal-best-tuned": [fit(start=Best(BODIES, personal=TUNED)), Score(BODIES, personal=TUNED)],
    "personal-in-turn": [
        fit(start=All(THETA[:8], OWN), train=("bias",), send=False),
        fit(start=All(THETA[:8], OWN), freeze=("bias",), anchor=All(BODIES[0], OWN), mu=0.5),
        Evaluate((Best(BODIES, personal=OWN),)),
    ],
    "personal-auxiliary": [fit(start=All(THETA[:8], OWN), keep=False, sketch=3), Evaluate((All(THETA[:8], TUNED),))],
    "not-sent": [fit(save="v", send=False)],
    "some": [fit(on=torch.tensor([2, 5, 7]))],
    "loss": [Score(CENTERS)],
    "loss-given": [Score(CENTERS, given=Pick(CENTERS, LABELS))],
    "votes": [Score(CENTERS, "votes")],
    "posterior": [Score(CENTERS, "posterior")],
    "posterior-prior-saved": [Score(CENTERS, "posterior", prior=Own("pi", All(PRIOR)), save="pi")],
    "posterior-by-class": [Score(CENTERS, "posterior", prior=All(PRIOR), class_shares=BY_CLASS, save="pi")],
    "classes": [Score(CENTERS, "classes", prior=Own("pi", All(PRIOR)), given=All(THETA), class_shares=BY_CLASS)],
    "evaluate-mixture-by-class": [
        Evaluate(tuple(All(c) for c in CENTERS), mixture=Estimated(CENTERS, "posterior", class_shares=BY_CLASS))
    ],
    "moments": [Describe("moments", 3, All(THETA)), Describe("moments", 9, Pick(CENTERS, LABELS), classes=2)],
    "subspace": [Describe("subspace", 4, rank=2), Describe("subspace", 3, rank=5, classes=3)],
    "labels-sketch": [Describe("labels", 3), Describe("sketch", 2, classes=2), Describe("sketch", 7)],
    "evaluate": [Evaluate((All(THETA),))],
    "evaluate-train": [Evaluate((Best(CENTERS),), split="train")],
    "evaluate-half": [Evaluate((Pick(CENTERS, LABELS),), split="train", half=1)],
    "evaluate-halves": [
        Evaluate((All(THETA),), split="train", half=0),
        fit(half=0, save="v"),
        Evaluate((Own("v", All(THETA)),), split="train", half=1),
    ],
    "evaluate-sum": [Evaluate((Pick(CENTERS, LABELS), All(THETA)))],
    "evaluate-mixture": [Evaluate(tuple(All(c) for c in CENTERS), mixture=Mix(torch.eye(3), SHARES))],
    "one-trip": [
        fit(start=Best(CENTERS)),
        fit(start=Own("v", All(THETA)), anchor=All(THETA), mu=0.3, save="v", send=False),
        Score(CENTERS, "posterior", save="pi"),
        fit(weights=Posterior(CENTERS, 0, Own("pi", All(PRIOR))), on=torch.tensor([1, 4, 8])),
        Evaluate((Own("v", All(THETA)),)),
    ],
}


@dataclass(frozen=True, eq=False)
class Seen:
    """Two visits one after the other, and what clients keep after them."""

    first: Outcome
    second: Outcome
    memory: Mapping[str, Tensor]


def visits(kind: toys.Kind, tasks: list[Task], build: Callable[[], nn.Module] = toys.linear) -> Seen:
    federation = toys.toy()
    ids = torch.tensor([0, 1, 2, 4, 5, 7, 8, 9])
    with toys.engine(kind, federation, build) as engine:
        first, second = (engine.visit(Visit(tuple(tasks), ids, Moment(seed=4, round=t, task=0))) for t in range(2))
        return Seen(first, second, engine.memory.tensors())


@pytest.mark.parametrize("what", few(TASKS, "everything", "one-trip", "personal-in-turn", "moments", "subspace"))
@pytest.mark.parametrize("kind", toys.PARALLEL, ids=str)
def test_a_task_has_the_same_answers_on_every_engine(kind: toys.Kind, what: str) -> None:
    compare(kind, what)


@pytest.mark.parametrize("what", TASKS)
def test_a_task_has_the_same_answers_batched(what: str) -> None:
    compare(("batched", 1), what)


def samples(task: Task, client: int) -> int:
    """How many a reply tells of: a client's size, or what was evaluated."""
    if not isinstance(task, Evaluate):
        return toys.SIZES[client]
    n = 6 if task.split == "test" else toys.SIZES[client]
    return n if task.half is None else (n + 1 - task.half) // 2


def compare(kind: toys.Kind, what: str) -> None:
    mine, reference = visits(kind, TASKS[what]), visits(toys.REFERENCE, TASKS[what])
    assert not mine.first.missing
    assert not reference.first.missing
    toys.assert_same(mine, reference, within=1e-6)
    for reply, task in zip(mine.first.replies, TASKS[what], strict=True):
        asked = [0, 1, 2, 4, 5, 7, 8, 9] if task.on is None else task.on.tolist()
        assert reply.ids.tolist() == [c for c in asked if c in (0, 1, 2, 4, 5, 7, 8, 9)]
        assert reply.n.tolist() == [samples(task, client) for client in reply.ids.tolist()]


def test_the_tasks_differ() -> None:
    """No option is without effect: every Fit gives models of its own."""
    alike = {
        "own",
        "not-sent",
        "sketch",
        "some",
        "sgd-kept-without-momentum",
        "one-trip",
        "personal-auxiliary",
        "personal-in-turn",
        "personal-best-tuned",
    }  # differ in what is kept or sent
    thetas = [
        visits(toys.REFERENCE, tasks).first.replies[0].models.square().sum().item()  # type: ignore[union-attr]
        for what, tasks in TASKS.items()
        if isinstance(tasks[0], Fit) and what not in alike and what != "own-default-pick"
    ]
    assert len(set(thetas)) == len(thetas)


@pytest.mark.parametrize("build", [toys.batchnorm, toys.dropout])
@pytest.mark.parametrize("kind", toys.PARALLEL, ids=str)
def test_networks_with_a_life_of_their_own_agree(kind: toys.Kind, build: Callable[[], nn.Module]) -> None:
    size = coterie.Model(build).size
    theta = coterie.Model(build).init(np.random.default_rng(0))
    assert len(theta) == size
    tasks: list[Task] = [fit(start=All(theta)), Evaluate((All(theta),), split="train")]
    toys.assert_same(visits(kind, tasks, build), visits(toys.REFERENCE, tasks, build), within=1e-6)


@pytest.mark.parametrize("kind", toys.ENGINES, ids=str)
def test_a_look_keeps_nothing(kind: toys.Kind) -> None:
    local = Local(steps=2, momentum=0.9, keep_optimizer=True)
    with toys.engine(kind, toys.toy()) as engine:
        visit = Visit((fit(save="v", local=local), Score(CENTERS, save="s")), EVERYONE, Moment(0, 0, 0), kind="probe")
        assert len(engine.visit(visit).replies[0].ids) == 10
        assert not engine.memory.tensors()


@pytest.mark.parametrize("kind", toys.ENGINES, ids=str)
def test_an_answer_does_not_depend_on_who_else_is_asked(kind: toys.Kind) -> None:
    with toys.engine(kind, toys.toy(), toys.dropout) as engine:
        theta = coterie.Model(toys.dropout).init(np.random.default_rng(0))
        task = fit(start=All(theta))
        together = engine.visit(Visit((task,), EVERYONE, Moment(1, 2, 3))).replies[0]
        alone = engine.visit(Visit((task,), torch.tensor([6]), Moment(1, 2, 3))).replies[0]
        assert isinstance(together, Fitted)
        assert isinstance(alone, Fitted)
        assert torch.equal(together.models[6], alone.models[0])
