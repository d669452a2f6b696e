"""Shares cut to decimals, as WeCFL's later loader does."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.core.registry import DATASETS, NO_CODE, PARTITIONS
from coterie.data.partitions.dealing import floored


def test_shares_are_cut_not_rounded() -> None:
    shares = np.array([[0.009, 0.019, 0.29, 0.682]])
    assert floored(shares, 2).tolist() == [[0.0, 0.01, 0.29, 0.68]]
    assert floored(shares, 1).tolist() == [[0.0, 0.0, 0.2, 0.6]]
    assert floored(shares, None) is shares


@pytest.mark.parametrize("poor", ["duplicate", "drop"])
def test_fewer_classes_and_samples_that_nobody_has(poor: str) -> None:
    data = DATASETS.build("digits", {}, NO_CODE)()
    whole, cut = (
        PARTITIONS.build("dirichlet", {"clients": 30, "alpha": 0.1, "poor": poor, **more}, NO_CODE)(
            data, np.random.default_rng(0)
        )
        for more in ({}, {"decimals": 1})
    )
    assert cut.labels_per_client().mean() < whole.labels_per_client().mean()
    assert "samples left over" in cut.describe()


def test_clusters_by_dirichlet_too() -> None:
    data = DATASETS.build("digits", {}, NO_CODE)()
    params = {"clients": 8, "clusters": 2, "between": 0.5, "within": 5.0}
    whole, cut = (
        PARTITIONS.build("cluster-dirichlet", params | more, NO_CODE)(data, np.random.default_rng(1))
        for more in ({}, {"decimals": 2})
    )
    assert len(cut) == len(whole) == 8
    assert len(cut.train.numbers) + len(cut.test.numbers) < len(whole.train.numbers) + len(whole.test.numbers)
