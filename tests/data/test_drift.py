"""Data that changes by round: who has what when, and what stays true of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import CoterieError
from coterie.data import Drift, Pathological, Rotated, changing
from coterie.data.federate import with_validation
from coterie.data.federation import Federation

KINDS = ("sudden", "staggered", "recurrent", "incremental")


def drifting(kind: str = "staggered", partition: object = None, **more: object) -> Federation:
    spread = Rotated(clients=16) if partition is None else partition
    return coterie.federate("digits", spread, drift=Drift(kind=kind, at=3, every=2, **more), seed=1)  # type: ignore[arg-type]


def timed() -> Federation:
    """Eight clients of unequal size, in two clusters, whose samples have times."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, 2)), np.arange(n) % 2) for n in (30, 9, 41, 3, 22, 17, 8, 5)]
    plain = Federation.from_arrays(clients, seed=0, truth=[0, 1] * 4)
    return replace(plain, time=rng.random(len(plain.train.numbers) + len(plain.test.numbers)))


def truths(data: Federation) -> list[list[int]]:
    assert data.course is not None
    return [[] if phase.truth is None else phase.truth.tolist() for phase in data.course.phases]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partition", [Rotated(clients=16), Pathological(clients=16)], ids=["views", "samples"])
def test_nobody_shares_samples_and_clusters_keep_their_sizes(kind: str, partition: object) -> None:
    data = drifting(kind, partition)
    assert data.course is not None
    for phase in data.course.phases:
        numbers = torch.cat([phase.train.numbers, phase.test.numbers])
        assert len(numbers.unique()) == len(numbers)
        assert phase.truth is not None
        assert np.bincount(phase.truth).tolist() == [4, 4, 4, 4]
    for before, after in pairwise(data.course.phases):
        stayed = ~data.course.drifted(data.course.phases.index(after))
        for client in np.flatnonzero(stayed).tolist():
            assert torch.equal(before.train.row(client), after.train.row(client))


@pytest.mark.parametrize("kind", [*KINDS, "time"])
def test_no_test_sample_is_trained_on_by_anybody_at_any_time(kind: str) -> None:
    data = Drift(kind=kind, at=2, every=1, changes=4)(timed(), seed=3)  # type: ignore[arg-type]
    assert data.course is not None
    train = {n for phase in data.course.phases for n in phase.train.numbers.tolist()}
    test = {n for phase in data.course.phases for n in phase.test.numbers.tolist()}
    assert len(data.course.phases) > 1
    assert train
    assert test
    assert not train & test


def test_who_moves_and_when() -> None:
    sudden, staggered, recurrent = drifting("sudden"), drifting("staggered"), drifting("recurrent")
    assert sudden.course is not None
    assert sudden.course.starts == (0, 2)  # round 3, counted from 1
    first, then = np.array(truths(sudden))
    assert int((first != then).sum()) == 8  # half of the clients
    assert set(((then - first) % 4).tolist()) == {0, 1}  # each to the next cluster
    waves = np.array(truths(staggered))
    assert [int((a != b).sum()) for a, b in pairwise(waves)] == [4, 4]  # two cycles of four
    assert waves[-1].tolist() == then.tolist()  # the same clients, one after another
    assert truths(recurrent) == [first.tolist(), then.tolist(), first.tolist(), then.tolist()]
    assert recurrent.course is not None
    assert recurrent.course.starts == (0, 2, 4, 6)


def test_a_share_of_the_samples_changes_at_a_time() -> None:
    data = drifting("incremental", changes=4)
    assert data.course is not None
    phases, mover = data.course.phases, int(np.flatnonzero(data.course.drifted(1))[0])
    first, last = set(phases[0].train.row(mover).tolist()), set(phases[-1].train.row(mover).tolist())
    assert not first & last
    old = [len(first & set(phase.train.row(mover).tolist())) for phase in phases]
    new = [len(last & set(phase.train.row(mover).tolist())) for phase in phases]
    assert old == [round(len(first) * (1 - share / 4)) for share in range(5)]
    assert new == [round(len(last) * share / 4) for share in range(5)]
    assert [phase.truth[mover] != phases[0].truth[mover] for phase in phases] == [False, False, True, True, True]  # type: ignore[index]


def test_a_round_has_the_data_of_its_phase_and_the_seed_decides() -> None:
    data = drifting("sudden")
    assert data.course is not None
    assert [data.at(r) is data.course.phases[r >= 2] for r in range(5)] == [True] * 5
    assert data.checksum() == drifting("sudden").checksum()
    assert len({data.checksum(), drifting("recurrent").checksum(), drifting("sudden", share=0.25).checksum()}) == 3
    assert "sudden drift: data changes in round 3 (8 clients)" in data.describe()
    stays = coterie.federate("digits", Rotated(clients=16), seed=1)
    assert stays.at(7) is stays


def test_changed_from_the_beginning() -> None:
    early = coterie.federate("digits", Rotated(clients=16), drift=Drift(kind="staggered", at=1, every=2), seed=1)
    assert early.course is not None
    assert early.course.starts == (0, 2)
    assert truths(early) == truths(drifting("staggered"))[1:]


def test_a_schedule_of_ones_own() -> None:
    pool = coterie.federate("digits", Rotated(clients=8), seed=0)
    data = changing(pool, {1: [0, 1, 2], 4: [0, 1, 7]}, names=["a", "b", "c"])
    assert data.names == ("a", "b", "c")
    assert truths(data) == [[0, 0, 1], [0, 0, 3]]
    assert torch.equal(data.at(3).train.row(2), pool.train.row(7))
    two = data.take([2, 0])
    assert two.names == two.at(3).names == ("c", "a")
    truth = two.at(3).truth
    assert truth is not None
    assert truth.tolist() == [3, 0]
    for wrong in ({2: [0]}, {1: [0], 2: [0, 1]}, {1: [8]}):
        with pytest.raises(CoterieError) as error:
            changing(pool, wrong)
        assert error.value.code == "drift-invalid"


def test_validation_samples_stay_held_out_in_all_phases() -> None:
    data = with_validation(drifting("staggered"), 0.25, 0)
    assert data.course is not None
    held, train = set(), set()
    for phase in data.course.phases:
        assert phase.val is not None
        held |= set(phase.val.numbers.tolist())
        train |= set(phase.train.numbers.tolist())
    assert held
    assert not held & train
    now = data.at(0).val
    assert now is not None
    assert data.val is not None
    assert torch.equal(data.val.numbers, now.numbers)


def test_periods_of_a_time_column() -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 2)), np.arange(20) % 2) for _ in range(2)]
    plain = Federation.from_arrays(clients, seed=0)
    whole = torch.cat([plain.train.numbers, plain.test.numbers]).max() + 1
    when = np.arange(int(whole), dtype=np.float64) % 20  # each client's samples, in their order
    data = Drift(kind="time", at=2, every=3, changes=1)(replace(plain, time=when))
    assert data.course is not None
    assert data.course.starts == (0, 1)
    for phase, period in zip(data.course.phases, (range(10), range(10, 20)), strict=True):
        for client in range(2):
            train, test = (when[rows.row(client).numpy()] for rows in (phase.train, phase.test))
            assert sorted([*train, *test]) == list(period)
            assert max(train) < min(test)
            assert len(test) == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: coterie.federate("digits", "iid", drift=Drift()), "none are known"),
        (lambda: coterie.federate("digits", Rotated(clients=4), drift=Drift(share=0.1)), "is nobody"),
        (lambda: coterie.federate("digits", Rotated(clients=8), drift=Drift(kind="time")), "when its samples are of"),
        (lambda: Drift()(drifting()), "changes already"),
        (lambda: Drift(kind="time")(with_validation(timed(), 0.25, 0)), "validation=0.2"),
        (lambda: Federation.join([drifting(), drifting()], "two"), "data.drift"),
        (lambda: coterie.run("fedavg", drifting(), "linear", rounds=1, attack={"kind": "label-flip"}), "data.drift"),
    ],
)
def test_what_cannot_be_is_said(make: object, says: str) -> None:
    with pytest.raises(CoterieError, match=says):
        make()  # type: ignore[operator]
