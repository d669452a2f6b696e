"""engine: auto, evaluation of many clients at once, and samples of many clients taken together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import coterie
from coterie.client.batched.visits import BatchedTaskRunner
from coterie.client.contract import EvaluateAnswer, Moment
from coterie.client.visit import TaskRunner
from coterie.core.local import Local
from coterie.core.metrics import by_client
from coterie.core.model import Model
from coterie.core.references import Pick
from coterie.core.registry import NO_CODE
from coterie.core.tasks import Evaluate
from coterie.data.federation import Federation
from coterie.data.partitions.by_cluster import Rotated
from coterie.data.sets.images import Digits
from coterie.engines.choose import Sizes, choose, work
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
    from coterie.client.batched.visits import evaluate_together
    from coterie.client.contract import ClientTasks
    from coterie.core.tables import ByClient

    model = named_model("mlp", {"hidden": (9,)}, FEDERATION, NO_CODE)
    centers = torch.stack([model.init(np.random.default_rng(seed)) for seed in range(3)])
    ids = torch.arange(12)
    for average in (False, True):
        task = Evaluate(
            (Pick(centers, ByClient(ids, ids % 3)), Pick(centers, ByClient(ids, ids // 6))), average=average
        )
        runner = BatchedTaskRunner(model)
        calls = [ClientTasks(client, (task,), {}) for client in range(12)]
        together = evaluate_together(runner.networks, calls, FEDERATION, runner.logits)
        assert together is not None
        for client, mine in enumerate(together):
            theirs = TaskRunner(model).visit((task,), client, FEDERATION.client(client), {}, Moment(0, 0, 0)).answers[0]
            assert isinstance(mine, EvaluateAnswer)
            assert isinstance(theirs, EvaluateAnswer)
            assert (mine.n, mine.choice, mine.accuracy) == pytest.approx((theirs.n, theirs.choice, theirs.accuracy))
            assert (mine.loss, mine.macro_f1) == pytest.approx((theirs.loss, theirs.macro_f1), rel=1e-5)


def test_a_row_nobody_has_is_told_one_by_one() -> None:
    from coterie.client.batched.visits import evaluate_together
    from coterie.client.contract import ClientTasks
    from coterie.core.tables import ByClient

    model = named_model("linear", {}, FEDERATION, NO_CODE)
    centers = model.init(np.random.default_rng(0))[None]
    task = Evaluate((Pick(centers, ByClient(torch.arange(2), torch.tensor([0, 5]))),))
    runner, calls = BatchedTaskRunner(model), [ClientTasks(c, (task,), {}) for c in range(2)]
    assert evaluate_together(runner.networks, calls, FEDERATION, runner.logits) is None


# ------------------------------------------------------------------------------------------------------ the rule


class Own(nn.Module):
    """A network that is no row of layers: nothing of it is computed for several clients at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        out: torch.Tensor = self.layer(x.flatten(1))
        return out


def test_dense_layers_and_convolutions_in_a_row_are_batched_and_anything_else_is_the_reference() -> None:
    images = Federation.of([(np.zeros((5, 1, 28, 28), np.float32), np.arange(5))] * 3)
    chosen = {
        "linear": choose(named_model("linear", {}, FEDERATION, NO_CODE), FEDERATION, Local(), Sizes(12), 2),
        "mlp": choose(named_model("mlp", {}, FEDERATION, NO_CODE), FEDERATION, Local(), Sizes(12), 2),
        "lenet": choose(named_model("lenet", {}, images, NO_CODE), images, Local(), Sizes(3), 2),
        "own": choose(Model.of(Own), FEDERATION, Local(), Sizes(12), 2),
    }
    assert {name: choice.name for name, choice in chosen.items()} == {
        "linear": "batched",
        "mlp": "batched",
        "lenet": "batched",
        "own": "sequential",
    }
    assert all((choice.workers or 1) == 1 for choice in chosen.values())  # tiny runs need no processes
    assert str(chosen["linear"]) == "batched, 1 process (dense layers: clients are trained together)"


def test_the_arithmetic_depends_on_the_model_and_the_data_alone() -> None:
    """Not on cores, rounds, participation or local settings: none of these may change bits through the engine."""
    model, own = named_model("mlp", {}, FEDERATION, NO_CODE), Model.of(Own)
    for cores in (1, 2, 64):
        for sizes in (Sizes(1), Sizes(12, 100_000)):
            for local in (Local(), Local(epochs=100, batch=1), Local(steps=1, batch="full", optimizer="adam")):
                assert choose(model, FEDERATION, local, sizes, cores).name == "batched"
                assert choose(own, FEDERATION, local, sizes, cores).name in ("sequential", "workers")


def test_work_by_hand() -> None:
    """Two clients of 6 training samples, 4 inputs and 3 classes: 15 numbers, 3 steps of 2 samples an epoch."""
    data = Federation.of([(np.zeros((6, 4), np.float32), np.arange(6) % 3)] * 2, None)
    n = int(data.roster.n[0])
    model = Model.of(lambda: nn.Linear(4, 3))
    expected = 5 * 2 * (2 * n / 2) * (1e5 + 2 * 3 * 15)  # rounds x clients x steps x (a step + its samples)
    assert work(model, data, Local(epochs=2, batch=2), Sizes(2, rounds=5)) == pytest.approx(expected)


def test_processes_only_for_a_long_run_and_no_more_than_cores_and_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    model, local = named_model("mlp", {}, FEDERATION, NO_CODE), Local(epochs=100, batch=8)
    assert choose(model, FEDERATION, local, Sizes(12, 1), 4).workers == 1
    short = Local(epochs=5, batch=8)  # rounds so short that messages would take as long
    assert choose(model, FEDERATION, short, Sizes(12, 50_000), 4).workers == 1
    assert choose(model, FEDERATION, local, Sizes(12, 50_000), 4).workers == 4
    assert choose(model, FEDERATION, local, Sizes(3, 50_000), 4).workers == 3
    own = choose(Model.of(Own), FEDERATION, local, Sizes(12, 50_000), 4)
    assert (own.name, own.workers) == ("workers", 4)
    # Elsewhere a process imports the user's script again, which must be written for that.
    monkeypatch.setattr("sys.platform", "darwin")
    assert choose(model, FEDERATION, local, Sizes(12, 50_000), 4).workers == 1
    assert choose(Model.of(Own), FEDERATION, local, Sizes(12, 50_000), 4).name == "sequential"


def test_clients_with_very_much_data_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = named_model("linear", {}, FEDERATION, NO_CODE)
    monkeypatch.setattr("coterie.engines.choose.LARGE", 64 * 4 * int(FEDERATION.roster.n.max()) - 1)
    assert choose(model, FEDERATION, Local(), Sizes(12), 2).name == "sequential"
    monkeypatch.setattr("coterie.engines.choose.LARGE", 64 * 4 * int(FEDERATION.roster.n.max()))
    assert choose(model, FEDERATION, Local(), Sizes(12), 2).name == "batched"


def test_a_run_that_is_resumed_goes_on_as_it_began() -> None:
    model = named_model("linear", {}, FEDERATION, NO_CODE)
    assert choose(model, FEDERATION, Local(), Sizes(12), 2, "sequential").name == "sequential"
    assert choose(Model.of(Own), FEDERATION, Local(), Sizes(12), 2, "batched").name == "batched"


def test_the_number_of_processes_changes_no_bits() -> None:
    method = coterie.WeCFL(k=2, local=Local(epochs=1, batch=8))
    one, two = (
        coterie.run(method, FEDERATION, "mlp", rounds=2, engine="batched", workers=workers) for workers in (1, 2)
    )
    assert torch.equal(one.state.centers, two.state.centers)
    assert [event.summary for event in one.history] == [event.summary for event in two.history]


def test_a_run_in_python_resumes_with_the_arithmetic_it_began_with(tmp_path: Path) -> None:
    """Also one of before, when the default was `sequential`."""
    method = coterie.IFCA(k=2, local=Local(epochs=1, batch=8))

    def go(rounds: int, out: str, **more: Any) -> Any:
        return coterie.run(method, FEDERATION, "linear", rounds=rounds, out=tmp_path / out, **more)

    whole = go(4, "whole", engine="sequential")
    go(2, "cut", engine="sequential")
    went_on = go(4, "cut", resume=True)
    assert torch.equal(went_on.state, whole.state)
    go(2, "early", engine="sequential")
    record = tmp_path / "early" / "run.json"
    said = json.loads(record.read_text())
    del said["arithmetic"]
    record.write_text(json.dumps(said))
    assert torch.equal(go(4, "early", resume=True).state, whole.state)


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
    said = CliRunner().invoke(app, ["run", "rounds=1", "--out", "a"])
    assert said.exit_code == 0, said.output
    assert "engine:" in said.stderr
    assert yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())["engine"] == {"name": "batched", "workers": 1}


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
