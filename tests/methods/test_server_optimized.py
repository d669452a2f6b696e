"""FedAvgM and FedAdam by hand; and `server_optimizer` around any method: the same bits, on every engine, resumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripted import LOCAL, NOBODY, TWO, ScriptedAsk, all_of, close, fitted, make_cohort, make_roster
from torch import Tensor, nn

import coterie
from conftest import few, make_federation, raises
from coterie import Adam, FedAdam, FedAvg, FedAvgM, Local, Model, Momentum
from coterie.core.codec import pack
from coterie.core.registry import METHODS, NO_CODE
from coterie.layers.server_optimizer import ServerStep
from coterie.methods.cam import WeCFLCAM
from coterie.methods.fedclust import FedClust
from coterie.methods.fedgroup import FedGroup
from coterie.methods.flhc import FLHC
from coterie.methods.server_optimized import Optimized
from coterie.methods.wecfl import WeCFL

ROSTER = make_roster({3: 30, 7: 10})
COHORT = make_cohort([3, 7], ROSTER)
SHORT = Local(steps=3, batch="full", lr=0.3)


def test_two_rounds_of_fedavgm() -> None:
    """Mean (30 * 4 + 10 * 0) / 40 = 3: v = 3, w = 3. Then the mean is 4: D = 1, v = 0.5 * 3 + 1 = 2.5, w = 5.5."""
    method = FedAvgM(beta=0.5, local=LOCAL)
    state = Optimized(torch.zeros(1, 2), torch.zeros(1, 2))
    ask = ScriptedAsk(fitted({3: [4.0, 0.0], 7: [0.0, 0.0]}, n=[30, 10]), fitted({3: [4.0, 0.0], 7: [4.0, 0.0]}))
    state = method.round(state, COHORT, ask)
    close(state.centers, [[3.0, 0.0]])
    state = method.round(state, COHORT, ask)
    close(state.centers, [[5.5, 0.0]])
    close(state.moments, [[2.5, 0.0]])
    assert all_of(ask.asked[1].start) == [3.0, 0.0]
    assert all_of(method.predictor(state).models[0]) == [5.5, 0.0]


def test_a_round_of_fedadam() -> None:
    """D = 3: m = 0.1 * 3, v = 0.99 tau^2 + 0.01 * 9, w = eta m / (sqrt(v) + tau)."""
    method = FedAdam(eta=0.5, tau=0.1, local=LOCAL)
    state = method.init(TWO, ROSTER, np.random.default_rng(0))
    close(state.moments, [[0.0, 0.0], [0.01, 0.01]])
    state = Optimized(torch.zeros(1, 2), state.moments)
    state = method.round(state, COHORT, ScriptedAsk(fitted({3: [4.0, 0.0], 7: [0.0, 0.0]}, n=[30, 10])))
    close(state.centers, [[0.5 * 0.3 / ((0.0099 + 0.09) ** 0.5 + 0.1), 0.0]])


@pytest.mark.parametrize("method", [FedAvgM(), FedAdam()])
def test_where_nobody_answers_the_model_does_not_roll_on(method: Any) -> None:
    state = Optimized(torch.ones(1, 2), torch.ones(2, 2))
    assert method.round(state, COHORT, ScriptedAsk(NOBODY)) is state


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def run(method: Any, **more: Any) -> Any:
    return coterie.run(method, make_federation(8), batchnorm, **{"rounds": 4, "seed": 1, "participation": 5} | more)


def models_of(state: Any) -> list[Tensor]:
    return pack(state)[1]


def test_without_momentum_it_is_fedavg_to_the_bit() -> None:
    plain = run(FedAvg(local=SHORT)).state
    assert torch.equal(run(FedAvgM(beta=0, local=SHORT)).state.centers[0], plain)
    assert torch.equal(run(FedAvg(local=SHORT), server_optimizer=Momentum(beta=0)).state, plain)
    assert not torch.equal(run(FedAvgM(local=SHORT)).state.centers[0], plain)


@pytest.mark.parametrize(
    ("method", "around"), [(FedAvgM(local=SHORT), "momentum"), (FedAdam(eta=0.02, local=SHORT), Adam(eta=0.02))]
)
def test_the_methods_are_fedavg_with_the_setting(method: Any, around: Any) -> None:
    """To the bit, also where a network has statistics and fewer than all take part."""
    assert torch.equal(run(method).state.centers[0], run(FedAvg(local=SHORT), server_optimizer=around).state)


def test_statistics_are_averaged() -> None:
    """The running means of one round are those of FedAvg, whatever the optimizer does with the parameters."""
    trained = Model(batchnorm).parameters
    plain, adam = run(FedAvg(local=SHORT), rounds=1).state, run(FedAdam(local=SHORT), rounds=1).state.centers[0]
    assert torch.equal(plain[trained:], adam[trained:])
    assert not torch.equal(plain[:trained], adam[:trained])


NO_MEAN = {"local", "fedavgm", "fedadam"}  # or with an optimizer of their own
PERSONAL = ("fedper", "fedrep", "fedbn", "personal", "ifca-personal")
NAMES = [name for name in METHODS.places if name not in NO_MEAN | {"given", "oracle", *PERSONAL}]


def made(name: str) -> Any:
    known = {f.name: f.default for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    options = {k: v for k, v in {"k": 2, "local": SHORT, "warmup": 1}.items() if k in known}
    if "base" in known:
        base = coterie.IFCA() if known["base"] is dataclasses.MISSING else known["base"]
        more = {"k": 2} if hasattr(base, "k") else {}
        options["base"] = dataclasses.replace(base, local=SHORT, **more)
    return METHODS.build(name, options, NO_CODE)


SOME = ("ifca", "wecfl", "fedem", "fedsoft", "stocfl", "halves", "clove", "ifca-cam")  # for every day


@pytest.mark.parametrize("name", few(NAMES, *SOME))
def test_around_every_method(name: str) -> None:
    """Without momentum no bit changes; with it, moments of earlier rounds are found again."""
    options: dict[str, Any] = {"rounds": 5, "participation": 1.0, "update_bound": 0.0}
    plain = models_of(run(made(name), **options).state)
    same = models_of(run(made(name), server_optimizer=Momentum(beta=0.0), **options).state)
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))
    moved = models_of(run(made(name), server_optimizer=Momentum(beta=0.3), **options).state)
    differ = [a.shape != b.shape or not torch.equal(a, b) for a, b in zip(plain, moved, strict=False)]
    assert any(differ)


@pytest.mark.parametrize("name", PERSONAL)
def test_around_parts_of_a_model_it_is_refused(name: str) -> None:
    with raises("config-invalid-value", match="leaves a part of the model with clients"):
        run(made(name), server_optimizer=Momentum())


@pytest.mark.parametrize("engine", ["batched", "workers"])
def test_on_other_engines(engine: Any) -> None:
    options: dict[str, Any] = {"server_optimizer": Adam(eta=0.02)}
    one = run(coterie.WeCFL(k=2, local=SHORT), engine="sequential", **options).state.centers
    other = run(coterie.WeCFL(k=2, local=SHORT), engine=engine, workers=1, **options).state.centers
    torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("around", ["momentum", "adam"])
def test_a_resumed_run_has_the_same_bits(around: str, tmp_path: Path) -> None:
    method = coterie.IFCA(k=2, local=SHORT)
    whole = run(method, rounds=6, server_optimizer=around)
    run(method, rounds=3, server_optimizer=around, out=tmp_path / "run")
    again = run(method, rounds=6, server_optimizer=around, out=tmp_path / "run", resume=True)
    assert [event.round for event in again.history] == [4, 5, 6]
    assert torch.equal(again.state, whole.state)
    with raises("checkpoint-mismatch", match="its server_optimizer is"):
        run(method, rounds=7, out=tmp_path / "run", resume=True)


def test_with_a_robust_aggregator() -> None:
    options: dict[str, Any] = {"aggregator": {"name": "median", "floor": 2}, "participation": 1.0}
    plain = run(FedAvg(local=SHORT), **options).state
    assert torch.equal(run(FedAvg(local=SHORT), server_optimizer=Momentum(beta=0), **options).state, plain)
    assert not torch.equal(run(FedAvg(local=SHORT), server_optimizer="momentum", **options).state, plain)


def test_with_privacy_it_sees_the_private_mean_only() -> None:
    pytest.importorskip("dp_accounting")
    noisy = coterie.Privacy(noise=0.0, epsilon=None, clip=0.1, smallest=2)
    options: dict[str, Any] = {"privacy": noisy, "participation": 1.0}
    federation = make_federation(8)

    def private(method: Any, **more: Any) -> Tensor:
        state = coterie.run(method, federation, "linear", rounds=3, **options, **more).state
        found: Tensor = state if isinstance(state, Tensor) else state.centers[0]
        return found

    plain = private(FedAvg(local=SHORT))
    assert torch.equal(private(FedAvg(local=SHORT), server_optimizer=Momentum(beta=0)), plain)
    assert torch.equal(private(FedAvg(local=SHORT), server_optimizer="momentum"), private(FedAvgM(local=SHORT)))


def test_one_optimizer_is_enough() -> None:
    with raises("config-invalid-value", match="FedAvgM has one of its own"):
        run(FedAvgM(), server_optimizer="adam")


@pytest.mark.parametrize("wrong", ["sgd", {"name": "adam", "beta": 0.9}, {"name": "momentum", "beta": 1.0}, {"eta": 1}])
def test_what_is_no_server_optimizer(wrong: Any) -> None:
    with raises("config-invalid-value" if wrong != {"name": "adam", "beta": 0.9} else "config-unknown-key"):
        run(FedAvg(), server_optimizer=wrong)


@pytest.mark.parametrize(
    ("method", "many"),
    [
        (FedGroup(k=2, alpha=6, eta_g=0.05, local=SHORT), 2),
        (WeCFLCAM(WeCFL(k=2, local=SHORT), cluster_update="eq6", warmup=0), 3),  # two clusters and the global model
    ],
    ids=["fedgroup", "cam"],
)
def test_moments_stay_with_a_cluster_whose_model_the_method_changes_after_its_mean(
    method: Any, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every model that the method goes on with there are moments, and they grow as momentum does."""
    lengths: list[list[float]] = []
    commit = ServerStep.commit

    def noted(self: ServerStep, round: Any, before: Any, after: Any) -> Any:
        said = commit(self, round, before, after)
        lengths.append(sorted(float(one.norm()) for one in self.moments.values()))
        return said

    monkeypatch.setattr(ServerStep, "commit", noted)
    run(method, rounds=4, server_optimizer=Momentum(beta=0.9))
    assert [len(one) for one in lengths[1:]] == [many] * 3
    momentum = lengths[-1]
    lengths.clear()
    run(method, rounds=4, server_optimizer=Momentum(beta=0.0))
    assert momentum[-1] > 1.5 * lengths[-1][-1], "v = 0.9 v + D is longer than D alone"


@pytest.mark.parametrize(
    "method", [FLHC(k=2, warmup=0, local=SHORT), FedClust(k=2, local=SHORT)], ids=["flhc", "fedclust"]
)
def test_references_that_place_newcomers_are_means_and_not_steps_of_an_optimizer(method: Any) -> None:
    plain = run(method, rounds=1).state
    adam = run(method, rounds=1, server_optimizer=Adam(eta=0.3)).state
    torch.testing.assert_close(adam.updates, plain.updates)
    assert not torch.allclose(adam.centers, plain.centers, atol=1e-3)
