"""MedMNIST's PathMNIST and TissueMNIST: medical images in npz files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from coterie.data.dataset import Dataset
from coterie.data.download import Download, Remote
from coterie.data.fetch import About, File, opened
from coterie.data.normalise import Normalise, scale_of
from coterie.domains import STRICT
from coterie.errors import CoterieError


def read_npz(path: Path, keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """These arrays of an npz file, without ever unpickling anything."""
    try:
        # Opened here: numpy leaves the file open when it is no zip.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise CoterieError(f"{path.name} has no array '{missing[0]}', only {', '.join(archive.files)}")
            return {key: archive[key] for key in keys}
    except (ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # A bare .npy, which numpy opens as an array, ends here too: it is no context manager.
        raise CoterieError(f"{path.name} is not a sound npz file of plain arrays ({error})") from None


def _about(which: str, md5: str, classes: int, samples: int, size: int, shape: str, title: str) -> About:
    name = f"{which}mnist"
    url = f"https://zenodo.org/records/10519652/files/{name}.npz?download=1"
    return About(
        name=name,
        title=title,
        shape=shape,
        classes=classes,
        samples=samples,
        bytes=size,
        licence="CC BY 4.0",
        homepage="https://medmnist.com",
        files=(File(f"{name}.npz", md5),),
        sources=(Download((Remote(url, ((f"{name}.npz", f"{name}.npz"),)),)),),
    )


@dataclass(frozen=True, config=STRICT)
class MedMNIST:
    """PathMNIST (107,180 RGB colon tissue images, 9 classes) or TissueMNIST (236,386 grey kidney cells, 8), 28x28."""

    which: Literal["path", "tissue"] = "path"
    size: Literal[28] = 28
    test: Literal["test", "val+test"] = "val+test"  # CAM tests on both; "test" leaves the validation part out
    normalise: Normalise = "symmetric"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # the npz file, or a directory with it

    paper: ClassVar[str] = "Yang et al. 2023, MedMNIST v2, Scientific Data 10:41"
    variants: ClassVar[dict[str, About]] = {
        "path": _about(
            "path", "a8b06965200029087d5bd730944a56c1", 9, 107_180, 205_615_438, "3x28x28 bytes", "colon tissue"
        ),
        "tissue": _about(
            "tissue", "ebe78ee8b05294063de985d821c1c34b", 8, 236_386, 124_962_739, "1x28x28 bytes", "kidney cells"
        ),
    }
    about: ClassVar[About] = variants["path"]

    @property
    def wanted(self) -> About:
        """The files of this variant."""
        return self.variants[self.which]

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        about = self.wanted
        parts = ("train", "val", "test") if self.test == "val+test" else ("train", "test")
        keys = tuple(f"{part}_{kind}" for part in parts for kind in ("images", "labels"))
        with opened(about, self.path) as files:
            file = files[about.files[0].name]
            arrays = read_npz(file, keys)
            pairs = [
                _checked(file, part, arrays[f"{part}_images"], arrays[f"{part}_labels"], self.which, about.classes)
                for part in parts
            ]
        x = torch.from_numpy(np.concatenate([images for images, _ in pairs]))
        y = torch.from_numpy(np.concatenate([labels for _, labels in pairs]))
        official = np.arange(len(y)) >= len(pairs[0][1])
        return Dataset(about.name, x, y, about.classes, scale_of(x, self.normalise, ~official), official)


def _checked(
    file: Path, part: str, images: NDArray[Any], labels: NDArray[Any], which: str, classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images with channels first, and labels 0..classes-1."""
    shape = (28, 28, 3) if which == "path" else (28, 28)
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        raise CoterieError(f"{file.name}: {part}_images is {images.dtype} {images.shape}, not uint8 of (n, {shape})")
    if labels.size != len(images) or not np.issubdtype(labels.dtype, np.integer):
        raise CoterieError(
            f"{file.name}: {part}_labels is {labels.dtype} {labels.shape}; {len(images):,} whole numbers are needed"
        )
    y = labels.reshape(-1).astype(np.int64)
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise CoterieError(f"{file.name}: {part}_labels has labels outside 0..{classes - 1}")
    x = images.astype(np.uint8, copy=False)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if which == "path" else x[:, None], y
