"""What is brought to mean 0 and deviation 1 if nobody says so, and which samples that is measured on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import coterie
from coterie.core.errors import CoterieWarning
from coterie.data import CSV, NPZ, Drift, Subsample, from_frame
from coterie.data.dataset import PER_SAMPLE, Dataset
from coterie.data.federate import federate
from coterie.data.federation import Federation
from coterie.training.sampling import split_newcomers, training_data
from coterie.training.settings import Settings

CLIENTS, EACH = 5, 20


def rows(seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    x = rng.normal((50, -3), (20, 0.1), size=(CLIENTS * EACH, 2))
    return x, 1000 + 30 * x[:, 0], np.repeat(np.arange(CLIENTS), EACH)


def table(path: Path) -> str:
    x, y, who = rows()
    days = np.arange(len(y)) % EACH
    cells = [f"{w},{a},{b},{t},{v}" for w, (a, b), t, v in zip(who, x.tolist(), days, y, strict=True)]
    path.write_text("\n".join(["client,a,b,day,y", *cells]) + "\n")
    return str(path)


def inputs(federation: Federation, split: Any = "train") -> torch.Tensor:
    return torch.cat([federation.samples(client, split)[0] for client in range(len(federation))])


def is_standard(x: torch.Tensor) -> bool:
    flat = x.transpose(0, 1).flatten(1).double() if x.ndim > 2 else x.double().T
    return bool(flat.mean(1).abs().max() < 1e-5) and bool((flat.std(1, correction=0) - 1).abs().max() < 1e-5)


# ------------------------------------------------------------------------------------- the same for every source


def test_a_table_is_the_same_as_csv_frame_and_frames_of_clients(tmp_path: Path) -> None:
    x, y, who = rows()
    csv = federate(CSV(table(tmp_path / "t.csv"), y="y", client="client", leave_out=("day",)))
    frame = {"client": who, "a": x[:, 0], "b": x[:, 1], "y": y}
    whole = federate(from_frame(frame, "y", client="client", name="t"))
    assert csv.checksum() == whole.checksum()
    tables = [({"a": x[who == c, 0], "b": x[who == c, 1]}, y[who == c]) for c in range(CLIENTS)]
    arrays = [(x[who == c], y[who == c]) for c in range(CLIENTS)]
    every: Any = (tables, arrays)
    for given in every:
        made = Federation.from_arrays(given)
        assert is_standard(inputs(made))
        assert made.target is not None
        numbers = torch.cat([made.samples(c, "train")[1] for c in range(CLIENTS)])
        assert is_standard(numbers)
        assert any("standardise=false and standardise_y=false" in remark for remark in made.remarks)
        plain = Federation.from_arrays(given, standardise=False, standardise_y=False)
        assert plain.target is None
        assert float(inputs(plain)[:, 0].mean()) > 40
        assert not plain.remarks


def test_a_run_on_arrays_learns_what_a_run_on_a_file_does(tmp_path: Path) -> None:
    x, y, who = rows()
    arrays = [(x[who == c], y[who == c]) for c in range(CLIENTS)]
    settings: Any = {"rounds": 20, "evaluate_every": 20, "engine": "sequential"}
    method = coterie.FedAvg(local=coterie.Local(epochs=5, batch=4))
    by_arrays = coterie.run(method, arrays, "linear", **settings)
    by_file = coterie.run(
        "fedavg", federate(CSV(table(tmp_path / "t.csv"), y="y", leave_out=("day",))), "linear", **settings
    )
    assert (by_arrays.summary.r2 or 0) > 0.9
    assert (by_file.summary.r2 or 0) > 0.9
    said = by_arrays.predict(0, x[:3])
    assert torch.as_tensor(said).flatten().double().numpy() == pytest.approx(y[:3], rel=0.2)  # in original units


def test_images_words_and_labels_as_floats_stay_as_they_are() -> None:
    rng, y = np.random.default_rng(0), np.arange(20) % 2
    grey, loud = rng.random((20, 1, 4, 4)).astype(np.float32), rng.normal(100, 9, (20, 2, 5)).astype(np.float32)
    assert torch.equal(inputs(Federation.from_arrays([(grey, y)], test=0)), torch.from_numpy(grey))
    assert torch.equal(
        inputs(Federation.from_arrays([(grey.reshape(20, 16), y)], test=0)), torch.from_numpy(grey).flatten(1)
    )
    words = rng.integers(0, 500, (20, 7))
    assert torch.equal(inputs(Federation.from_arrays([(words, y)], test=0)), torch.from_numpy(words).float())
    assert is_standard(inputs(Federation.from_arrays([(loud, y)], test=0)))  # by channel
    pixels = rng.integers(0, 256, (20, 1, 4, 4)).astype(np.uint8)
    assert torch.equal(inputs(Federation.from_arrays([(pixels, y)], test=0)), torch.from_numpy(pixels).float() / 255)
    both = Federation.from_arrays([(loud, rng.integers(0, 2, (20, 3)).astype(np.float32))], test=0)
    assert (both.kind, both.target) == ("regression", None)  # several labels of a sample


def test_arrays_in_a_file_are_as_arrays(tmp_path: Path) -> None:
    x, y, who = rows()
    np.savez(tmp_path / "a.npz", x=x, y=y, client=who)
    made = federate(NPZ(str(tmp_path / "a.npz")))
    assert is_standard(inputs(made))
    assert made.target is not None
    off = federate(NPZ(str(tmp_path / "a.npz"), standardise=False, standardise_y=False))
    assert off.target is None
    assert float(inputs(off)[:, 0].mean()) > 40


# ------------------------------------------------------------------------------------- what it is measured on


def strange(newcomers: list[int]) -> Federation:
    """These clients' inputs and targets are far from the others'."""
    x, y, who = rows()
    far = np.isin(who, newcomers)
    x, y = x + 1e4 * far[:, None], y + 1e6 * far
    return Federation.from_arrays([(x[who == c], y[who == c]) for c in range(CLIENTS)])


def test_newcomers_are_not_measured() -> None:
    settings = Settings(newcomers=0.4, seed=3)
    new = split_newcomers(strange([]), settings)[1].ids.tolist()
    made = training_data(strange(new), settings)
    kept = [c for c in range(CLIENTS) if c not in new]
    assert is_standard(inputs(made.take(kept)))
    assert made.target is not None
    assert float(made.target.mean) < 1e4
    result = coterie.run("fedavg", strange(new), "linear", rounds=1, newcomers=0.4, seed=3, engine="sequential")
    assert isinstance(result.known, Federation)
    assert result.known.domains[0].scale is not None
    assert float(torch.as_tensor(result.known.domains[0].scale.mean)[0]) < 1e3


def test_validation_samples_are_not_measured() -> None:
    made = training_data(strange([]), Settings(validation=0.3))
    assert is_standard(inputs(made))


def test_rows_that_drift_by_time_tests_on_are_not_measured(tmp_path: Path) -> None:
    data = CSV(table(tmp_path / "t.csv"), y="y", client="client", time="day")
    made = federate(data, drift=Drift(kind="time", at=2, every=2, changes=2))
    assert made.course is not None
    seen = torch.cat([inputs(made.at(t)) for t in (0, 1, 3)])
    assert is_standard(seen)
    tested = torch.cat([made.at(t).test.numbers for t in (0, 1, 3)])
    trained = torch.cat([made.at(t).train.numbers for t in (0, 1, 3)])
    assert not set(tested.tolist()) & set(trained.tolist())


# ------------------------------------------------------------------------------------- what is known of each sample


def test_every_array_with_an_entry_per_sample_goes_with_its_sample() -> None:
    n, kept = 7, np.array([5, 2])
    number = np.arange(n)
    data = Dataset(
        *("toy", torch.arange(n), torch.arange(n), n),
        official=number > 3,
        client=number,
        client_names=tuple(map(str, range(n + 1))),
        validation=number == 2,
        time=number.astype(float),
    )
    part = data.take(kept)
    known = {name for name, value in vars(data).items() if isinstance(value, np.ndarray | torch.Tensor)}
    assert known == set(PER_SAMPLE)  # a new one must be named there
    for name in PER_SAMPLE:
        assert np.array_equal(np.asarray(getattr(part, name)), np.asarray(getattr(data, name))[kept])


def test_a_part_of_a_table_with_times_is_tested_on_its_latest_rows(tmp_path: Path) -> None:
    data = CSV(table(tmp_path / "t.csv"), y="y", client="client", time="day")
    part = Subsample(partition={"name": "natural"}, samples=60)
    for how in (None, part):
        made = federate(data, how, seed=1)
        assert made.time is not None
        assert len(made.time) == len(made.domains[0].y)
        for client in range(len(made)):
            train, test = made.train.row(client).numpy(), made.test.row(client).numpy()
            assert len(test)
            assert made.time[train].max() < made.time[test].min()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        periods = federate(data, part, drift=Drift(kind="time", at=2, every=1, changes=1), seed=1)
    assert periods.time is not None
    early, late = (periods.at(t).train.numbers.numpy() for t in (0, 1))
    assert periods.time[early].max() <= periods.time[late].min()
