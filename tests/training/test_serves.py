"""One sentence says what serves a client: from a predictor and the rounds of a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie
from coterie import CAM, FedAvg, FedEM, FedPer, Halves, Local, WeCFL
from coterie.core.tables import ByClient, Counted
from coterie.core.tasks import All, Estimated, Evaluate, Mix, Own, Pick
from coterie.methods.ditto import Ditto
from coterie.methods.local_only import LocalOnly
from coterie.training.events import RoundDone, ServingModel
from coterie.training.serves import serving_model, what_served, what_serves_in

W, CENTERS = torch.zeros(3), torch.zeros(4, 3)
PICK = Pick(CENTERS, ByClient(torch.tensor([0]), torch.tensor([1])))
OWN, CLUSTER = ServingModel("own", "cluster", 4), ServingModel("cluster", "cluster", 4)


@pytest.mark.parametrize(
    ("task", "kind", "newcomers", "clusters"),
    [
        (Evaluate((All(W),)), "one", "one", 0),
        (Evaluate((All(W), All(W)), mixture=All(torch.ones(2))), "one", "one", 0),
        (Evaluate((PICK,)), "cluster", "cluster", 4),
        (Evaluate((Own("v", All(W)),)), "own", "one", 0),
        (Evaluate((Own("v", PICK),)), "own", "cluster", 4),
        (Evaluate((PICK, Own("v", PICK)), average=True), "mean", "cluster", 4),
        (Evaluate((All(W), PICK)), "sum", "sum", 4),
        (Evaluate((Own("w", Mix(CENTERS, Estimated(CENTERS, "votes"))),)), "own", "mixture", 4),
        (Evaluate((All(W), All(W)), mixture=Own("pi", Estimated(CENTERS[:2], "posterior"))), "mixture", "mixture", 2),
    ],
)
def test_a_predictor_says_what_serves(task: Evaluate, kind: str, newcomers: str, clusters: int) -> None:
    found = serving_model(task)
    assert (found.kind, found.newcomers, found.clusters) == (kind, newcomers, clusters)


def done(number: int, serves: ServingModel, *counted: Counted) -> RoundDone:
    return RoundDone(number, 4, 4, (), 1, 0.1, None, serves=serves, counted=counted)


def test_the_sentence_says_since_when_and_why() -> None:
    decided = Counted(4, "held-out samples", 9, (), "personal models are kept")
    found = what_served([done(1, CLUSTER), done(2, OWN), done(3, CLUSTER), done(4, OWN), done(5, OWN, decided)])
    assert found is not None
    assert found.since == 4  # not 2: the stretch in between was the clusters'
    assert str(found) == (
        "Each client is served by a model of its own, since round 4 (decided in round 5: personal models are kept). "
        "A newcomer gets the model of the cluster that it is assigned to; to train one of its own, add it: "
        "coterie run --resume DIR --with FILE."
    )


def test_what_always_held_has_no_round() -> None:
    found = what_served([done(1, OWN), done(2, OWN)])
    assert found is not None
    assert found.since is None
    assert found.clients == "Each client is served by a model of its own."
    assert what_served([]) is None


@pytest.mark.parametrize(
    ("method", "said", "clusters"),
    [
        (FedAvg, "by the same model as everybody.", 0),
        (LocalOnly, "by a model of its own. A newcomer gets the model that clients start their own from;", 0),
        (Ditto, "by a model of its own. A newcomer gets the model that clients start their own from;", 0),
        (lambda local: WeCFL(k=2, local=local), "by its cluster's model.", 2),
        (lambda local: CAM(WeCFL(k=2, local=local), warmup=0), "by a model of all and its cluster's together.", 2),
        (lambda local: FedEM(k=2, local=local), "by a mixture of the clusters' models, with weights of its own.", 2),
        (lambda local: FedPer(local=local), "with a section (head) of its own. A newcomer fits a section", 0),
        (lambda local: Halves(local=local), "by the model of the one cluster there is.", 1),
    ],
)
def test_a_run_says_what_serves(method, said, clusters, tmp_path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(12, 4)).astype(np.float32), rng.integers(0, 3, 12)) for _ in range(6)]
    made = method(local=Local(epochs=1, batch=4, lr=0.1))
    result = coterie.run(made, data, model="linear", rounds=2, out=tmp_path / "run")
    assert said in str(result.serves)
    assert result.serves.clusters == clusters
    assert what_serves_in(tmp_path / "run") == result.serves == coterie.load(tmp_path / "run").serves
    assert result.history[-1].serves == serving_model(result.method.predictor(result.state))
