"""Mild variants of characters, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import raises
from coterie.core.registry import DATASETS, NO_CODE, PARTITIONS
from coterie.data.dataset import Dataset
from coterie.data.scale import Scale
from coterie.data.transforms import background, slanted, styled, thickened


def image(*points: tuple[int, int], paper: int = 0, ink: int = 255) -> torch.Tensor:
    x = torch.full((1, 1, 5, 5), paper, dtype=torch.uint8)
    for row, column in points:
        x[0, 0, row, column] = ink
    return x


@pytest.mark.parametrize(("paper", "ink"), [(0, 255), (255, 0)])
def test_a_thicker_pen_on_either_paper(paper: int, ink: int) -> None:
    x = image((2, 2), paper=paper, ink=ink)
    assert background(x) == paper
    thick = thickened(x)
    assert thick.dtype == torch.uint8
    assert torch.equal(thick, image((1, 1), (1, 2), (2, 1), (2, 2), paper=paper, ink=ink))


@pytest.mark.parametrize(("paper", "ink"), [(0, 255), (255, 0)])
def test_a_slant_moves_the_top_right_and_the_bottom_left(paper: int, ink: int) -> None:
    """By half a pixel's height per pixel of slant 0.5: rows 0 and 4 of five move by one pixel, the middle stays."""
    upright = image(*((row, 2) for row in range(5)), paper=paper, ink=ink)
    leaning = slanted(upright, slant=0.5)
    away = (leaning.int() - paper).abs()[0, 0]
    assert int(away[0].argmax()) == 3
    assert int(away[2].argmax()) == 2
    assert int(away[4].argmax()) == 1
    assert away[:, [0, 4]].sum() == 0
    assert torch.equal(slanted(upright, slant=0.0), upright)


def test_only_images_have_a_style() -> None:
    table = Dataset("table", torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), 2, Scale())
    with raises("partition-not-applicable", match="only images have a style"):
        styled(table, "thick")


def test_clients_mix_styles() -> None:
    data = DATASETS.build("digits", {}, NO_CODE)()
    make = PARTITIONS.build("mixture", {"clients": 4, "styles": ["plain", "thick"], "samples": [40, 50]}, NO_CODE)
    made = make(data, np.random.default_rng(0))
    assert len(made.domains) == 2
    assert torch.equal(made.domains[0].x, data.x)
    assert torch.equal(made.domains[1].x, thickened(data.x))
    both = PARTITIONS.build("mixture", {"styles": ["plain", "thick"], "groups": [[0, 1], [2, 3]]}, NO_CODE)
    with raises("config-invalid-value", match="groups or styles"):
        both(data, np.random.default_rng(0))
