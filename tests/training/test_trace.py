"""trace.jsonl and sketch.safetensors: who was where in every evaluated round, and how models lie."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import linear, make_federation
from coterie.clustering.similarity import cosines
from coterie.core.tasks import Evaluated, Fitted
from coterie.training.config import read
from coterie.training.events import Event, RoundDone, Snapshot
from coterie.training.execute import execute
from coterie.training.sketches import WATCHED, WIDTH, Sketcher, Trace, TraceLine, read_sketch, read_trace, watched

EACH = {"rounds": 6, "participation": 3, "checkpoint_every": 2}


def go(out: Path, method: Any = None, clients: int = 8, resume: bool = False, **more: Any) -> coterie.Result[Any]:
    return coterie.run(
        method or coterie.WeCFL(k=2), make_federation(clients), linear(), out=out, resume=resume, **(EACH | more)
    )


def sketch(run: Path) -> dict[str, Any]:
    found = read_sketch(run)
    assert found is not None
    return found


def rows_as_written(values: torch.Tensor) -> tuple[float, ...]:
    return tuple(float(f"{v:.4g}") for v in values.double().tolist())


def written(run: Path) -> dict[str, Any]:
    """The last line of trace.jsonl as it is in the file."""
    line: dict[str, Any] = json.loads((run / "trace.jsonl").read_text().splitlines()[-1])
    return line


# ------------------------------------------------------------------------------------------------- lines


def test_the_last_line_is_the_last_evaluation(tmp_path: Path) -> None:
    result = go(tmp_path / "run")
    ids, lines = read_trace(tmp_path / "run")
    assert ids.tolist() == list(range(8))
    assert [line.round for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1].cluster == tuple(result.assignments.tolist())
    assert lines[-1].accuracy == rows_as_written(result.clients.accuracy)
    assert lines[-1].macro_f1 == rows_as_written(result.clients.macro_f1)
    assert set(written(tmp_path / "run")) == {"round", "cluster", "accuracy", "macro_f1"}
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert lines[-1].cluster == tuple(row["cluster"] for row in clients)
    assert lines[-1].accuracy == tuple(float(f"{row['accuracy']:.4g}") for row in clients)


def test_every_line_is_that_rounds_evaluation(tmp_path: Path) -> None:
    seen: dict[int, Evaluated] = {}

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone) and event.fresh is not None:
            seen[event.round] = event.fresh.clients

    go(tmp_path / "run", evaluate_every=4, listeners=[listen])
    _, lines = read_trace(tmp_path / "run")
    assert [line.round for line in lines] == [4, 6] == list(seen)
    for line in lines:
        assert line.accuracy == rows_as_written(seen[line.round].accuracy)


@pytest.mark.parametrize("more", [{"evaluate_on": 0.5}, {"newcomers": 0.25}, {"evaluate_whom": "met"}], ids=str)
def test_clients_that_were_not_looked_at(more: dict[str, Any], tmp_path: Path) -> None:
    result = go(tmp_path / "run", **more)
    _, lines = read_trace(tmp_path / "run")
    there = set(result.clients.ids.tolist())
    if "evaluate_whom" not in more:
        assert 0 < len(there) < 8
    last = lines[-1]
    assert last.accuracy is not None
    assert last.macro_f1 is not None
    for client in range(8):
        known = [
            last.cluster[client] >= 0,
            last.accuracy[client] is not None,
            last.macro_f1[client] is not None,
        ]
        assert known == [client in there] * 3
        if client not in there:
            assert last.cluster[client] == -1
    assert len(lines[0].cluster) == 8


def test_methods_without_clusters_have_cluster_0(tmp_path: Path) -> None:
    go(tmp_path / "run", coterie.FedAvg())
    assert read_trace(tmp_path / "run")[1][-1].cluster == (0,) * 8


def test_regression_has_its_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(10, 2)), rng.normal(size=10)) for _ in range(4)]
    result = coterie.run(coterie.FedAvg(), arrays, "linear", rounds=2, out=tmp_path / "run")
    _, lines = read_trace(tmp_path / "run")
    assert set(written(tmp_path / "run")) == {"round", "cluster", "loss"}
    assert lines[-1].loss == rows_as_written(result.clients.loss)


def test_a_client_without_test_samples_has_a_cluster_and_no_score(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 2)), rng.integers(0, 2, 8)
    arrays = [(x, y, x, y), (x, y, x[:0], y[:0]), (x, y, x, y)]
    coterie.run(
        coterie.FedAvg(),
        coterie.Federation.from_arrays(arrays, standardise=False, standardise_y=False),
        "linear",
        rounds=1,
        out=tmp_path / "run",
    )
    line = read_trace(tmp_path / "run")[1][-1]
    assert line.cluster == (0, 0, 0)
    assert line.accuracy is not None
    assert [v is None for v in line.accuracy] == [False, True, False]


def test_ids_are_ids_not_positions(tmp_path: Path) -> None:
    """Clients 2 and 5 of 6, where only they were evaluated, and only client 5 trained."""
    trace = Trace(tmp_path, 6, 0, torch.arange(3))
    trace.begin(0)
    some, two = torch.tensor([2, 5]), torch.tensor([4, 4])
    values = torch.tensor([0.25, 0.123456])
    reply = Evaluated(some, two, torch.zeros(2), values, values / 2, torch.tensor([3, 1]))
    models = torch.tensor([[1.0, 2.0, 3.0]])
    trained = Fitted(some[1:], two[1:], torch.zeros(1), models, None)
    trace.add(7, Snapshot(reply, trained, None))
    trace.save()
    trace.close()
    (line,) = read_trace(tmp_path)[1]
    assert line == TraceLine(
        *(7, (-1, -1, 3, -1, -1, 1)),
        accuracy=(None, None, 0.25, None, None, 0.1235),
        macro_f1=(None, None, 0.125, None, None, 0.06173),
    )
    found = sketch(tmp_path)
    assert found["round"].tolist() == [0, 0, 0, 0, 0, 7]
    np.testing.assert_array_equal(found["sketch"][5], Sketcher(torch.arange(3))(models)[0])
    assert not found["sketch"][:5].any()


# --------------------------------------------------------------------------------------------- who is watched


def test_watched() -> None:
    assert watched(5, 0).tolist() == [0, 1, 2, 3, 4]
    assert watched(WATCHED, 3).tolist() == list(range(WATCHED))
    many = watched(5000, 0)
    assert len(many) == len(set(many.tolist())) == WATCHED
    assert (np.diff(many) > 0).all()
    assert many[0] >= 0
    assert 4500 < many[-1] < 5000  # from among all of them
    np.testing.assert_array_equal(many, watched(5000, 0))
    assert not np.array_equal(many, watched(5000, 1))


def test_more_clients_than_are_watched(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(WATCHED + 100, 4, 2)), rng.integers(0, 2, (WATCHED + 100, 4))
    federation = coterie.Federation.from_arrays(
        list(zip(x, y, strict=True)), outputs=2, standardise=False, standardise_y=False
    )
    local = coterie.Local(steps=1)
    result = coterie.run(
        coterie.IFCA(k=2, local=local),
        federation,
        linear(),
        rounds=1,
        engine="batched",
        workers=1,
        out=tmp_path / "run",
    )
    ids, (line,) = read_trace(tmp_path / "run")
    np.testing.assert_array_equal(ids, watched(WATCHED + 100, 0))
    assert line.cluster == tuple(result.assignments[ids].tolist())
    assert line.accuracy == rows_as_written(result.clients.accuracy[torch.from_numpy(ids)])
    found = sketch(tmp_path / "run")
    assert found["sketch"].shape == (WATCHED, WIDTH)
    assert (found["round"] == 1).all()


# ---------------------------------------------------------------------------------------------------- sketches


def test_a_sketch_keeps_cosines() -> None:
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(10_000, generator=generator)
    points = torch.randn(20, 10_000, generator=generator) + torch.linspace(0, 2, 20)[:, None] * common
    near = torch.from_numpy(Sketcher(torch.arange(10_000))(points))
    assert near.shape == (20, WIDTH)
    apart = (cosines(near) - cosines(points)).abs()
    assert float(apart.max()) < 0.25
    assert float(apart.square().mean().sqrt()) < 0.08
    lengths = near.norm(dim=1) / points.norm(dim=1)
    assert bool(((lengths > 0.8) & (lengths < 1.2)).all())


def test_a_sketch_is_linear() -> None:
    a, b = torch.randn(2, 1, 500, generator=torch.Generator().manual_seed(0))
    make = Sketcher(torch.arange(500))
    np.testing.assert_allclose(make(2 * a - 3 * b), 2 * make(a) - 3 * make(b), atol=1e-4)


def test_every_entry_counts_once_under_a_sign() -> None:
    found = Sketcher(torch.arange(300))(torch.eye(300))
    assert (np.abs(found).sum(1) == 1).all()
    assert (np.count_nonzero(found, axis=1) == 1).all()
    assert {-1.0, 1.0} <= set(found.ravel().tolist())


def test_only_its_part_is_looked_at_and_every_run_has_the_same() -> None:
    models = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    part = torch.tensor([4, 5, 6])
    changed = models.clone()
    changed[:, [0, 1, 2, 3, 7, 8, 9]] = 99
    np.testing.assert_array_equal(Sketcher(part)(models), Sketcher(part)(changed))


def test_sketches_are_of_the_last_trained_models(tmp_path: Path) -> None:
    last: dict[int, tuple[int, torch.Tensor]] = {}
    centers: list[torch.Tensor] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone) and event.fresh is not None:
            trained = event.fresh.trained
            assert trained is not None
            assert event.fresh.centers is not None
            last.update({c: (event.round, m) for c, m in zip(trained.ids.tolist(), trained.models, strict=True)})
            centers.append(event.fresh.centers)

    result = go(tmp_path / "run", coterie.IFCA(k=3), listeners=[listen], participation=2)
    found = sketch(tmp_path / "run")
    make = Sketcher(result.model.part("last_weight"))
    assert found["ids"].tolist() == list(range(8))
    assert any(c not in last for c in range(8)), "the test needs a client that never trained"
    for client in range(8):
        round_, model = last.get(client, (0, torch.zeros(result.model.size)))
        assert found["round"][client] == round_
        np.testing.assert_allclose(found["sketch"][client], make(model[None])[0], atol=1e-6)
    np.testing.assert_allclose(found["centers"], make(centers[-1]), atol=1e-6)
    np.testing.assert_allclose(found["centers"], make(result.state), atol=1e-6)


# ------------------------------------------------------------------------------------------------ after a crash


def assert_same_trace(one: Path, other: Path) -> None:
    assert (one / "trace.jsonl").read_bytes() == (other / "trace.jsonl").read_bytes()
    a, b = sketch(one), sketch(other)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


class CrashError(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_crashed_and_resumed(after: int, tmp_path: Path) -> None:
    """With the line of a round written and nothing after it; a checkpoint goes with every second round."""

    def crash(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == after:
            raise CrashError

    go(tmp_path / "whole")
    with pytest.raises(CrashError):
        go(tmp_path / "parts", listeners=[crash])
    assert len(read_trace(tmp_path / "parts")[1]) == after
    go(tmp_path / "parts", resume=True)
    assert_same_trace(tmp_path / "parts", tmp_path / "whole")


def test_crashed_between_sketch_and_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(tmp_path / "whole", participation=1)
    with monkeypatch.context() as patch:
        patch.setattr("coterie.training.checkpoint.save", _crash_at_round(4))
        with pytest.raises(CrashError):
            go(tmp_path / "parts", participation=1)
    go(tmp_path / "parts", resume=True, participation=1)
    assert_same_trace(tmp_path / "parts", tmp_path / "whole")


def test_without_its_last_checkpoint(tmp_path: Path) -> None:
    """As the message about a damaged one says: delete it, and go on from the one before."""
    for name in ("whole", "parts"):
        go(tmp_path / name, participation=1)
    (tmp_path / "parts" / "checkpoints" / "round-000006.safetensors").unlink()
    go(tmp_path / "parts", resume=True, participation=1)
    assert_same_trace(tmp_path / "parts", tmp_path / "whole")


def _crash_at_round(which: int) -> Any:
    from coterie.training.checkpoint import save

    def instead(path: Path, state: object, memory: Any, round: int, belongs: Any, also: Any = None) -> None:
        if round == which:
            raise CrashError
        save(path, state, memory, round, belongs, also)

    return instead


@pytest.mark.exhaustive
def test_killed_and_resumed(tmp_path: Path) -> None:
    """The real thing: kill -9 in mid-run."""
    words = ["data.partition.clients=12", "rounds=12", "checkpoint_every=3", "participation=0.5", "local.epochs=2"]
    whole, run = tmp_path / "whole", tmp_path / "run"
    command = [sys.executable, "-m", "coterie.tools.cli.main", "run", *words, "--out", str(run)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if (run / "trace.jsonl").exists() and (run / "trace.jsonl").read_bytes().count(b"\n") > 5:
                break
            time.sleep(0.002)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "the run was over before it could be killed"
    execute(read(None, words), run, resume=True)
    execute(read(None, words), whole)
    assert_same_trace(run, whole)


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    go(run, rounds=4)
    whole = (run / "trace.jsonl").read_text()
    for cut in (1, 5, 30):
        (run / "trace.jsonl").write_text(whole[:-cut])
        ids, lines = read_trace(run)
        assert ids.tolist() == list(range(8))
        assert [line.round for line in lines] in ([1, 2, 3], [1, 2, 3, 4])
        assert len(lines) == (4 if cut == 1 else 3)  # without its line end it is still whole
    go(run, resume=True)
    go(tmp_path / "whole")
    lines = read_trace(run)[1]
    assert [line.round for line in lines] == [1, 2, 3, 5, 6]  # what was lost stays lost; nothing is glued together
    assert lines[-1] == read_trace(tmp_path / "whole")[1][-1]


def test_lines_of_rounds_beyond_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    run = tmp_path / "run"
    go(run, rounds=4)
    with (run / "trace.jsonl").open("a") as log:
        log.write('{"round":5,"cluster":[9,9,9,9,9,9,9,9]}\n{"round":6,"clu')
    go(run, resume=True)
    go(tmp_path / "whole")
    assert_same_trace(run, tmp_path / "whole")


@pytest.mark.parametrize(
    "line",
    [
        '{"round":1,"round":2,"cluster":[0,1]}',
        '{"round":1,"cluster":[0,1],"accuracy":[NaN,0.5]}',
        '{"round":1,"cluster":["0",1]}',
        '{"round":true,"cluster":[0,1]}',
        '{"round":1}',
        "[1]",
        "null",
        "[" * 10_000,
        "\xff",
    ],
)
def test_a_line_that_is_not_a_rounds_is_left_out(line: str, tmp_path: Path) -> None:
    good = '{"round":3,"cluster":[0,1],"accuracy":[null,0.5],"macro_f1":[null,1]}'
    (tmp_path / "trace.jsonl").write_text(f'{{"ids":[4,7]}}\n{line}\n{good}\n', encoding="latin-1")
    ids, lines = read_trace(tmp_path)
    assert ids.tolist() == [4, 7]
    assert lines == [TraceLine(3, (0, 1), accuracy=(None, 0.5), macro_f1=(None, 1))]


def test_a_line_of_fewer_clients_is_widened() -> None:
    wider = TraceLine(3, (0, 1), loss=(0.25, None)).widened(4)
    assert wider == TraceLine(3, (0, 1, -1, -1), loss=(0.25, None, None, None))


def test_nothing_to_read(tmp_path: Path) -> None:
    ids, lines = read_trace(tmp_path)
    assert (len(ids), lines) == (0, [])
    assert read_sketch(tmp_path) is None
    (tmp_path / "sketch.safetensors").write_bytes(b"half of a sket")
    assert read_sketch(tmp_path) is None


def test_a_damaged_sketch_does_not_stop_a_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    go(run, rounds=4)
    (run / "sketch.safetensors").write_bytes(b"half of a sket")
    go(run, resume=True)
    assert (sketch(run)["round"] == 6).sum() == 3  # those of the last round, at least


def test_the_store_writes_it_whole(tmp_path: Path) -> None:
    go(tmp_path / "run", rounds=1)
    assert not list((tmp_path / "run").rglob("*.part"))
    assert (tmp_path / "run" / "sketch.safetensors").is_file()


def test_of_models_without_a_personal_section_all_is_used() -> None:
    """The last layer's positions are of whole models: in a shorter vector something else, or nothing, is there."""
    models = torch.randn(3, 40, generator=torch.Generator().manual_seed(4))
    found = Sketcher(torch.arange(30, 50), 50)(models)
    np.testing.assert_array_equal(found, Sketcher(torch.arange(40))(models))
    assert not Sketcher(torch.arange(30, 50), 50)(models[:, :0]).any()
