"""A user's own folder of images as a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass as plain
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.files import user_path
from coterie.core.settings import STRICT, dataclass
from coterie.data.dataset import Dataset
from coterie.data.scale import Scale
from coterie.data.table import IS_TEST, LARGEST, Cells, class_names, outcome, owners, reading

Bytes: TypeAlias = NDArray[np.uint8]
ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
PLAUSIBLE = 200  # bytes of pixels for each byte of image files: more, and they hold nothing, or claim what they do not
SMALL = 1 << 26  # bytes of pixels of one image that are never too many
SPLITS = frozenset({"train", "val", "validation", "test"})


def pixels(image: Any, where: str, colour: Literal["grey", "rgb"] | None = None) -> Bytes:
    """A PIL image as bytes (channels, height, width); colour None: grey if it is stored so, otherwise rgb."""
    if image.mode[0] in "IF":  # PIL would cut everything above 255 off
        raise CoterieError(
            f"data: {where} has more than 8 bits per pixel (mode {image.mode}); convert it to 8 bits",
            code="data-file-format",
        )
    grey = image.mode in ("1", "L", "LA", "La") if colour is None else colour == "grey"
    if "transparency" in image.info:
        image = image.convert("RGBA")  # a palette with transparency has no other way to colours
    array = np.array(image.convert("L" if grey else "RGB"))
    return array[None] if grey else np.ascontiguousarray(array.transpose(2, 0, 1))


@plain(frozen=True)
class StoredImage:
    """One image file and what its place in the folder says of it."""

    file: Path
    test: bool
    client: str | None
    label: str
    val: bool = False


@dataclass(frozen=True, config=STRICT)
class ImageFolder:
    """Your own images, one directory per class; or per client, with one per class inside (layout: client/class).

    If the folder has just `train` and `test` (and `val`, trained on unless the run validates) in it, these are the
    official split and the rest is inside them. Hidden files and files that are no images are passed over; of a file
    with several images the first counts.
    """

    paper: ClassVar[str] = ""
    owned: ClassVar[bool] = True  # its samples may say whose they are

    path: str
    layout: Literal["class", "client/class"] = "class"
    size: tuple[PositiveInt, PositiveInt] | None = None  # height and width; None: all images have one size
    colour: Literal["grey", "rgb"] = "rgb"

    def __call__(self) -> Dataset:
        """Read all images, in the order of their paths."""
        root = user_path(self.path)
        with reading(root):
            return self._dataset(root)

    def _dataset(self, root: Path) -> Dataset:
        if not root.is_dir():
            what = "is a file" if root.is_file() else "does not exist"
            raise CoterieError(
                f"data.path: {self.path} {what}; give a directory, seen from {Path.cwd()}", code="data-file-missing"
            )
        pictures = self._pictures(root)
        if not pictures:
            endings = " ".join(sorted(ENDINGS))
            raise CoterieError(
                f"data.path: {self.path} has no images ({endings}) in {self.layout} directories", code="data-empty"
            )
        labels = Cells([picture.label for picture in pictures], self.path)
        y, classes = outcome(labels)
        client, names = None, None
        if self.layout == "client/class":
            client, names = owners(Cells([picture.client for picture in pictures], self.path))
        test = np.array([picture.test for picture in pictures])
        if test.all():
            raise CoterieError(
                f"data.path: {self.path} has images in test only; none is left to train on", code="data-split"
            )
        x = torch.from_numpy(self._pixels(pictures))
        return Dataset(
            *(root.resolve().name, x, y, classes, Scale(255.0), test if test.any() else None, client, names),
            class_names=class_names(labels),
            validation=np.array([picture.val for picture in pictures]) if any(p.val for p in pictures) else None,
        )

    def _pictures(self, root: Path) -> list[StoredImage]:
        tops = _directories(root)
        lowered = {top.name.lower() for top in tops}
        splits = len(lowered) > 1 and "train" in lowered and lowered <= SPLITS
        found: list[StoredImage] = []
        seen: dict[str, set[str]] = {"client": set(), "class": set()}
        for top in tops if splits else [root]:
            test = splits and IS_TEST[top.name.lower()]
            val = splits and top.name.lower() in ("val", "validation")
            for owner in _directories(top) if self.layout == "client/class" else [top]:
                client = owner.name if self.layout == "client/class" else None
                seen["client"] |= {client} if client is not None else set()
                for place in _directories(owner):
                    seen["class"].add(place.name)
                    found += [StoredImage(file, test, client, place.name, val) for file in self._images(place)]
        used: dict[str, set[str | None]] = {"client": {p.client for p in found}, "class": {p.label for p in found}}
        for what, names in seen.items():
            bare = sorted(name for name in names if name not in used[what])
            if bare and found:  # an empty directory here is fine if there are images of that class elsewhere
                raise CoterieError(
                    f"data.path: {self.path}: no images of {what} '{bare[0]}'; add some, or remove it",
                    code="data-image-folder",
                )
        return found

    def _images(self, place: Path) -> Iterator[Path]:
        for below in _visible(place):
            if below.is_dir():
                other = ", or write layout: client/class" if self.layout == "class" else ""
                raise CoterieError(
                    f"data.path: {place} is taken for a class, but has the directory {below.name} in it; "
                    f"move the images up{other}",
                    code="data-image-folder",
                )
            if below.suffix.lower() in ENDINGS:
                yield below

    def _pixels(self, pictures: list[StoredImage]) -> Bytes:
        first = self._image(pictures[0].file)
        size, stored = len(pictures) * first.nbytes, sum(picture.file.stat().st_size for picture in pictures)
        if size > max(LARGEST, PLAUSIBLE * stored):
            raise CoterieError(
                f"data.path: {self.path}: {len(pictures):,} images would take {size:,} bytes of memory, their files "
                f"have {stored:,}; give the size to bring them to, such as size: [64, 64]",
                code="data-file-too-large",
            )
        x = np.empty((len(pictures), *first.shape), dtype=np.uint8)
        for i, picture in enumerate(pictures):
            image = self._image(picture.file)
            if image.shape != first.shape:
                (h, w), (height, width) = image.shape[1:], first.shape[1:]
                raise CoterieError(
                    f"data.size: {picture.file} is {h} x {w} (height x width), {pictures[0].file} is "
                    f"{height} x {width}; give the size to bring all images to, such as size: [{height}, {width}]",
                    code="data-shape",
                )
            x[i] = image
        return x

    def _image(self, file: Path) -> Bytes:
        try:
            with Image.open(file) as opened:
                _check_claim(file, opened.size)
                image = pixels(opened, str(file), self.colour)
        except CoterieError:
            raise
        except Exception as error:  # of a damaged file Pillow's readers may raise anything
            raise CoterieError(
                f"data.path: {file} cannot be read as an image ({error}); mend or remove it", code="data-file-damaged"
            ) from None
        if self.size is None or image.shape[1:] == self.size:
            return image
        height, width = self.size
        shown = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
        return pixels(shown.resize((width, height), Image.Resampling.BILINEAR), str(file), self.colour)


def _check_claim(file: Path, size: tuple[int, int]) -> None:
    """Refuse an image whose header claims far more than its file can hold, before its pixels are allocated."""
    width, height = size
    stored = file.stat().st_size
    if 3 * width * height > max(SMALL, PLAUSIBLE * stored):
        raise CoterieError(
            f"data.path: {file} claims {width:,} x {height:,} pixels in {stored:,} bytes; mend or remove it",
            code="data-file-too-large",
        )


def _visible(place: Path) -> list[Path]:
    """What is in a directory, by name, hidden files left out."""
    return sorted((below for below in place.iterdir() if not below.name.startswith(".")), key=lambda below: below.name)


def _directories(place: Path) -> list[Path]:
    """The directories in a directory; an image beside them would belong to no class."""
    for below in _visible(place):
        if below.suffix.lower() in ENDINGS and below.is_file():
            raise CoterieError(
                f"data.path: {below} is in no class; expected directories in {place}, see data.layout "
                "(class, or client/class)",
                code="data-image-folder",
            )
    return [below for below in _visible(place) if below.is_dir()]
