"""FedSoft by hand: votes with sigma, one anchor instead of S, selection, and the means."""

from __future__ import annotations

import dataclasses
from typing import Any

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
    assert_same,
    close,
    fitted,
    make_cohort,
    make_roster,
    on,
    scored,
    table,
)
from torch import Tensor

from coterie.core.tables import ByClient
from coterie.core.tasks import Estimated, Fit, Fitted, Mix, Own, Score
from coterie.methods.fedsoft import FedSoft, Soft

ROSTER = make_roster({3: 30, 7: 10, 11: 60, 19: 20, 23: 20})
CENTERS = torch.tensor([[0.0, 0.0], [4.0, 8.0]])
NEW = Soft(CENTERS, ByClient.empty(torch.float32, (2,)), torch.tensor([9.0, 9.0]))
KNOWN = dataclasses.replace(NEW, u=ByClient(torch.tensor([3, 11]), torch.tensor([[1.0, 0.1], [0.25, 0.75]])))


def u_of(state: Soft) -> dict[int, list[float]]:
    return {int(i): [round(float(x), 6) for x in row] for i, row in zip(state.u.ids, state.u.values, strict=True)}


def mixture(fit: Fit, client: int) -> Tensor:
    """The anchor that this client is given."""
    assert isinstance(fit.anchor, Mix)
    assert isinstance(fit.anchor.weights, ByClient)
    return fit.anchor.weights.at(torch.tensor([client]))[0] @ fit.anchor.centers


def pull(fit: Fit, client: int) -> float:
    assert isinstance(fit.mu, ByClient)
    return float(fit.mu.at(torch.tensor([client]))[0])


def test_a_round_without_selection() -> None:
    """Votes with sigma = 0.1, lambda = 0.5; 7 does not vote.

    3: (1, 0) becomes u = (1, 0.1), not renormalised: U = 1.1, anchor = 0.1 / 1.1 [4, 8], mu = 0.55.
    11: (1/4, 3/4) stays: U = 1, anchor = [3, 6], mu = 0.5.
    v_0: 30 * 1 and 60 / 4: 2/3 and 1/3. v_1: 30 * 0.1 and 60 * 3/4: 3/48 = 1/16 and 15/16.
    """
    ask = ScriptedAsk(scored({3: [1.0, 0.0], 11: [0.25, 0.75]}), fitted({3: [3.0, 0.0], 11: [0.0, 16.0]}, n=[999, 999]))
    method = FedSoft(k=2, lam=0.5, sigma=0.1, start_from="own", local=LOCAL)
    state = method.round(NEW, make_cohort([3, 7, 11], ROSTER), ask)
    # c_0 = 2/3 [3, 0] + 1/3 [0, 16] = [2, 16/3]; c_1 = 1/16 [3, 0] + 15/16 [0, 16] = [3/16, 15].
    close(state.centers, [[2.0, 16 / 3], [3 / 16, 15.0]])
    assert u_of(state) == {3: [1.0, 0.1], 11: [0.25, 0.75]}
    close(state.personal, [9.0, 9.0])

    vote, train = ask.asked
    assert isinstance(vote, Score)
    assert (vote.rule, on(vote), vote.save, vote.given) == ("votes", [3, 7, 11], None, None)
    assert torch.equal(vote.centers, CENTERS)
    fit = a_fit(train)
    assert on(fit) == [3, 11]  # 7 has no u, so there is nothing to anchor it to
    close(mixture(fit, 3), [0.4 / 1.1, 0.8 / 1.1])
    close(mixture(fit, 11), [3.0, 6.0])
    assert pull(fit, 3) == pytest.approx(0.55)
    assert pull(fit, 11) == pytest.approx(0.5)
    assert (fit.save, fit.send, fit.local) == ("fedsoft.w", True, LOCAL)
    assert isinstance(fit.start, Own)
    assert fit.start.slot == "fedsoft.w"
    assert all_of(fit.start.default) == [9.0, 9.0]  # all personal models begin at one random model


def test_one_anchor_is_as_good_as_all_of_them() -> None:
    """sum_s lambda/2 u_s |w - c_s|^2 - mu/2 |w - c|^2 is the same for every w, with the c and mu that are asked."""
    rng = np.random.default_rng(0)
    centers = torch.from_numpy(rng.normal(size=(3, 2))).float()
    state = Soft(centers, ByClient.empty(torch.float32, (3,)), torch.zeros(2))
    ask = ScriptedAsk(scored({7: [0.0, 0.3, 0.7]}), NOBODY)
    FedSoft(k=3, lam=0.8, sigma=0.2, local=LOCAL).round(state, make_cohort([7], ROSTER), ask)
    u = torch.tensor([0.2, 0.3, 0.7])
    fit = a_fit(ask.asked[1])
    c, mu = mixture(fit, 7), pull(fit, 7)
    assert mu == pytest.approx(0.8 * 1.2)

    def rest(w: Tensor) -> float:
        return float(0.4 * (u * (w - centers).square().sum(1)).sum() - mu / 2 * (w - c).square().sum())

    there = [rest(torch.from_numpy(rng.normal(size=2) * 10).float()) for _ in range(5)]
    assert there == pytest.approx([there[0]] * 5, abs=1e-4)


def test_training_starts_from_the_mixed_centers() -> None:
    ask = ScriptedAsk(scored({11: [0.25, 0.75]}), NOBODY)
    FedSoft(k=2, start_from="centers", local=LOCAL).round(NEW, make_cohort([11], ROSTER), ask)
    fit = a_fit(ask.asked[1])
    assert isinstance(fit.start, Mix)
    assert isinstance(fit.start.weights, ByClient)
    close(fit.start.weights.at(torch.tensor([11])), [[0.25, 0.75]])


def known_since(**rounds: int) -> Soft:
    ids = torch.tensor([int(name[1:]) for name in rounds])
    return dataclasses.replace(KNOWN, estimated=ByClient(ids, torch.tensor(list(rounds.values()))))


def test_weights_are_estimated_by_their_own_age_and_for_whoever_has_none() -> None:
    """tau = 3: an estimate of round 2 is used in rounds 2, 3 and 4, whatever the number of the round."""
    method = FedSoft(k=2, tau=3, sigma=0.1, local=LOCAL)
    before = known_since(c3=2, c11=2)
    # Round 4: only 19 is asked, the others keep u.
    ask = ScriptedAsk(scored({19: [0.5, 0.5]}), NOBODY)
    state = method.round(before, make_cohort([3, 11, 19], ROSTER, round=4), ask)
    assert on(ask.asked[0]) == [19]
    assert on(ask.asked[1]) == [3, 11, 19]
    assert u_of(state) == {3: [1.0, 0.1], 11: [0.25, 0.75], 19: [0.5, 0.5]}
    assert table(state.estimated) == {3: 2, 11: 2, 19: 4}
    # Nobody without u: nobody is asked to vote.
    ask = ScriptedAsk(NOBODY)
    method.round(before, make_cohort([3, 11], ROSTER, round=4), ask)
    assert isinstance(ask.asked[0], Fit)
    # Round 5: both are due; 11 does not answer, keeps its old u and is asked again in the next round.
    ask = ScriptedAsk(scored({3: [0.0, 1.0]}), NOBODY)
    state = method.round(before, make_cohort([3, 11], ROSTER, round=5), ask)
    assert u_of(state) == {3: [0.1, 1.0], 11: [0.25, 0.75]}
    ask = ScriptedAsk(scored({}), NOBODY)
    method.round(state, make_cohort([3, 11], ROSTER, round=6), ask)
    assert on(ask.asked[0]) == [11]


def test_a_client_that_is_there_in_odd_rounds_only_votes_anew() -> None:
    """tau = 2, rounds 1, 3, 5: the centers move each time, and u follows."""
    method, state = FedSoft(k=2, tau=2, sigma=0.1, local=LOCAL), NEW
    for round_, votes in ((1, [1.0, 0.0]), (3, [0.5, 0.5]), (5, [0.25, 0.75])):
        ask = ScriptedAsk(scored({3: votes}), fitted({3: [float(round_), 0.0]}))
        state = method.round(state, make_cohort([3], ROSTER, round=round_), ask)
        assert u_of(state) == {3: [max(v, 0.1) for v in votes]}


def test_a_checkpoint_without_the_age_of_estimates_has_everyone_vote() -> None:
    ask = ScriptedAsk(scored({3: [0.0, 1.0]}), NOBODY)
    FedSoft(k=2, tau=9, local=LOCAL).round(KNOWN, make_cohort([3, 11], ROSTER, round=4), ask)
    assert on(ask.asked[0]) == [3, 11]


@pytest.mark.parametrize(
    ("unvoted", "second"), [("distinct", [4.0, 8.0]), ("keep", [4.0, 8.0]), ("average", [2.0, 12.0])]
)
def test_a_center_without_votes_does_not_become_a_copy(unvoted: Any, second: list[float]) -> None:
    """Everyone votes for center 0, so that sigma alone would give center 1 the very same weights, and for ever."""
    ask = ScriptedAsk(scored({3: [1.0, 0.0], 11: [1.0, 0.0]}), fitted({3: [6.0, 0.0], 11: [0.0, 18.0]}, n=[30, 60]))
    state = FedSoft(k=2, unvoted=unvoted, local=LOCAL).round(NEW, make_cohort([3, 11], ROSTER), ask)
    close(state.centers, [[2.0, 12.0], second])


def test_centers_without_votes_do_not_become_copies_of_each_other() -> None:
    """Two of four have votes. The first of the others becomes the mean of all, the last keeps its model."""
    centers = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    start = Soft(centers, ByClient.empty(torch.float32, (4,)), torch.zeros(2))
    votes = {3: [1.0, 0.0, 0.0, 0.0], 11: [0.0, 1.0, 0.0, 0.0]}
    ask = ScriptedAsk(scored(votes), fitted({3: [6.0, 0.0], 11: [0.0, 18.0]}, n=[30, 60]))
    state = FedSoft(k=4, sigma=1e-9, local=LOCAL).round(start, make_cohort([3, 11], ROSTER), ask)
    close(state.centers, [[6.0, 0.0], [0.0, 18.0], [2.0, 12.0], [3.0, 3.0]])


@pytest.mark.parametrize("sigma", [1e-50, 5e-324])
def test_any_sigma_can_be_drawn_by(sigma: float) -> None:
    """Three clients are to be drawn for center 1, for which nobody votes: u is zero in single precision."""
    votes = {3: [1.0, 0.0], 7: [1.0, 0.0], 11: [1.0, 0.0], 19: [1.0, 0.0]}
    ask = ScriptedAsk(scored(votes), lambda task: fitted({i: MODELS[i] for i in on(task) or []}))
    method = FedSoft(k=2, sigma=sigma, select=3, local=LOCAL)
    state = method.round(NEW, make_cohort(list(votes), ROSTER), ask)
    assert torch.isfinite(state.centers).all()
    assert not torch.equal(state.centers[1], NEW.centers[1])


ALL_U = {3: [0.9, 0.1], 7: [0.5, 0.5], 11: [0.1, 0.9], 19: [0.3, 0.7], 23: [0.8, 0.2]}
MODELS = {3: [1.0, 0.0], 7: [0.0, 1.0], 11: [10.0, 0.0], 19: [0.0, 10.0], 23: [100.0, 0.0]}


def select(seed: int, k: int = 2, again: bool = False) -> tuple[list[int], list[list[float]]]:
    """Who was asked to train, and the centers after."""

    def train(task: Fit) -> Fitted:
        return fitted({i: MODELS[i] for i in on(task) or []})

    ask = ScriptedAsk(scored(ALL_U), train)
    cohort = make_cohort(list(ALL_U), ROSTER, seed=seed)
    state = FedSoft(k=2, select=k, select_again=again, local=LOCAL).round(NEW, cohort, ask)
    return on(ask.asked[1]) or [], state.centers.tolist()


def pairs_to(center: list[float]) -> list[set[int]]:
    """The two different clients whose plain mean this is."""
    ids = list(MODELS)
    return [
        {i, j}
        for n, i in enumerate(ids)
        for j in ids[n + 1 :]
        if np.allclose(np.add(MODELS[i], MODELS[j]) / 2, center, atol=1e-5)
    ]


def test_selected_clients_are_drawn_without_replacement_and_averaged_plainly() -> None:
    seen = set()
    for seed in range(20):
        trained, centers = select(seed)
        (first,), (second,) = pairs_to(centers[0]), pairs_to(centers[1])  # two different clients, each counting half
        assert trained == sorted(first | second)  # the union trains, once each
        assert select(seed) == (trained, centers)  # seeded
        seen |= {frozenset(first)}
    assert len(seen) > 2


def test_the_draw_follows_importance_and_size() -> None:
    """v_0 ~ u n = 27, 5, 6, 6, 16 and v_1 ~ 3, 5, 54, 14, 4 (of 60 and 80): with one draw per center 3 comes first
    most often for the one (0.45), 11 for the other (0.675)."""
    firsts = [(pair[0], pair[1]) for pair in (select(seed, k=1)[1] for seed in range(60))]
    zero = [next(i for i, m in MODELS.items() if np.allclose(m, c)) for c, _ in firsts]
    one = [next(i for i, m in MODELS.items() if np.allclose(m, c)) for _, c in firsts]
    assert 0.25 < zero.count(3) / 60 < 0.65
    assert 0.5 < one.count(11) / 60 < 0.85
    assert max(zero, key=zero.count) == 3


def test_a_selection_of_everyone_is_the_plain_mean() -> None:
    trained, centers = select(0, k=5)
    assert trained == [3, 7, 11, 19, 23]
    close(torch.tensor(centers), [[111 / 5, 11 / 5]] * 2)


def test_a_client_drawn_twice_counts_twice() -> None:
    """Eight draws with replacement: eight times a center is [c3 + 10 c11 + 100 c23, c7 + 10 c19], counts c of sum 8."""
    trained, centers = select(0, k=8, again=True)
    for center in centers:
        x, y = (round(8 * c) for c in center)
        counts = {3: x % 10, 11: x // 10 % 10, 23: x // 100, 7: y % 10, 19: y // 10}
        assert sum(counts.values()) == 8
        assert {i for i, c in counts.items() if c} <= set(trained)
    assert select(0, k=8)[1] == select(0, k=5)[1]  # without replacement there are no more than there are


def test_a_selected_client_that_is_missing_does_not_count() -> None:
    """With one client drawn per center: where it is missing the center stays, and nobody else's model enters."""
    for seed in range(20):
        trained, _ = select(seed, k=1)
        if len(trained) == 1:
            continue
        gone = trained[0]
        ask = ScriptedAsk(scored(ALL_U), fitted({i: MODELS[i] for i in trained if i != gone}))
        cohort = make_cohort(list(ALL_U), ROSTER, seed=seed)
        state = FedSoft(k=2, select=1, local=LOCAL).round(NEW, cohort, ask)
        whole = select(seed, k=1)[1]
        expected = [
            old if np.allclose(new, MODELS[gone]) else new for old, new in zip(CENTERS.tolist(), whole, strict=True)
        ]
        close(state.centers, expected)
        return
    raise AssertionError("no seed drew two different clients")


def test_nobody_answers() -> None:
    method = FedSoft(k=2, local=LOCAL)
    # Neither votes nor models: nobody is asked to train.
    assert_same(method.round(NEW, make_cohort([3, 7], ROSTER), ScriptedAsk(scored({}))), NEW)
    known = known_since(c3=0, c11=0)
    assert_same(method.round(known, make_cohort([3, 11], ROSTER, round=1), ScriptedAsk(NOBODY)), known)


def test_a_client_predicts_with_its_own_model_and_a_newcomer_with_centers_mixed_by_its_votes() -> None:
    task = FedSoft(k=2).predictor(KNOWN)
    (model,) = task.models
    assert isinstance(model, Own)
    assert model.slot == "fedsoft.w"
    assert isinstance(model.default, Mix)
    assert isinstance(model.default.weights, Estimated)
    assert model.default.weights.rule == "votes"
    assert task.mixture is None
    assert isinstance(task.belongs, Estimated)


def test_centers_and_personal_models_begin_apart() -> None:
    state = FedSoft(k=2).init(TWO, ROSTER, np.random.default_rng(0))
    assert len({tuple(m) for m in [*state.centers.tolist(), state.personal.tolist()]}) == 3


def test_centers_begin_near_the_personal_models_or_anywhere() -> None:
    """The same draws: a tenth of the way, or the whole of it."""
    near = FedSoft(k=3, centers_init="near").init(TWO, ROSTER, np.random.default_rng(0))
    far = FedSoft(k=3, centers_init="random").init(TWO, ROSTER, np.random.default_rng(0))
    assert torch.equal(near.personal, far.personal)
    assert len({tuple(c) for c in near.centers.tolist()}) == 3
    close(near.centers - near.personal, (0.1 * (far.centers - far.personal)).tolist())


def test_a_rule_counts_the_centers_once() -> None:
    method: Any = FedSoft(k="silhouette", local=LOCAL)
    ways = {3: [1.0, 0.0], 7: [0.0, 1.0], 11: [2.0, 0.0], 19: [0.0, 3.0], 23: [5.0, 0.0]}
    before = method.init(TWO, make_roster(dict.fromkeys(range(40), 1)), np.random.default_rng(0))
    assert len(before.centers) == 12
    look = fitted({i: (before.centers[0] + torch.tensor(d)).tolist() for i, d in ways.items()})
    ask = ScriptedAsk(look, scored({3: [1.0, 0.0]}), NOBODY)
    state = method.round(before, make_cohort(list(ways), ROSTER), ask)
    assert torch.equal(state.centers, before.centers[:2])
    assert u_of(state) == {3: [1.0, 0.0001]}
