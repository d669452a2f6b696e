"""Columns of a table are found by their names wherever inputs are given, labels may be names, and classes have
probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import raises
from coterie import CoterieError, Federation, Local, WeCFL
from coterie.data import CSV
from coterie.data.cells import as_text, column_names, columns
from coterie.network.registry import ClientRegistry, RegisteredClient, Shape
from coterie.training.result import Result

LOCAL = Local(epochs=5, batch="full", lr=0.5)
RAW = np.array([[80.0, 0.03], [20.0, 0.0], [49.0, -0.03]])  # age, level
TABLE: Any = {"age": RAW[:, 0], "level": RAW[:, 1]}
REVERSED: Any = {"level": RAW[:, 1], "age": RAW[:, 0]}


def csv(path: Path, header: str, hospitals: str, seed: int = 0) -> Path:
    """Whoever is older than 50 is sick; columns in the order of the header."""
    rng, lines = np.random.default_rng(seed), [header]
    for name in hospitals:
        for _ in range(30):
            age = rng.normal(50, 10)
            cells = {
                "age": age,
                "level": rng.normal(0, 0.01),
                "outcome": "sick" if age > 50 else "well",
                "client": name,
            }
            lines.append(",".join(str(cells[column]) for column in header.split(",")))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def read(path: Path) -> Federation:
    return coterie.federate(CSV(path=str(path), y="outcome"))


@pytest.fixture
def result(tmp_path: Path) -> Result[Any]:
    """Trained on a table, and read back without it."""
    file = csv(tmp_path / "all.csv", "age,level,outcome,client", "ABC")
    coterie.run(WeCFL(k=1, local=LOCAL), read(file), "linear", rounds=5, out=tmp_path / "run")
    return coterie.load(tmp_path / "run")


def test_columns_are_found_by_name(result: Result[Any]) -> None:
    expected = result.predict("A", RAW).tolist()
    assert expected[:2] == [0, 1]
    more = {"outcome": np.array(["well"] * 3), **REVERSED, "ward": np.arange(3)}
    records = np.array(list(map(tuple, RAW[:, ::-1])), dtype=[("level", "f8"), ("age", "f8")])
    for table in (TABLE, REVERSED, more, records):
        assert result.predict("A", table).tolist() == expected
    assert result.scale is not None
    torch.testing.assert_close(result.scale(REVERSED), result.scale(RAW))
    placed = result.admit([(REVERSED, ["sick", "well", "well"])])
    assert placed.predict(0, REVERSED).tolist() == expected


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"age": RAW[:, 0], "levl": RAW[:, 1]}, r"no column 'level'\. Did you mean 'levl'.* Wanted: age, level"),
        ({"age": RAW[:, 0], "level": ["a", "b", "c"]}, "column 'level' is not all numbers"),
        ({"age": RAW[:, 0], "level": [0.0, None, 1.0]}, "NaN or Inf in the inputs"),
        (RAW[:, :1], r"expected inputs of shape \(n, 2\) \(age, level\), got \(3, 1\)"),
        (RAW[0], r"expected inputs of shape \(n, 2\) \(age, level\), got \(2,\)"),
        ([["a", "b"]], "the inputs are not an array of numbers"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(table: Any, message: str, result: Result[Any]) -> None:
    with pytest.raises(CoterieError, match=f"predict: .*{message}"):
        result.predict("A", table)
    placed = result.admit([(RAW, ["sick", "well", "well"])])
    with pytest.raises(CoterieError, match=f"predict: .*{message}"):
        placed.predict(0, table)


def test_newcomers_of_a_table_with_its_columns_in_another_order_are_put_in_order(
    result: Result[Any], tmp_path: Path
) -> None:
    ordered = read(csv(tmp_path / "new.csv", "age,level,outcome,client", "D", seed=1))
    other = read(csv(tmp_path / "other.csv", "level,outcome,client,age", "D", seed=1))
    assert other.features == ("level", "age")
    ours, theirs = result.admit(other), result.admit(ordered)
    torch.testing.assert_close(ours.clients.loss, theirs.clients.loss, rtol=0, atol=0)
    assert ours.predict("D", RAW).tolist() == theirs.predict("D", RAW).tolist()


def test_tables_of_clients_are_put_in_the_order_of_the_first() -> None:
    first, second = ((table, [0, 1, 0]) for table in (TABLE, REVERSED))
    made = Federation.from_arrays([first, second], test=0, standardise=False, standardise_y=False)
    assert made.features == ("age", "level")
    torch.testing.assert_close(made.samples(0, "train")[0], made.samples(1, "train")[0])
    short, long = ({"age": RAW[:, 0]}, [0, 1, 0]), ({**TABLE, "ward": RAW[:, 0]}, [0, 1, 0])
    with raises("data-column-unknown", match="client 1: the table has no column 'level'"):
        Federation.from_arrays([first, short], standardise=False, standardise_y=False)  # type: ignore[list-item]
    with raises("data-column-invalid", match="client 1 has a column 'ward', the first table only age, level"):
        Federation.from_arrays([first, long], standardise=False, standardise_y=False)  # type: ignore[list-item]
    assert (
        Federation.from_arrays([first, (RAW, [0, 1, 0])], standardise=False, standardise_y=False).features is None
    )  # nobody knows the second one's


# ------------------------------------------------------------------------------------------------ probabilities


@pytest.mark.parametrize("method", [WeCFL(k=1, local=LOCAL), coterie.FedEM(k=2, local=LOCAL)])
def test_probabilities_are_those_of_the_models_output(method: Any, tmp_path: Path) -> None:
    """By hand: the softmax of a model's logits; a mixture's are the weighted mean of its components'."""
    file = csv(tmp_path / "all.csv", "age,level,outcome,client", "AB")
    live = coterie.run(method, read(file), "linear", rounds=2)
    assert live.scale is not None
    said = live.network(client="A")(live.scale(RAW)).detach()
    expected = torch.softmax(said, 1) if isinstance(method, WeCFL) else said.exp()
    found = live.predict("A", RAW, proba=True)
    assert found.shape == (3, 2)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1.0)
    assert found.argmax(1).tolist() == live.predict("A", RAW).tolist()
    placed = live.admit([(RAW, ["sick", "well", "well"])])
    assert placed.predict(0, RAW, proba=True).argmax(1).tolist() == placed.predict(0, RAW).tolist()


def test_a_regression_has_no_probabilities() -> None:
    clients = [(RAW, RAW[:, 0] / 50)] * 2
    result = coterie.run(coterie.FedAvg(local=Local(lr=1e-5)), clients, "linear", rounds=1)
    with raises("argument-conflict", match="proba=True is for classes"):
        result.predict(0, RAW, proba=True)


# -------------------------------------------------------------------------------------------------- names of labels


def test_names_are_no_labels_where_it_was_trained_on_numbers() -> None:
    result = coterie.run(coterie.FedAvg(local=LOCAL), [(RAW, [0, 1, 1])] * 2, "linear", rounds=1)
    with raises("data-labels", match=r"their labels are names \(sick, well\), it was trained on numbers"):
        result.admit([(RAW, ["sick", "well", "well"])])


def test_what_counts_as_names() -> None:
    for names in (["a", "b"], ("a", "b"), np.array(["a", "b"]), np.array(["a", "b"], dtype=object)):
        found = as_text(names)
        assert found is not None
        assert found.tolist() == ["a", "b"]
    for others in ([0, 1], np.array([0, 1]), np.array([0, "a"], dtype=object), torch.tensor([0, 1]), []):
        assert as_text(others) is None


def test_pandas_tables_and_strings(result: Result[Any]) -> None:
    pandas = pytest.importorskip("pandas")
    expected = result.predict("A", RAW).tolist()
    frame = pandas.DataFrame(REVERSED)
    assert column_names(frame) == ("level", "age")
    assert column_names(pandas.DataFrame(RAW)) is None  # columns 0 and 1
    assert result.predict("A", frame).tolist() == expected
    assert result.predict("A", pandas.DataFrame(RAW)).tolist() == expected
    words = ["sick", "well", "well"]
    for labels in (pandas.Series(words), pandas.Series(words, dtype=object), pandas.Series(words, dtype="category")):
        placed = result.admit([(frame.assign(outcome=labels), labels)])
        assert placed.predict(0, frame).tolist() == expected
        assert len(placed.clients.ids) == 1
    twice = pandas.concat([frame, frame], axis=1)
    with raises("data-column-invalid", match="two columns 'age'"):
        result.predict("A", twice)
    # Trained on frames, each with its columns in an order of its own.
    clients = [(frame[["age", "level"]] / 50, labels), (frame / 50, labels)]
    again = coterie.run(coterie.FedAvg(local=LOCAL), clients, "linear", rounds=5)
    assert again.class_names == ("sick", "well")
    assert again.predict(0, frame / 50).tolist() == again.predict(0, RAW / 50).tolist()


def test_over_a_network_names_are_those_that_clients_told() -> None:
    """The server never sees data; a newcomer that has one class only still means that class."""
    registry = ClientRegistry(
        known=[RegisteredClient(name, 3, 1) for name in "AB"],
        shape=Shape((2,), "classification", 2, "age, level", "sick, well"),
    )
    assert (registry.features, registry.class_names) == (("age", "level"), ("sick", "well"))
    live = coterie.run(WeCFL(k=1, local=LOCAL), [(RAW / 50, [0, 1, 1])] * 2, "linear", rounds=5)
    over = Result(
        *(live.method, live.model, live.state, live.history, live.clients, live.summary),
        *(live.seconds, registry, live.settings, live.memory),
        placed=live.state,
    )
    assert over.predict("A", {k: v / 50 for k, v in REVERSED.items()}).tolist() == live.predict(0, RAW / 50).tolist()
    train, test = (RAW[1:] / 50, ["well", "well"]), (RAW[1:] / 50, ["well", "well"])
    numbers = live.admit([(train[0], [1, 1], test[0], [1, 1])])
    assert over.admit([(*train, *test)]).accuracy == numbers.accuracy
    with raises("data-labels", match="not on dead"):
        over.admit([(RAW / 50, ["well", "dead", "well"])])
    assert (
        ClientRegistry(shape=Shape((2,), "classification", 2, f"2 names, {'0a' * 32}")).features is None
    )  # a fingerprint


def test_columns_of_unequal_length_and_single_values_are_named() -> None:
    with raises("data-column-invalid", match="predict: column 'b' has 1 rows, 'a' has 2"):
        columns({"a": [1.0, 2.0], "b": [3.0]}, ("a", "b"), "predict")
    with raises("data-column-invalid", match="predict: column 'a' is not a list of values"):
        columns({"a": 1.0, "b": 3.0}, ("a", "b"), "predict")
