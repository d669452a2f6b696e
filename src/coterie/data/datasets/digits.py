"""scikit-learn's 1,797 handwritten 8x8 digits: real data that needs no download."""

from __future__ import annotations

from typing import ClassVar

import torch

from coterie.core.constructors import dataclass
from coterie.core.types import STRICT
from coterie.data.dataset import Dataset
from coterie.data.readers.checks import reading
from coterie.data.scale import Scale


@dataclass(frozen=True, config=STRICT)
class Digits:
    """1,797 real handwritten digits of 8x8 pixels, embedded: nothing to download."""

    paper: ClassVar[str] = "Alpaydin and Kaynak 1998, UCI Optical Recognition of Handwritten Digits"

    def __call__(self) -> Dataset:
        """Load them, as bytes 0..16."""
        from sklearn.datasets import load_digits

        with reading("scikit-learn's digits"):
            raw = load_digits()
        x = torch.from_numpy(raw.images.astype("uint8"))[:, None]
        return Dataset("digits", x, torch.from_numpy(raw.target.astype("int64")), 10, Scale(divisor=16.0))
