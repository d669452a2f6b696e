"""Models that lie elsewhere: means and sizes leave them there, whoever looks at them has them brought."""

from __future__ import annotations

import torch
from torch import Tensor

from conftest import raises
from coterie.clustering.averaging import mean, mean_by
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.tasks import Fit, Fitted
from coterie.layers.traffic import NUMBER, up
from coterie.training.diagnostics import training
from remote_models import THETA, Far

KEPT = torch.full((2, 2), -1.0)


def reply(models: Far | Tensor | None) -> Fitted:
    return Fitted(torch.tensor([2, 4, 7]), torch.tensor([1, 1, 2]), torch.zeros(3), models)


def test_a_mean_is_made_where_the_models_lie() -> None:
    far = Far(THETA)
    assert mean(reply(far), torch.tensor([1, 1, 2]), empty=KEPT[0]).tolist() == [3.5, 4.5]
    labels = torch.tensor([1, 1, 1])
    assert mean_by(labels, reply(far), torch.ones(3), empty=KEPT).tolist() == [[-1.0, -1.0], [3.0, 4.0]]
    assert far.asked == ["combined", "combined"]


def test_a_reply_of_this_process_has_the_mean_of_its_tensor() -> None:
    weights = torch.tensor([1, 1, 2])
    assert torch.equal(mean(reply(THETA), weights, KEPT[0]), mean(THETA, weights, KEPT[0]))
    assert reply(THETA).theta is THETA
    assert torch.equal(mean(reply(None), weights, KEPT[0]), KEPT[0])
    none = torch.empty(0)
    assert torch.equal(mean_by(none.long(), Fitted(none.long(), none, none, Far(none)), none, KEPT), KEPT)


def test_nobody_has_them_brought_without_need() -> None:
    far = Far(THETA)
    assert up([reply(far)]) == 24 + 3 * NUMBER  # three clients' models, wherever they are summed up
    fits = [(Fit(All(THETA[0]), Local()), reply(far))]
    assert training(fits) == fits[0]
    assert not far.asked
    assert reply(far).theta is THETA
    assert reply(far).models is THETA
    assert far.asked == ["gathered", "gathered"]


def test_where_none_were_sent_there_are_none() -> None:
    assert reply(None).theta is None
    with raises("reply-not-asked", match="send=False"):
        _ = reply(None).models
