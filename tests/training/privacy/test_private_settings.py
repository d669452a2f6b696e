"""Odd values and forbidden changes of a run with privacy, and whether its noise is in what leaves the server."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import raises
from coterie.core.local import Local
from coterie.layers.accountant import CHUNK, Gaussian, SystemRandomness, epsilon_of, noise
from coterie.layers.privacy import budget
from coterie.training.config import read
from coterie.training.going_back import go_back
from coterie.training.settings import Settings

STILL = Local(steps=1, batch="full", lr=0.1)  # trains to the same bits whatever the seed is
CLIENTS, CLIP, NOISE = 12, 0.2, 0.05


def federation(clients: int = CLIENTS) -> coterie.Federation:
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(12, 3)).astype(np.float32), rng.integers(0, 2, 12)) for _ in range(clients)]
    return coterie.Federation.from_arrays(arrays, test=0.25, standardise=False)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"epsilon": 0.0}, {"epsilon": -1.0}, {"epsilon": math.inf}, {"epsilon": math.nan}, {}),
        *({"epsilon": 8.0, "noise": 1.0}, {"noise": 1e300}, {"noise": -1.0}),
        *({"epsilon": 8.0, "delta": 0.0}, {"epsilon": 8.0, "delta": 1.0}, {"epsilon": 8.0, "clip": 0.0}),
        *({"epsilon": 8.0, "clip": 1e300}, {"epsilon": 8.0, "sketch": 0}, {"epsilon": 8.0, "sketch": 10**8}),
        *({"epsilon": 8.0, "signal": 1.0}, {"epsilon": 8.0, "smallest": -1.0}),
    ],
    ids=str,
)
def test_odd_values_are_refused(wrong: dict[str, Any]) -> None:
    with raises("argument-invalid"):
        coterie.Privacy(**wrong)


@pytest.mark.parametrize("least", [1e-300, 1e-200, 0.0])
def test_as_good_as_no_noise_is_an_infinite_epsilon(least: float) -> None:
    assert epsilon_of((Gaussian(least, 3),), 1e-5) == math.inf


def test_a_delta_that_promises_nothing_is_said() -> None:
    settings: dict[str, Any] = {"rounds": 1, "engine": "sequential"}
    small, large = (
        coterie.run(
            coterie.FedAvg(local=STILL), federation(), "linear", privacy=coterie.Privacy(noise=1.0, delta=d), **settings
        )
        for d in (1e-5, 0.1)
    )
    assert not any("delta" in line for line in small.warnings)
    assert any("delta 0.1 is not below 1 / 12 clients" in line for line in large.warnings)


def test_a_number_in_place_of_the_settings_is_told_the_first_key() -> None:
    with raises(
        "config-invalid-value", match=r"privacy: expected keys and values, such as \{'epsilon': ...\} \(got 8\)"
    ):
        read(None, ["privacy=8"])


def test_a_run_that_diverges_for_its_noise_says_so() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 12, 3)).astype(np.float32)
    clients = coterie.Federation.from_arrays([(one, one[:, :1]) for one in x], test=0.25, standardise=False)
    huge = coterie.Privacy(noise=1e6, clip=1e6, smallest=0.0)
    local = Local(steps=200, batch="full", lr=2.0)
    with raises("diverged", match="the noise of privacy is too much .* less noise: a larger privacy.epsilon"):
        coterie.run(coterie.FedAvg(local=local), clients, "linear", rounds=20, privacy=huge, engine="sequential")


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("recorded", [True, False])
def test_a_refused_change_leaves_the_directory_as_it_was(recorded: bool, tmp_path: Path) -> None:
    """Also where privacy.json is gone: the configuration says that the run is private."""
    run, clients = tmp_path / "run", federation()
    method = coterie.IFCA(k=2, local=STILL)
    settings: dict[str, Any] = {"rounds": 3, "checkpoint_every": 1, "engine": "sequential", "out": run}
    coterie.run(method, clients, "linear", privacy=coterie.Privacy(epsilon=8.0), **settings)
    if not recorded:
        (run / "privacy.json").unlink()
    before = contents(run)
    with raises("privacy-budget", match="cannot take in more clients"):
        coterie.go_on(run, federation=clients, add=federation(2))
    with raises("privacy-budget", match="cannot go back"):
        coterie.go_on(run, federation=clients, back_to=2)
    with raises("privacy-budget", match="cannot go back"):
        go_back(run, 2, print)
    assert contents(run) == before
    again = coterie.run(method, clients, "linear", privacy=coterie.Privacy(epsilon=8.0), resume=True, **settings)
    assert again.history == ()  # nothing is left to do, and nothing stands in the way


@pytest.mark.parametrize(
    "method", [coterie.FedAvg(local=STILL), coterie.IFCA(k=1, local=STILL), coterie.WeCFL(k=1, local=STILL)]
)
def test_what_leaves_the_server_has_the_noise_that_was_planned(method: Any) -> None:
    """Against the same run without noise, over 60 seeds of 8 numbers each: the standard error is 3 %."""
    found = []
    for seed in range(60):
        noisy, quiet = (
            coterie.run(
                *(method, federation(), "linear"),
                rounds=1,
                seed=seed,
                engine="sequential",
                evaluate_on=1,
                privacy=coterie.Privacy(noise=noise, clip=CLIP, smallest=0.0),
            ).network(0)
            for noise in (NOISE, 0.0)
        )
        pairs = zip(noisy.parameters(), quiet.parameters(), strict=True)
        found.append(torch.cat([(a - b).detach().double().flatten() for a, b in pairs]))
    # A sum of noise z * clip * sqrt(1 + 1/9), over twelve clients: what their noisy count adds to it is below 2 %.
    wanted = NOISE * CLIP * math.sqrt(1 + 1 / 9) / CLIENTS
    assert float(torch.stack(found).std()) == pytest.approx(wanted, rel=0.12)


def test_nobody_can_foresee_the_noise_of_real_clients() -> None:
    settings = Settings(rounds=2, privacy=coterie.Privacy(epsilon=8.0))
    ours, theirs = (budget(coterie.FedAvg(local=STILL), settings, 7, simulated=one) for one in (True, False))
    assert ours.noise_key == 7
    assert theirs.noise_key is None
    drawn = noise((3, 2 * CHUNK // 3 + 1), 2.5, None, 1, 2)  # an odd number, in more parts than one
    assert drawn.shape == (3, 2 * CHUNK // 3 + 1)
    # 4,194,306 draws: the standard errors are 0.0009 of the deviation and 0.0012 of the mean.
    assert float(drawn.std()) == pytest.approx(2.5, abs=0.008)
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.01)
    assert float((drawn.abs() < 2.5).double().mean()) == pytest.approx(math.erf(math.sqrt(0.5)), abs=0.002)
    assert float((drawn[0] * drawn[1]).mean()) == pytest.approx(0.0, abs=0.03)
    assert not torch.equal(drawn[0, :4], noise((4,), 2.5, None, 1, 2))
    randomness = SystemRandomness()
    assert {randomness.integers(3) for _ in range(200)} == {0, 1, 2}
    assert all(0 <= randomness.random() < 1 for _ in range(200))
