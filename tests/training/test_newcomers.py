"""Clients kept from training: nobody asks them anything before the last round is over; then they find their place."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from conftest import UNTOLD, few, raises
from coterie import CFL, FLHC, Federation, Local
from coterie.core.codec import pack
from coterie.core.model import Model
from coterie.core.registry import METHODS, NO_CODE
from coterie.engines.contract import Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.methods.cam import WeCFLCAM
from coterie.methods.contract import Method
from coterie.methods.fesem import FeSEM
from coterie.methods.wecfl import WeCFL
from coterie.training.events import Event, RoundDone, RunEnded, RunStarted
from coterie.training.result import Result
from coterie.training.sampling import split_newcomers
from coterie.training.settings import Settings

CLIENTS, ROUNDS, NEW = 20, 3, 6  # round(0.3 * 20) = 6
TRUTH = tuple(i % 2 for i in range(CLIENTS))
# Full batches in order: no plan depends on an id, so that the same clients under other ids do the same.
LOCAL = Local(steps=4, batch="full", lr=0.5, shuffle=False)


SOME = ("halves", "fedavg", "ditto", "ifca", "wecfl", "fedem", "fedsoft", "stocfl", "ifca-cam")  # for every day
SAMPLED_ALIKE = [name for name in UNTOLD if name != "halves"]  # which samples are in which half is drawn by id


def arrays() -> list[tuple[Tensor, ...]]:
    """Per client: the sign of the first of four inputs decides, and odd clients say the opposite of even ones."""
    out: list[tuple[Tensor, ...]] = []
    for client in range(CLIENTS):
        rng, n = np.random.default_rng(100 + client), 10 + 3 * (client % 5)
        x = torch.from_numpy(rng.normal(size=(n + 6, 4))).float()
        y = (x[:, 0] * (1 if TRUTH[client] else -1) > 0).long()
        out.append((x[:n], y[:n], x[n:], y[n:]))
    return out


@functools.cache
def federation() -> Federation:
    return Federation.from_arrays(arrays(), truth=TRUTH, standardise=False)


def linear() -> nn.Module:
    return nn.Linear(4, 2)


def method(name: str, local: Local = LOCAL) -> Method[Any]:
    """A method of the catalogue, with this local training and two clusters where it has either."""
    fields = {f.name: f for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    params: dict[str, Any] = {n: v for n, v in {"local": local, "k": 2}.items() if n in fields}
    if "base" in fields and fields["base"].default is dataclasses.MISSING:  # a wrapper of another method
        params["base"] = method("wecfl", local)
    if "base" in fields and "section" in fields:
        params["section"] = ("*bias",)  # the head of a single layer is all of it, and nothing would be left to share
    if issubclass(METHODS.find(name, NO_CODE), FeSEM):
        params["alpha"] = 0
    made: Method[Any] = METHODS.build(name, params, NO_CODE)
    return made


class Recorder(Sequential):
    """The reference engine, which notes the round, the clients and whether anything was kept of every visit."""

    def __init__(self, model: Model, federation: Federation) -> None:
        super().__init__(model, federation)
        self.visits: list[tuple[int, list[int], bool]] = []

    def visit(self, visit: Visit) -> Outcome:
        meant = {c for c in visit.ids.tolist() if any(task is not None for task in visit.tasks_for(c))}
        self.visits.append((visit.moment.round, sorted(meant), visit.keep))
        return super().visit(visit)


@dataclasses.dataclass(frozen=True, eq=False)
class Ran:
    """A run and whom it asked."""

    result: Result[Any]
    visits: list[tuple[int, list[int], bool]]


@functools.cache
def ran(name: str, participation: float = 1.0, seed: int = 1, newcomers: float = 0.3) -> Ran:
    engine = Recorder(Model(linear), federation())
    result = coterie.run(
        *(method(name), federation(), linear),
        rounds=ROUNDS,
        participation=participation,
        seed=seed,
        newcomers=newcomers,
        engine=engine,
    )
    return Ran(result, engine.visits)


def newcomers(seed: int, newcomers: float = 0.3) -> list[int]:
    found: list[int] = split_newcomers(federation(), Settings(seed=seed, newcomers=newcomers))[1].ids.tolist()
    return found


def met(result: Result[Any]) -> Any:
    assert result.newcomers is not None
    return result.newcomers


def assert_same(one: object, other: object) -> None:
    """Two trees of tensors are equal bit for bit."""
    (outline, tensors), (other_outline, others) = pack(one), pack(other)
    assert outline == other_outline
    for a, b in zip(tensors, others, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.detach().numpy().tobytes() == b.detach().numpy().tobytes()


# ------------------------------------------------------------------------------------------------- who is kept back


@pytest.mark.parametrize(
    ("share", "clients", "many"), [(0.3, 20, 6), (0.25, 6, 2), (0.5, 5, 2), (0.01, 20, 0), (0.0, 7, 0), (0.9, 10, 9)]
)
def test_the_share_is_rounded_to_whole_clients(share: float, clients: int, many: int) -> None:
    """Halves go to the even number, as Python rounds: 0.25 * 6 = 1.5 -> 2 and 0.5 * 5 = 2.5 -> 2."""
    few = Federation.from_arrays([(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))] * clients, standardise=False)
    train, new = split_newcomers(few, Settings(newcomers=share))
    assert (len(train.ids), len(new.ids)) == (clients - many, many)
    assert sorted([*train.ids.tolist(), *new.ids.tolist()]) == list(range(clients))
    for roster in (train, new):
        assert roster.ids.tolist() == sorted(roster.ids.tolist())


def test_both_rosters_know_how_much_their_clients_train_on() -> None:
    for roster in split_newcomers(federation(), Settings(newcomers=0.3, seed=1)):
        assert roster.n.tolist() == [10 + 3 * (client % 5) for client in roster.ids.tolist()]


def test_another_seed_keeps_others_back_and_rounds_and_participation_do_not_matter() -> None:
    assert len({tuple(newcomers(seed)) for seed in range(20)}) > 15
    settings = Settings(seed=1, newcomers=0.3, rounds=99, participation=0.1, evaluate_on=0.5, dropout=0.5)
    assert split_newcomers(federation(), settings)[1].ids.tolist() == newcomers(1)
    # Nor are they the first clients of a kind: each one is a newcomer under some seed.
    assert set().union(*(newcomers(seed) for seed in range(40))) == set(range(CLIENTS))


@pytest.mark.parametrize(("share", "clients"), [(0.9, 4), (0.75, 2), (0.999, 20)])
def test_a_share_that_leaves_nobody_to_train_is_refused_before_anything_is_written(
    share: float, clients: int, tmp_path: Path
) -> None:
    """0.9 * 4 = 3.6 -> 4 of 4."""
    few = federation().take(list(range(clients)))
    with raises("config-invalid-value", match=rf"newcomers: {share:g} of {clients} clients leaves none to train on"):
        coterie.run("fedavg", few, linear, rounds=1, newcomers=share, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("share", [1.0, -0.1, 1.5, float("nan")])
def test_a_share_out_of_its_domain_is_refused_by_name(share: float) -> None:
    with raises("config-invalid-value", match="newcomers"):
        coterie.run("fedavg", federation(), linear, rounds=1, newcomers=share)


def test_a_count_of_clients_is_one_of_those_that_train() -> None:
    """14 of 20 train: 14 can take part, 15 cannot."""
    assert ran("fedavg").result.history[0].asked == 14
    with raises("config-invalid-value", match="participation: 15 clients, but there are only 14"):
        coterie.run("fedavg", federation(), linear, rounds=1, newcomers=0.3, participation=15)
    with raises("config-invalid-value", match="evaluate_on: 15 clients, but there are only 14"):
        coterie.run("fedavg", federation(), linear, rounds=1, newcomers=0.3, evaluate_on=15)
    with raises("config-invalid-value", match=r"method\.k.*15.*14"):
        coterie.run(coterie.IFCA(k=15), federation(), linear, rounds=1, newcomers=0.3)


# ----------------------------------------------------------------------------------------------------- every method


@pytest.mark.covering
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", few(UNTOLD, *SOME))
def test_newcomers_are_asked_nothing_before_the_last_round_is_over(name: str, participation: float) -> None:
    """Rounds 0..2 are training and its evaluations; what is asked of newcomers is asked in round 3, keeps nothing, and
    is asked of nobody else."""
    visits, kept = ran(name, participation).visits, set(newcomers(1))
    training = [ids for t, ids, _ in visits if t < ROUNDS]
    assert training
    assert all(kept.isdisjoint(ids) for ids in training)
    rounds = [t for t, _, _ in visits]
    assert rounds == sorted(rounds)  # nobody is met between two rounds
    after = [(ids, keep) for t, ids, keep in visits if t == ROUNDS]
    assert set().union(*(ids for ids, _ in after)) == kept
    assert not any(keep for _, keep in after)


@pytest.mark.covering
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", few(UNTOLD, *SOME))
def test_every_method_scores_both_those_it_trained_on_and_newcomers(name: str, participation: float) -> None:
    result = ran(name, participation).result
    kept = newcomers(1)
    new = met(result)
    assert new.clients.ids.tolist() == kept
    assert result.clients.ids.tolist() == [c for c in range(CLIENTS) if c not in kept]
    assert (sum(new.summary.sizes), sum(result.summary.sizes)) == (NEW, CLIENTS - NEW)
    assert new.clients.n.tolist() == [6] * NEW
    assert bool(new.clients.loss.isfinite().all())
    assert not new.unscored
    assert result.assignments.shape == (CLIENTS,)
    assert result.assignments.min() >= 0
    if new.clients.choice is not None:
        assert result.assignments[kept].tolist() == new.clients.choice.tolist()
    # By hand: all have six test samples, so the summary is the plain mean.
    assert new.summary.accuracy == pytest.approx(float(new.clients.accuracy.double().mean()))
    assert new.summary.loss == pytest.approx(float(new.clients.loss.double().mean()))


@pytest.mark.covering
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", few(SAMPLED_ALIKE, *(name for name in SOME if name in SAMPLED_ALIKE)))
def test_training_is_that_of_a_federation_without_them(name: str, participation: float) -> None:
    """Those who train, taken out and numbered anew, train to the same scores: no method mixes up ids and places."""
    with_them = ran(name, participation).result
    train = split_newcomers(federation(), Settings(seed=1, newcomers=0.3))[0].ids
    alone = coterie.run(
        *(method(name), federation().take(train.numpy()), linear), rounds=ROUNDS, participation=participation, seed=1
    )
    torch.testing.assert_close(with_them.clients.loss, alone.clients.loss, rtol=1e-4, atol=1e-5)
    assert torch.equal(with_them.clients.n, alone.clients.n)
    np.testing.assert_array_equal(with_them.assignments[train.numpy()], alone.assignments)
    assert [e.asked for e in with_them.history] == [e.asked for e in alone.history]


@pytest.mark.parametrize("name", few(UNTOLD, *SOME))
def test_newcomers_find_the_place_that_admit_finds_for_them(name: str) -> None:
    """The same data brought by strangers: `admit` uses the same rule. StoCFL may name new clusters by their order."""
    result = ran(name).result
    kept = newcomers(1)
    served = result.admit(federation().take(kept))
    assert served.assignments.tolist() == result.assignments[kept].tolist()
    torch.testing.assert_close(served.clients.loss, met(result).clients.loss, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", few(UNTOLD, *SOME))
def test_every_method_predicts_for_newcomers_as_they_were_scored(name: str) -> None:
    """The share of its own six test samples that `predict` gets right is the newcomer's accuracy."""
    result = ran(name, 0.5).result
    for client, accuracy in zip(newcomers(1), met(result).clients.accuracy.tolist(), strict=True):
        x, y = federation().samples(client, "test")
        said = result.predict(client, x)
        assert (said == y.numpy()).mean() == pytest.approx(accuracy, abs=1e-6)


@pytest.mark.parametrize("name", few(["fedavg", "wecfl", "ditto", "fedem", "stocfl", "fesem-cam"], "ditto"))
def test_newcomers_are_met_alike_by_workers(name: str) -> None:
    for participation in (1.0, 0.5):
        mine = coterie.run(
            *(method(name), federation(), linear),
            rounds=ROUNDS,
            participation=participation,
            seed=1,
            newcomers=0.3,
            engine="workers",
            workers=2,
        )
        reference = ran(name, participation).result
        assert met(mine).clients.ids.tolist() == newcomers(1)
        np.testing.assert_array_equal(mine.assignments, reference.assignments)
        torch.testing.assert_close(met(mine).clients.loss, met(reference).clients.loss, rtol=1e-4, atol=1e-5)


def test_all_methods_keep_the_same_clients_back() -> None:
    found = {name: tuple(met(ran(name, 0.5).result).clients.ids.tolist()) for name in UNTOLD}
    assert set(found.values()) == {tuple(newcomers(1))}
    assert tuple(met(ran("fedavg", seed=2).result).clients.ids.tolist()) == tuple(newcomers(2)) != tuple(newcomers(1))


# --------------------------------------------------------------------------------------------------- the right place

SPLITS: dict[str, Any] = {"eps1": 1.5, "eps2": 0.5, "gamma_max": 0.5}
CLUSTERED: dict[str, Callable[[], Method[Any]]] = {
    **{
        name: functools.partial(method, name)
        for name in ("ifca", "fesem", "wecfl", "fedgroup", "fedgrouprox", "stocfl", "fedsoft", "composed")
    },
    "fl+hc": lambda: FLHC(k=2, warmup=1, local=LOCAL),
    "cfl": lambda: CFL(**SPLITS, local=LOCAL),
    "wecfl-cam": lambda: WeCFLCAM(base=WeCFL(k=2, local=LOCAL), warmup=2, local=LOCAL),
}


@pytest.mark.parametrize("name", CLUSTERED)
def test_newcomers_of_separated_clusters_join_their_own(name: str) -> None:
    """Clusters are found among those who train, and every newcomer joins those of its kind: also ARI 1 over both."""
    result = coterie.run(CLUSTERED[name](), federation(), linear, rounds=5, seed=1, newcomers=0.3)
    assert result.summary.ari == 1.0, "the method does not find the clusters in the first place"
    new = met(result)
    assert new.summary.ari == 1.0
    kept = newcomers(1)
    assert {TRUTH[c] for c in kept} == {0, 1}, "the newcomers are all of one kind"
    together = result.assignments[:, None] == result.assignments
    np.testing.assert_array_equal(together, np.array(TRUTH)[:, None] == np.array(TRUTH))
    # Its cluster's model serves a newcomer as well as those it was trained by; the other one would be always wrong.
    assert new.summary.accuracy > 0.8
    # Inputs far on one side: a client of truth 1 says 1 where the first number is positive, one of truth 0 there 0.
    x = np.array([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]], dtype=np.float32)
    for client in kept:
        assert result.predict(client, x).tolist() == ([1, 0] if TRUTH[client] else [0, 1])


def test_meeting_newcomers_changes_neither_the_models_nor_what_clients_keep() -> None:
    for name in ("wecfl", "ditto", "stocfl", "fedem"):
        result = ran(name).result
        kept, keys = newcomers(1), result.memory.tensors()
        assert not [key for key in keys if int(key.split("/")[0]) in kept]
        if name == "wecfl":
            assert not bool(result.state.labels.has(torch.tensor(kept)).any())  # the state of training
            assert bool(met(result).state.labels.has(torch.tensor(kept)).all())  # and that with newcomers in it
            assert_same(result.state.centers, met(result).state.centers)


def test_a_newcomer_of_ditto_predicts_with_the_shared_model() -> None:
    """It has no personal model: its prediction is the shared linear layer's, by hand."""
    result = ran("ditto").result
    weight, bias = result.state[:8].reshape(2, 4), result.state[8:]
    for client in newcomers(1):
        x, _ = federation().samples(client, "test")
        assert result.predict(client, x).tolist() == (x @ weight.T + bias).argmax(1).tolist()


# -------------------------------------------------------------------------------------- without, and who is evaluated


@pytest.mark.parametrize("name", ["fedavg", "wecfl", "fedem"])
def test_no_newcomers_is_none_and_changes_no_bit(name: str) -> None:
    """Nor does a share that rounds to nobody: 0.01 * 20 = 0.2 -> 0."""
    settings: Any = {"rounds": ROUNDS, "participation": 0.5, "seed": 1, "engine": "sequential"}
    plain = coterie.run(method(name), federation(), linear, **settings)
    for share in (0.0, 0.01):
        result = ran(name, 0.5, newcomers=share).result
        assert result.newcomers is None
        assert_same(result.state, plain.state)
        assert_same(result.clients, plain.clients)
        assert_same(result.memory.tensors(), plain.memory.tensors())
        assert result.clients.ids.tolist() == list(range(CLIENTS))


def test_all_newcomers_are_evaluated_however_few_of_the_others_are() -> None:
    """evaluate_on=5: five of the 14 that train; the other nine have no known cluster."""
    result = coterie.run(method("wecfl"), federation(), linear, rounds=1, seed=1, newcomers=0.3, evaluate_on=5)
    assert met(result).clients.ids.tolist() == newcomers(1)
    assert len(result.clients.ids) == 5
    assert int((result.assignments == -1).sum()) == 9
    assert result.assignments[newcomers(1)].min() >= 0


def test_newcomers_are_weighed_by_their_own_size() -> None:
    """By training size, 10 + 3 * (client % 5): the mean of the newcomers' losses by hand."""
    result = coterie.run(method("fedavg"), federation(), linear, rounds=1, seed=1, newcomers=0.3, weigh_clients="train")
    for clients, summary in ((met(result).clients, met(result).summary), (result.clients, result.summary)):
        size = np.array([10 + 3 * (client % 5) for client in clients.ids.tolist()])
        by_hand = (size * clients.loss.double().numpy()).sum() / size.sum()
        assert summary.loss == pytest.approx(by_hand)
        assert summary.loss != pytest.approx(float(clients.loss.mean()), rel=1e-4)


def test_dropping_out_is_for_those_who_train() -> None:
    result = coterie.run(method("fedavg"), federation(), linear, rounds=2, seed=1, newcomers=0.3, dropout=0.6, quorum=0)
    assert met(result).clients.ids.tolist() == newcomers(1)


def test_listeners_are_told_who_trains_and_of_newcomers_at_the_end() -> None:
    told: list[Event] = []
    result = coterie.run(
        method("wecfl"),
        federation(),
        linear,
        rounds=2,
        seed=1,
        newcomers=0.3,
        participation=0.5,
        listeners=[told.append],
    )
    start, *_, end = told
    assert isinstance(start, RunStarted)
    assert (start.clients, start.per_round) == (14, 7)
    assert isinstance(end, RunEnded)
    assert end.newcomers is met(result).clients


# --------------------------------------------------------------------------------------------------- run directories


@pytest.mark.parametrize("name", ["wecfl", "ditto", "stocfl"])
def test_a_run_that_was_killed_and_one_read_back_meet_the_same_newcomers(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 4, "participation": 0.5, "seed": 1, "newcomers": 0.3, "checkpoint_every": 1}

    def stop(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 3:
            raise KeyboardInterrupt

    whole = coterie.run(method(name), federation(), linear, out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        coterie.run(method(name), federation(), linear, out=tmp_path / "cut", listeners=[stop], **options)
    assert not (tmp_path / "cut" / "newcomers.json").exists()
    resumed = coterie.run(method(name), federation(), linear, out=tmp_path / "cut", resume=True, **options)
    again = coterie.run(method(name), federation(), linear, out=tmp_path / "cut", resume=True, **options)  # all done
    loaded = coterie.load(tmp_path / "cut", method=method(name), federation=federation(), model=linear)
    x = np.eye(4, dtype=np.float32)
    for other in (resumed, again, loaded):
        assert_same(met(other).clients, met(whole).clients)
        assert met(other).summary == met(whole).summary
        assert_same(met(other).state, met(whole).state)
        np.testing.assert_array_equal(other.assignments, whole.assignments)
        for client in newcomers(1):
            np.testing.assert_array_equal(other.predict(client, x), whole.predict(client, x))
    for file in ("newcomers.json", "clients.json", "assignments.json"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_resumed_run_cannot_take_others_in(tmp_path: Path) -> None:
    coterie.run(method("wecfl"), federation(), linear, rounds=1, seed=1, newcomers=0.3, out=tmp_path / "run")
    with raises("checkpoint-mismatch"):
        coterie.run(
            method("wecfl"), federation(), linear, rounds=2, seed=1, newcomers=0.5, out=tmp_path / "run", resume=True
        )


def test_a_run_directory_has_the_newcomers_apart_and_by_name(tmp_path: Path) -> None:
    named = dataclasses.replace(federation(), names=tuple(f"hospital {c}" for c in range(CLIENTS)))
    result = coterie.run(method("wecfl"), named, linear, rounds=2, seed=1, newcomers=0.3, out=tmp_path / "run")
    rows, trained, places = (
        json.loads((tmp_path / "run" / f"{file}.json").read_text()) for file in ("newcomers", "clients", "assignments")
    )
    kept = newcomers(1)
    assert [row["client"] for row in rows] == kept
    assert [row["name"] for row in rows] == [f"hospital {c}" for c in kept]
    assert [row["cluster"] for row in rows] == result.assignments[kept].tolist()
    assert [row["accuracy"] for row in rows] == met(result).clients.accuracy.tolist()
    assert list(rows[0]) == [
        "client",
        "name",
        "cluster",
        "hidden",
        "scored_on",
        "samples",
        "loss",
        "accuracy",
        "macro_f1",
    ]
    assert [row["client"] for row in trained] == [int(c) for c in places] == result.clients.ids.tolist()
    coterie.run(method("wecfl"), named, linear, rounds=1, out=tmp_path / "without")
    assert not (tmp_path / "without" / "newcomers.json").exists()


# -------------------------------------------------------------------------------------------------------------- faults


def without_test_samples(clients: list[int]) -> Federation:
    some = arrays()
    for c in clients:
        x, y, *_ = some[c]
        some[c] = (x, y, x[:0], y[:0])
    return Federation.from_arrays(some, truth=TRUTH, standardise=False)


def test_a_newcomer_without_test_samples_finds_its_place_and_does_not_count() -> None:
    first, *others = newcomers(1)
    result = coterie.run(method("wecfl"), without_test_samples([first]), linear, rounds=3, seed=1, newcomers=0.3)
    assert met(result).clients.n.tolist() == [0, *[6] * 5]
    assert met(result).summary.accuracy == pytest.approx(float(met(result).clients.accuracy[1:].double().mean()))
    assert result.assignments[first] in result.assignments[others]


def test_newcomers_none_of_whom_can_be_scored_are_told_before_training() -> None:
    engine = Recorder(Model(linear), federation())
    with raises("data-split", match="test samples"):
        coterie.run(
            *(method("fedavg"), without_test_samples(newcomers(1)), linear),
            rounds=2,
            seed=1,
            newcomers=0.3,
            engine=engine,
        )
    assert not engine.visits


def test_a_client_that_was_never_drawn_predicts_as_it_was_evaluated() -> None:
    result = coterie.run(method("wecfl"), federation(), linear, rounds=1, seed=1, participation=2)
    for client, accuracy in enumerate(result.clients.accuracy.tolist()):
        x, y = federation().samples(client, "test")
        assert (result.predict(client, x) == y.numpy()).mean() == pytest.approx(accuracy, abs=1e-6)
