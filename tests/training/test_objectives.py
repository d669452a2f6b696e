"""Losses and scores of one's own: by hand, checked before a run, the same on every engine and over a network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from conftest import raises, vector
from coterie.core.codec import pack
from coterie.core.model import combined
from coterie.core.objective import AbsoluteError, MultiLabel, Tokens, loss_name, sample_losses
from coterie.engines.choose import EngineName
from coterie.training.tuned import Tuned
from coterie.zoo import MLP

LOCAL = coterie.Local(epochs=2, batch=4, lr=0.1)


def test_several_labels_by_hand() -> None:
    """Logits 0 and ln 3 are probabilities 1/2 and 3/4; labels 1 and 1: (ln 2 + ln 4/3) / 2. Half is not above half."""
    outputs, y = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[1.0, 1.0]])
    assert MultiLabel().losses(outputs, y).tolist() == pytest.approx([(math.log(2) + math.log(4 / 3)) / 2])
    found = MultiLabel().scores(outputs, y)
    assert (found["label_accuracy"].tolist(), found["all_right"].tolist()) == ([0.5], [0.0])
    assert MultiLabel(threshold=0.4).scores(outputs, y)["all_right"].tolist() == [1.0]


def test_absolute_errors_by_hand() -> None:
    """Off by 1 and 3: mean 2, mean square 5."""
    outputs, y = torch.tensor([[1.0, 3.0]]), torch.zeros(1, 2)
    assert AbsoluteError().losses(outputs, y).tolist() == [2]
    assert AbsoluteError().scores(outputs, y)["mse"].tolist() == [5]


def test_tokens_by_hand() -> None:
    """Odds 3 to 1 at every position; labels 0, 1 and padding: (ln 4/3 + ln 4) / 2, and one of two right."""
    outputs = torch.tensor([[[3.0, 1.0]] * 3]).log()
    y = torch.tensor([[0.0, 1.0, -100.0]])
    assert Tokens().losses(outputs, y).tolist() == pytest.approx([(math.log(4 / 3) + math.log(4)) / 2])
    assert Tokens().scores(outputs, y)["token_accuracy"].tolist() == [0.5]
    assert Tokens().losses(outputs, torch.full((1, 3), -100.0)).tolist() == [0]


def test_outputs_of_a_mixture_are_mixed_as_they_are() -> None:
    outputs = torch.arange(8.0).view(2, 1, 2, 2)
    assert torch.equal(combined(outputs, vector(0.25, 0.75), False, Tokens()), outputs[0] + 3)


# ---------------------------------------------------------------------------------------------------------------- runs


def clients(kind: str, many: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    rng, found = np.random.default_rng(0), []
    for client in range(many):
        x, sign = rng.normal(size=(20, 3)).astype(np.float32), 1 if client % 2 else -1
        found.append((x, x * sign if kind == "values" else (sign * x > 0).astype(np.float32)))
    return found


class Tagger(nn.Module):
    """Two classes for each of three positions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x).view(-1, 3, 2)
        return out


@dataclass(frozen=True)
class Huber:
    """An objective of a user's own."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.huber_loss(outputs, y, reduction="none").mean(1)

    def scores(self, outputs: Tensor, y: Tensor) -> Mapping[str, Tensor]:
        return {"worst": (outputs - y).abs().amax(1)}


RUNS: Mapping[str, tuple[str, Any, str]] = {
    "multilabel": ("labels", Tuned(MLP(hidden=(8,)), loss="multilabel"), "label_accuracy"),
    "tokens": ("tokens", Tuned(Tagger, loss="tokens"), "token_accuracy"),
    "autoencoder": ("values", Tuned(MLP(hidden=(2,)), loss=Huber()), "worst"),
    "function": ("values", Tuned(lambda: nn.Linear(3, 3), loss=lambda o, y: (o - y).abs().sum(1)), ""),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("kind_of_method", [coterie.WeCFL, coterie.FedEM])
def test_the_same_on_every_engine(name: str, kind_of_method: Any, tmp_path: Path) -> None:
    """To the bit, but where the batched engine scores several models in one pass: that rounds otherwise."""
    method = kind_of_method(k=2, local=LOCAL)
    kind, model, score = RUNS[name]
    data = coterie.Federation.from_arrays(clients(kind), task="regression", standardise=False, standardise_y=False)
    engines: list[EngineName] = ["sequential", "batched", "workers"]
    engines = engines if name == "tokens" else engines[:2]
    runs = [coterie.run(method, data, model, rounds=3, engine=engine, out=tmp_path / str(engine)) for engine in engines]
    (_, one), *others = (pack(run.state) for run in runs)
    for number, (_, other) in enumerate(others):
        within = 1e-5 if number == 0 and kind_of_method is coterie.FedEM else 0
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=within, atol=within)
    first = runs[0]
    assert first.summary.accuracy is None
    first_loss, last_loss = (first.history[i].summary.loss for i in (0, -1))  # type: ignore[union-attr]
    assert last_loss < first_loss
    if not score:
        assert first.summary.scores is None
        return
    assert first.clients.scores is not None
    values, n = first.clients.scores[score], first.clients.n
    assert first.summary.scores is not None
    assert first.summary.scores[score] == pytest.approx(float((values * n).sum() / n.sum()))
    line = json.loads((tmp_path / "sequential" / "rounds.jsonl").read_text().splitlines()[-1])
    assert line["scores"][score] == first.summary.scores[score]
    assert json.loads((tmp_path / "sequential" / "clients.json").read_text())[0][score] is not None
    given = {} if name == "multilabel" else {"model": model}  # a loss of the library's own is written down
    read_back = coterie.load(tmp_path / "sequential", **given)
    assert read_back.summary.scores == first.summary.scores
    assert score in first._repr_html_()


def test_a_method_beats_one_model_for_all_by_its_own_loss() -> None:
    """Two groups with opposite labels: one model for all cannot be better than chance."""
    data = coterie.Federation.from_arrays(clients("labels"), task="regression", standardise=False, standardise_y=False)
    model = Tuned("linear", loss="multilabel")
    local = coterie.Local(epochs=5, batch=4, lr=0.5)
    one, two = (
        coterie.run(m, data, model, rounds=5) for m in (coterie.FedAvg(local=local), coterie.WeCFL(k=2, local=local))
    )
    assert one.summary.scores is not None
    assert two.summary.scores is not None
    assert (two.summary.scores["label_accuracy"] or 0) > (one.summary.scores["label_accuracy"] or 0) + 0.2


@pytest.mark.parametrize(
    ("loss", "code", "match"),
    [
        (lambda o, y: (o - y).abs().mean(), "component-invalid", r"losses must be a tensor with one number per sample"),
        (lambda o, y: torch.zeros(len(y)), "component-invalid", "do not depend on the network's outputs"),
        (lambda o, y: o[:, 7], "component-failed", "loss: fails for outputs of shape"),
        ("maee", "config-unknown-name", "model.loss.name: unknown loss 'maee'. Did you mean 'mae'"),
        (3, "component-invalid", "loss: 3: expected a name"),
    ],
)
def test_a_loss_that_is_none_is_told_before_anything_starts(loss: Any, code: str, match: str) -> None:
    data = coterie.Federation.from_arrays(clients("values"), task="regression", standardise=False, standardise_y=False)
    with raises(code, match=match):
        coterie.run(coterie.FedAvg(local=LOCAL), data, Tuned("linear", loss=loss), rounds=1)


def test_a_score_of_another_shape_is_told() -> None:
    @dataclass(frozen=True)
    class Wrong(Huber):
        def scores(self, outputs: Tensor, y: Tensor) -> Mapping[str, Tensor]:
            return {"worst": outputs}

    data = coterie.Federation.from_arrays(clients("values"), task="regression", standardise=False, standardise_y=False)
    with raises("component-invalid", match="scores: worst must be"):
        coterie.run(coterie.FedAvg(local=LOCAL), data, Tuned("linear", loss=Wrong()), rounds=1)


def test_names_of_losses() -> None:
    assert loss_name("mse") == "mse"
    assert loss_name(Tokens(padding=0)) == "Tokens(padding=0)"
    assert loss_name(Huber()) == "Huber"
    assert sample_losses(torch.ones(2, 1), torch.zeros(2, 1), AbsoluteError()).tolist() == [1, 1]
