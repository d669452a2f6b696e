"""A cluster of two nodes with a token, one of which is killed in the middle of a round."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cluster_job
import numpy as np
import pytest
import safetensors.torch
import torch
from nodes import BIN, Nodes

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="finds its processes in /proc"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    # Not pytest's own directory: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="nodes-") as path:
        started = Nodes(Path(path))
        try:
            started.start()
            yield started
        finally:
            left = started.close()
        assert not left


def test_the_command_line_joins_by_address(nodes: Nodes) -> None:
    words = ["rounds=1", "method=fedavg", "local.epochs=1", "engine=ray", f"engine.address={nodes.address}"]
    process = nodes.spawn([str(BIN / "coterie"), "run", *words, "--out", "ran"])
    assert process.wait(timeout=300) == 0, nodes.said(process)
    assert (nodes.path / "ran" / "config.yaml").read_text().count(nodes.address) == 1


def test_a_wrong_token_is_refused(nodes: Nodes) -> None:
    words = ["rounds=1", "engine=ray", f"engine.address={nodes.address}", "--out", "refused"]
    other = nodes.token("other-token")
    process = nodes.spawn([str(BIN / "coterie"), "run", *words], env={"RAY_AUTH_TOKEN_PATH": str(other)})
    assert process.wait(timeout=300) == 2, nodes.said(process)
    assert "lets us connect" in nodes.said(process)
    assert "same token" in " ".join(nodes.said(process).split())


def test_a_node_that_dies_in_a_round_changes_nothing(nodes: Nodes) -> None:
    """Its models had not been summed up yet: they are computed again on the node that is left."""
    environment = {"RAY_ADDRESS": nodes.address}
    process = nodes.spawn([sys.executable, cluster_job.__file__, str(nodes.path)], env=environment)
    nodes.wait_for(lambda: (nodes.path / "stuck").exists() or process.poll() is not None, "the second node to be busy")
    assert process.poll() is None, nodes.said(process)
    nodes.kill(node=1)
    assert process.wait(timeout=300) == 0, nodes.said(process)
    assert len((nodes.path / "visited").read_text().splitlines()) > 5  # some were done there, and lost
    assert not nodes.alive(node=1)
    found = safetensors.torch.load_file(nodes.path / "result.safetensors")
    expected = cluster_job.run("sequential", cluster_job.federation())
    assert found["missing"].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(found["assignments"].numpy(), expected.assignments)
    torch.testing.assert_close(found["centers"], expected.state, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["loss"], expected.clients.loss, rtol=1e-4, atol=1e-5)


def test_a_cluster_that_is_gone_is_told(nodes: Nodes) -> None:
    """The last test: its head is killed, too, while clients are at work."""
    notes = nodes.path / "gone"
    notes.mkdir()
    process = nodes.spawn([sys.executable, cluster_job.__file__, str(notes)], env={"RAY_ADDRESS": nodes.address})
    nodes.wait_for(lambda: (notes / "waiting").exists() or process.poll() is not None, "a client to be visited")
    assert process.poll() is None, nodes.said(process)
    nodes.kill(node=0)
    assert process.wait(timeout=300) == 1
    assert f"CoterieError: engine: the Ray cluster is gone, no answer from {nodes.address}" in nodes.said(process)
    assert "resume" in nodes.said(process).splitlines()[-1]
