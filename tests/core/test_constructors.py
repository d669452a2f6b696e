"""Whatever is constructed wrongly answers with the library's own error, the argument's name and the nearest one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import raises
from coterie import All, CoterieError, Evaluate, Fit, Local, Mix, Own, Pick, RunConfig, Score, WeCFL
from coterie.core.errors import suggest
from coterie.core.registry import DATASETS, METHODS, MODELS, NO_CODE, PARTITIONS
from coterie.data.dataset import Dataset
from coterie.data.federation import Domain, Ragged
from coterie.data.scale import Scale
from coterie.methods.fedavg import FedAvg
from coterie.training.settings import Settings
from coterie.zoo import MLP

W = torch.zeros(3)
PUBLIC = [getattr(coterie, name) for name in coterie.__all__]
BUILT = [
    c for c in PUBLIC if isinstance(c, type) and dataclasses.is_dataclass(c) and c.__name__ not in ("Result", "Served")
]
NAMED = [places.find(name, NO_CODE) for places in (METHODS, MODELS, DATASETS, PARTITIONS) for name in places.places]


@pytest.mark.parametrize(
    "kind",
    list(dict.fromkeys([*BUILT, *NAMED, Settings, Dataset, Domain, Ragged, Scale])),
    ids=lambda kind: kind.__name__,
)
def test_an_unknown_argument_is_named_by_the_librarys_own_error(kind: Any) -> None:
    with pytest.raises(CoterieError, match=r"nonsense.*unknown|unknown.*nonsense") as caught:
        kind(nonsense=1)
    assert kind.__name__ in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_the_nearest_name_is_suggested_whatever_its_case_or_its_name_elsewhere() -> None:
    for make, said in (
        (lambda: WeCFL(K=2), "WeCFL.K: unknown key. Did you mean 'k'?"),  # type: ignore[call-arg]
        (lambda: WeCFL(n_clusters=2), "WeCFL.n_clusters: unknown key. Did you mean 'k'?"),  # type: ignore[call-arg]
        (lambda: Local(learning_rate=0.1), "Local.learning_rate: unknown key. Did you mean 'lr'?"),  # type: ignore[call-arg]
        (lambda: Local(batch_size=8), "Did you mean 'batch'?"),  # type: ignore[call-arg]
        (lambda: MLP(hiden=(3,)), "MLP.hiden: unknown key. Did you mean 'hidden'?"),  # type: ignore[call-arg]
        (lambda: RunConfig(lr=0.1), "RunConfig.lr: unknown key. Did you mean 'local.lr'?"),  # type: ignore[call-arg]
    ):
        with raises("argument-unknown") as caught:
            make()
        assert said in str(caught.value)


def test_a_value_of_the_wrong_kind_is_named_with_its_field() -> None:
    for make, said in (
        (lambda: Local(lr=-1), "Local.lr: must be greater than 0 (got -1)"),
        (lambda: Local(epochs=1, steps=1), "Local: give epochs or steps, not both"),
        (lambda: WeCFL(local=0.1), "WeCFL.local: expected Local(...) (got 0.1)"),  # type: ignore[arg-type]
        (lambda: WeCFL(4, 0.1), "WeCFL.local: expected Local(...) (got 0.1)"),  # type: ignore[arg-type]
        (lambda: coterie.CAM(base="ifca"), "CAM.base: expected the method to wrap, for example IFCA(k=4), got"),
        (lambda: coterie.CAM(base=coterie.IFCA), "CAM.base: expected the method to wrap"),
        (lambda: FedAvg(Local(), "size", 3, 4), "FedAvg: takes"),  # type: ignore[call-arg]
    ):
        with raises("argument-invalid") as caught:
            make()
        assert said in str(caught.value)
        assert "http" not in str(caught.value)


def test_devices_are_not_taken_for_engines() -> None:
    for name in ("device", "cuda", "use_gpu"):
        assert "is `device`" in suggest(name, ["engine", "rounds"])
        assert "Did you mean" not in suggest(name, ["engine", "rounds"])
    with raises("argument-unknown", match=r"run: unknown argument 'gpus'\. Where clients are computed is `device`"):
        coterie.run("fedavg", [], gpus=1)  # type: ignore[call-arg]
    with raises("argument-unknown", match=r"from_arrays: unknown argument 'test_size'\. Did you mean 'test'"):
        coterie.Federation.from_arrays([], test_size=0.1)  # type: ignore[call-arg]


def test_a_vector_where_a_reference_belongs_says_what_to_write() -> None:
    for make, said in (
        (lambda: Fit(W), "Fit.local: required, but not given; write Fit(All(w), local=self.local)"),  # type: ignore
        (lambda: Fit(W, Local()), "Fit.start: expected a reference, got a tensor of shape (3,)"),  # type: ignore
        (lambda: Fit(W, Local()), "; write Fit(All(w), ...) for one model"),  # type: ignore
        (lambda: Fit(All(W), 0.1), "Fit.local: expected Local(...)"),  # type: ignore
        (lambda: Fit(All(W), Local(), anchor=W), "Fit.anchor: expected a reference"),  # type: ignore
        (lambda: All(All(W)), "All.theta: expected a tensor, got All(...)"),  # type: ignore
        (lambda: Pick(np.zeros((2, 3)), None), "Pick.centers: expected a tensor"),  # type: ignore
        (lambda: Pick(torch.zeros(2, 3), [0, 1]), "Pick.labels: expected ByClient(...), got a list"),  # type: ignore
        (lambda: Mix(torch.zeros(2, 3), W), "Mix.weights: expected ByClient(...) or Estimated(...), got a"),  # type: ignore
        (lambda: Own("v", W), "Own.default: expected a reference"),  # type: ignore
        (lambda: Score(All(W)), "Score.centers: expected a tensor"),  # type: ignore
        (lambda: Evaluate(All(W)), "write Evaluate((All(w),))"),  # type: ignore
        (lambda: Evaluate((W,)), "write Evaluate((All(w),))"),  # type: ignore
        (lambda: Evaluate(), "Evaluate.models: required, but not given; write Evaluate((All(w),))"),  # type: ignore
    ):
        with pytest.raises(CoterieError) as caught:
            make()
        assert said in str(caught.value)


class _Returns(FedAvg):
    """FedAvg whose predictor returns what it should not."""

    given: Any = None

    def predictor(self, state: Any) -> Any:
        return All(state) if self.given is None else self.given


def test_a_predictor_that_returns_no_evaluate_and_a_round_that_asks_no_task_are_told() -> None:
    clients = [(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]))] * 2
    with raises("method-invalid"):
        coterie.run(_Returns(), clients, "linear", rounds=1)

    class Asks(FedAvg):
        def round(self, state: Any, cohort: Any, ask: Any) -> Any:
            return ask(All(state))

    with raises("task-invalid", match="ask: expected Fit, Score, Evaluate or Describe, or a list of them, got All"):
        coterie.run(Asks(), clients, "linear", rounds=1)


def test_a_number_of_clusters_for_the_method_that_measures_it_names_one_that_takes_it() -> None:
    with raises("config-unknown-key", match=r"method\.k: .*Halves measures .* write method\.name=wecfl method\.k=4$"):
        METHODS.build("halves", {"k": 4}, NO_CODE)
    with raises("argument-unknown", match=r"Halves\.k: .*Halves measures .* write coterie\.WeCFL\(k=3\)$"):
        coterie.Halves(k=3)  # type: ignore[call-arg]
