"""The walker over references, which everything that looks inside a task uses."""

import torch

from coterie.core.tables import ByClient
from coterie.core.tasks import (
    All,
    Best,
    Estimated,
    Evaluate,
    Fit,
    Local,
    Mix,
    Own,
    Pick,
    Posterior,
    Row,
    Score,
    children,
    length_of,
    rows_of,
    substitute,
    vectors_of,
    walk,
)

CENTERS = torch.arange(6.0).view(3, 2)
SHARED = All(torch.ones(2))
LABELS = ByClient(torch.tensor([2, 5]), torch.tensor([1, 7]))


def test_walk_finds_every_reference_of_a_task_once_parents_first() -> None:
    prior, best = Estimated(CENTERS, "votes"), Best(CENTERS, given=SHARED)
    own, weights = Own("mine", best), Posterior(CENTERS, 0, prior)
    task = Fit(own, local=Local(), offset=SHARED, weights=weights)
    assert list(map(id, walk(task))) == list(map(id, [task, own, best, SHARED, SHARED, weights, prior]))


def test_walk_leaves_out_the_default_of_what_a_client_keeps() -> None:
    mixture = Mix(CENTERS, Estimated(CENTERS, "votes"))
    task = Evaluate((Own("mine", SHARED), Own("other", mixture)))
    found = list(walk(task, kept={"mine"}))
    assert SHARED not in found
    assert mixture in found
    assert mixture.weights in found


def test_substitute_replaces_children_and_leaves_everything_else() -> None:
    other = All(torch.zeros(2))
    task = Evaluate((SHARED, Own("mine", SHARED)), mixture=SHARED, average=True)
    changed = substitute(task, lambda ref: other if ref is SHARED else substitute(ref, lambda _: other))
    assert changed.models[0] is other
    assert isinstance(changed.models[1], Own)
    assert changed.models[1].default is other
    assert changed.mixture is other
    assert changed.average
    assert task.models[0] is SHARED  # the task itself is not touched


def test_substitute_that_changes_nothing_gives_the_same_object() -> None:
    for node in (Evaluate((SHARED,)), Own("mine", SHARED), Fit(SHARED, local=Local()), Score(CENTERS)):
        assert substitute(node, lambda ref: ref) is node


def test_a_client_without_a_valid_label_has_no_row() -> None:
    pick = Pick(CENTERS, LABELS)
    assert [pick.row_of(client) for client in (2, 5, 9)] == [
        1,
        None,
        None,
    ]  # 5 has row 7 of 3, 9 no label
    assert children(pick) == ()


def test_rows_and_lengths() -> None:
    ids = torch.tensor([2])
    found = rows_of(Pick(CENTERS, LABELS), ids)
    assert found is not None
    assert (found[0] is CENTERS, found[1].tolist()) == (True, [1])
    assert rows_of(Pick(CENTERS, LABELS), torch.tensor([9])) is None
    assert rows_of(Best(CENTERS), ids) is None
    chosen = rows_of(Best(CENTERS), ids, torch.tensor([2]))
    assert chosen is not None
    assert chosen[1].tolist() == [2]
    assert rows_of(Own("mine", SHARED), ids) is None
    refs = (SHARED, Row(CENTERS[0], 0), Pick(CENTERS, LABELS), Estimated(CENTERS, "votes"), Own("mine", SHARED))
    assert [length_of(ref) for ref in refs] == [2, 2, 2, 3, 2]
    assert [None if (v := vectors_of(ref)) is None else len(v) for ref in refs] == [1, 1, 3, 3, None]
