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
    members.settle(abouts("cora", "anna", "bert"), None)
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
    members.settle(abouts("anna", "bert"), None)
    members.welcome(abouts("anna", "bert"))
    first = members.roster
    assert members.roster is first
    members.only({100})
    assert members.roster is not first


def test_they_are_read_back_as_they_were_and_none_is_there(tmp_path: Path) -> None:
    members = Members(path=tmp_path)
    members.settle(abouts("anna", "bert"), 10)
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
    members.settle(abouts("anna", "bert"), None)
    refused = members.welcome(
        {
            1: replace(ABOUT, name="wide", input_shape=(7,)),
            2: replace(ABOUT, name="other", kind="regression"),
            3: replace(ABOUT, name="more", outputs=4),
            4: replace(ABOUT, name="fewer", outputs=2),
        }
    )
    assert sorted(refused) == [1, 2, 3]
    assert "inputs (7,)" in refused[1]
    assert "regression" in refused[2]
    assert "4 outputs" in refused[3]
    assert members.names == ("fewer",)


def test_more_outputs_than_the_server_was_told_of() -> None:
    with pytest.raises(CoterieError, match=r"network.outputs: 2, but anna has 3"):
        Members().settle(abouts("anna"), 2)
