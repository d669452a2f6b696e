"""A client is forgotten: no file of the run has its name or its numbers, the others keep their ids, the run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import coterie
from conftest import PAPERS, few, raises
from coterie import ByClient, Federation, Local
from coterie.core.registry import METHODS, NO_CODE
from coterie.serving import forget as module
from coterie.tools.cli.main import app
from coterie.training import checkpoint, lineage
from coterie.training.lineage import scrubbed

LOCAL = Local(steps=2, batch="full", lr=0.5)
NAMES = ("Ada", "Bea", "Zephyrine", "Dora", "Eva", "Fay")
GONE = 2


def federation(test: int = 0) -> Federation:
    """Six clients, of which Zephyrine has 137 samples, a number that nothing else is."""
    rng = np.random.default_rng(0)
    arrays = []
    for client, group in enumerate("001101"):
        x = rng.normal(size=(137 if client == GONE else 12, 2)).astype(np.float32)
        arrays.append((x, ((x[:, 0] > 0) != (group == "1")).astype(np.int64)))
    return Federation.from_arrays(
        arrays, groups=list("001101"), truth=[0, 0, 1, 1, 0, 1], names=NAMES, test=0.25, standardise=False
    )


def method(name: str) -> Any:
    import dataclasses

    fields = {f.name: f for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    params: dict[str, Any] = {n: v for n, v in {"local": LOCAL, "k": 2, "warmup": 1, "alpha": 0}.items() if n in fields}
    if name in ("fedgroup", "fedgrouprox"):
        params.pop("alpha", None)
    if "base" in fields and fields["base"].default is dataclasses.MISSING:
        params["base"] = method("wecfl")
    if "base" in fields and "section" in fields:
        params["section"] = ("*bias",)  # the head of a single layer is all of it, and nothing would be left to share
    return METHODS.build(name, params, NO_CODE)


def numbers(tree: Any) -> Iterator[Any]:
    """Every number and text of a JSON tree."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from numbers(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from numbers(value)
    else:
        yield tree


def assert_nothing_is_left(run: Path, own: dict[str, bytes], scores: list[float]) -> None:
    """No file has the name, the number of samples, the scores, or the bytes of a personal value."""
    for file in (one for one in run.rglob("*") if one.is_file()):
        content = file.read_bytes()
        assert b"Zephyrine" not in content, file
        for slot, value in own.items():
            assert value not in content, (file, slot)
        if file.suffix in (".json", ".jsonl"):
            for line in content.decode().splitlines() if file.suffix == ".jsonl" else [content.decode()]:
                found = list(numbers(json.loads(line)))
                assert not {n for n in found if isinstance(n, float)} & set(scores), file
                assert 103 not in found, file  # its training samples
                assert 34 not in found, file  # its test samples


@pytest.mark.parametrize("name", few(PAPERS, "wecfl", "halves", "ditto", "fedsoft", "stocfl"))
def test_no_file_has_anything_of_it(name: str, tmp_path: Path) -> None:
    run, data = tmp_path / "run", federation()
    before = coterie.run(
        method(name), data, "linear", rounds=4, checkpoint_every=1, keep_checkpoints="all", participation=0.7, out=run
    )
    assert before.clients.n[GONE] == 34
    assert data.train.lengths[GONE] == 103
    kept = {k: v for k, v in before.memory.tensors().items() if k.startswith(f"{GONE}/") and v.numel() > 2}
    own = {slot: value.numpy().tobytes() for slot, value in kept.items()}
    rows = json.loads((run / "clients.json").read_text())
    scores = [v for v in rows[GONE].values() if isinstance(v, float)]
    others = {v for row in rows if row["client"] != GONE for v in row.values() if isinstance(v, float)}
    found = coterie.forget(run, "Zephyrine", method=method(name))
    assert found.client == GONE
    assert found.checkpoints == 4
    assert found.left == 5
    assert found.still_named == ()
    assert_nothing_is_left(run, own, [s for s in scores if s not in others and s not in (0.0, 0.5, 1.0)])
    said = json.loads((run / "forgotten.json").read_text())
    assert said["clients"] == [GONE]
    assert said["complete"] is True
    after = coterie.load(run, method=method(name))
    assert after.clients.ids.tolist() == [0, 1, 3, 4, 5]
    assert after.assignments[GONE] == -1
    assert [a for i, a in enumerate(after.assignments) if i != GONE] == [
        a for i, a in enumerate(before.assignments) if i != GONE
    ]
    assert after.known.names == ("Ada", "Bea", "(forgotten 2)", "Dora", "Eva", "Fay")
    on = coterie.go_on(run, more=2, federation=data, method=method(name))
    assert on.clients.ids.tolist() == [0, 1, 3, 4, 5]
    assert all(not event.missing for event in on.history)
    assert not [key for key in on.memory.tensors() if key.startswith(f"{GONE}/")]
    assert_nothing_is_left(run, own, [])


def test_tables_of_clients_lose_their_rows_and_nothing_else() -> None:
    table = ByClient(torch.tensor([1, 2, 5]), torch.tensor([10, 20, 50]))
    found = scrubbed((table, {"twice": table}, 3, None), torch.tensor([2]))
    assert found[0].ids.tolist() == [1, 5]
    assert found[0].values.tolist() == [10, 50]
    assert found[1]["twice"] is found[0]
    assert found[2:] == (3, None)


def test_the_model_of_a_cluster_of_one_is_replaced() -> None:
    from coterie.methods.hard_clusters import Clusters

    centers = torch.tensor([[1.0, 1.0], [9.0, 9.0], [3.0, 5.0]])
    labels = ByClient(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]))
    found = scrubbed(Clusters(centers, labels, torch.arange(2)), torch.tensor([1]))
    assert found.centers.tolist() == [[1.0, 1.0], [2.0, 3.0], [3.0, 5.0]]  # the mean of the two others
    assert found.labels.ids.tolist() == [0, 2]
    assert found.labels.values.tolist() == [0, 2]
    assert centers[1].tolist() == [9.0, 9.0]


@pytest.mark.parametrize("of_whom", ["updates", "shares", "sums"])
def test_what_a_method_keeps_of_a_cluster_of_one_is_replaced(of_whom: str) -> None:
    """A row of a cluster that one client had alone is that client's: its first update, its label shares."""
    from coterie.methods.fedgroup import Groups
    from coterie.methods.fielding import LabelClusters
    from coterie.methods.stocfl import Stochastic

    rows, where = torch.tensor([[1.0, 1.0], [9.0, 9.0], [3.0, 5.0]]), torch.arange(2)
    labels, replaced = ByClient(torch.arange(4), torch.tensor([0, 1, 2, 2])), [[1.0, 1.0], [2.0, 3.0], [3.0, 5.0]]
    gone = torch.tensor([1, 2])
    if of_whom == "updates":
        groups = scrubbed(Groups(rows, labels, where, rows[0], rows, torch.arange(3)), gone)
        assert groups.updates.tolist() == groups.centers.tolist() == replaced
        assert groups.clustered.tolist() == [0]
    elif of_whom == "shares":
        clusters = scrubbed(
            LabelClusters(rows, labels, where, ByClient(torch.arange(4), rows[labels.values]), rows), gone
        )
        assert clusters.then.tolist() == replaced
        assert clusters.rows.ids.tolist() == [0, 3]
    else:
        many, trained = torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 2.0])
        found = scrubbed(Stochastic(rows, labels, where, rows[0], rows[0], rows, many, trained), gone)
        assert found.centers.tolist() == replaced
        assert found.psi.tolist() == [[1.0, 1.0], [0.0, 0.0], [3.0, 5.0]]
        assert found.members.tolist() == found.trained.tolist() == [1.0, 0.0, 1.0]


def test_what_stays_is_said(tmp_path: Path) -> None:
    run = tmp_path / "run"
    coterie.run(method("wecfl"), federation(), "linear", rounds=2, out=run)
    found = CliRunner().invoke(app, ["forget", str(run), "Zephyrine"])
    assert found.exit_code == 0
    assert "Averages that it had a part in stay" in found.stdout
    assert "5 clients are left" in found.stdout
    with raises("client-unknown"):
        coterie.forget(run, "Zephyrine")
    again = CliRunner().invoke(app, ["forget", str(run), "2", "--json"])
    assert json.loads(again.stdout)["client"] == 2


def test_interrupted_it_has_begun_and_the_same_command_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = tmp_path / "run", federation()
    coterie.run(method("ditto"), data, "linear", rounds=3, checkpoint_every=1, out=run)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "_scrub_checkpoint", fail)
        with pytest.raises(KeyboardInterrupt):
            coterie.forget(run, GONE)
    assert json.loads((run / "forgotten.json").read_text())["complete"] is False
    half = coterie.load(run)  # the checkpoint still has its rows, what is loaded has not
    assert half.clients.ids.tolist() == [0, 1, 3, 4, 5]
    assert not [key for key in half.memory.tensors() if key.startswith(f"{GONE}/")]
    coterie.forget(run, GONE)
    assert b"Zephyrine" not in b"".join(one.read_bytes() for one in run.rglob("*") if one.is_file())
    on = coterie.go_on(run, more=1, federation=data)
    assert on.clients.ids.tolist() == [0, 1, 3, 4, 5]


def test_several_are_forgotten_one_after_another_and_clients_added(tmp_path: Path) -> None:
    run, data = tmp_path / "run", federation()
    coterie.run(method("wecfl"), data, "linear", rounds=2, out=run)
    coterie.forget(run, "Zephyrine")
    coterie.forget(run, "Ada")
    rng = np.random.default_rng(3)
    x = rng.normal(size=(12, 2)).astype(np.float32)
    new = Federation.from_arrays([(x, (x[:, 0] > 0).astype(np.int64))], names=("Gil",), standardise=False)
    on = coterie.go_on(run, more=1, add=new, federation=data)
    assert on.clients.ids.tolist() == [1, 3, 4, 5, 6]
    coterie.forget(run, "Gil")
    assert lineage.read(run).forgotten == (0, 2, 6)
    last = coterie.go_on(run, more=1, federation=data, added=[new])
    assert last.clients.ids.tolist() == [1, 3, 4, 5]
    content = b"".join(one.read_bytes() for one in run.rglob("*") if one.is_file())
    assert not [name for name in (b"Ada", b"Gil", b"Zephyrine") if name in content]


def test_what_was_abandoned_forgets_too(tmp_path: Path) -> None:
    run, data = tmp_path / "run", federation()
    coterie.run(method("ditto"), data, "linear", rounds=3, checkpoint_every=1, keep_checkpoints="all", out=run)
    coterie.go_on(run, back_to=1, federation=data)
    coterie.forget(run, GONE)
    aside = run / "abandoned-1"
    assert b"Zephyrine" not in b"".join(one.read_bytes() for one in aside.rglob("*") if one.is_file())
    assert coterie.load(aside).clients.ids.tolist() == [0, 1, 3, 4, 5]


def test_an_abandoned_part_may_have_had_other_clients(tmp_path: Path) -> None:
    run, data = tmp_path / "run", federation()
    coterie.run(method("ditto"), data, "linear", rounds=1, checkpoint_every=1, keep_checkpoints="all", out=run)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(12, 2)).astype(np.float32)
    for name in ("Gil", "Hal"):  # both are client 6, Gil in what was abandoned
        new = Federation.from_arrays([(x, (x[:, 0] > 0).astype(np.int64))], names=(name,), standardise=False)
        coterie.go_on(run, more=1, add=new, federation=data)
        if name == "Gil":
            coterie.go_on(run, back_to=1, federation=data)
    coterie.forget(run, 6)  # Hal
    assert coterie.load(run).clients.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert coterie.load(run / "abandoned-1").known.names == (*NAMES, "Gil")
    coterie.forget(run, "Ada")
    assert coterie.load(run / "abandoned-1").clients.ids.tolist() == [1, 2, 3, 4, 5, 6]
    coterie.forget(run, "Gil")
    assert coterie.load(run / "abandoned-1").clients.ids.tolist() == [1, 2, 3, 4, 5]


def test_the_last_client_and_other_directories_are_refused(tmp_path: Path) -> None:
    with raises("run-not-found"):
        coterie.forget(tmp_path, 0)
    run = tmp_path / "run"
    two = federation().take([0, 1])
    coterie.run(method("fedavg"), two, "linear", rounds=1, out=run)
    coterie.forget(run, 0)
    with raises("client-invalid", "last client"):
        coterie.forget(run, 1)


def test_damaged_checkpoints_are_deleted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    coterie.run(method("ditto"), federation(), "linear", rounds=2, checkpoint_every=1, out=run)
    first, second = sorted((run / "checkpoints").glob("round-*"))
    content = bytearray(first.read_bytes())
    content[-5] ^= 1
    first.write_bytes(content)
    coterie.forget(run, GONE)
    assert not first.exists()
    assert checkpoint.belongs_of(second)["data"].endswith("without clients 2")
