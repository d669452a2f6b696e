"""What first users met: frozen parts of a network of one's own, losses that do not fit, an attack that is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from conftest import raises
from coterie.core.errors import CoterieError
from coterie.core.registry import ANY_CODE
from coterie.training.build import named_model

CLIENTS = [(np.random.default_rng(i).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for i in range(4)]


def test_what_is_frozen_of_a_network_by_name_is_the_same_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is another state of torch's generator."""
    code = "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))\n"
    (tmp_path / "own_net.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    data = coterie.Federation.from_arrays(CLIENTS, standardise=False, standardise_y=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        one = named_model("own_net:net", {"train": "head"}, data, ANY_CODE)
        torch.manual_seed(2)
        other = named_model("own_net:net", {"train": "head"}, data, ANY_CODE)
        assert one.frozen == other.frozen
        assert one.size == 4 * 2 + 2
        draws = [m.init(np.random.default_rng(0)) for m in (one, other)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], one.init(np.random.default_rng(1)))


class Two(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("loss", "code"), [("mse", "model-invalid"), ("mae", "model-shape"), ("multilabel", "model-shape")]
)
def test_losses_that_do_not_fit_classes_are_refused_before_a_round(loss: str, code: str) -> None:
    with raises(code):
        coterie.run("fedavg", CLIENTS, coterie.Tuned(Two, loss=loss), rounds=1)


def test_an_attack_is_told_of_a_run_that_was_read_back(tmp_path: Path) -> None:
    attack = {"share": 0.25, "kind": "sign-flip"}
    result = coterie.run("fedavg", CLIENTS, "linear", rounds=1, attack=attack, out=tmp_path / "a")
    assert result.attack is not None
    assert coterie.load(tmp_path / "a").attack == result.attack


def test_an_attacker_that_is_no_function_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_attack.py").write_text("number = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CoterieError, match=r"attack\.kind: 'own_attack:number' is not a function"):
        coterie.Attack(share=0.25, kind="own_attack:number").attacker(ANY_CODE)


def still(view: coterie.AttackView) -> coterie.Lie:
    """An attacker of one's own: no update at all."""
    return coterie.Lie(torch.zeros_like(view.updates[view.hostile]))


class Still:
    """The same, as an object."""

    def __call__(self, view: coterie.AttackView) -> coterie.Lie:
        return still(view)


@pytest.mark.parametrize(("attacker", "name"), [(still, "still"), (Still(), "Still")])
def test_an_attacker_is_given_as_a_function_or_an_object_and_named_in_the_run(
    attacker: Any, name: str, tmp_path: Path
) -> None:
    made: dict[str, Any] = {"rounds": 2, "checkpoint_every": 1, "engine": "sequential"}
    mine = coterie.run(
        "fedavg", CLIENTS, "linear", **made, attack={"share": 0.25, "kind": attacker}, out=tmp_path / "a"
    )
    same = coterie.run("fedavg", CLIENTS, "linear", **made, attack={"share": 0.25, "kind": "free-rider"})
    assert torch.equal(mine.state, same.state)
    assert mine.attack is not None
    assert mine.attack.kind == f"{__name__}:{name}"
    settings = made | {"rounds": 3, "attack": {"share": 0.25, "kind": attacker}}
    again = coterie.run("fedavg", CLIENTS, "linear", **settings, out=tmp_path / "a", resume=True)
    assert again.history[-1].round == 3


def test_code_that_a_run_made_in_python_names_is_not_imported_unasked(tmp_path: Path) -> None:
    attack = {"share": 0.25, "kind": still}
    coterie.run("fedavg", CLIENTS, "linear", rounds=1, attack=attack, out=tmp_path / "a")
    with raises("trust-needed"):
        coterie.go_on(tmp_path / "a", more=1, federation=CLIENTS, model="linear")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"kind": "nan", "scale": 2.0}, "scale"),
        ({"kind": "free-rider", "scale": 2.0}, "scale"),
        ({"kind": "sign-flip", "cluster": 1}, "cluster"),
        ({"kind": "sign-flip", "target": 1}, "target"),
        ({"kind": still, "target": 1}, "target"),
    ],
)
def test_options_that_an_attack_makes_no_use_of_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(CoterieError, match=f"{key}: .* makes no use of it"):
        coterie.Attack(**options)


def test_everything_that_shows_an_attacked_run_says_so(tmp_path: Path) -> None:
    from coterie.tools.report.page import head_of
    from coterie.tools.report.record import read_run

    coterie.run("fedavg", CLIENTS, "linear", rounds=1, attack={"share": 0.25, "kind": "nan"}, out=tmp_path / "a")
    said = "ttack: nan by 1 clients; scores are of the honest ones"
    record = read_run(tmp_path / "a")
    assert said in str(head_of(record))
    assert said in str(coterie.clusters(tmp_path / "a"))
    assert "not evaluated" not in str(coterie.clusters(tmp_path / "a"))
    (tmp_path / "a" / "attack.json").unlink()  # as of a run that has not ended
    assert "ttack: nan by 25 % of the clients" in str(head_of(read_run(tmp_path / "a")))
    clean = coterie.run("fedavg", CLIENTS, "linear", rounds=1, out=tmp_path / "b")
    assert "ttack" not in str(head_of(read_run(tmp_path / "b"))) + str(coterie.clusters(clean))


def test_several_labels_per_sample_are_floats() -> None:
    x, y = np.ones((6, 3)), np.ones((6, 4), dtype=int)
    with raises("data-labels", match=r"floats .* loss=multilabel"):
        coterie.Federation.from_arrays([(x, y)], standardise=False, standardise_y=False)
    made = coterie.Federation.from_arrays([(x, y.astype(np.float32))] * 2, standardise=False, standardise_y=False)
    coterie.run("fedavg", made, coterie.Tuned("linear", loss="multilabel"), rounds=1)


@pytest.mark.parametrize("train", [5, (), (3,), None])
def test_what_is_trained_is_named(train: Any) -> None:
    with raises("config-invalid-value", match="expected all, head"):
        coterie.Tuned("linear", train=train)


def test_a_loss_of_a_configuration_may_be_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_loss.py").write_text(
        "import torch\ndef squares(outputs, y):\n"
        "    return (outputs.softmax(1) - torch.eye(outputs.shape[1])[y]).square().sum(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import own_loss  # type: ignore[import-not-found]

    by_name = coterie.run("fedavg", CLIENTS, coterie.Tuned("linear", loss="own_loss:squares"), rounds=1)
    given = coterie.run("fedavg", CLIENTS, coterie.Tuned("linear", loss=own_loss.squares), rounds=1)
    assert torch.equal(by_name.state, given.state)
