"""`coterie data`, and a user's own files and newcomers through `coterie run`."""

from __future__ import annotations

import dataclasses
import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commandline
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import coterie
from coterie.core.registry import DATASETS, NO_CODE
from coterie.data.download import RemoteFile, md5_of
from coterie.data.sets import facts
from coterie.data.sets.images import MNIST
from coterie.training.build import build_data
from coterie.training.config import read

LISTED = ["name", "summary", "paper", "state"]
OWNERS = np.repeat(["ann", "bob", "cem", "dora"], [30, 20, 24, 26])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> commandline.Shell:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return commandline.Shell(tmp_path, monkeypatch, capsys)


def refused(said: commandline.Said, *words: str) -> None:
    assert said.code == 2, said
    assert said.out == ""
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


def fine(said: commandline.Said) -> Any:
    assert (said.code, said.err) == (0, ""), said
    return commandline.strictly(said.out)


# ----------------------------------------------------------------------------------------------------- a tiny data set


@pytest.fixture
def tiny_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """MNIST as if it were forty training and eight test images: its files, and their checksums to go with them."""
    rng = np.random.default_rng(0)
    place = tmp_path / "files"
    place.mkdir()
    for file, array in (
        ("train-images-idx3-ubyte", rng.integers(0, 256, (40, 28, 28))),
        ("train-labels-idx1-ubyte", np.arange(40) % 10),
        ("t10k-images-idx3-ubyte", rng.integers(0, 256, (8, 28, 28))),
        ("t10k-labels-idx1-ubyte", np.arange(8)),
    ):
        head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (place / file).write_bytes(head + array.astype(np.uint8).tobytes())
    files = tuple(
        RemoteFile(file.name, md5_of(place / file.name), (place / file.name).stat().st_size)
        for file in MNIST.spec.files
    )
    monkeypatch.setattr(MNIST, "spec", dataclasses.replace(MNIST.spec, files=files, sources=()))
    monkeypatch.setitem(facts.PUBLIC, "mnist", MNIST.spec)

    def put(into: str, *, compressed: bool = False) -> Path:
        (tmp_path / into).mkdir(parents=True)
        for path in place.iterdir():
            if compressed:
                (tmp_path / into / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            else:
                (tmp_path / into / path.name).write_bytes(path.read_bytes())
        return tmp_path / into

    return put


# ----------------------------------------------------------------------------------------------------------- data list


def test_the_list_says_what_there_is_and_what_is_here(
    shell: commandline.Shell, tiny_mnist: Callable[..., Path]
) -> None:
    before = {row["name"]: row["state"] for row in fine(shell("list", "data", "--json"))}
    assert list(before) == list(DATASETS.places)
    assert before["digits"] == "embedded"
    assert before["synthetic"] == before["synthetic-regression"] == "generated"
    assert {before[name] for name in ("npz", "csv", "parquet", "image-folder")} == {"your own file"}
    assert before["cifar10"].startswith("to fetch, ")
    assert before["mnist"] == before["femnist"] == "by hand"  # it has no sources here
    tiny_mnist("cache/mnist")
    rows = fine(shell("list", "data", "--json"))
    assert {row["name"]: row["state"] for row in rows} == before | {"mnist": "yes"}
    for row in rows:
        assert list(row) == LISTED
        assert row["summary"].strip()
    people = shell("list", "data")
    assert people.code == 0
    for name in DATASETS.places:
        assert name in people.out


def test_the_real_command_lists_and_tells_of_data(tmp_path: Path) -> None:
    said = commandline.coterie("list", "data", "--json", cwd=tmp_path)
    assert {row["name"] for row in fine(said)} == set(DATASETS.places)
    refused(commandline.coterie("data", "info", "mnits", cwd=tmp_path), "data.name", "Did you mean 'mnist'?")
    assert list(tmp_path.iterdir()) == []


def test_what_the_data_command_can_do_is_in_its_help(shell: commandline.Shell) -> None:
    said = shell("data", "--help")
    assert said.code == 0
    for word in ("info", "get", "show"):
        assert word in said.out


# ----------------------------------------------------------------------------------------------------------- data info


@pytest.mark.parametrize("name", DATASETS.places)
def test_every_data_set_has_its_facts(name: str, shell: commandline.Shell) -> None:
    facts = fine(shell("data", "info", name, "--json"))
    assert facts["name"] == name
    assert facts["what it is"].strip()
    assert {"here?", "parameters"} <= set(facts)
    if hasattr(DATASETS.find(name, NO_CODE), "spec"):
        assert {"title", "shape", "classes", "samples", "download", "licence", "homepage", "sources", "place"} < set(
            facts
        )
        assert facts["place"].startswith(str(shell.cwd / "cache"))
        assert facts["place"].endswith("(not there yet)")
        assert all(str(value).strip() for value in facts.values())
    people = shell("data", "info", name)
    assert people.code == 0
    for key in facts:
        assert key in people.out


def test_the_facts_are_those_of_the_variant_that_is_meant(shell: commandline.Shell) -> None:
    letters, both = (fine(shell("data", "info", "emnist", *words, "--json")) for words in ([], ["split=byclass"]))
    assert (letters["classes"], both["classes"]) == ("26", "62")
    assert (letters["samples"], both["samples"]) == ("145,600", "814,255")
    assert fine(shell("data", "info", "emnist", "data.split=byclass", "--json")) == both
    assert "split" in both["parameters"]


def test_what_is_here_says_where(shell: commandline.Shell, tiny_mnist: Callable[..., Path]) -> None:
    place = tiny_mnist("cache/mnist")
    facts = fine(shell("data", "info", "mnist", "--json"))
    assert (facts["here?"], facts["place"]) == ("yes", str(place))


WRONG: dict[str, tuple[list[str], list[str]]] = {
    "info of nothing": (["info", "mnits"], ["data.name", "'mnits'", "Did you mean 'mnist'?"]),
    "get of nothing": (["get", "nosuch"], ["data.name", "'nosuch'", "Known:"]),
    "get of what is embedded": (["get", "digits"], ["digits: there is nothing to fetch, it is embedded"]),
    "get of what is generated": (["get", "synthetic"], ["synthetic: there is nothing to fetch, it is generated"]),
    "get of one's own": (["get", "npz"], ["npz: there is nothing to fetch, it is your own file"]),
    "get by hand": (["get", "femnist"], ["femnist: not in", "By hand:", "cache"]),
    "a variant that is none": (["get", "emnist", "split=digits"], ["data.split", "byclass"]),
    "a parameter that is none": (["info", "emnist", "splitt=byclass"], ["data.splitt", "Did you mean 'split'?"]),
    "a word": (["get", "emnist", "byclass"], ["'byclass'", "key=value"]),
    "show of nothing": (["show", "data.name=digit"], ["data.name", "Did you mean 'digits'?"]),
    "show of no partition": (
        ["show", "data.partition.name=rotate"],
        ["data.partition.name", "Did you mean 'rotated'?"],
    ),
    "show of no file": (["show", "data.name=npz", "data.path=none.npz"], ["none.npz"]),
    "show of no yaml": (["show", "none.yaml"], ["none.yaml"]),
    "no name": (["info"], ["Missing argument"]),
    "no command": (["shw"], ["shw"]),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("as_json", [False, True])
def test_bad_input_is_told(what: str, as_json: bool, shell: commandline.Shell) -> None:
    words, named = WRONG[what]
    refused(shell("data", *words, *(["--json"] if as_json else [])), *named)
    assert not (shell.cwd / "pictures").exists()


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_a_parameter_that_is_none_is_told_of_generated_data_too(name: str, shell: commandline.Shell) -> None:
    refused(shell("data", "info", name, "nonsense=3"), "data.nonsense")


# ------------------------------------------------------------------------------------------------------------ data get


def test_get_says_where_the_data_is(shell: commandline.Shell, tiny_mnist: Callable[..., Path]) -> None:
    refused(shell("data", "get", "mnist"), "mnist: not in", "By hand:", str(shell.cwd / "cache" / "mnist"))
    place = tiny_mnist("cache/mnist", compressed=True)  # as a person would put it there
    said = shell("data", "get", "mnist")
    assert (said.code, said.out) == (0, f"mnist: {place}\n")
    assert (place / "train-images-idx3-ubyte").is_file()
    assert fine(shell("data", "get", "mnist", "--json")) == {"name": "mnist", "path": str(place)}
    said = shell("run", "data.name=mnist", "data.partition.name=iid", "data.partition.clients=4", "rounds=1", "--json")
    assert fine(said)["sizes"]


def test_a_file_that_is_not_the_published_one_is_refused(
    shell: commandline.Shell, tiny_mnist: Callable[..., Path]
) -> None:
    place = tiny_mnist("cache/mnist")
    file = place / "t10k-labels-idx1-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    refused(shell("data", "get", "mnist"), "mnist", "t10k-labels-idx1-ubyte is cut short")


def test_data_with_a_path_of_its_own_is_not_fetched(shell: commandline.Shell, tiny_mnist: Callable[..., Path]) -> None:
    place = tiny_mnist("elsewhere")
    words = ("data.name=mnist", f"data.path={place}", "data.partition.clients=4", "rounds=1", "--json")
    assert fine(shell("run", *words))["sizes"]
    assert not (shell.cwd / "cache").exists()


# ----------------------------------------------------------------------------------------------------------- data show

PICTURES = ("data-labels.png", "data-labels.svg")
SHOWN: dict[str, tuple[list[str], str]] = {
    "dirichlet": (
        ["data.partition.name=dirichlet", "data.partition.alpha=0.3", "data.partition.clients=1"],
        "digits, Dirichlet(0.3): 1 client",
    ),
    "regression": (["data.name=synthetic-regression", "data.clients=6"], "synthetic-regression: 6 clients"),
    "mixture": (
        ["data.name=synthetic-regression", "data.clusters=2", "data.pattern=linear", "data.clients=6"],
        "mixtures of 2 distributions",
    ),
    "synthetic": (["data.name=synthetic", "data.clients=5"], "synthetic(1, 1): 5 clients"),
    "own": (["data.name=npz", "data.path=mine.npz"], "mine: 4 clients"),
}


@pytest.mark.parametrize("what", SHOWN)
def test_the_federation_of_a_configuration_is_drawn(what: str, shell: commandline.Shell) -> None:
    words, line = SHOWN[what]
    write_npz(shell.cwd)
    found = fine(shell("data", "show", *words, "--json", "--out", "here"))
    assert line in found["federation"]
    assert found["federation"] == build_data(read(None, words)).describe()
    extra = ("data-samples.png", "data-samples.svg") if what == "dirichlet" else ()
    assert found["pictures"] == [f"here/{name}" for name in (*PICTURES, *extra)]
    for name in found["pictures"]:
        assert (shell.cwd / name).stat().st_size > 2_000


def test_what_a_person_sees_of_a_picture(shell: commandline.Shell) -> None:
    (shell.cwd / "run.yaml").write_text("data: {name: synthetic-regression, clients: 6}\nseed: 3\n")
    said = shell("data", "show", "run.yaml", "data.clients=8")
    assert said.code == 0
    line, *files = said.out.splitlines()
    assert line == build_data(read(None, ["data.name=synthetic-regression", "data.clients=8", "seed=3"])).describe()
    assert files == [f"pictures/{name}" for name in PICTURES]


def test_without_matplotlib_it_is_said_what_to_install(shell: commandline.Shell) -> None:
    import sys

    shell.patch.setitem(sys.modules, "matplotlib", None)
    refused(shell("data", "show", "data.name=synthetic-regression"), "coterie[plot]")
    assert not (shell.cwd / "pictures").exists()


# ------------------------------------------------------------------------------------------------------ one's own files


def samples() -> tuple[Any, Any]:
    """100 samples of four features; the first says the label."""
    x = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def write_npz(folder: Path) -> list[str]:
    x, y = samples()
    np.savez(folder / "mine.npz", x=x, y=y, client=OWNERS)
    return ["data.name=npz", "data.path=mine.npz"]


def write_csv(folder: Path) -> list[str]:
    x, y = samples()
    rows = [f"{','.join(map(str, row))},{label},{owner}" for row, label, owner in zip(x, y, OWNERS, strict=True)]
    (folder / "mine.csv").write_text("\n".join(["a,b,c,d,sick,hospital", *rows]) + "\n")
    return ["data.name=csv", "data.path=mine.csv", "data.y=sick", "data.client=hospital"]


def write_parquet(folder: Path) -> list[str]:
    pa = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    x, y = samples()
    columns = {name: x[:, i] for i, name in enumerate("abcd")} | {"y": y, "client": OWNERS}
    parquet.write_table(pa.table(columns), folder / "mine.parquet")
    return ["data.name=parquet", "data.path=mine.parquet", "data.y=y"]


def write_images(folder: Path) -> list[str]:
    rng = np.random.default_rng(0)
    for owner, many in (("ann", 10), ("bob", 6), ("cem", 8), ("dora", 9)):
        for label in ("cat", "dog"):
            place = folder / "mine" / owner / label
            place.mkdir(parents=True)
            for i in range(many):
                pixels = rng.integers(0, 60, (8, 8))
                pixels[:4] += 150 if label == "dog" else 0  # dogs are bright above, cats below
                pixels[4:] += 150 if label == "cat" else 0
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
    return ["data.name=image-folder", "data.path=mine", "data.layout=client/class", "data.colour=grey"]


FILES: dict[str, Callable[[Path], list[str]]] = {
    "npz": write_npz,
    "csv": write_csv,
    "parquet": write_parquet,
    "image-folder": write_images,
}
QUICK = ("rounds=2", "method=wecfl", "method.k=2", "local.epochs=5", "--json")


@pytest.mark.parametrize("kind", FILES)
def test_ones_own_files_have_a_client_per_owner_and_their_names_are_written_down(
    kind: str, shell: commandline.Shell
) -> None:
    words = FILES[kind](shell.cwd)
    found = fine(shell("run", *words, *QUICK, "--out", "run"))
    assert sum(found["sizes"]) == 4
    assert found["accuracy"] > 0.6
    rows = commandline.strictly((shell.cwd / "run" / "clients.json").read_text())
    assert [(row["client"], row["name"]) for row in rows] == list(enumerate(["ann", "bob", "cem", "dora"]))
    # A fifth is held out: of 30, 20, 24 and 26 samples (of images: 20, 12, 16 and 18), rounded.
    held = [4, 2, 3, 4] if kind == "image-folder" else [6, 4, 5, 5]
    assert [row["samples"] for row in rows] == held
    config = yaml.safe_load((shell.cwd / "run" / "config.yaml").read_text())
    assert "partition" not in config["data"]
    # As it was written down, it runs again to the same bits, and is read back.
    assert shell("run", shell.cwd / "run" / "config.yaml", "--out", "again").code == 0
    commandline.assert_same_run(shell.cwd / "run", shell.cwd / "again")
    assert coterie.load(shell.cwd / "run").federation.names == ("ann", "bob", "cem", "dora")


def test_columns_that_are_no_inputs_are_left_out_and_named(shell: commandline.Shell) -> None:
    rows = "\n".join(f"{i / 7:.3f},{'mf'[i % 2]},{i}th,2024-03-{i % 30 + 1:02},{i % 2},{i % 4}" for i in range(40))
    (shell.cwd / "sex.csv").write_text(f"a,sex,note,day,y,client\n{rows}\n", encoding="utf-8")
    words = ("data.name=csv", "data.path=sex.csv", "data.y=y", "method=wecfl", "method.k=2", "rounds=1", "--out", "run")
    said = shell("run", *words)
    assert "categories: sex (f, m)\n" in said.err
    assert "inputs: a, sex=f, sex=m\n" in said.err
    assert "left out: note (text, different in every row), " in said.err
    assert "day (dates; data.time=day tests on each client's latest rows)\n" in said.err


def test_what_was_taken_of_a_table_is_said(shell: commandline.Shell) -> None:
    said = shell("run", *write_csv(shell.cwd), *QUICK[:-1], "--out", "run")
    assert "inputs: a, b, c, d\n" in said.err
    assert "classes:" not in said.err  # they are numbers
    assert "left out" not in said.err
    wide = ",".join(f"c{i}" for i in range(15))
    rows = "\n".join(f"{','.join('1.5' for _ in range(15))},{'yes' if i % 2 else 'no'},{i % 4}" for i in range(40))
    (shell.cwd / "wide.csv").write_text(f"{wide},y,client\n{rows}\n")
    said = shell("run", "data.name=csv", "data.path=wide.csv", "data.y=y", *QUICK[:-1], "--out", "wide")
    assert "c10, c11 and 3 more\n" in said.err
    assert "classes: no, yes\n" in said.err


@pytest.mark.parametrize("kind", FILES)
def test_ones_own_files_may_be_dealt_otherwise(kind: str, shell: commandline.Shell) -> None:
    words = [*FILES[kind](shell.cwd), "data.partition.name=iid", "data.partition.clients=3"]
    assert sum(fine(shell("run", *words, *QUICK, "--out", "run"))["sizes"]) == 3
    rows = commandline.strictly((shell.cwd / "run" / "clients.json").read_text())
    assert ["name" in row for row in rows] == [False] * 3
    # Whatever the order of the words.
    assert fine(shell("run", *words[::-1], *QUICK, "--out", "back"))
    commandline.assert_same_run(shell.cwd / "run", shell.cwd / "back")
    one, other = (yaml.safe_load((shell.cwd / run / "config.yaml").read_text()) for run in ("run", "back"))
    assert one == other
    assert one["data"]["partition"] == {"name": "iid", "clients": 3, "test": "auto"}


def test_own_data_without_owners_must_be_spread(shell: commandline.Shell) -> None:
    x, y = samples()
    np.savez(shell.cwd / "bare.npz", x=x, y=y)
    words = ["data.name=npz", "data.path=bare.npz"]
    refused(shell("run", *words, *QUICK), "data.partition: 'bare' must be spread over clients", "dirichlet")
    assert fine(shell("run", *words, "data.partition.name=iid", "data.partition.clients=5", *QUICK))["sizes"]


def test_a_file_of_words_may_name_ones_own_data(shell: commandline.Shell) -> None:
    write_npz(shell.cwd)
    (shell.cwd / "run.yaml").write_text("data: {name: npz, path: mine.npz}\nmethod: {name: ifca, k: 2}\nrounds: 1\n")
    assert sum(fine(shell("run", "run.yaml", "--json"))["sizes"]) == 4


def test_a_partition_that_was_asked_for_is_kept_whenever_the_data_is_named() -> None:
    """Asked for: kept; not asked for: the demo's goes where samples say whose they are, and stays elsewhere."""
    for words in (["data.name=npz", "data.partition.name=iid"], ["data.partition.name=iid", "data.name=npz"]):
        partition = read(None, [*words, "data.path=a"]).data.partition
        assert partition is not None
        assert partition.name == "iid"
    assert read(None, ["data.name=npz", "data.path=a"]).data.partition is None
    assert read(None, ["data.path=a", "data=csv", "data.y=b"]).data.partition is None
    demo = read(None, ["data.name=mnist"]).data.partition
    assert demo is not None
    assert demo.name == "rotated"


MINE = """
import coterie

def dataset():
    return coterie.data.Digits()()
"""


def test_the_order_of_words_does_not_matter_to_a_users_data_set_either(shell: commandline.Shell) -> None:
    shell.module(MINE, "mine_data")
    words = ["data.name=mine_data:dataset", "data.partition.name=iid"]
    assert fine(shell("run", *words, "rounds=1", "local.epochs=1", "--json"))
    assert fine(shell("run", *words[::-1], "rounds=1", "local.epochs=1", "--json"))


def test_a_partition_of_generated_data_is_refused_in_any_order(shell: commandline.Shell) -> None:
    words = ["data.name=synthetic-regression", "data.partition.name=iid", "rounds=1"]
    refused(shell("run", *words), "has clients of its own")
    refused(shell("run", *words[::-1]), "has clients of its own")


# ----------------------------------------------------------------------------------------------------------- newcomers


def test_newcomers_on_the_command_line(shell: commandline.Shell) -> None:
    """8 clients, a quarter kept back: two newcomers."""
    words = (*commandline.QUICK, "newcomers=0.25", "seed=1")
    found = fine(shell("run", *words, "--out", "run", "--json"))
    assert sum(found["sizes"]) == 6
    assert sum(found["newcomers"]["sizes"]) == 2
    about_the_run = {"run_dir", "rounds", "newcomers", "seconds", "warnings"}
    assert set(found["newcomers"]) == set(found) - about_the_run
    assert list(found)[-2:] == ["seconds", "warnings"]  # after two rounds the model is no better than a guess
    run = shell.cwd / "run"
    new, trained = (commandline.strictly((run / f"{name}.json").read_text()) for name in ("newcomers", "clients"))
    assert sorted(row["client"] for row in [*new, *trained]) == list(range(8))
    total = sum(row["samples"] for row in new)
    assert sum(row["samples"] * row["accuracy"] for row in new) / total == pytest.approx(found["newcomers"]["accuracy"])
    assert yaml.safe_load((run / "config.yaml").read_text())["newcomers"] == 0.25
    # Resumed with nothing left to do, and read back: the same.
    again = fine(shell("run", "--resume", "run", "--json"))
    assert again["newcomers"] == found["newcomers"]
    loaded = coterie.load(run)
    assert loaded.newcomers is not None
    assert loaded.newcomers.summary.accuracy == found["newcomers"]["accuracy"]
    assert loaded.newcomers.clients.ids.tolist() == [row["client"] for row in new]
    inputs = torch.zeros(2, 1, 8, 8)
    assert loaded.predict(new[0]["client"], inputs).shape == (2,)
    refused(shell("run", "--resume", "run", "newcomers=0.5", "rounds=3"), "another run", "newcomers")


def test_what_a_person_sees_of_newcomers_and_of_the_federation(shell: commandline.Shell) -> None:
    said = shell("run", *commandline.QUICK, "method=fedavg", "engine=sequential", "newcomers=0.25", "--out", "run")
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines() if line.strip()]
    assert [line[0] for line in lines if line[0] in ("fedavg", "newcomers")] == ["fedavg", "newcomers"]
    line = build_data(read(None, [*commandline.QUICK])).describe()
    assert said.err == f"{line}\n"
    assert line not in said.out
    assert "newcomers" not in shell("run", *commandline.QUICK, "--out", "without").out


def test_a_run_without_newcomers_says_nothing_of_them(shell: commandline.Shell) -> None:
    found = fine(shell("run", *commandline.QUICK, "--out", "run", "--json"))
    assert "newcomers" not in found
    assert not (shell.cwd / "run" / "newcomers.json").exists()
    assert yaml.safe_load((shell.cwd / "run" / "config.yaml").read_text())["newcomers"] == 0.0


@pytest.mark.parametrize(
    ("value", "named"), [("1", "newcomers"), ("-0.5", "newcomers"), ("0.99", "leaves none"), ("x", "x")]
)
def test_a_share_that_cannot_be_is_refused(value: str, named: str, shell: commandline.Shell) -> None:
    refused(shell("run", *commandline.QUICK, f"newcomers={value}"), "newcomers", named)
    assert list(shell.cwd.iterdir()) == []


def test_mixtures_are_in_the_json_of_a_run(shell: commandline.Shell) -> None:
    words = ["data.name=synthetic-regression", "data.clusters=2", "data.pattern=10:90", "data.clients=6", "rounds=2"]
    found = fine(shell("run", *words, "method.name=fedsoft", "local.lr=0.01", "--out", "run", "--json"))
    assert 0 <= found["mixture_error"] < 1
    assert commandline.log(shell.cwd / "run")[-1]["mixture_error"] == found["mixture_error"]
    assert coterie.load(shell.cwd / "run").history[-1].summary is not None
    assert coterie.load(shell.cwd / "run").summary.mixture_error == pytest.approx(found["mixture_error"])


@pytest.mark.parametrize("name", ["a[b]", "c[", "d:smile:"])
def test_names_are_printed_as_they_are(name: str, shell: commandline.Shell) -> None:
    x, y = samples()
    np.savez(shell.cwd / f"{name}.npz", x=x, y=y, client=OWNERS)
    said = shell(
        "run",
        "data.name=npz",
        f"data.path='{name}.npz'",
        "rounds=1",
        "method=wecfl",
        "method.k=2",
        "--out",
        f"{name}-[/run]",
    )
    assert said.code == 0
    assert said.err.startswith(f"{name}: 4 clients")
    assert f"run directory: {name}-[/run]\n" in said.out
