"""One visit to one client: references, scores and evaluations by hand.

The model has one input and two classes, no bias: its two numbers are the logits of x = 1. So the vector
(ln 3, 0) says "class 0 with odds 3 to 1", and odds multiply where logits add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from conftest import Data, column, linear, raises, vector
from coterie.client.contract import EvaluateAnswer, FitAnswer, Moment, ScoreAnswer, VisitResult
from coterie.client.visit import TaskRunner
from coterie.core.model import Model, Replica
from coterie.core.tables import ByClient
from coterie.core.tasks import All, Best, Estimated, Evaluate, Fit, Local, Mix, Own, Pick, Posterior, Ref, Score, Task

ODDS = linear(1, 2)
REGRESSION = linear(1, 1, loss="mse")
FOR_0 = vector(log(3), 0)  # class 0 with probability 3/4
FOR_1 = vector(0, log(3))  # class 1 with probability 3/4
EVEN = vector(0, 0)
BOTH = torch.stack([FOR_0, FOR_1])
MOSTLY_0 = column([1, 1, 1], [0, 0, 1])
CLIENT = 7
NO_STEP = Local(lr=1e-300)  # leaves a model where it is
NOTHING: Mapping[str, Tensor] = {}


def visit(
    tasks: Sequence[Task | None], data: Data = MOSTLY_0, keeps: Mapping[str, Tensor] = NOTHING, model: Model = ODDS
) -> VisitResult:
    return TaskRunner(model).visit(tasks, CLIENT, data, keeps, Moment(0, 0, 0))


def fitted(task: Fit, data: Data = MOSTLY_0, keeps: Mapping[str, Tensor] = NOTHING, model: Model = ODDS) -> FitAnswer:
    (answer,) = visit([task], data, keeps, model).answers
    assert isinstance(answer, FitAnswer)
    return answer


def scored(task: Score, data: Data = MOSTLY_0, keeps: Mapping[str, Tensor] = NOTHING) -> list[float]:
    (answer,) = visit([task], data, keeps).answers
    assert isinstance(answer, ScoreAnswer)
    assert answer.n == len(data.train[1])
    scores: list[float] = answer.scores.tolist()
    return scores


def evaluated(
    task: Evaluate, data: Data = MOSTLY_0, keeps: Mapping[str, Tensor] = NOTHING, model: Model = ODDS
) -> EvaluateAnswer:
    (answer,) = visit([task], data, keeps, model).answers
    assert isinstance(answer, EvaluateAnswer)
    return answer


def found(ref: Ref, data: Data = MOSTLY_0, keeps: Mapping[str, Tensor] = NOTHING) -> tuple[list[float], int | None]:
    """What a reference means to the client: the vector, and the row it is."""
    answer = fitted(Fit(ref, NO_STEP), data, keeps)
    assert answer.theta is not None
    return answer.theta.tolist(), answer.choice


def by_client(*values: float | list[float]) -> ByClient:
    """Values of clients 3, 7 and 8: the one visited is in the middle."""
    return ByClient(torch.tensor([3, CLIENT, 8]), torch.tensor(values))


# ------------------------------------------------------------------------------------------ references


def test_all_is_the_same_vector_for_everyone() -> None:
    assert found(All(vector(1, 2))) == ([1, 2], None)


def test_pick_is_the_row_the_server_chose_for_this_id() -> None:
    centers = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    assert found(Pick(centers, by_client(0, 2, 1))) == ([3, 3], 2)


def test_pick_for_a_client_without_a_label_is_refused() -> None:
    with raises("client-no-value", match="the server has no value for this client"):
        found(Pick(BOTH, ByClient(torch.tensor([0, 1]), torch.tensor([0, 1]))))


@pytest.mark.parametrize("row", [-1, 2])
def test_pick_of_a_row_that_does_not_exist_is_refused(row: int) -> None:
    with raises("task-invalid", match=f"picked row {row} of 2"):
        found(Pick(BOTH, by_client(0, row, 0)))


@pytest.mark.parametrize(("labels", "row"), [([0, 0, 1], 0), ([0, 1, 1], 1)])
def test_best_is_the_row_of_least_mean_loss(labels: list[int], row: int) -> None:
    assert found(Best(BOTH), column([1, 1, 1], labels)) == (BOTH[row].tolist(), row)


def test_the_lowest_index_wins_a_tie_of_best() -> None:
    assert found(Best(torch.stack([FOR_1, FOR_0, FOR_0])))[1] == 1


@pytest.mark.parametrize("by", ["loss", "accuracy"])
def test_best_skips_a_center_whose_loss_is_not_finite(by: Literal["loss", "accuracy"]) -> None:
    broken = torch.stack([vector(torch.nan, 0), FOR_1])
    assert found(Best(broken, by=by))[1] == 1


def test_best_by_accuracy_counts_correct_answers() -> None:
    """Inputs 1, 1, -9, labels 0, 0, 0: FOR_0 has two right and one very wrong, FOR_1 one right; by loss FOR_1 wins."""
    data = column([1, 1, -9], [0, 0, 0])
    assert found(Best(BOTH), data)[1] == 1
    assert found(Best(BOTH, by="accuracy"), data)[1] == 0
    assert found(Best(torch.stack([FOR_1, FOR_0, FOR_0]), by="accuracy"), data)[1] == 1


def test_best_given_another_model_adds_its_logits() -> None:
    """Labels 0, 0, 1; given odds of 9 for class 0 the rows have odds 27 and 3: 2/3 of the labels fit 3 better.

    Losses: (2 ln(28/27) + ln 28) / 3 = 1.13 and (2 ln(4/3) + ln 4) / 3 = 0.65. Without it row 0 is the better one.
    """
    given = All(vector(log(9), 0))
    assert found(Best(BOTH))[1] == 0
    assert found(Best(BOTH, given))[1] == 1


def test_mix_combines_the_rows_with_this_clients_weights() -> None:
    """1/4 * (1, 2) + 3/4 * (5, 6) = (4, 5)."""
    centers = torch.tensor([[1.0, 2.0], [5.0, 6.0]])
    assert found(Mix(centers, by_client([1.0, 0.0], [0.25, 0.75], [0.0, 1.0]))) == ([4, 5], None)


def test_mix_by_the_clients_own_votes() -> None:
    """Labels 0, 0, 1: votes 2/3, 1/3, of (3, 0) and (0, 3) that is (2, 1)."""
    centers = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    theta, row = found(Mix(centers, Estimated(centers, "votes")))
    assert theta == pytest.approx([2, 1])
    assert row is None


@pytest.mark.parametrize(("steps", "first"), [(1, 7 / 12), (2, (2 * 21 / 26 + 7 / 22) / 3), (500, 5 / 6)])
def test_mixture_weights_estimated_by_expectation_maximisation(steps: int, first: float) -> None:
    """Labels 0, 0, 1. Step 1 from even weights: (3/4 + 3/4 + 1/4) / 3 = 7/12.

    Step 2: 7*3 : 5*1 for label 0, so 21/26, and 7*1 : 5*3 for label 1, so 7/22. In the end the mixture predicts
    class 0 as often as it occurs: pi * 3/4 + (1 - pi) * 1/4 = 2/3, pi = 5/6.
    """
    answer = evaluated(Evaluate((All(FOR_0), All(FOR_1)), mixture=Estimated(BOTH, "posterior", steps)))
    assert answer.shares is not None
    assert answer.shares.tolist() == pytest.approx([first, 1 - first], abs=1e-4)


def test_own_is_the_default_before_the_first_visit_and_then_what_is_kept() -> None:
    ref = Own("v", Best(BOTH))
    assert found(ref) == (FOR_0.tolist(), 0)
    assert found(ref, keeps={"other": vector(5, 5)}) == (FOR_0.tolist(), 0)
    assert found(ref, keeps={"v": vector(8, 9)}) == ([8, 9], 0)  # it stands in for the row that would be chosen
    assert found(Own("v", All(FOR_1)), keeps={"v": vector(8, 9)}) == ([8, 9], None)


# ----------------------------------------------------------------------------------------------- score


def test_score_by_loss() -> None:
    """Labels 0, 0, 1: twice -ln 3/4 and once -ln 1/4, or the other way round."""
    right, wrong = -log(3 / 4), -log(1 / 4)
    assert scored(Score(BOTH)) == pytest.approx([(2 * right + wrong) / 3, (2 * wrong + right) / 3])


def test_score_by_loss_given_another_model() -> None:
    """Given odds 3 for class 0, the rows have odds 9 and 1."""
    expected = [(2 * -log(9 / 10) - log(1 / 10)) / 3, log(2)]
    assert scored(Score(BOTH, given=All(FOR_0))) == pytest.approx(expected)


def test_score_by_votes() -> None:
    assert scored(Score(BOTH, rule="votes")) == pytest.approx([2 / 3, 1 / 3])


def test_the_lowest_index_wins_a_tie_of_votes() -> None:
    assert scored(Score(torch.stack([FOR_1, FOR_0, FOR_0]), rule="votes")) == pytest.approx([1 / 3, 2 / 3, 0])


def test_score_by_posterior_without_a_prior() -> None:
    """Under even odds the posterior of row 0 is 3/4 for label 0 and 1/4 for label 1; the mean over 0, 0, 1 is 7/12."""
    assert scored(Score(BOTH, rule="posterior")) == pytest.approx([7 / 12, 5 / 12])


def test_score_by_posterior_with_a_prior() -> None:
    """Prior 1/5, 4/5. Label 0: 3/20 against 4/20, so 3/7. Label 1: 1/20 against 12/20, so 1/13."""
    first = (2 * 3 / 7 + 1 / 13) / 3
    assert scored(Score(BOTH, rule="posterior", prior=All(vector(0.2, 0.8)))) == pytest.approx([first, 1 - first])


def test_a_prior_of_zero_gives_a_posterior_of_zero() -> None:
    assert scored(Score(BOTH, rule="posterior", prior=All(vector(0, 1)))) == pytest.approx([0, 1])


BY_CLASS = torch.tensor([[0.5, 0.5], [0.2, 0.8]])


def test_scores_with_class_shares() -> None:
    """Label 0: (3/4) / (1/2) against (1/4) / (1/5), so 6 : 5. Label 1: (1/4) / (1/2) against (3/4) / (4/5), 8 : 15."""
    by_class = [2 * 6 / 11, 8 / 23, 2 * 5 / 11, 15 / 23]
    assert scored(Score(BOTH, rule="classes", class_shares=BY_CLASS)) == pytest.approx(by_class)
    first = (2 * 6 / 11 + 8 / 23) / 3
    assert scored(Score(BOTH, rule="posterior", class_shares=BY_CLASS)) == pytest.approx([first, 1 - first])
    estimated = Evaluate((All(FOR_0), All(FOR_1)), mixture=Estimated(BOTH, "posterior", 1, BY_CLASS))
    shares = evaluated(estimated).shares
    assert shares is not None
    assert shares.tolist() == pytest.approx([first, 1 - first])


def test_class_shares_that_are_equal_for_all_centers_change_nothing() -> None:
    same = torch.tensor([[0.1, 0.9], [0.1, 0.9]])
    assert scored(Score(BOTH, rule="posterior", class_shares=same)) == pytest.approx([7 / 12, 5 / 12])


def test_centers_that_explain_no_more_than_their_class_shares_are_told_apart_by_the_prior_alone() -> None:
    shares = torch.tensor([[3 / 4, 1 / 4], [1 / 4, 3 / 4]])
    task = Score(BOTH, rule="posterior", prior=All(vector(0.2, 0.8)), class_shares=shares)
    assert scored(task) == pytest.approx([0.2, 0.8])


def test_a_class_that_is_all_of_a_cluster_says_little_for_it() -> None:
    """FedRC: two models of the same loss; cluster 0 holds class 0 only, cluster 1 class 1 only. A sample of class 0 is
    what cluster 0 is full of and cluster 1 has never seen: gamma_0 = (1/2 / 1) / (1/2 / 1 + 1/2 / 1e-8), near 0."""
    alike, shares = torch.stack([EVEN, EVEN]), torch.tensor([[1.0, 1e-8], [1e-8, 1.0]])
    zeros, ones = column([1, 1], [0, 0]), column([1, 1], [1, 1])
    assert scored(Score(alike, rule="posterior", class_shares=shares), zeros) == pytest.approx([0, 1], abs=1e-6)
    assert scored(Score(alike, rule="posterior", class_shares=shares), ones) == pytest.approx([1, 0], abs=1e-6)


def test_more_classes_than_labels_and_fewer() -> None:
    three = torch.tensor([[0.5, 0.4, 0.1], [0.2, 0.4, 0.4]])
    assert scored(Score(BOTH, rule="classes", class_shares=three))[2::3] == [0, 0]
    with raises("task-invalid", match="1 classes, this client has one of number 1"):
        scored(Score(BOTH, rule="classes", class_shares=three[:, :1]))


@pytest.mark.parametrize(
    "shares", [torch.ones(3, 2), torch.ones(2), torch.zeros(2, 2), torch.full((2, 2), torch.nan), [[1.0], [1.0]]]
)
def test_class_shares_that_are_none_are_refused(shares: Any) -> None:
    with raises("task-invalid", match=r"Posterior.class_shares: .* a row for each of the 2 centers"):
        Posterior(BOTH, 0, All(vector(0.5, 0.5)), shares)
    with raises("task-invalid", match=r"Score.class_shares"):
        Score(BOTH, "posterior", class_shares=shares)
    with raises("task-invalid", match="needs class_shares"):
        Score(BOTH, "classes")


def test_score_looks_at_training_data() -> None:
    data = Data(column([1], [0]).train, column([1], [1]).test)
    assert scored(Score(BOTH, rule="votes"), data) == [1, 0]


# ------------------------------------------------------------------------------------------------- fit


def test_posterior_weights_by_hand() -> None:
    """Labels 0 and 1, weights 3/4 and 1/4 for row 0. From even odds the gradients are -+(1/2, -1/2):

    (3/4 * (-1/2, 1/2) + 1/4 * (1/2, -1/2)) / 2 = (-1/8, 1/8), and with lr 1 the model is (1/8, -1/8).
    """
    weights = Posterior(BOTH, 0, prior=All(vector(0.5, 0.5)))
    answer = fitted(Fit(All(EVEN), Local(lr=1.0), weights=weights), column([1, 1], [0, 1]))
    assert answer.theta is not None
    assert answer.theta.tolist() == pytest.approx([1 / 8, -1 / 8])


def test_posterior_weights_with_class_shares() -> None:
    """Component 1: 5/11 for label 0, 15/23 for label 1 (see the scores above)."""
    weights = Posterior(BOTH, 1, All(vector(0.5, 0.5)), BY_CLASS)
    answer = fitted(Fit(All(EVEN), Local(lr=1.0), weights=weights), column([1, 1], [0, 1]))
    step = (5 / 11 - 15 / 23) / 4
    assert answer.theta is not None
    assert answer.theta.tolist() == pytest.approx([step, -step])


def test_posterior_weights_follow_prior_and_component() -> None:
    """Component 1 under the prior 1/5, 4/5: 4/7 for label 0, 12/13 for label 1 (see the score above)."""
    weights = Posterior(BOTH, 1, prior=Own("pi", All(vector(0.5, 0.5))))
    task = Fit(All(EVEN), Local(lr=1.0), weights=weights)
    answer = fitted(task, column([1, 1], [0, 1]), {"pi": vector(0.2, 0.8)})
    step = (4 / 7 - 12 / 13) / 4
    assert answer.theta is not None
    assert answer.theta.tolist() == pytest.approx([step, -step])


@pytest.mark.parametrize(("mu", "expected"), [(0.5, 0.9), (by_client(9.0, 0.5, 9.0), 0.9), (0.0, 0.8)])
def test_fit_is_held_near_its_anchor(mu: float | ByClient, expected: float) -> None:
    """Loss w^2 at w = 1, anchor 3, lr 0.1: 1 - 0.1 * (2 + mu * (1 - 3))."""
    task = Fit(All(vector(1)), Local(lr=0.1), anchor=All(vector(3)), mu=mu)
    answer = fitted(task, column([1.0], [0.0]), model=REGRESSION)
    assert answer.theta is not None
    assert answer.theta.tolist() == pytest.approx([expected])


def test_fit_reports_its_size_its_loss_and_its_start() -> None:
    answer = fitted(Fit(Best(BOTH), NO_STEP))
    assert (answer.n, answer.choice) == (3, 0)
    assert answer.loss == pytest.approx((2 * -log(3 / 4) - log(1 / 4)) / 3)


def test_a_model_that_is_not_sent_is_kept() -> None:
    done = visit([Fit(All(FOR_0), NO_STEP, save="v", send=False)])
    (answer,) = done.answers
    assert isinstance(answer, FitAnswer)
    assert answer.theta is None
    assert {slot: value.tolist() for slot, value in done.keeps.items()} == {"v": FOR_0.tolist()}


def test_the_servers_tensors_are_never_written_to() -> None:
    theta = EVEN.clone()
    fitted(Fit(All(theta), Local(lr=1.0), anchor=All(theta), mu=0.5, offset=All(theta)))
    assert theta.tolist() == [0, 0]


# ---------------------------------------------------------------------------------------- whole visits


def test_later_tasks_see_what_earlier_ones_saved() -> None:
    """An evaluation before and after a Fit that keeps odds of 3: losses ln 2 and -ln 3/4."""
    own = Own("v", All(EVEN))
    before, _, after = visit(
        [Evaluate((own,)), Fit(All(FOR_0), NO_STEP, save="v"), Evaluate((own,))], column([1], [0])
    ).answers
    assert isinstance(before, EvaluateAnswer)
    assert isinstance(after, EvaluateAnswer)
    assert (before.loss, after.loss) == pytest.approx((log(2), -log(3 / 4)))


def test_saved_scores_serve_as_a_prior() -> None:
    """The first posterior is (3/4, 1/4); as a prior it gives 9/16 against 1/16, so (9/10, 1/10)."""
    task = Score(BOTH, rule="posterior", prior=Own("pi", All(vector(0.5, 0.5))), save="pi")
    done = visit([task, task], column([1], [0]))
    assert done.keeps["pi"].tolist() == pytest.approx([9 / 10, 1 / 10])


def test_best_given_an_own_model_is_chosen_anew_after_that_model_was_saved() -> None:
    """Given even odds row 0 is the best, given odds of 9 row 1 is (see above): saving changes what is given."""
    look = Evaluate((Best(BOTH, given=Own("v", All(EVEN))),))
    first, _, second = visit([look, Fit(All(vector(log(9), 0)), NO_STEP, save="v"), look]).answers
    assert isinstance(first, EvaluateAnswer)
    assert isinstance(second, EvaluateAnswer)
    assert (first.choice, second.choice) == (0, 1)


@pytest.mark.parametrize("keeps", [{}, {"v": EVEN}], ids=["kept for the first time", "kept before"])
def test_an_offset_by_an_own_model_is_heard_anew_after_that_model_was_saved(keeps: Mapping[str, Tensor]) -> None:
    """Odds 3 to 1 for class 0 on a sample of class 0: its loss is ln 4/3, and ln 10/9 once the same is added."""
    own = Own("v", All(EVEN))
    beside = Fit(All(FOR_0), NO_STEP, offset=own)
    before, _, after = visit([beside, Fit(All(FOR_0), NO_STEP, save="v"), beside], column([1], [0]), keeps).answers
    assert isinstance(before, FitAnswer)
    assert isinstance(after, FitAnswer)
    assert (before.loss, after.loss) == pytest.approx((log(4 / 3), log(10 / 9)))


def test_an_offset_by_the_best_given_an_own_model_is_chosen_anew_too() -> None:
    """Given even odds row 0 is the best, given odds of 9 row 1 is: added to even odds, their losses on MOSTLY_0."""
    beside = Fit(All(EVEN), NO_STEP, offset=Best(BOTH, given=Own("v", All(EVEN))))
    save = Fit(All(vector(log(9), 0)), NO_STEP, save="v")
    before, _, after = visit([beside, save, beside], keeps={"v": EVEN}).answers
    assert isinstance(before, FitAnswer)
    assert isinstance(after, FitAnswer)
    right, wrong = log(4 / 3), log(4)
    assert (before.loss, after.loss) == pytest.approx(((2 * right + wrong) / 3, (right + 2 * wrong) / 3))


def test_a_visit_hears_every_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """CAM's: choose a center given the global model, train it beside that, then that beside the center chosen."""
    heard: list[list[float]] = []
    logits = Replica.logits

    def listen(self: Replica, x: Tensor) -> Tensor:
        heard.append(self.theta.tolist())
        return logits(self, x)

    monkeypatch.setattr(Replica, "logits", listen)
    shared = All(vector(1, 0))
    best = Best(BOTH, given=shared)
    local = Local(lr=0.1, keep_optimizer=True)
    tasks = [Fit(best, local, offset=shared), Fit(shared, local, offset=best, optimizer_slot="other")]
    first, second = visit(tasks).answers
    assert sorted(heard) == sorted([*BOTH.tolist(), [1.0, 0.0]])
    alone = fitted(
        Fit(shared, local, offset=All(FOR_1))
    )  # given more odds for class 0 than there are, row 1 is the best
    assert isinstance(first, FitAnswer)
    assert isinstance(second, FitAnswer)
    assert first.choice == 1
    assert second.loss == alone.loss
    assert second.theta is not None
    assert alone.theta is not None
    assert second.theta.tolist() == alone.theta.tolist()


def test_a_visit_writes_nothing_into_what_it_was_given() -> None:
    keeps = {"v": EVEN}
    done = visit([Fit(All(FOR_0), NO_STEP, save="v")], keeps=keeps)
    assert keeps["v"].tolist() == [0, 0]
    assert set(done.keeps) == {"v"}


def test_only_what_was_written_is_handed_back() -> None:
    assert dict(visit([Score(BOTH)], keeps={"v": EVEN}).keeps) == {}


def test_a_task_for_others_is_not_answered_but_counted() -> None:
    """The second task draws the batches of task number 1, whether or not the first is for this client."""
    data = column([1, 2, 3, 4, 5], [0, 1, 0, 1, 1])
    task = Fit(All(EVEN), Local(batch=2))
    nothing, here = visit([None, task], data).answers
    _, there = visit([Score(BOTH), task], data).answers
    (first,) = visit([task], data).answers
    assert nothing is None
    assert isinstance(here, FitAnswer)
    assert isinstance(there, FitAnswer)
    assert isinstance(first, FitAnswer)
    assert (here.loss, here.loss != first.loss) == (there.loss, True)


# ------------------------------------------------------------------------------- results of no use


def test_a_model_that_is_not_finite_is_refused() -> None:
    task = Fit(All(vector(1)), Local(steps=50, lr=1e6), save="v")
    with raises("diverged"):
        fitted(task, column([1.0], [0.0]), model=REGRESSION)


@pytest.mark.parametrize("rule", ["loss", "votes", "posterior"])
def test_scores_are_refused_when_no_center_has_a_finite_loss(rule: Literal["loss", "votes", "posterior"]) -> None:
    task = Score(torch.full((2, 2), torch.nan), rule=rule)
    with raises("diverged", match="every center has a loss on this client's data that is not finite"):
        scored(task)


def test_a_posterior_that_does_not_exist_is_refused() -> None:
    """The only center with a finite loss is one the prior excludes: 0/0 for every sample."""
    centers = torch.stack([FOR_0, vector(torch.nan, 0)])
    with raises("client-no-value"):
        scored(Score(centers, rule="posterior", prior=All(vector(0, 1))))


def test_a_vector_of_another_length_is_refused() -> None:
    with raises("model-size"):
        found(All(torch.zeros(3)))


# -------------------------------------------------------------------------------------------- evaluate

TWO_ONES = column([1, 1, 1], [0, 1, 1])


def test_evaluate_adds_logits() -> None:
    """Odds 3 * 9 = 27 for class 0: losses ln(28/27), ln 28, ln 28; class 0 is predicted always.

    Accuracy 1/3; F1 of class 0 is 2 * 1 / (1 + 3) = 1/2, of class 1 it is 0.
    """
    answer = evaluated(Evaluate((All(FOR_0), All(vector(log(9), 0)))), TWO_ONES)
    assert answer.n == 3
    assert answer.loss == pytest.approx((log(28 / 27) + 2 * log(28)) / 3)
    assert (answer.accuracy, answer.macro_f1) == pytest.approx((1 / 3, 1 / 4))
    assert answer.choice is None


def test_evaluate_mixes_probabilities() -> None:
    """p(0) = 1/4 * 3/4 + 3/4 * 1/4 = 3/8: class 1 always. Accuracy 2/3, F1 of class 1 is 2 * 2 / (2 + 3) = 4/5.

    The second model's logits are larger by ln 2 than those of FOR_1, which changes no probability.
    """
    answer = evaluated(Evaluate((All(FOR_0), All(FOR_1 + log(2))), mixture=All(vector(0.25, 0.75))), TWO_ONES)
    assert answer.loss == pytest.approx(-(log(3 / 8) + 2 * log(5 / 8)) / 3)
    assert (answer.accuracy, answer.macro_f1) == pytest.approx((2 / 3, 2 / 5))
    assert answer.choice == 1


def test_evaluate_averages_logits() -> None:
    """The mean of ln 3 and ln 27 is ln 9: odds 9 for class 0."""
    answer = evaluated(Evaluate((All(FOR_0), All(vector(log(27), 0))), average=True), column([1], [0]))
    assert answer.loss == pytest.approx(-log(9 / 10))


def test_shares_are_reported_apart_from_what_predicts() -> None:
    answer = evaluated(Evaluate((All(FOR_0),), belongs=All(vector(0.1, 0.7, 0.2))), column([1], [0]))
    assert answer.choice == 1
    assert answer.loss == pytest.approx(-log(3 / 4))
    assert answer.shares is not None
    assert answer.shares.tolist() == pytest.approx([0.1, 0.7, 0.2])


def test_a_mixture_weight_of_zero_leaves_a_model_out() -> None:
    answer = evaluated(Evaluate((All(FOR_0), All(FOR_1)), mixture=All(vector(1, 0))), column([1], [0]))
    assert answer.loss == pytest.approx(-log(3 / 4))


@pytest.mark.parametrize(("mixture", "loss"), [(None, 16.0), (All(vector(0.5, 0.5)), 1.0)])
def test_evaluate_regression(mixture: Ref | None, loss: float) -> None:
    """Models 2 x and 4 x at x = 1, target 2: the sum is 6, (6 - 2)^2; the mean is 3, (3 - 2)^2."""
    task = Evaluate((All(vector(2)), All(vector(4))), mixture)
    answer = evaluated(task, column([1.0], [2.0]), model=REGRESSION)
    assert answer.loss == pytest.approx(loss)
    assert answer.accuracy != answer.accuracy  # NaN
    assert answer.macro_f1 != answer.macro_f1


def test_evaluate_takes_the_split_it_is_told() -> None:
    data = Data(column([1], [0]).train, column([1, 1], [1, 1]).test)
    test, train = evaluated(Evaluate((All(FOR_0),)), data), evaluated(Evaluate((All(FOR_0),), split="train"), data)
    assert (test.n, test.accuracy) == (2, 0.0)
    assert (train.n, train.accuracy) == (1, 1.0)


def test_evaluate_chooses_by_training_data() -> None:
    data = Data(column([1], [0]).train, column([1], [1]).test)
    answer = evaluated(Evaluate((Best(BOTH),)), data)
    assert (answer.choice, answer.accuracy) == (0, 0.0)


NO_TEST = Data(MOSTLY_0.train, (torch.empty(0, 1), torch.empty(0, dtype=torch.int64)))


@pytest.mark.parametrize("data", [MOSTLY_0, NO_TEST], ids=["with test data", "without"])
@pytest.mark.parametrize(
    ("task", "choice"),
    [
        (Evaluate((All(EVEN),)), None),
        (Evaluate((Pick(BOTH, by_client(0, 1, 0)),)), 1),
        (Evaluate((Best(BOTH),)), 0),
        (Evaluate((All(EVEN), Pick(BOTH, by_client(0, 1, 0)))), 1),
        (Evaluate((Own("v", Best(BOTH)),)), 0),
        (Evaluate((All(FOR_0), All(FOR_1)), mixture=All(vector(0.4, 0.6))), 1),
    ],
    ids=["all", "pick", "best", "all and pick", "own", "mixture"],
)
def test_the_choice_is_reported_with_or_without_test_data(task: Evaluate, choice: int | None, data: Data) -> None:
    """One client without a choice would cost all others theirs: a reply has choices from everyone or none."""
    answer = evaluated(task, data)
    assert answer.n == len(data.test[1])
    assert answer.choice == choice
