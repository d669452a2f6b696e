"""Coterie as a plain Flower app: `flwr run` on a SuperLink and SuperNodes that Flower's own commands started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from federation import MARK, Stage, free_port, until, write_digits

import coterie.network

pytest.importorskip("flwr")
pytestmark = pytest.mark.distributed

APP = Path(coterie.network.__file__).parent / "flower" / "app_template"
BIN = Path(sys.executable).parent


def test_flwr_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ditto: what clients keep lies in Flower's own state of a node (anna), or in a folder (bert)."""
    home = tmp_path / "flwr"
    home.mkdir()
    stage = Stage(tmp_path)
    address = f"127.0.0.1:{stage.port}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    for key, value in (
        *(("FLWR_HOME", str(home)), ("FLWR_TELEMETRY_ENABLED", "0"), ("FLWR_DISABLE_UPDATE_CHECK", "1")),
        *(("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}"), (MARK, stage.mark)),
    ):
        monkeypatch.setenv(key, value)
    write_digits(tmp_path, ("anna", "bert"))
    link = ("--insecure", "--host", "127.0.0.1", "--port", str(stage.port), "--disable-runtime-dependency-installation")
    try:
        stage.start("superlink", str(BIN / "flower-superlink"), *link)
        until(lambda: "Uvicorn running" in stage.said("superlink"), 60, stage.everything_said)
        for name, more in (("anna", ""), ("bert", f" state='{tmp_path}/state'")):
            node = ("--insecure", "--superlink", address, "--host", "127.0.0.1", "--port", str(free_port()))
            config = f"name='{name}' data='{tmp_path}/{name}.npz'{more}"
            stage.start(name, str(BIN / "flower-supernode"), *node, "--node-config", config)
        words = "rounds=2 method.name=ditto model.name=linear evaluate_every=2 network.outputs=10 network.deadline=100"
        said = subprocess.run(
            [str(BIN / "flwr"), "run", str(APP), "here", "-c", f"out='{tmp_path}/run' words='{words}'"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert said.returncode == 0, said.stdout + said.stderr
        done = tmp_path / "run" / "clients.json"
        until(done.is_file, 240, stage.everything_said)
        assert [row["name"] for row in stage.clients_of("run")] == ["anna", "bert"]
        assert [line["answered"] for line in stage.rounds("run")] == [2, 2]
        assert list((tmp_path / "state").rglob("*.safetensors"))
        again = coterie.load(tmp_path / "run")
        assert again.assignments.tolist() == [0, 0]
    finally:
        stage.close()
