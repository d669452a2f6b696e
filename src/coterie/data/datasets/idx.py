"""MNIST, Fashion-MNIST and EMNIST: images in the idx format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, dataclass
from coterie.data.dataset import Dataset
from coterie.data.datasets.facts import EMNIST_SPLITS, FASHION_MNIST, MNIST_FILES
from coterie.data.download.cache import DatasetSpec, opened
from coterie.data.readers.checks import reading
from coterie.data.transforms import Normalise, image_scale

UNSIGNED_BYTES = 0x08  # the format's code for the type of its numbers


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The bytes of an idx file with this many dimensions, and nothing else than what its header promises."""
    with reading(path.name):
        return _bytes_of(path, dimensions)


def _bytes_of(path: Path, dimensions: int) -> NDArray[np.uint8]:
    head = 4 + 4 * dimensions
    with path.open("rb") as stream:
        header = stream.read(head)
        if len(header) < head or header[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
            raise CoterieError(
                f"{path.name} is not an idx file of bytes with {dimensions} dimensions", code="data-file-format"
            )
        shape = tuple(int(n) for n in np.frombuffer(header[4:], ">u4"))
        size, there = int(np.prod(shape, dtype=object)), path.stat().st_size - head
        if size != there:
            raise CoterieError(
                f"{path.name} has {there:,} bytes of data, its header says {size:,}", code="data-file-damaged"
            )
        return np.fromfile(stream, np.uint8).reshape(shape)


def _read(images: Path, labels: Path, first: int, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    x, y = read_idx(images, 3), read_idx(labels, 1).astype(np.int64) - first
    if len(x) != len(y):
        raise CoterieError(
            f"{images.name} has {len(x):,} images, {labels.name} has {len(y):,} labels", code="data-file-damaged"
        )
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise CoterieError(f"{labels.name} has labels outside {first}..{classes - 1 + first}", code="data-labels")
    if x.shape[1:] != (28, 28):
        raise CoterieError(
            f"{images.name} has images of {x.shape[1]}x{x.shape[2]} pixels, not 28x28", code="data-file-format"
        )
    return x, y


def _dataset(
    name: str,
    spec: DatasetSpec,
    path: str | None,
    normalise: Normalise,
    *,
    classes: int = 10,
    first: int = 0,
    turn: bool = False,
) -> Dataset:
    """The official training set, then the official test set; labels start at `first` in the files."""
    with opened(spec, path) as files:
        train_x, train_y, test_x, test_y = (files[file.name] for file in spec.files)
        parts = [_read(images, labels, first, classes) for images, labels in ((train_x, train_y), (test_x, test_y))]
    x = torch.from_numpy(np.concatenate([images for images, _ in parts]))[:, None]
    if turn:
        x = x.transpose(-1, -2).contiguous()
    official = np.repeat([False, True], [len(y) for _, y in parts])
    y = torch.from_numpy(np.concatenate([y for _, y in parts]))
    return Dataset(name, x, y, classes, image_scale(x, normalise, ~official), official)


@dataclass(frozen=True, config=STRICT)
class MNIST:
    """70,000 handwritten digits, grey 28x28."""

    normalise: Normalise = "unit"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with the four files, plain or .gz, instead of the cache

    paper: ClassVar[str] = "LeCun, Bottou, Bengio and Haffner 1998, Proceedings of the IEEE 86(11)"
    spec: ClassVar[DatasetSpec] = MNIST_FILES

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        return _dataset("mnist", self.spec, self.path, self.normalise)


@dataclass(frozen=True, config=STRICT)
class FashionMNIST:
    """70,000 articles of clothing, grey 28x28."""

    normalise: Normalise = "symmetric"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with the four files, plain or .gz, instead of the cache

    paper: ClassVar[str] = "Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747"
    spec: ClassVar[DatasetSpec] = FASHION_MNIST

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        return _dataset("fashion-mnist", self.spec, self.path, self.normalise)


@dataclass(frozen=True, config=STRICT)
class EMNIST:
    """Handwritten letters (26 classes), or letters and digits by class (62), grey 28x28."""

    split: Literal["letters", "byclass"] = "letters"
    upright: bool = True  # the files hold every image transposed; False leaves them so, as torchvision does
    normalise: Normalise = "unit"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with the split's four files, plain or .gz, or gzip.zip itself

    paper: ClassVar[str] = "Cohen, Afshar, Tapson and van Schaik 2017, arXiv:1702.05373"
    variants: ClassVar[Mapping[str, DatasetSpec]] = EMNIST_SPLITS
    spec: ClassVar[DatasetSpec] = variants["letters"]

    @property
    def needed_spec(self) -> DatasetSpec:
        """The files of this variant."""
        return self.variants[self.split]

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        spec = self.needed_spec
        first = 1 if self.split == "letters" else 0
        return _dataset(
            spec.name, spec, self.path, self.normalise, classes=spec.classes, first=first, turn=self.upright
        )
