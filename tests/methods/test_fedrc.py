"""A round of FedRC by hand: what is asked, the means, and the shares of classes; the E-step itself is the client's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripted import FOUR, LOCAL, NOBODY, ScriptedAsk, a_fit, all_of, close, fitted, make_cohort, make_roster, scored
from torch import nn

from conftest import raises
from coterie.core.model import Model
from coterie.core.parts import outputs_of
from coterie.core.tables import ByClient
from coterie.core.tasks import Estimated, Own, Posterior, Ref, Score
from coterie.methods.fedrc import FedRC, RobustMixture

ROSTER = make_roster({3: 30, 7: 10, 11: 60})
MODELS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
NONE = ByClient.empty(torch.float32)


def is_kept_w(ref: Ref | None) -> bool:
    """The weights of the last round, a half each at first."""
    assert isinstance(ref, Own)
    close(torch.tensor(all_of(ref.default)), [0.5, 0.5])
    return ref.slot == "fedrc.w"


def test_models_train_on_weighted_samples_and_the_shares_of_classes_are_counted() -> None:
    ask = ScriptedAsk(
        [
            fitted({3: [4.0, 0.0], 11: [1.0, 3.0]}, n=[30, 60]),  # (30 * [4, 0] + 60 * [1, 3]) / 90 = [2, 2]
            fitted({3: [0.0, 3.0], 11: [3.0, 0.0]}, n=[30, 60]),  # [2, 1]
            scored({3: [10.0, 5.0, 0.0, 15.0], 11: [20.0, 5.0, 10.0, 25.0]}),  # by model, then by class
            scored({3: [0.5, 0.5], 11: [25 / 60, 35 / 60]}),
        ]
    )
    before = RobustMixture(MODELS, NONE, 2)
    close(before.shares, [[0.5, 0.5], [0.5, 0.5]])
    found = FedRC(k=2, local=LOCAL).round(before, make_cohort([3, 7, 11], ROSTER), ask)
    close(found.centers, [[2.0, 2.0], [2.0, 1.0]])  # by size; w of a client plays no part in the mean
    close(found.shares, [[30 / 40, 10 / 40], [10 / 50, 40 / 50]])

    (visit,) = ask.asked
    fits, (counts, last) = [a_fit(task) for task in visit[:2]], visit[2:]
    assert [all_of(f.start) for f in fits] == MODELS.tolist()
    assert len({f.optimizer_slot for f in fits}) == 2
    for m, f in enumerate(fits):
        assert isinstance(f.weights, Posterior)
        assert f.weights.component == m
        assert torch.equal(f.weights.centers, MODELS)
        assert is_kept_w(f.weights.prior)
    for task in (counts, last):
        assert isinstance(task, Score)
        assert torch.equal(task.centers, MODELS)
        assert is_kept_w(task.prior)
        assert task.on is None
    # Last, so that all else is computed with the weights of the round's start.
    assert [(t.rule, t.save) for t in (counts, last)] == [("classes", None), ("posterior", "fedrc.w")]


def test_the_next_round_divides_by_these_shares_and_absent_clients_still_count() -> None:
    sums = ByClient(torch.tensor([3, 11]), torch.tensor([[10.0, 5.0, 0.0, 15.0], [20.0, 5.0, 10.0, 25.0]]))
    ask = ScriptedAsk([fitted({7: [6.0, 6.0]}), NOBODY, scored({7: [0.0, 8.0, 2.0, 0.0]}), scored({7: [0.8, 0.2]})])
    found = FedRC(k=2, local=LOCAL).round(RobustMixture(MODELS, sums, 2), make_cohort([7], ROSTER), ask)
    want = torch.tensor([[0.75, 0.25], [0.2, 0.8]])
    for task in ask.asked[0]:
        asked = task if isinstance(task, Score) else a_fit(task).weights
        assert asked is not None
        assert asked.class_shares is not None
        close(asked.class_shares, want)
    close(found.shares, [[30 / 48, 18 / 48], [12 / 52, 40 / 52]])
    assert found.sums.ids.tolist() == [3, 7, 11]
    close(found.centers, [[6.0, 6.0], [0.0, 1.0]])  # nobody trained the second


def test_a_client_that_answers_again_counts_once() -> None:
    sums = ByClient(torch.tensor([7]), torch.tensor([[9.0, 0.0, 0.0, 1.0]]))
    ask = ScriptedAsk([NOBODY, NOBODY, scored({7: [2.0, 2.0, 3.0, 3.0]}), scored({7: [0.4, 0.6]})])
    found = FedRC(k=2).round(RobustMixture(MODELS, sums, 2), make_cohort([7], ROSTER), ask)
    close(found.shares, [[0.5, 0.5], [0.5, 0.5]])


def test_a_class_that_nobody_has_is_not_divided_by_zero() -> None:
    sums = ByClient(torch.tensor([7]), torch.tensor([[10.0, 0.0, 0.0, 0.0]]))  # nor has the second model any sample
    shares = RobustMixture(MODELS, sums, 2).shares
    assert bool((shares > 0).all())
    close(shares.sum(1), [1.0, 1.0])
    close(shares[1], [0.5, 0.5])
    close(shares[0], [1.0, 0.0])


def test_a_client_predicts_with_its_mixture_and_a_newcomer_estimates_its_own_with_the_shares() -> None:
    sums = ByClient(torch.tensor([7]), torch.tensor([[3.0, 1.0, 2.0, 2.0]]))
    task = FedRC(k=2).predictor(RobustMixture(MODELS, sums, 2))
    assert [all_of(m) for m in task.models] == MODELS.tolist()
    assert isinstance(task.mixture, Own)
    assert isinstance(task.mixture.default, Estimated)
    assert (task.mixture.slot, task.mixture.default.rule) == ("fedrc.w", "posterior")
    assert task.mixture.default.class_shares is not None
    close(task.mixture.default.class_shares, [[0.75, 0.25], [0.5, 0.5]])


def test_models_begin_apart_and_classes_are_counted() -> None:
    found = FedRC(k=2).init(FOUR, ROSTER, np.random.default_rng(0))
    assert len({tuple(m) for m in found.centers.tolist()}) == 2
    assert (found.classes, len(found.sums.ids)) == (2, 0)


def test_numbers_are_no_classes() -> None:
    with raises("method-invalid", match="fedrc divides by how frequent a class is, .* method.name=fedem"):
        FedRC(k=2).init(Model(lambda: nn.Linear(2, 1), "mse"), ROSTER, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("network", "outputs"),
    [
        (nn.Linear(3, 5), 5),
        (nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 4), nn.Softplus()), 4),
        (nn.Sequential(nn.Conv2d(1, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), 6),
        (nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 2, bias=False)), 2),
    ],
)
def test_outputs_of_a_network(network: nn.Module, outputs: int) -> None:
    assert outputs_of(network) == outputs
