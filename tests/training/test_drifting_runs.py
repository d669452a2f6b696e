"""Runs on data that changes by round: all engines see the same, and so does a run that was interrupted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.core.codec import pack
from coterie.core.errors import CoterieError
from coterie.core.tasks import Local
from coterie.data import Drift, Rotated
from coterie.data.federation import Federation
from coterie.network.config import read
from coterie.training.config import read as read_run_config
from coterie.training.events import RoundDone

L = Local(epochs=3, batch=8, lr=0.1)
METHODS = {
    "halves": coterie.Halves(local=L, look=10),
    "feddrift": coterie.FedDrift(local=L),
    "composed": coterie.Composed(representation="classifier", when="drift", first=1, local=L),
}


@cache
def data() -> Federation:
    return coterie.federate("digits", Rotated(clients=8, angles=(0, 180)), drift=Drift("staggered", 5, 2, 2), seed=0)


def ran(method: Any, **more: Any) -> Any:
    settings: dict[str, Any] = {"rounds": 8, "engine": "sequential", "seed": 3} | more
    return coterie.run(method, data(), "linear", **settings)


def tensors(result: Any) -> list[torch.Tensor]:
    return list(pack(result.state)[1])


@pytest.mark.slow  # whole runs, several times
@pytest.mark.parametrize("name", METHODS)
def test_other_processes_see_the_same_data(name: str) -> None:
    one, many = ran(METHODS[name]), ran(METHODS[name], engine="workers", workers=2)
    assert all(map(torch.equal, tensors(one), tensors(many)))
    together = ran(METHODS[name], engine="batched")
    for a, b in zip(tensors(one), tensors(together), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.slow  # whole runs, several times
@pytest.mark.parametrize("name", METHODS)
def test_interrupted_in_mid_drift(name: str, tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, RoundDone) and event.round == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(METHODS[name], out=tmp_path / "run", listeners=[stop])
    resumed, whole = ran(METHODS[name], out=tmp_path / "run", resume=True), ran(METHODS[name])
    assert all(map(torch.equal, tensors(resumed), tensors(whole)))
    assert [e.summary.ari for e in resumed.history] == [e.summary.ari for e in whole.history[-len(resumed.history) :]]


def test_scores_are_of_the_rounds_data() -> None:
    """The oracle is told the clusters of each round, so its ARI is 1; its models would not fit the old data."""
    oracle = ran(coterie.Oracle(local=L))
    assert [event.summary.ari for event in oracle.history] == [1.0] * 8
    labels, course = oracle.assignments, data().course
    assert course is not None
    assert labels.tolist() == course.phases[-1].truth.tolist()  # type: ignore[union-attr]
    assert labels.tolist() != data().truth.tolist()  # type: ignore[union-attr]
    accuracy = [event.summary.accuracy for event in oracle.history]
    assert min(accuracy[4:]) > accuracy[3] - 0.05


@pytest.mark.slow  # losses must have fallen before a jump can be seen
def test_halves_follows_in_the_round_of_the_drift() -> None:
    spread, local = Rotated(clients=8, angles=(0, 180)), Local(epochs=5, batch=8, lr=0.1)
    moved = coterie.federate("digits", spread, drift=Drift("sudden", 9), seed=0)
    found = coterie.run(coterie.Halves(local=local, look=10), moved, "linear", rounds=10, engine="sequential", seed=3)
    assert [event.summary.ari for event in found.history if event.summary is not None] == [1.0] * 10
    (told,) = [str(c) for event in found.history for c in event.counted if c.rule == "drift"]
    assert "another cluster's model fits, they move" in told


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 5, 11])  # losses have hardly fallen; a trial is on; everyone is looked at again
def test_halves_follows_an_early_drift_and_one_in_a_round_of_looks(at: int) -> None:
    spread = Rotated(clients=12, angles=(0, 90, 180))
    moved = coterie.federate("digits", spread, drift=Drift("sudden", at), seed=0)
    found = coterie.run(coterie.Halves(local=L), moved, "linear", rounds=at + 1, engine="batched", seed=0)
    rounds = [event.summary for event in found.history if event.summary is not None]
    assert [one.ari for one in rounds] == [1.0] * (at + 1)
    assert rounds[-1].clusters == 3


@pytest.mark.slow
def test_composed_follows_an_early_drift_by_two_halves() -> None:
    moved = coterie.federate("digits", Rotated(clients=8, angles=(0, 180)), drift=Drift("sudden", 4), seed=0)
    method = coterie.Composed(representation="classifier", when="drift", first=1, k=2, local=L)
    found = coterie.run(method, moved, "linear", rounds=5, engine="batched", seed=0)
    assert [event.summary.ari for event in found.history if event.summary is not None][1:] == [1.0] * 4


@pytest.mark.slow
def test_halves_without_a_drift_is_the_same_with_and_without_the_alarm() -> None:
    calm = coterie.federate("digits", Rotated(clients=8, angles=(0, 180)), seed=0)
    runs = [
        coterie.run(coterie.Halves(local=L, look=10, drift=on), calm, "linear", rounds=8, engine="sequential")
        for on in (True, False)
    ]
    assert torch.equal(runs[0].state.centers, runs[1].state.centers)


def test_short_forms(tmp_path: Path) -> None:
    assert read_run_config(None, ["data.drift=recurrent"]).data.drift == Drift("recurrent")
    assert read_run_config(None, ["data.drift=recurrent", "data.drift.at=4"]).data.drift == Drift("recurrent", at=4)
    assert read_run_config(None, ["data.drift.at=4", "data.drift=recurrent"]).data.drift == Drift("recurrent", at=4)
    (tmp_path / "run.yaml").write_text(
        "data: {name: digits, partition: shifted, drift: staggered}\nmethod: {name: personal, base: wecfl}\n"
    )
    found = read_run_config(tmp_path / "run.yaml")
    assert found.data.drift == Drift("staggered")
    assert found.data.partition is not None
    assert (found.data.partition.name, found.method.params["base"]) == ("shifted", {"name": "wecfl"})
    assert read_run_config(None, ["method.name=personal", "method.base=wecfl"]).method.params["base"]["name"] == "wecfl"
    spread = Rotated(clients=8)
    one, other = (coterie.federate("digits", spread, drift=how, seed=2) for how in ("sudden", Drift("sudden")))
    assert one.identity() == other.identity()
    for wrong in (
        lambda: read_run_config(None, ["data.drift=often"]),
        lambda: coterie.federate("digits", spread, drift="often"),
    ):
        with pytest.raises(CoterieError, match=r"often|sudden"):
            wrong()


def test_a_change_that_never_came_is_warned_of() -> None:
    late = coterie.federate("digits", Rotated(clients=8), drift=Drift("sudden", at=4), seed=0)
    warned = [coterie.run("fedavg", late, "linear", rounds=rounds).warnings for rounds in (3, 4)]
    assert [any("was to change in round 4 first" in text for text in texts) for texts in warned] == [True, False]


@pytest.mark.parametrize("name", ["visits.csv", "visits.parquet", "visits.npz"])
def test_data_where_a_configuration_is_expected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"a,b,c\n1,2,3\n" if name.endswith("csv") else b"PAR1\xff\x00")
    with pytest.raises(CoterieError, match=rf"coterie init .*{name} writes a configuration"):
        read_run_config(tmp_path / name)


def test_real_clients_change_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("data: {name: digits, drift: {kind: sudden}}\n")
    for file, words in ((tmp_path / "run.yaml", []), (None, ["data.drift.kind=sudden"])):
        with pytest.raises(CoterieError, match="changes by itself"):
            read(file, words)
