"""engine: auto, evaluation of many clients at once, and samples of many clients taken together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import coterie
from coterie.client.answers import EvaluateAnswer, Moment
from coterie.client.runner import TaskRunner
from coterie.core.local import Local
from coterie.core.metrics import by_client
from coterie.core.references import Pick
from coterie.core.tasks import Evaluate
from coterie.data.datasets.digits import Digits
from coterie.data.federation import Federation
from coterie.data.partitions.clusterwise import Rotated
from coterie.engines.auto import choose
from coterie.training.build import named_model

FEDERATION = Rotated(clients=12)(Digits()(), np.random.default_rng(0))


def test_samples_taken_together_are_those_taken_one_by_one() -> None:
    """Clients of four domains, in an order of their own, one of them twice."""
    ids = torch.tensor([7, 0, 11, 3, 3])
    x, y, lengths = FEDERATION.together(ids, "test")
    one_by_one = [FEDERATION.samples(client, "test") for client in ids.tolist()]
    assert torch.equal(x, torch.cat([a for a, _ in one_by_one]))
    assert torch.equal(y, torch.cat([b for _, b in one_by_one]))
    assert lengths.tolist() == [len(b) for _, b in one_by_one]


def test_scores_of_many_clients_are_those_of_each() -> None:
    rng = np.random.default_rng(3)
    lengths = np.array([5, 1, 0, 9, 3])
    truth, said = rng.integers(0, 4, lengths.sum()), rng.integers(0, 5, lengths.sum())
    accuracy, macro_f1 = by_client(truth, said, lengths)
    start = 0
    for client, n in enumerate(lengths.tolist()):
        if n:
            mine = slice(start, start + n)
            expected = [float(v[0]) for v in by_client(truth[mine], said[mine], np.array([len(truth[mine])]))]
            assert (accuracy[client], macro_f1[client]) == pytest.approx(expected)
        start += n
    assert np.isnan(accuracy[2])


def test_evaluation_together_is_evaluation_one_by_one() -> None:
    from coterie.client.answers import ClientTasks
    from coterie.client.batched.evaluate import evaluate_together
    from coterie.core.client_table import ByClient

    model = named_model("mlp", {"hidden": (9,)}, FEDERATION)
    centers = torch.stack([model.init(np.random.default_rng(seed)) for seed in range(3)])
    ids = torch.arange(12)
    for average in (False, True):
        task = Evaluate(
            (Pick(centers, ByClient(ids, ids % 3)), Pick(centers, ByClient(ids, ids // 6))), average=average
        )
        runner = TaskRunner(model)
        calls = [ClientTasks(client, (task,), {}) for client in range(12)]
        together = evaluate_together(runner.networks, calls, FEDERATION)
        assert together is not None
        for client, mine in enumerate(together):
            theirs = runner.visit((task,), client, FEDERATION.client(client), {}, Moment(0, 0, 0)).answers[0]
            assert isinstance(mine, EvaluateAnswer)
            assert isinstance(theirs, EvaluateAnswer)
            assert (mine.n, mine.choice, mine.accuracy) == pytest.approx((theirs.n, theirs.choice, theirs.accuracy))
            assert (mine.loss, mine.macro_f1) == pytest.approx((theirs.loss, theirs.macro_f1), rel=1e-5)


def test_a_row_nobody_has_is_told_one_by_one() -> None:
    from coterie.client.answers import ClientTasks
    from coterie.client.batched.evaluate import evaluate_together
    from coterie.client.visit import Networks
    from coterie.core.client_table import ByClient

    model = named_model("linear", {}, FEDERATION)
    centers = model.init(np.random.default_rng(0))[None]
    task = Evaluate((Pick(centers, ByClient(torch.arange(2), torch.tensor([0, 5]))),))
    assert evaluate_together(Networks(model), [ClientTasks(c, (task,), {}) for c in range(2)], FEDERATION) is None


def test_auto_names_an_engine_and_says_why() -> None:
    model = named_model("linear", {}, FEDERATION)
    for cores in (1, 2):
        choice = choose(model, FEDERATION, Local(epochs=1, batch=4), 12, cores)
        assert choice.name in ("sequential", "workers", "batched")
        assert (choice.workers or 1) <= cores
        assert "clients:" in str(choice)
        assert "one by one" in str(choice)


def test_auto_gives_the_result_of_the_reference_to_rounding() -> None:
    method = coterie.IFCA(k=2, local=Local(epochs=1, batch=8, lr=0.1))
    auto, plain = (
        coterie.run(method, FEDERATION, "linear", rounds=3, engine=engine) for engine in ("auto", "sequential")
    )
    torch.testing.assert_close(auto.state, plain.state, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(auto.assignments, plain.assignments)


def test_the_command_line_writes_down_what_auto_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from coterie.tools.cli.main import app

    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["run", "engine=auto", "rounds=1", "--out", "a"])
    assert said.exit_code == 0, said.output
    assert "engine:" in said.stderr
    assert yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())["engine"]["name"] != "auto"


def test_a_batched_run_leaves_out_who_cannot_be_read_and_nobody_else() -> None:
    class Broken(Federation):
        def samples(self, client: int, split: object) -> tuple[torch.Tensor, torch.Tensor]:
            """Client 3 has lost its disk."""
            if client == 3:
                raise OSError("disk")
            return super().samples(client, split)  # type: ignore[arg-type]

    import dataclasses

    broken = Broken(**{f.name: getattr(FEDERATION, f.name) for f in dataclasses.fields(Federation)})
    method = coterie.FedAvg(local=Local(epochs=1, batch=8, lr=0.1))
    result = coterie.run(method, broken, "linear", rounds=2, engine="batched", workers=1)
    assert [[m.client for m in e.missing] for e in result.history] == [[3], [3]]
    assert result.assignments.tolist() == [0, 0, 0, -1, *[0] * 8]
