"""`coterie client --device` with real processes: a client that computes on the pretend accelerator, beside one that does
not, gives the models that the reference engine gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from federation import Stage, in_process, write_digits

import sham

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not sham.register(), reason=f"this PyTorch has no {sham.SET_UP}, which was private to it"),
]
NAMES = ("anna", "bert")
RUN = ["model=linear", "method=fedavg", "local.steps=3", "local.batch=8", "local.lr=0.1", "rounds=2"]
SHAPES = ["network.outputs=10", "network.clients=2"]


def test_each_client_has_a_device_of_its_own(tmp_path: Path) -> None:
    write_digits(tmp_path, NAMES)
    stage = Stage(tmp_path)
    words = [word for name in NAMES for word in ("--client", name)]
    command = [sys.executable, "-m", "coterie.tools.cli.main", "certs", "certs", *words]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    try:
        server = stage.server(*RUN, *SHAPES, "--out", "run")
        where = ("--server", f"127.0.0.1:{stage.port}", "--data", "anna.npz", "--state", "state-anna")
        how = ("--key", "certs/clients/anna", "--device", "sham:0")
        stage.start("anna", str(Path(__file__).with_name("pretending.py")), "client", *where, *how)
        stage.client("bert", "--key", "certs/clients/bert", "--device", "cpu")
        assert stage.ends(server, 180) == 0
    finally:
        stage.close()
    copied = re.findall(r"copied up (\d+), refused (\d+)", stage.said("anna"))
    assert int(copied[-1][0]) > 0, stage.everything_said()
    assert {refused for _, refused in copied} == {"0"}
    alone = in_process(tmp_path, NAMES, [*RUN, *SHAPES], tmp_path / "alone")
    assert alone.settings.rounds == 2
    ours, theirs = (
        safetensors.torch.load_file(tmp_path / run / "checkpoints" / "round-000002.safetensors")
        for run in ("run", "alone")
    )
    for key in theirs:
        if key.startswith("state/"):
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-5, atol=1e-6)
