"""A round of Ditto by hand."""

from __future__ import annotations

import torch
from scripted import LOCAL, NOBODY, ScriptedAsk, a_fit, all_of, close, fitted, kept, make_cohort, make_roster

from coterie.core.tasks import Evaluate, Own
from coterie.methods.ditto import Ditto

ROSTER = make_roster({3: 30, 7: 10, 11: 60})
W = torch.tensor([1.0, 2.0])


def test_one_visit_trains_both_models_and_only_the_shared_one_is_sent() -> None:
    # Clients 3, 7, 11 are asked, 7 is missing: (30 * [4, 0] + 60 * [1, 6]) / 90 = [2, 4].
    ask = ScriptedAsk([fitted({3: [4.0, 0.0], 11: [1.0, 6.0]}, n=[30, 60]), kept(3, 11)])
    found = Ditto(local=LOCAL, lam=0.3).round(W, make_cohort([3, 7, 11], ROSTER), ask)
    close(found, [2.0, 4.0])
    assert ask.done

    (visit,) = ask.asked
    assert len(visit) == 2
    shared, personal = a_fit(visit[0]), a_fit(visit[1])
    assert all_of(shared.start) == [1.0, 2.0]
    assert (shared.anchor, shared.mu, shared.save, shared.send, shared.on) == (None, 0.0, None, True, None)
    assert shared.local == personal.local == LOCAL
    assert isinstance(personal.start, Own)
    assert personal.start.slot == personal.save == "ditto.v"
    assert all_of(personal.start.default) == [1.0, 2.0]  # a client's first personal model is the shared one
    assert all_of(personal.anchor) == [1.0, 2.0]  # held near the round's start, not near what was just trained
    assert personal.mu == 0.3
    assert not personal.send
    assert personal.on is None
    assert personal.optimizer_slot != shared.optimizer_slot


def test_clients_may_count_alike() -> None:
    ask = ScriptedAsk([fitted({3: [4.0, 0.0], 11: [1.0, 6.0]}, n=[30, 60]), kept(3, 11)])
    found = Ditto(local=LOCAL, weights="equal").round(W, make_cohort([3, 7, 11], ROSTER), ask)
    close(found, [2.5, 3.0])


def test_nobody_answers() -> None:
    found = Ditto(local=LOCAL).round(W, make_cohort([3, 7], ROSTER), ScriptedAsk([NOBODY, NOBODY]))
    assert torch.equal(found, W)


def test_a_client_predicts_with_its_own_model_and_a_newcomer_with_the_shared_one() -> None:
    task = Ditto().predictor(W)
    assert isinstance(task, Evaluate)
    (model,) = task.models
    assert isinstance(model, Own)
    assert model.slot == "ditto.v"
    assert all_of(model.default) == [1.0, 2.0]
