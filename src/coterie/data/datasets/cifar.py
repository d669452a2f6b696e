"""CIFAR-10 and -100, in the authors' binary format: per image its label bytes, then the red, green and blue planes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, dataclass
from coterie.data.dataset import Dataset
from coterie.data.datasets.facts import CIFAR, CIFAR_100, CIFAR_BATCHES, CIFAR_FILES, CIFAR_PIXELS
from coterie.data.download.cache import DatasetSpec, opened
from coterie.data.transforms import Normalise, image_scale


def rebuild(raw: Path, into: Path) -> None:
    """The original batches from pictures in which every row of pixels is one image, and labels in json.

    A picture has 10 million pixels, well below Pillow's guard against decompression bombs.
    """
    try:
        train = json.loads((raw / "train_lables.json").read_text("utf-8"))
        labels = np.asarray([*train, *json.loads((raw / "test_lables.json").read_text("utf-8"))], np.uint8)
        for batch, name in enumerate(CIFAR_BATCHES):
            with Image.open(raw / f"{name}.png") as picture:
                pixels = np.asarray(picture.convert("RGB"))
            n = len(pixels)
            planes = pixels.reshape(n, 32 * 32, 3).transpose(0, 2, 1).reshape(n, -1)
            mine = labels[batch * n : (batch + 1) * n, None]
            np.concatenate([mine, planes], axis=1).tofile(into / f"{name}.bin")
    except (OSError, ValueError, TypeError, Image.DecompressionBombError) as error:
        raise CoterieError(f"the pictures are not those expected ({error})", code="data-file-damaged") from None


def _read(path: Path, *classes: int) -> NDArray[np.uint8]:
    """The records of a file: so many label bytes, each below its number of classes, and the pixels."""
    records, size = np.fromfile(path, np.uint8), len(classes) + CIFAR_PIXELS
    if len(records) % size:
        raise CoterieError(
            f"{path.name} is cut short: {len(records):,} bytes are no multiple of {size:,}", code="data-file-damaged"
        )
    records = records.reshape(-1, size)
    for place, many in enumerate(classes):
        if len(records) and records[:, place].max() >= many:
            raise CoterieError(f"{path.name} has labels outside 0..{many - 1}", code="data-labels")
    return records


def _dataset(name: str, batches: list[NDArray[np.uint8]], place: int, classes: int, normalise: Normalise) -> Dataset:
    """The last batch is the official test set; labels are the byte at this place."""
    records = np.concatenate(batches)
    x = torch.from_numpy(records[:, -CIFAR_PIXELS:].reshape(-1, 3, 32, 32).copy())
    y = torch.from_numpy(records[:, place].astype(np.int64))
    official = np.arange(len(y)) >= len(y) - len(batches[-1])
    return Dataset(name, x, y, classes, image_scale(x, normalise, ~official), official)


@dataclass(frozen=True, config=STRICT)
class CIFAR10:
    """60,000 photographs of ten kinds of animals and vehicles, RGB 32x32."""

    normalise: Normalise = "symmetric"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with the six .bin files or the archive, or the archive itself

    paper: ClassVar[str] = "Krizhevsky 2009, Learning multiple layers of features from tiny images"
    spec: ClassVar[DatasetSpec] = CIFAR

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        with opened(self.spec, self.path) as files:
            batches = [_read(files[name], 10) for name in CIFAR_FILES]
        return _dataset("cifar10", batches, 0, 10, self.normalise)


@dataclass(frozen=True, config=STRICT)
class CIFAR100:
    """60,000 photographs of a hundred kinds of things in 20 superclasses, RGB 32x32."""

    labels: Literal["fine", "coarse"] = "fine"  # the 100 classes, or the 20 superclasses
    normalise: Normalise = "symmetric"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with train.bin and test.bin or the archive, or the archive itself

    paper: ClassVar[str] = "Krizhevsky 2009, Learning multiple layers of features from tiny images"
    spec: ClassVar[DatasetSpec] = CIFAR_100

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        with opened(self.spec, self.path) as files:
            batches = [_read(files[file.name], 20, 100) for file in self.spec.files]
        fine = self.labels == "fine"
        return _dataset("cifar100", batches, int(fine), 100 if fine else 20, self.normalise)
