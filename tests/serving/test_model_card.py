"""Model cards: numbers worked out by hand, caveats of the run, and nothing that breaks the Markdown."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trained import trained

import coterie
from conftest import raises
from coterie import model_card
from coterie.core.tasks import Evaluated
from coterie.serving.caveats import caveats
from coterie.training.result import Result


def scored(result: Result[Any], accuracy: list[float], n: list[int]) -> Result[Any]:
    """The same run with other scores of its clients."""
    values = torch.tensor(accuracy, dtype=torch.float64)
    old = result.clients
    reply = Evaluated(old.ids, torch.tensor(n), 1 - values, values, values, old.choice)
    return dataclasses.replace(result, clients=reply)


def row(card: str, name: str) -> list[str]:
    """The cells of a line of a table."""
    found = re.search(rf"^\| {re.escape(name)} \| (.*) \|$", card, re.MULTILINE)
    assert found is not None, card
    return found[1].split(" | ")


def test_scores_by_hand() -> None:
    """Clients 0 and 2 are cluster 0, with 0.5 and 0.9: mean 0.7, sd sqrt(2 * 0.2^2 / 1) = 0.283, the worst is 0.5."""
    result = scored(trained("given", "linear"), [0.5, 0.1, 0.9, 0.2], [3, 3, 3, 3])
    assert result.assignments.tolist() == [0, 1, 0, 1]
    card = model_card(result, 0)
    assert row(card, "accuracy") == ["70.0 %", "28.3 %", "50.0 %", "2"]
    assert row(card, "loss") == ["0.3000", "0.2828", "0.5000", "2"]
    assert row(card, "clients") == ["2 of 4; the run has 2 clusters"]
    assert row(card, "training samples") == ["14 (7 to 7 per client, median 7)"]
    assert row(card, "test samples") == ["6"]
    assert "none: no differential privacy was used" in card
    assert "Only 2 clients are behind these numbers" in card
    assert "One run with seed 3" in card


def test_a_client_without_test_samples_is_in_no_score() -> None:
    result = scored(trained("given", "linear"), [0.5, 0.1, 0.9, 0.2], [3, 3, 0, 3])
    card = model_card(result, 0)
    assert row(card, "accuracy") == ["50.0 %", "-", "50.0 %", "1"]
    assert "1 of its 2 clients have no test samples" in card


def test_clients_no_better_than_guessing_are_named_by_number() -> None:
    result = scored(trained("given", "linear"), [0.5, 0.1, 0.9, 0.2], [3, 3, 3, 3])
    assert "For client 0 the model is no better than guessing one of 2 classes." in list(caveats(result, (0, 2)))
    assert "For clients 1, 3 the model is no better than guessing one of 2 classes." in list(caveats(result, (1, 3)))


def test_doubtful_clients_by_their_own_samples() -> None:
    """With both clusters' models the same, nobody can be sure of a cluster; with the true ones exchanged, nobody is."""
    result = trained("given", "linear")
    same = result.state.centers[:1].expand(2, -1).clone()
    state = dataclasses.replace(result.state, centers=same)
    alike = dataclasses.replace(result, state=state, placed=state)
    assert any(text.startswith("Doubtful: clients 0, 2.") for text in caveats(alike, (0, 2)))
    assert not any("Doubtful" in text for text in caveats(alike, (0, 2), look_at_data=False))


def test_doubtful_clients_by_their_shares() -> None:
    result = trained("fedem", "linear")
    shares = torch.tensor([[0.4, 0.3, 0.3], [0.9, 0.1, 0.0], [0.45, 0.1, 0.45], [1.0, 0.0, 0.0]])
    reply = dataclasses.replace(result.clients, shares=shares)
    found = list(caveats(dataclasses.replace(result, clients=reply), (0, 1, 2, 3)))
    assert "Doubtful: clients 0, 2 belong to no cluster by more than 50%." in found


def test_warnings_of_the_run_are_caveats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Result, "warnings", ("training diverged",))
    assert "The run warns: training diverged." in list(caveats(trained("given", "linear"), (0, 2)))


def test_regressions_have_errors_and_units() -> None:
    rng = np.random.default_rng(0)
    arrays = [(x, 40 + 3 * x[:, :1]) for x in rng.normal(size=(3, 20, 2)).astype(np.float32)]
    data = coterie.Federation.from_arrays(arrays, task="regression", standardise=False, standardise_y=False).prepared(
        targets=True
    )
    result = coterie.run("fedavg", data, "linear", rounds=2)
    card = model_card(result)
    assert row(card, "task") == ["regression"]
    assert "predictions are in these units" in row(card, "targets")[0]
    assert result.clients.rmse is not None
    assert row(card, "RMSE")[0] == f"{float(result.clients.rmse.mean()):.4f}"
    assert "accuracy |" not in card


@pytest.mark.parametrize("name", ["fedavg", "fedem", "ditto", "fedsoft", "ifca-cam", "halves"])
def test_every_kind_of_method_has_cards_by_cluster_and_client(name: str) -> None:
    result = trained(name, "mlp")
    for cluster in set(result.assignments.tolist()):
        card = model_card(result, cluster)
        assert card.startswith(f"# Model card: cluster {cluster} of run not kept")
        assert f"| method | {name}, 2 rounds |" in card
    assert "# Model card: client 1" in model_card(result, client=1)


def test_a_cluster_that_nobody_is_in_is_refused() -> None:
    with raises("cluster-unknown", match="clients are in 0, 1"):
        model_card(trained("given", "linear"), 5)


def test_code_of_a_card_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = trained("given", "linear")
    samples = [[20.0, 21.0, 22.0], [15.0, 26.0, 10.0]]
    wanted = result.predict(0, np.array(samples, dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    for ending in ("onnx", "pt2", "safetensors"):
        made = result.export(Path(f"model.{ending}"), cluster=0)
        code = re.search(r"```python\n(.*?)```", made.files[-1].read_text(), re.DOTALL)
        assert code is not None
        assert len(code[1].splitlines()) <= 5
        names: dict[str, Any] = {"samples": samples}
        exec(code[1], names)
        if "label" in names:
            np.testing.assert_array_equal(np.asarray(names["label"]), wanted)
        else:
            assert set(names["tensors"]) == {"1.weight", "1.bias"}
