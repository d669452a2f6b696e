"""Clients that end by themselves: refused by the server, out of budget, or without their key's files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from federation import Stage, until, write_digits

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.distributed

WORDS = ["model=linear", "method.name=fedavg", "rounds=1000", "network.clients=2", "network.outputs=10", "quorum=0.5"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    names = ("anna", "bert", "cora", "dora")
    write_digits(tmp_path, names)
    x = np.zeros((20, 5), np.float32)
    np.savez(tmp_path / "dora.npz", x=x, y=np.arange(20) % 2, split=np.array(["train"] * 15 + ["test"] * 5))
    words = ("certs", "certs", *(word for name in names for word in ("--client", name)))
    command = [sys.executable, "-m", "coterie.tools.cli.main", *words]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    made = Stage(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_who_cannot_go_on_says_why_and_ends(stage: Stage) -> None:
    shutil.copytree(stage.path / "certs/clients/anna", stage.path / "gone")
    gone = stage.client("anna", key="gone", log="gone")  # there is no server yet
    until(lambda: "nobody answers" in stage.said("gone"), 60, stage.everything_said)
    shutil.rmtree(stage.path / "gone")
    assert stage.ends(gone, 60) == 2
    assert "gone: no key there" in " ".join(stage.said("gone").split())

    stage.server(*WORDS, "--out", "run")
    stage.client("anna")
    stage.client("bert")
    stage.after_round("run", 1, 180)
    shy = ("--key", "certs/clients/cora", "--local-privacy", "epsilon=8,visits=2")
    late, spent = stage.client("dora"), stage.client("cora", *shy)
    assert stage.ends(late, 180) == 2
    why = "does not fit: its inputs: (5,); this federation's: (1, 8, 8)"
    assert f"refuses this client: {why}" in " ".join(stage.said("dora").split())
    assert stage.ends(spent, 180) == 0
    said = stage.said("cora")
    assert said.count("budget is spent") == 1
    assert "40 training and 20 test samples of shape (1, 8, 8); the server is told 1 and 0" in said
    noted = [json.loads(line) for line in (stage.path / "run" / "audit.jsonl").read_text().splitlines()]
    assert [(line["client"], line["reason"]) for line in noted if line["event"] == "refused"] == [("dora", why)]
    assert {line["reason"].partition(":")[0] for line in noted if line["event"] == "request-refused"} == {
        "the server's own test of its guard"
    }
    again = stage.client("cora", *shy)  # its budget is on the disk
    assert stage.ends(again, 60) == 0
    assert "it takes no part" in stage.said("cora")
    many = len(stage.rounds("run"))
    stage.after_round("run", many + 3)
    rounds = stage.rounds("run")
    assert [line["asked"] for line in rounds[-2:]] == [2, 2]  # who has left is not asked
