"""Loaders on tiny files in the exact format of the real ones, and on files with every fault we can think of."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.data.download import Download, RemoteFile
from coterie.data.sets import har
from coterie.data.sets.facts import CIFAR_BATCHES, CIFAR_FILES
from coterie.data.sets.facts import HAR_CHANNELS as CHANNELS
from coterie.data.sets.facts import IDX_PARTS as PARTS
from coterie.data.sets.har import UCIHAR
from coterie.data.sets.images import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST, MedMNIST, rebuild
from coterie.data.sets.leaf import FEMNIST, Sent140
from coterie.data.transforms import image_scale

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def unchecked(monkeypatch: pytest.MonkeyPatch, loader: Any) -> None:
    """Let files of any contents and size pass for this data set's."""
    files = tuple(RemoteFile(file.name) for file in loader.spec.files)
    monkeypatch.setattr(loader, "spec", replace(loader.spec, files=files))


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


IMAGES = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)


def write_idx(folder: Path, names: tuple[str, ...], labels: list[int], suffix: str = "") -> None:
    """Three training images and two test images, all different."""
    y = np.array(labels, np.uint8)
    folder.mkdir(exist_ok=True)
    for name, array in zip(names, (IMAGES[:3], y[:3], IMAGES[3:], y[3:]), strict=True):
        content = idx(array)
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)


class TestIdx:
    @pytest.mark.parametrize("loader", [MNIST, FashionMNIST])
    @pytest.mark.parametrize("suffix", ["", ".gz"])
    def test_training_set_then_test_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Any, suffix: str
    ) -> None:
        unchecked(monkeypatch, loader)
        write_idx(tmp_path / "d", PARTS, [3, 1, 4, 1, 9], suffix)
        data = loader(path=str(tmp_path / "d"))()
        assert data.x.dtype == torch.uint8
        assert np.array_equal(data.x[:, 0].numpy(), IMAGES)
        assert data.y.tolist() == [3, 1, 4, 1, 9]
        assert data.official is not None
        assert data.official.tolist() == [False] * 3 + [True] * 2
        assert (data.name, data.classes, data.client) == (loader.spec.name, 10, None)

    def test_cached_files(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        unchecked(monkeypatch, MNIST)
        cache.mkdir()
        write_idx(cache / "mnist", PARTS, [0] * 5)
        assert len(MNIST()().y) == 5
        write_idx(cache / "mnist", PARTS, [11] * 5)
        (cache / "mnist" / ".checked.json").unlink()
        with raises("data-file-damaged", match=r"mnist: train-labels.* outside 0..9; remove .* to have it fetched"):
            MNIST()()

    def test_published_checksums_hold_for_a_path_too(self, tmp_path: Path) -> None:
        write_idx(tmp_path, PARTS, [0] * 5)
        with raises("data-file-damaged", match=r"train-images-idx3-ubyte is cut short: .* not 47,040,016"):
            MNIST(path=str(tmp_path))()

    @pytest.mark.parametrize(
        ("part", "change", "said"),
        [
            (0, lambda b: b[:-1], "has 2,351 bytes of data, its header says 2,352"),
            (0, lambda b: b + b"x", "has 2,353 bytes of data"),
            (0, lambda b: b[:7], "is not an idx file"),
            (0, lambda b: b"\x1f\x8b" + b[2:], "is not an idx file of bytes with 3 dimensions"),
            (0, lambda b: idx(np.zeros((3, 8, 8), np.uint8)), "8x8 pixels, not 28x28"),
            (0, lambda b: bytes((0, 0, 8, 3)) + b"\xff" * 12, "its header says"),
            (1, lambda b: idx(np.array([1, 2, 10], np.uint8)), "labels outside 0..9"),
            (1, lambda b: idx(np.array([1, 2], np.uint8)), "has 2 labels"),
        ],
    )
    def test_faults(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        part: int,
        change: Callable[[bytes], bytes],
        said: str,
    ) -> None:
        unchecked(monkeypatch, MNIST)
        write_idx(tmp_path, PARTS, [0] * 5)
        file = tmp_path / PARTS[part]
        file.write_bytes(change(file.read_bytes()))
        with raises("data-file-damaged", match=f"data.path: .*{PARTS[part]}.*{said}.*leave data.path out"):
            MNIST(path=str(tmp_path))()

    def test_damaged_gz(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        unchecked(monkeypatch, MNIST)
        write_idx(tmp_path, PARTS, [0] * 5, ".gz")
        file = tmp_path / f"{PARTS[0]}.gz"
        file.write_bytes(file.read_bytes()[:-20])
        with raises("data-file-damaged", match=r"train-images-idx3-ubyte.gz cannot be unpacked"):
            MNIST(path=str(tmp_path))()

    def test_emnist_letters_from_one_upright(self, tmp_path: Path) -> None:
        names = tuple(file.name for file in EMNIST.variants["letters"].files)
        write_idx(tmp_path, names, [1, 26, 2, 3, 4])
        upright, lying = EMNIST(path=str(tmp_path))(), EMNIST(path=str(tmp_path), upright=False)()
        assert upright.y.tolist() == [0, 25, 1, 2, 3]
        assert (upright.name, upright.classes) == ("emnist-letters", 26)
        assert np.array_equal(lying.x[:, 0].numpy(), IMAGES)
        assert np.array_equal(upright.x[:, 0].numpy(), IMAGES.transpose(0, 2, 1))

    def test_emnist_letters_has_no_label_0(self, tmp_path: Path) -> None:
        write_idx(tmp_path, tuple(file.name for file in EMNIST.spec.files), [0, 1, 2, 3, 4])
        with raises("data-file-damaged", match=r"labels outside 1\.\.26"):
            EMNIST(path=str(tmp_path))()

    def test_emnist_byclass_takes_its_own_members_out_of_the_archive(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = EMNIST.variants["byclass"]
        names = tuple(file.name for file in spec.files)
        assert names[2] == "emnist-byclass-test-images-idx3-ubyte"
        write_idx(tmp_path / "d", names, [0, 61, 2, 3, 4], ".gz")
        with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
            for name in names:
                archive.write(tmp_path / "d" / f"{name}.gz", f"gzip/{name}.gz")
        with raises("data-file-damaged", match=r"gzip.zip is damaged or another version"):
            EMNIST("byclass", path=str(tmp_path / "gzip.zip"))()
        (download,) = spec.downloads()
        anything = Download((replace(download.remotes[0], md5=None),))
        variants = {**EMNIST.variants, "byclass": replace(spec, sources=(anything,))}
        monkeypatch.setattr(EMNIST, "variants", variants)
        assert EMNIST("byclass", path=str(tmp_path / "gzip.zip"))().y.tolist() == [0, 61, 2, 3, 4]

    def test_unknown_split_is_refused(self) -> None:
        with raises("argument-invalid"):
            EMNIST(split="digits")  # type: ignore[arg-type]


class TestCIFAR10:
    records = RNG.integers(0, 256, (12, 3073), dtype=np.uint8)
    records[:, 0] %= 10

    def write(self, folder: Path) -> None:
        for batch, name in enumerate(CIFAR_FILES):
            self.records[2 * batch : 2 * batch + 2].tofile(folder / name)

    def test_planes_and_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        unchecked(monkeypatch, CIFAR10)
        self.write(tmp_path)
        data = CIFAR10(path=str(tmp_path))()
        assert data.x.shape == (12, 3, 32, 32)
        assert data.x[7, 1, 2, 3] == self.records[7, 1 + 1024 + 2 * 32 + 3]
        assert data.y.tolist() == self.records[:, 0].tolist()
        assert data.official is not None
        assert data.official.tolist() == [False] * 10 + [True] * 2
        assert data.domain.inputs(data.x).min() >= -1

    def test_pictures_become_the_same_batches(self, tmp_path: Path) -> None:
        raw, made, expected = (tmp_path / name for name in ("raw", "made", "expected"))
        for folder in (raw, made, expected):
            folder.mkdir()
        self.write(expected)
        for batch, name in enumerate(CIFAR_BATCHES):
            rows = self.records[2 * batch : 2 * batch + 2, 1:].reshape(2, 3, 1024).transpose(0, 2, 1)
            Image.fromarray(np.ascontiguousarray(rows)).save(raw / f"{name}.png")
        (raw / "train_lables.json").write_text(json.dumps(self.records[:10, 0].tolist()))
        (raw / "test_lables.json").write_text(json.dumps(self.records[10:, 0].tolist()))
        rebuild(raw, made)
        for name in CIFAR_FILES:
            assert (made / name).read_bytes() == (expected / name).read_bytes()
        (raw / "test_batch.png").write_bytes(b"no picture")
        with raises("data-file-damaged", match="the pictures are not those expected"):
            rebuild(raw, made)

    @pytest.mark.parametrize(("cut", "said"), [(slice(-1), "is cut short"), (slice(0, 0), "")])
    def test_faults(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: slice, said: str) -> None:
        unchecked(monkeypatch, CIFAR10)
        self.write(tmp_path)
        file = tmp_path / "test_batch.bin"
        changed = bytearray(file.read_bytes()[cut] or b"\x0a" + bytes(3072))
        file.write_bytes(changed)
        with raises("data-file-damaged", match=said or r"test_batch.bin has labels outside 0\.\.9"):
            CIFAR10(path=str(tmp_path))()

    def test_wrong_archive(self, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin"), io.BytesIO())
        with raises("data-file-damaged", match=r"data.path: .*cifar-10-binary.tar.gz is damaged or another version"):
            CIFAR10(path=str(tmp_path))()


class TestCIFAR100:
    records = RNG.integers(0, 20, (5, 3074), dtype=np.uint8)

    def write(self, folder: Path) -> None:
        self.records[:, 1] = [99, 3, 50, 7, 0]
        self.records[:3].tofile(folder / "train.bin")
        self.records[3:].tofile(folder / "test.bin")

    def test_two_labels_and_the_planes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        unchecked(monkeypatch, CIFAR100)
        self.write(tmp_path)
        fine, coarse = (CIFAR100(labels=labels, path=str(tmp_path))() for labels in ("fine", "coarse"))
        assert (fine.classes, fine.y.tolist()) == (100, [99, 3, 50, 7, 0])
        assert (coarse.classes, coarse.y.tolist()) == (20, self.records[:, 0].tolist())
        assert fine.x[4, 1, 2, 3] == self.records[4, 2 + 1024 + 2 * 32 + 3]
        assert fine.official is not None
        assert fine.official.tolist() == [False] * 3 + [True] * 2

    def test_labels_outside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        unchecked(monkeypatch, CIFAR100)
        self.write(tmp_path)
        for place, said in ((0, "19"), (1, "99")):
            wrong = self.records.copy()
            wrong[0, place] = 100
            wrong.tofile(tmp_path / "train.bin")
            with raises("data-file-damaged", match=rf"train.bin has labels outside 0\.\.{said}"):
                CIFAR100(path=str(tmp_path))()


class TestMedMNIST:
    @pytest.fixture(autouse=True)
    def any_contents(self, monkeypatch: pytest.MonkeyPatch) -> None:
        variants = {key: replace(a, files=(RemoteFile(a.files[0].name),)) for key, a in MedMNIST.variants.items()}
        monkeypatch.setattr(MedMNIST, "variants", variants)

    def arrays(self, *shape: int) -> dict[str, NDArray[Any]]:
        counts = {"train": 3, "val": 2, "test": 1}
        made: dict[str, NDArray[Any]] = {}
        for part, n in counts.items():
            made[f"{part}_images"] = RNG.integers(0, 256, (n, 28, 28, *shape), dtype=np.uint8)
            made[f"{part}_labels"] = np.arange(n, dtype=np.uint8)[:, None]
        return made

    def save(self, path: Path, arrays: dict[str, NDArray[Any]]) -> None:
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]

    def test_path(self, tmp_path: Path) -> None:
        arrays = self.arrays(3)
        self.save(tmp_path / "pathmnist.npz", arrays)
        data = MedMNIST(path=str(tmp_path))()
        assert data.x.shape == (6, 3, 28, 28)
        assert data.x[4, 2, 5, 6] == arrays["val_images"][1, 5, 6, 2]
        assert data.y.tolist() == [0, 1, 2, 0, 1, 0]
        assert data.official is not None
        assert data.official.tolist() == [False] * 3 + [True] * 3
        assert (data.name, data.classes) == ("pathmnist", 9)

    def test_tissue_without_validation(self, tmp_path: Path) -> None:
        arrays = self.arrays()
        self.save(tmp_path / "mine.npz", arrays)
        data = MedMNIST(which="tissue", test="test", path=str(tmp_path / "mine.npz"))()
        assert data.x.shape == (4, 1, 28, 28)
        assert np.array_equal(data.x[3, 0].numpy(), arrays["test_images"][0])
        assert data.official is not None
        assert data.official.tolist() == [False] * 3 + [True]
        assert (data.name, data.classes) == ("tissuemnist", 8)

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("val_labels", np.array([[0], [9]], np.uint8), r"val_labels has labels outside 0\.\.8"),
            ("val_labels", np.array([[0]], np.uint8), r"val_labels is uint8 \(1, 1\); 2 whole numbers"),
            ("val_labels", np.array([[0.5], [1]]), "val_labels is float64"),
            ("val_images", np.zeros((2, 28, 28), np.uint8), "val_images is uint8"),
            ("val_images", np.array([{}, {}], object), "is not a sound npz file of plain arrays"),
            ("val_images", None, "has no array 'val_images'"),
        ],
    )
    def test_faults(self, tmp_path: Path, key: str, value: NDArray[Any] | None, said: str) -> None:
        arrays = self.arrays(3)
        del arrays[key]
        self.save(tmp_path / "pathmnist.npz", arrays if value is None else {**arrays, key: value})
        with raises("data-file-damaged", match=f"data.path: .*pathmnist.npz.*{said}"):
            MedMNIST(path=str(tmp_path))()

    @pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 but no more"])
    def test_not_an_npz(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "pathmnist.npz").write_bytes(content)
        with raises("data-file-damaged", match="is not a sound npz"):
            MedMNIST(path=str(tmp_path))()

    def test_cut_npz_and_bare_array(self, tmp_path: Path) -> None:
        file = tmp_path / "pathmnist.npz"
        self.save(file, self.arrays(3))
        whole = bytearray(file.read_bytes())
        for content in (whole[: len(whole) // 2], whole[:2000] + bytes(64) + whole[2064:]):
            file.write_bytes(content)
            with raises("data-file-damaged", match="is not a sound npz"):
                MedMNIST(path=str(file))()
        with file.open("wb") as stream:
            np.save(stream, np.zeros(3))
        with raises("data-file-damaged", match="is not a sound npz"):
            MedMNIST(path=str(file))()


class TestUCIHAR:
    x = RNG.normal(size=(5, 9, 128)).astype(np.float32)
    y, subject = [1, 6, 3, 2, 2], [2, 2, 30, 7, 7]

    def write(self, folder: Path) -> Path:
        for part, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
            (folder / part / "Inertial Signals").mkdir(parents=True)
            for channel, name in enumerate(CHANNELS):
                signals = folder / part / "Inertial Signals" / f"{name}_{part}.txt"
                np.savetxt(signals, self.x[rows, channel], fmt="% .7e")
            np.savetxt(folder / part / f"y_{part}.txt", self.y[rows], fmt="%d")
            np.savetxt(folder / part / f"subject_{part}.txt", self.subject[rows], fmt="%d")
        return folder

    def zipped(self, folder: Path, nested: bool) -> Path:
        inner = folder.parent / "UCI HAR Dataset.zip"
        with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in folder.rglob("*.txt"):
                archive.write(file, Path("UCI HAR Dataset") / file.relative_to(folder))
        if not nested:
            return inner
        with zipfile.ZipFile(folder.parent / "outer.zip", "w") as archive:
            archive.write(inner, inner.name)
            archive.writestr("UCI HAR Dataset.names", "spec it")
        return folder.parent / "outer.zip"

    @pytest.mark.parametrize("how", ["directory", "parent", "zip", "nested"])
    def test_official_layout(self, tmp_path: Path, how: str) -> None:
        folder = self.write(tmp_path / "UCI HAR Dataset")
        place = {"directory": folder, "parent": tmp_path}.get(how) or self.zipped(folder, how == "nested")
        data = UCIHAR(path=str(place))()
        assert torch.allclose(data.x, torch.from_numpy(self.x), rtol=1e-6)
        assert data.x.dtype == torch.float32
        assert data.y.tolist() == [0, 5, 2, 1, 1]
        assert data.client is not None
        assert data.client.tolist() == [0, 0, 2, 1, 1]
        assert data.client_names == ("2", "7", "30")
        assert data.official is None
        scaled = data.domain.inputs(data.x)
        assert torch.allclose(scaled.mean((0, 2)), torch.zeros(9), atol=1e-5)
        assert torch.allclose(scaled.std((0, 2), correction=0), torch.ones(9), atol=1e-5)

    def test_download_is_kept_as_one_file(self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The archive lies in the cache, put there by hand: as a download, but for the download."""
        monkeypatch.setattr(har, "WINDOWS", {"train": 3, "test": 2})
        cache.joinpath("uci-har").mkdir(parents=True)
        archive = self.zipped(self.write(tmp_path / "UCI HAR Dataset"), nested=True)
        (remote,) = UCIHAR.spec.downloads()[0].remotes
        assert remote.name == "human+activity+recognition+using+smartphones.zip"
        archive.rename(cache / "uci-har" / remote.name)
        assert UCIHAR()().y.tolist() == [0, 5, 2, 1, 1]
        assert (cache / "uci-har" / "uci-har.npz").exists()

    def test_download_with_other_contents_is_refused(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path / "UCI HAR Dataset")
        with raises("data-file-damaged", match="the train part has 3 windows, not 7,352"):
            har.keep(folder, tmp_path)

    def test_half_precision_npz_stays_so(self, tmp_path: Path) -> None:
        y, subject = np.array(self.y, np.uint8) - 1, np.array(self.subject, np.uint8)
        np.savez(tmp_path / "har.npz", x=self.x.astype(np.float16), y=y, subject=subject)
        data = UCIHAR(path=str(tmp_path / "har.npz"))()
        assert data.x.dtype == torch.float16
        assert data.client_names == ("2", "7", "30")
        assert data.domain.inputs(data.x).dtype == torch.float32

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"y": np.array([0, 1, 2, 3, 6])}, r"y has labels outside 0\.\.5"),
            ({"y": np.array([0, 1, 2])}, r"x is float32 \(5, 9, 128\)"),
            ({"y": np.zeros(5)}, "both are whole numbers"),
            ({"subject": np.array([1, 2])}, r"subject \(2,\)"),
            ({"x": np.zeros((5, 9, 64), np.float32)}, r"x is float32 \(5, 9, 64\)"),
            ({"x": np.full((5, 9, 128), np.nan, np.float32)}, "x has NaN or Inf"),
            ({"x": np.array([{}] * 5, object)}, "is not a sound npz"),
        ],
    )
    def test_npz_faults(self, tmp_path: Path, change: dict[str, NDArray[Any]], said: str) -> None:
        good: dict[str, NDArray[Any]] = {"x": self.x, "y": np.zeros(5, np.int64), "subject": np.ones(5, np.int64)}
        np.savez(tmp_path / "har.npz", **{**good, **change})  # type: ignore[arg-type]
        with pytest.raises(CoterieError, match=f"data.path: .*{said}.*give the official zip"):
            UCIHAR(path=str(tmp_path / "har.npz"))()

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("train/Inertial Signals/total_acc_z_train.txt", "1.0 2.0\n", "has 2 numbers; 3 windows need 384"),
            ("test/Inertial Signals/body_acc_x_test.txt", "1.0 abc\n", "something that is not a number"),
            ("test/subject_test.txt", "1\n2\n3\n", "subject_test.txt has 3 numbers; 2 windows need 2"),
            ("test/y_test.txt", None, "y_test.txt cannot be read"),
        ],
    )
    def test_text_faults(self, tmp_path: Path, name: str, content: str | None, said: str) -> None:
        folder = self.write(tmp_path / "h")
        (folder / name).unlink() if content is None else (folder / name).write_text(content)
        with raises("data-file-damaged", match=said):
            UCIHAR(path=str(folder))()

    def test_nothing_there(self, tmp_path: Path) -> None:
        with raises("data-file-missing"):
            UCIHAR(path=str(tmp_path / "nothing"))()


def leaf(folder: Path, name: str, **users: tuple[list[Any], list[Any]]) -> Path:
    """A file as LEAF writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    table = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / f"{name}.json").write_text(json.dumps(table))
    return folder / f"{name}.json"


def picture(grey: int) -> list[float]:
    return [grey / 255] * 783 + [1.0]


class TestFEMNIST:
    def test_writers_in_order_of_appearance(self, tmp_path: Path) -> None:
        leaf(tmp_path / "train", "b", ann=([picture(7)], [0]))
        leaf(tmp_path / "train", "a", zoe=([picture(1), picture(2)], [61, 5]), bob=([picture(3)], [9]))
        leaf(tmp_path / "test", "a", ann=([picture(8)], [1]), zoe=([picture(4)], [2]))
        data = FEMNIST(path=str(tmp_path))()
        assert data.client_names == ("zoe", "bob", "ann")
        assert data.client is not None
        assert data.client.tolist() == [0, 0, 1, 2, 2, 0]
        assert data.x[:, 0, 0, 0].tolist() == [1, 2, 3, 7, 8, 4]
        assert data.x[:, 0, 27, 27].tolist() == [255] * 6
        assert data.x.shape == (6, 1, 28, 28)
        assert data.y.tolist() == [61, 5, 9, 0, 1, 2]
        assert data.official is not None
        assert data.official.tolist() == [False] * 4 + [True] * 2
        assert data.classes == 62

    def test_all_bytes_survive(self, tmp_path: Path) -> None:
        values = [v / 255 for v in range(256)] + [0.0] * (784 - 256)
        leaf(tmp_path / "data" / "all_data", "all", ann=([values], [0]))
        data = FEMNIST(path=str(tmp_path))()
        assert data.x.flatten()[:256].tolist() == list(range(256))
        assert data.official is None

    def test_split_by_writer_is_no_test_set_of_clients(self, tmp_path: Path) -> None:
        leaf(tmp_path / "train", "a", ann=([picture(1)], [0]))
        leaf(tmp_path / "test", "a", bob=([picture(1)], [0]))
        assert FEMNIST(path=str(tmp_path))().official is None

    def test_looks_in_the_cache_and_says_what_to_do(self, cache: Path) -> None:
        with raises("download-failed"):
            FEMNIST()()
        leaf(cache / "femnist" / "all_data", "all", ann=([picture(1)], [0]))
        assert len(FEMNIST()().y) == 1

    @pytest.mark.parametrize(
        ("x", "y", "said"),
        [
            ([picture(1)], [62], r"labels that are not whole numbers 0\.\.61"),
            ([picture(1)], [-1], "labels that are not"),
            ([picture(1)], ["a"], "labels that are not"),
            ([picture(1)], [0.5], "labels that are not"),
            ([picture(1)], [0, 1], "should have 2 samples"),
            ([picture(1)[:-1]], [0], "not 784 numbers each"),
            ([["a"] * 784], [0], "not 784 numbers each"),
            ([[0.5] * 784], [0], "not a byte divided by 255"),
            ([[256 / 255] * 784], [0], "not a byte divided by 255"),
            ([[float("nan")] * 784], [0], "not a byte divided by 255"),
        ],
    )
    def test_faults_name_file_and_writer(self, tmp_path: Path, x: list[Any], y: list[Any], said: str) -> None:
        leaf(tmp_path / "all_data", "all", bob=([picture(0)], [0]), ann=(x, y))
        with pytest.raises(CoterieError, match=f"all.json: user 'ann' .*{said}"):
            FEMNIST(path=str(tmp_path))()

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ('{"users": ["ann"], "num_sam', "is not json, or was cut short"),
            ("\udcff", "is not json"),
            ('{"users": ["ann"], "num_samples": [1]}', "is not in LEAF's format.*user_data"),
            ('{"users": ["ann"], "num_samples": [], "user_data": {}}', "is not in LEAF's format"),
            ('{"users": ["ann"], "num_samples": [1], "user_data": {}}', "is not in LEAF's format.*ann"),
            ("[1, 2]", "is not in LEAF's format"),
            ('{"users": [], "num_samples": [], "user_data": {}}', "no samples"),
        ],
    )
    def test_files_of_another_kind(self, tmp_path: Path, content: str, said: str) -> None:
        (tmp_path / "all_data").mkdir()
        (tmp_path / "all_data" / "all.json").write_text(content, errors="surrogateescape")
        with pytest.raises(CoterieError, match=said):
            FEMNIST(path=str(tmp_path))()

    def test_directory_without_files(self, tmp_path: Path) -> None:
        (tmp_path / "train").mkdir()
        with raises("data-file-missing"):
            FEMNIST(path=str(tmp_path))()


def tweet(text: str) -> list[str]:
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "somebody", text]


class TestSent140:
    def write(self, folder: Path) -> str:
        leaf(folder / "train", "a", ann=([tweet("Good GOOD day"), tweet("a bad, bad day!")], [1, 0]))
        leaf(folder / "train", "b", bob=([tweet("zebra day")], ["4"]))
        leaf(folder / "test", "a", ann=(["unseen good"], ["0"]), bob=([["good zebra"]], [4]))
        return str(folder)

    def test_word_numbers(self, tmp_path: Path) -> None:
        """Of the training part: day 3, bad 2, good 2, a 1, zebra 1; equals by the alphabet."""
        data = Sent140(path=self.write(tmp_path), words=3)()
        day, bad, good, a, zebra = 2, 3, 4, 5, 6
        assert data.x.tolist() == [[good, good, day], [a, bad, bad], [zebra, day, 0], [1, good, 0], [good, zebra, 0]]
        assert data.x.dtype == torch.int64
        assert data.y.tolist() == [1, 0, 1, 0, 1]
        assert data.scale is None
        assert data.classes == 2
        assert data.client_names == ("ann", "bob")
        assert data.client is not None
        assert data.client.tolist() == [0, 0, 1, 0, 1]
        assert data.official is not None
        assert data.official.tolist() == [False] * 3 + [True] * 2

    def test_vocabulary_counts_padding_and_unknown(self, tmp_path: Path) -> None:
        data = Sent140(path=self.write(tmp_path), words=4, vocabulary=4)()
        assert data.x.tolist() == [[1, 1, 2, 0], [1, 3, 3, 2], [1, 2, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]

    def test_authors_with_few_tweets_are_left_out(self, tmp_path: Path) -> None:
        data = Sent140(path=self.write(tmp_path), least=3)()
        assert data.client_names == ("ann",)
        assert len(data.y) == 3
        with raises("data-empty", match=r"no author has 4 tweets \(data.least\)"):
            Sent140(path=str(tmp_path), least=4)()

    @pytest.mark.parametrize("label", [2, "2", "good", None, 1.0, True])
    def test_other_labels_are_refused(self, tmp_path: Path, label: object) -> None:
        leaf(tmp_path / "all_data", "all", ann=(["text"], [label]))
        with raises("data-labels", match=r"user 'ann' has the label .*; it must be 0"):
            Sent140(path=str(tmp_path))()

    @pytest.mark.parametrize("x", [3, ["a", "b"], [1], None])
    def test_other_tweets_are_refused(self, tmp_path: Path, x: object) -> None:
        leaf(tmp_path / "all_data", "all", ann=([x], [0]))
        with raises("data-file-format", match="neither a text nor"):
            Sent140(path=str(tmp_path))()

    def test_settings(self) -> None:
        wrongs: list[dict[str, Any]] = [{"words": 0}, {"vocabulary": 2}, {"least": 0}, {"word": 3}]
        for wrong in wrongs:
            with pytest.raises(CoterieError):
                Sent140(**wrong)


class TestNormalise:
    x = torch.from_numpy(RNG.integers(0, 256, (600, 2, 3, 4), dtype=np.uint8))
    train = np.arange(600) < 400

    def test_unit_and_symmetric(self) -> None:
        ends = torch.tensor([0, 255], dtype=torch.uint8)
        assert image_scale(self.x, "unit")(ends).tolist() == [0, 1]
        assert image_scale(self.x, "symmetric")(ends).tolist() == [-1, 1]

    def test_standard_is_per_channel_of_the_training_set(self) -> None:
        made = image_scale(self.x, "standard", self.train)(self.x[:400])
        assert torch.allclose(made.mean((0, 2, 3)), torch.zeros(2), atol=1e-5)
        assert torch.allclose(made.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-5)

    def test_pixel_is_of_all_samples_and_raw(self) -> None:
        x = self.x.clone()
        x[:, 0, 0, 0] = 9
        raw = x.numpy().astype(np.float64)
        expected = (raw - raw.mean(0)) / (raw.std(0) + 0.001)
        made = image_scale(x, "pixel", self.train)(x)
        assert np.allclose(made.numpy(), expected, atol=1e-4)
        assert (made[:, 0, 0, 0] == 0).all()

    def test_one_colour_does_not_divide_by_zero(self) -> None:
        x = torch.full((3, 1, 2, 2), 7, dtype=torch.uint8)
        assert (image_scale(x, "standard")(x).abs() < 1e-6).all()


def test_every_data_set_says_what_it_is() -> None:
    """What a listing needs; and every source gives every file."""
    loaders: list[Any] = [MNIST, FashionMNIST, EMNIST, CIFAR10, CIFAR100, MedMNIST, UCIHAR, FEMNIST, Sent140]
    specs = [spec for loader in loaders for spec in getattr(loader, "variants", {"": loader.spec}).values()]
    assert len({spec.name for spec in specs}) == len(specs) == 11
    for spec in specs:
        assert spec.title
        assert spec.licence
        assert spec.homepage.startswith("http")
        assert spec.samples > spec.classes > 1
        assert str(spec.directory) in spec.instructions
        assert bool(spec.files) == bool(spec.sources)
        for download in spec.downloads():
            if download.make is None:
                kept = [kept for remote in download.remotes for _, kept in remote.members]
                assert kept == [file.name for file in spec.files]
