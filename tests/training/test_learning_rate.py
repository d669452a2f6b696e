"""local.lr: auto: the rate that a quadratic needs, by hand; nothing left behind; the same after a resumption."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

import coterie
from coterie import CoterieError, Federation, Local
from coterie.core.references import All
from coterie.core.registry import NO_CODE
from coterie.core.tasks import Evaluate, Fit
from coterie.data.partitions.by_cluster import Rotated
from coterie.data.sets.images import Digits
from coterie.engines.choose import local_of
from coterie.engines.contract import Visit
from coterie.engines.sequential import Sequential
from coterie.training import learning_rate
from coterie.training.build import build_method, named_model
from coterie.training.config import read
from coterie.training.job import Job
from coterie.training.learning_rate import autos, kind_of, recorded, with_rates
from coterie.training.sampling import split_newcomers

DIGITS = Rotated(clients=12)(Digits()(), np.random.default_rng(0))
AUTO = Local(epochs=1, batch=8, lr="auto")


def line(scale: float, clients: int = 8) -> Federation:
    """Every sample is (scale, 5 scale): with one weight w, the loss is scale² (w - 5)²."""
    x, y = np.full((12, 1), scale, np.float32), np.full((12, 1), 5 * scale, np.float32)
    return Federation.from_arrays([(x, y)] * clients, task="regression", standardise=False)


LONG = Local(steps=30, batch=8, lr="auto")


def tried(federation: Federation, local: Local, network: Any = None) -> dict[float, Any]:
    """The held-out losses of a search, by rate."""
    model = coterie.Model.of(network or (lambda: nn.Linear(1, 1, bias=False)), "mse")
    job = Job(coterie.FedAvg(local=local), model, federation, read(None, []).settings, Sequential(model, federation))
    return dict(learning_rate.settle(job, {}, lambda _: None)[1][0].tried)


def found(federation: Federation, local: Local = AUTO, **settings: Any) -> Any:
    def model() -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    result = coterie.run(coterie.FedAvg(local=local), federation, model, rounds=1, **settings)
    return local_of(result.method).lr


@pytest.mark.parametrize(("scale", "expected"), [(1.0, 0.3), (2.0, 0.05), (0.5, 1.0)])
def test_the_rate_of_a_quadratic_by_hand(scale: float, expected: float) -> None:
    """A step multiplies w - 5 by 1 - 2 lr scale², so 30 steps leave (1 - 2 lr scale²)^60 of the loss.

    scale 1: 0.5 leaves nothing, but 1 leaves all of it and is too close; 0.3 leaves 10^-24, 0.2 10^-13.
    scale 2: 0.1 leaves 10^-42, 0.3 is 10^8 worse than the start and too close; 0.05, between the coarse rates, leaves
    10^-14 and 0.03 10^-7. scale 1/2: 1 leaves 10^-18 and 0.5 10^-8; even 3 does not fail.
    """
    assert found(line(scale), dataclasses.replace(LONG, clip="off")) == expected


def test_clients_train_for_as_many_steps_as_in_a_round() -> None:
    """One step of a round on 12 samples with batch 12: two on six. A rate of 0.3 leaves 0.4^4 of the loss, 0.5 none."""
    once = dataclasses.replace(LONG, steps=None, epochs=1, batch=12, clip="off")
    assert tried(line(1.0), once)[0.3] == pytest.approx(0.4**4 * tried(line(1.0), once)[3.0] / 5**4, rel=1e-3)
    assert tried(line(1.0), dataclasses.replace(once, epochs=3))[0.3] == pytest.approx(
        0.4**12 * tried(line(1.0), once)[3.0] / 5**4, rel=1e-2
    )


class Noisy(nn.Module):
    """Adds 100 to its outputs, but only while it trains: as dropout does, it predicts otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        return out + 100 if self.training else out


def test_models_are_scored_as_they_predict() -> None:
    """Without a step to speak of the loss is that of the start, (w - 5)², and not (w + 95)²."""
    assert tried(line(1.0), dataclasses.replace(LONG, steps=1, clip=1e-6), Noisy)[0.001] < 50


def test_a_rate_that_diverges_is_never_chosen_and_larger_ones_are_not_tried() -> None:
    """With scale 30 a step of 0.01 multiplies by -17: 30 of them give 10^37, and the loss is more than a float holds.

    0.002, tried because it is beside the best, multiplies by -2.6 and is too close to 0.001: but that is the least."""
    said: list[str] = []
    config = read(None, ["rounds=1", "local.lr=auto", "local.clip=off", "method=fedavg"])
    job = Job(
        coterie.FedAvg(local=dataclasses.replace(LONG, clip="off")),
        coterie.Model.of(lambda: nn.Linear(1, 1, bias=False), "mse"),
        line(30.0),
        config.settings,
        Sequential(coterie.Model.of(lambda: nn.Linear(1, 1, bias=False), "mse"), line(30.0)),
    )
    method, (search,) = learning_rate.settle(job, {}, said.append)
    assert method.local.lr == search.rate == 0.001
    tried = dict(search.tried)
    assert tried[0.001] is not None
    assert list(tried) == [0.001, 0.002, 0.003, 0.01]
    assert tried[0.01] is None
    assert said == [str(search)]
    assert "0.01 diverged) and found 0.001" in said[0]


def test_where_everything_diverges_it_says_what_to_do() -> None:
    with pytest.raises(
        CoterieError, match=r"local\.lr: auto: training diverges with every rate down to 0\.001"
    ) as told:
        found(line(1e12), dataclasses.replace(LONG, clip="off"))
    assert told.value.code == "diverged"


def test_adam_has_smaller_rates() -> None:
    rate = found(line(1.0), dataclasses.replace(LONG, optimizer="adam"))
    assert rate in [float(f"{r * 0.1:g}") for r in learning_rate.RATES]
    assert rate == 0.1  # of steps of at most 0.1, 30 go 3 of the 5 or so: the largest goes the farthest


# ------------------------------------------------------------------------------------------------- a run


def test_auto_is_the_run_with_the_rate_it_finds_on_every_engine() -> None:
    """Bit for bit: the search draws from no stream of the run and leaves nothing at the clients."""
    local = dataclasses.replace(AUTO, momentum=0.9, keep_optimizer=True)
    for engine in ("sequential", "batched"):
        auto = coterie.run(coterie.Ditto(local=local), DIGITS, "linear", rounds=2, engine=engine, workers=None)
        rate = local_of(auto.method).lr
        assert isinstance(rate, float)
        named = coterie.Ditto(local=dataclasses.replace(local, lr=rate))
        plain = coterie.run(named, DIGITS, "linear", rounds=2, engine=engine, workers=None)
        assert torch.equal(auto.state, plain.state)
        assert auto.summary == plain.summary


def test_only_a_few_clients_are_asked_and_newcomers_are_not() -> None:
    settings = read(None, ["newcomers=0.5", "seed=3"]).settings
    model = named_model("linear", {}, DIGITS, NO_CODE)
    engine = Sequential(model, DIGITS)
    job = Job(coterie.FedAvg(local=AUTO), model, DIGITS, settings, engine)
    _, (search,) = learning_rate.settle(job, {}, lambda _: None)
    roster, newcomers = split_newcomers(DIGITS, settings)
    assert len(search.clients) == learning_rate.CLIENTS
    assert set(search.clients) <= set(roster.ids.tolist())
    assert not set(search.clients) & set(newcomers.ids.tolist())
    assert learning_rate.settle(job, {}, lambda _: None)[1] == (search,)  # the same again
    assert not any(engine.memory.read(client) for client in range(12))


def test_clients_train_on_one_half_and_are_scored_on_the_other() -> None:
    """And every visit keeps nothing, of trainings that keep nothing either."""
    model = named_model("linear", {}, DIGITS, NO_CODE)
    engine = Sequential(model, DIGITS)
    visits: list[Visit] = []
    carried = engine.visit
    engine.visit = lambda visit: visits.append(visit) or carried(visit)  # type: ignore[method-assign, func-returns-value]
    job = Job(coterie.FedAvg(local=AUTO), model, DIGITS, read(None, []).settings, engine)
    learning_rate.settle(job, {}, lambda _: None)
    tasks = [task for visit in visits for task in visit.tasks]
    fits = [task for task in tasks if isinstance(task, Fit)]
    looks = [task for task in tasks if isinstance(task, Evaluate)]
    assert {fit.half for fit in fits} == {0}
    assert {(look.half, look.split) for look in looks} == {(1, "train")}
    assert len(looks) == len(fits) + 1  # of the start, too
    assert [fit.local.lr for fit in fits[:8]] == [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
    assert all(fit.local.epochs == 2 and fit.local.batch == 8 for fit in fits)
    assert not any(fit.keep for fit in fits)
    assert not any(visit.keep for visit in visits)
    assert len({visit.moment for visit in visits}) == 1  # the same halves and batches for every rate


def test_a_resumed_run_goes_on_with_the_rate_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = coterie.FedAvg(local=AUTO)

    def go(rounds: int, out: str, **more: Any) -> Any:
        return coterie.run(method, DIGITS, "linear", rounds=rounds, out=tmp_path / out, **more)

    whole = go(4, "whole")
    go(2, "cut")
    (said,) = json.loads((tmp_path / "cut" / "learning_rate.json").read_text())
    assert said["rate"] == whole.method.local.lr

    def never(*_: Any) -> Any:
        raise AssertionError("searched again")

    monkeypatch.setattr(learning_rate, "_search", never)
    went_on = go(4, "cut", resume=True)
    assert torch.equal(went_on.state, whole.state)
    assert went_on.method.local.lr == whole.method.local.lr
    loaded = coterie.load(tmp_path / "cut")
    assert local_of(loaded.method).lr == whole.method.local.lr
    assert torch.equal(loaded.state, whole.state)


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.tools.cli.main import app

    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["run", "local.lr=auto", "rounds=1", "--out", "a"])
    assert said.exit_code == 0, said.output
    (line,) = [line for line in said.stderr.splitlines() if line.startswith("local.lr: auto tried 5 clients")]
    rate = float(line.rpartition("found ")[2])
    assert yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())["local"]["lr"] == "auto"
    assert list(recorded(tmp_path / "a").values()) == [rate]
    again = CliRunner().invoke(app, ["run", "--resume", "a", "rounds=2"])
    assert again.exit_code == 0, again.output
    assert "auto tried" not in again.stderr
    (tmp_path / "a" / "learning_rate.json").write_text("[{")
    damaged = CliRunner().invoke(app, ["run", "--resume", "a", "rounds=3"])
    assert isinstance(damaged.exception, CoterieError)
    assert damaged.exception.code == "run-damaged"


# ------------------------------------------------------------------------------------------------- methods


def built(*words: str) -> Any:
    return build_method(read(None, ["local.lr=auto", "local.batch=8", *words]))


@pytest.mark.parametrize(("name", "key"), [("fedgroup", "pretrain"), ("stocfl", "psi")])
def test_a_second_training_that_names_no_rate_gets_the_one_found(name: str, key: str) -> None:
    made = built(f"method.name={name}", f"method.{key}.steps=5")
    kinds = {kind_of(local) for local in autos(made)}
    assert len(kinds) == 1  # one search for both: it does not depend on how long they train
    done = with_rates(made, dict.fromkeys(kinds, 0.3))
    assert (done.local.lr, getattr(done, key).lr, getattr(done, key).steps) == (0.3, 0.3, 5)
    kept = with_rates(built(f"method.name={name}", f"method.{key}.lr=0.5"), dict.fromkeys(kinds, 0.3))
    assert (kept.local.lr, getattr(kept, key).lr) == (0.3, 0.5)


def test_a_second_training_with_another_optimizer_has_a_search_of_its_own() -> None:
    made = built("method.name=fedgroup", "method.pretrain.optimizer=adam")
    assert len({kind_of(local) for local in autos(made)}) == 2


def test_below_a_wrapper_too() -> None:
    made = built("method.name=ifca-cam", "method.base.k=2")
    done = with_rates(made, {kind_of(local): 0.3 for local in autos(made)})
    assert not list(autos(done))
    assert (done.local.lr, done.base.local.lr) == (0.3, 0.3)
    assert done.base.k == 2


def test_a_method_that_is_no_dataclass() -> None:
    class Mine:
        def __init__(self) -> None:
            self.local, self.k = AUTO, 3

        def round(self) -> None:
            """A method."""

    mine = Mine()
    done = with_rates(mine, {kind_of(AUTO): 0.3})
    assert (done.local.lr, done.k, mine.local.lr) == (0.3, 3, "auto")


@pytest.mark.parametrize(
    "words", [("method.name=wecfl", "method.local.lr=0.1"), ("method.name=fedgroup-cam", "method.base.local.lr=0.1")]
)
def test_a_methods_own_rate_and_auto_do_not_go_together(words: tuple[str, ...]) -> None:
    with pytest.raises(CoterieError, match=r"method\.local\.lr: is 0\.1, but local\.lr is auto") as told:
        built(*words)
    assert told.value.code == "config-conflict"
    assert built("method.name=wecfl", "method.local.lr=auto").local.lr == "auto"


def test_a_rate_that_was_not_found_is_told() -> None:
    with pytest.raises(CoterieError, match=r"Fit\.local: its learning rate is auto"):
        Fit(All(torch.zeros(2)), AUTO)
    with pytest.raises(CoterieError, match=r"local\.lr: auto is found when a run begins"):
        _ = AUTO.rate
    with pytest.raises(CoterieError, match=r"lr"):
        Local(lr="car")  # type: ignore[arg-type]
