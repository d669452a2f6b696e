"""Regression on tables: targets are learnt standardised and read in their own units, steps are bounded."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, r2_score

import coterie
from conftest import Data, linear, raises, vector
from coterie.client.contract import FitAnswer, Moment
from coterie.client.visit import TaskRunner
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.tasks import Fit
from coterie.data import CSV
from coterie.data.federation import Federation
from coterie.data.scale import TargetScale
from coterie.network.messages import PROTOCOL, ModelSpec, VisitRequest, read_as_client
from coterie.network.wire import encode
from coterie.training.config import read
from coterie.training.result import Result

PLAN = ModelSpec("linear", "{}", (1,), 1, "mse", 1)


def write(path: Path, x: Any, y: Any, client: Any, split: Any = None) -> Path:
    header = ["client", *(f"x{i}" for i in range(np.shape(x)[1])), "y", *([] if split is None else ["split"])]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for i in range(len(y)):
            writer.writerow([client[i], *x[i], y[i], *([] if split is None else [split[i]])])
    return path


def people(path: Path, clients: int = 8, n: int = 15, scale: float = 8.0, level: float = 50.0) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * n, 3))
    y = scale * (x[:, 0] + 0.1 * rng.normal(size=len(x))) + level
    return write(path, x, y, [f"p{i // n}" for i in range(len(x))])


def trained(path: Path, rounds: int = 3, **options: Any) -> Result[Any]:
    local = Local(epochs=5, batch=8, lr=0.1)
    federation = coterie.federate(CSV(path=str(path), y="y", **options))
    return coterie.run(coterie.FedAvg(local=local), federation, "linear", rounds=rounds)


# ----------------------------------------------------------------------------------------------------- the scale


def test_targets_are_standardised_by_the_training_rows_alone(tmp_path: Path) -> None:
    x, y = np.arange(8.0)[:, None], [0.5, 2.5, 0.5, 2.5, 1e6 + 0.5, 0.5, 2.5, 1e6 + 0.5]
    split = ["train", "train", "train", "train", "test", "train", "train", "test"]
    federation = coterie.federate(CSV(path=str(write(tmp_path / "a.csv", x, y, "aaaabbbb", split)), y="y"))
    scale = federation.target
    assert scale is not None
    assert scale.mean.tolist() == [1.5]
    assert scale.std.tolist() == [1.0]
    assert federation.samples(0, "train")[1].flatten().tolist() == [-1.0, 1.0, -1.0, 1.0]
    assert federation.target_means.flatten().tolist() == [1.5, 1.5]  # in original units


def test_a_constant_target_is_only_shifted() -> None:
    scale = TargetScale.of(torch.full((5, 1), 0.1))
    assert scale.std.tolist() == [1.0]
    assert scale(torch.full((5, 1), 0.1)).abs().max() < 1e-9


def test_classes_are_left_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", np.arange(8.0)[:, None], [0, 1] * 4, "aaaabbbb")
    assert coterie.federate(CSV(path=str(path), y="y")).target is None


# ----------------------------------------------------------------------------------------------- what a person reads


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_scores_and_predictions_are_in_the_targets_own_units(tmp_path: Path, engine: Any) -> None:
    federation = coterie.federate(CSV(path=str(people(tmp_path / "a.csv")), y="y"))
    method = coterie.FedAvg(local=Local(epochs=5, batch=8, lr=0.1))
    result = coterie.run(
        method, federation, "linear", rounds=3, engine=engine, workers=1 if engine == "batched" else None
    )
    assert result.target_scale is not None
    truth, said = [], []
    for client in range(len(federation)):
        numbers = federation.test.row(client)
        y = federation.domains[0].y[numbers].double().flatten().numpy()
        found = result.predict(client, federation.domains[0].x[numbers]).flatten()
        usual = federation.domains[0].y[federation.train.row(client)].double().mean()
        mine = result.clients
        assert mine.mae is not None
        assert mine.r2 is not None
        assert mine.constant is not None
        assert mine.rmse is not None
        assert float(mine.loss[client]) == pytest.approx(np.mean((y - found) ** 2), rel=1e-4)
        assert float(mine.rmse[client]) == pytest.approx(np.mean((y - found) ** 2) ** 0.5, rel=1e-4)
        assert float(mine.mae[client]) == pytest.approx(mean_absolute_error(y, found), rel=1e-4)
        assert float(mine.r2[client]) == pytest.approx(r2_score(y, found), rel=1e-4)
        assert float(mine.constant[client]) == pytest.approx(np.mean((y - float(usual)) ** 2), rel=1e-4)
        truth.append(y)
        said.append(found)
    y, found, overall = np.concatenate(truth), np.concatenate(said), result.summary
    assert overall.loss == pytest.approx(np.mean((y - found) ** 2), rel=1e-4)
    assert overall.r2 == pytest.approx(r2_score(y, found), rel=1e-4)
    assert overall.mae == pytest.approx(mean_absolute_error(y, found), rel=1e-4)
    assert overall.constant is not None
    assert overall.loss < 0.1 * overall.constant


def test_units_do_not_matter(tmp_path: Path) -> None:
    """The same table in other units is the same training: only the numbers people read differ."""
    small = trained(people(tmp_path / "a.csv", scale=1.0, level=0.5)).summary
    large = trained(people(tmp_path / "b.csv", scale=1e9, level=5e8)).summary
    assert large.loss == pytest.approx(1e18 * small.loss, rel=1e-3)
    assert large.r2 == pytest.approx(small.r2, rel=1e-3)


def test_newcomers_are_seen_as_the_training_data_was(tmp_path: Path) -> None:
    result = trained(people(tmp_path / "a.csv"))
    other = coterie.federate(CSV(path=str(people(tmp_path / "b.csv", clients=2, level=60.0)), y="y"))
    served = result.admit(other)
    usual = np.mean((served.predict(0, [[0.0, 0.0, 0.0]]) - 50.0) ** 2)
    assert usual < 9  # the model's own level, not the newcomers'
    assert served.clients.r2 is not None


def test_one_test_sample_or_none_has_no_r2_of_its_own(tmp_path: Path) -> None:
    x, y = np.arange(9.0)[:, None], np.arange(9.0) + 0.5
    split = ["train", "train", "test"] * 2 + ["train"] * 3
    result = trained(write(tmp_path / "a.csv", x, y, "aaabbbccc", split), rounds=1)
    assert result.clients.r2 is not None
    assert bool(result.clients.r2.isnan().all())
    assert result.summary.r2 is not None  # of both test samples together there is one
    assert np.isfinite([result.summary.r2, result.summary.mae or 0, result.summary.constant or 0]).all()


# ------------------------------------------------------------------------------------------------------------ clip


def step(local: Local, data: Data) -> torch.Tensor:
    bench = TaskRunner(linear(1, 1, loss="mse"))
    (answer,) = bench.visit([Fit(All(vector(0.0)), local)], 0, data, {}, Moment(0, 0, 0)).answers
    assert isinstance(answer, FitAnswer)
    assert answer.theta is not None
    return answer.theta


def test_a_gradient_above_the_norm_is_scaled_down_to_it() -> None:
    """One sample x = 1, y = 10: the gradient at 0 is -20."""
    samples = (torch.ones(1, 1), torch.full((1, 1), 10.0))
    data = Data(samples, samples)
    assert step(Local(lr=0.1), data).tolist() == [2.0]
    assert step(Local(lr=0.1, clip=4.0), data).tolist() == pytest.approx([0.4])
    assert step(Local(lr=0.1, clip=40.0), data).tolist() == [2.0]
    scaled = Data(samples, samples, TargetScale(torch.zeros(1), torch.ones(1)))
    assert step(Local(lr=0.1), scaled).tolist() == pytest.approx([0.1])  # auto is 1 where targets are standardised
    assert step(Local(lr=0.1, clip="off"), scaled).tolist() == [2.0]


def test_off_is_off_however_yaml_reads_it() -> None:
    assert read(None, ["local.clip=off"]).local.clip == "off"
    assert read(None, [], base=read(None, ["local.clip=off"]).dump()).local.clip == "off"
    assert read(None, ["local.clip=2"]).local.clip == 2.0
    with raises("config-invalid-value", match=r"local\.clip: the largest norm"):
        read(None, ["local.clip=on"])


def test_clip_crosses_the_wire() -> None:
    request = VisitRequest(
        PROTOCOL, "run", 0, (Fit(All(vector(0.0)), Local(clip=0.5)),), Moment(0, 0, 0), True, None, 0, PLAN
    )
    found = read_as_client(encode(request))
    assert isinstance(found, VisitRequest)
    (task,) = found.tasks
    assert isinstance(task, Fit)
    assert task.local == Local(clip=0.5)


def test_checkpoints_of_before_know_local_by_its_text() -> None:
    assert "clip" not in repr(Local())
    assert "clip=2.0" in repr(Local(clip=2.0))


# ------------------------------------------------------------------------------------ no NaN on any table by default

SIZES = st.sampled_from([1e-12, 1.0, 1e6, 1e15, 1e30])


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    scale=SIZES,
    level=SIZES,
    feature=st.sampled_from([1e-20, 1.0, 1e20]),
    tails=st.booleans(),
    alike=st.booleans(),
    outlier=st.sampled_from([1.0, 1e6]),
    rows=st.sampled_from([3, 12]),
    model=st.sampled_from(["linear", "mlp"]),
    seed=st.integers(0, 99),
)
@example(1.0, 1.0, 1.0, False, True, 1.0, 12, "linear", 0)  # diverges where gradients are not clipped
@example(1e30, 1.0, 1.0, True, True, 1e6, 12, "linear", 0)
def test_no_table_ends_in_nan_with_the_defaults(
    tmp_path: Path,
    scale: float,
    level: float,
    feature: float,
    tails: bool,
    alike: bool,
    outlier: float,
    rows: int,
    model: str,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    draw = rng.standard_cauchy if tails else rng.normal
    x = draw(size=(4 * rows, 20))
    x = x[:, :1] + (0.01 if alike else 1.0) * x  # features that say the same make steps long
    y = scale * (x[:, 0] + draw(size=len(x))) + level
    x, y = np.clip(x * feature, -1e37, 1e37), np.clip(y, -1e37, 1e37)
    x[:rows] *= outlier
    y[:rows] = np.clip(y[:rows] * outlier, -1e37, 1e37)
    path = write(tmp_path / "t.csv", x, y, np.repeat(list("abcd"), rows))
    federation = coterie.federate(CSV(path=str(path), y="y", task="regression"))
    local = Local(epochs=5, batch=8, lr=0.1) if model == "linear" else Local()
    result = coterie.run(coterie.IFCA(k=2, local=local), federation, model, rounds=10)
    assert all(not event.missing and not event.unscored for event in result.history)
    assert np.isfinite(result.clients.loss.numpy()).all()


def test_a_federation_without_a_scale_is_as_before() -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(8, 2)), rng.normal(size=8)) for _ in range(3)]
    federation = Federation.from_arrays(clients, standardise=False, standardise_y=False)
    assert federation.target is None
    assert federation.samples(0, "train")[1].dtype == torch.float32


def test_a_run_directory_predicts_in_the_targets_units_without_its_table(tmp_path: Path) -> None:
    path, x = people(tmp_path / "a.csv"), [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    federation = coterie.federate(CSV(path=str(path), y="y"))
    result = coterie.run(coterie.FedAvg(local=Local(steps=3)), federation, "linear", rounds=2, out=tmp_path / "run")
    path.unlink()
    again = coterie.load(tmp_path / "run")
    assert again.predict("p3", x).tolist() == result.predict("p3", x).tolist()
    assert again.target_scale is not None
    assert again.summary == result.summary
