"""A client's own privacy: what leaves it, what it refuses, and what it remembers."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_transport import LocalTransport, groups, transport_of, worker

from conftest import raises
from coterie.client.contract import FitAnswer, Moment, VisitResult
from coterie.core.local import Local
from coterie.core.references import All, Best, Own, Posterior, Row
from coterie.core.tables import Roster
from coterie.core.tasks import Describe, Evaluate, Fit, Score
from coterie.layers.accountant import Gaussian, RandomisedResponse, epsilon_of
from coterie.network import engine as engine_module
from coterie.network.config import read
from coterie.network.local_privacy import LocalPrivacy, PrivacyGuard, read_local_privacy
from coterie.network.messages import (
    PROTOCOL,
    ModelSpec,
    Refusal,
    VisitReply,
    VisitRequest,
    read_as_client,
    read_as_server,
)
from coterie.network.server import train_with_clients
from coterie.network.wire import encode
from coterie.training.sampling import sample_cohort

W = torch.tensor([1.0, 1.0])
CENTERS = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
FIT = Fit(All(W), local=Local())


class Prefers:
    """A resolver whose client is best served by one row."""

    def __init__(self, row: int) -> None:
        self.row = row

    def resolve(self, ref: Any) -> tuple[Any, int]:
        return ref.centers[self.row], self.row


def guard(tmp_path: Path, seed: int = 0, **settings: Any) -> PrivacyGuard:
    made = LocalPrivacy(**{"epsilon": 8.0, "visits": 3} | settings)
    return PrivacyGuard(made, tmp_path, np.random.default_rng(seed))


def test_everything_that_a_visit_sends_is_clipped_and_noisy(tmp_path: Path) -> None:
    made = guard(tmp_path, clip=2.0, samples=7)
    answer = FitAnswer(123, 0.5, torch.tensor([31.0, 41.0]), None, torch.tensor([0.6, 0.8]))
    (found,) = made.private([FIT], [answer])
    assert isinstance(found, FitAnswer)
    # Two vectors of norm 2 at most: another data set changes them by 2 * 2 * sqrt 2 together.
    drawn = np.random.default_rng(0).standard_normal(4) * made.settings.noise * 4 * math.sqrt(2)
    torch.testing.assert_close(found.theta, torch.tensor([2.2, 2.6]) + torch.tensor(drawn[:2]).float())
    torch.testing.assert_close(found.sketch, torch.tensor([0.6, 0.8]) + torch.tensor(drawn[2:]).float())
    assert (found.n, found.loss) == (7, 0.0)


def test_the_noise_is_for_all_visits_and_the_choices_in_them() -> None:
    made = LocalPrivacy(epsilon=8.0, visits=10, choices=4)
    assert epsilon_of((RandomisedResponse(4, made.random, 10),), 5e-6) == pytest.approx(4.0, abs=0.01)
    whole = epsilon_of((Gaussian(made.noise, 10), RandomisedResponse(4, made.random, 10)), 1e-5)
    assert whole == made.spent(10)
    assert 7.99 < whole <= 8.0
    assert made.spent(1) < made.spent(5) < whole


def test_a_choice_is_a_randomised_response_that_training_starts_from(tmp_path: Path) -> None:
    made, resolver = guard(tmp_path, choices=3), Prefers(2)
    rows = []
    for _ in range(3000):
        (task,) = made.prepared([Fit(Best(CENTERS), local=Local())], resolver)  # type: ignore[arg-type]
        assert isinstance(task, Fit)
        assert isinstance(task.start, Row)
        assert torch.equal(task.start.theta, CENTERS[task.start.row])
        rows.append(task.start.row)
    true, random = rows.count(2) / 3000, made.settings.random
    assert true == pytest.approx(1 - random + random / 3, abs=0.03)  # more than three standard errors
    assert rows.count(0) / 3000 == pytest.approx(random / 3, abs=0.03)


@pytest.mark.parametrize(
    "task",
    [
        Evaluate((All(W),)),
        Score(CENTERS),
        Describe("labels", 3),
        Fit(Own("mine", All(W)), local=Local()),
        Fit(Best(CENTERS), local=Local()),  # of three, and one choice is allowed
    ],
)
def test_what_cannot_be_made_private_is_refused(task: Any, tmp_path: Path) -> None:
    with raises("local-privacy"):
        guard(tmp_path).prepared([task], Prefers(0))  # type: ignore[arg-type]


def test_a_visit_has_one_choice(tmp_path: Path) -> None:
    """A server that asked for many in one visit would average their randomness away, and one is accounted for."""
    task = Fit(Best(CENTERS), local=Local())
    made = guard(tmp_path, choices=3)
    with raises("local-privacy", match="one choice in a visit, the server asks for 2"):
        made.prepared([task, FIT, task], Prefers(0))  # type: ignore[arg-type]
    assert made.visits == 0


BAD_CENTERS = torch.full((2, 21), 3e38)  # of a linear model with six inputs and three outputs: every loss overflows
NOSY = (  # what fails or not, as the data is
    Fit(All(torch.full((21,), 3e38)), Local(steps=1, lr=1e30)),
    Fit(Best(BAD_CENTERS), Local(steps=1)),
    Fit(
        All(torch.zeros(21)),
        Local(steps=1),
        weights=Posterior(BAD_CENTERS, 0, All(torch.ones(2) / 2)),
        sketch=4,
        save="x",
    ),
    # Without privacy the client says: "this client has one of number 2".
    Fit(
        All(torch.zeros(21)),
        Local(steps=1),
        weights=Posterior(torch.zeros(2, 21), 0, All(torch.ones(2) / 2), class_shares=torch.ones(2, 2) / 2),
    ),
)


@pytest.mark.parametrize("task", NOSY)
def test_that_training_failed_does_not_show(task: Fit, tmp_path: Path) -> None:
    """The answer is one of the same form as ever, with noise alone in it, and the visit is counted."""
    spec = ModelSpec("linear", "{}", (6,), 3, "cross_entropy", 21)
    asked = VisitRequest(PROTOCOL, "run1", 0, (task,), Moment(0, 0, 0), True, None, 0, spec)
    open_one, said = worker(0, groups(1)[0], tmp_path / "open"), list[str]()
    assert isinstance(read_as_server(open_one.answer(encode(asked))), Refusal)
    shy = worker(0, groups(1)[0], tmp_path / "shy")
    shy.guard = PrivacyGuard(LocalPrivacy(epsilon=8.0, visits=3, choices=2), tmp_path, say=said.append)
    reply = read_as_server(shy.answer(encode(asked)))
    assert isinstance(reply, VisitReply)
    (answer,) = reply.answers
    assert isinstance(answer, FitAnswer)
    assert (answer.n, answer.loss, answer.sketch is None) == (1, 0.0, task.sketch is None)
    assert (answer.choice is None) == isinstance(task.start, All)
    assert answer.theta is not None
    assert (reply.wrote is None) == (task.save is None)  # it says that it keeps what it would keep
    assert shy.guard.visits == 1
    assert any("failed" in line for line in said)  # its own user is told


def test_two_processes_of_a_client_share_its_budget(tmp_path: Path) -> None:
    one, other = guard(tmp_path), guard(tmp_path)
    answer = FitAnswer(1, 0.5, W, None)
    one.private([FIT], [answer])
    other.private([FIT], [answer])
    one.private([FIT], [answer])
    with raises("local-privacy", match="budget is spent"):
        other.private([FIT], [answer])


def test_visits_are_counted_on_disk_and_the_last_is_the_last(tmp_path: Path) -> None:
    answer = FitAnswer(1, 0.5, W, None)
    guard(tmp_path).private([FIT], [answer])
    guard(tmp_path).private([FIT], [answer])
    third = guard(tmp_path)
    assert third.visits == 2
    third.private([FIT], [answer])
    told = json.loads((tmp_path / "privacy.json").read_text())
    assert told["visits"] == 3
    assert 7.99 < told["epsilon"] <= 8.0
    with raises("local-privacy"):
        guard(tmp_path).private([FIT], [answer])
    with raises("local-privacy"):  # other settings: the file cannot be counted with them
        guard(tmp_path, visits=9)
    (tmp_path / "privacy.json").write_text("{")
    with raises("local-privacy"):
        guard(tmp_path)


def test_the_option_of_the_command_line() -> None:
    assert read_local_privacy("epsilon=2, visits=5,choices=3") == LocalPrivacy(epsilon=2.0, visits=5, choices=3)
    with raises("option-invalid"):
        read_local_privacy("8")
    with raises("config-unknown-key"):
        read_local_privacy("epsilon=2,noise=1")
    with raises("option-invalid", match="epsilon is given twice"):  # the larger one would be spent
        read_local_privacy("epsilon=2,epsilon=100")
    for wrong in ("epsilon=2,delta=1", "epsilon=2,delta=0", "epsilon=2,visits=0", "epsilon=2,visits=20000"):
        with raises("config-invalid-value"):
            read_local_privacy(wrong)


def test_a_federation_in_which_one_client_trusts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server knows nothing of it: the client sends noisy models, and is not evaluated."""
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))
    monkeypatch.setattr(engine_module, "CONNECTION_CHECK", 0.01)
    transport: LocalTransport = transport_of(groups(4), tmp_path / "state")
    shy = transport.workers[101]
    shy.guard = PrivacyGuard(LocalPrivacy(epsilon=20.0, visits=2, choices=2, clip=0.5, samples=24), tmp_path / "shy")
    assert (shy.info().train, shy.info().test) == (24, 0)
    words = ["rounds=3", "model=linear", "network.clients=4", "method=ifca", "method.k=2", "quorum=0.5"]
    found = train_with_clients(transport, read(None, [*words, "network.refusals=0"]), tmp_path / "run")
    assert shy.guard.visits == 2
    assert [event.answered for event in found.history] == [4, 4, 3]  # in the third round its budget is spent
    assert "budget is spent" in found.history[2].missing[0].reason
    assert all(m.client == 1 for event in found.history for m in event.unscored)
    asked = [read_as_client(message.payload) for message in transport.sent if message.node == 101]
    assert [type(task) for one in asked if isinstance(one, VisitRequest) for task in one.tasks] == [Fit] * 3
    assert "not asked" in found.history[0].unscored[0].reason
    assert shy.spent == "this client's privacy budget is spent: it was for 2 visits"
    assert found.clients.ids.tolist() == [0, 2, 3]


def test_a_client_that_stores_its_model_is_sent_evaluations_that_it_refuses(tmp_path: Path, monkeypatch: Any) -> None:
    """It needs the models of one; the numbers stay with it."""
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))
    transport = transport_of(groups(3), tmp_path / "state")
    shy = transport.workers[101]
    shy.guard, shy.save_to = PrivacyGuard(LocalPrivacy(epsilon=20.0, visits=9), tmp_path / "shy"), tmp_path / "model"
    words = ["rounds=1", "model=linear", "network.clients=3", "method=fedavg"]
    found = train_with_clients(transport, read(None, words), tmp_path / "run")
    assert (tmp_path / "model" / "client-model.json").is_file()
    assert ["refuses an evaluation" in m.reason for m in found.history[0].unscored] == [True]


def test_nothing_is_computed_for_a_visit_that_nothing_can_pay_for(tmp_path: Path) -> None:
    made, computed = guard(tmp_path, visits=1), list[bool]()

    def carry_out(tasks: Any) -> VisitResult:
        computed.append(True)
        return VisitResult((FitAnswer(1, 0.5, W, None),), {})

    assert made.spent is None
    made.visit([FIT], Prefers(0), carry_out)  # type: ignore[arg-type]
    assert made.spent == "this client's privacy budget is spent: it was for 1 visit"
    with raises("local-privacy", match="budget is spent"):
        made.visit([FIT], Prefers(0), carry_out)  # type: ignore[arg-type]
    assert computed == [True]


def test_its_user_is_told_what_there_is_and_what_the_server_hears(tmp_path: Path) -> None:
    one = worker(0, groups(1)[0], tmp_path)
    assert one.describe() == "c00: 24 training and 12 test samples of shape (6,)"
    one.guard = guard(tmp_path)
    assert one.describe() == (
        "c00: 24 training and 12 test samples of shape (6,); the server is told 1 and 0 (local privacy)"
    )


def test_central_privacy_over_a_network_needs_a_server_that_is_trusted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))
    monkeypatch.setattr(engine_module, "CONNECTION_CHECK", 0.01)
    words = ["rounds=2", "model=linear", "network.clients=16", "method=fedavg", "privacy.epsilon=8"]
    with raises("privacy-evaluation"):
        train_with_clients(transport_of(groups(16), tmp_path / "a"), read(None, words), tmp_path / "run-a")
    words.append("privacy.evaluation=trusted")
    with raises("config-conflict"):
        made = read(None, [*words, "checkpoint_every=2"])
        train_with_clients(transport_of(groups(16), tmp_path / "b"), made, tmp_path / "run-b")
    states = []  # so many clients that their noisy count is never too small for a step
    for one in ("c", "d"):
        found = train_with_clients(transport_of(groups(16), tmp_path / one), read(None, words), tmp_path / f"run-{one}")
        assert found.privacy is not None
        assert 7.99 < found.privacy.epsilon <= 8.0
        states.append(found.state)
    assert not torch.equal(states[0], states[1])  # the noise does not follow from the seed, which others may know
    assert dataclasses.asdict(found.settings)["seed"] == 0


def test_who_takes_part_with_real_clients_does_not_follow_from_the_seed(tmp_path: Path, monkeypatch: Any) -> None:
    """Amplification is for cohorts that nobody can work out, and the seed is in the run's directory."""
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))
    monkeypatch.setattr(engine_module, "CONNECTION_CHECK", 0.01)
    monkeypatch.setattr("coterie.layers.privacy.secrets.randbits", lambda bits: 77)
    words = ["rounds=4", "model=linear", "network.clients=4", "method=fedavg", "participation=0.5", "sampling=poisson"]
    config = read(None, [*words, "privacy.epsilon=8", "privacy.evaluation=trusted", "evaluate_every=4", "quorum=0"])
    found = train_with_clients(transport_of(groups(4), tmp_path / "state"), config, tmp_path / "run")
    roster = Roster(torch.arange(4), torch.ones(4, dtype=torch.int64))
    secret, open_ = ([len(sample_cohort(roster, config.settings, t, 0, key)) for t in range(4)] for key in (77, None))
    assert secret != open_
    assert [event.asked for event in found.history] == secret


def test_a_server_does_not_forget_what_a_damaged_checkpoint_says_was_spent(tmp_path: Path, monkeypatch: Any) -> None:
    """It would go on from the one before, as without privacy, and send out the models of a round twice."""
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))
    monkeypatch.setattr(engine_module, "CONNECTION_CHECK", 0.01)
    words = ["rounds=3", "model=linear", "network.clients=4", "method=fedavg", "privacy.epsilon=8"]
    config, transport = read(None, [*words, "privacy.evaluation=trusted"]), transport_of(groups(4), tmp_path / "state")
    first = train_with_clients(transport, config, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "round-000003.safetensors"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-9] + b"x" + whole[-8:])
    with raises("privacy-budget", match="round-000003.safetensors: damaged"):
        train_with_clients(transport, config, tmp_path / "run", resume=True)
    newest.write_bytes(whole)
    assert torch.equal(train_with_clients(transport, config, tmp_path / "run", resume=True).state, first.state)


def test_a_client_describes_its_data_only_where_it_was_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))
    monkeypatch.setattr(engine_module, "CONNECTION_CHECK", 0.01)
    transport: LocalTransport = transport_of(groups(4), tmp_path / "state")
    for node in (100, 102, 103):
        transport.workers[node].allowed = ("describe",)
    words = ["rounds=2", "model=linear", "network.clients=4", "method=pacfl", "method.k=2", "quorum=0.5"]
    found = train_with_clients(transport, read(None, [*words, "network.refusals=0"]), tmp_path / "run")
    assert found.state.labels.ids.tolist() == [0, 2, 3]
    refused = found.history[0].missing[0]
    assert refused.client == 1
    assert "--allow describe" in refused.reason
