"""`coterie client --device` with real processes: a client on the pretend accelerator gives what the processor gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.utils.backend_registration as backends
from federation import Stage, in_process, write_digits

import sham

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not hasattr(backends, sham.SET_UP), reason=f"this PyTorch has no {sham.SET_UP}"),
]
NAMES, PROGRAM = ("anna",), "coterie.tools.cli.main"
TRAINED = ["model=linear", "method=fedavg", "local.steps=3", "local.batch=8", "local.lr=0.1", "rounds=2"]
RUN = [*TRAINED, "network.outputs=10", "network.clients=1", "--out", "run"]


def test_a_client_has_a_device_of_its_own(tmp_path: Path) -> None:
    write_digits(tmp_path, NAMES)
    stage = Stage(tmp_path)
    where = ("--server", f"127.0.0.1:{stage.port}", "--data", "anna.npz", "--state", "state-anna")
    how = ("--insecure", "--name", "anna", "--device", "sham:0")
    try:
        server = stage.start("server", "-m", PROGRAM, "server", *RUN, "--insecure", "--port", str(stage.port))
        stage.start("anna", str(Path(__file__).with_name("pretending.py")), "client", *where, *how)
        assert stage.ends(server, 180) == 0
    finally:
        stage.close()
    copied = re.findall(r"copied up (\d+), refused (\d+)", stage.said("anna"))
    assert int(copied[-1][0]) > 0, stage.everything_said()
    assert {refused for _, refused in copied} == {"0"}
    alone = in_process(tmp_path, NAMES, RUN[:-2], tmp_path / "alone")
    assert alone.settings.rounds == 2
    ours, theirs = (
        safetensors.torch.load_file(tmp_path / run / "checkpoints" / "round-000002.safetensors")
        for run in ("run", "alone")
    )
    for key in theirs:
        if key.startswith("state/"):
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-5, atol=1e-6)
