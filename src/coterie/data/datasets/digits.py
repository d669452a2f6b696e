"""scikit-learn's 1,797 handwritten 8x8 digits: real data that needs no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core.settings import STRICT, dataclass
from coterie.data.dataset import Dataset
from coterie.data.readers.checks import reading
from coterie.data.scale import Scale


@dataclass(frozen=True, config=STRICT)
class Digits:
    """1,797 real handwritten digits of 8x8 pixels, embedded: nothing to download."""

    paper: ClassVar[str] = "Alpaydin and Kaynak 1998, UCI Optical Recognition of Handwritten Digits"

    def __call__(self) -> Dataset:
        """Load them, as bytes 0..16."""
        with reading("scikit-learn's digits"):
            table = torch.from_numpy(_table())
        x = table[:, :-1].to(torch.uint8).reshape(-1, 1, 8, 8)
        return Dataset("digits", x, table[:, -1].clone(), 10, Scale(divisor=16.0))


def _table() -> NDArray[np.int64]:
    """64 pixels and the label of each image. From the file itself where it is found: scikit-learn is slow to load."""
    spec = find_spec("sklearn")
    places = [] if spec is None else spec.submodule_search_locations or []
    file = next((f for p in places if (f := Path(p) / "datasets" / "data" / "digits.csv.gz").is_file()), None)
    if file is not None:
        return np.loadtxt(file, delimiter=",", dtype=np.int64)
    from sklearn.datasets import load_digits

    raw = load_digits()
    return np.column_stack([raw.data, raw.target]).astype(np.int64)
