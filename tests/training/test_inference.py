"""After training: a run is read back, newcomers find their place, predictions are made, and nobody is retrained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import raises
from coterie import CoterieError, Federation, Local, WeCFL
from coterie.core.tables import number_of
from coterie.data import CSV, Shifted

LOCAL = Local(epochs=5, batch="full", lr=0.5)
RULES = np.array([[4.0, 0.0], [-4.0, 0.0]])  # the two groups label by the sign of the first number, in opposite ways


def federation(groups: list[int], seed: int) -> Federation:
    """Clients of forty samples each, labelled by the rule of their group."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(40, 2)).astype(np.float32) for _ in groups]
    return Federation.from_arrays(
        [(xs, (xs @ RULES[g] > 0).astype(np.int64)) for xs, g in zip(x, groups, strict=True)],
        truth=groups,
        standardise=False,
    )


def test_newcomers_join_the_cluster_of_their_kind_and_nobody_changes() -> None:
    result = coterie.run(WeCFL(k=2, local=LOCAL), federation([0, 0, 1, 1, 0], 0), "linear", rounds=5)
    before = result.state.centers.clone()
    placed = result.admit(federation([1, 0, 1], 7))
    of_zero, of_one = result.assignments[0], result.assignments[2]
    assert of_zero != of_one
    assert placed.assignments.tolist() == [of_one, of_zero, of_one]
    assert placed.clients.ids.tolist() == [5, 6, 7]  # behind the five that were trained on
    assert torch.equal(result.state.centers, before)
    assert float(placed.clients.accuracy.min()) > 0.8
    # The newcomer of group 1 says 1 where the first number is negative, that of group 0 where it is positive.
    x = np.array([[3.0, 0.0], [-3.0, 0.0]], dtype=np.float32)
    assert placed.predict(0, x).tolist() == [0, 1]
    assert placed.predict(1, x).tolist() == [1, 0]


def test_a_newcomer_with_bad_data_is_refused_by_number() -> None:
    result = coterie.run(WeCFL(k=2, local=LOCAL), federation([0, 1], 0), "linear", rounds=1)
    bad = Federation.from_arrays([(np.full((5, 2), np.nan), np.zeros(5, dtype=np.int64))], standardise=False)
    with raises("data-not-finite", match="client 0 has NaN"):
        result.admit(bad)


def test_a_run_is_read_back_as_it_ended(tmp_path: Path) -> None:
    from coterie.tools.cli.main import _run
    from coterie.training.config import read

    words = ["data.partition.clients=8", "rounds=3", "method.name=ditto", "local.epochs=1"]
    result = _run(read(None, words), tmp_path / "run", False, True)
    again = coterie.load(tmp_path / "run")
    assert torch.equal(again.state, result.state)
    assert again.summary == result.summary  # Ditto's personal models are in the checkpoint too
    assert again.assignments.tolist() == result.assignments.tolist()


def test_a_run_made_in_python_is_read_back_with_what_it_was_made_of(tmp_path: Path) -> None:
    data, method = federation([0, 0, 1, 1], 0), WeCFL(k=2, local=LOCAL)
    result = coterie.run(method, data, "linear", rounds=3, out=tmp_path / "run")
    again = coterie.load(tmp_path / "run", method=method, federation=data, model="linear")
    assert torch.equal(again.state.centers, result.state.centers)
    assert again.history == result.history
    assert coterie.load(tmp_path / "run").summary == result.summary  # the library's own, and no data, are recorded
    with raises("checkpoint-mismatch"):
        coterie.load(tmp_path / "run", method=method, federation=federation([0, 0, 1, 1], 5), model="linear")


def test_trained_clients_predict_and_clusters_give_their_networks() -> None:
    result = coterie.run(WeCFL(k=2, local=LOCAL), federation([0, 0, 1, 1], 0), "linear", rounds=5)
    x = np.array([[3.0, 0.0], [-3.0, 0.0]], dtype=np.float32)
    assert result.predict(0, x).tolist() == [1, 0]
    assert result.predict(3, x).tolist() == [0, 1]
    network = result.network(int(result.assignments[3]))
    assert network(torch.from_numpy(x)).argmax(1).tolist() == [0, 1]
    for wrong, message in ((lambda: result.predict(4, x), r"0\.\.3"), (lambda: result.network(2), r"0\.\.1")):
        with pytest.raises(CoterieError, match=message):
            wrong()
    with raises("data-shape", match="expected inputs of shape"):
        result.predict(0, x[:, :1])


def test_personal_models_predict_for_their_clients_and_are_no_network_of_a_cluster() -> None:
    result = coterie.run(coterie.Ditto(lam=0.0, local=LOCAL), federation([0, 1], 0), "linear", rounds=5)
    x = np.array([[3.0, 0.0], [-3.0, 0.0]], dtype=np.float32)
    assert (result.predict(0, x).tolist(), result.predict(1, x).tolist()) == ([1, 0], [0, 1])
    with raises("result-ambiguous"):
        result.network()


def test_lists_of_arrays_are_federations_too() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    clients = [(x, (x[:, 0] > 0).astype(np.int64))] * 2
    result = coterie.run(coterie.FedAvg(local=LOCAL), clients, "linear", rounds=2)
    assert repr(result.admit(clients)) == "<2 newcomers: clusters [0, 0]>"
    assert "2 clients" in repr(result.federation)
    with raises("data-type"):
        coterie.run(coterie.FedAvg(), {"a": 1}, "linear")  # type: ignore[arg-type]


def test_what_is_no_run_is_not_loaded(tmp_path: Path) -> None:
    with raises("run-not-found", match=r"no config\.yaml"):
        coterie.load(tmp_path)


# --------------------------------------------------------------------------------- inputs as they are stored


HOSPITALS = ("Ada", "Bea", "Cleo", "Dora")


def table(path: Path, hospitals: tuple[str, ...], seed: int, age: float = 50) -> tuple[Path, np.ndarray[Any, Any]]:
    """Patients by hospital: age in years and a small number, sick where the two together are above their middle."""
    rng = np.random.default_rng(seed)
    x = np.stack([rng.normal(age, 10, 60 * len(hospitals)), rng.normal(0, 0.01, 60 * len(hospitals))], 1).round(5)
    sick = (x[:, 0] - 50) / 10 + x[:, 1] / 0.01 > 0
    words = np.where(sick, "sick", "healthy")
    rows = [f"{x[i, 0]},{x[i, 1]},{words[i]},{hospitals[i // 60]}" for i in range(len(x))]
    path.write_text("\n".join(["age,level,outcome,hospital", *rows]), encoding="utf-8")
    return path, x


def hospitals(path: Path) -> Federation:
    return coterie.federate(CSV(path=str(path), y="outcome", client="hospital"))


def test_wherever_inputs_are_given_they_are_stored_and_scaled_as_the_training_data(tmp_path: Path) -> None:
    """A client's predictions, a network behind the scale, newcomers as arrays or as a table: the same words."""
    file, x = table(tmp_path / "all.csv", HOSPITALS, 0)
    trained = hospitals(file)
    result = coterie.run(WeCFL(k=1, local=LOCAL), trained, "linear", rounds=10)
    assert result.accuracy is not None
    assert result.accuracy > 0.9
    raw = x.astype(np.float32)
    said = result.predict("Ada", raw)
    assert result.scale is not None
    assert result.network(0)(result.scale(torch.from_numpy(raw))).argmax(1).tolist() == said.tolist()
    older, old = table(tmp_path / "new.csv", ("Eva",), 1, age=75)  # all are sick; by their own mean half
    newcomers = hospitals(older)
    placed = result.admit(newcomers)
    assert placed.accuracy is not None
    assert placed.accuracy > 0.9
    assert placed.predict("Eva", raw).tolist() == said.tolist()
    labels = (old[:, 0] - 50) / 10 + old[:, 1] / 0.01 > 0
    arrays = result.admit([(old, labels.astype(np.int64))])
    assert arrays.clients.loss.item() < 0.3
    assert arrays.predict(0, raw).tolist() == said.tolist()
    (own,), (theirs,) = newcomers.scales, trained.scales
    assert own is not None
    assert theirs is not None
    assert own.bytes() != theirs.bytes()  # what the newcomers' own table would have done


def test_newcomers_without_a_column_or_with_other_classes_are_refused(tmp_path: Path) -> None:
    file = table(tmp_path / "all.csv", HOSPITALS, 0)[0]
    result = coterie.run(WeCFL(k=1, local=LOCAL), hospitals(file), "linear", rounds=1)
    text = file.read_text(encoding="utf-8")
    other = tmp_path / "other.csv"
    other.write_text(text.replace("sick", "unwell"), encoding="utf-8")
    with raises("data-labels", match="it was trained on the classes healthy, sick, not on unwell"):
        result.admit(hospitals(other))
    other.write_text(text.replace("age,level", "age,height"), encoding="utf-8")
    with raises("data-column-unknown", match="no column 'level': theirs are age, height"):
        result.admit(hospitals(other))


def test_names_of_clients_classes_and_columns_come_with_the_data(tmp_path: Path) -> None:
    trained = hospitals(table(tmp_path / "all.csv", HOSPITALS, 0)[0])
    assert trained.names == HOSPITALS
    assert [number_of(trained, name) for name in HOSPITALS] == [0, 1, 2, 3]
    assert trained.class_names == ("healthy", "sick")
    assert trained.features == ("age", "level")
    shifted = coterie.federate(
        CSV(path=str(tmp_path / "all.csv"), y="outcome", leave_out=("hospital",)), Shifted(clients=4)
    )
    assert shifted.class_names is None  # a label means something else at every kind of client
    assert shifted.features == ("age", "level")


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ("Adda", "no client has the name 'Adda'. Did you mean 'Ada'"),
        (4, r"client 4, but there are 4: 0\.\.3"),
        (-1, "client -1, but there are 4"),
        (2.0, "a client is a number or a name, not 2.0"),
        (True, "a client is a number or a name, not True"),
        (None, "a client is a number or a name, not None"),
    ],
)
def test_who_is_not_there_cannot_predict(client: int, message: str, tmp_path: Path) -> None:
    trained = hospitals(table(tmp_path / "all.csv", HOSPITALS, 0)[0])
    result = coterie.run(WeCFL(k=1, local=LOCAL), trained, "linear", rounds=1)
    with pytest.raises(CoterieError, match=message):
        result.predict(client, np.zeros((1, 2)))


def test_a_number_that_is_another_client_s_name_is_refused() -> None:
    """Hospitals 1, 2, 7 and 3 have the numbers 0 to 3: whoever says 7 means the hospital."""
    trained = replace(federation([0, 1, 0, 1], 0), names=("1", "2", "7", "3"))
    result = coterie.run(WeCFL(k=2, local=LOCAL), trained, "linear", rounds=2)
    x = np.random.default_rng(3).normal(size=(9, 2))
    for number, name in enumerate(trained.names or ()):
        expected = result.network(client=name)(torch.tensor(x).float()).argmax(1)
        assert result.predict(name, x).tolist() == expected.tolist()
        assert number_of(trained, name) == number
    assert number_of(trained, 3) == 3  # name and number are of the same client
    assert number_of(trained, 0) == 0  # no client has that name
    with raises("client-unknown", match=r"client 7: that is a name here; write '7'$"):
        result.predict(7, x)
    with raises("client-unknown", match=r"client 2: .*; write '2', or '7' for the one of that number"):
        result.network(client=2)


def test_labels_may_be_names_in_arrays_too() -> None:
    rng = np.random.default_rng(0)

    def client(*names: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        x = rng.normal(size=(30, 2))
        return x, np.array(names)[(x[:, 0] > 0).astype(int)]

    result = coterie.run("fedavg", [client("well", "ill") for _ in range(3)], "linear", rounds=30)
    assert result.federation.class_names == ("ill", "well")
    assert result.predict(0, [[-3.0, 0.0], [3.0, 0.0]]).tolist() == [1, 0]
    only_well = ([[-1.0, 0.0]] * 5, ["well"] * 5)
    assert result.admit([only_well]).accuracy == 1.0  # where well is the only class, it is still that class
    with raises("data-labels", match="it was trained on the classes ill, well, not on dead"):
        result.admit([client("well", "dead")])
    with raises("data-labels", match="client 1 has labels that are numbers, those of client 0 are names"):
        Federation.from_arrays([client("a", "b"), (np.zeros((2, 2)), [0, 1])], standardise=False)


def test_arrays_can_be_scaled_as_predict_takes_them(tmp_path: Path) -> None:
    trained = hospitals(table(tmp_path / "all.csv", HOSPITALS, 0)[0])
    result = coterie.run(WeCFL(k=1, local=LOCAL), trained, "linear", rounds=1)
    x = np.array([[40.0, 1.0], [70.0, 2.0]])
    assert result.scale is not None
    assert result.network(0)(result.scale(x)).argmax(1).tolist() == result.predict(0, x).tolist()


def test_clients_without_names_have_none() -> None:
    result = coterie.run(WeCFL(k=1, local=LOCAL), federation([0, 1], 0), "linear", rounds=1)
    with raises("client-unknown", match=r"no client has the name 'Ada'\. They have none"):
        result.predict("Ada", np.zeros((1, 2)))


def test_nothing_is_said_of_inputs_that_are_no_numbers() -> None:
    result = coterie.run(WeCFL(k=1, local=LOCAL), federation([0, 1], 0), "linear", rounds=1)
    with raises("data-not-finite"):
        result.predict(0, np.array([[0.0, np.nan]]))


def test_a_run_made_of_arrays_is_read_back_with_arrays_and_one_of_a_configuration_alone(tmp_path: Path) -> None:
    from coterie.tools.cli.main import _run
    from coterie.training.config import read

    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 2)), rng.integers(0, 2, 20)) for _ in range(3)]
    method = WeCFL(k=1, local=LOCAL)
    result = coterie.run(method, clients, "linear", rounds=1, out=tmp_path / "mine")
    again = coterie.load(tmp_path / "mine", method=method, federation=clients, model="linear")
    assert again.summary == result.summary
    _run(read(None, ["data.partition.clients=8", "rounds=1", "local.epochs=1"]), tmp_path / "told", False, True)
    with raises("argument-conflict"):
        coterie.load(tmp_path / "told", model="linear")


def test_of_no_test_samples_there_is_no_score() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), rng.integers(0, 2, 20)
    clients = [(x, y, x, y), (x, y, x[:0], y[:0])]
    for weigh in ("test", "train", "equal"):
        result = coterie.run("fedavg", clients, "linear", rounds=1, weigh_clients=weigh)
        assert result.clients.n.tolist() == [20, 0]
        for scores in (result.clients.loss, result.clients.accuracy, result.clients.macro_f1):
            assert scores.isnan().tolist() == [False, True]
        assert result.accuracy == pytest.approx(float(result.clients.accuracy[0]))
        assert result.summary.loss == pytest.approx(float(result.clients.loss[0]))
    assert result.admit(clients).accuracy == pytest.approx(result.accuracy)
    assert result.admit(clients[1:]).accuracy is None


# --------------------------------------------------------------------------------------- networks to take away


EVERY: dict[str, Any] = {
    "fedavg": coterie.FedAvg(local=LOCAL),
    "fedavg+": coterie.FedAvgPlus(k=3, local=LOCAL),
    "ditto": coterie.Ditto(local=LOCAL),
    "ifca": coterie.IFCA(k=2, local=LOCAL),
    "wecfl": WeCFL(k=2, local=LOCAL),
    "fedsoft": coterie.FedSoft(k=2, local=LOCAL),
    "fedem": coterie.FedEM(k=2, local=LOCAL),
    "wecfl-cam": coterie.CAM(WeCFL(k=2, local=LOCAL), warmup=1, local=LOCAL),
    "ifca-cam": coterie.CAM(coterie.IFCA(k=2, local=LOCAL), warmup=1, local=LOCAL),
}


@pytest.mark.parametrize("name", EVERY)
def test_a_clients_network_says_what_predict_says_with_every_method(name: str) -> None:
    result = coterie.run(EVERY[name], federation([0, 0, 1, 1, 0, 1], 0), "linear", rounds=4, newcomers=0.34)
    x = np.random.default_rng(1).normal(size=(200, 2)).astype(np.float32)
    for client in range(6):
        network = result.network(client=client)
        assert not network.training
        assert network(torch.from_numpy(x)).argmax(1).tolist() == result.predict(client, x).tolist()
        before = {key: value.clone() for key, value in network.state_dict().items()}
        for value in network.state_dict().values():  # the caller's own: the run stays as it is
            value.add_(100.0)
        assert all(torch.equal(v, before[k]) for k, v in result.network(client=client).state_dict().items())
    placed = result.admit(federation([1, 0], 7))
    for client in range(2):
        said = placed.network(client)(torch.from_numpy(x)).argmax(1)
        assert said.tolist() == placed.predict(client, x).tolist()


def test_a_network_of_cam_is_the_global_and_the_clusters_one_added() -> None:
    result = coterie.run(EVERY["wecfl-cam"], federation([0, 0, 1, 1], 0), "linear", rounds=4)
    x = torch.randn(5, 2)
    shared, replica = result.state.shared, result.model.replica()
    for cluster, center in enumerate(result.state.base.centers):
        alone = replica.load(center).logits(x).clone()
        torch.testing.assert_close(result.network(cluster)(x), alone + replica.load(shared).logits(x))
    with raises("cluster-unknown"):
        result.network(2)


def test_an_ensemble_is_one_network_and_a_mixture_only_a_clients() -> None:
    x = torch.randn(5, 2)
    result = coterie.run(EVERY["fedavg+"], federation([0, 0], 0), "linear", rounds=2)
    assert result.network()(x).argmax(1).tolist() == result.predict(0, x).tolist()
    with raises("cluster-unknown"):
        result.network(1)
    result = coterie.run(EVERY["fedem"], federation([0, 1], 0), "linear", rounds=2)
    with raises("result-ambiguous", match=r"no single network per cluster; write network\(client=\.\.\.\)"):
        result.network()
    torch.testing.assert_close(result.network(client=1)(x).exp().sum(1), torch.ones(5))  # log-probabilities


def test_a_mixture_for_numbers_is_trained_further_like_any_network() -> None:
    rng = np.random.default_rng(0)
    clients = [(x, x @ w) for x, w in ((rng.normal(size=(30, 2)), np.array([[s], [1.0]])) for s in (1.0, -1.0))]
    plain = Federation.from_arrays(clients, standardise=False, standardise_y=False)
    result = coterie.run(coterie.FedEM(k=2, local=Local(epochs=1, lr=0.1)), plain, "linear", rounds=3)
    x, placed = rng.normal(size=(7, 2)).astype(np.float32), result.admit(clients)
    for network, expected in (
        (result.network(client=1), result.predict(1, x)),
        (placed.network(1), placed.predict(1, x)),
    ):
        said = network(torch.from_numpy(x))
        assert np.allclose(said.detach().numpy(), expected, atol=1e-6)
        said.sum().backward()
        assert all(p.grad is not None for p in network.parameters())
