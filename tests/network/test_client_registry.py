"""Who is who."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from conftest import raises
from coterie.network.messages import PROTOCOL, ClientInfo
from coterie.network.registry import ClientRegistry

ABOUT = ClientInfo(PROTOCOL, "anna", 30, 10, (6,), "classification", 3, "1.0")


def infos(*names: str) -> dict[int, ClientInfo]:
    return {100 + i: replace(ABOUT, name=name, train=30 + i) for i, name in enumerate(names)}


def test_ids_follow_names_at_first_and_are_never_given_twice() -> None:
    registry = ClientRegistry()
    assert registry.agree_on_shape(infos("cora", "anna", "bert"), 3, None)
    assert registry.register(infos("cora", "anna", "bert")) == {}
    assert registry.names == ("anna", "bert", "cora")
    assert registry.here == {0: 101, 1: 102, 2: 100}
    registry.set_connected({100, 102})
    assert registry.roster.ids.tolist() == [1, 2]
    assert registry.sizes(torch.tensor([0, 2])).tolist() == [31, 30]  # also of those who are away
    registry.register({200: replace(ABOUT, name="aaron")})
    assert list(registry.names)[3] == "aaron"
    registry.register({300: replace(ABOUT, name="anna", train=99)})  # back, at another node, with more data
    assert registry.here[0] == 300
    assert registry.roster.n.tolist() == [99, 32, 30, 30]


def test_the_roster_is_the_same_object_while_nothing_changes() -> None:
    registry = ClientRegistry()
    registry.agree_on_shape(infos("anna", "bert"), 2, None)
    registry.register(infos("anna", "bert"))
    first = registry.roster
    assert registry.roster is first
    registry.set_connected({100})
    assert registry.roster is not first


def test_they_are_read_back_as_they_were_and_none_is_there(tmp_path: Path) -> None:
    registry = ClientRegistry(path=tmp_path)
    registry.agree_on_shape(infos("anna", "bert"), 2, 10)
    registry.register(infos("anna", "bert"))
    again = ClientRegistry.read(tmp_path)
    assert (again.run, again.known, again.shape) == (registry.run, registry.known, registry.shape)
    assert again.here == {}
    assert again.identity() == registry.identity() == "inputs (6,), 10 classes"
    assert ClientRegistry.read(tmp_path / "nowhere").known == []
    (tmp_path / "members.json").write_text('{"run": 3}')
    with raises("run-damaged"):
        ClientRegistry.read(tmp_path)


def test_who_does_not_fit_is_told_why() -> None:
    registry = ClientRegistry()
    registry.agree_on_shape(infos("anna", "bert"), 2, None)
    refused = registry.register(
        {
            1: replace(ABOUT, name="wide", input_shape=(7,)),
            2: replace(ABOUT, name="other", kind="regression"),
            3: replace(ABOUT, name="more", outputs=4),
            4: replace(ABOUT, name="fewer", outputs=2),
            5: replace(ABOUT, name="columns", features="weight, age"),
            6: replace(ABOUT, name="labels", classes="no, yes"),
        }
    )
    assert sorted(refused) == [1, 2, 3, 5, 6]
    assert "(7,)" in refused[1]
    assert "regression" in refused[2]
    assert "4 outputs" in refused[3]
    assert "features: weight, age; this federation's: no names" in refused[5]
    assert "classes: no, yes" in refused[6]
    assert registry.names == ("fewer",)


def test_more_outputs_than_the_server_was_told_of() -> None:
    with raises("model-shape"):
        ClientRegistry().agree_on_shape(infos("anna"), 1, 2)


def test_the_kind_of_data_that_enough_have_is_the_federations() -> None:
    odd = replace(ABOUT, name="aaron", input_shape=(7,))
    registry = ClientRegistry()
    assert not registry.agree_on_shape({1: odd, **infos("bert")}, 2, None)
    assert registry.agree_on_shape({1: odd, **infos("bert", "cora")}, 2, None)
    assert registry.shape is not None
    assert registry.shape.input_shape == (6,)
    assert list(registry.register({1: odd, **infos("bert", "cora")})) == [1]
    assert registry.names == ("bert", "cora")
