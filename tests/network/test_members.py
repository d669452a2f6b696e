"""Who is who."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coterie.errors import CoterieError
from coterie.network.errand import PROTOCOL, About
from coterie.network.members import Members

ABOUT = About(PROTOCOL, "anna", 30, 10, (6,), "classification", 3, "1.0")


def abouts(*names: str) -> dict[int, About]:
    return {100 + i: replace(ABOUT, name=name, train=30 + i) for i, name in enumerate(names)}


def test_ids_follow_names_at_first_and_are_never_given_twice() -> None:
    members = Members()
    assert members.settle(abouts("cora", "anna", "bert"), 3, None)
    assert members.welcome(abouts("cora", "anna", "bert")) == {}
    assert members.names == ("anna", "bert", "cora")
    assert members.here == {0: 101, 1: 102, 2: 100}
    members.only({100, 102})
    assert members.roster.ids.tolist() == [1, 2]
    assert members.sizes(torch.tensor([0, 2])).tolist() == [31, 30]  # also of those who are away
    members.welcome({200: replace(ABOUT, name="aaron")})
    assert list(members.names)[3] == "aaron"
    members.welcome({300: replace(ABOUT, name="anna", train=99)})  # back, at another node, with more data
    assert members.here[0] == 300
    assert members.roster.n.tolist() == [99, 32, 30, 30]


def test_the_roster_is_the_same_object_while_nothing_changes() -> None:
    members = Members()
    members.settle(abouts("anna", "bert"), 2, None)
    members.welcome(abouts("anna", "bert"))
    first = members.roster
    assert members.roster is first
    members.only({100})
    assert members.roster is not first


def test_they_are_read_back_as_they_were_and_none_is_there(tmp_path: Path) -> None:
    members = Members(path=tmp_path)
    members.settle(abouts("anna", "bert"), 2, 10)
    members.welcome(abouts("anna", "bert"))
    again = Members.read(tmp_path)
    assert (again.run, again.known, again.shape) == (members.run, members.known, members.shape)
    assert again.here == {}
    assert again.identity() == members.identity() == "inputs (6,), 10 classes"
    assert Members.read(tmp_path / "nowhere").known == []
    (tmp_path / "members.json").write_text('{"run": 3}')
    with pytest.raises(CoterieError, match="damaged"):
        Members.read(tmp_path)


def test_who_does_not_fit_is_told_why() -> None:
    members = Members()
    members.settle(abouts("anna", "bert"), 2, None)
    refused = members.welcome(
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
    assert members.names == ("fewer",)


def test_more_outputs_than_the_server_was_told_of() -> None:
    with pytest.raises(CoterieError, match=r"network.outputs: 2, but anna has 3"):
        Members().settle(abouts("anna"), 1, 2)


def test_the_kind_of_data_that_enough_have_is_the_federations() -> None:
    odd = replace(ABOUT, name="aaron", input_shape=(7,))
    members = Members()
    assert not members.settle({1: odd, **abouts("bert")}, 2, None)
    assert members.settle({1: odd, **abouts("bert", "cora")}, 2, None)
    assert members.shape is not None
    assert members.shape.input_shape == (6,)
    assert list(members.welcome({1: odd, **abouts("bert", "cora")})) == [1]
    assert members.names == ("bert", "cora")
