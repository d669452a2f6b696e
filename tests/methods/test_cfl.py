"""CFL by hand: three levels of splits that follow ids, and the way down the tree for those who were away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scripted import (
    FOUR,
    LOCAL,
    TWO,
    Imagined,
    ScriptedAsk,
    a_fit,
    all_of,
    assert_same,
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
from torch import Tensor

from coterie.core.tasks import Fitted
from coterie.methods.cfl import CFL, Tree

GROUPS = {"a": [3, 20], "b": [7, 42], "c": [11, 57], "d": [19, 31]}  # interleaved: positions would mix them up
GROUP_OF = {i: name for name, ids in GROUPS.items() for i in ids}
EVERYONE = sorted(GROUP_OF)
ROSTER = make_roster(dict.fromkeys([*EVERYONE, 60, 61, 62], 10))

# What the groups do in rounds 0, 1 and 2. Two clients per group, all of one size.
STEPS: list[dict[str, list[float]]] = [
    # 2 * (-6) + 6 * 2 = 0: the mean is short, the members are not; a is opposite to the rest.
    {"a": [-6, 0, 0, 0], "b": [2, 0, 0, 0], "c": [2, 0, 0, 0], "d": [2, 0, 0, 0]},
    # b, c, d: 2 * (-4) + 4 * 2 = 0; a moves on together and is not split.
    {"a": [0, 0, 0, 1], "b": [0, -4, 0, 0], "c": [0, 2, 0, 0], "d": [0, 2, 0, 0]},
    # c, d: 2 * 2 + 2 * (-2) = 0.
    {"a": [0, 0, 0, 1], "b": [0, 0, 0, 1], "c": [0, 0, 2, 0], "d": [0, 0, -2, 0]},
]
METHOD = CFL(eps1=0.4, eps2=1.6, local=LOCAL)


def begin() -> Tree:
    state = METHOD.init(FOUR, ROSTER, np.random.default_rng(0))
    assert state.centers.shape == (1, 4)
    return Tree(
        torch.zeros(1, 4), state.labels, state.features, state.fork_of, state.new_of, state.stems, state.directions
    )


def steps_of(round: int) -> Imagined:
    cohort = make_cohort(EVERYONE, ROSTER, round)
    return Imagined(lambda i, start: STEPS[round][GROUP_OF[i]], cohort)


def after(rounds: int) -> Tree:
    state = begin()
    for t in range(rounds):
        state = METHOD.round(state, make_cohort(EVERYONE, ROSTER, t), steps_of(t))
    return state


def groups(state: Tree) -> dict[int, str]:
    """Who is in each cluster, by the names of their groups."""
    found: dict[int, set[int]] = {}
    for i, label in table(state.labels).items():
        found.setdefault(label, set()).add(i)
    return {label: "".join(g for g, ids in GROUPS.items() if set(ids) <= members) for label, members in found.items()}


def test_three_levels_of_splits_lose_nobody() -> None:
    one = after(1)
    assert sorted(table(one.labels)) == EVERYONE
    assert groups(one) == {0: "a", 1: "bcd"}  # the part with the lowest id keeps the number
    close(one.centers, [[-6, 0, 0, 0], [2, 0, 0, 0]])

    two = after(2)
    assert sorted(table(two.labels)) == EVERYONE
    assert groups(two) == {0: "a", 1: "b", 2: "cd"}
    close(two.centers, [[-6, 0, 0, 1], [2, -4, 0, 0], [2, 2, 0, 0]])

    three = after(3)
    assert sorted(table(three.labels)) == EVERYONE
    assert groups(three) == {0: "a", 1: "b", 2: "c", 3: "d"}
    close(three.centers, [[-6, 0, 0, 2], [2, -4, 0, 1], [2, 2, 2, 0], [2, 2, -2, 0]])
    # The tree: 0 -> 0 | 1, 1 -> 1 | 2, 2 -> 2 | 3, each fork with the model before it and both mean updates.
    assert three.fork_of.tolist() == [0, 1, 2]
    assert three.new_of.tolist() == [1, 2, 3]
    close(three.stems, [[0, 0, 0, 0], [2, 0, 0, 0], [2, 2, 0, 0]])
    close(three.directions[0], [[-6, 0, 0, 0], [2, 0, 0, 0]])
    close(three.directions[1], [[0, -4, 0, 0], [0, 2, 0, 0]])
    close(three.directions[2], [[0, 0, 2, 0], [0, 0, -2, 0]])


def test_everyone_trains_from_the_own_cluster() -> None:
    ask = steps_of(2)
    METHOD.round(after(2), make_cohort(EVERYONE, ROSTER, 2), ask)
    ((task,),) = ask.visits
    fit = a_fit(task)
    assert on(fit) == EVERYONE
    assert starts(fit.start, 3, 42, 57, 31) == [[-6, 0, 0, 1], [2, -4, 0, 0], [2, 2, 0, 0], [2, 2, 0, 0]]
    assert (fit.anchor, fit.save, fit.send, fit.local) == (None, None, True, LOCAL)


def level(start: Tensor) -> int:
    """Which of the three forks a model is."""
    return [[0.0, 0, 0, 0], [2.0, 0, 0, 0], [2.0, 2, 0, 0]].index(start.tolist())


def test_absent_members_of_a_split_cluster_find_their_side_when_next_met() -> None:
    """In round 1 only 7 of b, 11 of c and both of d take part: -6 + 2 + 2 + 2 = 0, a split without 42 and 57."""
    here = [3, 7, 11, 19, 31]
    moves = {3: [0.0, 0, 0, 1], 7: [0.0, -6, 0, 0], 11: [0.0, 2, 0, 0], 19: [0.0, 2, 0, 0], 31: [0.0, 2, 0, 0]}
    cohort = make_cohort(here, ROSTER, 1)
    state = METHOD.round(after(1), cohort, Imagined(lambda i, start: moves[i], cohort))
    # 20 is absent too, but its cluster was not split.
    assert table(state.labels) == {3: 0, 7: 1, 11: 2, 19: 2, 20: 0, 31: 2}

    # 42, 57 and the newcomers 60 (like a), 61 (like d) and 62 (leaves halfway) walk down; 7 knows its place.
    like = {42: "b", 57: "c", 60: "a", 61: "d", 62: "b"}

    def walk(task: object) -> Fitted:
        fit = a_fit(task)
        fork = torch.tensor(all_of(fit.start))
        ids = [i for i in on(fit) or [] if i != 62 or level(fork) == 0]
        return fitted({i: (fork + torch.tensor(STEPS[level(fork)][like[i]])).tolist() for i in ids})

    ask = ScriptedAsk(walk, walk)
    known = METHOD.admit(state, make_cohort([7, 42, 57, 60, 61, 62], ROSTER, 2), ask)
    assert ask.done
    assert [on(task) for task in ask.asked] == [[42, 57, 60, 61, 62], [42, 57, 61, 62]]  # 60 is at its leaf
    assert all_of(ask.asked[0].start) == [0, 0, 0, 0]
    assert all_of(ask.asked[1].start) == [2, 0, 0, 0]
    assert table(known.labels) == {**table(state.labels), 42: 1, 57: 2, 60: 0, 61: 2}  # 62 stays unmet
    close(known.centers, state.centers)


def test_newcomers_walk_all_the_way_down() -> None:
    like = {60: "d", 61: "a", 62: "c"}
    cohort = make_cohort([60, 61, 62], ROSTER, 3)
    ask = Imagined(lambda i, start: STEPS[level(start)][like[i]], cohort)
    state = METHOD.admit(after(3), cohort, ask)
    assert {i: table(state.labels)[i] for i in like} == {60: 3, 61: 0, 62: 2}
    assert [on(task) for (task,) in ask.visits] == [[60, 61, 62], [60, 62], [60, 62]]


def test_newcomers_of_a_round_train_with_the_cluster_they_found() -> None:
    cohort = make_cohort([3, 60], ROSTER, 3)

    def step(i: int, start: Tensor) -> Sequence[float]:
        return [-1, 0, 0, 0]  # at the root this is a's way

    state = METHOD.round(after(1), cohort, Imagined(step, cohort))
    assert table(state.labels)[60] == 0
    close(state.centers, [[-7, 0, 0, 0], [2, 0, 0, 0]])


@pytest.mark.parametrize(
    ("method", "splits"),
    [
        (CFL(eps1=0.4, eps2=1.6), True),
        (CFL(eps1=0.1, eps2=1.6), False),  # the mean update is 0.2 long
        (CFL(eps1=0.4, eps2=3.0), False),  # nobody's update is longer than 3
        (CFL(eps1=0.4, eps2=2.9), True),
        (CFL(eps1=0.4, eps2=1.6, first_split=6), False),  # this is round 5
        (CFL(eps1=0.4, eps2=1.6, first_split=5), True),
        # The largest cosine across is -1: sqrt((1 + 1) / 2) = 1.
        (CFL(eps1=0.4, eps2=1.6, gamma_max=0.99), True),
        (CFL(eps1=0.4, eps2=1.6, gamma_max=1.0), False),
    ],
)
def test_when_a_cluster_is_split(method: CFL, splits: bool) -> None:
    """Updates 3, -2, -1 of sizes 10, 10, 5: their mean is (30 - 20 - 5) / 25 = 0.2; counted alike it would be 0."""
    before = Tree(
        torch.tensor([[1.0, 1.0]]),
        by_client({3: 0, 7: 0, 11: 0}),
        torch.arange(2),
        torch.empty(0, dtype=torch.int64),
        torch.empty(0, dtype=torch.int64),
        torch.empty(0, 2),
        torch.empty(0, 2, 2),
    )
    reply = fitted({3: [4.0, 1.0], 7: [-1.0, 1.0], 11: [0.0, 1.0]}, n=[10, 10, 5], choice=[0, 0, 0])
    state = method.round(before, make_cohort([3, 7, 11], ROSTER, 5), ScriptedAsk(reply))
    if splits:
        # {7, 11}: (10 * [-1, 1] + 5 * [0, 1]) / 15 = [-2/3, 1].
        close(state.centers, [[4.0, 1.0], [-2 / 3, 1.0]])
        assert table(state.labels) == {3: 0, 7: 1, 11: 1}
        close(state.directions, [[[3.0, 0.0], [-5 / 3, 0.0]]])
    else:
        close(state.centers, [[1.2, 1.0]])  # 1 + 0.2
        assert table(state.labels) == {3: 0, 7: 0, 11: 0}


def test_two_clusters_may_split_in_one_round() -> None:
    before = after(1)
    steps = {3: [2.0, 0, 0, 0], 20: [-2.0, 0, 0, 0]} | {i: [0.0, 2, 0, 0] for i in (7, 42)}
    steps |= {i: [0.0, -1, 0, 0] for i in (11, 57, 19, 31)}
    cohort = make_cohort(EVERYONE, ROSTER, 1)
    state = METHOD.round(before, cohort, Imagined(lambda i, start: steps[i], cohort))
    assert table(state.labels) == {3: 0, 20: 2, 7: 1, 42: 1, 11: 3, 57: 3, 19: 3, 31: 3}
    assert state.fork_of.tolist() == [0, 0, 1]
    # A cluster forked twice: a newcomer at fork 0 goes left, and at the second fork of 0 it goes to 2.
    like = {60: [[-6.0, 0, 0, 0], [-2.0, 0, 0, 0]]}
    ask = Imagined(lambda i, start: like[i][0 if start[0] == 0 else 1], make_cohort([60], ROSTER, 2))
    assert table(METHOD.admit(state, make_cohort([60], ROSTER, 2), ask).labels)[60] == 2


def test_a_cluster_whose_members_are_absent_keeps_its_model() -> None:
    cohort = make_cohort([3, 20], ROSTER, 2)
    state = METHOD.round(after(2), cohort, Imagined(lambda i, start: [0, 0, 0, 1], cohort))
    close(state.centers, [[-6, 0, 0, 2], [2, -4, 0, 0], [2, 2, 0, 0]])


def test_nobody_answers() -> None:
    before = after(2)
    assert played(METHOD, before, make_cohort([3, 7], ROSTER, 2), ScriptedAsk(silence)) is before
    # Newcomers who do not answer at the first fork are not asked at the second.
    assert_same(METHOD.admit(before, make_cohort([60, 61], ROSTER, 2), ScriptedAsk(silence)), before)


def test_a_single_client_is_never_split() -> None:
    method = CFL(eps1=99, eps2=0.1, local=LOCAL)
    alone = make_roster({7: 5})
    state = method.init(TWO, alone, np.random.default_rng(0))
    cohort = make_cohort([7], alone)
    for _ in range(2):
        state = method.round(state, cohort, Imagined(lambda i, start: [3.0, 0.0], cohort))
    assert state.centers.shape == (1, 2)
    assert table(state.labels) == {7: 0}


def test_thresholds_are_shares_of_the_longest_first_update() -> None:
    # 0.3 and 0.6 of 10: a mean shorter than 3 and a member longer than 6 are split, with "auto" as with these numbers.
    auto, told = CFL(), CFL(eps1=3.0, eps2=6.0)
    even = torch.ones(2)
    for updates, parts in (
        ([[6.1, 0.0], [-1.0, 0.0]], True),
        ([[5.9, 0.0], [-1.0, 0.0]], False),
        ([[7.0, 0.0], [-0.9, 0.0]], False),  # a mean of 3.05
    ):
        for method in (auto, told):
            assert (method.split(torch.tensor(updates), even, 10.0) is not None) == parts


def test_the_longest_update_of_the_first_round_is_remembered() -> None:
    roster = make_roster({3: 10, 7: 10})
    method = CFL(local=LOCAL)
    state = method.init(TWO, roster, np.random.default_rng(0))
    start = state.centers[0]
    moved = [fitted({3: (start + torch.tensor([3.0, 4.0])).tolist(), 7: start.tolist()}, choice=[0, 0])]
    state = method.round(state, make_cohort([3, 7], roster), ScriptedAsk(*moved))
    assert state.first == pytest.approx(5.0)
    center = state.centers[0]
    moved = [fitted({3: (center + torch.tensor([9.0, 9.0])).tolist(), 7: center.tolist()}, choice=[0, 0])]
    assert method.round(state, make_cohort([3, 7], roster, round=1), ScriptedAsk(*moved)).first == state.first
