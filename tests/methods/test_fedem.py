"""A round of FedEM by hand: what is asked, and the means; the E-step itself is the client's and tested there."""

from __future__ import annotations

import numpy as np
import torch
from scripted import LOCAL, NOBODY, TWO, ScriptedAsk, a_fit, all_of, close, fitted, make_cohort, make_roster, scored

from coterie.core.tasks import Estimated, Own, Posterior, Ref, Score
from coterie.methods.fedem import FedEM

ROSTER = make_roster({3: 30, 7: 10, 11: 60})
COMPONENTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])


def is_kept_pi(ref: Ref | None) -> bool:
    """pi of the last round, a third each at first."""
    assert isinstance(ref, Own)
    close(torch.tensor(all_of(ref.default)), [1 / 3, 1 / 3, 1 / 3])
    return ref.slot == "fedem.pi"


def test_components_train_on_weighted_samples_and_pi_is_saved_last() -> None:
    ask = ScriptedAsk(
        [
            fitted({3: [4.0, 0.0], 11: [1.0, 3.0]}, n=[30, 60]),  # (30 * [4, 0] + 60 * [1, 3]) / 90 = [2, 2]
            fitted({3: [0.0, 3.0], 11: [3.0, 0.0]}, n=[30, 60]),  # (30 * [0, 3] + 60 * [3, 0]) / 90 = [2, 1]
            fitted({3: [9.0, 0.0], 11: [0.0, 9.0]}, n=[30, 60]),  # [3, 6]
            scored({3: [0.5, 0.25, 0.25], 11: [0.0, 0.0, 1.0]}),
        ]
    )
    found = FedEM(k=3, local=LOCAL).round(COMPONENTS, make_cohort([3, 7, 11], ROSTER), ask)
    close(found, [[2.0, 2.0], [2.0, 1.0], [3.0, 6.0]])  # by size; pi of a client plays no part in the mean

    (visit,) = ask.asked
    fits, last = [a_fit(task) for task in visit[:-1]], visit[-1]
    assert [all_of(f.start) for f in fits] == COMPONENTS.tolist()
    assert len({f.optimizer_slot for f in fits}) == 3
    for m, f in enumerate(fits):
        assert isinstance(f.weights, Posterior)
        assert f.weights.component == m
        assert torch.equal(f.weights.centers, COMPONENTS)  # all responsibilities are those of the round's start
        assert is_kept_pi(f.weights.prior)
        assert (f.anchor, f.save, f.send, f.on) == (None, None, True, None)
    # Last, so that every component was trained with the pi of the round's start.
    assert isinstance(last, Score)
    assert (last.rule, last.save, last.on, last.given) == ("posterior", "fedem.pi", None, None)
    assert torch.equal(last.centers, COMPONENTS)
    assert is_kept_pi(last.prior)


def test_nobody_answers() -> None:
    ask = ScriptedAsk([NOBODY, NOBODY, NOBODY, scored({}, k=3)])
    assert torch.equal(FedEM(k=3, local=LOCAL).round(COMPONENTS, make_cohort([7], ROSTER), ask), COMPONENTS)


def test_a_client_predicts_with_its_mixture_and_a_newcomer_estimates_its_own() -> None:
    task = FedEM(k=3).predictor(COMPONENTS)
    assert [all_of(m) for m in task.models] == COMPONENTS.tolist()
    assert isinstance(task.mixture, Own)
    assert task.mixture.slot == "fedem.pi"
    assert isinstance(task.mixture.default, Estimated)
    assert task.mixture.default.rule == "posterior"
    assert torch.equal(task.mixture.default.centers, COMPONENTS)
    assert not task.average


def test_components_begin_apart() -> None:
    found = FedEM(k=3).init(TWO, ROSTER, np.random.default_rng(0))
    assert len({tuple(m) for m in found.tolist()}) == 3


def test_a_rule_counts_the_components_among_the_first_updates() -> None:
    """Twelve random components; the updates from the first point two ways, so two of them stay."""
    method = FedEM(k="silhouette", local=LOCAL)
    twelve = method.init(TWO, make_roster(dict.fromkeys(range(3, 30), 10)), np.random.default_rng(0))
    assert len(twelve) == 12
    w = twelve[0]
    ways = {3: [1.0, 0.0], 7: [0.0, 1.0], 11: [2.0, 0.0], 19: [0.0, 3.0], 23: [5.0, 0.01], 29: [0.01, 1.0]}
    look = fitted({i: (w + torch.tensor(d)).tolist() for i, d in ways.items()})
    both = fitted({3: [1.0, 1.0]})
    ask = ScriptedAsk(look, [both, both, scored({3: [0.5, 0.5]})])
    found = method.round(twelve, make_cohort(list(ways), make_roster(dict.fromkeys(ways, 10))), ask)
    close(found, [[1.0, 1.0], [1.0, 1.0]])
    assert all_of(a_fit(ask.asked[0]).start) == w.tolist()
