"""Runs with privacy: what they cost, what is refused, and the same bits after a crash and on every engine."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import raises
from coterie.clustering.averaging import mean, weigh
from coterie.core.errors import StoppedError
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.tables import Roster
from coterie.layers.accountant import Gaussian, PoissonGaussian, epsilon_of
from coterie.layers.privacy import Privacy, Spent, budget, declared, plan
from coterie.methods.contract import Releases, releases_of
from coterie.methods.halves import looks
from coterie.tools.report import figures
from coterie.tools.report.page import key_figures
from coterie.tools.report.record import read_run
from coterie.training.config import read
from coterie.training.events import Event, RoundDone
from coterie.training.going_back import go_back
from coterie.training.round_history import line_of
from coterie.training.round_history import read as read_rounds
from coterie.training.sampling import sample_cohort
from coterie.training.settings import Settings

LOCAL = Local(steps=2, batch=5, lr=0.1)
ACCOUNTED: dict[str, Any] = {
    "fedavg": coterie.FedAvg(local=LOCAL),
    "fedprox": coterie.FedProx(local=LOCAL),
    "fedavgm": coterie.FedAvgM(local=LOCAL),
    "fedadam": coterie.FedAdam(local=LOCAL),
    "ifca": coterie.IFCA(k=2, local=LOCAL),
    "wecfl": coterie.WeCFL(k=2, local=LOCAL),
    "fesem": coterie.FeSEM(k=2, local=LOCAL),
    "flux": coterie.FLUX(k=2, warmup=1, size=2, classes=2, local=LOCAL),
    "halves": coterie.Halves(trial=False, sketch=4, local=LOCAL),
}


@pytest.fixture(scope="module")
def clients() -> coterie.Federation:
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(12, 3)).astype(np.float32), rng.integers(0, 2, 12)) for _ in range(12)]
    return coterie.Federation.from_arrays(arrays, test=0.25, standardise=False)


def spent_by(event: RoundDone) -> Spent:
    """What privacy had cost by then, as the round's line has it."""
    found = Spent.read(event.layers["privacy"])
    assert found is not None
    return found


def private(**changes: Any) -> Privacy:
    return Privacy(**{"epsilon": 8.0, "smallest": 1.0} | changes)


@pytest.mark.parametrize("name", ACCOUNTED)
def test_a_run_costs_what_was_asked_and_no_more(name: str, clients: coterie.Federation) -> None:
    found = coterie.run(ACCOUNTED[name], clients, "linear", rounds=2, privacy=private())
    spent = [spent_by(event) for event in found.history]
    assert 0 < spent[0].epsilon < spent[1].epsilon <= 8.0
    assert spent[1].epsilon > 7.99
    assert spent[1].clients == ((spent[1].epsilon, 12),)
    assert all("screening" not in event.layers and event.discrepancy is None for event in found.history)


def test_the_noise_of_a_method_with_signals_leaves_room_for_them(clients: coterie.Federation) -> None:
    model = Model.of(torch.nn.Linear(3, 2), "cross_entropy")
    settings = Settings(rounds=20, privacy=private(signal=0.2))
    made = plan(ACCOUNTED["halves"], model, settings, 0)
    assert made is not None
    assert made.most_signals == 2  # looks in rounds 1 and 11
    everything = (Gaussian(made.noise, 20), Gaussian(made.signal_noise, 2))
    assert epsilon_of(everything, 1e-5) == pytest.approx(8.0, abs=1e-2)
    # A fifth of the precision is for the signals.
    assert 2 / made.signal_noise**2 == pytest.approx(0.25 * 20 / made.noise**2)


@pytest.mark.parametrize("coins", [True, False])
def test_two_means_a_round_cost_two(coins: bool) -> None:
    """Of the same cohort: together they are one Gaussian of half the variance, which is subsampled once."""

    class Twice(coterie.FedAvg):
        releases = Releases(means=2)

    sampling: dict[str, Any] = {"sampling": "poisson", "participation": 0.3} if coins else {}
    made = budget(Twice(local=LOCAL), Settings(rounds=5, privacy=private(), **sampling), 0, simulated=True)
    both = made.noise / math.sqrt(2)
    whole = epsilon_of((PoissonGaussian(0.3, both, 5) if coins else Gaussian(both, 5),), 1e-5)
    assert 7.99 < whole <= 8.0
    assert (made.amplified_epsilon(5) if coins else made.epsilon(5, 0)) == pytest.approx(whole, abs=1e-3)


def test_looks_of_halves_are_as_planned(clients: coterie.Federation) -> None:
    assert [looks(rounds, True) for rounds in (1, 10, 11, 31, 32)] == [1, 1, 2, 2, 3]
    assert looks(10, False) == 2
    run = coterie.run(ACCOUNTED["halves"], clients, "linear", rounds=12, privacy=private(), evaluate_every=12)
    assert 7.99 < spent_by(run.history[-1]).epsilon <= 8.0  # two looks and twelve rounds: all that was planned


def test_poisson_sampling_amplifies_where_only_means_are_released(clients: coterie.Federation) -> None:
    settings: dict[str, Any] = {"rounds": 3, "participation": 0.3, "sampling": "poisson", "evaluate_every": 3}
    found = coterie.run(ACCOUNTED["ifca"], clients, "linear", privacy=private(noise=1.0, epsilon=None), **settings)
    spent = spent_by(found.history[-1])
    assert spent is not None
    assert spent.amplified
    attempts = sum(event.attempts for event in found.history)
    assert spent.epsilon == epsilon_of((PoissonGaussian(0.3, 1.0, attempts),), 1e-5)
    plain = coterie.run(ACCOUNTED["wecfl"], clients, "linear", privacy=private(noise=1.0, epsilon=None), **settings)
    other = spent_by(plain.history[-1])
    assert other is not None
    assert not other.amplified  # a sketch of a client shows that it takes part
    assert len(other.clients) > 1  # so epsilon depends on how often it did


def test_fixed_cohorts_are_not_amplified(clients: coterie.Federation) -> None:
    found = coterie.run(
        ACCOUNTED["fedavg"], clients, "linear", rounds=3, participation=3, privacy=private(noise=1.0, epsilon=None)
    )
    spent = spent_by(found.history[-1])
    assert spent is not None
    wanted = {epsilon_of((Gaussian(1.0, times),), 1e-5) for times in range(4)}
    assert {epsilon for epsilon, _ in spent.clients} <= wanted
    assert sum(many for _, many in spent.clients) == 12


def test_repeated_rounds_count_and_end_the_run_early(clients: coterie.Federation) -> None:
    found = coterie.run(
        *(ACCOUNTED["fedavg"], clients, "linear"),
        rounds=6,
        participation=0.5,
        sampling="poisson",
        dropout=0.45,
        quorum=0.6,
        retries=20,
        privacy=private(),
        seed=3,
    )
    attempts = sum(event.attempts for event in found.history)
    assert len(found.history) < attempts <= 6  # some rounds were repeated; that nobody pays for more than was planned
    assert len(found.history) < 6
    spent = spent_by(found.history[-1])
    assert spent is not None
    assert spent.epsilon == epsilon_of((PoissonGaussian(0.5, spent.noise, attempts),), 1e-5) <= 8.0


def test_a_budget_that_is_spent_before_the_first_round_is_an_error(clients: coterie.Federation) -> None:
    settings: dict[str, Any] = {"rounds": 2, "dropout": 0.9, "quorum": 1.0, "retries": 50}
    with raises("privacy-budget"):
        coterie.run(ACCOUNTED["fedavg"], clients, "linear", privacy=private(), **settings)


def test_poisson_cohorts_have_the_size_and_the_spread_of_independent_coins() -> None:
    roster = Roster(torch.arange(0, 2000, 2), torch.ones(1000, dtype=torch.int64))
    settings = Settings(participation=0.1, sampling="poisson", seed=5)
    cohorts = [sample_cohort(roster, settings, t, 0) for t in range(400)]
    sizes = torch.tensor([len(cohort) for cohort in cohorts]).double()
    # Binomial(1000, 0.1): mean 100, variance 90; the standard errors over 400 rounds are 0.47 and 6.4.
    assert float(sizes.mean()) == pytest.approx(100, abs=2)
    assert float(sizes.var()) == pytest.approx(90, abs=26)
    together = torch.cat(cohorts).bincount(minlength=2000)[::2].double()
    assert float(together.var()) == pytest.approx(36, abs=8)  # of a client's number of rounds: 400 * 0.1 * 0.9
    assert torch.equal(cohorts[3], sample_cohort(roster, settings, 3, 0))
    assert not torch.equal(cohorts[3], sample_cohort(roster, settings, 3, 1))
    assert not torch.equal(cohorts[3], sample_cohort(roster, settings, 3, 0, key=77))


def test_an_empty_cohort_is_a_round(clients: coterie.Federation) -> None:
    settings: dict[str, Any] = {"rounds": 4, "participation": 0.01, "sampling": "poisson", "evaluate_every": 4}
    plain = coterie.run(ACCOUNTED["fedavg"], clients, "linear", **settings)
    assert [event.asked for event in plain.history] == [0, 0, 0, 0]
    noisy = coterie.run(
        ACCOUNTED["fedavg"], clients, "linear", **settings, privacy=private(noise=1.0, epsilon=None, smallest=0.0)
    )
    assert not torch.equal(noisy.state, plain.state)  # nobody was drawn, and that does not show


def test_no_noise_is_no_privacy(clients: coterie.Federation) -> None:
    found = coterie.run(
        ACCOUNTED["wecfl"], clients, "linear", rounds=1, privacy=private(noise=0.0, epsilon=None)
    ).history[-1]
    assert math.isinf(spent_by(found).epsilon)
    assert json.loads(line_of(found))["layers"]["privacy"]["epsilon"] is None


# ------------------------------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("name", ["ifca", "wecfl", "halves"])
def test_a_resumed_run_has_the_same_bits_and_the_same_ledger(
    name: str, clients: coterie.Federation, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"rounds": 4, "checkpoint_every": 2, "privacy": private(), "participation": 0.7}

    def crash(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 3:
            raise StoppedError("now")

    whole = coterie.run(ACCOUNTED[name], clients, "linear", **settings, out=tmp_path / "whole")
    with pytest.raises(StoppedError):
        coterie.run(ACCOUNTED[name], clients, "linear", **settings, out=tmp_path / "cut", listeners=[crash])
    again = coterie.run(ACCOUNTED[name], clients, "linear", **settings, out=tmp_path / "cut", resume=True)
    theirs, ours = (getattr(run.state, "centers", run.state) for run in (whole, again))
    assert torch.equal(theirs, ours)
    assert spent_by(whole.history[-1]) == spent_by(again.history[-1])
    files = [json.loads((tmp_path / one / "privacy.json").read_text()) for one in ("whole", "cut")]
    assert files[0] == files[1]
    assert len(files[0]["clients"]) == 12
    lines = [{r: spent_by(e) for r, (_, e) in read_rounds(tmp_path / one).items()} for one in ("whole", "cut")]
    assert lines[0] == lines[1]
    assert all(spent is not None for spent in lines[0].values())
    with raises("checkpoint-mismatch"):  # the noise was found for four rounds
        coterie.run(ACCOUNTED[name], clients, "linear", **settings | {"rounds": 6}, out=tmp_path / "cut", resume=True)


def test_every_engine_draws_the_same_noise(clients: coterie.Federation) -> None:
    method = ACCOUNTED["ifca"]
    one = coterie.run(method, clients, "linear", rounds=2, privacy=private(), engine="sequential")
    other = coterie.run(method, clients, "linear", rounds=2, privacy=private(), engine="workers", workers=2)
    assert torch.equal(one.state, other.state)


def test_report_and_card_say_what_was_spent(clients: coterie.Federation, tmp_path: Path) -> None:
    found = coterie.run(
        *(ACCOUNTED["ifca"], clients, "linear"), rounds=2, participation=6, privacy=private(), out=tmp_path / "run"
    )
    record = read_run(tmp_path / "run")
    assert record.curve.epsilon.tolist() == [spent_by(event).epsilon for event in found.history]
    assert record.epsilon.keys() == set(range(12))
    assert max(record.epsilon.values()) == record.curve.last("epsilon")
    pictures = {picture.name: picture for picture in figures.of_run(record)}
    assert f"Epsilon is {record.curve.last('epsilon'):.3g}" in pictures["epsilon"].words
    assert sum(sum(bar.y) for bar in pictures["epsilon-clients"].figure.data) == 12
    assert "privacy spent (epsilon)" in dict(key_figures(record))
    assert "epsilon 8 at delta 1e-05" in coterie.model_card(found, int(found.assignments[0]))
    with raises("privacy-budget"):
        go_back(tmp_path / "run", 1, lambda _: None)


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("name", sorted(METHODS.places))
def test_every_method_of_the_catalogue_is_accounted_for_or_refused(name: str) -> None:
    kind = METHODS.find(name, NO_CODE)
    made = ACCOUNTED.get(name)
    found = releases_of(kind.__new__(kind))
    if isinstance(found, Releases):
        assert made is not None, f"{name} is declared, and not tried here"
        assert declared(made).means == 1
        return
    with raises("privacy-unaccounted", match=f"is refused: {re.escape(found)}"):
        declared(kind.__new__(kind))


@pytest.mark.parametrize(
    "method",
    [coterie.Halves(), coterie.IFCA(k="auto"), coterie.WeCFL(k="auto"), coterie.FedAvg(local=Local(lr="auto"))],
)
def test_what_looks_at_single_clients_is_refused(method: Any, clients: coterie.Federation) -> None:
    with raises("privacy-unaccounted"):
        coterie.run(method, clients, "linear", rounds=1, privacy=private())


def test_a_method_that_asks_for_more_than_it_declares_is_refused(clients: coterie.Federation) -> None:
    class Curious(coterie.FedAvg):
        releases = Releases()

        def round(self, w: Any, cohort: Any, ask: Any) -> Any:
            reply = ask(coterie.Fit(coterie.All(w), local=self.local))
            return reply.models.mean(0)

    with raises("privacy-unaccounted"):
        coterie.run(Curious(local=LOCAL), clients, "linear", rounds=1, privacy=private())


def test_clients_that_were_not_drawn_cannot_be_asked_where_sampling_amplifies(clients: coterie.Federation) -> None:
    """Amplification is for those who take part by a coin that nobody sees."""

    class Everyone(coterie.FedAvg):
        releases = Releases()

        def round(self, w: Any, cohort: Any, ask: Any) -> Any:
            reply = ask(coterie.Fit(coterie.All(w), local=self.local, on=cohort.roster.ids))
            return mean(reply, weigh(reply, "size"), empty=w)

    settings: dict[str, Any] = {"rounds": 1, "privacy": private(noise=1.0, epsilon=None)}
    coins: dict[str, Any] = {"sampling": "poisson", "participation": 0.2}
    with raises("privacy-unaccounted", match="not drawn for the round"):
        coterie.run(Everyone(local=LOCAL), clients, "linear", **settings, **coins)
    found = coterie.run(Everyone(local=LOCAL), clients, "linear", **settings, participation=0.2).history[0]
    assert not spent_by(found).amplified
    assert [many for _, many in spent_by(found).clients] == [12]  # everyone has answered, so everyone is charged


def test_running_statistics_are_refused(clients: coterie.Federation) -> None:
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    with raises("privacy-model"):
        coterie.run(ACCOUNTED["fedavg"], clients, net, rounds=1, privacy=private())


def test_settings() -> None:
    config = read(None, ["privacy={epsilon: 8, delta: 1e-6}", "sampling=poisson", "participation=0.2"])
    assert config.settings.privacy == Privacy(epsilon=8.0, delta=1e-6)
    assert "privacy" not in read(None).dump()
    for words in (
        ["privacy={epsilon: 1}", "aggregator=median"],
        ["privacy.clip=1"],
        ["privacy={epsilon: 1, noise: 1}"],
        ["sampling=poisson", "participation=5"],
        ["privacy={epsilon: 1}", "validation=0.1", "stop_after=2"],  # when it ends would tell of single clients
    ):
        with raises("config-invalid-value"):
            read(None, words)
