"""Which device a run computes on, what of it is recorded, and in which precision networks compute."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import coterie
import sham
from conftest import ROOT, linear, make_federation, raises
from coterie.client.training import LossScale, train
from coterie.core.compute import HOST, Compute, determinism, find_device
from coterie.core.model import Model
from coterie.core.seeds import Purpose, generator
from coterie.core.tasks import Local
from coterie.engines.choose import Sizes, chosen
from coterie.engines.ray.engine import ActorResources, on_gpus
from coterie.engines.sequential import Sequential
from coterie.training.beginning import began_otherwise, recorded_device
from coterie.training.config import RunConfig, read
from coterie.training.execute import execute

needs_sham = pytest.mark.skipif(not sham.register(), reason=f"this PyTorch has no {sham.SET_UP}")
WORDS = ["method=fedavg", "rounds=1", "local.epochs=1"]


def test_a_device_that_is_not_there_is_an_error() -> None:
    with raises("device-unavailable", match=r"no 'cuda:7' .* it has cpu.* or auto"):
        find_device("cuda:7")
    with raises("device-unavailable", match="no 'toaster'"):
        coterie.run("fedavg", make_federation(), linear().build, rounds=1, device="toaster")
    with raises("config-invalid-value", match="device: expected a device: auto, cpu"):
        read(None, ["device=GPU 0"])
    with raises("config-invalid-value", match="precision"):
        read(None, ["precision=int4"])


def test_auto_is_the_cpu_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.core.compute._count", lambda kind: 0)
    assert Compute().resolved() == HOST
    monkeypatch.setattr("coterie.core.compute._count", lambda kind: 2 if kind == "cuda" else 0)
    monkeypatch.setattr("coterie.core.compute._current", lambda kind: 1)
    assert [Compute(d).resolved().device for d in ("auto", "cuda", "cuda:0", "cpu")] == [
        "cuda:1",
        "cuda:1",
        "cuda:0",
        "cpu",
    ]
    monkeypatch.setattr("coterie.core.compute._count", lambda kind: 1 if kind == "mps" else 0)
    assert Compute().resolved().device == "mps"


@needs_sham
def test_the_device_stands_in_the_run(tmp_path: Path) -> None:
    result = execute(read(None, [*WORDS, "device=sham", "engine=sequential"]), tmp_path / "a")
    assert json.loads((tmp_path / "a" / "run.json").read_text())["device"] == "sham:0"
    assert yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())["device"] == "sham:0"
    assert result.summary.accuracy is not None
    assert recorded_device(tmp_path / "a") == "sham:0"
    execute(read(None, [*WORDS, "device=cpu"]), tmp_path / "b")
    assert yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())["device"] == "cpu"
    (said,) = began_otherwise(tmp_path / "a", "sequential", "cpu")
    assert "began on the device 'sham:0' and continues on 'cpu'" in said
    assert not list(began_otherwise(tmp_path / "a", "sequential", "sham:1"))


def test_a_run_of_before_continues_on_the_cpu(tmp_path: Path) -> None:
    tree = {key: value for key, value in RunConfig().dump().items() if key not in ("device", "precision", "compile")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    assert read(tmp_path / "config.yaml").device == "auto"
    (tmp_path / "run.json").write_text("{}")
    assert read(tmp_path / "config.yaml").device == "cpu"
    assert recorded_device(tmp_path) == "cpu"


def test_an_engine_that_is_passed_has_its_device() -> None:
    data = make_federation()
    engine = Sequential(linear(), data)
    with raises("config-conflict", match="the engine that was passed has its own"):
        coterie.run("fedavg", data, linear().build, rounds=1, engine=engine, device="cpu")


def test_an_accelerator_gets_one_process() -> None:
    data, big = make_federation(40), Sizes(40, 10**9)
    on_cpu, on_device = (
        chosen("auto", None, linear(), data, Local(), big, compute=Compute(device)) for device in ("cpu", "cuda:0")
    )
    assert on_cpu is not None
    assert on_device is not None
    assert (on_device.name, on_device.workers) == ("batched", 1)
    assert on_cpu.name == "batched"


# -------------------------------------------------------------------------------------------------------------- Ray


@pytest.mark.parametrize(
    ("device", "share", "gpus", "expected"),
    [
        ("auto", None, 0, ("cpu", 0.0)),
        ("auto", None, 2, ("cuda", 1.0)),
        ("auto", 0.25, 2, ("cuda", 0.25)),
        ("cuda", 0.5, 1, ("cuda", 0.5)),
        ("cpu", None, 4, ("cpu", 0.0)),
    ],
)
def test_rays_processes_share_gpus(device: str, share: float | None, gpus: int, expected: tuple[str, float]) -> None:
    compute, found = on_gpus(Compute(device), share, {"CPU": 8, "GPU": gpus})
    assert (compute.device, found) == expected


def test_rays_processes_are_as_many_as_there_is_room_for() -> None:
    cluster = {"CPU": 8.0, "GPU": 1.0}
    assert [ActorResources(None, 2).most(cluster, gpus) for gpus in (0.0, 1.0, 0.25, 0.1)] == [8, 1, 4, 8]
    assert [ActorResources(3, 2).most(cluster, gpus) for gpus in (0.0, 1.0, 0.25)] == [3, 1, 3]
    with raises("device-unavailable", match="each process is to have 1 of a GPU, and the Ray cluster has 0"):
        on_gpus(Compute("cuda"), None, {"CPU": 8})
    for device, share in (("cuda:1", None), ("cpu", 0.5)):
        with raises("config-conflict", match="Ray gives each process its GPU"):
            on_gpus(Compute(device), share, cluster)
    assert read(None, ["engine=ray", "engine.num_gpus=0.5"]).engine.num_gpus == 0.5
    with raises("config-invalid-value", match="num_gpus is of Ray's processes"):
        read(None, ["engine=workers", "engine.num_gpus=0.5"])


# ------------------------------------------------------------------------------------- precision, compile, determinism


def trained(compute: Compute, lr: float = 0.1) -> tuple[torch.Tensor, set[torch.dtype]]:
    """A network after a few steps, and the types that it computed in."""
    seen: set[torch.dtype] = set()
    model = Model(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    replica = model.replica(compute).load(model.init(generator(0, Purpose.INIT)))
    replica.network[0].register_forward_hook(lambda m, i, out: seen.add(out.dtype) or None)  # type: ignore[func-returns-value,index]
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(20, 4, generator=rng), torch.randint(3, (20,), generator=rng)
    device = compute.device
    train(replica, x.to(device), y.to(device), Local(steps=8, batch=5, lr=lr), generator(0, Purpose.BATCHES))
    assert replica.logits(x.to(device)).dtype == torch.float32
    return replica.theta.cpu(), seen


@needs_sham
@pytest.mark.parametrize("device", ["cpu", "sham"])
def test_networks_compute_in_the_precision_that_is_asked_for(device: str) -> None:
    full, seen = trained(HOST)
    assert seen == {torch.float32}
    for precision, dtype, within in (("bf16", torch.bfloat16, 3e-2), ("fp16", torch.float16, 4e-3)):
        low, seen = trained(Compute(device, precision))  # type: ignore[arg-type]
        assert (seen, low.dtype) == ({dtype}, torch.float32)
        assert 0 < float((low - full).abs().max()) < within


def test_a_gradient_that_overflows_is_left_out_and_scaled_less() -> None:
    replica = linear().replica().load(torch.ones(4))
    scale = LossScale()

    def loss() -> torch.Tensor:
        return replica.outputs(torch.tensor([[1.0, 1.0]])).sum() * 1e34

    assert scale.gradient(replica, loss()) is None  # 65,536 times 1e34 is too large for single precision
    assert scale.scale == 2.0**15
    found = scale.gradient(replica, loss())
    assert found is not None
    torch.testing.assert_close(found[0], torch.full((2, 2), 1e34))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.slow
def test_a_compiled_network_learns_the_same(recwarn: Any) -> None:
    torch.testing.assert_close(trained(Compute("cpu", compile=True))[0], trained(HOST)[0], rtol=1e-4, atol=1e-5)


def test_determinism_is_asked_of_torch_for_the_run_only() -> None:
    seen: list[bool] = []
    data = make_federation()
    for wanted in (False, True):
        coterie.run(
            *("fedavg", data, linear().build),
            rounds=1,
            deterministic=wanted,
            listeners=[lambda _: seen.append(torch.are_deterministic_algorithms_enabled())],
        )
        assert set(seen) == {wanted}
        seen.clear()
    assert not torch.are_deterministic_algorithms_enabled()
    with determinism(True), pytest.raises(RuntimeError, match="zap"):
        raise RuntimeError("zap")
    assert not torch.are_deterministic_algorithms_enabled()


@needs_sham
@pytest.mark.exhaustive
def test_the_script_for_a_real_accelerator_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import accelerator

    out = tmp_path / "new" / "numbers.json"

    def run(device: str) -> dict[str, Any]:
        accelerator.main(device, "", 1, "float32", peers=False, quickly=True, out=out)
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    found = run("sham")
    assert found["device"] == "sham:0"
    for row in found["workloads"].values():
        assert row["agrees"]
        assert row["same_bits_again"]
        assert row["relative_difference"] < 1e-3  # the bound of the script
        assert set(row["seconds"]) == {"cpu", "sham:0", "sham:0, one by one"}
    assert set(found["workloads"]) == {"quick-dense", "quick-images"}
    assert {"fedavg", "ifca", "wecfl"} <= set(found["clustered"]["quick-dense"])  # W5
    with pytest.raises(SystemExit, match="no accelerator here"):
        run("auto")


@pytest.mark.exhaustive
def test_the_script_times_other_libraries_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a plain loop in their place: it needs no environment of its own. A second GPU is the only one they see."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import accelerator
    import workloads

    monkeypatch.setattr(workloads, "cache", lambda: tmp_path / "cache")
    work, seen = workloads.QUICK["quick-dense"], {}
    found = accelerator.against_peers(work, "plain", 1, tmp_path, tmp_path, "cpu")
    (told,) = [one["about"] for one in found["contenders"].values() if "about" in one]
    assert (told["device"], len(found["contenders"]["plain"]["rounds"])) == ("cpu", 1)

    def race(*_: object, **__: object) -> dict[str, Any]:
        seen.update({name: os.environ.get(name) for name in ("BENCH_DEVICE", "CUDA_VISIBLE_DEVICES")})
        return {}

    monkeypatch.setattr(accelerator, "race", race)
    accelerator.against_peers(work, "plain", 1, tmp_path, tmp_path, "cuda:1")
    assert seen == {"BENCH_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "1"}
    assert "BENCH_DEVICE" not in os.environ
