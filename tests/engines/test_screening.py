"""An update far larger than the cohort's median is rejected, whoever the method is; honest clients never notice."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from torch import Tensor

import coterie
from conftest import linear, make_federation, raises
from coterie.core.local import Local
from coterie.core.references import All, Best, Mix, Own, Pick, Ref
from coterie.core.tables import ByClient
from coterie.core.tasks import Fit, Fitted, Scored
from coterie.engines.contract import Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.engines.updates import norms_of, screen, without
from coterie.tools.cli.console import missing_line
from remote_models import THETA, Far

LOCAL = Local(steps=3, batch=4, lr=0.1)


class Tampered(Sequential):
    """One client sends something else than what it trained."""

    def __init__(self, clients: int, liar: int, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(linear(), make_federation(clients))
        self._liar, self._change = liar, change

    def visit(self, visit: Visit) -> Outcome:
        """As always, with one model exchanged."""
        found = super().visit(visit)
        for reply in found.replies:
            if isinstance(reply, Fitted) and isinstance(reply.sent, Tensor) and visit.keep:
                row = reply.ids == self._liar
                reply.sent[row] = self._change(reply.sent[row])
        return found


def go(engine: Tampered, method: Any = None, **more: Any) -> coterie.Result[Any]:
    method = method or coterie.FedAvg(local=LOCAL)
    return coterie.run(method, engine.federation, linear(), engine=engine, **({"rounds": 2} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1e30, 3e38, -3e38, 1e3])
@pytest.mark.parametrize(
    "method",
    [coterie.FedAvg(local=LOCAL), coterie.IFCA(k=2, local=LOCAL), coterie.WeCFL(k=2, local=LOCAL), coterie.CFL()],
)
def test_one_reply_of_nonsense_is_rejected_and_named(size: float, method: Any) -> None:
    result = go(Tampered(8, 5, lambda theta: torch.full_like(theta, size)), method)
    for event in result.history:
        assert event.rejected == (5,)
        assert [m.client for m in event.missing] == [5]
        assert "update rejected" in event.missing[0].reason
        assert "update_bound" in event.missing[0].reason
        assert event.answered == event.asked - 1
    assert result.summary.loss < 10
    line = missing_line(result.history)
    assert line is not None
    assert "rejected" in line
    assert "client 5" in line


def test_without_the_bound_everything_is_accepted() -> None:
    result = go(Tampered(8, 5, lambda theta: theta + 1e3), update_bound=0)
    assert all(not event.missing and "screening" not in event.layers for event in result.history)
    assert float(result.state.abs().max()) > 50


def test_four_clients_are_too_few_to_tell() -> None:
    assert not go(Tampered(4, 3, lambda theta: theta + 1e3)).history[0].missing
    assert go(Tampered(5, 3, lambda theta: theta + 1e3)).history[0].rejected == (3,)


def test_the_bound_itself_can_be_set() -> None:
    far = Tampered(6, 1, lambda theta: theta + 4)
    assert go(far, rounds=1, update_bound=1e6).history[0].rejected == ()
    assert go(far, rounds=1, update_bound=3).history[0].rejected == (1,)
    with raises("config-invalid-value", match="update_bound"):
        go(far, update_bound=-1)


def test_rejected_clients_count_for_the_quorum() -> None:
    with raises("quorum", match="client 3: update rejected"):
        go(Tampered(5, 3, lambda theta: theta + 1e3), quorum=1.0, retries=0)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_client_with_far_more_data_is_not_rejected(model: str) -> None:
    """One client with 150 times the samples of the others: its update is 15 times the median's, and welcome."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1700, 8)).astype(np.float32)
    y = (x @ rng.normal(size=(8, 3))).argmax(1)
    few = [(x[i * 10 : i * 10 + 10], y[i * 10 : i * 10 + 10]) for i in range(12)]
    method = coterie.FedAvg(local=Local(epochs=5, batch=8, lr=0.1))
    result = coterie.run(method, [*few, (x[120:], y[120:])], model, rounds=4, evaluate_every=4)
    assert [event.rejected for event in result.history] == [()] * 4


def test_a_claim_of_many_samples_does_not_lift_the_bound() -> None:
    """Nobody can check what a client of a network says it has: 100 times the median's steps are taken into account."""
    models = torch.eye(6)
    n = torch.tensor([8.0, 8.0, 8.0, 8.0, 8.0, 1e6])
    task = Fit(All(torch.zeros(6)), Local(batch=4, lr=0.1))
    for size, rejected in ((99.0, []), (101.0, [5])):
        models[5] = size * torch.eye(6)[5]
        reply = Fitted(torch.arange(6), n, torch.zeros(6), models, None)
        assert [m.client for m in screen([task], [reply], 10.0, 0.0).rejected] == rejected


def test_a_client_that_is_new_to_a_converged_model_is_not_rejected() -> None:
    """The others' updates have shrunk by far more than the bound; the first rounds' are what counts."""
    theta, start = torch.full((8, 4), 1e-3), torch.zeros(4)
    theta[3] = 0.5
    reply = Fitted(torch.arange(8), torch.full((8,), 10), torch.zeros(8), theta)
    task = Fit(All(start), Local())
    assert [m.client for m in screen([task], [reply], 10, scale=0.0).rejected] == [3]
    assert screen([task], [reply], 10, scale=0.4).rejected == ()


def test_resumed_it_knows_the_first_rounds_updates(tmp_path: Path) -> None:
    """From the checkpoint: what rounds.jsonl says of them is not read."""

    def largest(run: Path) -> float:
        with safetensors.safe_open(run / "checkpoints" / "round-000004.safetensors", framework="pt") as file:
            kept = json.loads(file.metadata()["also"])
        return float(kept["map"]["layers"]["map"]["screening"]["map"]["largest"])

    def plain(theta: Tensor) -> Tensor:
        return theta

    whole = go(Tampered(6, 2, plain), rounds=4, out=tmp_path / "a", checkpoint_every=1)
    go(Tampered(6, 2, plain), rounds=2, out=tmp_path / "b", checkpoint_every=1)
    medians = [event.layers["screening"]["median"] for event in whole.history]
    assert medians[0] > medians[2]
    lines = [json.loads(line) for line in (tmp_path / "b" / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["layers"]["screening"]["median"] = 1e9
    (tmp_path / "b" / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = go(Tampered(6, 2, plain), rounds=4, out=tmp_path / "b", checkpoint_every=1, resume=True)
    assert largest(tmp_path / "a") == largest(tmp_path / "b") == max(medians)
    assert [event.layers["screening"] for event in again.history] == [
        event.layers["screening"] for event in whole.history[2:]
    ]


# ---------------------------------------------------------------------------------------------------------- the parts

IDS = torch.tensor([2, 4, 7])
CENTERS = torch.tensor([[0.0, 0.0], [1.0, 2.0]])


@pytest.mark.parametrize(
    ("start", "choice", "norms"),
    [
        (All(CENTERS[1]), None, [0, 8**0.5, 32**0.5]),
        (Pick(CENTERS, ByClient(IDS, torch.tensor([1, 0, 1]))), torch.tensor([1, 0, 1]), [0, 5, 32**0.5]),
        (Best(CENTERS), torch.tensor([1, 0, 1]), [0, 5, 32**0.5]),
        (Mix(CENTERS, ByClient(IDS, torch.tensor([[0.0, 1], [1, 0], [0, 1]]))), None, [0, 5, 32**0.5]),
        (Own("own", All(CENTERS[1])), None, [5**0.5, 5, 61**0.5]),  # not known to the server: the model's own norm
    ],
)
def test_norms_of_updates_by_hand(start: Ref, choice: Tensor | None, norms: list[float]) -> None:
    torch.testing.assert_close(norms_of(THETA, start, IDS, choice), torch.tensor(norms, dtype=torch.float32))


def test_large_models_are_measured_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    theta, centers = torch.randn(7, 5), torch.randn(3, 5)
    choice = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    monkeypatch.setattr("coterie.engines.updates.CHUNK", 10)
    pieces = norms_of(theta, Best(centers), torch.arange(7), choice)
    torch.testing.assert_close(pieces, (theta - centers[choice]).norm(dim=1))


def test_models_that_lie_elsewhere_stay_there() -> None:
    """Rejected rows are left out of means without bringing the models here."""
    far = Far(torch.cat([THETA, THETA, torch.full((1, 2), 1e30)]))
    reply = Fitted(torch.arange(7), torch.full((7,), 4), torch.zeros(7), far)
    task = Fit(All(THETA[0]), Local())
    found = screen([task], [reply], 10, 0.0)
    assert [m.client for m in found.rejected] == [6]
    left = without(reply, [6])
    assert isinstance(left, Fitted)
    assert left.sent is not None
    assert left.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(left.sent) == 6
    mean = coterie.mean(left, torch.ones(6), empty=torch.zeros(2))
    assert mean.tolist() == [3.0, 4.0]
    assert far.asked == ["norms", "combined"]
    assert torch.equal(left.models, torch.cat([THETA, THETA]))
    again = without(left, [0])
    assert isinstance(again, Fitted)
    assert torch.equal(again.models, torch.cat([THETA, THETA])[1:])


class ByChoice(Far):
    """Measures each update as the number of the row that the client chose."""

    def norms(self, choice: Tensor | None) -> Tensor:
        assert choice is not None
        return choice.double()


def test_what_is_left_of_remote_models_is_measured_from_its_own_rows() -> None:
    """Clients 2 and 3 of three are left, and chose rows 5 and 6: these must not be taken for the first two's."""
    reply = Fitted(torch.tensor([1, 2, 3]), torch.full((3,), 4), torch.zeros(3), ByChoice(THETA))
    left = without(reply, [1])
    assert isinstance(left, Fitted)
    assert left.sent is not None
    assert not isinstance(left.sent, Tensor)
    assert left.sent.norms(torch.tensor([5, 6])).tolist() == [5.0, 6.0]


@pytest.mark.parametrize(("norm", "rejected"), [(5.9, []), (6.1, [6])])
def test_more_steps_allow_an_update_larger_by_their_root(norm: float, rejected: list[int]) -> None:
    """Six clients make one step and move by 1. The last makes nine: with a bound of 2 it may move by 2 * 3."""
    theta = torch.zeros(7, 2)
    theta[:, 0] = torch.tensor([1.0] * 6 + [norm])
    n = torch.tensor([10] * 6 + [90])
    task = Fit(All(torch.zeros(2)), Local(epochs=1, batch=10))
    found = screen([task], [Fitted(torch.arange(7), n, torch.zeros(7), theta)], 2, 0.0)
    assert [m.client for m in found.rejected] == rejected


def test_models_are_not_compared_with_the_updates_of_earlier_rounds() -> None:
    """Where the server does not know the start, the norms are those of models: a scale of updates says nothing."""
    theta = torch.ones(6, 2)
    theta[2] = 50.0
    task = Fit(Own("own", All(torch.zeros(2))), Local())
    reply = Fitted(torch.arange(6), torch.full((6,), 4), torch.zeros(6), theta)
    assert [m.client for m in screen([task], [reply], 10, scale=100.0).rejected] == [2]


def test_all_replies_of_a_visit_lose_the_client() -> None:
    scored = Scored(torch.arange(3), torch.ones(3), torch.ones(3, 2))
    left = without(scored, [1])
    assert left.ids.tolist() == [0, 2]
    assert dataclasses.astuple(left)[2].shape == (2, 2)
    assert without(scored, [9]) is scored


def test_where_most_did_not_move_the_model_is_the_measure() -> None:
    start = torch.tensor([3.0, 4.0])
    theta = start.repeat(6, 1)
    task, n = Fit(All(start), Local()), torch.full((6,), 4)
    theta[0] = 30.0
    assert screen([task], [Fitted(torch.arange(6), n, torch.zeros(6), theta)], 10, 0.0).rejected == ()
    theta[0] = 1e30
    found = screen([task], [Fitted(torch.arange(6), n, torch.zeros(6), theta)], 10, 0.0)
    assert [m.client for m in found.rejected] == [0]


def test_where_most_have_diverged_nobody_is_blamed() -> None:
    theta = torch.full((6, 2), 3e38)
    theta[0] = 1.0
    reply = Fitted(torch.arange(6), torch.full((6,), 4), torch.zeros(6), theta)
    assert screen([Fit(All(torch.zeros(2)), Local())], [reply], 10, 0.0).rejected == ()
