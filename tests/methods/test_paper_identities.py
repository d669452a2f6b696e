"""The papers' own identities, to 1e-6 over five rounds of a real model on rotated digits.

Where two methods number their tasks differently, batches (a plan keyed by the task's number) would differ too: those
identities are checked with full-batch training. Clients have unequal sizes wherever the identity allows it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass
from scripted import variant
from torch import Tensor

import coterie
from conftest import few
from coterie import (
    CAM,
    CFL,
    FLHC,
    IFCA,
    CLoVE,
    Composed,
    Ditto,
    FedAvg,
    FedAvgPlus,
    FedDrift,
    FedEM,
    Federation,
    FedGroup,
    FedGrouProx,
    FedProx,
    FedProxPlus,
    FedRC,
    FedSoft,
    FeSEM,
    Local,
    StoCFL,
    WeCFL,
)
from coterie.clustering.kmeans import by_first_member
from coterie.core.model import Model
from coterie.core.registry import NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.settings import STRICT
from coterie.core.tables import Roster
from coterie.data.federation import Domain, Ragged
from coterie.data.sets.images import Digits
from coterie.engines.sequential import Sequential
from coterie.methods.contract import Method
from coterie.training.build import named_model
from coterie.training.result import Result
from coterie.training.sampling import sample_cohort
from coterie.training.settings import Settings

UNEQUAL = (25, 61, 33, 90, 45, 70, 28, 52)
EQUAL = (48,) * 8
ROUNDS, SEED = 5, 3
FULL = Local(steps=3, batch="full", lr=0.3)  # no plan: any task number gives the same steps
BATCHES = Local(epochs=2, batch=8, lr=0.1)
SHARES = [1.0, 0.4]


def digits(sizes: tuple[int, ...]) -> Federation:
    """Handwritten digits, client i turned by i quarter turns; it trains on sizes[i] of them and tests on ten more."""
    data = Digits()()
    order = np.random.default_rng(0).permutation(len(data.y))
    hands = np.split(order[: sum(sizes) + 10 * len(sizes)], np.cumsum([n + 10 for n in sizes])[:-1])
    truth = np.arange(len(sizes)) % 4
    rows = [hand + len(data.y) * k for hand, k in zip(hands, truth, strict=True)]
    return Federation(
        tuple(Domain(data.x, data.y, data.scale, turns=turns) for turns in range(4)),
        Ragged.of([row[10:] for row in rows]),
        Ragged.of([row[:10] for row in rows]),
        outputs=10,
        truth=truth,
    )


def mlp(federation: Federation) -> Model:
    return named_model("mlp", {"hidden": (12,)}, federation, NO_CODE)


def run(
    method: Method[Any], federation: Federation, participation: float = 1.0, rounds: int = ROUNDS
) -> tuple[Result[Any], dict[str, Tensor]]:
    """The run, and what clients keep after it."""
    model = mlp(federation)
    engine = Sequential(model, federation)
    result = coterie.run(
        method,
        federation,
        model,
        rounds=rounds,
        participation=participation,
        seed=SEED,
        evaluate_every=rounds,
        engine=engine,
    )
    return result, engine.memory.tensors()


def final(method: Method[Any], federation: Federation, participation: float = 1.0) -> Any:
    return run(method, federation, participation)[0].state


def begin(federation: Federation) -> Tensor:
    """The first model that any method draws under this seed."""
    return mlp(federation).init(generator(SEED, Purpose.INIT))


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def differ(one: Tensor, other: Tensor) -> None:
    assert float((one - other).abs().max()) > 1e-3, "the two would be equal whatever the method did"


@dataclass(frozen=True, config=STRICT | {"arbitrary_types_allowed": True})
class From(FedAvg):
    """FedAvg from a given model."""

    start: Tensor | None = None

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
        assert self.start is not None
        return self.start


def trained_alone(federation: Federation, client: int, start: Tensor, rounds: int) -> Tensor:
    """What a client gets that only ever sees itself."""
    one = dataclasses.replace(
        federation,
        train=Ragged.of([federation.train.row(client).numpy()]),
        test=Ragged.of([federation.test.row(client).numpy()]),
        truth=None,
    )
    if not rounds:
        return start
    state = run(From(start=start, local=FULL), one, rounds=rounds)[0].state
    assert isinstance(state, Tensor)
    return state


def visits(federation: Federation, participation: float) -> list[int]:
    """In how many rounds each client took part."""
    settings = Settings(rounds=ROUNDS, participation=participation, seed=SEED)
    taking_part = torch.cat([sample_cohort(federation.roster, settings, t, 0) for t in range(ROUNDS)])
    return torch.bincount(taking_part, minlength=len(federation)).tolist()


# ------------------------------------------------------------------------------------------------------ StoCFL


@pytest.mark.parametrize("participation", SHARES)
def test_stocfl_that_merges_everyone_without_a_pull_is_fedavg(participation: float) -> None:
    federation = digits(UNEQUAL)
    state = final(StoCFL(tau=-1, lam=0, local=FULL), federation, participation)
    expected = final(FedAvg(local=FULL), federation, participation)
    assert len(state.centers) == 1
    close(state.centers[0], expected)
    close(state.omega, expected)
    differ(final(FedAvg(local=FULL, weights="equal"), federation, participation), expected)
    differ(final(StoCFL(tau=-1, lam=0.5, local=FULL), federation, participation).centers[0], expected)


@pytest.mark.parametrize("participation", SHARES)
def test_stocfl_that_merges_nobody_is_ditto(participation: float) -> None:
    """theta_i is then pulled to omega as Ditto's v_i to w; both begin where the shared model stands at the meeting."""
    federation = digits(UNEQUAL)
    stocfl = variant(StoCFL, tau=1, lam=0.3, local=FULL, new_cluster="anchor" if participation == 1 else "global")
    state = final(stocfl, federation, participation)
    result, personal = run(Ditto(lam=0.3, local=FULL), federation, participation)
    close(state.omega, result.state)
    met = state.labels.ids.tolist()
    assert met == sorted(int(key.split("/")[0]) for key in personal)
    assert len(state.centers) == len(met) == sum(v > 0 for v in visits(federation, participation))
    for client, row in zip(met, state.labels.values.tolist(), strict=True):
        close(state.centers[row], personal[f"{client}/ditto.v"])
    differ(state.centers[0], state.centers[1])
    differ(state.centers[0], final(StoCFL(tau=1, lam=0, local=FULL), federation, participation).centers[0])


def test_stocfl_that_merges_nobody_keeps_identical_clients_apart() -> None:
    federation = digits(EQUAL)
    rows = [federation.train.row(0).numpy()] * len(EQUAL)
    state = final(StoCFL(tau=1, local=FULL), dataclasses.replace(federation, train=Ragged.of(rows)))
    assert state.labels.values.tolist() == list(range(len(EQUAL)))


# ---------------------------------------------------------------------------------------------- FeSEM and WeCFL


@pytest.mark.covering
@pytest.mark.parametrize("participation", SHARES)
@pytest.mark.parametrize("kmeans", ["warm", "fresh"])
def test_wecfl_with_equal_sizes_is_fesem(kmeans: Any, participation: float) -> None:
    federation = digits(EQUAL)
    one = final(variant(WeCFL, k=3, local=BATCHES, features="all", kmeans=kmeans), federation, participation)
    other = final(variant(FeSEM, k=3, local=BATCHES, kmeans=kmeans), federation, participation)
    assert torch.equal(one.labels.ids, other.labels.ids)
    assert torch.equal(one.labels.values, other.labels.values)
    assert len(one.labels.values.unique()) > 1
    close(one.centers, other.centers)
    unequal = digits(UNEQUAL)
    weighted, plain = (final(m(k=1, local=BATCHES, features="all"), unequal) for m in (WeCFL, FeSEM))
    differ(weighted.centers, plain.centers)


# ----------------------------------------------------------------------------------------------------- FedGroup


@pytest.mark.covering
@pytest.mark.parametrize("participation", SHARES)
@pytest.mark.parametrize("grouping", ["edc", "madc", "rcc", "rac"])
def test_fedgrouprox_without_mu_is_fedgroup_bit_for_bit(grouping: Any, participation: float) -> None:
    federation = digits(UNEQUAL)
    options: dict[str, Any] = {"k": 3, "alpha": 2, "grouping": grouping, "eta_g": 0.01, "local": BATCHES}
    one = final(variant(FedGrouProx, mu=0, **options), federation, participation)
    other = final(variant(FedGroup, **options), federation, participation)
    assert torch.equal(one.centers, other.centers)
    assert torch.equal(one.labels.ids, other.labels.ids)
    assert torch.equal(one.labels.values, other.labels.values)
    assert len(one.centers) == 3
    differ(final(variant(FedGrouProx, mu=1, **options), federation, participation).centers, one.centers)


@pytest.mark.parametrize("participation", SHARES)
def test_fedgroup_of_one_group_is_fedavg_from_the_warm_start(participation: float) -> None:
    federation = digits(UNEQUAL)
    pretrain = Local(steps=7, batch="full", lr=0.1)
    state = final(FedGroup(k=1, pretrain=pretrain, local=FULL), federation, participation)
    # The cold start pre-trains 20 * 1 >= 8 clients, all of them, and takes their plain mean.
    warm = run(From(start=begin(federation), local=pretrain, weights="equal"), federation, rounds=1)[0].state
    differ(warm, begin(federation))
    close(state.centers[0], final(From(start=warm, local=FULL), federation, participation))
    differ(state.centers[0], final(FedAvg(local=FULL), federation, participation))


# -------------------------------------------------------------------------------------------------- one cluster


@pytest.mark.covering
@pytest.mark.parametrize("participation", SHARES)
@pytest.mark.parametrize(
    "method",
    [
        IFCA(k=1, local=BATCHES),
        FeSEM(k=1, local=BATCHES, weights="size"),
        WeCFL(k=1, local=BATCHES),
        CLoVE(k=1, local=BATCHES),
        FedEM(k=1, local=BATCHES),
        FedRC(k=1, local=BATCHES),
        FedAvgPlus(k=1, local=BATCHES),
        FedProxPlus(k=1, mu=0, local=BATCHES),
        Composed(k=1, local=BATCHES),
        FedDrift(delta=1e9, start="one", local=FULL),
        FLHC(k=1, warmup=2, cluster_on="cohort", local=FULL),
    ],
    ids=lambda m: type(m).__name__,
)
def test_one_cluster_is_fedavg(method: Any, participation: float) -> None:
    federation = digits(UNEQUAL)
    state = final(method, federation, participation)
    (center,) = state if isinstance(state, Tensor) else state.centers
    close(center, final(FedAvg(local=method.local), federation, participation))
    differ(center, final(FedAvg(local=method.local, weights="equal"), federation, participation))


@pytest.mark.parametrize("participation", SHARES)
def test_fedrc_is_fedem_while_its_clusters_have_the_same_classes(participation: float) -> None:
    """In the first round the shares of all classes are equal; where there is one class only, its share is always 1."""
    federation = digits(UNEQUAL)
    one = run(FedRC(k=3, local=BATCHES), federation, participation, rounds=1)[0]
    other = run(FedEM(k=3, local=BATCHES), federation, participation, rounds=1)[0]
    close(one.state.centers, other.state)
    close(one.state.shares.sum(1), torch.ones(3))
    alike = tuple(dataclasses.replace(d, relabel=torch.zeros(10, dtype=torch.int64)) for d in federation.domains)
    alike_only = dataclasses.replace(federation, domains=alike)
    result, memory = run(FedRC(k=3, local=BATCHES), alike_only, participation)
    close(result.state.centers, final(FedEM(k=3, local=BATCHES), alike_only, participation))
    close(result.state.shares[:, 0], torch.ones(3))
    assert all(float(w.sum()) == pytest.approx(1, abs=1e-5) for w in memory.values())
    differ(
        final(FedRC(k=3, local=BATCHES), federation, participation).centers,
        final(FedEM(k=3, local=BATCHES), federation, participation),
    )


@pytest.mark.parametrize("participation", SHARES)
def test_an_ensemble_of_one_fedprox_is_fedprox(participation: float) -> None:
    federation = digits(UNEQUAL)
    (one,) = final(FedProxPlus(k=1, mu=0.7, local=BATCHES), federation, participation)
    close(one, final(FedProx(mu=0.7, local=BATCHES), federation, participation))
    differ(one, final(FedAvg(local=BATCHES), federation, participation))


def test_ensembles_predict_as_fedavg_when_there_is_one() -> None:
    federation = digits(UNEQUAL)
    one, other = (run(m, federation)[0].clients for m in (FedAvgPlus(k=1, local=BATCHES), FedAvg(local=BATCHES)))
    close(one.loss, other.loss)
    assert torch.equal(one.accuracy, other.accuracy)


# --------------------------------------------------------------------------------------------------------- CAM

BASES: dict[str, Any] = {
    "ifca": IFCA(k=3, local=BATCHES),
    "fesem": FeSEM(k=3, local=BATCHES),
    "wecfl": WeCFL(k=3, local=BATCHES),
    "fedgroup": FedGroup(k=3, alpha=2, local=BATCHES),
    "cfl": CFL(eps1=1e3, eps2=1e-3, gamma_max=0.6, local=BATCHES),
    "stocfl": StoCFL(tau=0.3, local=BATCHES),
    "fl+hc": FLHC(k=3, warmup=1, local=BATCHES),
    "composed": Composed(k=3, local=BATCHES),
}


@pytest.mark.covering
@pytest.mark.parametrize("participation", SHARES)
@pytest.mark.parametrize(
    ("name", "order"),
    [*((name, "simultaneous") for name in BASES), ("ifca", "cluster_first"), ("fesem", "global_first")],
)
def test_cam_without_its_global_model_is_its_base(name: str, order: Any, participation: float) -> None:
    federation = digits(UNEQUAL)
    base = BASES[name]
    cam = variant(CAM, base=base, warmup=0, without_global=True, order=order, local=BATCHES)
    one = run(cam, federation, participation)[0]
    other = run(base, federation, participation)[0]
    centers, expected = (s if isinstance(s, Tensor) else s.centers for s in (one.state.base, other.state))
    assert len(expected) > 1
    assert len(centers) == len(expected)
    close(centers, expected)
    assert not one.state.shared.any()
    if not isinstance(other.state, Tensor):
        assert torch.equal(one.state.base.labels.ids, other.state.labels.ids)
        assert torch.equal(one.state.base.labels.values, other.state.labels.values)
    assert one.assignments.tolist() == other.assignments.tolist()
    close(one.clients.loss, other.clients.loss)


@pytest.mark.parametrize("name", few(BASES, "wecfl", "ifca"))
def test_cam_with_its_global_model_is_not_its_base(name: str) -> None:
    federation = digits(UNEQUAL)
    one = run(CAM(BASES[name], warmup=0, local=BATCHES), federation)[0]
    assert one.state.shared.any()
    differ(one.clients.loss, run(BASES[name], federation)[0].clients.loss)


# ------------------------------------------------------------------------- the kit, whose points are the others


@pytest.mark.parametrize("participation", SHARES)
def test_the_kit_by_least_loss_is_ifca(participation: float) -> None:
    federation = digits(UNEQUAL)
    kit = Composed(representation="losses", clustering="argmin", k=3, local=FULL)
    one, other = run(kit, federation, participation)[0], run(IFCA(k=3, local=FULL), federation, participation)[0]
    close(one.state.centers, other.state)
    assert len(set(other.assignments.tolist())) > 1


@pytest.mark.parametrize(
    ("kit", "method"),
    [
        (
            Composed(k=3, clustering_weights="equal", weights="equal", local=BATCHES),
            variant(FeSEM, k=3, kmeans="fresh", local=BATCHES),
        ),
        (Composed(representation="classifier", k=3, local=BATCHES), variant(WeCFL, k=3, kmeans="fresh", local=BATCHES)),
        (
            Composed(representation="update", clustering="agglomerative", when="once", first=2, k=3, local=BATCHES),
            FLHC(warmup=2, k=3, cluster_on="cohort", local=BATCHES),
        ),
    ],
    ids=["fesem", "wecfl", "fl+hc"],
)
def test_the_kit_has_the_named_methods_among_its_points(kit: Composed, method: Any) -> None:
    """At full participation: the kit has a rule of its own for newcomers."""
    federation = digits(UNEQUAL)
    one, other = run(kit, federation)[0], run(method, federation)[0]
    names = dict(zip(other.assignments.tolist(), one.assignments.tolist(), strict=True))
    assert len(names) == len(set(names.values())) == 3
    assert [names[k] for k in other.assignments.tolist()] == one.assignments.tolist()
    close(one.state.centers[[names[k] for k in range(3)]], other.state.centers)


@pytest.mark.parametrize(
    ("kit", "method"),
    [
        (
            Composed(representation="update", distance="edc", k=4, clustering_weights="equal", when="once", local=FULL),
            FedGroup(k=4, local=FULL),
        ),
        (
            Composed(
                representation="update", distance="madc", clustering="agglomerative", k=4, when="once", local=FULL
            ),
            FedGroup(k=4, grouping="madc", local=FULL),
        ),
        (
            Composed(
                representation="gradient",
                distance="cosine",
                clustering="merge",
                threshold=0.4,
                when="once",
                local=FULL,
            ),
            StoCFL(tau=0.4, local=FULL),
        ),
    ],
    ids=["fedgroup-edc", "fedgroup-madc", "stocfl"],
)
def test_the_kit_groups_as_the_named_methods_do(kit: Composed, method: Any) -> None:
    federation = digits(UNEQUAL)
    one, other = run(kit, federation)[0], run(method, federation)[0]
    grouped, expected = (by_first_member(torch.from_numpy(r.assignments)).tolist() for r in (one, other))
    assert grouped == expected
    assert 1 < len(set(grouped)) < len(federation)


# --------------------------------------------------------------------------------------- purely personal models


def test_ditto_without_lambda_trains_everyone_alone() -> None:
    federation = digits(UNEQUAL)
    result, personal = run(Ditto(lam=0, local=FULL), federation)
    close(result.state, final(FedAvg(local=FULL), federation))
    for client in range(len(federation)):
        close(personal[f"{client}/ditto.v"], trained_alone(federation, client, begin(federation), ROUNDS))
    differ(personal["0/ditto.v"], run(Ditto(lam=0.5, local=FULL), federation)[1]["0/ditto.v"])


@pytest.mark.parametrize("participation", SHARES)
def test_fedsoft_without_lambda_trains_everyone_alone(participation: float) -> None:
    federation = digits(UNEQUAL)
    result, personal = run(FedSoft(k=2, lam=0, local=FULL), federation, participation)
    times = visits(federation, participation)
    for client in np.flatnonzero(times).tolist():
        alone = trained_alone(federation, client, result.state.personal, times[client])
        close(personal[f"{client}/fedsoft.w"], alone)
    assert len(personal) == int(np.count_nonzero(times))
    first = next(iter(personal))
    differ(personal[first], run(FedSoft(k=2, lam=0.5, local=FULL), federation, participation)[1][first])
