"""Folders of images: exact pixels, the split and the clients by place, and every way a folder can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import raises
from coterie.data.images import ImageFolder

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write an image of one colour, 2 high and 3 wide, somewhere in the folder."""

    def write(place: str, colour: Any = (1, 2, 3), mode: str = "RGB", size: tuple[int, int] = (3, 2)) -> Path:
        file = tmp_path / "bilder ü" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, colour).save(file)
        return file

    return write


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "bilder ü").mkdir()
    return str(tmp_path / "bilder ü")


def test_classes_in_sorted_order_and_exact_pixels(put: Put, root: str) -> None:
    file = put("zebra/b.png")
    pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    Image.fromarray(pixels).save(file)
    put("zebra/a.BMP", (9, 9, 9))
    put("äffchen/1.png", (7, 8, 9))
    (Path(root) / "zebra" / "notes.txt").write_text("not an image")
    (Path(root) / "zebra" / ".hidden.png").write_text("not an image")
    (Path(root) / ".cache").mkdir()
    data = ImageFolder(root)()
    assert (data.name, data.classes, data.y.tolist()) == ("bilder ü", 2, [0, 0, 1])
    assert (data.x.dtype, tuple(data.x.shape)) == (torch.uint8, (3, 3, 2, 3))
    assert data.x[0].unique().tolist() == [9]
    assert np.array_equal(data.x[1].numpy(), pixels.transpose(2, 0, 1))
    assert data.x[2, :, 0, 0].tolist() == [7, 8, 9]
    assert data.scale is not None
    assert torch.equal(data.scale(data.x), data.x / 255)
    assert data.official is None
    assert data.client is None


def test_grey(put: Put, root: str) -> None:
    put("a/1.png", 77, "L")
    data = ImageFolder(root, colour="grey")()
    assert tuple(data.x.shape) == (1, 1, 2, 3)
    assert data.x.unique().tolist() == [77]
    assert tuple(ImageFolder(root)().x.shape) == (1, 3, 2, 3)


@pytest.mark.parametrize(
    ("name", "mode", "colour"),
    [("a.gif", "P", 5), ("a.webp", "RGB", (0, 0, 0)), ("a.tiff", "CMYK", (0, 0, 0, 0)), ("a.JPG", "L", 40)]
    + [("a.png", mode, colour) for mode, colour in (("RGBA", (1, 2, 3, 0)), ("LA", (4, 255)), ("1", 1))],
)
def test_kinds_of_images(put: Put, root: str, name: str, mode: str, colour: Any) -> None:
    put(f"a/{name}", colour, mode)
    assert tuple(ImageFolder(root)().x.shape) == (1, 3, 2, 3)


def test_a_palette_with_transparency(root: str) -> None:
    (Path(root) / "a").mkdir()
    image = Image.new("P", (3, 2), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(Path(root) / "a" / "p.png", transparency=bytes([0, 128]))
    assert ImageFolder(root)().x[0, :, 0, 0].tolist() == [10, 20, 30]


def test_official_split_by_the_top_level(put: Put, root: str) -> None:
    for place in ("train/a/1.png", "train/b/1.png", "test/b/1.png", "val/a/1.png"):
        put(place)
    data = ImageFolder(root)()
    assert data.official is not None
    assert data.classes == 2
    # In the order of the paths: test/b, train/a, train/b, val/a.
    assert (data.y.tolist(), data.official.tolist()) == ([1, 0, 1, 0], [True, False, False, False])
    put("other/1.png")
    with raises("data-image-folder"):
        ImageFolder(root)()


def test_a_class_may_be_called_test(put: Put, root: str) -> None:
    put("test/1.png")
    put("rest/1.png")
    data = ImageFolder(root)()
    assert (data.classes, data.official) == (2, None)


def test_clients(put: Put, root: str) -> None:
    for place in ("10/cat/1.png", "9/dog/1.png", "9/cat/2.png"):
        put(place)
    (Path(root) / "10" / "dog").mkdir()  # the client has none of it, others do
    data = ImageFolder(root, layout="client/class")()
    assert data.client is not None
    assert data.client_names == ("9", "10")
    assert (data.client.tolist(), data.y.tolist()) == ([1, 0, 0], [0, 0, 1])


def test_clients_in_a_split(put: Put, root: str) -> None:
    for place in ("train/zoë/cat/1.png", "train/al/dog/1.png", "test/zoë/dog/1.png"):
        put(place)
    data = ImageFolder(root, layout="client/class")()
    assert data.client is not None
    assert data.official is not None
    assert data.client_names == ("al", "zoë")
    assert (data.client.tolist(), data.official.tolist()) == ([1, 0, 1], [True, False, False])


def test_sizes_are_brought_together_only_if_asked(put: Put, root: str) -> None:
    put("a/1.png")
    put("a/2.png", (200, 100, 50), size=(8, 4))
    with raises("data-shape", match=r"data.size: .*2.png is 4 x 8 .*1.png is 2 x 3; give .*\[2, 3\]"):
        ImageFolder(root)()
    data = ImageFolder(root, size=(5, 7))()
    assert tuple(data.x.shape) == (2, 3, 5, 7)
    assert data.x[1, :, 4, 6].tolist() == [200, 100, 50]
    assert tuple(ImageFolder(root, size=(5, 7), colour="grey")().x.shape) == (2, 1, 5, 7)
    with raises("argument-invalid"):
        ImageFolder(root, size=(0, 7))


def test_refused(put: Put, root: str, tmp_path: Path) -> None:
    with raises("data-file-missing"):
        ImageFolder(str(tmp_path / "nowhere"))()
    with raises("data-empty", match=r"has no images \(.*\.png.*\) in class directories"):
        ImageFolder(root)()
    file = put("a/1.png")
    with raises("data-file-missing"):
        ImageFolder(str(file))()
    with raises("data-image-folder"):
        ImageFolder(root, layout="client/class")()
    (Path(root) / "empty").mkdir()
    with raises("data-image-folder", match=r"no images of class 'empty'; add some, or remove it"):
        ImageFolder(root)()
    (Path(root) / "empty").rmdir()
    put("a/deeper/1.png")
    with raises("data-image-folder", match=r"the directory deeper .*layout: client/class"):
        ImageFolder(root)()


def test_a_client_without_images_is_refused(put: Put, root: str) -> None:
    put("al/cat/1.png")
    (Path(root) / "bo").mkdir()
    with raises("data-image-folder", match=r"no images of client 'bo'"):
        ImageFolder(root, layout="client/class")()


def test_nothing_to_train_on_is_refused(put: Put, root: str) -> None:
    put("test/a/1.png")
    (Path(root) / "train").mkdir()
    with raises("data-split", match=r"images in test only"):
        ImageFolder(root)()


def test_an_image_outside_all_classes_is_refused(put: Put, root: str) -> None:
    put("a/1.png")
    put("stray.png")
    with raises("data-image-folder"):
        ImageFolder(root)()


def test_broken_images_are_named(put: Put, root: str) -> None:
    file = put("a/1.png", size=(300, 200))
    whole = file.read_bytes()
    for content in (b"", b"no image", whole[: len(whole) // 2]):
        file.write_bytes(content)
        with raises("data-file-damaged", match=r"1.png cannot be read as an image .*; mend or remove it"):
            ImageFolder(root)()
    Image.fromarray(np.array([[1000]], dtype=np.uint16)).save(file)
    with raises("data-file-format", match=r"1.png has more than 8 bits per pixel"):
        ImageFolder(root)()
