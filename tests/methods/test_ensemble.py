"""Rounds of FedAvg+ and FedProx+ by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripted import LOCAL, NOBODY, TWO, ScriptedAsk, a_fit, all_of, close, fitted, make_cohort, make_roster

from coterie.methods.ensemble import FedAvgPlus, FedProxPlus

ROSTER = make_roster({3: 30, 7: 10, 11: 60})
MEMBERS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])


@pytest.mark.parametrize("method", [FedAvgPlus(k=3, local=LOCAL), FedProxPlus(k=3, local=LOCAL, mu=0.7)])
def test_all_members_train_in_one_visit_with_an_optimiser_each(method: FedAvgPlus) -> None:
    ask = ScriptedAsk(
        [
            fitted({3: [4.0, 0.0], 11: [1.0, 3.0]}, n=[30, 60]),  # (30 * [4, 0] + 60 * [1, 3]) / 90 = [2, 2]
            fitted({3: [0.0, 3.0], 11: [3.0, 0.0]}, n=[30, 60]),  # (30 * [0, 3] + 60 * [3, 0]) / 90 = [2, 1]
            NOBODY,  # a member nobody answered for stays
        ]
    )
    found = method.round(MEMBERS, make_cohort([3, 7, 11], ROSTER), ask)
    close(found, [[2.0, 2.0], [2.0, 1.0], [5.0, 5.0]])
    (visit,) = ask.asked
    fits = [a_fit(task) for task in visit]
    assert [all_of(f.start) for f in fits] == MEMBERS.tolist()
    assert len({f.optimizer_slot for f in fits}) == 3
    assert all(f.local == LOCAL and f.send and f.save is None and f.on is None for f in fits)
    if isinstance(method, FedProxPlus):
        assert [all_of(f.anchor) for f in fits] == MEMBERS.tolist()
        assert [f.mu for f in fits] == [0.7] * 3
    else:
        assert [f.anchor for f in fits] == [None] * 3


def test_nobody_answers() -> None:
    ask = ScriptedAsk([NOBODY] * 3)
    assert torch.equal(FedAvgPlus(k=3, local=LOCAL).round(MEMBERS, make_cohort([7], ROSTER), ask), MEMBERS)


def test_members_begin_apart_and_their_logits_are_averaged() -> None:
    members = FedAvgPlus(k=3).init(TWO, ROSTER, np.random.default_rng(0))
    assert members.shape == (3, 2)
    assert len({tuple(m) for m in members.tolist()}) == 3
    task = FedAvgPlus(k=3).predictor(MEMBERS)
    assert [all_of(m) for m in task.models] == MEMBERS.tolist()
    assert task.average
    assert task.mixture is None


def test_more_members_than_clients_are_fine() -> None:
    assert len(FedAvgPlus(k=9).init(TWO, ROSTER, np.random.default_rng(0))) == 9


def test_soft_voting_averages_probabilities() -> None:
    """One very sure member outvotes two sure ones by logits, (20, 0) against twice (0, 3), and not softly."""
    task = FedAvgPlus(k=3, voting="soft").predictor(MEMBERS)
    assert not task.average
    assert all_of(task.mixture) == pytest.approx([1 / 3] * 3)
    logits = torch.tensor([[20.0, 0.0], [0.0, 3.0], [0.0, 3.0]])
    assert int(logits.mean(0).argmax()) == 0
    assert int(logits.softmax(1).mean(0).argmax()) == 1
