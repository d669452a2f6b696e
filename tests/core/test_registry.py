"""Names of components: whose code is imported, and what becomes of a name that is not of this library."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.core.registry import (
    ANY_CODE,
    ATTACKS,
    DATASETS,
    LOSSES,
    METHODS,
    MODELS,
    NO_CODE,
    PARTITIONS,
    Catalogue,
    Consent,
)
from coterie.data.federate import makes_clients
from coterie.data.sets.facts import OTHERS, PUBLIC
from coterie.training.build import build, build_data, build_method, resolved
from coterie.training.config import read
from coterie.training.trust import named_code, trust_words, with_attack

TRAP = "import pathlib\npathlib.Path({ran!r}).touch()\ndef Fun(*given, **more): pass\n"
CATALOGUES = {"method": METHODS, "model": MODELS, "data": DATASETS, "data.partition": PARTITIONS, "model.loss": LOSSES}
EVERY = [(key, name) for key, catalogue in CATALOGUES.items() for name in catalogue.places]


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once the module `payload` of the working directory was imported."""
    ran = tmp_path / "ran"
    (tmp_path / "payload.py").write_text(TRAP.format(ran=str(ran)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield ran
    sys.modules.pop("payload", None)


def tree_of(key: str, given: dict[str, Any]) -> dict[str, Any]:
    """A configuration with this under a dotted key."""
    tree = read(None, ["rounds=1"]).dump()
    *above, last = key.split(".")
    node = tree
    for part in above:
        node = node[part]
    node[last] = given
    return tree


def attempt(tree: dict[str, Any], consent: Consent) -> str:
    """Do with a configuration all that a run does before it trains; what is wrong with it."""
    try:
        config = read(None, base=tree, consent=consent)
        with_attack(config.settings, config.consent)
        method = build_method(config)
        resolved(config, method)
        build(config)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("key", "name"), EVERY)
def test_no_field_of_any_component_imports_what_a_configuration_names(key: str, name: str, trap: Path) -> None:
    """In place of each field's value: a bare name, {name: ...}, and one below another."""
    found = CATALOGUES[key].find(name, NO_CODE)
    fields = [f.name for f in dataclasses.fields(found) if f.init]
    for field in ["name", *fields]:
        for value in ("payload:Fun", {"name": "payload:Fun"}, {"name": "iid", "other": "payload:Fun"}):
            attempt(tree_of(key, {"name": name} | {field: value}), NO_CODE)
            assert not trap.exists(), (field, value)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("method", {"name": "payload:Fun"}),
        ("method", {"name": "cam", "base": {"name": "payload:Fun"}}),
        ("method", {"name": "cam", "base": {"name": "personal", "base": {"name": "payload:Fun"}}}),
        ("method", {"name": "wecfl-cam", "base": {"name": "payload:Fun"}}),
        ("model", {"name": "payload:Fun"}),
        ("model", {"name": "linear", "loss": "payload:Fun"}),
        ("model", {"name": "linear", "loss": {"name": "payload:Fun"}}),
        ("data", {"name": "payload:Fun"}),
        ("data.partition", {"name": "payload:Fun"}),
        ("data.partition", {"name": "hybrid", "clients": 8, "other": "payload:Fun"}),
        ("data.partition", {"name": "hybrid", "clients": 8, "other": {"name": "payload:Fun"}}),
        ("data.partition", {"name": "subsample", "partition": "payload:Fun"}),
        ("data.partition", {"name": "subsample", "partition": {"name": "hybrid", "other": "payload:Fun"}}),
        ("data.partition", {"name": "subsample", "partition": {"name": "subsample", "partition": "payload:Fun"}}),
        ("attack", {"kind": "payload:Fun"}),
    ],
)
def test_code_is_imported_with_consent_and_refused_without(key: str, given: dict[str, Any], trap: Path) -> None:
    tree = tree_of(key, given)
    said = attempt(tree, Consent(source="runs/a/config.yaml"))
    assert said.startswith("runs/a/config.yaml: "), said
    assert "'payload:Fun' is code beyond this library" in said
    assert "--trust payload:Fun" in said
    assert not trap.exists()
    attempt(tree, Consent(frozenset(["payload:Other", "payload"])))
    assert not trap.exists()
    attempt(tree, Consent(frozenset(["payload:Fun"])))
    assert trap.exists()
    assert trust_words(tree) == " --trust payload:Fun"


def test_a_partition_and_a_data_set_of_ones_own_inside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_parts.py").write_text(
        "import numpy as np, torch\nfrom coterie.data import Dataset, IID\n"
        "def spread(many):\n    return IID(clients=many)\n"
        "def digits(many):\n"
        "    return Dataset('zeros', torch.zeros(many, 1, 8, 8), torch.arange(many) % 10, 10)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = [
        "data.partition.name=subsample",
        "data.partition.partition={name: 'own_parts:spread', many: 4}",
        "data.partition.samples=200",
    ]
    config = read(None, words)
    assert len(build_data(config)) == 4
    assert resolved(config, build_method(config))["data"]["partition"]["partition"]["many"] == 4
    words = [
        "data.partition.name=hybrid",
        "data.partition.clients=4",
        "data.partition.other={name: 'own_parts:digits', many: 90}",
    ]
    config = read(None, words)
    assert len(build_data(config)) == 4
    assert resolved(config, build_method(config))["data"]["partition"]["other"]["many"] == 90


# ------------------------------------------------------------------------------------------- configuration files


def from_file(tmp_path: Path, text: str, *words: str, trust: tuple[str, ...] = ()) -> str:
    """What is wrong with a run of this file."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    try:
        build(read(file, words, consent=Consent(frozenset(trust))))
    except CoterieError as error:
        return str(error)
    return ""


NET = """
from pathlib import Path
from torch import nn
from torch.nn import Linear

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

class Other:
    def __init__(self):
        Path('ran').touch()

def net():
    return Net()

def number():
    return 3
"""


def test_a_file_alone_runs_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'model: {name: "subprocess:Popen", args: [touch, ran]}'
    said = from_file(tmp_path, text)
    assert f"{tmp_path / 'mine.yaml'}: model.name: 'subprocess:Popen'" in said
    assert "--trust subprocess:Popen, or put the module into" in said
    # Allowed, it is still no network, and is not called.
    assert "'subprocess:Popen' is not a network" in from_file(tmp_path, text, trust=("subprocess:Popen",))
    assert "'subprocess:Popen' is not a network" in from_file(
        tmp_path, "{}", "model={name: 'subprocess:Popen', args: [touch, ran]}"
    )
    assert "--trust os:system" in from_file(tmp_path, 'data: {name: "os:system", command: touch ran}')
    (tmp_path / "subprocess.py").write_text("class Popen: pass\n")  # beside the file, but not what would be imported
    assert "--trust subprocess:Popen" in from_file(tmp_path, text)
    assert not (tmp_path / "ran").exists()


def test_a_module_beside_the_file_is_the_files_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "own_net_beside.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    there = tmp_path / "beside"
    assert from_file(there, "model: {name: 'own_net_beside:Net'}") == ""
    assert from_file(there, "model: {name: 'own_net_beside:net'}") == ""
    assert "'own_net_beside:Other' is not a network" in from_file(there, "model: {name: 'own_net_beside:Other'}")
    # What the module imports from elsewhere does not lie beside the file.
    assert "--trust own_net_beside:Linear" in from_file(there, "model: {name: 'own_net_beside:Linear'}")
    assert "own_net_beside:number' gave a int" in from_file(there, "model: {name: 'own_net_beside:number'}")
    # A run directory is received whole: in it, nothing is one's own.
    (there / "run.json").write_text("{}")
    assert "--trust own_net_beside:Net" in from_file(there, "model: {name: 'own_net_beside:Net'}")
    assert not (tmp_path / "ran").exists()


def test_what_is_typed_needs_no_further_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own_net_typed.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert from_file(tmp_path, "{}", "model.name=own_net_typed:Net") == ""
    assert from_file(tmp_path, "{}", "model={name: 'own_net_typed:Net'}") == ""
    assert "--trust own_net_typed:Net" in from_file(tmp_path, "model: {name: 'own_net_typed:Net'}")
    assert from_file(tmp_path, "model: {name: 'own_net_typed:Net'}", trust=("own_net_typed:Net",)) == ""
    for bad, why in (("Other", "is not a network"), ("number", "gave a int"), ("Absent", "has no 'Absent'")):
        assert why in from_file(tmp_path, "{}", f"model.name=own_net_typed:{bad}")
    assert "is not a method (a class with init" in from_file(tmp_path, "{}", "method.name=own_net_typed:Net")
    assert "is not a data set" in from_file(tmp_path, "{}", "data.name=own_net_typed:Other")
    assert not (tmp_path / "ran").exists()


def test_no_file_gives_consent_itself(tmp_path: Path) -> None:
    assert "consent: unknown key" in from_file(tmp_path, "consent: {anything: true}")
    assert "consent" in from_file(tmp_path, "{}", "consent.anything=true")
    assert "consent" not in read(None).dump()


def test_code_that_is_named_is_found_in_a_document() -> None:
    tree = {"method": {"name": "a:B", "base": {"name": "a:B"}}, "model": "c:D", "data": {"name": "csv", "path": "x:y"}}
    assert list(named_code(tree)) == [("method.name", "a:B"), ("method.base.name", "a:B"), ("model", "c:D")]


def test_an_unknown_name_is_told_with_what_there_is() -> None:
    for catalogue in CATALOGUES.values():
        with raises("config-unknown-name", match="unknown"):
            catalogue.find("nothing-like-it", ANY_CODE)
    with raises("component-not-found", match=r"attack\.kind: cannot import 'nowhere'"):
        ATTACKS.find("nowhere:Fun", ANY_CODE)
    assert Catalogue("x", {}).named(3, NO_CODE) == 3


def test_a_listing_says_what_every_component_is() -> None:
    for catalogue in (METHODS, MODELS, PARTITIONS, DATASETS):
        assert [entry.name for entry in catalogue.entries()] == list(catalogue.places)
        assert all(entry.summary for entry in catalogue.entries())


def test_the_facts_about_data_are_those_of_their_classes() -> None:
    assert {*PUBLIC, *OTHERS} == set(DATASETS.places)
    for name in DATASETS.places:
        found = DATASETS.find(name, NO_CODE)
        if name in PUBLIC:
            assert found.spec is PUBLIC[name]
            continue
        assert not hasattr(found, "spec")
        own = any(field.name == "path" for field in dataclasses.fields(found))
        assert OTHERS[name] == ("generated" if makes_clients(found) else "your own file" if own else "embedded")
