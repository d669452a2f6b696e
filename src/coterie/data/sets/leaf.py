"""FEMNIST and Sentiment140 as LEAF makes them: json files of users, each with samples of its own."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.files import user_path
from coterie.core.settings import STRICT, dataclass
from coterie.data.dataset import Dataset
from coterie.data.download import DatasetSpec, get
from coterie.data.sets.facts import FEMNIST_FILES, SENT140
from coterie.data.table import reading
from coterie.data.transforms import Normalise, image_scale

LOST = 0.02  # of a grey level: more is no rounding
PADDING, UNKNOWN = 0, 1
LABELS = {0: 0, 1: 1, 4: 1, "0": 0, "1": 1, "4": 1}  # Sentiment140 itself calls positive 4
WORD = re.compile(r"[\w']+")


@plain_dataclass(frozen=True)
class User:
    """Some samples of one user, as they stand in a file."""

    name: str
    test: bool
    x: Sequence[Any]
    y: Sequence[Any]
    place: str  # for a message


@plain_dataclass
class Owners:
    """Whose each sample is, and whether it is held out, gathered while reading."""

    names: dict[str, int]  # in order of first appearance
    client: list[NDArray[np.int64]]
    test: list[NDArray[np.bool_]]

    def add(self, user: User) -> None:
        """The samples of this user come next."""
        number = self.names.setdefault(user.name, len(self.names))
        self.client.append(np.full(len(user.y), number, np.int64))
        self.test.append(np.full(len(user.y), user.test))

    def clients(self) -> NDArray[np.int64]:
        """(n,)"""
        return np.concatenate(self.client)

    def official(self) -> NDArray[np.bool_] | None:
        """(n,) the test set, unless some user is in it and has nothing to train on: then it was split by user."""
        test = np.concatenate(self.test)
        client = self.clients()
        return test if test.any() and np.isin(client[test], client[~test]).all() else None


def users(spec: DatasetSpec, path: str | None) -> Iterator[User]:
    """The users of all files, training part first, one file in memory at a time; a user may come more than once."""
    place = get(spec) if path is None else user_path(path)
    if (place / "data").is_dir():
        place = place / "data"
    parts = [place / "train", place / "test"]
    if not all(part.is_dir() for part in parts):
        parts = [place / "all_data"]
    files = [sorted(part.glob("*.json")) for part in parts]
    if not all(files):
        raise CoterieError(
            f"{'data.path' if path else spec.name}: {place} has no train/*.json and test/*.json, and no "
            f"all_data/*.json; {spec.instructions}",
            code="data-file-missing",
        )
    for part, found in zip(parts, files, strict=True):
        for file in found:
            with reading(file):
                known = list(_read(file, part.name == "test"))
            yield from known


def _read(file: Path, test: bool) -> Iterator[User]:
    try:
        with file.open("rb") as stream:
            table = json.load(stream)
    except (OSError, ValueError, RecursionError) as error:  # json's and unicode's errors are ValueErrors
        raise CoterieError(
            f"{file} is not json, or was cut short ({error}); make it again with LEAF", code="data-file-damaged"
        ) from None
    try:
        named = [(str(name), table["user_data"][name], int(n)) for name, n in _pairs(table)]
        found = [(name, data["x"], data["y"], n) for name, data, n in named]
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # int(Infinity) overflows
        said = f"{type(error).__name__}: {error}"
        raise CoterieError(
            f"{file} is not in LEAF's format: users, num_samples, user_data with x, y ({said})", code="data-file-format"
        ) from None
    for name, x, y, n in found:
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == n:
            raise CoterieError(
                f"{file}: user '{name}' should have {n} samples; x and y do not", code="data-file-damaged"
            )
        if n:
            yield User(name, test, x, y, f"{file}: user '{name}'")


def _pairs(table: Any) -> Iterator[tuple[str, int]]:
    return zip(table["users"], table["num_samples"], strict=True)


@dataclass(frozen=True, config=STRICT)
class FEMNIST:
    """Handwritten digits and letters by writer (LEAF), grey 28x28, 62 classes: each writer is a client."""

    normalise: Normalise = "unit"  # unit: 0..1; symmetric: -1..1; standard: by channel; pixel: by pixel (FedProx)
    path: str | None = None  # LEAF's data directory, with train/ and test/, or all_data/

    paper: ClassVar[str] = "Caldas et al. 2018, LEAF, arXiv:1812.01097"
    owned: ClassVar[bool] = True  # its samples say whose they are
    spec: ClassVar[DatasetSpec] = FEMNIST_FILES

    def __call__(self) -> Dataset:
        """Load LEAF's files."""
        owners = Owners({}, [], [])
        images, labels = [], []
        for user in users(self.spec, self.path):
            images.append(_pixels(user))
            labels.append(_classes(user, self.spec.classes))
            owners.add(user)
        if not images:
            raise CoterieError("femnist: the files have no samples; make them again with LEAF", code="data-empty")
        x, official = torch.from_numpy(np.concatenate(images)), owners.official()
        scale = image_scale(x, self.normalise, None if official is None else ~official)
        y = torch.from_numpy(np.concatenate(labels))
        return Dataset("femnist", x, y, self.spec.classes, scale, official, owners.clients(), tuple(owners.names))


def _pixels(user: User) -> NDArray[np.uint8]:
    """LEAF divides bytes by 255; this undoes it."""
    try:
        grey = np.asarray(user.x, np.float64) * 255
    except (TypeError, ValueError, OverflowError):
        grey = np.empty(0)
    if grey.shape != (len(user.y), 784):
        raise CoterieError(f"{user.place} has images that are not 784 numbers each", code="data-file-format")
    if not np.isfinite(grey).all():
        raise CoterieError(
            f"{user.place} has pixels that are NaN or infinity, not a byte divided by 255", code="data-not-finite"
        )
    whole = grey.round()
    if not (np.abs(grey - whole) <= LOST).all() or whole.min() < 0 or whole.max() > 255:
        raise CoterieError(
            f"{user.place} has pixels that are not a byte divided by 255; give LEAF's own files",
            code="data-file-format",
        )
    return whole.astype(np.uint8).reshape(-1, 1, 28, 28)


def _classes(user: User, classes: int) -> NDArray[np.int64]:
    try:
        y = np.asarray(user.y)
    except ValueError:  # lists of several lengths
        y = np.empty(0)
    if y.shape != (len(user.y),) or not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= classes:
        raise CoterieError(f"{user.place} has labels that are not whole numbers 0..{classes - 1}", code="data-labels")
    return y.astype(np.int64)


@dataclass(frozen=True, config=STRICT)
class Sent140:
    """Tweets with the mood of their author (LEAF), as word numbers, 2 classes: each author is a client."""

    words: PositiveInt = 25  # per tweet: longer ones are cut, shorter ones padded with 0
    vocabulary: Annotated[int, Field(ge=3)] = 10_000  # word numbers 0..vocabulary-1, with 0 padding and 1 unknown
    least: PositiveInt = 1  # tweets an author must have (FedGroup: 30)
    path: str | None = None  # LEAF's data directory, with train/ and test/, or all_data/

    paper: ClassVar[str] = "Go, Bhayani and Huang 2009; Caldas et al. 2018, LEAF, arXiv:1812.01097"
    owned: ClassVar[bool] = True  # its samples say whose they are
    spec: ClassVar[DatasetSpec] = SENT140

    def __call__(self) -> Dataset:
        """Load LEAF's files and number the most frequent words of the training part."""
        read = [(user.name, user.test, *_tweets(user)) for user in users(self.spec, self.path)]
        count = Counter[str]()
        for name, _, texts, _ in read:
            count[name] += len(texts)
        owners = Owners({}, [], [])
        known = Counter[str]()
        tweets: list[list[str]] = []
        labels: list[int] = []
        for name, test, texts, moods in read:
            if count[name] < self.least:
                continue
            split = [WORD.findall(text.lower()) for text in texts]
            if not test:
                known.update(word for tweet in split for word in tweet)
            tweets += [tweet[: self.words] for tweet in split]
            labels += moods
            owners.add(User(name, test, texts, moods, ""))
        if not tweets:
            raise CoterieError(f"sent140: no author has {self.least} tweets (data.least)", code="data-empty")
        ranked = sorted(known.items(), key=lambda item: (-item[1], item[0]))[: self.vocabulary - 2]
        number = {word: n for n, (word, _) in enumerate(ranked, start=UNKNOWN + 1)}
        x = np.full((len(tweets), self.words), PADDING, np.int64)
        for row, tweet in enumerate(tweets):
            x[row, : len(tweet)] = [number.get(word, UNKNOWN) for word in tweet]
        y = torch.tensor(labels, dtype=torch.int64)
        return Dataset(
            "sent140", torch.from_numpy(x), y, 2, None, owners.official(), owners.clients(), tuple(owners.names)
        )


def _tweets(user: User) -> tuple[list[str], list[int]]:
    """The texts (LEAF's fifth field, or a text alone) and the moods."""
    texts = []
    for x in user.x:
        text = x[4] if isinstance(x, list) and len(x) > 4 else x[0] if isinstance(x, list) and len(x) == 1 else x
        if not isinstance(text, str):
            raise CoterieError(
                f"{user.place} has a tweet that is neither a text nor LEAF's list of fields", code="data-file-format"
            )
        texts.append(text)
    for y in user.y:
        if isinstance(y, bool) or not isinstance(y, int | str) or y not in LABELS:
            raise CoterieError(
                f"{user.place} has the label {y!r}; it must be 0 (bad mood), 1 or 4 (good mood)", code="data-labels"
            )
    return texts, [LABELS[y] for y in user.y]
