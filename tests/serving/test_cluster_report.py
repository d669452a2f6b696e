"""Who is where: by hand, for every method, for runs of 0.1 without their data, and for a run over a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tables import METHODS_TRIED, trained

import coterie
from conftest import few, raises
from coterie.serving.cluster_record import ClientRecord, RunFacts
from coterie.serving.cluster_report import report
from coterie.serving.cluster_words import KINDS, table


def facts(*clients: ClientRecord, models: list[list[float]]) -> RunFacts:
    return RunFacts("Toy", True, clients, np.array(models), "models", 0)


def client(number: int, cluster: int, accuracy: float, *distances: float, samples: int = 10) -> ClientRecord:
    return ClientRecord(number, f"c{number}", cluster, samples, accuracy, 1.0, None, distances or None)


def test_sizes_scores_and_neighbours_by_hand() -> None:
    """Models (0, 3), (0, 5), (4, 0): distances 2, 5 and sqrt 41; the first two point the same way."""
    found = report(
        facts(
            *(client(0, 0, 0.8, 1.0, 4.0, 4.0), client(1, 0, 0.9, 2.0, 4.0, 4.0), client(2, 0, 1.0, 3.0, 4.0, 4.0)),
            *(client(3, 2, 0.5, 9.0, 9.0, 3.0), client(4, 2, 0.7, 9.0, 2.0, 4.0)),
            models=[[0, 3], [0, 5], [4, 0]],
        )
    )
    first, second, third = found.clusters
    assert [row.size for row in found.clusters] == [3, 0, 2]
    assert first.mean == pytest.approx(0.9)
    assert first.spread == pytest.approx(0.1)
    assert (first.worst, first.best) == (0.8, 1.0)
    assert second.mean is None
    assert first.nearest is not None
    assert third.nearest is not None
    assert (first.nearest.cluster, first.nearest.distance, first.nearest.cosine) == (1, 2.0, 1.0)
    assert (third.nearest.cluster, third.nearest.distance, third.nearest.cosine) == (0, 5.0, 0.0)
    assert first.typical == ("c0", "c1", "c2")  # margins 3/4, 2/4, 1/4
    assert [place.margin for place in found.clients[:4]] == pytest.approx([0.75, 0.5, 0.25, 2 / 3])
    assert found.clients[4].margin == pytest.approx((2 - 4) / 4)
    assert found.clients[4].doubts == ("its model is nearer to cluster 1",)
    assert third.doubtful == ("c4",)
    assert "Doubtful: c4 (cluster 2): its model is nearer to cluster 1." in str(found)
    assert "Cluster 1: no clients." in str(found)
    assert list(table(found)) == list(KINDS)


def test_all_members_are_named_where_there_are_few() -> None:
    models = [[0.0, 3.0], [0.0, 5.0]]
    few = report(facts(*(client(i, i % 2, 2 / 3) for i in range(40)), models=models))
    assert f"  members: {', '.join(f'c{i}' for i in range(1, 40, 2))}" in str(few).splitlines()
    assert "--csv" not in str(few)
    many = report(facts(*(client(i, i % 2, 2 / 3) for i in range(41)), models=models))
    assert "members:" not in str(many)
    assert "Who is in which cluster: --csv FILE." in str(many)
    assert table(many)["accuracy"] == [0.666667] * 41
    assert table(many)["loss"] == [1.0] * 41


def test_an_unusual_score_is_doubtful() -> None:
    """Nine clients at 90 %, give or take, and one that is right on 1 of 50."""
    others = [client(i, 0, 0.88 + 0.02 * (i % 3), samples=50) for i in range(9)]
    found = report(facts(*others, client(9, 0, 0.02, samples=50), models=[[1.0]]))
    assert [place.called for place in found.clients if place.doubts] == ["c9"]
    assert found.clients[9].doubts == ("its accuracy is unusual in its cluster",)


def test_shares_say_how_much_a_client_belongs() -> None:
    mixed = ClientRecord(0, None, 1, 10, 0.9, 1.0, (0.2, 0.45, 0.35))
    clear = ClientRecord(1, None, 0, 10, 0.9, 1.0, (0.8, 0.1, 0.1))
    found = report(facts(mixed, clear, models=[[1.0], [2.0], [3.0]]))
    assert [place.margin for place in found.clients] == pytest.approx([0.1, 0.7])
    assert found.clients[0].doubts == ("only 45% of it is of this cluster",)
    assert found.clients[1].doubts == ()


@pytest.mark.parametrize("name", few(METHODS_TRIED, "wecfl", "fedavg", "fedsoft", "local"))
def test_every_method_without_its_training_data(tmp_path: Path, name: str) -> None:
    run = trained(tmp_path, name, rounds=2)
    (tmp_path / "train.csv").unlink()
    found, result = coterie.clusters(run), coterie.load(run)
    assert len(found.clients) == 10
    assert all(place.score is not None for place in found.clients)
    if name in ("fedavg", "ditto", "local"):
        assert found.clustered is False
        assert str(found).startswith("No clusters in this run")
        assert all(place.cluster is None for place in found.clients)
        return
    if found.clustered:
        assert [place.cluster for place in found.clients] == result.assignments.tolist()
    assert sum(row.size for row in found.clusters) in (0, 10)


def test_no_run(tmp_path: Path) -> None:
    with raises("run-not-found"):
        coterie.clusters(tmp_path)
