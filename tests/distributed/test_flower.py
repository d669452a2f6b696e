"""SuperLink and SuperNodes for real, on loopback, with TLS and keys: results, faults and strangers.

One federation serves the whole module: its clients stay connected while servers come and go, as they would.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cutting import CUT
from federation import NAMES, Stage, in_process, until, write_digits

pytest.importorskip("flwr")
pytestmark = pytest.mark.distributed

RUN = ["model=linear", "local.epochs=2", "local.batch=8", "local.lr=0.1", "network.outputs=10", "evaluate_every=3"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    path = tmp_path_factory.mktemp("federation")
    write_digits(path, (*NAMES, "dora", "emil", "fritz"))
    made = Stage(path)
    clients = [word for name in (*NAMES, "dora", "emil") for word in ("--client", name)]
    for words in (("certs", "certs", *clients), ("certs", "others", "--client", "fritz", "--client", "anna")):
        subprocess.run(
            [sys.executable, "-m", "coterie.tools.cli.main", *words], cwd=path, check=True, capture_output=True
        )
    try:
        made.client("anna")
        made.cutting_client("bert")
        made.client("cora")
        yield made
    finally:
        made.close()


def state(run: Path, round_: int) -> dict[str, torch.Tensor]:
    tensors = safetensors.torch.load_file(run / "checkpoints" / f"round-{round_:06d}.safetensors")
    return {key: value for key, value in tensors.items() if key.startswith("state/")}


def assert_same(stage: Stage, run: str, words: list[str], names: tuple[str, ...] = NAMES) -> None:
    """To 1e-6, and every client in the same cluster, as the reference engine has it."""
    alone = in_process(stage.path, names, words, stage.path / f"{run}-alone")
    rounds = alone.settings.rounds
    ours, theirs = state(stage.path / run, rounds), state(stage.path / f"{run}-alone", rounds)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-6, atol=1e-6)
    found = [(row["client"], row["name"], row["cluster"]) for row in stage.clients_of(run)]
    assert alone.clients.choice is not None
    assert found == [(i, name, int(k)) for i, (name, k) in enumerate(zip(names, alone.clients.choice, strict=True))]


def test_strangers_stay_outside_and_a_killed_server_goes_on_as_in_one_process(stage: Stage) -> None:
    """The server waits for a fourth client, and none of the strangers is one."""
    words = [*RUN, "method.name=wecfl", "method.k=2", "rounds=3", "network.clients=4"]
    server = stage.server(*words, "--out", "wecfl")
    other_ca = stage.client("fritz", key="others/clients/fritz", log="other-ca")
    plain = stage.client("fritz", "--insecure", "--name", "fritz", "--patience", "3", log="plaintext")
    unregistered = stage.client("fritz", "--key", str(mixed_key(stage)), "--patience", "3", log="unregistered")
    assert stage.ends(other_ca, 200) == 2
    assert "does not admit this client" in stage.said("other-ca")
    assert "CERTIFICATE_VERIFY_FAILED" in stage.said("other-ca")
    assert stage.ends(unregistered, 200) == 2
    assert "its key is not, or no longer, known there" in " ".join(stage.said("unregistered").split())
    assert stage.ends(plain, 200) == 2
    assert "wants TLS and a key" in stage.said("plaintext")
    assert server.poll() is None, "the server survived them all"
    until(lambda: "3 of 4 connected" in stage.said("server"), 120, stage.everything_said)
    with ExitStack() as idle:
        for i in range(400):  # more than an address may have, and of the clients' own address
            where = ("127.0.0.1", stage.port)
            idle.enter_context(socket.create_connection(where, 20, source_address=(f"127.0.0.{1 + i % 2}", 0)))
        dora = stage.client("dora")
        until(lambda: "'dora' has joined" in stage.said("server"), 120, stage.everything_said)
    stage.after_round("wecfl", 1, 180)
    kill_in_mid_visit(stage, server)
    before = stage.rounds("wecfl")
    assert stage.ends(stage.server("--resume", "wecfl"), 240) == 0
    assert [line["round"] for line in stage.rounds("wecfl")] == [1, 2, 3]
    assert stage.rounds("wecfl")[0]["seconds"] == before[0]["seconds"]  # not done again
    assert_same(stage, "wecfl", words, (*NAMES, "dora"))
    audit = stage.path / "wecfl" / "audit.jsonl"
    noted = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {"joined", "key-added", "request-refused", "connection-refused"} <= {line["event"] for line in noted}
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600
    assert not [file for file in (stage.path / "wecfl").rglob("*") if file.stat().st_mode & stat.S_IRWXO]
    dora.terminate()  # what `kill` does; a client that was started in the background ignores Ctrl-C
    assert stage.ends(dora) == 143
    until(lambda: not stage.supernodes("dora"), 30, stage.everything_said)


def mixed_key(stage: Stage) -> Path:
    """The right CA, but a key that the server was never given."""
    mixed = stage.path / "mixed"
    mixed.mkdir()
    for file in ("anna", "anna.pub"):
        (mixed / file).write_bytes((stage.path / "others/clients/anna" / file).read_bytes())
        (mixed / file).chmod(0o600)
    (mixed / "ca.crt").write_bytes((stage.path / "certs/ca.crt").read_bytes())
    return mixed


def kill_in_mid_visit(stage: Stage, server: subprocess.Popen[bytes]) -> None:
    """The next requests are at the SuperLink, nobody has fetched them, and they will be of a run that died."""
    nodes = [pid for pid, words in stage.alive() if "flower-supernode" in words]
    for node in nodes:
        os.kill(node, signal.SIGSTOP)
    time.sleep(3)
    server.kill()
    server.wait()
    for node in nodes:
        os.kill(node, signal.SIGCONT)
    until(lambda: not any("flower-superlink" in words for _, words in stage.alive()), 30, stage.everything_said)


def test_clients_and_the_superlink_die_and_a_newcomer_and_a_villain_come(stage: Stage) -> None:
    """For as many rounds as it takes."""
    words = [*RUN, "method.name=ifca", "method.k=2", "rounds=1000", "network.clients=3", "network.deadline=15"]
    more = ["evaluate_every=1000", "quorum=0", "network.refusals=2", "--out", "faults"]
    server = stage.server(*words, *more, log="server-faults")
    stage.after_round("faults", 1, 180)
    os.kill(stage.pid_of("flower-superlink"), signal.SIGKILL)
    stage.after_round("faults", 2, 180)
    assert "a new one goes on from the last round" in stage.said("server-faults")
    before = len(stage.said("bert"))
    (stage.path / "state-bert" / CUT).touch()
    stage.client("dora", log="dora-again")
    hostile = str(Path(__file__).with_name("hostile.py"))
    where = (f"127.0.0.1:{stage.port}", "certs/clients/emil", "emil.npz", "state-emil")
    stage.start("emil", hostile, *where)

    def said(line: str) -> int:
        return stage.said("server-faults").count(line)

    # Bert died in mid-upload, was missed, and is let in again when Flower has given the dead SuperNode up.
    until(lambda: not (stage.path / "state-bert" / CUT).exists(), 120, stage.everything_said)
    until(lambda: ": fit" in stage.said("bert")[before:].partition("SuperNode ended")[2], 120, stage.everything_said)
    until(lambda: said("client 'dora' has joined") >= 1 and said("banned: emil: ") == 1, 120, stage.everything_said)
    many = len(stage.rounds("faults"))
    stage.after_round("faults", many + 1)
    server.terminate()
    assert stage.ends(server) == 143
    again = stage.said("server-faults").partition("go on with: coterie server --resume faults ")[2]
    assert "--certs" in again, "what listens where is not part of a run: the words say it again"
    assert "--port" in again
    rounds = stage.rounds("faults")
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))
    assert any(m["client"] == 1 for line in rounds for m in line["missing"]), "bert, in mid-upload"
    assert "Traceback" not in stage.said("server-faults")
    # A client that is killed takes its SuperNode with it.
    stage.started[0].kill()
    until(lambda: not stage.supernodes("anna"), 30, stage.everything_said)
