"""Every method through payloads, to the same bits as without; and nothing is sent twice, or to whom it is not meant."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from loopback import Loopback
from torch import nn

import coterie
from conftest import UNTOLD, linear, make_federation, raises, vector
from coterie.client.contract import Memory, Moment
from coterie.core.codec import pack
from coterie.core.compute import one_thread
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Best, Estimated, Mix, Own, Pick, Posterior, Ref, Row
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Evaluate, Fit, Score, Task
from coterie.data.federation import Federation
from coterie.engines.contract import Engine, Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.methods.wecfl import WeCFL
from coterie.network.messages import for_client
from coterie.network.wire import encode
from coterie.training.result import Result
from papers.methods.ifca import IFCAAuthors

LOCAL = Local(steps=3, batch=4, lr=0.1)
OUTLINE = 1500  # bytes per task: more than any outline here needs


def method(name: str, local: Local = LOCAL, **more: Any) -> Any:
    """A method of the catalogue with two clusters and little training; wrappers are out of their warm-up at once."""
    fields = {f.name for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    params = {"local": local, "k": 2, "warmup": 1} | (
        {"base": WeCFL(k=2, local=local)} if name in ("cam", "personal") else {}
    )
    if "base" in fields and "section" in fields:
        params["section"] = ("*bias",)  # a part of every network here
    return METHODS.build(name, {key: value for key, value in params.items() if key in fields} | more, NO_CODE)


def assert_same(one: object, other: object) -> None:
    """Two trees of tensors are equal bit for bit."""
    (outline, tensors), (other_outline, other_tensors) = pack(one), pack(other)
    assert outline == other_outline
    for a, b in zip(tensors, other_tensors, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.detach().numpy().tobytes() == b.detach().numpy().tobytes()


# ------------------------------------------------------------------------------------------------------- every method


@dataclass(frozen=True)
class Scenario:
    """A way to run."""

    build: Callable[[], nn.Module] = lambda: nn.Linear(2, 2)
    local: Local = LOCAL
    participation: float = 1.0
    compress: bool = False


def normed() -> nn.Module:
    """Running statistics travel with the weights, and dropout draws at random."""
    return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 2))


def frozen() -> nn.Module:
    """Half of it is frozen and never sent."""
    made = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2))
    made.get_submodule("0").requires_grad_(False)
    return made


SCENARIOS: Mapping[str, Scenario] = {
    "plain": Scenario(),
    "frozen": Scenario(build=frozen),
    "kept": Scenario(local=Local(batch=4, lr=0.05, momentum=0.9, keep_optimizer=True), participation=0.6),
    "normed": Scenario(build=normed, compress=True),
}
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{name: (name, {}) for name in UNTOLD},
    "fedsoft from centers": ("fedsoft", {"start_from": "centers", "select": 2}),
    "ifca-cam by accuracy, cluster first": (
        "cam-authors",
        {"base": IFCAAuthors(k=2, choose_by="accuracy"), "order": "cluster_first"},
    ),
    "wecfl-cam global first": ("cam-authors", {"base": WeCFL(k=2), "order": "global_first", "lam": 0.01}),
    "fesem-cam cluster first": (
        "cam-authors",
        {"base": coterie.FeSEM(k=2), "order": "cluster_first", "lam": 0.1, "warmup_by": "local"},
    ),
}


def ran(engine: Engine, method: Any, federation: Federation, scenario: Scenario) -> Result[Any]:
    model = Model(scenario.build)
    return coterie.run(
        method, federation, model, rounds=3, participation=scenario.participation, seed=2, engine=engine, newcomers=0.2
    )


@pytest.mark.covering
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_method_does_the_same_through_parcels(variant: tuple[str, Mapping[str, Any]], scenario: Scenario) -> None:
    a_method, federation = method(variant[0], scenario.local, **variant[1]), make_federation(10, 14)
    model = Model(scenario.build)
    with one_thread():
        sequential, loopback = Sequential(model, federation), Loopback(model, federation, scenario.compress)
        plain = ran(sequential, a_method, federation, scenario)
        mine = ran(loopback, a_method, federation, scenario)
    assert_same(mine.state, plain.state)
    assert_same(mine.clients, plain.clients)
    assert_same(loopback.memory.tensors(), sequential.memory.tensors())
    np.testing.assert_array_equal(mine.assignments, plain.assignments)
    assert [e.missing for e in mine.history] == [e.missing for e in plain.history]
    assert mine.newcomers is not None
    assert plain.newcomers is not None
    assert_same(mine.newcomers.clients, plain.newcomers.clients)
    for sent in loopback.sent:
        assert len(sent.payload.outline) < OUTLINE * sent.tasks
        if sent.trains and not scenario.compress:  # what is looked at is not counted
            assert sum(len(packed.data) for packed in sent.payload.arrays) == sent.counted
    assert any(sent.trains and sent.counted for sent in loopback.sent)


@pytest.mark.parametrize("name", ["fedavg", "ifca", "fedem", "fedsoft"])
def test_regression_has_no_accuracy_and_passes(name: str) -> None:
    rng = np.random.default_rng(3)
    inputs = [rng.normal(size=(12, 2)).astype(np.float32) for _ in range(4)]
    federation = Federation.from_arrays(
        [(x, x[:, :1] * (1 - i % 2 * 2)) for i, x in enumerate(inputs)], standardise=False, standardise_y=False
    )
    scenario = Scenario(build=lambda: nn.Linear(2, 1))
    model = Model(scenario.build, "mse")
    results = []
    for engine in (Sequential(model, federation), Loopback(model, federation)):
        results.append(coterie.run(method(name), federation, model, rounds=2, engine=engine))
    assert_same(results[1].state, results[0].state)
    assert_same(results[1].clients, results[0].clients)
    assert bool(results[1].clients.accuracy.isnan().all())


# ------------------------------------------------------------------------------------------------------ every primitive

MODEL = linear()
CENTERS = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
THETA = vector(1, 2, 3, 4)
EVERYONE = torch.arange(4)
LABELS = ByClient(EVERYONE, torch.tensor([0, 1, 2, 2]))
SHARES = ByClient(EVERYONE, torch.rand(4, 3, generator=torch.Generator().manual_seed(2)))
THREE = torch.eye(3)
REFS: Mapping[str, Ref] = {
    "all": All(THETA),
    "pick": Pick(CENTERS, LABELS),
    "row": Row(THETA, 7),
    "best": Best(CENTERS),
    "best given pick": Best(CENTERS, Pick(CENTERS, LABELS)),
    "best given mix by accuracy": Best(CENTERS, Mix(CENTERS, SHARES), "accuracy"),
    "mix": Mix(CENTERS, SHARES),
    "mix estimated": Mix(CENTERS, Estimated(CENTERS, "votes")),
    "own": Own("mine", All(THETA)),
    "own pick": Own("mine", Pick(CENTERS, LABELS)),
    "own best": Own("mine", Best(CENTERS, Pick(CENTERS, LABELS))),
    "own own pick": Own("mine", Own("other", Pick(CENTERS, LABELS))),
    "own mix of a table without everyone": Own("mine", Mix(CENTERS, SHARES.only(torch.tensor([0, 3])))),
    "own pick of a table without everyone": Own("mine", Pick(CENTERS, LABELS.only(torch.tensor([0, 3])))),
    "pick of a table without everyone": Pick(CENTERS, LABELS.only(torch.tensor([0, 3]))),
    "pick beyond the rows": Pick(CENTERS, ByClient(EVERYONE, torch.tensor([0, 1, 3, -1]))),
}
WEIGHTS: Mapping[str, Ref] = {
    "all": All(vector(0.2, 0.3, 0.5)),
    "mix": Mix(THREE, SHARES),
    "pick": Pick(THREE + 0.1, LABELS),
    "estimated": Estimated(CENTERS, "posterior"),
    "own": Own("pi", Mix(THREE, SHARES)),
}


def compared(tasks: tuple[Task, ...], ids: torch.Tensor = EVERYONE) -> tuple[Outcome, Loopback]:
    """The same visit with and without payloads, where client 1 keeps something already."""
    federation = make_federation(4)
    engines = Sequential(MODEL, federation), Loopback(MODEL, federation)
    visit = Visit(tasks, ids, Moment(3, 1, 0))
    outcomes = []
    for engine in engines:
        engine.memory.write(1, {"mine": THETA * 2, "pi": vector(0.1, 0.1, 0.8)})
        with one_thread():
            outcomes.append(engine.visit(visit))
    assert_same(outcomes[1].replies, outcomes[0].replies)
    assert outcomes[1].missing == outcomes[0].missing
    assert_same(engines[1].memory.tensors(), engines[0].memory.tensors())
    return outcomes[0], engines[1]


@pytest.mark.parametrize("ref", REFS.values(), ids=REFS)
def test_a_reference_means_the_same(ref: Ref) -> None:
    mu = ByClient(EVERYONE, vector(0.1, 0.2, 0.3, 0.4))
    compared((Fit(ref, LOCAL, save="new"), Evaluate((ref, All(THETA)))))
    compared((Fit(All(THETA), LOCAL, anchor=ref, mu=mu), Fit(All(THETA), LOCAL, offset=ref, send=False)))
    compared((Score(CENTERS, given=ref), Evaluate((All(THETA), ref, ref), average=True, split="train")))
    compared((Describe("moments", 2, ref, classes=2), Describe("subspace", 3, rank=2), Describe("labels", 4)))


@pytest.mark.parametrize("ref", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_mean_the_same(ref: Ref) -> None:
    models = tuple(All(center) for center in CENTERS)
    compared((Evaluate(models, mixture=ref), Evaluate((Best(CENTERS),), belongs=ref)))
    compared((Fit(All(THETA), LOCAL, weights=Posterior(CENTERS, 1, ref)), Score(CENTERS, "posterior", prior=ref)))
    compared((Score(CENTERS, "posterior", prior=ref, save="pi"), Score(CENTERS, "votes", prior=ref)))
    shares = torch.linspace(0.1, 1.0, 12).reshape(3, -1)
    compared(
        (
            Fit(All(THETA), LOCAL, weights=Posterior(CENTERS, 1, ref, shares)),
            Score(CENTERS, "classes", prior=ref, class_shares=shares),
        )
    )


def test_the_comparison_has_something_to_compare() -> None:
    """Rows are told, also where what is kept stands in for them; who is not in a table is missing."""
    outcome, _ = compared((Fit(Own("mine", Pick(CENTERS, LABELS)), LOCAL),))
    assert outcome.replies[0].choice.tolist() == [0, 1, 2, 2]  # type: ignore[union-attr]
    outcome, _ = compared((Fit(REFS["pick of a table without everyone"], LOCAL),))
    assert [m.client for m in outcome.missing] == [1, 2]
    assert (
        outcome.missing[0].reason == "the server has no value for this client (no cluster, no weights), and no default"
    )
    outcome, _ = compared((Fit(REFS["own mix of a table without everyone"], LOCAL),))
    assert [m.client for m in outcome.missing] == [2]  # client 1 keeps its own and needs no value
    outcome, _ = compared((Fit(REFS["pick beyond the rows"], LOCAL),))
    assert [m.reason for m in outcome.missing] == [f"the server picked row {row} of 3" for row in (3, -1)]


def test_a_task_for_some_is_none_for_the_others() -> None:
    tasks = (Fit(All(THETA), LOCAL, on=torch.tensor([0, 2])), Score(CENTERS), Evaluate((All(THETA),), on=EVERYONE[2:]))
    outcome, _ = compared(tasks)
    assert [reply.ids.tolist() for reply in outcome.replies] == [[0, 2], [0, 1, 2, 3], [2, 3]]


# ------------------------------------------------------------------------------------------ what one client is given


def given(*tasks: Task, client: int = 0) -> tuple[Task | None, ...]:
    return for_client(Visit(tasks, EVERYONE, Moment(0, 0, 0)), client)


def numbers(*tasks: Task, client: int = 0) -> int:
    """How many numbers are sent."""
    return sum(len(packed.data) for packed in encode(given(*tasks, client=client)).arrays) // 4


def test_a_client_is_given_its_own_and_nothing_else() -> None:
    mu = ByClient(EVERYONE, vector(0.5, 0.25, 1, 2))
    fit, none = given(
        Fit(Pick(CENTERS, LABELS), LOCAL, anchor=Mix(CENTERS, SHARES), mu=mu, on=EVERYONE),
        Score(CENTERS, on=torch.tensor([0])),
        client=2,
    )
    assert none is None
    assert isinstance(fit, Fit)
    assert fit.on is None
    assert fit.mu == 1.0
    assert isinstance(fit.start, Row)
    assert fit.start.row == 2
    assert torch.equal(fit.start.theta, CENTERS[2])
    assert isinstance(fit.anchor, All)
    assert torch.equal(fit.anchor.theta, SHARES.values[2] @ CENTERS)
    outline, tensors = pack((fit, none))
    assert "ByClient" not in str(outline)
    assert sum(t.numel() for t in tensors) == 8


def test_what_lies_in_memory_once_is_sent_once() -> None:
    pick, mix = Pick(CENTERS, LABELS), Mix(CENTERS, SHARES)
    assert numbers(Fit(pick, LOCAL, anchor=Pick(CENTERS, LABELS), mu=1.0), Fit(pick, LOCAL)) == 4
    assert numbers(Fit(mix, LOCAL, anchor=Mix(CENTERS, SHARES), mu=1.0), Fit(mix, LOCAL)) == 4
    assert numbers(Fit(pick, LOCAL), Fit(All(CENTERS[0]), LOCAL)) == 4
    assert numbers(Fit(pick, LOCAL), Fit(All(CENTERS[1]), LOCAL)) == 8
    assert numbers(*(Fit(All(row), LOCAL, weights=Posterior(CENTERS, 0, pick)) for row in CENTERS)) == 12
    assert numbers(Fit(All(THETA), LOCAL), Fit(All(THETA.clone()), LOCAL)) == 8  # nobody compares numbers


def test_the_same_reference_stays_the_same_object() -> None:
    """What a client has computed for one it need not compute for the other."""
    ref = Pick(CENTERS, LABELS)
    one, other = given(Score(CENTERS, given=ref), Score(CENTERS, given=ref))
    assert isinstance(one, Score)
    assert isinstance(other, Score)
    assert one.given is other.given
    assert one.centers is CENTERS


def test_a_client_that_fails_is_missing() -> None:
    outcome, _ = compared((Fit(All(THETA), Local(steps=9, batch="full", lr=3e38)),))
    assert [m.client for m in outcome.missing] == [2]  # the others are only far away
    assert "not finite" in outcome.missing[0].reason


def test_what_cannot_be_sent_is_told() -> None:
    with raises("state-unsupported"):
        encode(All(torch.zeros(2, dtype=torch.complex64)))


def test_memory_is_left_alone_by_a_look() -> None:
    engine = Loopback(MODEL, make_federation(4))
    engine.visit(Visit((Score(CENTERS, save="seen"),), EVERYONE, Moment(0, 0, 0), kind="probe"))
    assert_same(engine.memory.tensors(), Memory().tensors())
    engine.visit(Visit((Score(CENTERS, save="seen"),), EVERYONE, Moment(0, 0, 0)))
    assert len(engine.memory.tensors()) == 4
