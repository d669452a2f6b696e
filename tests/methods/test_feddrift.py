"""FedDrift by hand: who drifts, who gets a model, which models are merged, and how they are averaged."""

from __future__ import annotations

import torch
from scripted import LOCAL, ScriptedAsk, a_fit, close, fitted, make_cohort, make_roster, scored, starts, table

import coterie
from coterie import Local
from coterie.core.tables import ByClient
from coterie.core.tasks import Score
from coterie.data import Rotated, changing
from coterie.methods.feddrift import Concepts, FedDrift

ROSTER = make_roster({3: 30, 7: 10, 11: 60})
MODELS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])


def state(labels: dict[int, int], records: dict[int, float], models: torch.Tensor = MODELS) -> Concepts:
    ids = torch.tensor(sorted(labels), dtype=torch.int64)
    known = torch.tensor(sorted(records), dtype=torch.int64)
    return Concepts(
        models,
        ByClient(ids, torch.tensor([labels[i] for i in sorted(labels)], dtype=torch.int64)),
        torch.arange(2),
        ByClient(known, torch.tensor([records[i] for i in sorted(records)])),
        torch.zeros(len(models), dtype=torch.int64),
    )


def test_a_client_that_no_model_fits_gets_one_that_starts_from_its_best() -> None:
    """Client 3: 0.4, as before. 7: from 0.3 to 2.0 > 0.3 + 1: alone, from model 1. 11: model 0 now, no model needed."""
    was = state({3: 0, 7: 0, 11: 1}, {3: 0.4, 7: 0.3, 11: 0.2})
    ask = ScriptedAsk(
        scored({3: [0.4, 5.0], 7: [6.0, 2.0], 11: [0.5, 9.0]}),
        fitted({3: [2.0, 0.0], 7: [0.0, 9.0], 11: [5.0, 3.0]}, n=[30, 10, 60], choice=[0, 2, 0]),
    )
    found = FedDrift(delta=1.0, step=2, local=LOCAL).round(was, make_cohort([3, 7, 11], ROSTER, round=4), ask)
    score, fit = ask.asked
    assert isinstance(score, Score)
    assert torch.equal(score.centers, MODELS)
    assert starts(a_fit(fit).start, 3, 7, 11) == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    assert table(found.labels) == {3: 0, 7: 2, 11: 0}
    # (30 * [2, 0] + 60 * [5, 3]) / 90; nobody is in model 1 now, which is kept: its concept may return
    close(found.centers, [[4.0, 2.0], [0.0, 1.0], [0.0, 9.0]])
    close(found.records.at(torch.tensor([3, 7, 11])), [0.4, 2.0, 0.5])
    assert found.used.tolist() == [2, 0, 2]  # of the third time step, 4 // 2


def test_a_client_that_returns_picks_its_old_model_and_no_new_one() -> None:
    """The loss of model 0 is what it was when the client left: no drift, whatever its own model says."""
    was = state({3: 1, 7: 1}, {3: 0.3, 7: 0.3})
    ask = ScriptedAsk(scored({3: [0.4, 7.0], 7: [8.0, 0.3]}), fitted({3: [1.0, 1.0], 7: [0.0, 3.0]}, choice=[0, 1]))
    found = FedDrift(delta=1.0, merge=0.1, step=1, local=LOCAL).round(was, make_cohort([3, 7], ROSTER, round=9), ask)
    assert table(found.labels) == {3: 0, 7: 1}
    assert len(found.centers) == 2


def test_models_that_serve_each_others_clients_are_merged() -> None:
    """Models 0 and 1 are 0.3 apart: 0 is 0.3 worse on the client of 1 than on its own. Model 2 is far from both.

    Two clients are in model 0, one of them absent; so the mean is (2 * [1, 0] + 1 * [0, 1]) / 3.
    """
    models = torch.cat([MODELS, torch.tensor([[9.0, 9.0]])])
    was = state({3: 0, 5: 0, 7: 1, 11: 2}, {3: 0.1, 7: 0.1, 11: 0.1}, models)
    losses = {3: [0.1, 0.3, 6.0], 7: [0.4, 0.2, 6.0], 11: [5.0, 5.0, 0.1]}
    silent = fitted({3: [2 / 3, 1 / 3], 7: [2 / 3, 1 / 3], 11: [9.0, 9.0]}, choice=[0, 0, 1])
    method = FedDrift(delta=0.35, step=1, local=LOCAL)
    ask = ScriptedAsk(scored(losses), silent)
    found = method.round(was, make_cohort([3, 7, 11], ROSTER, round=1), ask)
    close(torch.tensor(starts(a_fit(ask.asked[1]).start, 3)), [[2 / 3, 1 / 3]])
    assert table(found.labels) == {3: 0, 5: 0, 7: 0, 11: 1}
    apart = was.merged(torch.tensor([3, 7, 11]), torch.tensor(list(losses.values())).double(), 0.25)
    assert len(apart.centers) == 3
    everything = was.merged(torch.tensor([3, 7, 11]), torch.tensor(list(losses.values())).double(), 99.0)
    close(everything.centers, [[(2 * 1 + 0 + 9) / 4, (0 + 1 + 9) / 4]])  # a mean weighted by clients


def test_in_the_first_round_everyone_has_a_model_and_tests_are_at_steps_only() -> None:
    start = state({}, {}, MODELS[:1])
    own = fitted({3: [3.0, 0.0], 7: [7.0, 0.0]}, choice=[1, 2])
    ask = ScriptedAsk(scored({3: [2.3], 7: [2.4]}), own)
    found = FedDrift(local=LOCAL).round(start, make_cohort([3, 7], ROSTER, round=0), ask)
    assert table(found.labels) == {3: 1, 7: 2}
    close(found.centers, [[1.0, 0.0], [3.0, 0.0], [7.0, 0.0]])
    ask = ScriptedAsk(own)  # round 1 is of the same step: nobody is asked for losses
    FedDrift(local=LOCAL).round(found, make_cohort([3, 7], ROSTER, round=1), ask)
    assert len(ask.asked) == 1


def test_data_that_stays_as_it_is_needs_one_model_and_a_known_concept_no_new_one() -> None:
    """Clients alike stay with the model they begin with (a delta above the noise). One that drifts gets a model of its
    own, and when it returns it takes the first one again."""
    pool = coterie.federate("digits", Rotated(clients=8, angles=(0, 180)), seed=0)
    local = Local(epochs=3, batch=8, lr=0.1)
    method = FedDrift(start="one", step=2, local=local)
    calm = coterie.run(method, pool.take([0, 1, 2, 3]), "linear", rounds=6, engine="batched")
    assert [event.summary.clusters for event in calm.history if event.summary] == [1] * 6
    assert len(calm.state.centers) == 1
    there_and_back = changing(pool, {1: [0, 1, 2], 5: [0, 1, 6], 9: [0, 1, 2]})
    found = coterie.run(method, there_and_back, "linear", rounds=10, engine="batched")
    clusters = [event.summary.clusters for event in found.history if event.summary]
    assert clusters[3] == 1
    assert clusters[4:8] == [2] * 4
    assert clusters[8:] == [1] * 2
    assert len(found.state.centers) == 2  # the second is kept, for its concept may return
    assert table(found.state.labels) == {0: 0, 1: 0, 2: 0}


def test_models_that_nobody_uses_are_dropped_the_longest_unused_first() -> None:
    models = torch.arange(8.0).reshape(4, 2)
    was = Concepts(
        models,
        ByClient(torch.tensor([3]), torch.tensor([2])),
        torch.arange(2),
        ByClient.empty(),
        torch.tensor([5, 1, 9, 3]),
    )
    found = was.within(2)
    assert found.centers.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert table(found.labels) == {3: 1}
    assert was.within(4).centers.tolist() == models.tolist()
    assert was.within(0).centers.tolist() == [[4.0, 5.0]]  # never one that is used
