"""A user's own arrays from an npz file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from coterie.data.columns import Channels, Column, class_names, file_at, inputs, known_name, official, outcome, owners
from coterie.data.dataset import Dataset
from coterie.domains import STRICT
from coterie.errors import CoterieError


@dataclass(frozen=True, config=STRICT)
class NPZ:
    """Your own arrays from an npz file (numpy.savez): x, y and, if they are there, client and split.

    Arrays called `client` (the owner of each sample) and `split` (train/test; val counts as training) are used
    without being named. y: whole numbers or strings are labels; floats are targets of a regression even if all are
    whole: store integers for labels.
    x: bytes are divided by 255 unless `divisor` says otherwise; `words` are handed to the model as whole numbers.
    """

    paper: ClassVar[str] = ""
    owned: ClassVar[bool] = True  # its samples may say whose they are

    path: str
    x: str = "x"
    y: str = "y"
    client: str | None = None
    split: str | None = None
    divisor: PositiveFloat | None = None
    channels: Channels | None = None  # where the channels of images are; None: first, unless bytes look otherwise
    words: bool = False

    def __call__(self) -> Dataset:
        """Read it; nothing in the file is executed."""
        file = file_at(self.path)
        arrays = self._arrays(file)
        x, scale = inputs(
            np.asarray(arrays["x"].values),
            arrays["x"].title,
            divisor=self.divisor,
            words=self.words,
            channels=self.channels,
        )
        for column in arrays.values():
            if len(column.values) != len(x) or not len(x):
                raise CoterieError(f"data: {column.title} has {len(column.values)} samples, x has {len(x)}")
        y, classes = outcome(arrays["y"])
        client, names = owners(arrays["client"]) if "client" in arrays else (None, None)
        test = official(arrays["split"]) if "split" in arrays else None
        return Dataset(file.stem, x, y, classes, scale, test, client, names, class_names=class_names(arrays["y"]))

    def _arrays(self, file: Path) -> dict[str, Column]:
        """The arrays by what they are for."""
        try:
            with zipfile.ZipFile(file) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
        except (zipfile.BadZipFile, OSError):
            raise CoterieError(
                f"data.path: {self.path} is not an npz file; numpy.savez(path, x=..., y=..., client=...) writes one"
            ) from None
        wanted = {key: getattr(self, key) or (key if key in names else None) for key in ("x", "y", "client", "split")}
        out = {}
        with np.load(file, allow_pickle=False) as arrays:
            for key, name in wanted.items():
                if name is None:
                    continue
                title = f"{self.path}, array '{known_name(key, name, names, self.path)}'"
                try:
                    array = arrays[name]
                    array = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
                except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                    raise CoterieError(
                        f"data: {title} cannot be read ({error}); store numbers or strings, not Python objects"
                    ) from None
                out[key] = Column(np.atleast_1d(array), title)
        return out
