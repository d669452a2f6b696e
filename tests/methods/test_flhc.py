"""FL+HC by hand: FedAvg first, one cut of the dendrogram of everyone's updates, FedAvg per cluster after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scripted import (
    LOCAL,
    TWO,
    ScriptedAsk,
    a_fit,
    all_of,
    by_client,
    close,
    fitted,
    make_cohort,
    make_roster,
    on,
    played,
    silence,
    starts,
    table,
)

from coterie.core.tasks import Pick
from coterie.methods.flhc import FLHC, Hierarchy

ROSTER = make_roster({3: 30, 7: 10, 11: 60, 19: 20, 23: 20})
W = torch.tensor([1.0, 1.0])
BEFORE = Hierarchy(W[None], by_client({}), torch.arange(2))
# Clusters {3, 11} and {7}, found at [1, 1] with mean updates [3, 0] and [0, 4].
AFTER = Hierarchy(
    torch.tensor([[5.0, 1.0], [1.0, 9.0]]),
    by_client({3: 0, 7: 1, 11: 0}),
    torch.arange(2),
    W,
    torch.tensor([[3.0, 0.0], [0.0, 4.0]]),
)


def test_before_the_clustering_it_is_fedavg() -> None:
    method = FLHC(k=2, warmup=2, local=LOCAL)
    begin = method.init(TWO, ROSTER, np.random.default_rng(0))
    assert begin.centers.shape == (1, 2)
    ask = ScriptedAsk(fitted({3: [4.0, 0.0], 11: [1.0, 6.0]}, n=[30, 60]))
    state = method.round(BEFORE, make_cohort([3, 7, 11], ROSTER, round=1), ask)
    close(state.centers, [[2.0, 4.0]])  # (30 * [4, 0] + 60 * [1, 6]) / 90
    assert table(state.labels) == {}
    task = a_fit(ask.asked[0])
    assert all_of(task.start) == [1.0, 1.0]
    assert (task.on, task.anchor) == (None, None)
    (model,) = method.predictor(state).models
    close(torch.tensor(all_of(model)), [2.0, 4.0])


@pytest.mark.parametrize(("who", "asked"), [("all", [3, 7, 11, 19, 23]), ("cohort", [3, 7])])
def test_the_clustering_round_asks_everyone(who: Any, asked: list[int]) -> None:
    """Updates from [1, 1]: 3 and 11 move right by 4 and 2, 7 and 19 move up by 4 and 1; 23 does not answer.

    Euclidean: 3-11 are 2 apart, 7-19 are 3 apart, the rest at least |(2, 1)| > 2, complete linkage: 3-11 first (2);
    then 19 with 7 (3) or with {3, 11} (max(|(4, 1)|, |(2, 1)|) = 4.12): {7, 19}. Two clusters.
    """
    ask = ScriptedAsk(fitted({3: [5.0, 1.0], 7: [1.0, 5.0], 11: [3.0, 1.0], 19: [1.0, 2.0]}, n=[30, 10, 60, 20]))
    state = FLHC(k=2, warmup=2, cluster_on=who, local=LOCAL).round(BEFORE, make_cohort([3, 7], ROSTER, round=2), ask)
    task = a_fit(ask.asked[0])
    assert on(task) == asked
    assert all_of(task.start) == [1.0, 1.0]
    assert table(state.labels) == {3: 0, 7: 1, 11: 0, 19: 1}
    # (30 * [5, 1] + 60 * [3, 1]) / 90 = [11/3, 1]; (10 * [1, 5] + 20 * [1, 2]) / 30 = [1, 3].
    close(state.centers, [[11 / 3, 1.0], [1.0, 3.0]])
    assert state.stem is not None
    assert state.updates is not None
    close(state.stem, [1.0, 1.0])
    close(state.updates, [[8 / 3, 0.0], [0.0, 2.0]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # As points on a line 0, 1, 5, 11 (first number): complete linkage joins 0-1 at 1, then 5 at 5 or 5-11 at 6.
        ({"threshold": 0.5}, [0, 1, 2, 3]),
        ({"threshold": 1.0}, [0, 0, 1, 2]),  # a merge at the very threshold still happens
        ({"threshold": 5.5}, [0, 0, 0, 1]),
        ({"threshold": 99.0}, [0, 0, 0, 0]),
        ({"k": 4}, [0, 1, 2, 3]),  # K = N
        ({"k": 3}, [0, 0, 1, 2]),
        ({"k": 1}, [0, 0, 0, 0]),
        # Their angles: 0 degrees twice, then the rest (a zero update is like nothing).
        ({"k": 2, "metric": "cosine"}, [0, 1, 1, 1]),
    ],
)
def test_where_the_dendrogram_is_cut(options: dict[str, Any], expected: list[int]) -> None:
    reply = fitted({3: [1.0, 1.0], 7: [2.0, 1.0], 11: [6.0, 1.0], 19: [12.0, 1.0]})
    state = FLHC(warmup=0, local=LOCAL, **options).round(BEFORE, make_cohort([3], ROSTER), ScriptedAsk(reply))
    assert list(table(state.labels).values()) == expected
    assert len(state.centers) == max(expected) + 1


def test_afterwards_every_cluster_is_averaged_alone() -> None:
    def answer(task: Any) -> Any:
        assert on(task) == [3, 7, 11]
        assert starts(task.start, 3, 7, 11) == [[5.0, 1.0], [1.0, 9.0], [5.0, 1.0]]
        # 7, the only member of cluster 1, is missing: its model stays.
        return fitted({3: [8.0, 0.0], 11: [2.0, 3.0]}, n=[30, 60], choice=[0, 0])

    ask = ScriptedAsk(answer)
    state = FLHC(k=2, warmup=0, local=LOCAL).round(AFTER, make_cohort([3, 7, 11], ROSTER, round=9), ask)
    close(state.centers, [[4.0, 2.0], [1.0, 9.0]])  # (30 * [8, 0] + 60 * [2, 3]) / 90
    assert table(state.labels) == {3: 0, 7: 1, 11: 0}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        # Update of 19 is [2, 2.5]: to [3, 0] 1 + 6.25, to [0, 4] 4 + 2.25: cluster 1. Angles: steeper than 45: 1.
        # Update of 23 is [0.5, 0.4]: to [3, 0] 6.25 + 0.16, to [0, 4] 0.25 + 12.96: cluster 0; angle: 0.
        ("euclidean", {19: 1, 23: 0}),
        ("cosine", {19: 1, 23: 0}),
        # |2 - 3| + 2.5 = 3.5 against 2 + 1.5 = 3.5: a tie, the lowest number; 2.5 + 0.4 against 0.5 + 3.6: 0.
        ("manhattan", {19: 0, 23: 0}),
    ],
)
def test_newcomers_join_the_nearest_mean_update(metric: Any, expected: dict[int, int]) -> None:
    ask = ScriptedAsk(fitted({19: [3.0, 3.5], 23: [1.5, 1.4]}))
    method = FLHC(k=2, warmup=0, metric=metric, local=LOCAL)
    state = method.admit(AFTER, make_cohort([3, 7, 19, 23], ROSTER, round=9), ask)
    task = a_fit(ask.asked[0])
    assert on(task) == [19, 23]
    assert all_of(task.start) == [1.0, 1.0]  # where the others stood when they were clustered
    assert table(state.labels) == {3: 0, 7: 1, 11: 0, **expected}
    assert torch.equal(state.centers, AFTER.centers)


def test_newcomers_of_a_round_train_in_it_from_the_cluster_they_joined() -> None:
    ask = ScriptedAsk(fitted({19: [1.0, 3.0]}), fitted({19: [0.0, 0.0]}, n=[20], choice=[1]))  # 23 does not answer
    state = FLHC(k=2, warmup=0, local=LOCAL).round(AFTER, make_cohort([19, 23], ROSTER, round=9), ask)
    assert on(ask.asked[1]) == [19]
    assert starts(ask.asked[1].start, 19) == [[1.0, 9.0]]
    close(state.centers, [[5.0, 1.0], [0.0, 0.0]])
    assert table(state.labels) == {3: 0, 7: 1, 11: 0, 19: 1}


@pytest.mark.parametrize(("state", "round"), [(BEFORE, 0), (BEFORE, 1), (AFTER, 2)])
def test_nobody_answers(state: Hierarchy, round: int) -> None:
    method = FLHC(k=2, warmup=1, local=LOCAL)
    assert played(method, state, make_cohort([3, 7], ROSTER, round=round), ScriptedAsk(silence)) is state


def test_a_clustering_that_nobody_answered_is_made_up_for() -> None:
    method = FLHC(k=2, warmup=1, local=LOCAL)
    state = played(method, BEFORE, make_cohort([3, 7], ROSTER, round=1), ScriptedAsk(silence))
    reply = fitted({3: [5.0, 1.0], 7: [1.0, 5.0]})
    state = method.round(state, make_cohort([3, 7], ROSTER, round=2), ScriptedAsk(reply))
    assert table(state.labels) == {3: 0, 7: 1}


def test_a_single_client_is_a_cluster() -> None:
    method = FLHC(k=1, warmup=0, local=LOCAL)
    state = method.round(BEFORE, make_cohort([7], make_roster({7: 5})), ScriptedAsk(fitted({7: [2.0, 2.0]})))
    assert table(state.labels) == {7: 0}
    close(state.centers, [[2.0, 2.0]])


def test_members_predict_with_their_cluster() -> None:
    (model,) = FLHC(k=2).predictor(AFTER).models
    assert isinstance(model, Pick)
    assert starts(model, 7, 11) == [[1.0, 9.0], [5.0, 1.0]]


def test_ward_needs_euclidean_distances() -> None:
    with pytest.raises(ValueError, match="ward"):
        FLHC(linkage="ward", metric="cosine")
