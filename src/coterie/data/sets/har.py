"""UCI HAR: what people do, from the accelerometer and gyroscope of a telephone."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core.errors import CoterieError
from coterie.core.files import user_path
from coterie.core.settings import STRICT, dataclass
from coterie.data.dataset import Dataset
from coterie.data.download import DatasetSpec, opened, unpack
from coterie.data.scale import Scale
from coterie.data.sets.facts import HAR, har_names
from coterie.data.sets.facts import HAR_ACTIVITIES as ACTIVITIES
from coterie.data.sets.facts import HAR_CHANNELS as CHANNELS
from coterie.data.sets.facts import HAR_FOLDER as FOLDER
from coterie.data.sets.facts import HAR_KEPT as KEPT
from coterie.data.sets.facts import HAR_LENGTH as LENGTH
from coterie.data.sets.facts import HAR_MEMBERS as MEMBERS
from coterie.data.sets.facts import HAR_WINDOWS as WINDOWS
from coterie.data.sets.images import read_npz
from coterie.data.table import reading


def _rows(path: Path, kind: type[np.generic], width: int, rows: int | None = None) -> NDArray[Any]:
    """The numbers of a text file, (rows, width)."""
    # Splitting and converting at once is ten times as fast as numpy.loadtxt.
    try:
        numbers = np.array(path.read_bytes().split(), dtype=kind)
    except ValueError as error:
        raise CoterieError(
            f"{path.name} has something that is not a number ({error})", code="data-file-damaged"
        ) from None
    except OSError as error:
        raise CoterieError(f"{path} cannot be read: {error.strerror}", code="data-file-damaged") from None
    if rows is not None and len(numbers) != rows * width:
        raise CoterieError(
            f"{path.name} has {len(numbers):,} numbers; {rows:,} windows need {rows * width:,}",
            code="data-file-damaged",
        )
    return numbers.reshape(-1, width)


def parse(directory: Path) -> dict[str, NDArray[Any]]:
    """The text files of the official layout as arrays: x (n, 9, 128), y 0..5, subject 1..30, is_test."""
    parts = []
    for test, part in enumerate(WINDOWS):
        *signals, label, subject = (directory / name for name in har_names(part))
        y = _rows(label, np.int64, 1)
        x = np.stack([_rows(path, np.float32, LENGTH, len(y)) for path in signals], axis=1)
        person = _rows(subject, np.int64, 1, len(y))
        parts.append({"x": x, "y": y[:, 0] - 1, "subject": person[:, 0], "is_test": np.full(len(y), test, np.uint8)})
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def keep(raw: Path, into: Path) -> None:
    """The official text as one npz; no checksum is published, so it is its contents that must be right."""
    arrays = parse(raw)
    for test, (part, windows) in enumerate(WINDOWS.items()):
        found = int((arrays["is_test"] == test).sum())
        if found != windows:
            raise CoterieError(f"the {part} part has {found:,} windows, not {windows:,}", code="data-file-damaged")
    np.savez(into / KEPT, x=arrays["x"], y=arrays["y"], subject=arrays["subject"], is_test=arrays["is_test"])


@dataclass(frozen=True, config=STRICT)
class UCIHAR:
    """10,299 windows of telephone sensors, 9 channels x 128, six activities of 30 people: each person is a client."""

    # The official zip, its directory unpacked, or an npz with x, y (0..5) and subject (what else is in it is not read).
    path: str | None = None

    paper: ClassVar[str] = "Anguita, Ghio, Oneto, Parra and Reyes-Ortiz 2013, ESANN"
    owned: ClassVar[bool] = True  # its samples say whose they are
    spec: ClassVar[DatasetSpec] = HAR

    def __call__(self) -> Dataset:
        """Load it, fetching it first if it is not in the cache."""
        if self.path is None:
            with opened(self.spec) as files:
                return _dataset(files[KEPT])
        place = user_path(self.path)
        try:
            return _dataset(place)
        except (CoterieError, OSError) as error:
            raise CoterieError(
                f"data.path: {place}: {error}; give the official zip, the directory '{FOLDER}' of it, "
                "or an npz with x (n, 9, 128), y and subject",
                code=getattr(error, "code", "data-file-damaged"),
            ) from None


def _dataset(place: Path) -> Dataset:
    with reading(place.name):
        return _checked(_load(place))


def _checked(arrays: Mapping[str, NDArray[Any]]) -> Dataset:
    x, y, subject = arrays["x"], arrays["y"], arrays["subject"]
    if x.shape != (len(y), len(CHANNELS), LENGTH) or x.dtype not in (np.float16, np.float32):
        raise CoterieError(
            f"x is {x.dtype} {x.shape}, not float16 or float32 of ({len(y)}, 9, {LENGTH})", code="data-file-format"
        )
    if y.shape != (len(x),) or subject.shape != (len(x),):
        raise CoterieError(
            f"x has {len(x):,} windows, y is {y.shape} and subject {subject.shape}", code="data-file-format"
        )
    if not np.issubdtype(y.dtype, np.integer) or not np.issubdtype(subject.dtype, np.integer):
        raise CoterieError(
            f"y is {y.dtype} and subject {subject.dtype}; both are whole numbers", code="data-file-format"
        )
    if not np.isfinite(x).all():
        raise CoterieError("x has NaN or Inf in it", code="data-not-finite")
    labels = y.astype(np.int64)
    if len(labels) and (labels.min() < 0 or labels.max() >= ACTIVITIES):
        raise CoterieError(f"y has labels outside 0..{ACTIVITIES - 1}", code="data-labels")
    # Channel by channel, in double precision: the whole table would take 100 MB.
    mean = [float(x[:, c].mean(dtype=np.float64)) for c in range(len(CHANNELS))]
    std = [float(x[:, c].std(dtype=np.float64)) or 1.0 for c in range(len(CHANNELS))]
    people, client = np.unique(subject.astype(np.int64), return_inverse=True)
    return Dataset(
        "uci-har",
        torch.from_numpy(x),
        torch.from_numpy(labels),
        ACTIVITIES,
        Scale(1.0, torch.tensor(mean)[:, None], torch.tensor(std)[:, None]),
        # The official split is by person: somebody is wholly in the training set or wholly in the test set. That
        # tests strangers, and would leave every client here either nothing to learn from or nothing to be tested on.
        official=None,
        client=client.astype(np.int64),
        client_names=tuple(str(person) for person in people),
    )


def _load(place: Path) -> dict[str, NDArray[Any]]:
    if place.is_dir():
        if (place / KEPT).is_file():
            return read_npz(place / KEPT, ("x", "y", "subject"))
        return parse(place / FOLDER if (place / FOLDER).is_dir() else place)
    if not place.exists():
        raise CoterieError("there is no such file or directory", code="data-file-missing")
    if place.suffix.lower() != ".zip":
        return read_npz(place, ("x", "y", "subject"))
    with tempfile.TemporaryDirectory(prefix="coterie-") as aside:
        unpack(place, MEMBERS, Path(aside))
        return parse(Path(aside))
