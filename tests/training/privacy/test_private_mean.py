"""Private means and answers with scripted replies."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import raises
from coterie.client.contract import Memory, Moment
from coterie.clustering.averaging import mean, mean_by, weigh
from coterie.core.errors import NoAnswerError, QuorumError
from coterie.core.local import Local
from coterie.core.references import All, Best, Own, Pick
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Described, Evaluate, Fit, Fitted, Score, Scored
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Visit
from coterie.layers.accountant import noise
from coterie.layers.contract import Layer, Onward, Stack
from coterie.layers.privacy import Ledger, Privacy, PrivacyPlan, PrivateAttempt
from coterie.methods.contract import Releases, once
from coterie.testing.scripted import fitted, scored
from coterie.training.ask import RoundAsk

W = torch.tensor([1.0, 1.0])
FIT = Fit(All(W), local=Local())


def plan_of(*, noise: float = 0.0, signals: float = 0.0, **changes: Any) -> PrivacyPlan:
    releases = changes.pop("releases", Releases())
    settings = Privacy(noise=noise, smallest=changes.pop("smallest", 1.0), clip=changes.pop("clip", 1.0), sketch=2)
    plan = PrivacyPlan(settings, releases, 10, 1 if releases.any_signal else 0, noise, signals, None, 5)
    return dataclasses.replace(plan, **changes)


class Scripted:
    """An engine that answers by a script; None: nobody answers."""

    memory = Memory()

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def visit(self, visit: Visit) -> Outcome:
        answer = self._answers.pop(0)
        return Outcome(ReplyBuilder(visit).replies() if answer is None else tuple(answer), ())

    def close(self) -> None: ...


class Attempting(Layer):
    """One attempt with privacy."""

    key = "privacy"

    def __init__(self, attempt: PrivateAttempt) -> None:
        self.attempt = attempt

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        return self.attempt.visit(visit, onward)


class Ask(RoundAsk):
    """Of one attempt of clients 1, 2 and 3."""

    def __init__(self, attempt: PrivateAttempt, *answers: Any) -> None:
        self.attempt = attempt
        super().__init__(Stack(Scripted(*answers), [Attempting(attempt)]), COHORT, 0, 0)

    @property
    def ledger(self) -> Ledger:
        return self.attempt.ledger


COHORT = torch.tensor([1, 2, 3])


def private(plan: PrivacyPlan, *answers: Any, ledger: Ledger | None = None, round: int = 0, attempt: int = 0) -> Ask:
    return Ask(PrivateAttempt(ledger or Ledger(plan), round, attempt, COHORT), *answers)


def test_the_mean_is_of_clipped_updates_and_every_client_weighs_the_same() -> None:
    # Updates (3, 4) -> (0.6, 0.8) and (0.3, 0.4): their sum over two clients is (0.45, 0.6), whatever n says.
    ask = private(plan_of(), [fitted({1: [4.0, 5.0], 2: [1.3, 1.4]}, n=[1, 999])])
    reply = ask(FIT)
    assert reply.n.tolist() == [1, 1]
    assert reply.loss.isnan().all()
    torch.testing.assert_close(mean(reply, weigh(reply, "size"), empty=W), torch.tensor([1.45, 1.6]))


def test_sums_and_counts_get_the_noise_of_the_plan() -> None:
    plan = plan_of(noise=2.0, key=5)
    ask = private(plan, [fitted({1: [1.0, 1.0], 2: [1.3, 1.4]})])
    found = mean(ask(FIT), torch.ones(2), empty=W)
    # The noise of a sum is 2 sqrt(10/9), of the count three times that: 1/4 = 9/40 + 1/40.
    assert plan.sum_noise**-2 + plan.count_noise**-2 == pytest.approx(0.25)
    drawn = noise((1, 2), 2 * math.sqrt(10 / 9), 5, 0, 0, 0, 0)[0]
    count = float(2 + noise((1,), 6 * math.sqrt(10 / 9), 5, 0, 0, 0, 1))
    assert count > 2, "with a count below 1 the model would stay, and nothing would be seen"
    wanted = W + ((torch.tensor([0.3, 0.4]).double() + drawn) / count).float()
    torch.testing.assert_close(found, wanted)


def test_noise_is_added_though_nobody_was_drawn() -> None:
    plan = plan_of(noise=1.0, share=0.1, smallest=0.0)
    moved = 0
    for attempt in range(20):
        reply = private(plan, None, attempt=attempt)(FIT)
        moved += not torch.equal(mean(reply, torch.ones(0), empty=W), W)
    # The noisy count must reach 1: with a deviation of 3.2 it does in more than a third of the attempts.
    assert 3 <= moved <= 15
    with pytest.raises(NoAnswerError):
        private(plan_of(noise=1.0), None)(FIT)


def test_a_small_cluster_keeps_its_model() -> None:
    centers = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    task = Fit(Best(centers), local=Local())
    reply = fitted({1: [1.6, 1.8], 2: [1.0, 1.0], 3: [0.0, 0.5]}, choice=[0, 0, 1])
    found = private(plan_of(smallest=2.0), [reply])(task)
    moved = mean_by(found.chosen, found, torch.ones(3), empty=centers)
    torch.testing.assert_close(moved, torch.tensor([[1.3, 1.4], [0.0, 0.0]]))


def test_another_label_than_the_start_moves_the_new_cluster_by_the_own_update() -> None:
    centers = torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    task = Fit(Pick(centers, ByClient(torch.tensor([4]), torch.tensor([0]))), local=Local())
    reply = private(plan_of(), [fitted({4: [0.0, 0.5]}, choice=[0])])(task)
    moved = mean_by(torch.tensor([1]), reply, torch.ones(1), empty=centers)
    torch.testing.assert_close(moved, torch.tensor([[0.0, 0.0], [10.0, 0.5]]))


def test_more_means_than_declared_are_refused() -> None:
    reply = private(plan_of(), [fitted({1: [1.0, 1.0]})])(FIT)
    mean(reply, torch.ones(1), empty=W)
    with raises("privacy-unaccounted"):
        mean(reply, torch.ones(1), empty=W)


@pytest.mark.parametrize(
    "look",
    [
        lambda reply: reply.models,
        lambda reply: reply.sent.norms(None),
        lambda reply: reply.sent.combined(torch.ones(1, 1)),
        lambda reply: mean(dataclasses.replace(reply, aggregator=None), torch.ones(1), empty=W),
    ],
)
def test_models_are_sealed(look: Any) -> None:
    reply = private(plan_of(), [fitted({1: [1.0, 1.0]})])(FIT)
    with raises("privacy-unaccounted"):
        look(reply)


@pytest.mark.parametrize(
    "task", [Evaluate((All(W),)), Score(W[None]), Score(W[None], rule="votes"), dataclasses.replace(FIT, sketch=2)]
)
def test_questions_that_are_not_declared_are_refused_before_they_are_asked(task: Any) -> None:
    with raises("privacy-unaccounted"):
        private(plan_of())(task)


def test_updates_from_models_of_the_clients_own_are_refused() -> None:
    reply = private(plan_of(), [fitted({1: [1.0, 1.0]})])(Fit(Own("mine", All(W)), local=Local()))
    with raises("privacy-unaccounted"):
        mean(reply, torch.ones(1), empty=W)


def test_single_models_are_shown_once_as_noisy_sketches() -> None:
    plan = plan_of(releases=Releases(signals=once, models=True), signals=0.5)
    ask = private(plan, [fitted({1: [4.0, 5.0], 2: [1.3, 1.4]})])
    reply = ask(FIT)
    # Two numbers fit into a sketch of two: the clipped update, and noise of half the bound.
    drawn = noise((2, 2), 0.5, 5, 0, 0, 1, 4)
    wanted = W + (torch.tensor([[0.6, 0.8], [0.3, 0.4]]).double() + drawn).float()
    torch.testing.assert_close(reply.models, wanted)
    assert torch.equal(reply.models, reply.models)
    assert ask.ledger.signals.at(torch.tensor([1, 2])).tolist() == [1, 1]
    again = private(plan, [fitted({1: [4.0, 5.0], 2: [1.3, 1.4]})], ledger=ask.ledger)
    assert torch.equal(again(FIT).models, W.expand(2, 2))  # the plan is used up: the start alone
    assert again.ledger.signals.at(torch.tensor([1, 2])).tolist() == [1, 1]


def test_every_round_and_every_attempt_draws_noise_of_its_own() -> None:
    """Who saw the same noise twice would take the difference, and have none."""
    releases = Releases(means=2, signals=lambda *_: 2, models=True, sketches=True, votes=True)
    plan = plan_of(noise=1.0, smallest=0.0, signals=0.5, releases=releases, most_signals=9)
    same = Fitted(torch.tensor([1]), torch.tensor([1]), torch.zeros(1), W[None].clone(), None, torch.zeros(1, 2))
    seen: dict[str, list[tuple[float, ...]]] = {"mean": [], "model": [], "sketch": [], "vote": []}
    for round, attempt in ((0, 0), (1, 0), (0, 1)):
        ask = private(plan, [same], [scored({1: [0.0, 9.0]})], round=round, attempt=attempt)
        reply = ask(dataclasses.replace(FIT, sketch=2))
        seen["model"].append(tuple((reply.models[0] - W).tolist()))
        seen["sketch"].append(tuple(reply.sketch[0].tolist()))
        seen["vote"].append(tuple((ask(Score(torch.zeros(2, 2))).scores[0] + torch.tensor([1.0, 0.0])).tolist()))
        for _ in range(2):
            empty = torch.zeros(400, 2)  # of so many clusters some have a noisy count of 1
            seen["mean"].append(tuple(mean_by(torch.tensor([0]), reply, torch.ones(1), empty).flatten().tolist()))
    for what, drawn in seen.items():
        assert len(set(drawn)) == len(drawn), what
        assert all(any(one) for one in drawn), what
    assert not set(seen["model"]) & {*seen["sketch"], *seen["vote"]}


def test_noise_is_relative_to_the_clip() -> None:
    """With four times the clip, all that is released is four times as long, its noise too; counts and votes are not."""
    releases = Releases(signals=lambda *_: 2, models=True, sketches=True, votes=True, descriptions=True)
    found: list[tuple[Tensor, ...]] = []
    for clip in (1.0, 4.0):
        plan = plan_of(noise=0.5, key=12, signals=0.5, clip=clip, releases=releases, most_signals=9)
        ids, n = torch.tensor([1]), torch.tensor([1])
        update = 7.0 * torch.tensor([[3.0, 4.0]])  # clipped either way
        fits = Fitted(ids, n, torch.zeros(1), W + update, None, update)
        ask = private(plan, [fits], [Described(ids, n, update)], [scored({1: [0.0, 9.0]})])
        reply = ask(dataclasses.replace(FIT, sketch=2))
        moved = (mean(reply, torch.ones(1), empty=W) - W).double()
        described = ask(Describe("labels", 2)).rows[0].double()
        found.append((moved, (reply.models - W)[0].double(), reply.sketch[0].double(), described))
        found.append((ask(Score(torch.zeros(2, 2))).scores[0],))
        assert ask.ledger.signals.at(ids).tolist() == [4]  # a sketch, a description, a look at the model, a vote
    (small, vote, large, other) = found
    assert bool(small[0].any()), "the noisy count is large enough for this key"
    for one, four in zip(small, large, strict=True):
        torch.testing.assert_close(4 * one, four, rtol=1e-5, atol=1e-5)
    assert torch.equal(vote[0], other[0])


def test_two_sketches_of_a_visit_are_one_release_with_more_noise() -> None:
    plan = plan_of(releases=Releases(signals=once, sketches=True), signals=0.5)
    far, near = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.3, 0.4]])
    ids, zero = torch.tensor([1]), torch.zeros(1)
    replies = [Fitted(ids, ids, zero, None, None, far), Fitted(ids, ids, zero, None, None, near)]
    ask = private(plan, replies, replies)
    task = dataclasses.replace(FIT, sketch=2, send=False)
    first, second = ask([task, task])
    deviation = 0.5 * math.sqrt(2)
    torch.testing.assert_close(
        first.sketch, (torch.tensor([[0.6, 0.8]]) + noise((1, 2), deviation, 5, 0, 0, 1, 2)).float()
    )
    torch.testing.assert_close(second.sketch, (near + noise((1, 2), deviation, 5, 0, 0, 2, 2)).float())
    assert ask.ledger.signals.values.tolist() == [1]
    assert ask.ledger.rounds.values.tolist() == []  # nothing was sent for a mean
    with raises("privacy-budget"):
        ask([task, task])


def test_votes_are_noisy_and_counted() -> None:
    quiet = plan_of(releases=Releases(signals=once, votes=True))
    reply = private(quiet, [scored({1: [0.2, 0.1], 2: [0.3, 7.0]})])(Score(torch.zeros(2, 2)))
    assert reply.scores.tolist() == [[0.0, -1.0], [-1.0, 0.0]]  # no loss is shown
    loud = dataclasses.replace(quiet, signal_noise=1.0)
    many: dict[int, list[float]] = {i: [0.2, 0.1] for i in range(4000)}
    ask = private(loud, [scored(many)])
    best = ask(Score(torch.zeros(2, 2))).scores.argmin(1)
    # The better of two wins with chance Phi(1 / sqrt 2) = 0.760.
    assert float(best.double().mean()) == pytest.approx(0.760, abs=0.03)
    assert ask.ledger.signals.values.eq(1).all()


def test_a_client_is_charged_once_per_attempt_and_again_when_it_is_repeated() -> None:
    plan = plan_of(noise=1.0, releases=Releases(means=2))
    ask = private(plan, [fitted({1: [1.0, 1.0], 2: [1.0, 1.0]})], [fitted({2: [1.0, 1.0], 3: [1.0, 1.0]})])
    ask(FIT)
    ask(FIT)
    assert _counts(ask.ledger.rounds) == {1: 1, 2: 1, 3: 1}
    lost = PrivateAttempt(ask.ledger, 0, 1, COHORT)

    def too_few(_: Visit) -> Outcome:
        raise QuorumError("2 of 3", 1, (Missing(3, "away"),))

    with pytest.raises(QuorumError) as error:
        lost.visit(Visit((FIT,), COHORT, Moment(0, 0, 0)), too_few)
    lost.given_up(error.value.missing)
    assert _counts(lost.ledger.rounds) == {1: 2, 2: 2, 3: 1}
    assert lost.ledger.attempts == 2
    epsilons = lost.ledger.epsilon_of(torch.tensor([0, 1, 3]))
    assert epsilons[0] == 0.0
    assert epsilons == [0.0, plan.epsilon(2, 0), plan.epsilon(1, 0)]
    assert lost.ledger.spent(torch.tensor([0, 1, 3])).clients == tuple((e, 1) for e in sorted(epsilons, reverse=True))


def _counts(table: ByClient) -> dict[int, int]:
    return dict(zip(table.ids.tolist(), table.values.tolist(), strict=True))


def test_a_ledger_survives_a_checkpoint() -> None:
    plan = plan_of(noise=1.0, releases=Releases(signals=once, votes=True))
    ledger = Ledger(plan).begun().answered(torch.tensor([2, 5])).signalled(torch.tensor([5]))
    again = Ledger.unpacked(plan, ledger.packed())
    ids: Tensor = torch.arange(6)
    assert again.epsilon_of(ids) == ledger.epsilon_of(ids)
    assert again.attempts == 1


def test_a_description_is_refused_or_noised_and_counted() -> None:
    task, ids = Describe("labels", 3), torch.tensor([1, 2])
    said = Described(ids, torch.tensor([5, 9]), torch.tensor([[4.0, 3.0, 0.0], [0.0, 1.0, 0.0]]))
    with raises("privacy-unaccounted", match="Describe labels"):
        private(plan_of(noise=1.0), [said])(task)
    releases = Releases(signals=once, descriptions=True)
    ask = private(plan_of(noise=1.0, releases=releases), [said], [said])
    reply = ask(task)
    assert reply.n.tolist() == [1, 1]
    assert not torch.equal(reply.rows, said.rows)
    assert _counts(ask.ledger.signals) == {1: 1, 2: 1}
    with raises("privacy-budget"):  # once was planned
        ask(task)


def test_scores_of_nobody() -> None:
    plan = plan_of(noise=1.0, share=0.5, releases=Releases(signals=once, votes=True))
    reply = private(plan, None)(Score(torch.zeros(3, 2)))
    assert isinstance(reply, Scored)
    assert reply.scores.shape == (0, 3)
