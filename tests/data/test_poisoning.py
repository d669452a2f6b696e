"""Poisoned data: which samples change, and which do not."""

from __future__ import annotations

import torch

from conftest import raises
from coterie.data.federation import Federation
from coterie.data.poisoning import stamped, triggered, with_backdoor, with_flipped_labels


def federation() -> Federation:
    x = torch.arange(40.0).view(8, 5)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    return Federation.from_arrays([(x, y, x[:3], y[:3]), (x + 1, y, x[:2], y[:2]), (x + 2, y, x[:2], y[:2])], outputs=3)


def test_labels_of_hostile_clients_are_reversed() -> None:
    clean = federation()
    dirty = with_flipped_labels(clean, torch.tensor([1]))
    assert dirty.samples(1, "train")[1].tolist() == [2, 1, 0, 2, 1, 0, 2, 1]
    assert torch.equal(dirty.samples(1, "train")[0], clean.samples(1, "train")[0])
    for client, split in ((0, "train"), (2, "train"), (1, "test")):
        for mine, theirs in zip(dirty.samples(client, split), clean.samples(client, split), strict=True):  # type: ignore[arg-type]
            assert torch.equal(mine, theirs)


def test_targets_are_mirrored_at_their_mean() -> None:
    data = Federation.from_arrays([(torch.ones(4, 2), torch.tensor([[1.0], [2.0], [3.0], [6.0]]))], task="regression")
    clean = data.samples(0, "train")[1]
    dirty = with_flipped_labels(data, torch.tensor([0])).samples(0, "train")[1]
    torch.testing.assert_close(dirty, 2 * clean.mean(0) - clean)


def test_a_backdoor_stamps_about_half_of_the_samples() -> None:
    clean = federation()
    dirty = with_backdoor(clean, torch.tensor([0, 2]), target=1, seed=0)
    x, y = dirty.samples(0, "train")
    changed = (x != clean.samples(0, "train")[0]).any(1)
    assert 0 < int(changed.sum()) < 8
    assert y[changed].tolist() == [1] * int(changed.sum())
    assert torch.equal(y[~changed], clean.samples(0, "train")[1][~changed])
    assert torch.equal(dirty.samples(1, "train")[0], clean.samples(1, "train")[0])


def test_a_trigger_by_hand() -> None:
    assert stamped(torch.tensor([[1.0, 2, 3, 4, 5]])).tolist() == [[1.0, 2, 5, 5, 5]]
    image = stamped(torch.cat([torch.zeros(1, 1, 4, 4), torch.full((1, 1, 4, 4), 2.0)]))
    assert image[0, 0, 1:, 1:].tolist() == [[2.0] * 3] * 3
    assert float(image[0, 0].sum()) == 18


def test_the_success_of_a_backdoor_is_measured_on_other_classes() -> None:
    data = triggered(federation(), target=1)
    assert data.test.lengths.tolist() == [2, 1, 1]
    x, y = data.samples(0, "test")
    assert y.tolist() == [1, 1]
    assert bool((x[:, -3:] == x.max()).all())


def test_mistakes_are_named() -> None:
    with raises("config-conflict", match="class 7, but the data has classes 0..2"):
        with_backdoor(federation(), torch.tensor([0]), target=7, seed=0)
