"""SuperLink and SuperNodes for real, on loopback, with TLS and keys: results, faults and strangers.

One federation serves the whole module: its clients stay connected while servers come and go, as they would.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from federation import NAMES, Stage, in_process, until, write_digits

pytest.importorskip("flwr")
pytestmark = pytest.mark.distributed

RUN = ["model=linear", "local.epochs=2", "local.batch=8", "local.lr=0.1", "network.outputs=10", "evaluate_every=3"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    path = tmp_path_factory.mktemp("federation")
    write_digits(path, (*NAMES, "dora", "emil", "fritz"))
    made = Stage(path)
    clients = [word for name in (*NAMES, "emil") for word in ("--client", name)]
    for words in (("certs", "certs", *clients), ("certs", "others", "--client", "fritz", "--client", "anna")):
        subprocess.run([sys.executable, "-m", "coterie.cli", *words], cwd=path, check=True, capture_output=True)
    try:
        for name in NAMES:
            made.client(name)
        yield made
    finally:
        made.close()


def state(run: Path, round_: int) -> dict[str, torch.Tensor]:
    tensors = safetensors.torch.load_file(run / "checkpoints" / f"round-{round_:06d}.safetensors")
    return {key: value for key, value in tensors.items() if key.startswith("state/")}


def assert_same(stage: Stage, run: str, words: list[str]) -> None:
    """To 1e-6, and every client in the same cluster, as the reference engine has it."""
    alone = in_process(stage.path, NAMES, words, stage.path / f"{run}-alone")
    rounds = alone.settings.rounds
    ours, theirs = state(stage.path / run, rounds), state(stage.path / f"{run}-alone", rounds)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-6, atol=1e-6)
    found = [(row["client"], row["name"], row["cluster"]) for row in stage.clients_of(run)]
    assert alone.clients.choice is not None
    assert found == [(i, name, int(k)) for i, (name, k) in enumerate(zip(NAMES, alone.clients.choice, strict=True))]


def test_strangers_stay_outside(stage: Stage) -> None:
    """The server waits for a fourth client, and none of these is one."""
    server = stage.server(*RUN, "network.clients=4", "--out", "strangers", log="server-strangers")
    other_ca = stage.client("fritz", key="others/clients/fritz", log="other-ca")
    plain = stage.client("fritz", "--insecure", "--name", "fritz", log="plaintext")
    # The right CA, but a key that the server was never given.
    mixed = stage.path / "mixed"
    mixed.mkdir()
    for file in ("anna", "anna.pub"):
        (mixed / file).write_bytes((stage.path / "others/clients/anna" / file).read_bytes())
        (mixed / file).chmod(0o600)
    (mixed / "ca.crt").write_bytes((stage.path / "certs/ca.crt").read_bytes())
    unregistered = stage.client("fritz", "--key", "mixed", "--patience", "5", log="unregistered")
    assert stage.ends(other_ca, 200) == 2
    assert "does not let this client in" in stage.said("other-ca")
    assert "CERTIFICATE_VERIFY_FAILED" in stage.said("other-ca")
    assert stage.ends(unregistered, 200) == 2
    assert "does not let this client in" in stage.said("unregistered")
    until(lambda: "3 of 4 connected" in stage.said("server-strangers"), 60, stage.everything_said)
    plain.send_signal(signal.SIGINT)
    assert stage.ends(plain) == 130
    assert "round" not in stage.said("plaintext")
    assert server.poll() is None, "the server survived them all"
    server.send_signal(signal.SIGINT)
    assert stage.ends(server) == 130
    assert "4 of 4" not in stage.said("server-strangers")


def test_wecfl_over_tls_equals_one_process(stage: Stage) -> None:
    words = [*RUN, "method.name=wecfl", "method.k=2", "rounds=3", "network.clients=3"]
    assert stage.ends(stage.server(*words, "--out", "wecfl"), 240) == 0
    assert_same(stage, "wecfl", words)


def test_ifca_goes_on_after_the_server_was_killed(stage: Stage) -> None:
    words = [*RUN, "method.name=ifca", "method.k=2", "rounds=3", "network.clients=3"]
    server = stage.server(*words, "--out", "ifca", log="server-ifca")
    stage.after_round("ifca", 1, 180)
    # In mid-visit: the next errands are at the SuperLink, nobody has fetched them, and they will be of a run that died.
    nodes = [pid for pid, words in stage.alive() if "flower-supernode" in words]
    for node in nodes:
        os.kill(node, signal.SIGSTOP)
    time.sleep(3)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    for node in nodes:
        os.kill(node, signal.SIGCONT)
    until(lambda: not any("flower-superlink" in words for _, words in stage.alive()), 30, stage.everything_said)
    before = stage.rounds("ifca")
    assert stage.ends(stage.server("--resume", "ifca", log="server-ifca"), 240) == 0
    assert [line["round"] for line in stage.rounds("ifca")] == [1, 2, 3]
    assert stage.rounds("ifca")[0]["seconds"] == before[0]["seconds"]  # not done again
    assert_same(stage, "ifca", words)


def test_clients_and_the_superlink_die_and_a_newcomer_and_a_villain_come(stage: Stage) -> None:
    words = [
        *RUN,
        "method.name=wecfl",
        "method.k=2",
        "rounds=7",
        "network.clients=3",
        "network.deadline=12",
        "quorum=0.3",
    ]
    server = stage.server(*words, "network.largest=10000000", "--out", "faults", log="server-faults")
    stage.after_round("faults", 1, 180)
    os.kill(stage.pid_of("flower-superlink"), signal.SIGKILL)
    stage.after_round("faults", 2, 180)
    os.kill(stage.started[1].pid, signal.SIGKILL)  # bert
    certs = [sys.executable, "-m", "coterie.cli", "certs", "certs", "--client", "dora"]
    subprocess.run(certs, cwd=stage.path, check=True, capture_output=True)
    stage.client("dora")
    hostile = str(Path(__file__).with_name("hostile.py"))
    where = (f"127.0.0.1:{stage.port}", "certs/clients/emil", "emil.npz", "state-emil")
    stage.start("emil", hostile, *where)
    assert stage.ends(server, 300) == 0
    said = stage.said("server-faults")
    assert "a new one goes on from the last round" in said
    assert [line["round"] for line in stage.rounds("faults")] == list(range(1, 8))
    missed = {m["client"] for line in stage.rounds("faults") for m in line["missing"]}
    names = {row["name"]: row for row in stage.clients_of("faults")}
    assert {"anna", "cora", "dora"} <= set(names)
    assert 1 in missed, "bert was killed in mid-training"
    assert "bert" not in names
    assert names["anna"]["cluster"] == names["cora"]["cluster"]
    assert said.count("client 4 (emil): ") + said.count("client 3 (emil): ") >= 2, said  # garbage, shape, size: refused
    assert "Traceback" not in said
    # Bert comes back, under its old number.
    stage.client("bert", log="bert-again")
    again = stage.server("rounds=8", "network.clients=5", "--resume", "faults", log="server-faults")
    assert stage.ends(again, 240) == 0
    assert {row["name"]: row["client"] for row in stage.clients_of("faults")}["bert"] == 1
