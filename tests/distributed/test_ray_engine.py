"""The Ray engine against the sequential one, on a cluster of this machine that listens on 127.0.0.1 only."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from conftest import PAPERS
from coterie.client.contract import Moment
from coterie.core.errors import CoterieError
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.tasks import Fit, Fitted
from coterie.data.federation import Samples
from coterie.engines.choose import make_engine
from coterie.engines.contract import Outcome, Visit
from coterie.engines.ray.engine import ActorResources, NodeModels, Ray, RayModels, join
from coterie.engines.ray.worker import Worker

ray = pytest.importorskip("ray")
sys.path.insert(0, str(Path(__file__).parent.parent / "conformance"))

import toys  # noqa: E402
from test_engines import TASKS, visits  # noqa: E402

pytestmark = pytest.mark.distributed

EVERYONE = torch.arange(10)
KEPT = Local(steps=3, batch=4, lr=0.1, momentum=0.9, keep_optimizer=True)
FIT = Fit(All(torch.zeros(10)), KEPT)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    assert join(None, 4)  # two for the engine that most tests share, two for those of single tests
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def opened(cluster: None) -> Iterator[Ray]:
    with toys.engine(("ray", 2), toys.toy()) as engine:
        assert isinstance(engine, Ray)
        yield engine


@pytest.fixture
def engine(opened: Ray) -> Ray:
    opened.memory.restore({})
    return opened


def here(outcome: Outcome) -> Outcome:
    """The same, with all models brought here."""
    replies = (dataclasses.replace(r, sent=r.theta) if isinstance(r, Fitted) else r for r in outcome.replies)
    return dataclasses.replace(outcome, replies=tuple(replies))


# ------------------------------------------------------------------------------------------------------- conformance


@pytest.mark.parametrize("name", PAPERS)
def test_a_method_does_the_same_as_in_one_process(engine: Ray, name: str) -> None:
    def run(how: Any) -> Any:
        method = toys.method(name, KEPT)
        return coterie.run(method, toys.toy(), toys.linear, rounds=3, participation=7, seed=1, engine=how)

    mine, memory = run(engine), engine.memory.tensors()
    with toys.engine(toys.REFERENCE, toys.toy()) as plain:
        reference = run(plain)
        toys.assert_same(memory, plain.memory.tensors(), within=1e-5)
    np.testing.assert_array_equal(mine.assignments, reference.assignments)
    toys.assert_same(mine.state, reference.state, within=1e-5)
    toys.assert_same(mine.clients, reference.clients, within=1e-5)
    for a, b in zip(mine.history, reference.history, strict=True):
        assert (a.answered, a.layers["traffic"]) == (b.answered, b.layers["traffic"])
        assert (a.discrepancy or 0.0) == pytest.approx(b.discrepancy or 0.0, rel=1e-3)


@pytest.mark.parametrize("what", TASKS)
def test_a_task_has_the_same_answers_as_in_one_process(engine: Ray, what: str) -> None:
    reference = visits(toys.REFERENCE, TASKS[what])
    ids = torch.tensor([0, 1, 2, 4, 5, 7, 8, 9])
    for t, expected in enumerate((reference.first, reference.second)):
        found = here(engine.visit(Visit(tuple(TASKS[what]), ids, Moment(seed=4, round=t, task=0))))
        assert not found.missing
        toys.assert_same(found, expected)  # to the last bit: a client's own work is the same wherever it is done
    toys.assert_same(engine.memory.tensors(), reference.memory)


def test_what_a_visit_only_looks_at_is_not_kept(engine: Ray) -> None:
    engine.visit(Visit((FIT,), EVERYONE, Moment(0, 0, 0), kind="probe"))
    assert not engine.memory.tensors()
    engine.visit(Visit((FIT,), EVERYONE, Moment(0, 0, 0)))
    assert len(engine.memory.tensors()) == 10


def test_the_tasks_of_a_visit_are_put_into_the_store_once(engine: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    put, stored = ray.put, []

    def noted(value: Any) -> Any:
        stored.append(value)
        return put(value)

    monkeypatch.setattr(ray, "put", noted)
    engine.visit(Visit((FIT,), EVERYONE, Moment(0, 0, 0)))
    assert [type(value) for value in stored] == [Visit]


# --------------------------------------------------------------------------------------------- models that stay there

MEANS_ONLY = ["fedavg", "fedprox", "ditto", "ifca", "fedavg+", "fedem", "fedsoft", "ifca-cam"]


@pytest.mark.parametrize("name", MEANS_ONLY)
def test_a_round_that_needs_means_only_brings_no_model_here(
    engine: Ray, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, summed = toys.method(name, KEPT), []
    state = toys.fresh(method, toys.toy())
    with toys.engine(toys.REFERENCE, toys.toy()) as plain:
        expected = toys.one_round(method, state, plain, toys.toy(), range(10))

    def never(self: RayModels) -> Any:
        raise AssertionError("models were gathered")

    combine = engine.combine

    def counted(*args: Any) -> Any:
        summed.append(args)
        return combine(*args)

    monkeypatch.setattr(RayModels, "gathered", never)
    monkeypatch.setattr(engine, "combine", counted)
    found = toys.one_round(method, state, engine, toys.toy(), range(10))
    toys.assert_same(found, expected, within=1e-5)
    assert summed


def test_models_are_gathered_once(engine: Ray) -> None:
    (reply,) = engine.visit(Visit((FIT,), EVERYONE, Moment(0, 0, 0))).replies
    assert isinstance(reply, Fitted)
    assert isinstance(reply.sent, RayModels)
    assert (len(reply.sent), reply.sent.nbytes, reply.sent.dtype) == (10, 10 * 10 * 4, torch.float32)
    share = torch.rand(3, 10)
    share[1] = 0
    summed = reply.sent.combined(share)
    assert reply.theta is reply.models
    torch.testing.assert_close(summed, share @ reply.models)
    assert torch.equal(reply.sent.combined(share), share @ reply.models)


def test_models_that_were_lost_are_computed_again(engine: Ray) -> None:
    """From what clients kept before the visit, not from what they keep since."""
    engine.visit(Visit((FIT,), EVERYONE, Moment(0, 0, 0)))
    again = Visit((FIT,), EVERYONE, Moment(0, 1, 0))
    (reply,) = engine.visit(again).replies
    with toys.engine(toys.REFERENCE, toys.toy()) as plain:
        plain.visit(Visit((FIT,), EVERYONE, Moment(0, 0, 0)))
        (expected,) = plain.visit(again).replies
    assert isinstance(reply, Fitted)
    assert isinstance(expected, Fitted)
    assert isinstance(reply.sent, RayModels)
    share = torch.rand(2, 10)
    lose(reply.sent)
    torch.testing.assert_close(reply.sent.combined(share), share @ expected.models)
    assert torch.equal(reply.models, expected.models)


def lose(models: RayModels) -> None:
    """As if the node that held the first part had died with it."""
    doomed = ray.remote(num_cpus=0)(Worker).remote()
    ray.kill(doomed)
    gone = doomed.look_in.remote([])
    first, *rest = models._parts
    models._parts = [NodeModels(first.clients, first.node, gone), *rest]


# -------------------------------------------------------------------------------------------------------------- faults


@dataclasses.dataclass(frozen=True)
class Faults:
    """Client 1 fails, 4's data is no number, 3 kills its process, and 6 does so the first time."""

    once: Path

    def __call__(self, client: int, split: str, taken: Samples) -> Samples:
        if client == 1:
            raise ValueError("its disk is broken")
        if client == 4:
            return torch.full_like(taken[0], torch.nan), taken[1]
        if client == 3 or (client == 6 and not self.once.exists()):
            if client == 6:
                self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return taken


def test_clients_that_fail_are_missing_and_nobody_else_is(tmp_path: Path) -> None:
    with toys.engine(("ray", 2), toys.faulty(Faults(tmp_path / "once"))) as engine:
        outcome = here(engine.visit(Visit((FIT,), EVERYONE, Moment(0, 0, 0))))
        kept = engine.memory.tensors()
    assert (tmp_path / "once").exists()
    missing = {m.client: m.reason for m in outcome.missing}
    assert list(missing) == [1, 3, 4]
    assert missing[1] == "ValueError: its disk is broken"
    assert "died 3 times" in missing[3]
    assert "NaN" in missing[4]
    well = torch.tensor([0, 2, 5, 6, 7, 8, 9])
    with toys.engine(toys.REFERENCE, toys.toy()) as plain:
        toys.assert_same(outcome.replies, plain.visit(Visit((FIT,), well, Moment(0, 0, 0))).replies)
        toys.assert_same(kept, plain.memory.tensors())


def test_an_actor_killed_between_visits_is_replaced(engine: Ray) -> None:
    visit = Visit((FIT,), EVERYONE, Moment(0, 0, 0))
    first = here(engine.visit(visit))
    engine.memory.restore({})
    gone = engine._actors[0]
    ray.kill(gone.handle)
    second = engine.visit(visit)
    assert not second.missing
    toys.assert_same(here(second), first)
    assert gone not in engine._actors


def test_where_there_is_no_core_it_says_so_and_waits(
    engine: Ray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coterie.engines.ray.engine.PATIENCE", 0.2)
    engine.visit(Visit((FIT,), EVERYONE, Moment(0, 0, 0)))
    others = [ray.remote(num_cpus=1)(Worker).remote() for _ in range(2)]
    ray.get([other.look_in.remote([]) for other in others])
    wait_until_full()
    with toys.engine(("ray", 1), toys.toy()) as second:
        assert isinstance(second, Ray)
        for _ in range(4):
            assert second._wait([]) == []
    assert caplog.text.count("Ray has not started a worker yet") == 1


def wait_until_full() -> None:
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) and time.monotonic() < deadline:
        time.sleep(0.1)


class Unknown(nn.Linear):
    """A network that cannot be had where the workers are."""

    def __reduce__(self) -> Any:
        return (__import__, ("a_module_that_is_nowhere",))


def test_a_module_that_the_workers_lack_is_named() -> None:
    network = Unknown(4, 2)
    model = Model(lambda: network)
    with (
        pytest.raises(CoterieError, match=r"workers cannot take on the model.*a_module_that_is_nowhere.*PYTHONPATH"),
        make_engine("ray", model, toys.toy(), 1) as broken,
    ):
        broken.visit(Visit((FIT,), EVERYONE, Moment(0, 0, 0)))


def test_what_cannot_be_sent_is_told() -> None:
    lock = threading.Lock()

    def build() -> nn.Module:
        with lock:
            return nn.Linear(4, 2)

    with pytest.raises(CoterieError, match=r"cannot be sent to other machines.*lock"):
        Ray(Model(build), toys.toy(), ActorResources(1, 1), None)


# ---------------------------------------------------------------------------------------------------------- addresses


def test_an_engine_leaves_a_cluster_that_it_did_not_join(engine: Ray) -> None:
    assert ray.is_initialized()
    assert not join("10.0.0.1:6379", 2)  # this process is in a cluster already


def test_an_address_where_nobody_answers_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would try for many minutes."""
    monkeypatch.setattr("coterie.engines.ray.engine.PAUSE", 0.1)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(CoterieError, match=r"no answer from 127.0.0.1:1; is `ray start --head`"):
        join("127.0.0.1:1", 1)
