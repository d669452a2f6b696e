"""Corrupted images, and labels that look different from cluster to cluster."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_partitions import assert_follows_the_seed, assert_nothing_lost_or_doubled, labelled, rng

from conftest import raises
from coterie.data.dataset import Dataset
from coterie.data.partitions.by_cluster import Corrupted, RotatedByLabel
from coterie.data.scale import Scale
from coterie.data.transforms import CORRUPTIONS, Corruption, blur, contrast, corrupted, impulse, pixelate

PLAIN = labelled([40] * 10, official=[8] * 10, side=4)
BYTES = Dataset(
    "bytes",
    torch.from_numpy(np.random.default_rng(0).integers(60, 200, (50, 3, 8, 8), dtype=np.uint8)),
    torch.arange(50) % 5,
    5,
)
RAMP = (4 * (torch.arange(32)[:, None] + torch.arange(32))).to(torch.uint8)[None, None]
SMOOTH = Dataset("ramp", RAMP, torch.tensor([0]), 1)
ANY = torch.Generator()
KINDS = st.sampled_from(sorted(CORRUPTIONS))


def off(kind: Any, severity: Any, data: Dataset = BYTES) -> float:
    """How far from the images as they are, as a mean square."""
    return float((corrupted(data, kind, severity, 3).x.float() - data.x.float()).square().mean())


def test_every_kind_has_a_maker() -> None:
    assert set(get_args(Corruption)) == {"none", *CORRUPTIONS}
    assert all(len(strengths) == 5 for _, strengths in CORRUPTIONS.values())


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_it_gets_worse_with_severity(kind: str) -> None:
    # Of pure noise, coarser pixels need not be further off; nor halves of a width than two thirds of it.
    levels = (1, 2, 4, 5) if kind == "pixelate" else (1, 2, 3, 4, 5)
    found = [off(kind, severity, SMOOTH if kind == "pixelate" else BYTES) for severity in levels]
    assert found == sorted(found)
    assert 0 < found[0] < 0.8 * found[-1]


@given(KINDS, st.integers(1, 5), st.integers(0, 2**31 - 1), st.booleans())
def test_images_stay_images(kind: Any, severity: Any, seed: int, floats: bool) -> None:
    """Of the same shape and type, within the range that there was; the same seed, the same noise."""
    x = BYTES.x[:4] if not floats else BYTES.x[:4].float() / 100 - 1
    data = Dataset("toy", x, BYTES.y[:4], 5, Scale(2.0))
    first, again = (corrupted(data, kind, severity, seed) for _ in range(2))
    assert first.x.shape == x.shape
    assert first.x.dtype == x.dtype
    assert torch.equal(first.x, again.x)
    assert first.scale is data.scale
    assert float(first.x.min()) >= (float(x.min()) - 1e-5 if floats else 0)
    assert float(first.x.max()) <= (float(x.max()) + 1e-5 if floats else 255)


def test_by_hand() -> None:
    x = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])[None, None]
    torch.testing.assert_close(contrast(x, 0.5, ANY), 1 / 6 + x / 2)
    assert torch.equal(impulse(x, 0.0, ANY), x)
    assert set(impulse(x.repeat(9, 1, 1, 1) / 2, 1.0, ANY).flatten().tolist()) == {0.0, 1.0}
    small = pixelate(torch.arange(16.0).view(1, 1, 4, 4), 0.5, ANY)[0, 0]
    assert small.tolist() == [[2.5, 2.5, 4.5, 4.5]] * 2 + [[10.5, 10.5, 12.5, 12.5]] * 2
    flat = torch.full((1, 2, 5, 5), 0.3)
    torch.testing.assert_close(blur(flat, 1.0, ANY), flat)  # also at the border
    point = torch.zeros(1, 1, 7, 7)
    point[0, 0, 3, 3] = 1
    spread = blur(point, 0.6, ANY)
    weights = np.exp(-(np.arange(-2, 3) ** 2) / (2 * 0.36))
    torch.testing.assert_close(
        spread[0, 0, 3, 1:6], torch.from_numpy(weights * weights[2] / weights.sum() ** 2).float()
    )


def test_a_cluster_sees_its_corruption_and_the_first_none() -> None:
    made = Corrupted(clients=8, kinds=("none", "blur"), severity=(1, 4), test=0.0)(BYTES, rng())
    assert made.truth is not None
    assert made.truth.tolist() == [0] * 4 + [1] * 4
    assert made.domains[0].x is BYTES.x
    assert torch.equal(made.domains[1].x, corrupted(BYTES, "blur", 4, 0).x)
    assert "corrupted: none, blur 4" in made.name


def test_labels_look_different_in_each_cluster_and_images_do_not() -> None:
    """Cluster k sees label y turned by angle (y + k) mod 4: each angle as often as any other in every cluster."""
    made = RotatedByLabel(clients=8, test=0.0)(PLAIN, rng())
    assert made.truth is not None
    for cluster, domain in enumerate(made.domains):
        for row in range(0, 400, 7):
            turned = torch.rot90(PLAIN.x[row], (int(PLAIN.y[row]) + cluster) % 4, (-2, -1))
            assert torch.equal(domain.x[row], turned)
    assert torch.equal(made.domains[0].y, PLAIN.y)


@pytest.mark.parametrize("partition", [Corrupted(clients=20), RotatedByLabel(clients=20)], ids=repr)
def test_samples_are_dealt_as_by_rotation(partition: Any) -> None:
    assert_nothing_lost_or_doubled(PLAIN, partition(PLAIN, rng()))
    assert_follows_the_seed(partition, PLAIN)


def test_what_cannot_be_corrupted() -> None:
    table = Dataset("table", torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64), 2)
    for partition in (Corrupted(clients=2, kinds=("noise",)), RotatedByLabel(clients=4)):
        with raises("partition-not-applicable", match="only images can be"):
            partition(table, rng())
    with raises("config-invalid-value", match="2 for 4 kinds"):
        Corrupted(severity=(1, 2))(BYTES, rng())
    with raises("argument-invalid"):
        Corrupted(severity=6)  # type: ignore[arg-type]
