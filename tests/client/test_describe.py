"""What a client says of its data, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import Data, linear, raises, vector
from coterie.client.contract import DescribeAnswer, Moment
from coterie.client.evaluation import numbered
from coterie.client.visit import TaskRunner
from coterie.core.model import Model
from coterie.core.sketch import sketch
from coterie.core.tasks import LONGEST, All, Describe

TWO = linear(2, 2)
W = torch.zeros(4)
X = torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, -2.0]])
Y = torch.tensor([0, 0, 2])


def said(task: Describe, x: Tensor = X, y: Tensor = Y, model: Model = TWO) -> list[float]:
    (answer,) = TaskRunner(model).visit([task], 7, Data((x, y), (x, y)), {}, Moment(0, 0, 0)).answers
    assert isinstance(answer, DescribeAnswer)
    assert answer.n == len(x)
    assert answer.row.dtype == torch.float32
    assert len(answer.row) == task.length
    return answer.row.tolist()


def test_labels_are_shares() -> None:
    assert said(Describe("labels", 4)) == pytest.approx([2 / 3, 0, 1 / 3, 0])
    assert said(Describe("labels", 2)) == pytest.approx([1, 0])  # labels count modulo two


def test_targets_of_a_regression_are_counted_in_bins() -> None:
    y = torch.tensor([[-9.0], [-0.1], [0.1], [2.0]])
    assert numbered(y, 2).tolist() == [[0], [0], [1], [1]]
    assert said(Describe("labels", 3), torch.zeros(4, 2), y) == pytest.approx([0.25, 0.5, 0.25])


def test_moments_of_what_the_last_layer_gets() -> None:
    """Of a linear model that is its input: mean and deviation of (3, 1, 0) and of (0, 0, -2)."""
    columns = [4 / 3, -2 / 3, np.std([3, 1, 0]), np.std([0, 0, -2])]
    assert said(Describe("moments", 2, All(W))) == pytest.approx(columns)
    padded = [4 / 3, -2 / 3, 0, np.std([3, 1, 0]), np.std([0, 0, -2]), 0]
    assert said(Describe("moments", 3, All(W))) == pytest.approx(padded)


def test_moments_by_label_are_zeros_without_samples() -> None:
    row = said(Describe("moments", 2, All(W), classes=3))
    assert row[:4] == pytest.approx(said(Describe("moments", 2, All(W))))
    assert row[4:] == pytest.approx([2, 0, 1, 0, *[0] * 4, 0, -2, 0, 0])


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Dropout(0.9), nn.Linear(3, 2, bias=False))


def test_moments_are_of_the_given_model_in_evaluation() -> None:
    """The hidden layer is relu(x1, x2, -x2): its means are 4/3, 0, 2/3. The last layer plays no part."""
    theta = torch.cat([vector(1, 0, 0, 1, 0, -1), torch.randn(6)])
    row = said(Describe("moments", 3, All(theta)), model=Model(deep))
    assert row == pytest.approx([4 / 3, 0, 2 / 3, np.std([3, 1, 0]), 0, np.std([0, 0, 2])])


def test_a_network_without_a_linear_layer_is_described_by_its_outputs() -> None:
    model = Model(lambda: nn.Conv1d(1, 2, 2, bias=False))
    x = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
    row = said(Describe("moments", 2, All(vector(1, 0, 0, 1))), x, torch.tensor([0, 1]), model)
    assert row == pytest.approx([2, 3, 1, 1])


def test_a_subspace_is_of_the_raw_inputs_not_centred() -> None:
    """Samples along (1, 0) with squares 9 + 1, and one along (0, 1) with 4; signs are chosen."""
    assert said(Describe("subspace", 2, rank=2)) == pytest.approx([1, 0, 0, 1])
    assert said(Describe("subspace", 2, rank=3)) == pytest.approx([1, 0, 0, 1, 0, 0])  # there is no third direction
    by_label = said(Describe("subspace", 2, rank=1, classes=3))
    assert by_label == pytest.approx([1, 0, 0, 0, 0, 1])


def test_a_subspace_does_not_depend_on_the_order_of_samples() -> None:
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(3))
    y = torch.zeros(9, dtype=torch.int64)
    task = Describe("subspace", 5, rank=2)
    assert said(task, x, y) == pytest.approx(said(task, x.flip(0), y), abs=1e-5)


def test_a_sketch_is_the_projected_mean() -> None:
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 0, 1, 1, 1])
    whole = sketch(x.double(), 5)
    row = said(Describe("sketch", 5, classes=2), x, y)
    assert row == pytest.approx(torch.cat([whole.mean(0), whole[y == 0].mean(0), whole[y == 1].mean(0)]).tolist())


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"kind": "sketch", "model": All(W)}, {"size": 0}, {"rank": 2}, {"classes": -1}, {"size": LONGEST}),
        *({"kind": "labels", "model": None, "classes": 2}, {"kind": "looks", "model": None}, {"model": W}),
    ],
)
def test_a_description_that_cannot_be_asked_for(options: dict[str, Any]) -> None:
    good: dict[str, Any] = {"kind": "moments", "size": 3} | ({"model": All(W)} if options else {})
    with raises("task-invalid"):
        Describe(**(good | options))


def test_what_is_not_finite_is_not_sent() -> None:
    with raises("diverged"):
        said(Describe("sketch", 2), torch.tensor([[torch.inf, 0.0]]), torch.tensor([0]))


def test_labels_are_not_read_unless_asked_for() -> None:
    class Unlabelled:
        """Stands in for labels that nobody may look at."""

        def __len__(self) -> int:
            return 3

        def cpu(self) -> Unlabelled:
            return self

    for task in (Describe("moments", 2, All(W)), Describe("subspace", 2), Describe("sketch", 2)):
        assert said(task, X, Unlabelled())  # type: ignore[arg-type]
