"""How many bytes a round sends: by hand, for a model of four numbers (16 bytes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie
from conftest import linear, make_federation, vector
from coterie.client.contract import Memory, Moment
from coterie.core.tables import ByClient
from coterie.core.tasks import (
    All,
    Best,
    Described,
    Estimated,
    Evaluate,
    Fit,
    Fitted,
    Local,
    Mix,
    Own,
    Pick,
    Posterior,
    Score,
    Scored,
)
from coterie.engines.contract import Visit
from coterie.layers.traffic import down, up
from coterie.methods.cam import IFCACAM, WeCFLCAM
from papers.methods.stocfl import StoCFLAuthors

P = 16  # bytes of a model
N = 4  # bytes of a number that comes with an answer


def sent(*tasks: Any, ids: Sequence[int] = (0,), memory: Memory | None = None) -> int:
    return down(Visit(tasks, torch.tensor(ids), Moment(0, 0, 0)), memory or Memory())


def fit(start: Any, **more: Any) -> Fit:
    return Fit(start, Local(), **more)


def everyone(*rows: int) -> ByClient:
    return ByClient(torch.arange(len(rows)), torch.tensor(rows))


def models(k: int) -> Tensor:
    return torch.arange(4.0 * k).reshape(k, 4)


# ------------------------------------------------------------------------------------------------- visits by hand


def test_a_vector_is_sent_once_to_each() -> None:
    w = vector(1, 2, 3, 4)
    assert sent(fit(All(w)), ids=[0, 1, 2]) == 3 * P
    assert sent(fit(All(w), anchor=All(w), offset=All(w), mu=1.0), fit(All(w))) == P
    other = w.clone()
    assert sent(fit(All(w), offset=All(other))) == sent(fit(All(w), anchor=All(other), mu=1.0)) == 2 * P
    assert sent(fit(All(w)), fit(All(other))) == 2 * P  # as good as another: nobody compares numbers


def test_everyone_gets_the_own_row() -> None:
    pick = Pick(models(3), everyone(0, 2, 2))
    assert sent(fit(pick), ids=[0, 1, 2]) == 3 * P
    assert sent(fit(pick, anchor=pick, mu=0.5), ids=[0, 1, 2]) == 3 * P
    assert sent(fit(pick), fit(All(pick.centers[2]))) == 2 * P  # client 0 has row 0
    assert sent(fit(pick), fit(All(pick.centers[2])), ids=[1]) == P
    assert sent(fit(pick), ids=[0, 9]) == P, "client 9 has no row, and will be missing"


def test_those_who_choose_get_all_rows() -> None:
    centers, w = models(3), vector(1, 2, 3, 4)
    assert sent(fit(Best(centers))) == 3 * P
    assert sent(fit(Best(centers, given=All(w)))) == sent(Score(centers, given=All(w))) == 4 * P
    assert sent(Score(centers, rule="posterior", prior=All(vector(0.2, 0.3, 0.5)))) == 3 * P + 12
    assert sent(fit(Best(centers, given=All(w))), fit(All(w), offset=Best(centers))) == 4 * P
    assert sent(Score(centers)) == 3 * P
    assert sent(Score(centers, given=All(w)), fit(All(centers[1]))) == 4 * P


def test_mixes() -> None:
    centers = models(3)
    shares = ByClient(torch.arange(2), torch.full((2, 3), 1 / 3))
    assert sent(fit(Mix(centers, shares)), ids=[0, 1]) == 2 * P  # mixed at the server
    assert sent(fit(Mix(centers, Estimated(centers, "votes")))) == 3 * P  # mixed by the client
    mixed = Mix(centers, shares)
    assert sent(fit(mixed, anchor=mixed, mu=ByClient(torch.arange(2), torch.ones(2)))) == P
    assert sent(Score(centers), fit(mixed)) == 4 * P  # the mix is a vector beside the rows


def test_what_a_client_keeps_is_not_sent() -> None:
    memory = Memory()
    memory.write(1, {"v": vector(1, 2, 3, 4)})
    task = fit(Own("v", All(vector(0, 0, 0, 0))))
    assert sent(task, ids=[0], memory=memory) == P
    assert sent(task, ids=[1], memory=memory) == 0
    assert sent(fit(Own("other", All(vector(0, 0, 0, 0)))), ids=[1], memory=memory) == P


def test_sample_weights_need_all_components() -> None:
    components = models(2)
    prior = Own("pi", All(torch.full((2,), 0.5)))
    tasks = [fit(All(w), weights=Posterior(components, m, prior)) for m, w in enumerate(components)]
    assert sent(tasks[0]) == sent(*tasks, Score(components, rule="posterior", prior=prior)) == 2 * P + 8
    shares = torch.full((2, 3), 1 / 3)  # sent once
    tasks = [fit(All(w), weights=Posterior(components, m, prior, shares)) for m, w in enumerate(components)]
    asked = Score(components, rule="classes", prior=prior, class_shares=shares)
    assert sent(*tasks, asked) == 2 * P + 8 + 24


def test_a_task_for_others_is_not_sent() -> None:
    a, b = vector(1, 2, 3, 4), vector(5, 6, 7, 8)
    tasks = fit(All(a), on=torch.tensor([0, 1])), fit(All(b), on=torch.tensor([1]))
    assert [sent(*tasks, ids=[c]) for c in range(3)] == [P, 2 * P, 0]
    assert sent(*tasks, ids=[0, 1, 2]) == 3 * P


def test_evaluation_is_not_counted() -> None:
    assert sent(Evaluate((All(vector(1, 2, 3, 4)),))) == 0


def test_other_types_have_other_sizes() -> None:
    assert sent(fit(All(torch.zeros(5, dtype=torch.float64)))) == 40


def test_views_of_one_row_are_one_vector() -> None:
    """`expand` repeats nothing: the rows are the same numbers. `repeat` makes rows that may part."""
    w = vector(1, 2, 3, 4)
    assert sent(Score(w.expand(3, 4))) == P
    assert sent(Score(w.repeat(3, 1))) == 3 * P


def test_rows_of_odd_layouts_are_told_apart() -> None:
    centers = torch.arange(12.0).reshape(4, 3).T  # a row's numbers lie apart
    assert sent(Score(centers)) == 3 * P
    assert sent(Score(models(6)[::2])) == 3 * P


def test_many_vectors_of_one_visit_never_share_an_address() -> None:
    """All of a visit's tensors are alive at once, so that no memory is used twice."""
    tasks = [fit(All(torch.full((4,), float(i))), anchor=All(torch.zeros(4)), mu=1.0) for i in range(200)]
    assert sent(*tasks) == 400 * P


def test_two_mixes_of_the_same_centers_are_two_vectors() -> None:
    centers = models(2)
    one = Mix(centers, ByClient(torch.arange(1), torch.tensor([[1.0, 0.0]])))
    other = Mix(centers, ByClient(torch.arange(1), torch.tensor([[0.5, 0.5]])))
    assert sent(fit(one, anchor=other, mu=1.0)) == 2 * P


def test_what_comes_back() -> None:
    ids, n = torch.arange(3), torch.ones(3, dtype=torch.int64)
    assert up([Fitted(ids, n, torch.zeros(3), torch.zeros(3, 4), None)]) == 3 * (P + N)
    assert up([Fitted(ids, n, torch.zeros(3), None, None)]) == 3 * N
    assert up([Scored(ids, n, torch.zeros(3, 5))]) == 3 * (5 * 4 + N)
    assert up([Described(ids, n, torch.zeros(3, 7))]) == 3 * (7 * 4 + N)
    assert up([Fitted(ids[:0], n[:0], torch.zeros(0), None, None)]) == 0
    assert up([]) == 0


# --------------------------------------------------------------------------------- whole methods, per client and round

WHOLE: dict[str, tuple[Any, list[int], list[int]]] = {
    "fedavg": (coterie.FedAvg(), [P, P], [P + N] * 2),
    "fedprox": (coterie.FedProx(mu=0.1), [P, P], [P + N] * 2),
    "fedavg+": (coterie.FedAvgPlus(k=3), [3 * P] * 2, [3 * (P + N)] * 2),
    "ifca": (coterie.IFCA(k=3), [3 * P] * 2, [P + N] * 2),
    "wecfl": (coterie.WeCFL(k=2), [P] * 2, [P + N] * 2),
    # The shared model is the personal model's start (once) and anchor; the personal one is not sent back.
    "ditto": (coterie.Ditto(), [P] * 2, [P + N + N] * 2),
    # Pre-training from w0 in the first round, then the group's model.
    "fedgroup": (coterie.FedGroup(k=2), [2 * P, P], [2 * (P + N), P + N]),
    "fedgrouprox": (coterie.FedGrouProx(k=2, mu=1.0), [2 * P, P], [2 * (P + N), P + N]),
    # The anchor in a visit of its own, then the cluster's model and the global one, both of which come back.
    "stocfl": (coterie.StoCFL(tau=0.5), [3 * P, 2 * P], [3 * (P + N), 2 * (P + N)]),
    # Both centers to vote on, then the mix of them; where a personal model begins only at first; votes every 2 rounds.
    "fedsoft": (coterie.FedSoft(k=2, tau=2, start_from="own"), [2 * P + P + P, P], [(2 * 4 + N) + (P + N), P + N]),
    "fedsoft-centers": (
        coterie.FedSoft(k=2, tau=1, start_from="centers"),
        [2 * P + P] * 2,
        [(2 * 4 + N) + (P + N)] * 2,
    ),
    # Components that are starts and scored at once; where the mixture begins (2 numbers) only at first.
    "fedem": (coterie.FedEM(k=2), [2 * P + 8, 2 * P], [2 * (P + N) + (8 + N)] * 2),
    # The shares of two classes in two clusters go out, the sums by class come back.
    "fedrc": (coterie.FedRC(k=2), [2 * P + 8 + 16, 2 * P + 16], [2 * (P + N) + (16 + N) + (8 + N)] * 2),
    # All models to compare, then one to train.
    "clove": (coterie.CLoVE(k=2), [2 * P + P] * 2, [(8 + N) + (P + N)] * 2),
    # One model to score and, where the first time step begins, one for each client.
    "feddrift": (coterie.FedDrift(), [P + P, P], [(4 + N) + (P + N), P + N]),
    "fedavgm": (coterie.FedAvgM(), [P, P], [P + N] * 2),
    # A global warm-up, then all centers and the global model.
    "ifca-cam": (IFCACAM(base=coterie.IFCA(k=2), warmup=1), [P, 3 * P], [P + N, 2 * (P + N)]),
    # The pull to the cluster's model, and the logits of it, need nothing more.
    "wecfl-cam": (WeCFLCAM(base=coterie.WeCFL(k=2), warmup=0, lam=0.1), [2 * P] * 2, [2 * (P + N)] * 2),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_whole_methods(name: str, engine: Any) -> None:
    method, to_one, from_one = WHOLE[name]
    workers = 1 if engine == "batched" else None
    result = coterie.run(method, make_federation(6), linear(), rounds=2, engine=engine, workers=workers)
    assert [event.layers["traffic"]["down"] for event in result.history] == [6 * b for b in to_one]
    assert [event.layers["traffic"]["up"] for event in result.history] == [6 * b for b in from_one]


def test_the_chain_sends_the_global_model_from_client_to_client() -> None:
    result = coterie.run(StoCFLAuthors(global_update="chain"), make_federation(4), linear(), rounds=2)
    # Row and global model (the pull), then the chain's model: another vector for all but the first in line.
    assert [event.layers["traffic"]["down"] for event in result.history] == [4 * 4 * P, 4 * 3 * P]
    assert [event.layers["traffic"]["up"] for event in result.history] == [4 * 3 * (P + N), 4 * 2 * (P + N)]


def test_only_the_cohort_is_sent_to() -> None:
    result = coterie.run(coterie.FedAvg(), make_federation(6), linear(), rounds=3, participation=2)
    assert [(e.layers["traffic"]["down"], e.layers["traffic"]["up"]) for e in result.history] == [
        (2 * P, 2 * (P + N))
    ] * 3


def test_looking_costs_nothing() -> None:
    """Evaluation, and newcomers that it takes in, are no traffic."""
    often, once = (
        coterie.run(coterie.WeCFL(k=2), make_federation(8), linear(), rounds=4, participation=4, evaluate_every=every)
        for every in (1, 4)
    )
    assert [e.layers["traffic"]["down"] for e in often.history] == [e.layers["traffic"]["down"] for e in once.history]
    assert [e.layers["traffic"]["up"] for e in often.history] == [e.layers["traffic"]["up"] for e in once.history]


def test_those_who_drop_out_are_sent_nothing_and_those_who_fail_send_nothing() -> None:
    result = coterie.run(coterie.FedAvg(), make_federation(8), linear(), rounds=4, dropout=0.4, quorum=0.0)
    assert any(event.missing for event in result.history)
    for event in result.history:
        assert event.layers["traffic"]["down"] == event.answered * P
        assert event.layers["traffic"]["up"] == event.answered * (P + N)
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(10, 2)), rng.integers(0, 2, 10)) for _ in range(3)]
    arrays[1] = (arrays[1][0] * 1e30, arrays[1][1])  # its training is not finite
    as_they_are = coterie.Federation.from_arrays(arrays, standardise=False)
    broken = coterie.run(coterie.FedAvg(local=coterie.Local(lr=1e30)), as_they_are, linear(), rounds=1, quorum=0.0)
    (event,) = broken.history
    assert event.answered < 3
    assert event.layers["traffic"]["down"] == 3 * P
    assert event.layers["traffic"]["up"] == event.answered * (P + N)
