"""Clients are scored on their validation samples alike on every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys

from coterie import Evaluate, Model
from coterie.client.contract import Moment
from coterie.core.references import All
from coterie.core.tasks import Evaluated
from coterie.data.federate import with_validation
from coterie.engines.contract import Visit


@pytest.mark.parametrize("kind", toys.PARALLEL, ids=str)
def test_validation_scores_are_the_same_on_every_engine(kind: toys.Kind) -> None:
    split = with_validation(toys.toy(), 0.3, 1)
    theta = Model.of(toys.linear).init(np.random.default_rng(0))
    visit = Visit((Evaluate((All(theta),), split="val"),), torch.arange(len(split)), Moment(0, 0, 0))
    answers: list[Evaluated] = []
    for one in (toys.REFERENCE, kind):
        with toys.engine(one, split) as engine:
            found = engine.visit(visit).replies[0]
            assert isinstance(found, Evaluated)
            answers.append(found)
    toys.assert_same(answers[0], answers[1], within=1e-5)
    assert split.val is not None
    assert torch.equal(answers[0].n, split.val.lengths)
