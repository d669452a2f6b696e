"""Trees to JSON and tensors, and back: the same values, the same sharing, no other types."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import raises, vector
from coterie.client.contract import DescribeAnswer, EvaluateAnswer, FitAnswer, ScoreAnswer, VisitResult
from coterie.core.codec import TYPES, pack, unpack
from coterie.core.tables import ByClient
from coterie.core.tasks import All, Best, Describe, Evaluate, Fit, Local, Own, Pick, Posterior, Score

TASKS = (Fit, Score, Evaluate, Describe, All, Pick, Best, Own, Posterior, Local, ByClient)
ANSWERS = (VisitResult, FitAnswer, ScoreAnswer, EvaluateAnswer, DescribeAnswer)


def around(tree: object, types: Iterable[type] = ()) -> Any:
    """There and back, through real JSON text."""
    outline, tensors = pack(tree)
    return unpack(json.loads(json.dumps(outline, allow_nan=False)), tensors, types)


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


def test_tasks_come_back_as_they_were() -> None:
    centers, labels = torch.randn(2, 3), ByClient(torch.tensor([4, 9]), torch.tensor([1, 0]))
    local = Local(steps=5, batch="full", lr=0.25, optimizer="adam")
    weights = Posterior(centers, 1, prior=Own("pi", All(vector(0.5, 0.5))))
    start = Pick(centers, labels)
    task = Fit(start, local, anchor=Best(centers), mu=0.5, weights=weights, save="v", on=torch.tensor([4]))
    describe = Describe("moments", 3, start, classes=2)
    back = around((task, Score(centers, rule="votes"), Evaluate((start, All(vector(1)))), describe), TASKS)
    fit, score, evaluate, described = back
    assert (described.kind, described.length, type(described.model)) == ("moments", 18, Pick)
    assert fit.local == local
    assert torch.equal(fit.start.centers, centers)
    assert fit.start.labels.at(torch.tensor([9, 4])).tolist() == [0, 1]
    assert (fit.mu, fit.save, fit.send, fit.offset, fit.on.tolist()) == (0.5, "v", True, None, [4])
    assert (fit.weights.component, fit.weights.prior.slot) == (1, "pi")
    assert isinstance(fit.weights.prior.default, All)
    assert isinstance(fit.anchor, Best)
    assert (score.rule, score.given) == ("votes", None)
    assert isinstance(evaluate.models, tuple)
    assert [type(ref) for ref in evaluate.models] == [Pick, All]


def test_answers_come_back_as_they_were() -> None:
    scores = ScoreAnswer(3, vector(0.5)), EvaluateAnswer(2, 1.5, 0.5, 0.4, 1), DescribeAnswer(3, vector(0, 1))
    done = VisitResult((FitAnswer(3, 0.1, vector(1, 2), None), None, *scores), {"v": vector(7)})
    back = around(done, ANSWERS)
    fit, nothing, score, evaluate, describe = back.answers
    assert (describe.n, describe.row.tolist()) == (3, [0, 1])
    assert (fit.n, fit.loss, fit.theta.tolist(), fit.choice) == (3, 0.1, [1, 2], None)
    assert nothing is None
    assert score.scores.tolist() == [0.5]
    assert (evaluate.n, evaluate.loss, evaluate.accuracy, evaluate.choice) == (2, 1.5, 0.5, 1)
    assert {slot: value.tolist() for slot, value in back.keeps.items()} == {"v": [7]}


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=10,
)


@given(trees)
def test_any_tree_comes_back_as_it_was(tree: object) -> None:
    assert around(tree, [Pair]) == tree


@pytest.mark.parametrize("keys", ["tensor", "same", "map", "float", "is"])
def test_a_key_that_looks_like_the_codecs_own_is_only_a_key(keys: str) -> None:
    assert around({keys: 1}) == {keys: 1}


def test_lists_come_back_as_tuples() -> None:
    assert around([1, [2, (3,)]]) == (1, (2, (3,)))


def test_numbers_that_json_does_not_know() -> None:
    plus, minus, nan = around((math.inf, -math.inf, math.nan))
    assert (plus, minus, math.isnan(nan)) == (math.inf, -math.inf, True)


def test_a_bool_stays_a_bool_and_an_int_an_int() -> None:
    assert [type(v) for v in around((True, 1, 1.0, "1"))] == [bool, int, float, str]


def test_a_tensor_that_occurs_twice_travels_once() -> None:
    theta = vector(1, 2)
    tree = Pair(All(theta), (theta, {"again": theta}))
    assert len(pack(tree)[1]) == 1
    back = around(tree, [Pair, All])
    assert back.left.theta is back.right[0]
    assert back.left.theta is back.right[1]["again"]


def test_equal_tensors_that_are_not_the_same_travel_each() -> None:
    back = around((vector(1), vector(1)))
    assert back[0] is not back[1]


def test_an_object_that_occurs_twice_stays_one() -> None:
    """Engines score `Best` once per visit because the references of several tasks are one object."""
    inner = All(vector(1))
    back = around(Pair(Pair(inner, vector(2)), (inner, inner)), [Pair, All])
    assert back.left.left is back.right[0]
    assert back.right[0] is back.right[1]


def test_a_type_that_is_not_expected_is_refused() -> None:
    outline, tensors = pack(Pair(1, All(vector(1))))
    with raises("content-type-unknown", match="'All' is not one of the types expected here: Pair"):
        unpack(outline, tensors, [Pair])


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j, Pair, print], ids=lambda v: type(v).__name__)
def test_what_cannot_be_written_down_is_refused(value: object) -> None:
    with raises("state-unsupported"):
        pack((1, [value]))


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_every_type_of_tensor_passes(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    (back,) = around((tensor,))
    assert isinstance(back, Tensor)
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_the_types_are_named_as_torch_names_them() -> None:
    assert TYPES["float32"] == torch.float32
    assert TYPES["bool"] == torch.bool


def test_what_was_packed_is_gone_with_its_last_owner() -> None:
    """A worker packs models of many megabytes: none may wait until Python looks for circles of references."""
    gc.disable()
    try:
        tensor = torch.zeros(3)
        left = weakref.ref(tensor)
        pack((Pair(tensor, {"again": [tensor]}), tensor))
        del tensor
        assert left() is None
    finally:
        gc.enable()
