"""Predictions for the rows of a file: by the model of each row's client, in the order of the file."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tables import METHODS_TRIED, rows_of, shuffled, trained, write

import coterie
from conftest import few, raises
from coterie import IFCA, FedAvg, Federation, Local
from coterie.core.tasks import Evaluated
from coterie.data import table as table_module
from coterie.training.result import Result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("predict")


@pytest.fixture(scope="module")
def wecfl(folder: Path) -> Path:
    run = trained(folder, "wecfl", rounds=12)
    (folder / "train.csv").rename(folder / "gone.csv")
    return run


def said_in(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def by_hand() -> Result[Any]:
    """IFCA with two clusters of one input: logits (0, x ln 3) and (0, -x ln 3). Clients 0 and 1 have chosen 0 and 1."""
    data = [(np.array([[1.0], [-1.0]] * 5, dtype="float32"), np.array([1, 0] * 5) ^ flip) for flip in (0, 1)]
    federation = Federation.from_arrays(data, names=["up", "down"], standardise=False, standardise_y=False)
    result = coterie.run(IFCA(k=2, local=Local(steps=1)), federation, "linear", rounds=1, seed=0)
    up = torch.tensor([0.0, math.log(3), 0.0, 0.0])  # weights of both classes, then biases
    state = torch.stack([up, -up])
    clients = Evaluated(
        *(torch.arange(2), torch.tensor([2, 2]), torch.zeros(2), torch.ones(2), torch.ones(2), torch.tensor([0, 1]))
    )
    return Result(
        *(result.method, result.model, state, result.history, clients, result.summary, 0.0, federation),
        *(result.settings, result.memory, None, state),
    )


def test_probabilities_by_hand() -> None:
    """x = 1 gives odds of 3 to 1 for class 1 in cluster 0, and for class 0 in cluster 1; x = 2 gives 9 to 1."""
    table = {"client": ["up", "down", "up"], "x": [1.0, 1.0, 2.0]}
    found = coterie.predict_table(by_hand(), table).columns
    assert found is not None
    assert found["row"] == [0, 1, 2]
    assert found["client"] == ["up", "down", "up"]
    assert found["cluster"] == [0, 1, 0]
    assert found["model"] == ["run"] * 3
    assert found["prediction"] == [1, 0, 1]
    assert found["p_1"] == pytest.approx([0.75, 0.25, 0.9])
    assert found["p_0"] == pytest.approx([0.25, 0.75, 0.1])


def test_a_newcomer_is_placed_first_by_hand() -> None:
    """'new' says 0 where x is 1: cluster 1 has the least loss. Its row without a label is predicted all the same."""
    table = {"client": ["new", "up", "new", "new"], "x": [1.0, 1.0, -1.0, 2.0], "y": ["0", "1", "1", ""]}
    found = coterie.predict_table(by_hand(), table).columns
    assert found is not None
    assert found["client"] == ["new", "up", "new", "new"]
    assert found["cluster"] == [1, 0, 1, 1]
    assert found["model"] == ["assigned", "run", "assigned", "assigned"]
    assert found["p_0"] == pytest.approx([0.75, 0.25, 0.25, 0.9])


def test_a_cluster_or_a_client_that_is_named() -> None:
    result = by_hand()
    table = {"x": [1.0]}
    named, given = coterie.predict_table(result, table, client="down"), coterie.predict_table(result, table, cluster=0)
    assert named.columns is not None
    assert given.columns is not None
    assert (named.columns["client"], named.columns["cluster"], named.columns["prediction"]) == (["down"], [1], [0])
    assert (given.columns["client"], given.columns["cluster"], given.columns["prediction"]) == ([None], [0], [1])
    assert given.columns["model"] == ["given"]


def test_who_cannot_be_placed_is_named_with_what_to_do() -> None:
    result = by_hand()
    with raises("client-unknown", match=r"does not know 'a', 'b', .*no column 'y'.*--client NAME.*--cluster K"):
        coterie.predict_table(result, {"client": ["a", "up", "b"], "x": [1.0, 2.0, 3.0]})
    with raises("client-unknown", match="'a', and cannot be placed: no labelled rows"):
        coterie.predict_table(result, {"client": ["a"], "x": [1.0], "y": [""]})
    with raises("data-column-unknown", match="'client' that says whose"):
        coterie.predict_table(result, {"x": [1.0]})
    with raises("argument-conflict"):
        coterie.predict_table(result, {"x": [1.0]}, client="up", cluster=0)
    with raises("cluster-unknown"):
        coterie.predict_table(result, {"x": [1.0]}, cluster=2)
    with raises("client-unknown"):
        coterie.predict_table(result, {"x": [1.0]}, client="upp")


@pytest.mark.parametrize("name", few(METHODS_TRIED, "wecfl", "ifca", "fedem", "ditto"))
def test_known_clients_are_predicted_as_result_predict_does(tmp_path: Path, name: str) -> None:
    result = coterie.load(trained(tmp_path, name, rounds=2))
    rows = shuffled(rows_of((0, 3), 5, seed=3))
    file = write(tmp_path / "new.csv", [row[:4] for row in rows], "site,a,b,colour")
    found = coterie.predict_table(result, file).columns
    assert found is not None
    for i, row in enumerate(rows):
        table = {"a": [row[1]], "b": [row[2]], "colour": [row[3]]}
        said = result.predict(row[0], table, proba=True)[0]
        assert [found["p_high"][i], found["p_low"][i]] == pytest.approx(said.tolist(), abs=1e-6)
        assert found["prediction"][i] == ("high", "low")[int(said.argmax())]


def test_the_order_of_the_file_and_chunks(wecfl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known clients and newcomers mixed, with a file read in many chunks and in one."""
    rows = shuffled([*rows_of((0, 1), 8), *rows_of((20, 21), 8), *rows_of((30,), 30, seed=2, rule=2)])
    file = write(tmp_path / "new.csv", rows)
    coterie.predict_table(wecfl, file, tmp_path / "a.csv")
    monkeypatch.setattr(table_module, "CHUNK_ROWS", 5)
    coterie.predict_table(wecfl, file, tmp_path / "b.csv")
    one, other = (said_in(tmp_path / n) for n in ("a.csv", "b.csv"))
    assert [row["client"] for row in one] == [row[0] for row in rows]
    assert [(row["row"], row["prediction"], row["model"]) for row in one] == [
        (row["row"], row["prediction"], row["model"]) for row in other
    ]
    models = {row["client"]: row["model"] for row in one}
    assert models == {"site-0": "run", "site-1": "run", "site-20": "assigned", "site-21": "assigned"} | {
        "site-30": "none_fits"
    }
    right = [row["prediction"] == was[4] for row, was in zip(one, rows, strict=True) if was[0] != "site-30"]
    assert np.mean(right) > 0.8


def test_csv_and_parquet_say_the_same(wecfl: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = write(tmp_path / "new.csv", rows_of((0, 20), 6))
    said = coterie.predict_table(wecfl, file, tmp_path / "out.csv")
    coterie.predict_table(wecfl, file, tmp_path / "out.parquet")
    assert (said.rows, said.out) == (12, tmp_path / "out.csv")
    table = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    rows = said_in(tmp_path / "out.csv")
    assert list(rows[0]) == list(table) == ["row", "client", "cluster", "model", "prediction", "p_high", "p_low"]
    assert [float(row["p_high"]) for row in rows] == table["p_high"]
    assert [int(row["cluster"]) for row in rows] == table["cluster"]


def test_nothing_is_written_where_a_row_is_wrong(wecfl: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "new.csv", [*rows_of((0,), 6), ("site-0", "1", "x", "red", "high")])
    with raises("data-cell", match="column 'b', line 8: 'x' is not a number"):
        coterie.predict_table(wecfl, file, tmp_path / "out.csv")
    assert not list(tmp_path.glob("out*"))


def test_arrays_of_an_npz_file(tmp_path: Path) -> None:
    """A run made in Python, whose clients have numbers; 7 is none of them."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (60, 1, 4, 4), dtype=np.uint8)
    y = (x.reshape(60, -1).mean(1) > 127).astype(np.int64)
    clients = [(x[i::3], y[i::3]) for i in range(3)]
    result = coterie.run(FedAvg(local=Local(steps=2)), clients, "linear", rounds=1, seed=0)
    np.savez(tmp_path / "new.npz", x=x[:6], client=np.array([0, 2, 7, 7, 0, 1]), y=y[:6])
    found = coterie.predict_table(result, tmp_path / "new.npz").columns
    assert found is not None
    assert found["client"] == ["0", "2", "7", "7", "0", "1"]
    assert found["model"][:3] == ["run", "run", found["model"][3]]
    assert found["cluster"] == [None] * 6
    assert found["p_1"] == pytest.approx(result.predict(0, x[:6], proba=True)[:, 1].tolist(), abs=1e-6)


def test_targets_come_in_their_units(tmp_path: Path) -> None:
    """cost = 1000 + 100 a, everywhere; a model that has learnt it says amounts of this size."""
    rng = np.random.default_rng(0)
    rows = [(f"site-{i % 4}", f"{a:.3f}", f"{1000 + 100 * a:.2f}") for i, a in enumerate(rng.normal(size=80))]
    table = write(tmp_path / "train.csv", rows, "site,a,cost")
    from coterie.training.config import read
    from coterie.training.execute import execute

    words = ["data.name=csv", f"data.path={table}", "data.client=site", "data.y=cost", "method.name=fedavg"]
    execute(read(None, [*words, "data.task=regression", "rounds=5", "engine.name=sequential"]), tmp_path / "run")
    new = [("site-0", "1.0", ""), ("new", "0.5", "1050"), ("new", "-1.0", "900"), ("new", "2.0", "")]
    found = coterie.predict_table(tmp_path / "run", write(tmp_path / "new.csv", new, "site,a,cost")).columns
    assert found is not None
    assert list(found) == ["row", "client", "cluster", "model", "prediction"]
    assert found["prediction"] == pytest.approx([1100, 1050, 900, 1200], abs=15)
