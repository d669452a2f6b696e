"""MedMNIST's PathMNIST and TissueMNIST: medical images in npz files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, dataclass
from coterie.data.dataset import Dataset
from coterie.data.datasets.facts import MEDMNIST_PARTS
from coterie.data.download.cache import DatasetSpec, opened
from coterie.data.readers.checks import LARGEST, read_member, reading
from coterie.data.transforms import Normalise, image_scale


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
                    _checked(file, part, arrays[f"{part}_images"], arrays[f"{part}_labels"], self.which, spec.classes)
                    for part in parts
                ]
        x = torch.from_numpy(np.concatenate([images for images, _ in pairs]))
        y = torch.from_numpy(np.concatenate([labels for _, labels in pairs]))
        official = np.arange(len(y)) >= len(pairs[0][1])
        return Dataset(spec.name, x, y, spec.classes, image_scale(x, self.normalise, ~official), official)


def _checked(
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
