"""Each client alone, clusters that are given, and the true ones: rounds by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scripted import (
    LOCAL,
    NOBODY,
    TWO,
    ScriptedAsk,
    a_fit,
    all_of,
    close,
    fitted,
    kept,
    make_cohort,
    make_roster,
    scored,
)

import coterie
from coterie.core.errors import CoterieError
from coterie.core.tables import ByClient, Roster
from coterie.core.tasks import Own, Pick
from coterie.methods.given import Given, Oracle
from coterie.methods.hard_clusters import Clusters
from coterie.methods.local_only import LocalOnly
from coterie.testing import check_method
from coterie.testing.trial import two_kinds

PLAIN = make_roster({3: 30, 7: 10, 11: 60, 20: 10})
GROUPS = ByClient(torch.tensor([3, 7, 11]), torch.tensor([0, 1, 1]))  # nobody knows the group of 20
TRUTH = ByClient(PLAIN.ids, torch.tensor([1, 0, 1, 0]))
ROSTER = dataclasses.replace(PLAIN, groups=GROUPS, truth=TRUTH)
W = torch.tensor([1.0, 2.0])
CENTERS = torch.tensor([[0.0, 0.0], [8.0, 8.0]])


def clusters(labels: ByClient | None = None) -> Clusters:
    return Clusters(CENTERS, ByClient.empty() if labels is None else labels, torch.arange(2))


# ---------------------------------------------------------------------------------------------------------- local


def test_everyone_trains_its_own_model_and_nothing_is_sent() -> None:
    ask = ScriptedAsk(kept(3, 11))
    found = LocalOnly(local=LOCAL).round(W, make_cohort([3, 7, 11], PLAIN), ask)
    assert torch.equal(found, W)
    task = a_fit(ask.asked[0])
    assert isinstance(task.start, Own)
    assert task.start.slot == task.save
    assert all_of(task.start.default) == [1.0, 2.0]  # the first time from the common start
    assert (task.send, task.anchor, task.mu, task.local) == (False, None, 0.0, LOCAL)


def test_who_never_trained_alone_predicts_with_the_start() -> None:
    (model,) = LocalOnly().predictor(W).models
    assert isinstance(model, Own)
    assert all_of(model.default) == [1.0, 2.0]


def test_alone_is_ditto_without_its_pull() -> None:
    federation = coterie.federate("digits", coterie.data.Rotated(clients=8))
    local = coterie.Local(steps=3, batch="full")  # the batches of Ditto's second task are others
    alone = coterie.run(coterie.LocalOnly(local), federation, "linear", rounds=1, seed=3)
    ditto = coterie.run(coterie.Ditto(local, lam=0.0), federation, "linear", rounds=1, seed=3)
    assert torch.equal(alone.clients.loss, ditto.clients.loss)


# ---------------------------------------------------------------------------------------------------------- given


def test_every_group_starts_from_the_same_model() -> None:
    state = Given().init(TWO, ROSTER, np.random.default_rng(0))
    assert state.centers.shape == (2, 2)
    assert torch.equal(state.centers[0], state.centers[1])
    assert len(state.labels.ids) == 0


def test_each_group_becomes_the_mean_of_its_members() -> None:
    # Group 1 is 7 (10 samples) and 11 (60): (10 * [1, 8] + 60 * [8, 1]) / 70 = [7, 2]. Group 0 is 3 alone.
    ask = ScriptedAsk(fitted({3: [5.0, 6.0], 7: [1.0, 8.0], 11: [8.0, 1.0]}, n=[30, 10, 60]))
    state = Given(local=LOCAL).round(clusters(), make_cohort([3, 7, 11], ROSTER), ask)
    close(state.centers, [[5.0, 6.0], [7.0, 2.0]])
    start = a_fit(ask.asked[0]).start
    assert isinstance(start, Pick)
    assert start.labels.at(torch.tensor([3, 7, 11])).tolist() == [0, 1, 1]
    assert torch.equal(start.centers, CENTERS)


def test_a_group_that_nobody_answers_for_keeps_its_model() -> None:
    ask = ScriptedAsk(fitted({3: [5.0, 6.0]}, n=[30]))
    close(Given().round(clusters(), make_cohort([3, 7], ROSTER), ask).centers, [[5.0, 6.0], [8.0, 8.0]])
    assert torch.equal(Given().round(clusters(), make_cohort([3, 7], ROSTER), ScriptedAsk(NOBODY)).centers, CENTERS)


def test_who_has_no_group_goes_by_loss_whenever_it_takes_part() -> None:
    before = clusters(ByClient(torch.tensor([3, 20]), torch.tensor([0, 0])))
    ask = ScriptedAsk(scored({20: [2.0, 1.0]}), fitted({3: [5.0, 6.0], 20: [4.0, 4.0]}, n=[30, 10]))
    state = Given().round(before, make_cohort([3, 20], ROSTER), ask)
    assert ask.asked[0].on.tolist() == [20]
    assert state.labels.at(torch.tensor([3, 20])).tolist() == [0, 1]
    close(state.centers, [[5.0, 6.0], [4.0, 4.0]])


def test_a_newcomer_joins_its_group_or_the_cluster_of_least_loss() -> None:
    ask = ScriptedAsk(scored({20: [1.0, 2.0]}))
    state = Given().admit(clusters(), make_cohort([7, 20], ROSTER), ask)
    assert state.labels.at(torch.tensor([7, 20])).tolist() == [1, 0]
    # After training, somebody else's clients: no groups are known at all.
    ask = ScriptedAsk(scored({7: [1.0, 2.0], 20: [2.0, 1.0]}))
    state = Given().admit(clusters(), make_cohort([7, 20], PLAIN), ask)
    assert state.labels.at(torch.tensor([7, 20])).tolist() == [0, 1]


# --------------------------------------------------------------------------------------------------------- oracle


def test_the_oracle_goes_by_the_truth() -> None:
    ask = ScriptedAsk(fitted({3: [2.0, 2.0], 7: [1.0, 8.0], 11: [8.0, 2.0], 20: [3.0, 0.0]}, n=[30, 10, 60, 10]))
    state = Oracle().round(clusters(), make_cohort([3, 7, 11, 20], ROSTER), ask)
    # Cluster 1: (30 * [2, 2] + 60 * [8, 2]) / 90. Cluster 0: the mean of [1, 8] and [3, 0].
    close(state.centers, [[2.0, 4.0], [6.0, 2.0]])
    assert state.labels.values.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("method", [Given(), Oracle()])
@pytest.mark.parametrize("roster", [PLAIN, dataclasses.replace(PLAIN, groups=ByClient.empty())])
def test_where_nobody_knows_the_groups_it_is_refused(method: Given, roster: Roster) -> None:
    with pytest.raises(CoterieError, match=rf"method.name: {type(method).__name__.lower()}") as error:
        method.init(TWO, roster, np.random.default_rng(0))
    assert error.value.code == "groups-missing"


@pytest.mark.parametrize("pattern", ["10:90", "linear"])
def test_a_truth_that_is_a_mixture_is_refused(pattern: str) -> None:
    mixed = coterie.federate("digits", coterie.data.Mixture(clients=8, pattern=pattern))
    with pytest.raises(CoterieError, match="mixtures") as error:
        coterie.run("oracle", mixed, "linear", rounds=1)
    assert error.value.code == "groups-missing"


def test_the_oracle_recovers_the_truth_and_places_newcomers_by_it() -> None:
    federation = coterie.federate("digits", coterie.data.Rotated(clients=12))
    result = coterie.run(Oracle(LOCAL), federation, "linear", rounds=2, participation=0.5, newcomers=0.25)
    assert result.summary.ari == 1.0
    assert result.newcomers is not None
    assert result.newcomers.summary.ari == 1.0


# --------------------------------------------------------------------------------------------------- conformance


@pytest.mark.parametrize("method", [LocalOnly(LOCAL), Given(LOCAL), Oracle(LOCAL)])
def test_they_keep_the_promises_of_a_method(method: object) -> None:
    kinds = two_kinds()
    groups = tuple(None if c == 5 else "ab"[c % 2] for c in range(8))
    check_method(method, federation=dataclasses.replace(kinds, groups=groups, truth=np.arange(8) % 2))
