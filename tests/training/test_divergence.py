"""A run that diverges stops at once and says why; one that ended badly does not pass as success."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import coterie
from conftest import raises
from coterie.core.errors import NOT_FINITE, CoterieError, DivergedError
from coterie.core.local import Local
from coterie.core.metrics import Summary
from coterie.core.tasks import Fitted
from coterie.core.text import short
from coterie.data.federation import Federation
from coterie.engines.contract import Missing, Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.tools.cli.console import results, score
from coterie.training import warnings as run_warnings
from coterie.training.build import as_model
from coterie.training.events import Event, RoundDone
from coterie.training.warnings import warnings_of

Arrays = Sequence[tuple[NDArray[Any], ...]]


def as_they_are(clients: Any) -> Federation:
    """Arrays that are not standardised."""
    if isinstance(clients, Federation):
        return clients
    return Federation.from_arrays(clients, standardise=False, standardise_y=False)


def arrays(clients: int = 5, n: int = 20, features: int = 4) -> list[tuple[NDArray[Any], ...]]:
    rng = np.random.default_rng(0)
    out: list[tuple[NDArray[Any], ...]] = []
    for _ in range(clients):
        x = rng.normal(size=(n, features))
        out.append((x, x[:, 0] + 0.1 * rng.normal(size=n)))
    return out


def run(clients: Arrays | Federation, rounds: int = 30, **options: Any) -> tuple[Any, list[Event]]:
    heard: list[Event] = []
    local = options.pop("local", Local(epochs=5, batch=8, lr=0.1))
    method = options.pop("method", coterie.FedAvg(local=local))
    return coterie.run(
        method, as_they_are(clients), "linear", rounds=rounds, listeners=[heard.append], **options
    ), heard


def stopped(clients: Arrays | Federation, **options: Any) -> tuple[str, int]:
    """What the run says when it stops, and how many rounds it had done."""
    heard: list[Event] = []
    with raises("diverged") as caught:
        run_listening(clients, heard, **options)
    return str(caught.value), sum(isinstance(event, RoundDone) for event in heard)


def run_listening(clients: Arrays | Federation, heard: list[Event], **options: Any) -> None:
    method = coterie.FedAvg(local=Local(epochs=20, batch=8, lr=options.pop("lr", 0.1)))
    coterie.run(
        method, as_they_are(clients), options.pop("model", "linear"), rounds=30, listeners=[heard.append], **options
    )


# ---------------------------------------------------------------------------------------------------- it stops


def test_a_run_stops_where_training_diverges_and_says_why_and_what_to_try() -> None:
    wide = Federation.from_arrays([(100.0 * x, 100.0 * y) for x, y in arrays()], standardise=False, standardise_y=False)
    said, rounds = stopped(wide)
    assert rounds == 0
    assert "the steps of training diverge" in said
    assert "client 0 first" in said
    assert re.search(r"inputs are about [0-9.]+ in size", said)
    assert "local.clip=1" in said
    assert "quorum" not in said
    assert "local.lr=0.01 or less instead of 0.1" in said
    result, _ = run(wide, rounds=3, local=Local(epochs=20, batch=8, lr=0.1, clip=1))
    assert np.isfinite(result.summary.loss)


def test_the_outlier_is_named() -> None:
    clients = arrays(clients=6)
    clients[4] = tuple(1e6 * part for part in clients[4])
    data = dataclasses.replace(
        Federation.from_arrays(clients, standardise=False, standardise_y=False),
        names=("ann", "bob", "cy", "dee", "eve", "fay"),
    )
    said, _ = stopped(data, quorum=1.0)
    assert "client 'eve' is an outlier" in said
    assert re.search(r"1\.?\d*e\+06 times", said)
    assert "local.lr" not in said  # none that would do is near
    assert "local.clip=1" in said
    assert "quorum" not in said


def test_a_run_stops_after_the_first_round_in_which_nobody_can_be_scored(tmp_path: Path) -> None:
    """Training is fine; what the models say of the test samples is beyond what a number can hold."""
    bad = [(x, y, np.full_like(x, 3e38), y) for x, y in arrays()]
    said, rounds = stopped(bad, lr=0.01, model="mlp", out=tmp_path / "run")
    assert rounds == 1
    assert said.startswith("round 1: the steps of training diverge")
    assert re.search(r"inputs are about [0-9.]+e\+38 in size", said)
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 1
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "diverge" in status["reason"]


class Lying(Sequential):
    """Client 1 sends this value instead of its model."""

    value = 3e38

    def visit(self, visit: Visit) -> Outcome:
        outcome = super().visit(visit)
        replies = []
        for reply in outcome.replies:
            if isinstance(reply, Fitted) and isinstance(reply.sent, torch.Tensor):
                sent = reply.sent.clone()
                sent[reply.ids == 1] = self.value
                reply = dataclasses.replace(reply, sent=sent)
            replies.append(reply)
        return dataclasses.replace(outcome, replies=tuple(replies))


@pytest.mark.parametrize("method", [coterie.FedAvg(), coterie.IFCA(k=2)])
def test_among_too_few_for_a_median_the_client_that_broke_the_model_is_named(method: Any) -> None:
    data = dataclasses.replace(
        Federation.from_arrays(arrays(4), standardise=False, standardise_y=False), names=("ann", "bob", "cy", "dee")
    )
    with pytest.raises(DivergedError) as caught:
        run(data, method=method, engine=Lying(as_model("linear", data), data))
    assert "the update of client 'bob' was" in str(caught.value)
    assert "local.lr" not in str(caught.value)  # the others train well
    assert "at least 5 clients" in str(caught.value)


def test_a_lower_quorum_is_advised_only_where_it_helps() -> None:
    clients = arrays()
    with raises("quorum"):
        run(clients, dropout=0.6, quorum=1.0, retries=0)
    with raises("quorum") as caught:
        run(clients, dropout=0.999, quorum=1.0, retries=0)
    assert "0 of 5" in str(caught.value)
    assert "lower quorum" not in str(caught.value)


def test_too_few_answers_for_a_clustering_are_no_matter_of_the_quorum() -> None:
    """The quorum of one in five is met; with a still lower one there would be no five clusters either."""
    with raises("quorum", match="too few to find 5 clusters") as caught:
        run(arrays(), method=coterie.FedGroup(k=5), dropout=0.6, quorum=0.2, retries=0)
    assert "lower quorum" not in str(caught.value)
    assert "Write a smaller k" in str(caught.value)


def test_one_client_that_diverges_is_left_behind_and_named() -> None:
    clients = arrays(clients=6)
    clients[4] = tuple(1e18 * part for part in clients[4])
    data = Federation.from_arrays(clients, standardise=False, standardise_y=False)
    result, _ = run(data, rounds=2, update_bound=0)
    (warning,) = [text for text in result.warnings if "NaN or Inf in" in text]
    assert warning.startswith("the training of client 4 gave NaN or Inf in 2 of 2 rounds")


# ----------------------------------------------------------------------------------------- it does not pass as success

WELL = Summary(1.0, None, None, 2, (3, 2), None, None, rmse=1.0, mae=0.8, r2=0.5, constant=2.0)


def warned(summary: Summary, history: tuple[RoundDone, ...] = (), method: Any = None) -> tuple[str, ...]:
    return warnings_of(
        method or coterie.IFCA(k=4),
        summary,
        history,
        Federation.from_arrays(arrays(), standardise=False, standardise_y=False),
    )


def test_all_is_well() -> None:
    assert warned(WELL) == ()


def test_an_error_above_the_constant_predictors() -> None:
    (said,) = warned(dataclasses.replace(WELL, loss=1.2e26))
    assert "MSE 1.2e+26" in said
    assert "(2.0000): training diverged; try local.lr=0.01 instead of 0.1" in said
    (said,) = warned(dataclasses.replace(WELL, loss=3.0))
    assert "nothing useful was learnt" in said


def test_rounding_is_no_error_where_every_target_is_the_same() -> None:
    same = dataclasses.replace(WELL, loss=9.5e-15, rmse=9.7e-8, r2=None, constant=0.0)
    assert warned(same) == ()
    (said,) = warned(dataclasses.replace(same, loss=0.5))
    assert "nothing useful was learnt" in said


def test_guessing() -> None:
    data = coterie.Federation.from_arrays(
        [(np.zeros((4, 2)), np.arange(4))] * 2, standardise=False, standardise_y=False
    )
    bad = Summary(9.0, 0.25, 0.1, 2, (1, 1), None, None)
    (said,) = warnings_of(coterie.IFCA(k=2), bad, (), data)
    assert "no better than guessing one of 4 classes" in said
    assert warnings_of(coterie.IFCA(k=2), dataclasses.replace(bad, accuracy=0.3), (), data) == ()
    assert warnings_of(coterie.IFCA(k=2), dataclasses.replace(bad, loss=1.0), (), data) == ()


def test_a_loss_that_only_divergence_gives_is_told_whatever_the_accuracy() -> None:
    data = coterie.Federation.from_arrays(
        [(np.zeros((4, 2)), np.arange(4))] * 2, standardise=False, standardise_y=False
    )
    far = Summary(5.2e28, 0.97, 0.96, 2, (1, 1), None, None)
    (said,) = warnings_of(coterie.IFCA(k=2), far, (), data)
    assert said.startswith("a loss of 5.2e+28, where guessing one of 4 classes has 1.39: training diverged")
    assert warnings_of(coterie.IFCA(k=2), dataclasses.replace(far, loss=12.0), (), data) == ()  # sure, and often wrong


def test_everyone_in_one_cluster() -> None:
    one = dataclasses.replace(WELL, clusters=1, sizes=(5,))
    (said,) = warned(one)
    assert said.startswith("4 clusters were asked for, and all 5 clients are in one")
    assert warned(one, method=coterie.FedAvg()) == ()
    assert warned(one, method=coterie.IFCA(k="auto")) == ()


def test_clients_without_a_score() -> None:
    last = RoundDone(1, 5, 5, (), 1, 0.1, WELL, unscored=(Missing(3, f"its model gives a loss {NOT_FINITE}"),))
    (said,) = warned(WELL, (last,))
    assert said.startswith("1 of 6 clients could not be evaluated and are not in the scores; client 3: its model")


def test_warnings_are_in_the_result_and_the_run_directory(tmp_path: Path) -> None:
    """Targets that have nothing to do with the inputs: a constant is the best there is."""
    clients = [(x, np.random.default_rng(i).normal(size=len(y))) for i, (x, y) in enumerate(arrays(features=30))]
    result, heard = run(clients, rounds=2, out=tmp_path / "run", local=Local(epochs=50, batch="full", lr=0.01))
    assert len(result.warnings) == 1
    assert "1 warning" in repr(result)
    assert "warning: the error of the models" in result._repr_html_()
    assert run_warnings.read(tmp_path / "run") == result.warnings == heard[-1].warnings  # type: ignore[union-attr]
    assert coterie.load(tmp_path / "run").warnings == result.warnings
    run_warnings.write(tmp_path / "run", ())
    assert run_warnings.read(tmp_path / "run") == ()


# ------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0.0000"), (12.34567, "12.3457"), (1.234e26, "1.234e+26"), (-2e-9, "-2e-09"), (float("inf"), "Inf")],
)
def test_numbers_are_short(value: float, said: str) -> None:
    assert short(value) == said


def test_a_loss_of_any_size_fits_a_table() -> None:
    from rich.console import Console

    huge = dataclasses.replace(WELL, loss=1.23456e26, rmse=1.1e13, constant=66.123456)
    assert score(huge) == "loss 1.23e+26"
    console = Console(width=120, record=True, quiet=False, file=io.StringIO())
    console.print(results([("ifca", huge, 1.0)]))
    said = console.export_text()
    assert "1.23e+26" in said
    assert "66.12" in said
    assert "constant" in said


def test_divergence_is_an_error_of_the_library() -> None:
    assert issubclass(DivergedError, CoterieError)
