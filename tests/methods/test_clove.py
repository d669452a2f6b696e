"""A round of CLoVE by hand: loss vectors, k-means of them, the matching of clusters to models, and the means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripted import (
    LOCAL,
    TWO,
    Imagined,
    ScriptedAsk,
    a_fit,
    close,
    fitted,
    make_cohort,
    make_roster,
    on,
    scored,
    starts,
    table,
)

from coterie.core.tables import ByClient
from coterie.core.tasks import Score
from coterie.methods.clove import CLoVE, LossClusters

ROSTER = make_roster({3: 30, 7: 10, 11: 60, 19: 20, 23: 20, 29: 40})
MODELS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
# Everyone has the least loss under model 0.
FIRST = {3: [1.0, 5.1], 7: [2.1, 3.5], 11: [1.0, 5.1], 19: [2.1, 3.5], 23: [2.1, 3.5], 29: [1.0, 5.1]}


def state(models: torch.Tensor = MODELS) -> LossClusters:
    return LossClusters(models, ByClient.empty(), torch.arange(2), ByClient.empty(torch.float32))


def test_clusters_are_matched_to_models_although_one_model_is_the_best_for_all() -> None:
    """Three clients (1.0, 5.1), three (2.1, 3.5). Straight: 3 * 1.0 + 3 * 3.5 = 13.5; crossed: 15.3 + 6.3 = 21.6.

    IFCA sends all six to model 0.
    """
    assert {min(range(2), key=lambda model: losses[model]) for losses in FIRST.values()} == {0}
    models = {3: [4.0, 0.0], 7: [0.0, 8.0], 11: [1.0, 3.0], 19: [0.0, 4.0], 23: [0.0, 0.0], 29: [0.0, 0.0]}
    ask = ScriptedAsk(scored(FIRST), fitted(models, n=[30, 10, 60, 20, 20, 40], choice=[0, 1, 0, 1, 1, 0]))
    found = CLoVE(k=2, local=LOCAL).round(state(), make_cohort([3, 7, 11, 19, 23, 29], ROSTER), ask)
    assert table(found.labels) == {3: 0, 7: 1, 11: 0, 19: 1, 23: 1, 29: 0}
    # (30 * [4, 0] + 60 * [1, 3]) / 130 and (10 * [0, 8] + 20 * [0, 4]) / 50, by size
    close(found.centers, [[180 / 130, 180 / 130], [0.0, 160 / 50]])
    asked, fit = ask.asked
    assert isinstance(asked, Score)
    assert (asked.rule, on(asked), asked.save) == ("loss", [3, 7, 11, 19, 23, 29], None)
    assert torch.equal(asked.centers, MODELS)
    assert starts(a_fit(fit).start, 3, 7) == MODELS.tolist()
    close(found.losses.at(torch.tensor([7, 29])), [[2.1, 3.5], [1.0, 5.1]])


def test_the_clients_of_a_round_are_clustered_whatever_absent_ones_said() -> None:
    """The models have become better since: 11's losses (0.4, 0.9) are nearer to the old ones of 7 and 19, (2.1, 3.5),
    than to its own cluster's (1.0, 5.1). Among the two that are there, 11 is cheaper under model 0, and 19 under 1."""
    kept = ByClient(torch.tensor([3, 7, 11, 19]), torch.tensor([FIRST[i] for i in (3, 7, 11, 19)]))
    was = LossClusters(MODELS, ByClient(kept.ids, torch.tensor([0, 1, 0, 1])), torch.arange(2), kept)
    now = {11: [0.4, 0.9], 19: [0.8, 0.3]}
    ask = ScriptedAsk(scored(now), fitted({11: [4.0, 0.0], 19: [0.0, 4.0]}, n=[60, 20], choice=[0, 1]))
    found = CLoVE(k=2, local=LOCAL).round(was, make_cohort([11, 19], ROSTER), ask)
    assert table(found.labels) == {3: 0, 7: 1, 11: 0, 19: 1}
    close(found.centers, [[4.0, 0.0], [0.0, 4.0]])
    assert found.losses.ids.tolist() == [11, 19]  # a newcomer is compared with what clusters are like now
    close(found.places(), [now[11], now[19]])

    ask = ScriptedAsk(scored(now), fitted({11: [0.0, 4.0], 19: [0.0, 4.0]}, n=[60, 20], choice=[1, 1]))
    known = CLoVE(k=2, local=LOCAL, clustered="known").round(was, make_cohort([11, 19], ROSTER), ask)
    assert table(known.labels)[11] == table(known.labels)[19]  # by what 3 and 7 said once, they are alike


def test_clusters_that_nobody_of_a_round_is_in_are_where_they_were() -> None:
    kept = ByClient(torch.tensor([3, 7]), torch.tensor([FIRST[3], FIRST[7]]))
    was = LossClusters(MODELS, ByClient(kept.ids, torch.tensor([0, 1])), torch.arange(2), kept)
    ask = ScriptedAsk(scored({19: [0.8, 0.3]}), fitted({19: [0.0, 4.0]}, n=[20], choice=[1]))
    found = CLoVE(k=2, local=LOCAL).round(was, make_cohort([19], ROSTER), ask)
    assert found.losses.ids.tolist() == [3, 19]
    close(found.places(), [FIRST[3], [0.8, 0.3]])


def test_with_known_clients_clustered_one_that_is_met_late_finds_the_clusters() -> None:
    """Round 2 has clients 7 and 23 only, 23 for the first time: with the kept losses they are of one cluster."""
    method = CLoVE(k=2, local=LOCAL, clustered="known")
    known = {i: row for i, row in FIRST.items() if i not in (23, 29)}
    first = ScriptedAsk(scored(known), fitted({3: [2.0, 2.0]}, n=[30], choice=[0]))  # the other three fell silent
    before = method.round(state(), make_cohort([3, 7, 11, 19, 29], ROSTER), first)
    assert on(first.asked[1]) == [3, 7, 11, 19]  # not 29, which sent no losses
    close(before.centers, [[2.0, 2.0], [0.0, 1.0]])  # nobody sent a model of cluster 1: it keeps its own

    second = ScriptedAsk(
        scored({7: [2.0, 3.3], 23: [2.2, 3.4]}), fitted({7: [0.0, 2.0], 23: [0.0, 5.0]}, n=[10, 20], choice=[1, 1])
    )
    after = method.round(before, make_cohort([7, 23], ROSTER, round=1), second)
    assert table(after.labels) == {3: 0, 7: 1, 11: 0, 19: 1, 23: 1}
    close(after.centers, [[2.0, 2.0], [0.0, 4.0]])  # those of cluster 0 were absent
    close(after.losses.at(torch.tensor([3, 7])), [[1.0, 5.1], [2.0, 3.3]])  # kept, and new


def test_the_option_that_was_the_rule_before_has_the_outcomes_of_before() -> None:
    assert (CLoVE().revision, CLoVE(clustered="known").revision) == (1, 0)


def test_clients_that_left_do_not_count() -> None:
    kept = ByClient(torch.tensor([3, 99]), torch.tensor([[1.0, 5.1], [0.0, 90.0]]))
    was = LossClusters(MODELS, ByClient(kept.ids, torch.tensor([1, 0])), torch.arange(2), kept)
    ask = ScriptedAsk(scored({7: [2.1, 3.5]}), fitted({7: [0.0, 8.0]}, n=[10], choice=[1]))
    found = CLoVE(k=2, local=LOCAL, clustered="known").round(was, make_cohort([7], ROSTER), ask)
    assert table(found.labels) == {3: 0, 7: 1, 99: 0}


def test_clients_alike_are_one_cluster_of_the_cheapest_model_and_others_stay() -> None:
    ask = ScriptedAsk(
        scored({client: [4.0, 1.0] for client in (3, 7, 11)}),
        fitted({client: [6.0, 6.0] for client in (3, 7, 11)}, choice=[1, 1, 1]),
    )
    found = CLoVE(k=2, local=LOCAL).round(state(), make_cohort([3, 7, 11], ROSTER), ask)
    assert set(table(found.labels).values()) == {1}
    close(found.centers, [[1.0, 0.0], [6.0, 6.0]])


def test_fewer_clients_than_models() -> None:
    models = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    ask = ScriptedAsk(scored({11: [3.0, 2.0, 1.0]}), fitted({11: [7.0, 7.0]}, choice=[2]))
    found = CLoVE(k=3, local=LOCAL).round(state(models), make_cohort([11], ROSTER), ask)
    close(found.centers, [[1.0, 0.0], [0.0, 1.0], [7.0, 7.0]])


def test_square_roots_of_losses() -> None:
    """Losses 1, 4, 9, 20: squared distances are least for {1, 4, 9} {20}, 32.7, against {1, 4} {9, 20}, 65. Their roots
    1, 2, 3, 4.47: 2 against 1.58."""
    losses = {3: [1.0, 0.0], 7: [4.0, 0.0], 11: [9.0, 0.0], 19: [20.0, 0.0]}
    for root, apart in ((False, [[3, 7, 11], [19]]), (True, [[3, 7], [11, 19]])):
        ask = ScriptedAsk(scored(losses), fitted({3: [0.0, 0.0]}, choice=[0]))
        found = table(CLoVE(k=2, root=root).round(state(), make_cohort([3, 7, 11, 19], ROSTER), ask).labels)
        groups = [[i for i, label in found.items() if label == k] for k in (0, 1)]
        assert sorted(groups) == sorted(apart)


def test_a_newcomer_joins_the_nearest_mean_loss_vector() -> None:
    """Means (1.0, 5.1) and (2.1, 3.5). (1.4, 4.0) has the least loss under model 0 and is nearer to cluster 1."""
    kept = ByClient(torch.tensor(list(FIRST)), torch.tensor(list(FIRST.values())))
    labels = ByClient(kept.ids, torch.tensor([0, 1, 0, 1, 1, 0]))
    before = LossClusters(MODELS, labels, torch.arange(2), kept)
    ask = ScriptedAsk(scored({31: [1.4, 4.0], 37: [0.9, 6.0]}))
    found = CLoVE(k=2).admit(before, make_cohort([3, 31, 37, 41], ROSTER), ask)
    assert on(ask.asked[0]) == [31, 37, 41]
    assert {i: table(found.labels)[i] for i in (31, 37)} == {31: 1, 37: 0}
    assert 41 not in table(found.labels)  # it did not answer
    assert torch.equal(found.centers, MODELS)


def test_a_cluster_without_members_takes_no_newcomer() -> None:
    kept = ByClient(torch.tensor([3]), torch.tensor([[1.0, 5.1]]))
    before = LossClusters(MODELS, ByClient(kept.ids, torch.tensor([0])), torch.arange(2), kept)
    found = CLoVE(k=2).admit(before, make_cohort([31], ROSTER), ScriptedAsk(scored({31: [99.0, 0.0]})))
    assert table(found.labels) == {3: 0, 31: 0}


@pytest.mark.parametrize("k", [1, 2])
def test_before_any_round_a_newcomer_is_of_the_first_cluster(k: int) -> None:
    method = CLoVE(k=k)
    begin = method.init(TWO, ROSTER, np.random.default_rng(0))
    assert len({tuple(m) for m in begin.centers.tolist()}) == k
    assert table(method.admit(begin, make_cohort([31], ROSTER), ScriptedAsk()).labels) == {31: 0}


def test_with_one_model_nobody_is_asked_for_losses() -> None:
    cohort = make_cohort([3, 7], ROSTER)
    ask = Imagined(lambda client, start: [float(client), 0.0], cohort)
    found = CLoVE(k=1).round(state(MODELS[:1]), cohort, ask)
    assert len(ask.visits) == 1
    close(found.centers, [[1 + (30 * 3 + 10 * 7) / 40, 0.0]])
