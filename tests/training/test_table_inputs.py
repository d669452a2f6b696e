"""Tables with holes and categories after training: predictions and newcomers are encoded as the training data was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.data import CSV
from coterie.data.columns import TableScale
from coterie.data.federation import Federation
from coterie.training.data_record import DataRecord
from coterie.training.result import Result

pytestmark = pytest.mark.filterwarnings("ignore:.*values are missing:coterie.core.errors.CoterieWarning")
LOCAL = coterie.Local(epochs=2, lr=0.1)
NEW: Any = {"price": [None, 9.0, 1.0], "region": ["n", None, "s"], "open": [True, False, True]}


def write(path: Path, names: str, header: str = "price,region,open,y,client", seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    lines = [header]
    for name in names:
        for _ in range(30):
            price = rng.normal(5, 2)
            cells = {
                "price": "" if rng.random() < 0.2 else f"{price:.3f}",
                "region": str(rng.choice(["n", "s", "w"])),
                "open": str(bool(rng.random() < 0.5)).lower(),
                "y": "dear" if price > 5 else "cheap",
                "client": name,
            }
            lines.append(",".join(cells[column] for column in header.split(",")))
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def live(tmp_path: Path) -> Result[Any]:
    federation = coterie.federate(CSV(write(tmp_path / "all.csv", "ABC"), "y"))
    return coterie.run(coterie.WeCFL(k=1, local=LOCAL), federation, "linear", rounds=3, out=tmp_path / "run")


@pytest.fixture
def result(live: Result[Any], tmp_path: Path) -> Result[Any]:
    """Read back without its data."""
    (tmp_path / "all.csv").unlink()
    return coterie.load(tmp_path / "run")


def test_a_run_that_was_read_back_encodes_as_the_live_one(live: Result[Any], result: Result[Any]) -> None:
    scale, ours = result.scale, live.scale
    assert isinstance(scale, TableScale)
    assert isinstance(ours, TableScale)
    assert scale.bytes() == ours.bytes()
    known = live.federation
    assert known.features == ("price", "price missing", "region=n", "region=s", "region=w", "open")
    assert isinstance(result.known, DataRecord)
    assert result.known.features == known.features
    mean = scale.columns[0].fill
    prices = known.domains[0].x[known.train.numbers, 0].double()
    assert mean == pytest.approx(float(prices.nanmean()), rel=1e-12)  # of the training rows only
    assert torch.equal(scale(NEW), ours(NEW))
    assert scale(NEW)[:, 1:5].tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    assert scale(NEW)[0, 0] == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_array_equal(result.predict("A", NEW, proba=True), live.predict("A", NEW, proba=True))


def test_names_text_order_and_rows_all_mean_the_same(result: Result[Any]) -> None:
    expected = result.predict("A", NEW, proba=True)
    turned = {name: NEW[name] for name in ("open", "region", "price")} | {"y": ["?"] * 3}
    words = {"price": ["", "9.0", " 1 "], "region": ["n", "", "s"], "open": ["true", "FALSE", "True"]}
    rows = list(zip(*NEW.values(), strict=True))
    for table in (turned, words, rows, np.array(rows, dtype=object)):
        np.testing.assert_array_equal(result.predict("A", table, proba=True), expected)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(NEW)
    for table in (frame, frame.astype({"region": "category", "open": "boolean"}), frame[["open", "price", "region"]]):
        np.testing.assert_array_equal(result.predict("A", table, proba=True), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"price": ["abc", 1, 2]}, r"predict: column 'price', row 0: 'abc' is not a number"),
        ({"price": [1.0, float("inf"), 2]}, r"predict: column 'price', row 1: 'inf' is not a number"),
        ({"price": [1.0]}, r"column 'region' has 3 rows, 'price' has 1"),
        ({"price": 3.0}, r"column 'price' is not a list of values"),
    ],
)
def test_new_rows_that_make_no_sense_are_refused(change: dict[str, Any], message: str, result: Result[Any]) -> None:
    with pytest.raises(CoterieError, match=message):
        result.predict("A", NEW | change)
    with pytest.raises(CoterieError, match=r"rows of 3 values \(price, region, open\); got shape \(3, 2\)"):
        result.predict("A", np.ones((3, 2)))
    with pytest.raises(CoterieError, match=r"no column 'open'"):
        result.predict("A", {"price": [1], "region": ["n"]})


def test_an_unseen_value_is_all_zeros_and_said(result: Result[Any]) -> None:
    assert result.scale is not None
    with pytest.warns(CoterieWarning, match=r"column 'region': 'mars' is in no training row \(n, s, w\)"):
        assert result.scale(NEW | {"region": ["mars"] * 3})[:, 2:5].tolist() == [[0.0] * 3] * 3


def test_newcomers_are_encoded_by_the_training_data(result: Result[Any], tmp_path: Path) -> None:
    """The same rows as a table in memory, as a csv of their own with columns in another order, with a value that only
    their test rows have: one and the same inputs."""
    path = write(tmp_path / "new.csv", "D", "open,y,region,client,price", seed=1)
    made = coterie.federate(CSV(path, "y", client="client"))
    placed = result.admit(made)
    x = placed._behind.newcomers.domains[0]
    rows = [line.split(",") for line in Path(path).read_text().splitlines()[1:]]
    table: Any = {name: [row[i] for row in rows] for i, name in enumerate(("open", "y", "region", "client", "price"))}
    assert result.scale is not None
    assert torch.equal(x.inputs(x.x), result.scale(table))
    by_hand = result.admit([(table, table["y"])])
    domain = by_hand._behind.newcomers.domains[0]
    assert torch.equal(domain.inputs(domain.x), result.scale(table))
    assert placed.predict("D", NEW).tolist() == by_hand.predict(0, NEW).tolist()
    few = coterie.federate(CSV(write(tmp_path / "few.csv", "E", seed=2), "y", categories="none"))
    with pytest.raises(CoterieError, match=r"'region' was left out .*categories=\('region',\), or give DataFrames"):
        result.admit(few)


def test_clients_kept_from_training_are_encoded_and_admitted(tmp_path: Path) -> None:
    federation = coterie.federate(CSV(write(tmp_path / "all.csv", "ABCDEF"), "y"))
    result = coterie.run(coterie.FedAvg(local=LOCAL), federation, "linear", rounds=1, newcomers=0.4)
    assert result.newcomers is not None
    assert len(result.newcomers.clients.ids) == 2


def test_dropped_or_refused_holes_are_refused_later(tmp_path: Path) -> None:
    path = write(tmp_path / "all.csv", "AB")
    federation = coterie.federate(CSV(path, "y", missing="drop"))
    result = coterie.run(coterie.FedAvg(local=LOCAL), federation, "linear", rounds=1, out=tmp_path / "run")
    for one in (result, coterie.load(tmp_path / "run")):
        with pytest.raises(CoterieError, match="column 'price', row 0: the value is missing, and the model"):
            one.predict("A", NEW)
    assert result.predict("A", {name: values[2:] for name, values in NEW.items()}).shape == (1,)


def test_a_table_with_holes_does_not_fit_a_run_without(tmp_path: Path) -> None:
    numbers: Any = [({"price": np.arange(6.0), "size": np.arange(6.0) / 7}, [0, 1, 0, 1, 0, 1])] * 2
    result = coterie.run(coterie.FedAvg(local=LOCAL), numbers, "linear", rounds=1)
    some: Any = {"size": [1.0, None, 2.0], "price": [1.0, 2.0, 3.0]}
    holes = Federation.from_arrays([(some, [0, 1, 0])], standardise=False)
    with pytest.raises(CoterieError, match="NaN or Inf"):
        result.admit(holes)
    named: Any = {"size": [1.0, 2.0], "price": ["a", "b"]}
    text = Federation.from_arrays([(named, [0, 1])], categories=("price",), standardise=False)
    with pytest.raises(CoterieError, match=r"newcomers: column 'price' has text \(a, b\); it was trained on numbers"):
        result.admit(text)


def test_a_damaged_record_is_refused(live: Result[Any], tmp_path: Path) -> None:
    file = tmp_path / "run" / "serving.json"
    tree = json.loads(file.read_text())
    tree["data"]["scales"][0]["mean"].pop()
    file.write_text(json.dumps(tree))
    with pytest.raises(CoterieError, match="expected 6 means and deviations") as refused:
        coterie.load(tmp_path / "run")
    assert refused.value.code == "run-damaged"


def test_the_configuration_of_an_earlier_run_means_what_it_meant(tmp_path: Path) -> None:
    """Without the new keys, text is left out and missing values are refused."""
    from coterie.training.config import read

    (tmp_path / "run.json").write_text("{}")
    config = tmp_path / "config.yaml"
    config.write_text("data: {name: csv, path: a.csv, y: y, standardise_y: true}\n")
    assert read(config).data.params["missing"] == "refuse"
    assert read(config).data.params["categories"] == "none"
    config.write_text("data: {name: csv, path: a.csv, y: y, standardise_y: true, missing: mean, categories: auto}\n")
    assert read(config).data.params["categories"] == "auto"
    assert read(config).data.params["na"] == "value"
    (tmp_path / "run.json").unlink()
    assert "na" not in read(config).data.params


def test_engines_agree_on_encoded_inputs(tmp_path: Path) -> None:
    federation = coterie.federate(CSV(write(tmp_path / "all.csv", "ABCD"), "y"))
    alone = coterie.run(coterie.FedAvg(local=LOCAL), federation, "linear", rounds=2)
    batched = coterie.run(coterie.FedAvg(local=LOCAL), federation, "linear", rounds=2, engine="batched", workers=1)
    torch.testing.assert_close(alone.state, batched.state)
