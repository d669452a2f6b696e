"""What a robust aggregator lets a method see: by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.tasks import Fit, Fitted
from coterie.layers.robust import Guarded, Robust, RobustMean, guard

ZERO = torch.zeros(2)
FIT = Fit(All(ZERO), Local(steps=1))
RULE = Robust("median")


def reply(models: Sequence[Sequence[float]], ids: Sequence[int] | None = None) -> Fitted:
    n = len(models)
    return Fitted(torch.tensor(ids or list(range(n))), torch.full((n,), 10), torch.zeros(n), torch.tensor(models))


def guarded(models: Sequence[Sequence[float]], rule: Robust = RULE, ids: Sequence[int] | None = None) -> Guarded:
    return guard([FIT], [reply(models, ids)], rule)


def seen(found: Guarded) -> Fitted:
    (one,) = found.replies
    assert isinstance(one, Fitted)
    return one


UNIT = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6], [1.0, 0.0]]


def test_a_long_update_is_scaled_down_and_one_far_too_long_is_rejected() -> None:
    """The median norm is 1: [3, 0] becomes [2, 0], and [0, 5] is more than four times as long."""
    rule = Robust("median", smallest=1)
    found = guarded([*UNIT, [3.0, 0.0], [0.0, 5.0]], rule, ids=[2, 3, 5, 7, 11, 13, 17])
    assert [m.client for m in found.rejected] == [17]
    assert "more than 4 times the median" in found.rejected[0].reason
    assert found.clipped == (13,)
    assert seen(found).ids.tolist() == [2, 3, 5, 7, 11, 13]
    assert seen(found).models[-1].tolist() == [2.0, 0.0]
    assert seen(found).models[:-1].tolist() == torch.tensor(UNIT).tolist()


def test_fewer_than_three_that_are_far_from_all_others_are_quarantined() -> None:
    """Two of the same length on the other side: each has one neighbour. A third makes them a cluster."""
    two = [[-1.0, -1.0], [-1.0, -1.1]]
    near = [[1.0, 1.0], [1.0, 1.1], [1.1, 1.0], [1.1, 1.1], [1.2, 1.0], [1.0, 1.2]]
    found = guarded(near + two)
    assert found.quarantined == (6, 7)
    assert "fewer than 2 other clients are near it" in found.rejected[0].reason
    assert seen(found).ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert guarded([*near, *two, [-1.1, -1.0]]).quarantined == ()
    ids = [3, 4, 8, 10, 11, 20, 21, 40]
    assert guarded(near + two, ids=ids).quarantined == (21, 40)
    assert seen(guarded(near + two, ids=ids)).ids.tolist() == ids[:6]


def test_sketches_are_guarded_as_models_are() -> None:
    """Clients that send only sketches: [3, 0] is scaled down to twice the median norm."""
    look = Fit(All(ZERO), Local(steps=1), send=False, sketch=2)
    points = torch.tensor([*UNIT, [3.0, 0.0]])
    ids = torch.arange(6)
    found = guard([look], [Fitted(ids, ids + 1, torch.zeros(6), sketch=points)], Robust("median", smallest=1))
    one = seen(found)
    assert one.sketch is not None
    assert one.sketch[-1].tolist() == [2.0, 0.0]
    assert found.clipped == (5,)


def test_few_answers_are_left_as_they_are() -> None:
    found = guarded([[1.0, 0.0], [0.0, 1.0], [50.0, 0.0], [0.0, 50.0]])
    assert (found.rejected, found.clipped) == ((), ())


def test_of_few_answers_those_of_clients_that_were_turned_away_before_are_left_out() -> None:
    """Whoever is asked alone, or with few, cannot be compared with anybody."""
    few = reply([[1.0, 0.0], [0.0, 1.0], [50.0, 0.0]], ids=[2, 3, 7])
    found = guard([FIT], [few], RULE, before={7, 9})
    assert seen(found).ids.tolist() == [2, 3]
    assert found.quarantined == (7,)
    assert "one of before was not accepted" in found.rejected[0].reason
    many = guard([FIT], [reply([[1.0, 1.0]] * 6)], RULE, before={3})  # enough to judge it again
    assert seen(many).ids.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_cluster_below_the_floor_is_clipped_and_noted() -> None:
    """Cluster 0 has three clients: [8, 0] is clipped to twice the median norm 1, so the mean is (1 + 1 + 2) / 3.

    Cluster 1 has five: the median of 1, 1, 1, 1, 9 is 1, whatever the last one weighs. Cluster 2 keeps its model.
    """
    means = RobustMean(RULE)
    models = [[1.0, 0.0], [1.0, 0.0], [8.0, 0.0], *[[0.0, 1.0]] * 4, [0.0, 9.0]]
    labels, weights = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]), torch.tensor([1.0] * 7 + [100.0])
    empty = torch.zeros(3, 2)
    empty[2] = -1
    out = means(labels, reply(models), weights, empty)
    torch.testing.assert_close(out, torch.tensor([[4 / 3, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
    assert means.small == {0: 3}


def test_a_client_that_weighs_nothing_has_no_part_and_nobody_weighs_more_than_four_others() -> None:
    """(0 * 1 + 5 * 4) / (4 + 4 * 1): the last client's 100 samples count as four times the median of one."""
    means = RobustMean(Robust("norm-clip", clip=100))
    models = [[0.0], [0.0], [0.0], [0.0], [5.0], [7.0]]
    weights = torch.tensor([1.0, 1, 1, 1, 100, 0])
    out = means(torch.zeros(6, dtype=torch.int64), reply(models), weights, torch.zeros(1, 1))
    assert abs(float(out) - 5 * 4 / 8) < 1e-6


def test_every_cluster_is_clipped_around_what_it_has_now() -> None:
    """At 0 the moves are 1, 1, 1, 1, 1 and at 10 they are 1, 1, 1, 1, 9, which is clipped to twice the median: 2."""
    means = RobustMean(Robust("norm-clip"))
    models = [[1.0]] * 5 + [[11.0]] * 4 + [[19.0]]
    labels, empty = torch.tensor([0] * 5 + [1] * 5), torch.tensor([[0.0], [10.0]])
    out = means(labels, reply(models), torch.ones(10), empty)
    torch.testing.assert_close(out, torch.tensor([[1.0], [10 + (1 + 1 + 1 + 1 + 2) / 5]]))


def test_norms_stay_those_of_their_clients_when_others_were_left_out() -> None:
    """The first is far too long; then each of the others is scaled by its own length, not by that of the one before."""
    rule = Robust("median", smallest=1)
    norms = {0: torch.tensor([9.0, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0], dtype=torch.float64)}
    models = [[9.0, 0.0], *UNIT[:4], [3.0, 0.0], [0.0, 1.0]]
    found = guard([FIT], [reply(models)], rule, norms)
    assert found.clipped == (5,)
    assert seen(found).models[4].tolist() == [2.0, 0.0]
