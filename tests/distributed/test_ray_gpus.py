"""`engine: {name: ray, num_gpus: ...}` with real processes: Ray shares out a GPU that it was told of, and the processes
compute on the pretend accelerator in its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.utils.backend_registration as backends

import sham
from coterie.client.contract import Moment
from coterie.core.compute import Compute
from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.tasks import All, Fit, Fitted
from coterie.engines.choose import make_engine
from coterie.engines.contract import Visit
from coterie.engines.ray.engine import Ray, RayModels

ray = pytest.importorskip("ray")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "conformance")]

import pretending  # noqa: E402
import toys  # noqa: E402

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not hasattr(backends, sham.SET_UP), reason=f"this PyTorch has no {sham.SET_UP}"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Two cores, and the word that there is one GPU."""
    ray.init("local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def left(what: str) -> float:
    """How much of a resource no process has."""
    return float(ray.available_resources().get(what, 0))


@pytest.mark.parametrize(("share", "processes"), [(0.5, 2), (None, 1)])
def test_processes_share_a_gpu_and_compute_on_it(share: float | None, processes: int) -> None:
    """Half a GPU each: two; nothing said: one with all of it, whatever cores there are."""
    model, data = Model(pretending.network), toys.toy()
    visit = Visit((Fit(All(torch.zeros(model.size)), toys.LOCAL),), torch.arange(10), Moment(0, 0, 0))
    with make_engine("ray", model, data, 2, compute=Compute("cuda"), gpus=share) as engine:
        assert isinstance(engine, Ray)
        assert engine.device == "cuda"
        there = engine.visit(visit)
        taken = 2 - left("CPU"), 1 - left("GPU")
    assert not there.missing  # without the pretended GPU: this machine has no 'cuda'
    assert taken == (processes, 1)
    with make_engine("sequential", model, data, None) as engine:
        here = engine.visit(visit)
    for reply, expected in zip(there.replies, here.replies, strict=True):
        assert isinstance(reply, Fitted)
        assert isinstance(reply.sent, RayModels)
        assert isinstance(expected, Fitted)
        torch.testing.assert_close(reply.sent.gathered(), expected.theta, rtol=1e-6, atol=1e-6)


def test_more_of_a_gpu_than_there_is_is_an_error() -> None:
    made = make_engine("ray", Model(pretending.network), toys.toy(), 2, compute=Compute("cuda"), gpus=2.0)
    with pytest.raises(CoterieError, match="has 1; start its machines"), made:
        pass
