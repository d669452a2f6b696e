"""Images: MNIST and its relatives, CIFAR, MedMNIST, and scikit-learn's digits, which need no download."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, dataclass
from coterie.data.dataset import Dataset
from coterie.data.download import DatasetSpec, opened
from coterie.data.scale import Scale
from coterie.data.sets.facts import (
    CIFAR,
    CIFAR_100,
    CIFAR_BATCHES,
    CIFAR_FILES,
    CIFAR_PIXELS,
    EMNIST_SPLITS,
    FASHION_MNIST,
    MEDMNIST_PARTS,
    MNIST_FILES,
)
from coterie.data.table import LARGEST, read_member, reading
from coterie.data.transforms import Normalise, image_scale


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


def _read_pair(images: Path, labels: Path, first: int, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
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


def _of_pairs(
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
        parts = [
            _read_pair(images, labels, first, classes) for images, labels in ((train_x, train_y), (test_x, test_y))
        ]
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
        return _of_pairs("mnist", self.spec, self.path, self.normalise)


@dataclass(frozen=True, config=STRICT)
class FashionMNIST:
    """70,000 articles of clothing, grey 28x28."""

    normalise: Normalise = "symmetric"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with the four files, plain or .gz, instead of the cache

    paper: ClassVar[str] = "Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747"
    spec: ClassVar[DatasetSpec] = FASHION_MNIST

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        return _of_pairs("fashion-mnist", self.spec, self.path, self.normalise)


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
        return _of_pairs(
            spec.name, spec, self.path, self.normalise, classes=spec.classes, first=first, turn=self.upright
        )


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


def _read_batches(path: Path, *classes: int) -> NDArray[np.uint8]:
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


def _of_batches(name: str, batches: list[NDArray[np.uint8]], place: int, classes: int, normalise: Normalise) -> Dataset:
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
            batches = [_read_batches(files[name], 10) for name in CIFAR_FILES]
        return _of_batches("cifar10", batches, 0, 10, self.normalise)


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
            batches = [_read_batches(files[file.name], 20, 100) for file in self.spec.files]
        fine = self.labels == "fine"
        return _of_batches("cifar100", batches, int(fine), 100 if fine else 20, self.normalise)


class _LacksError(CoterieError):
    """A sound file without what is looked for in it."""

    code = "data-file-format"


def read_npz(path: Path, keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """These arrays of an npz file, without ever unpickling anything."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            missing = [key for key in keys if key not in names]
            if missing:
                raise _LacksError(f"{path.name} has no array '{missing[0]}', only {', '.join(names)}")
            return {key: read_member(path, archive, key, LARGEST) for key in keys}
    except _LacksError:
        raise
    except Exception as error:  # of a damaged file zip's and numpy's parsers may raise anything
        raise CoterieError(
            f"{path.name} is not a sound npz file of plain arrays ({error})", code="data-file-damaged"
        ) from None


@dataclass(frozen=True, config=STRICT)
class MedMNIST:
    """PathMNIST (107,180 RGB colon tissue images, 9 classes) or TissueMNIST (236,386 grey kidney cells, 8), 28x28."""

    which: Literal["path", "tissue"] = "path"
    size: Literal[28] = 28
    test: Literal["test", "val+test"] = "val+test"  # CAM tests on both; "test" leaves the validation part out
    normalise: Normalise = "symmetric"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # the npz file, or a directory with it

    paper: ClassVar[str] = "Yang et al. 2023, MedMNIST v2, Scientific Data 10:41"
    variants: ClassVar[Mapping[str, DatasetSpec]] = MEDMNIST_PARTS
    spec: ClassVar[DatasetSpec] = variants["path"]

    @property
    def needed_spec(self) -> DatasetSpec:
        """The files of this variant."""
        return self.variants[self.which]

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        spec = self.needed_spec
        parts = ("train", "val", "test") if self.test == "val+test" else ("train", "test")
        keys = tuple(f"{part}_{kind}" for part in parts for kind in ("images", "labels"))
        with opened(spec, self.path) as files:
            file = files[spec.files[0].name]
            with reading(file.name):
                arrays = read_npz(file, keys)
                pairs = [
                    _checked_arrays(
                        file, part, arrays[f"{part}_images"], arrays[f"{part}_labels"], self.which, spec.classes
                    )
                    for part in parts
                ]
        x = torch.from_numpy(np.concatenate([images for images, _ in pairs]))
        y = torch.from_numpy(np.concatenate([labels for _, labels in pairs]))
        official = np.arange(len(y)) >= len(pairs[0][1])
        return Dataset(spec.name, x, y, spec.classes, image_scale(x, self.normalise, ~official), official)


def _checked_arrays(
    file: Path, part: str, images: NDArray[Any], labels: NDArray[Any], which: str, classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images with channels first, and labels 0..classes-1."""
    shape = (28, 28, 3) if which == "path" else (28, 28)
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        raise CoterieError(
            f"{file.name}: {part}_images is {images.dtype} {images.shape}, not uint8 of (n, {shape})",
            code="data-file-format",
        )
    if labels.size != len(images) or not np.issubdtype(labels.dtype, np.integer):
        raise CoterieError(
            f"{file.name}: {part}_labels is {labels.dtype} {labels.shape}; {len(images):,} whole numbers are needed",
            code="data-file-format",
        )
    y = labels.reshape(-1).astype(np.int64)
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise CoterieError(f"{file.name}: {part}_labels has labels outside 0..{classes - 1}", code="data-labels")
    x = images.astype(np.uint8, copy=False)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if which == "path" else x[:, None], y
