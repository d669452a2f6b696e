"""A run with a robust aggregator or an attack: its configuration, record, files and continuation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

import coterie
from conftest import make_federation, raises
from coterie.core.local import Local
from coterie.network.config import read as read_server
from coterie.tools.cli.main import app
from coterie.training.config import RunConfig, read
from coterie.training.round_history import line_of
from coterie.training.round_history import read as read_rounds
from coterie.training.trust import named_code

WORDS = ["rounds=4", "checkpoint_every=1", "method.name=wecfl", "aggregator=median", "attack.kind=label-flip"]


def test_keys_of_a_configuration(tmp_path: Path) -> None:
    config = read(None, [*WORDS, "aggregator.share=0.3"])
    assert config.aggregator == coterie.Robust("median", share=0.3)
    assert config.attack == coterie.Attack(kind="label-flip")
    file = tmp_path / "run.yaml"
    file.write_text("aggregator: krum\nattack: {share: 0.1}\n")
    assert read(file).aggregator == coterie.Robust("krum")
    assert "aggregator" not in RunConfig().dump()
    assert "attack" not in RunConfig().dump()
    with raises("config-invalid-value", match=r"aggregator.name: .*'trimmed-mean'.* \(got 'mode'\)"):
        read(None, ["aggregator=mode"])
    with raises("config-unknown-key", match=r"aggregator.shar: unknown key. Did you mean 'share'"):
        read(None, ["aggregator=median", "aggregator.shar=0.1"])
    with raises("config-invalid-value", match="unknown attack 'nice'"):
        read(None, ["attack.kind=nice"])


def test_an_attack_of_ones_own_is_code_that_a_directory_names() -> None:
    assert list(named_code({"attack": {"kind": "mine:attack", "share": 0.2}})) == [("attack.kind", "mine:attack")]


def test_a_server_takes_an_aggregator_and_no_attack() -> None:
    assert read_server(None, ["aggregator=median"]).aggregator == coterie.Robust("median")
    with raises("config-conflict", match="attack: is for simulations"):
        read_server(None, ["attack.kind=nan"])


def test_a_run_says_so_and_continues_to_the_same_bits(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["run", *WORDS, "--out", str(tmp_path / "whole")])
    assert run.exit_code == 0, run.output
    assert "attack: label-flip by 8 clients; scores are of the honest ones" in " ".join(run.output.split())
    half = CliRunner().invoke(app, ["run", *WORDS, "rounds=2", "--out", str(tmp_path / "half")])
    assert half.exit_code == 0, half.output
    more = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / "half"), "rounds=4"])
    assert more.exit_code == 0, more.output
    (whole, half_way) = (coterie.load(tmp_path / name) for name in ("whole", "half"))
    assert torch.equal(whole.state.centers, half_way.state.centers)
    config = yaml.safe_load((tmp_path / "whole" / "config.yaml").read_text())
    assert config["attack"]["kind"] == "label-flip"
    assert config["aggregator"]["floor"] == 5
    attack = json.loads((tmp_path / "whole" / "attack.json").read_text())
    assert len(attack["hostile"]) == 8
    scored = {row["client"] for row in json.loads((tmp_path / "whole" / "clients.json").read_text())}
    assert scored == set(range(40)) - set(attack["hostile"])
    for _, event in read_rounds(tmp_path / "whole").values():
        assert event.layers.get("aggregator") is not None
    other = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / "half"), "rounds=5", "aggregator=krum"])
    assert isinstance(other.exception, coterie.CoterieError)
    assert "its aggregator is" in str(other.exception)


def robust(**more: Any) -> coterie.Result[Any]:
    settings: dict[str, Any] = {"rounds": 2, "engine": "sequential"} | more
    return coterie.run(coterie.FedAvg(), make_federation(10), "linear", **settings)


def test_small_clusters_are_noted_in_the_record() -> None:
    """Ten clients in one cluster, below a floor of 11."""
    result = robust(aggregator={"name": "krum", "floor": 11})
    (first, _) = result.history
    assert first.layers["aggregator"]["small"] == [[0, 10]]
    assert json.loads(line_of(first))["layers"]["aggregator"]["small"] == [[0, 10]]
    assert any("of up to 10 clients" in text for text in result.warnings)
    assert "aggregator" not in json.loads(line_of(robust().history[0]))["layers"]


def test_a_backdoor_reports_its_success() -> None:
    result = robust(attack={"kind": "backdoor", "share": 0.3})
    assert result.attack is not None
    assert result.attack.success is not None
    assert 0 <= result.attack.success <= 1
    assert "the backdoor works in" in str(result.attack)


def test_poisoned_data_needs_an_engine_by_name() -> None:
    from coterie.engines.sequential import Sequential

    data = make_federation(10)
    engine = Sequential(coterie.Model(lambda: torch.nn.Linear(2, 2)), data)
    with raises("config-conflict", match="name the engine instead"):
        coterie.run(coterie.FedAvg(), data, "linear", rounds=1, engine=engine, attack={"kind": "label-flip"})


@pytest.mark.parametrize("newcomers", [0.3])
def test_hostile_newcomers_are_not_scored_either(newcomers: float) -> None:
    result = robust(attack={"share": 0.5, "kind": "nan"}, newcomers=newcomers, quorum=0.0)
    assert result.attack is not None
    assert result.newcomers is not None
    scored = {*result.clients.ids.tolist(), *result.newcomers.clients.ids.tolist()}
    assert scored == set(range(10)) - set(result.attack.hostile)


def test_an_attack_that_leaves_nobody_or_reaches_nothing_is_refused() -> None:
    with raises("config-conflict", match=r"attack.share: 0.96 of 10 clients leaves no honest one"):
        robust(attack={"share": 0.96})
    clients = coterie.federate("digits", coterie.data.Rotated(clients=8), seed=0)
    with raises("config-conflict", match=r"attack.cluster: 4, but the hidden clusters are 0, 1, 2, 3"):
        coterie.run(coterie.FedAvg(), clients, "linear", attack={"kind": "colluders-as-cluster", "cluster": 4})


def test_nan_on_purpose_does_not_blame_the_learning_rate() -> None:
    with raises("quorum", match="2 of 10 clients answered"):
        robust(attack={"share": 0.8, "kind": "nan"})


def test_clients_that_are_added_are_judged_before_they_found_a_cluster(tmp_path: Path) -> None:
    """Of eight that join a run with an aggregator one is hostile: it may not found a cluster on its way in."""
    whole = coterie.federate("digits", coterie.data.Rotated(clients=32), seed=0)

    def part(ids: range) -> coterie.Federation:
        arrays = [(*whole.samples(client, "train"), *whole.samples(client, "test")) for client in ids]
        return coterie.Federation.from_arrays(arrays, standardise=False)

    first, settings = part(range(24)), {"attack": {"share": 0.1, "kind": "sign-flip"}, "aggregator": "geometric-median"}
    method = coterie.StoCFL(local=Local(epochs=1))
    coterie.run(method, first, "linear", rounds=2, seed=1, engine="sequential", **settings, out=tmp_path)  # type: ignore[arg-type]
    grown = coterie.go_on(tmp_path, federation=first, add=part(range(24, 32)), more=1, engine="sequential")
    assert grown.attack is not None
    (joined,) = (client for client in grown.attack.hostile if client >= 24)
    assert not grown.state.labels.has(torch.tensor([joined])).any()
    assert len(grown.state.centers) == 4
    assert joined in grown.history[-1].rejected
    assert grown.state.labels.has(torch.tensor([c for c in range(24, 32) if c != joined])).all()


def test_who_was_quarantined_does_not_found_a_cluster_in_the_next_round(tmp_path: Path) -> None:
    """StoCFL asks alone whom it has not met: two hostile clients that were quarantined among 24 come back as two."""
    clients = coterie.federate("digits", coterie.data.Rotated(clients=24), seed=0)
    settings: dict[str, Any] = {"seed": 0, "engine": "sequential", "attack": {"share": 0.1, "kind": "sign-flip"}}
    method = coterie.StoCFL(local=Local(epochs=1))
    open_door = coterie.run(method, clients, "linear", rounds=2, **settings)
    hostile = torch.tensor(open_door.attack.hostile) if open_door.attack is not None else torch.empty(0)
    assert len(hostile) == 2
    founded = open_door.state.labels.at(hostile)
    assert not torch.isin(founded, open_door.state.labels.at(open_door.clients.ids)).any()  # clusters of their own
    settings |= {"aggregator": "geometric-median", "checkpoint_every": 1}
    guarded = coterie.run(method, clients, "linear", rounds=3, **settings, out=tmp_path / "whole")
    assert not guarded.state.labels.has(hostile).any()
    assert len(guarded.state.centers) == len(open_door.state.centers) - 2
    assert [event.layers["aggregator"]["quarantined"] for event in guarded.history] == [hostile.tolist()] * 3
    coterie.run(method, clients, "linear", rounds=1, **settings, out=tmp_path / "half")
    resumed = coterie.run(method, clients, "linear", rounds=3, **settings, out=tmp_path / "half", resume=True)
    assert torch.equal(resumed.state.centers, guarded.state.centers)
    assert not resumed.state.labels.has(hostile).any()
