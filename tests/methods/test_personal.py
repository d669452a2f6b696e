"""FedPer, FedRep, FedBN and a personal section inside clusters: rounds by hand, and the papers' identities."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scripted import LOCAL, NOBODY, ScriptedAsk, a_fit, assert_same, close, fitted, kept, make_cohort, make_roster
from torch import Tensor, nn

import coterie
from coterie import IFCA, CoterieError, FedAvg, FedBN, FedEM, Federation, FedPer, FedRep, Local, LocalOnly, Model
from coterie.client.contract import Moment
from coterie.clustering.averaging import Weighting
from coterie.core.parts import Section
from coterie.core.seeds import Purpose, generator
from coterie.core.tasks import All, Best, Evaluated, Fit, Fitted, Own, Personal
from coterie.engines.contract import Visit
from coterie.engines.sequential import Sequential
from coterie.methods.contract import Method
from coterie.methods.personal import IFCAPersonal, Personalised, Split

ROSTER = make_roster({3: 30, 7: 10, 11: 60})
HERE = make_cohort([3, 7, 11], ROSTER)
STATE = Split(torch.tensor([1.0, 2.0]), torch.tensor([5.0]))
BATCHES = Local(epochs=2, batch=4, lr=0.1)
FULL = Local(steps=3, batch="full", lr=0.3)  # the same steps whatever a task's number


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def points(clients: int = 4, seed: int = 0) -> Federation:
    """Points by the sign of their first coordinate; odd clients call the sides the other way about."""
    hands = []
    for client in range(clients):
        rng = np.random.default_rng([seed, client])
        x = rng.normal(size=(13 + 4 * client, 3)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64) ^ (client % 2)
        hands.append((x[5:], y[5:], x[:5], y[:5]))
    return Federation.from_arrays(hands, outputs=2, truth=[client % 2 for client in range(clients)], standardise=False)


def run(method: Method[Any], build: Any = mlp, rounds: int = 4, **more: Any) -> tuple[Any, dict[str, Tensor]]:
    """The last state, and what clients keep."""
    federation, model = points(), Model(build)
    engine = Sequential(model, federation)
    result = coterie.run(method, federation, model, rounds=rounds, seed=3, engine=engine, **more)
    return result.state, engine.memory.tensors()


def personal_of(ref: object) -> Personal:
    assert isinstance(ref, All | Best)
    assert ref.personal is not None
    return ref.personal


# ------------------------------------------------------------------------------------------ by hand


def test_fedper_averages_bodies_and_asks_for_no_head() -> None:
    # 7 is missing: (30 * [4, 0] + 60 * [1, 6]) / 90 = [2, 4]. The start of heads is as it was.
    ask = ScriptedAsk(fitted({3: [4.0, 0.0], 11: [1.0, 6.0]}, n=[30, 60]))
    found = FedPer(local=LOCAL).round(STATE, HERE, ask)
    close(found.base, [2.0, 4.0])
    assert found.own is STATE.own
    (task,) = ask.asked
    fit = a_fit(task)
    assert isinstance(fit.start, All)
    assert fit.start.theta is STATE.base
    personal = personal_of(fit.start)
    assert (personal.section, personal.own.slot, personal.tune) == ("head", "personal", None)
    assert isinstance(personal.own.default, All)
    assert personal.own.default.theta is STATE.own
    assert (fit.train, fit.freeze, fit.send, fit.local) == (None, None, True, LOCAL)


def test_fedbn_counts_clients_alike_and_keeps_norms() -> None:
    ask = ScriptedAsk(fitted({3: [4.0, 0.0], 11: [1.0, 6.0]}, n=[30, 60]))
    found = FedBN(local=LOCAL).round(STATE, HERE, ask)
    close(found.base, [2.5, 3.0])
    assert personal_of(a_fit(ask.asked[0]).start).section == "norms"


def test_fedrep_trains_the_head_and_then_the_body_in_one_visit() -> None:
    # (10 * [0, 8] + 30 * [4, 4]) / 40 = [3, 5].
    ask = ScriptedAsk([kept(3, 7), fitted({7: [0.0, 8.0], 3: [4.0, 4.0]}, n=[10, 30])])
    found = FedRep(local=LOCAL, head_epochs=6).round(STATE, HERE, ask)
    close(found.base, [3.0, 5.0])
    (visit,) = ask.asked
    head, body = map(a_fit, visit)
    assert (head.train, head.freeze, head.send) == ("head", None, False)
    assert (head.local.epochs, head.local.steps, head.local.lr) == (6, None, LOCAL.lr)
    assert (body.train, body.freeze, body.send, body.local) == (None, "head", True, LOCAL)
    assert head.start is body.start  # the second begins with the head that the first one left
    assert head.optimizer_slot != body.optimizer_slot


def test_fedreps_head_may_be_counted_in_steps() -> None:
    ask = ScriptedAsk([kept(3), fitted({3: [4.0, 4.0]}, n=[30])])
    FedRep(local=Local(steps=3), head_steps=5).round(STATE, HERE, ask)
    ((head, body),) = ask.asked
    assert (head.local.epochs, head.local.steps, body.local.steps) == (None, 5, 3)


def test_nobody_answers() -> None:
    for method, replies in ((FedPer(), NOBODY), (FedBN(), NOBODY), (FedRep(), [NOBODY, NOBODY])):
        assert_same(method.round(STATE, HERE, ScriptedAsk(replies)), STATE)


def test_a_client_without_a_head_fits_one_before_it_predicts() -> None:
    (model,) = FedRep(local=LOCAL, tune=4).predictor(STATE).models
    tune = personal_of(model).tune
    assert tune is not None
    assert (tune.epochs, tune.steps, tune.lr, tune.keep_optimizer) == (4, None, LOCAL.lr, False)
    (model,) = FedPer(local=LOCAL, tune=0).predictor(STATE).models
    assert personal_of(model).tune is None


def test_ifca_with_a_personal_head_averages_the_bodies_of_each_cluster() -> None:
    state = Split(torch.tensor([[0.0, 0.0], [9.0, 9.0]]), torch.tensor([5.0]))
    # Cluster 0: (30 * [4, 0] + 10 * [0, 4]) / 40 = [3, 1]. Nobody chose cluster 1.
    ask = ScriptedAsk([fitted({3: [4.0, 0.0], 7: [0.0, 4.0]}, n=[30, 10], choice=[0, 0])])
    method = IFCAPersonal(base=IFCA(k=2, local=LOCAL, weights="size"), tune=3)
    found = method.round(state, HERE, ask)
    close(found.base, [[3.0, 1.0], [9.0, 9.0]])
    ((fit,),) = ask.asked
    assert isinstance(fit.start, Best)
    assert fit.start.centers is state.base
    tune = personal_of(fit.start).tune
    assert tune is not None
    assert tune.epochs == 3


def test_inside_a_cluster_head_and_body_may_be_trained_in_turn() -> None:
    state = Split(torch.zeros(2, 2), torch.tensor([5.0]))
    replies = [kept(3), fitted({3: [4.0, 0.0]}, n=[30], choice=[1])]
    ask = ScriptedAsk(replies)
    method = IFCAPersonal(base=IFCA(k=2, local=LOCAL), head_epochs=2)
    close(method.round(state, HERE, ask).base, [[0.0, 0.0], [4.0, 0.0]])
    ((head, body),) = ask.asked
    assert (head.train, head.send, head.local.epochs) == ("head", False, 2)
    assert (body.freeze, body.send, body.local) == ("head", True, LOCAL)


def test_a_method_that_mixes_models_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"method\.base\.name=ifca"):
        run(Personalised(FedEM(k=2, local=FULL)), rounds=1)


def test_a_section_that_is_all_of_the_model_is_refused_inside_clusters() -> None:
    with pytest.raises(CoterieError, match="nothing is left"):
        run(IFCAPersonal(base=IFCA(k=2)), lambda: nn.Linear(3, 2), rounds=1)


# ------------------------------------------------------------------------------------------ identities


@pytest.mark.parametrize("kind", [FedPer, FedRep, FedBN])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_a_personal_section_it_is_fedavg(kind: type[FedPer], participation: float) -> None:
    section: Section = "norms" if kind is FedBN else ()  # the network has no norms
    weights: Weighting = "equal" if kind is FedBN else "size"
    found, memory = run(kind(local=BATCHES, section=section), participation=participation)
    expected, _ = run(FedAvg(local=BATCHES, weights=weights), participation=participation)
    assert torch.equal(found.base, expected)
    assert not memory
    assert not len(found.own)


def test_all_personal_is_local_training() -> None:
    state, found = run(FedPer(local=BATCHES, section=("0", "2")))
    assert not len(state.base)
    _, expected = run(LocalOnly(local=BATCHES))
    assert len(found) == len(expected) == 4
    for one, other in zip(found.values(), expected.values(), strict=True):
        assert torch.equal(one, other)


def test_around_fedavg_it_is_fedper() -> None:
    found, kept_here = run(Personalised(FedAvg(local=BATCHES)))
    expected, kept_there = run(FedPer(local=BATCHES))
    assert_same(found, expected)
    assert_same_memory(kept_here, kept_there)


def test_around_fedavg_in_turn_it_is_fedrep() -> None:
    found, kept_here = run(Personalised(FedAvg(local=BATCHES), head_epochs=3))
    expected, kept_there = run(FedRep(local=BATCHES, head_epochs=3))
    assert_same(found, expected)
    assert_same_memory(kept_here, kept_there)


@pytest.mark.parametrize("tune", [0, 2])
def test_one_cluster_of_ifca_is_fedper(tune: int) -> None:
    found, kept_here = run(IFCAPersonal(base=IFCA(k=1, local=BATCHES), tune=tune))
    expected, kept_there = run(FedPer(local=BATCHES))
    close(found.base[0], expected.base)
    for name, value in kept_there.items():
        torch.testing.assert_close(kept_here[name], value, rtol=0, atol=1e-6)


def assert_same_memory(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        assert torch.equal(value, other[name])


# ------------------------------------------------------------------------------------------ a real round


def test_fedrep_step_by_step() -> None:
    """One client, full batches: the same steps written out, three of the head and then two of the body."""
    federation, model = points(1), Model(mlp)
    local = Local(steps=2, batch="full", lr=0.3, weight_decay=0.1)
    method, engine = FedRep(local=local, head_epochs=3), Sequential(model, federation)
    begin = method.init(model, federation.roster, generator(3, Purpose.INIT))
    found = coterie.run(method, federation, model, rounds=1, seed=3, engine=engine).state
    network, (x, y) = mlp(), federation.samples(0, "train")
    nn.utils.vector_to_parameters(torch.cat([begin.base, begin.own]), network.parameters())
    for layer, steps in ((network[2], 3), (network[0], 2)):  # type: ignore[index]
        for _ in range(steps):
            slopes = torch.autograd.grad(nn.functional.cross_entropy(network(x), y), list(layer.parameters()))
            with torch.no_grad():
                for p, slope in zip(layer.parameters(), slopes, strict=True):
                    p -= 0.3 * (slope + 0.1 * p)
    trained = nn.utils.parameters_to_vector(network.parameters()).detach()
    close(found.base, trained[: len(found.base)])
    close(engine.memory.tensors()["0/personal"], trained[len(found.base) :])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_fedrep_freezes_does_not_move_by_a_bit(optimizer: Any) -> None:
    """Momentum and weight decay, kept from visit to visit, would move it if one optimiser had both parts."""
    federation, model = points(2), Model(normed)
    momentum = 0.9 if optimizer == "sgd" else 0.0
    local = Local(
        steps=3, batch=4, lr=0.1, weight_decay=0.1, optimizer=optimizer, momentum=momentum, keep_optimizer=True
    )
    engine = Sequential(model, federation)
    theta, everyone, section = model.init(np.random.default_rng(0)), torch.tensor([0, 1]), ("3",)
    head = model.section(section)
    for t in range(3):
        tasks = (
            Fit(All(theta), local, train=section, optimizer_slot="a", save="after.head"),
            Fit(Own("after.head", All(theta)), local, freeze=section, optimizer_slot="b"),
        )
        first, second = engine.visit(Visit(tasks, everyone, Moment(0, t, 0))).replies
        assert isinstance(first, Fitted)
        assert isinstance(second, Fitted)
        for one, other in zip(first.models, second.models, strict=True):
            assert torch.equal(one[~head], theta[~head])  # statistics of the normalisation, too
            assert torch.equal(other[head], one[head])
            assert not torch.equal(one[head], theta[head])
            assert not torch.equal(other[~head], one[~head])
        theta = second.models.mean(0)


def test_fedbn_keeps_scales_and_statistics_and_shares_the_rest() -> None:
    state, memory = run(FedBN(local=BATCHES), normed)
    whole = Model(normed)
    assert len(state.base) == 3 * 4 + 4 + 4 * 2 + 2
    assert len(state.own) == 4 + 4 + 4 + 4 == whole.size - len(state.base)  # weight, bias, mean, variance
    mine = list(memory.values())
    assert len(mine) == 4
    assert not any(torch.equal(one, mine[0]) for one in mine[1:])
    assert all(bool((one[8:12] != 0).all()) for one in mine)  # running means have moved


def test_heads_tell_labels_apart_that_one_model_cannot() -> None:
    """Two clients call the sides the other way about: one head for all is at chance, own heads are not."""
    federation, model = points(8), Model(mlp)
    local = Local(epochs=5, batch=4, lr=0.3)
    methods: dict[str, Method[Any]] = {"fedavg": FedAvg(local=local), "fedper": FedPer(local=local)}
    runs = {
        name: coterie.run(method, federation, model, rounds=10, seed=0).summary.accuracy
        for name, method in methods.items()
    }
    assert runs["fedavg"] is not None
    assert runs["fedper"] is not None
    assert runs["fedavg"] < 0.75
    assert runs["fedper"] > 0.85


def test_a_newcomer_fits_a_head_and_keeps_none_of_it() -> None:
    federation, model = points(8), Model(mlp)
    first = federation.take(range(6))
    tuned = FedRep(local=Local(epochs=2, batch=4, lr=0.3))
    result = coterie.run(tuned, first, model, rounds=8, seed=0)
    untuned = dataclasses.replace(tuned, tune=0)
    scores = []
    for method in (tuned, untuned):
        engine = Sequential(model, federation)  # nobody has a head here
        task = dataclasses.replace(method.predictor(result.state), on=torch.tensor([6, 7]))
        (reply,) = engine.visit(Visit((task,), torch.tensor([6, 7]), Moment(0, 0, 0))).replies
        assert isinstance(reply, Evaluated)
        scores.append(float(reply.accuracy.mean()))
        assert not engine.memory.tensors()
    assert scores[0] > scores[1]
