"""Halves with a scripted `ask`: what is asked, how groups split and merge, and what happens to models and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from scripted import TWO, ScriptedAsk, fitted, make_cohort, make_roster, scored

import coterie
from coterie.core.client_table import ByClient
from coterie.core.local import Local
from coterie.core.references import Own, Pick
from coterie.core.replies import Fitted
from coterie.core.tasks import Fit
from coterie.data import IID, Digits, Rotated
from coterie.methods.halves import PERSONAL, Halves
from coterie.methods.halves_state import Halved

LOCAL = Local(steps=3, lr=0.5, momentum=0.9, keep_optimizer=True)
ROSTER = make_roster({0: 10, 3: 10, 4: 10, 7: 10})
PAIRS = {0: (0.0, 0.0), 3: (1.0, 0.0), 4: (10.0, 0.0), 7: (11.0, 0.0)}  # as in the hand-computed risks
OTHERS = {0: (1.0, 0.0), 3: (0.0, 0.0), 4: (11.0, 0.0), 7: (10.0, 0.0)}


def looks(rows: Mapping[int, Sequence[float]]) -> Fitted:
    reply = fitted(rows)
    return dataclasses.replace(reply, sent=None, sketch=reply.theta)


def begin(method: Halves) -> Halved:
    return method.init(TWO, ROSTER, np.random.default_rng(0))


def first_round(method: Halves) -> tuple[Halved, ScriptedAsk, list[str]]:
    models = {c: (float(c), 1.0) for c in (0, 3, 4, 7)}
    ask = ScriptedAsk([fitted(models), looks(PAIRS), looks(OTHERS)])
    cohort = make_cohort([0, 3, 4, 7], ROSTER)
    state = method.round(begin(method), cohort, ask)
    return state, ask, [str(one) for one in cohort.counted]


def test_the_first_round_asks_for_two_halves_and_splits() -> None:
    """Two pairs of clients: their clusters are made at once, and hold the means of their models."""
    state, ask, told = first_round(Halves(local=LOCAL))
    fit, first, second = ask.asked[0]
    assert (fit.half, first.half, second.half) == (None, 0, 1)
    assert (first.send, first.keep, first.sketch, first.local.steps) == (False, False, 2, 50)
    assert not first.local.keep_optimizer
    assert first.local.lr == LOCAL.lr
    assert state.labels.at(torch.tensor([0, 3, 4, 7])).tolist() == [0, 0, 1, 1]
    assert state.centers.tolist() == [[1.5, 1.0], [5.5, 1.0]]
    assert "1 became 2" in told[0]
    assert "predicts the other 99% better" in told[0]


def test_who_was_looked_at_is_not_looked_at_again() -> None:
    method = Halves(local=LOCAL)
    state = dataclasses.replace(first_round(method)[0], personal=0)
    ask = ScriptedAsk([fitted({0: (2.0, 2.0), 4: (4.0, 4.0)})])
    state = method.round(state, make_cohort([0, 4], ROSTER, 1), ask)
    assert len(ask.asked[0]) == 1
    assert state.centers.tolist() == [[2.0, 2.0], [4.0, 4.0]]


def test_a_client_met_later_starts_where_its_loss_is_least_and_is_looked_at_from_there() -> None:
    method, roster = Halves(local=LOCAL), make_roster({0: 10, 3: 10, 4: 10, 7: 10, 9: 10})
    state = dataclasses.replace(first_round(method)[0], personal=0)
    halves = looks({9: (10.0, 0.0)}), looks({9: (10.5, 0.0)})
    ask = ScriptedAsk(scored({9: (3.0, 1.0)}), [fitted({9: (8.0, 8.0)}), *halves])
    state = method.round(state, make_cohort([9], roster, 1), ask)
    anchor = ask.asked[1][1].start
    assert isinstance(anchor, Pick)
    assert torch.equal(
        anchor.centers[anchor.labels.at(torch.tensor([9]))][0], begin(method).centers[0]
    )  # the first one
    assert state.labels.at(torch.tensor([9])).tolist() == [1]
    assert state.centers.tolist() == [[1.5, 1.0], [8.0, 8.0]]  # a cluster nobody answered for keeps its model


def state_of(labels: Mapping[int, int], k: int) -> Halved:
    state = Halved.begin(torch.zeros(2), torch.arange(2), 2, 10.0)
    ids = torch.tensor(list(labels))
    return dataclasses.replace(
        state,
        centers=torch.arange(2.0 * k).reshape(k, 2),
        labels=ByClient(ids, torch.tensor(list(labels.values()))),
        group_of=torch.zeros(k, dtype=torch.int64),
    )


def test_a_split_starts_from_the_parents_model_and_keeps_the_larger_parts_number() -> None:
    state = state_of({1: 0, 2: 0, 5: 0, 6: 1}, 2)
    state = state.regrouped(0, torch.tensor([1, 2, 5, 6]), torch.tensor([0, 1, 1, 2]))
    assert state.labels.at(torch.tensor([1, 2, 5, 6])).tolist() == [2, 0, 0, 1]
    assert state.centers.tolist() == [[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]]
    assert state.group_of.tolist() == [0, 0, 0]


def test_a_merge_takes_the_mean_by_clients_and_leaves_no_empty_row() -> None:
    state = state_of({1: 0, 2: 1, 5: 1, 6: 2}, 3)
    state = state.regrouped(0, torch.tensor([1, 2, 5, 6]), torch.tensor([0, 0, 0, 1]))
    assert state.labels.at(torch.tensor([1, 2, 5, 6])).tolist() == [0, 0, 0, 1]
    assert state.centers.flatten().tolist() == pytest.approx([4 / 3, 7 / 3, 4.0, 5.0])


def test_another_group_is_left_alone_and_who_was_not_looked_at_goes_with_the_others() -> None:
    state = dataclasses.replace(state_of({1: 0, 2: 0, 3: 0, 8: 1, 9: 0}, 2), group_of=torch.tensor([0, 1]))
    state = state.regrouped(0, torch.tensor([1, 2, 3]), torch.tensor([0, 1, 1]))
    assert state.labels.at(torch.tensor([1, 2, 3, 8, 9])).tolist() == [2, 0, 0, 1, 0]
    assert state.centers[1].tolist() == [2.0, 3.0]
    assert state.group_of.tolist() == [0, 1, 0]


def test_after_ten_visits_per_client_everyone_is_looked_at_from_its_clusters_model() -> None:
    method = Halves(local=LOCAL)
    state, _, _ = first_round(method)
    for _ in range(9):
        state = state.visited(4)
    assert len(state.looks.ids) == 4
    assert state.until == 10
    state = state.visited(4)
    assert len(state.looks.ids) == 0
    assert torch.equal(state.anchors, state.centers)
    assert state.group_of.tolist() == [0, 1]
    assert (state.visits, state.until) == (0, 20)


def test_small_clusters_give_everyone_a_model_of_their_own() -> None:
    method = Halves(local=LOCAL, mu=0.5)
    state, _, _ = first_round(method)
    assert state.personal == 1  # two clusters of two clients
    ask = ScriptedAsk([fitted({0: (2.0, 2.0)}), fitted({})])
    method.round(state, make_cohort([0], ROSTER, 1), ask)
    own = ask.asked[0][1]
    assert isinstance(own, Fit)
    assert isinstance(own.start, Own)
    assert own.on is not None
    assert (own.mu, own.save, own.send, own.on.tolist()) == (0.5, PERSONAL, False, [0])
    assert isinstance(method.predictor(state).models[0], Own)
    assert isinstance(method.predictor(dataclasses.replace(state, personal=0)).models[0], Pick)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_the_demo_is_recovered_with_the_defaults(share: float) -> None:
    federation = coterie.federate(Digits(), Rotated(clients=40), seed=0)
    rounds = 4 if share == 1 else 12
    result = coterie.run(Halves(), federation, "mlp", rounds=rounds, participation=share, engine="batched", workers=1)
    assert result.summary.clusters == 4
    assert result.summary.ari == 1


def test_alike_clients_stay_together() -> None:
    federation = coterie.federate(Digits(), IID(clients=30), seed=1)
    result = coterie.run(Halves(), federation, "mlp", rounds=12, seed=1, engine="batched", workers=1)
    assert result.summary.clusters == 1
