"""Where methods break in practice, for every method of the catalogue: one client, as many clusters as clients, clients
not met before, clusters nobody came for, rounds nobody answered, ties, equal clients, a crash, an unknown K, newcomers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripted import played, variant
from torch import Tensor, nn

import coterie
from conftest import UNTOLD, few
from coterie import CFL, IFCA, Composed, Federation, FedGroup, FeSEM, Local, Model, StoCFL, WeCFL
from coterie.client.contract import Memory
from coterie.core.codec import pack
from coterie.core.compute import one_thread
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.core.tasks import Evaluated
from coterie.data.federation import Ragged
from coterie.engines.contract import Engine, Missing, Outcome, ReplyBuilder, Visit
from coterie.engines.sequential import Sequential
from coterie.methods.contract import Admits, Method
from coterie.training import checkpoint
from coterie.training.ask import RoundAsk

LOCAL = Local(steps=5, batch="full", lr=0.5)
MODEL = Model(lambda: nn.Linear(8, 4))
NAMES = UNTOLD
ONE_MODEL = {  # everyone in one cluster, by definition
    *("local", "fedavg", "fedprox", "fedavgm", "fedadam", "ditto", "fedavg+", "fedprox+", "fedper", "fedrep", "fedbn"),
}
PERSONAL = {"personal", "ifca-personal"}
SOFT = {"fedem", "fedrc", "fedsoft"}
DESCRIBED = {"pacfl", "fielding", "flux"}  # by what inputs or labels look like: a change of P(y|x) alone is not seen
APART = {"fesem", "wecfl", "fedgroup", "fedgrouprox", "fl+hc", "composed", "fesem-cam", "wecfl-cam", "fedgroup-cam"}
SOME = ("halves", "fedavg", "ditto", "ifca", "wecfl", "fedem", "fedsoft", "cfl", "stocfl", "ifca-cam")  # for every day
HARD = [name for name in NAMES if name not in ONE_MODEL | SOFT]
KITS = [
    Composed(representation="all", clustering="kmeans", local=LOCAL),
    Composed(representation="update", clustering="kmeans", distance="edc", local=LOCAL),
    Composed(representation="update", clustering="agglomerative", distance="madc", local=LOCAL),
    Composed(representation="classifier", clustering="agglomerative", distance="cosine", local=LOCAL),
    Composed(representation="gradient", clustering="merge", distance="cosine", threshold=0.5, local=LOCAL),
    Composed(representation="gradient", clustering="bipartition", distance="cosine", threshold=0.5, local=LOCAL),
    Composed(representation="losses", clustering="argmin", local=LOCAL),
]
ONCE_SEED = 3  # its first models suit different clusters, which a single choice by loss needs
KIT_NAMES = [f"{kit.representation}-{kit.clustering}" for kit in KITS]
BASES: dict[str, Callable[[Any], Any]] = {
    "cam": lambda k: IFCA(k=k, local=LOCAL),
    "personal": lambda k: WeCFL(k=k, local=LOCAL),
    "ifca-personal": lambda k: IFCA(k=k, local=LOCAL),
    "ifca-cam": lambda k: IFCA(k=k, local=LOCAL),
    "fesem-cam": lambda k: FeSEM(k=k, local=LOCAL, features="classifier", weights="size"),
    "wecfl-cam": lambda k: WeCFL(k=k, local=LOCAL),
    "fedgroup-cam": lambda k: FedGroup(k=k, local=LOCAL),
    "stocfl-cam": lambda k: StoCFL(tau=0.5, local=LOCAL),
    "cfl-cam": lambda k: CFL(local=LOCAL, eps1=0.3, eps2=0.5, gamma_max=0.5),
}


def method(name: str, k: int | str = 4, local: Local = LOCAL, **more: Any) -> Method[Any]:
    """A method of the catalogue with k clusters, where it has any, and whatever warms up doing so for one round."""
    known = {f.name for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    options: dict[str, Any] = {"local": local, "k": k, "warmup": 1, "rank": 2}  # `described` has two kinds per cluster
    if name == "cfl":
        options |= {"eps1": 0.3, "eps2": 0.5, "gamma_max": 0.5}
    if name == "stocfl":
        options["tau"] = 0.5
    if name in PERSONAL:
        options["section"] = ("bias",)  # the head is all of this model
    if name in BASES:
        options["base"] = dataclasses.replace(BASES[name](k), local=local)
    options |= more
    made: Method[Any] = METHODS.build(name, {key: value for key, value in options.items() if key in known}, NO_CODE)
    return made


def toy(clients: int = 16, clusters: int = 4, samples: int = 20, seed: int = 0, of: Sequence[int] = ()) -> Federation:
    """Four kinds of points, which client i calls by names shifted by i % clusters; `of[i]` is whose data i holds."""
    prototypes = np.random.default_rng(seed).normal(size=(4, 8))
    hands = []
    for client in of or range(clients):
        rng = np.random.default_rng([seed, client])
        kind = rng.integers(0, 4, samples + 6)
        x = (prototypes[kind] + 0.3 * rng.normal(size=(len(kind), 8))).astype(np.float32)
        y = (kind + client % clusters) % 4
        hands.append((x[6:], y[6:], x[:6], y[:6]))
    truth = [client % clusters for client in of or range(clients)]
    return Federation.from_arrays(hands, truth=truth, outputs=4, standardise=False)


def described() -> Federation:
    """Four clusters of four clients, with two kinds of points and two labels each: descriptions tell them apart."""
    hands = []
    for client in range(16):
        rng = np.random.default_rng(client)
        kind = rng.integers(0, 2, 26)
        x = (3 * np.eye(8)[2 * (client % 4) + kind] + 0.3 * rng.normal(size=(26, 8))).astype(np.float32)
        y = (kind + client) % 4
        hands.append((x[6:], y[6:], x[:6], y[:6]))
    return Federation.from_arrays(hands, truth=[client % 4 for client in range(16)], outputs=4, standardise=False)


def suited(name: str) -> Federation:
    """Four clusters that this method can find."""
    return described() if name in DESCRIBED else toy()


def part(federation: Federation, clients: int) -> Federation:
    """The first clients of a federation, on their own."""
    assert federation.truth is not None
    return dataclasses.replace(
        federation,
        train=Ragged.of([federation.train.row(c).numpy() for c in range(clients)]),
        test=Ragged.of([federation.test.row(c).numpy() for c in range(clients)]),
        truth=federation.truth[:clients],
    )


def same(one: object, other: object) -> bool:
    """Whether two trees of tensors are equal bit for bit."""
    (outline, tensors), (other_outline, others) = pack(one), pack(other)
    return (
        outline == other_outline
        and len(tensors) == len(others)
        and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(tensors, others, strict=True))
    )


def base_of(state: Any) -> Any:
    """What the clustered method keeps (CAM wraps it)."""
    return state.base if hasattr(state, "base") else state


def centers_of(state: Any) -> Tensor:
    inner = base_of(state)
    centers: Tensor = inner if isinstance(inner, Tensor) else inner.centers
    return centers if centers.ndim == 2 else centers[None]


class Deaf:
    """An engine whose clients do not answer in some rounds (evaluation is not a round)."""

    def __init__(self, federation: Federation, rounds: Sequence[int]) -> None:
        self.inner = Sequential(MODEL, federation)
        self.memory: Memory = self.inner.memory
        self.rounds = rounds

    def visit(self, visit: Visit) -> Outcome:
        """Nobody is there, or everyone."""
        if visit.keep and visit.moment.round in self.rounds:
            return Outcome(ReplyBuilder(visit).replies(), tuple(Missing(c, "away") for c in visit.ids.tolist()))
        return self.inner.visit(visit)

    def close(self) -> None:
        """Nothing to let go of."""


def play(
    a_method: Method[Any], federation: Federation, engine: Engine, state: Any, t: int, ids: Sequence[int] | None = None
) -> Any:
    """Round t (from 0), with these clients."""
    who = federation.roster.ids if ids is None else torch.tensor(ids)
    cohort = Cohort(who, t, federation.roster, generator(0, Purpose.METHOD, t, 0))
    with one_thread():
        return played(a_method, state, cohort, RoundAsk(engine, who, 0, t))


def fresh(a_method: Method[Any], federation: Federation, seed: int = 0) -> Any:
    return a_method.init(MODEL, federation.roster, generator(seed, Purpose.INIT))


def look(a_method: Method[Any], federation: Federation, engine: Engine, state: Any, ids: Tensor) -> Evaluated:
    """How these clients predict, by a state that knows them."""
    with one_thread():
        reply: Evaluated = RoundAsk(engine, ids, 0, 99, kind="probe")(a_method.predictor(state))
    assert torch.equal(reply.ids, ids)
    return reply


def run(a_method: Method[Any], federation: Federation, rounds: int = 4, **more: Any) -> coterie.Result[Any]:
    result = coterie.run(a_method, federation, MODEL, rounds=rounds, **more)
    assert not any(event.missing for event in result.history), "a client failed"
    assert result.clients.ids.tolist() == list(range(len(federation)))
    assert bool(result.clients.loss.isfinite().all())
    return result


# ------------------------------------------------------------------------------------------------ few clients


@pytest.mark.parametrize("name", NAMES)
def test_one_client(name: str) -> None:
    result = run(method(name, k=1), toy(clients=1), rounds=6)
    assert result.assignments.tolist() == [1 if name == "feddrift" else 0]  # whose first model is nobody's
    assert result.accuracy == 1.0


@pytest.mark.parametrize("kit", KITS, ids=KIT_NAMES)
def test_one_client_in_the_kit(kit: Composed) -> None:
    result = run(dataclasses.replace(kit, k=1), toy(clients=1), rounds=6)
    assert (result.assignments.tolist(), result.accuracy) == ([0], 1.0)


@pytest.mark.parametrize("name", few(NAMES, *SOME))
def test_as_many_clusters_as_clients(name: str) -> None:
    federation = toy(clients=5)
    result = run(method(name, k=5), federation)
    if name in {
        "fesem",
        "wecfl",
        "fesem-cam",
        "wecfl-cam",
        "fedgroup",
        "fedgroup-cam",
        "fedgrouprox",
        "fl+hc",
        "composed",
    }:
        assert result.summary.sizes == (1,) * 5
    if name in SOFT:
        assert result.clients.shares is not None
        assert result.clients.shares.shape == (5, 5)
    if name == "fedgroup":
        assert run(FedGroup(k=5, grouping="madc", local=LOCAL), federation).summary.sizes == (1,) * 5


@pytest.mark.parametrize("name", NAMES)
def test_more_clusters_than_clients_are_refused_or_harmless(name: str) -> None:
    try:
        result = run(method(name, k=6), toy(clients=5))
    except coterie.CoterieError as error:
        assert "6 clusters for 5 clients" in str(error)  # noqa: PT017 (either outcome is right)
    else:
        assert name in ONE_MODEL | {"halves", "cfl", "stocfl", "stocfl-cam", "cfl-cam", "feddrift"}
        assert result.accuracy is not None


# ------------------------------------------------------------------------------- who comes, and who does not


@pytest.mark.parametrize("name", few(NAMES, *SOME))
def test_clients_never_met_are_evaluated_and_may_come_later(name: str) -> None:
    federation = toy()
    early = run(method(name), federation, rounds=2, participation=3)
    late = run(method(name), federation, rounds=12, participation=3)
    assert late.summary.loss < 2 * early.summary.loss + 1
    if name not in ONE_MODEL | SOFT:
        inner = base_of(late.state)
        if not isinstance(inner, Tensor):
            assert set(inner.labels.values.tolist()) <= set(range(len(inner.centers)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kit", KITS, ids=KIT_NAMES)
def test_the_kit_evaluates_clients_never_met(kit: Composed) -> None:
    run(kit, toy(), rounds=2, participation=3)
    run(kit, toy(), rounds=12, participation=3)
    run(dataclasses.replace(kit, when="once", first=1), toy(), rounds=6, participation=5)


def absent_rows_stay(a_method: Method[Any], federation: Federation, seed: int = 1) -> None:
    """Train everyone, then ask two of the four true clusters only: all other rows keep their bits."""
    engine = Sequential(MODEL, federation)
    state = fresh(a_method, federation, seed=seed)
    for t in range(6):
        state = play(a_method, federation, engine, state, t)
    before = look(a_method, federation, engine, state, federation.roster.ids).choice
    assert before is not None
    present = [c for c in range(len(federation)) if c % 4 < 2]
    idle = sorted(set(before.tolist()) - set(before[present].tolist()))
    assert idle, "no cluster is absent: the test says nothing"
    for t in range(6, 9):
        after = play(a_method, federation, engine, state, t, present)
        for row in idle:
            assert torch.equal(centers_of(after)[row], centers_of(state)[row]), f"row {row} has moved in round {t}"
        state = after
    away = [c for c in range(len(federation)) if c % 4 >= 2]
    found = look(a_method, federation, engine, state, federation.roster.ids).choice
    assert found is not None
    if not hasattr(state, "base"):  # CAM's global model goes on, and with it what is best
        assert found[away].tolist() == before[away].tolist()


@pytest.mark.parametrize("name", few(HARD, *(name for name in SOME if name in HARD)))
def test_a_cluster_whose_members_are_all_absent_keeps_its_model(name: str) -> None:
    a_method = method(name)
    if isinstance(a_method, coterie.CLoVE):  # its paper divides those who are there into K clusters in every round
        a_method = dataclasses.replace(a_method, clustered="known")
    absent_rows_stay(a_method, suited(name))


@pytest.mark.covering
@pytest.mark.parametrize("kit", KITS, ids=KIT_NAMES)
@pytest.mark.parametrize("when", ["every", "once"])
def test_the_kit_keeps_the_model_of_a_cluster_whose_members_are_all_absent(kit: Composed, when: Any) -> None:
    absent_rows_stay(dataclasses.replace(kit, when=when), toy(), seed=ONCE_SEED if when == "once" else 1)


# --------------------------------------------------------------------------------------------- nobody answers


def quiet_round_changes_nothing(a_method: Method[Any], after: int) -> None:
    federation = toy(clients=8)
    engine = Deaf(federation, rounds=[after])
    state = fresh(a_method, federation)
    for t in range(after):
        state = play(a_method, federation, engine, state, t)
    memory = dict(engine.memory.tensors())
    found = play(a_method, federation, engine, state, after)
    assert same(found, state)
    assert same(memory, dict(engine.memory.tensors()))


@pytest.mark.covering
@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_round_in_which_nobody_answers_changes_nothing(name: str, after: int) -> None:
    quiet_round_changes_nothing(method(name), after)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("kit", KITS, ids=KIT_NAMES)
def test_a_round_in_which_nobody_answers_changes_nothing_in_the_kit(kit: Composed, after: int) -> None:
    quiet_round_changes_nothing(kit, after)


@pytest.mark.parametrize("grouping", ["edc", "madc", "rcc", "rac"])
def test_a_round_in_which_nobody_answers_changes_no_group(grouping: Any) -> None:
    for cold_start in ("on_selection", "all_before"):
        group = variant(FedGroup, k=2, grouping=grouping, alpha=2, cold_start=cold_start, local=LOCAL)
        quiet_round_changes_nothing(group, 0)


@pytest.mark.covering
@pytest.mark.parametrize("deaf", [[0], [0, 1], [3], [0, 1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("name", few(NAMES, *SOME))
def test_a_run_goes_on_after_rounds_in_which_nobody_answers(name: str, deaf: list[int]) -> None:
    federation = toy(clients=8)
    engine = Deaf(federation, deaf)
    result = coterie.run(method(name), federation, MODEL, rounds=6, quorum=0, engine=engine, seed=1)
    assert [event.answered == 0 for event in result.history] == [t in deaf for t in range(6)]
    assert result.clients.ids.tolist() == list(range(8))
    assert bool(result.clients.loss.isfinite().all())


@pytest.mark.parametrize("name", ["ifca", "fedem", "fedsoft"])
def test_an_unknown_number_of_clusters_is_found_also_when_nobody_answers_first(name: str) -> None:
    federation = toy()
    result = coterie.run(method(name, k="auto"), federation, MODEL, rounds=4, quorum=0, engine=Deaf(federation, [0]))
    assert len(centers_of(result.state)) == 4


@pytest.mark.parametrize("name", ["fesem-cam", "wecfl-cam"])
def test_what_was_warmed_up_is_not_lost_when_nobody_answers_next(name: str) -> None:
    """Clients part by what they learned alone; a silent round in between must not make them begin anew."""
    federation = toy()
    a_method = method(name)
    engine, deaf = Deaf(federation, []), Deaf(federation, [1])
    one, other = fresh(a_method, federation), fresh(a_method, federation)
    for t in (0, 1):
        one = play(a_method, federation, engine, one, t)
    for t in (0, 1, 2):
        other = play(a_method, federation, deaf, other, t)
    torch.testing.assert_close(centers_of(other).sort(0).values, centers_of(one).sort(0).values)


# ------------------------------------------------------------------------------------------ ties and equal data


@pytest.mark.parametrize("name", few(HARD, *(name for name in SOME if name in HARD)))
def test_two_identical_clients_stay_together(name: str) -> None:
    twins = [c for client in range(8) for c in (client, client)]
    result = run(method(name), toy(of=twins), rounds=6, seed=1)
    found = result.assignments
    assert found[0::2].tolist() == found[1::2].tolist()
    assert len(set(found.tolist())) > 1
    losses = result.clients.loss
    torch.testing.assert_close(losses[0::2], losses[1::2])


@pytest.mark.parametrize("name", few(NAMES, *SOME))
def test_identical_clients_are_one_cluster(name: str) -> None:
    # A dendrogram cut at k has k clusters whatever the data; a threshold finds one, and so does a rule for FL+HC.
    options: dict[str, Any] = {"threshold": 0.1} if name in {"fl+hc", "fedclust", "pacfl"} else {}
    result = run(method(name, k=3, **options), toy(of=[0] * 6), rounds=6)
    assert result.summary.sizes == (6,)
    assert len(set(result.clients.loss.tolist())) == 1


# Whose number of clusters follows from thresholds, or from a rule of their own.
UNRULED = {"cfl", "stocfl", "cfl-cam", "stocfl-cam", "feddrift"} | DESCRIBED


@pytest.mark.parametrize("name", [name for name in HARD if name not in UNRULED])
def test_an_unknown_number_of_clusters_of_identical_clients_is_one(name: str) -> None:
    result = run(method(name, k="auto"), toy(of=[0] * 6))
    assert result.summary.sizes == (6,)


# -------------------------------------------------------------------------------------------- after a crash


@pytest.mark.parametrize("name", few(NAMES, *SOME))
def test_a_checkpoint_gives_back_every_bit(name: str, tmp_path: Path) -> None:
    federation = toy(clients=8)
    a_method = method(name)
    engine = Sequential(MODEL, federation)
    state = begin = fresh(a_method, federation)
    for t in range(4):
        path = tmp_path / f"{t}.safetensors"
        checkpoint.save(path, state, engine.memory, t, {"of": "this"})
        loaded = checkpoint.load(path, begin, a_method, {"of": "this"})
        assert loaded.round == t
        assert same(loaded.state, state)
        assert same(dict(loaded.memory), engine.memory.tensors())
        state = play(a_method, federation, engine, state, t)


@pytest.mark.covering
@pytest.mark.parametrize(
    "local", [LOCAL, Local(epochs=2, batch=4, momentum=0.9, keep_optimizer=True)], ids=["gd", "sgd"]
)
@pytest.mark.parametrize("name", few(NAMES, *SOME))
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, local: Local, tmp_path: Path) -> None:
    federation = toy(clients=8)
    options: dict[str, Any] = {"participation": 5, "seed": 3, "checkpoint_every": 2}
    a_method = method(name, k=3, local=local)
    whole = Sequential(MODEL, federation)
    expected = run(a_method, federation, rounds=6, engine=whole, out=tmp_path / "whole", **options)
    run(a_method, federation, rounds=3, engine="sequential", out=tmp_path / "parts", **options)
    again = Sequential(MODEL, federation)
    found = run(a_method, federation, rounds=6, engine=again, out=tmp_path / "parts", resume=True, **options)
    assert [event.round for event in found.history] == [4, 5, 6]
    assert same(found.state, expected.state)
    assert same(again.memory.tensors(), whole.memory.tensors())
    assert same(found.clients, expected.clients)


@pytest.mark.parametrize("name", [*(name for name in BASES if name not in PERSONAL), "composed"])
def test_a_checkpoint_can_be_written_while_warming_up(name: str, tmp_path: Path) -> None:
    base = Composed(local=LOCAL) if name == "composed" else BASES[name](4)
    warming = coterie.CAM(base, warmup=3, local=LOCAL)
    run(warming, toy(clients=8), rounds=2, out=tmp_path / "run", checkpoint_every=1)


# ------------------------------------------------------------------------------------------ how many clusters


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *(("ifca", "auto"), ("wecfl", "auto"), ("fedem", "auto"), ("fl+hc", "gap")),
        ("fielding", "silhouette"),
        *(
            pytest.param(name, "auto", marks=pytest.mark.exhaustive)
            for name in NAMES
            if name not in ONE_MODEL | {"ifca", "wecfl", "fedem"} | UNRULED
        ),
        *(pytest.param(name, "gap", marks=pytest.mark.exhaustive) for name in ("ifca", "fesem", "fedgroup")),
    ],
)
def test_four_clusters_are_counted(name: str, rule: str) -> None:
    result = run(method(name, k=rule), suited(name), rounds=5)
    assert len(centers_of(result.state)) == 4
    shares = result.clients.shares
    assert shares is None or shares.shape == (16, 4)


@pytest.mark.parametrize("name", ["cfl", "stocfl", "cfl-cam", "stocfl-cam"])
def test_methods_without_a_k_find_four_clusters(name: str) -> None:
    result = run(method(name), toy(), rounds=8)
    assert (result.summary.ari, result.summary.sizes) == (1.0, (4, 4, 4, 4))


# --------------------------------------------------------------------------------------------------- newcomers

SEEDS = {
    "ifca": 1,
    "fedem": 1,
    "fedrc": 1,
    "fedsoft": 1,
}  # random first models may not suit all four clusters: those of these do


@pytest.mark.parametrize("name", few(NAMES, *SOME))
def test_newcomers_find_their_place_and_nobody_changes(name: str) -> None:
    everyone = suited(name)
    federation = part(everyone, 12)
    # Components of a mixture part slowly: longer steps let them get there within the rounds.
    slow = name in ("fedem", "fedrc")
    a_method = method(name, local=dataclasses.replace(LOCAL, lr=2.0) if slow else LOCAL)
    small = Sequential(MODEL, federation)
    trained = run(a_method, federation, rounds=12 if slow else 8, engine=small, seed=SEEDS.get(name, 0))
    if name not in ONE_MODEL:
        assert trained.summary.ari == 1.0
    engine = Sequential(MODEL, everyone)
    engine.memory.restore(small.memory.tensors())
    new = torch.arange(12, 16)
    state = trained.state
    if isinstance(a_method, Admits):
        ask = RoundAsk(engine, new, 0, 8, kind="probe")
        state = a_method.admit(state, Cohort(new, 8, everyone.roster, generator(0, Purpose.METHOD, 8)), ask)
        assert not ask.missing
    assert same(engine.memory.tensors(), small.memory.tensors())
    known = len(centers_of(trained.state))
    assert torch.equal(centers_of(state)[:known], centers_of(trained.state))
    reply = look(a_method, everyone, engine, state, everyone.roster.ids)
    old = trained.clients
    assert torch.equal(reply.loss[:12], old.loss)
    if name in ONE_MODEL:
        return
    assert reply.choice is not None
    assert old.choice is not None
    assert reply.choice[:12].tolist() == old.choice.tolist()
    assert reply.choice[12:].tolist() == old.choice[:4].tolist()
    assert float(reply.accuracy[12:].mean()) > 0.9
