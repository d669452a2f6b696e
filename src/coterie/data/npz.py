"""A user's own arrays from an npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, Kind, dataclass
from coterie.data.columns import Standardise
from coterie.data.dataset import Dataset
from coterie.data.table import (
    LARGEST,
    Cells,
    Channels,
    check_inflated,
    class_names,
    file_at,
    inputs,
    known_name,
    official,
    outcome,
    owners,
    read_member,
    reading,
    validation,
)


@dataclass(frozen=True, config=STRICT)
class NPZ:
    """Your own arrays from an npz file (numpy.savez): x, y and, if they are there, client and split.

    Arrays called `client` (the owner of each sample) and `split` (train, val, test; val is trained on unless the run
    validates) are used without being named. y: whole numbers or strings are labels; floats are targets of a
    regression even if all are whole, unless task says otherwise.
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
    largest: PositiveInt = LARGEST  # bytes that the file may inflate to, unless it is itself larger
    standardise: Standardise = "auto"  # x to mean 0, deviation 1 by training samples; auto: no images
    standardise_y: Standardise = "auto"  # the same for targets of a regression; metrics are in their units
    task: Kind | None = None  # None: whole numbers and names are classes, other numbers a regression

    def __call__(self) -> Dataset:
        """Read it; nothing in the file is executed."""
        file = file_at(self.path)
        with reading(file):
            return self._dataset(file)

    def _dataset(self, file: Path) -> Dataset:
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
                raise CoterieError(
                    f"data: {column.title} has {len(column.values)} samples, x has {len(x)}", code="data-shape"
                )
        y, classes = outcome(arrays["y"], self.task)
        client, names = owners(arrays["client"]) if "client" in arrays else (None, None)
        test = official(arrays["split"]) if "split" in arrays else None
        marked = validation(arrays["split"]) if "split" in arrays else None
        return Dataset(
            file.stem,
            x,
            y,
            classes,
            scale,
            test,
            client,
            names,
            class_names=class_names(arrays["y"]),
            validation=marked,
        ).with_usual_scales(self.standardise if self.divisor is None else self.standardise is True, self.standardise_y)

    def _arrays(self, file: Path) -> dict[str, Cells]:
        """The arrays by what they are for."""
        try:
            with zipfile.ZipFile(file) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
        except (zipfile.BadZipFile, OSError):
            raise CoterieError(
                f"data.path: {self.path} is not an npz file; numpy.savez(path, x=..., y=..., client=...) writes one",
                code="data-file-format",
            ) from None
        wanted = {key: getattr(self, key) or (key if key in names else None) for key in ("x", "y", "client", "split")}
        out = {}
        with zipfile.ZipFile(file) as archive:
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.infolist()}
            check_inflated(file, sum(sizes.get(name, 0) for name in wanted.values() if name is not None), self.largest)
            for key, name in wanted.items():
                if name is None:
                    continue
                title = f"{self.path}, array '{known_name(key, name, names, self.path)}'"
                try:
                    array = read_member(file, archive, str(name), self.largest)
                    array = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
                except Exception as error:  # of a damaged header numpy's parser may raise anything
                    if isinstance(error, CoterieError) and "data.largest" in str(error):
                        raise
                    raise CoterieError(
                        f"data: {title} cannot be read ({error}); store numbers or strings, not Python objects",
                        code="data-file-damaged",
                    ) from None
                out[key] = Cells(np.atleast_1d(array), title)
        return out
