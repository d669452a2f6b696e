"""The manifests for KubeRay: what its ray.io/v1 types require is there, and names that must agree do.

Neither a Kubernetes cluster nor KubeRay's schema is at hand here: this checks structure, not whether it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.training.config import read

DEPLOY = Path(__file__).parent.parent / "deploy" / "ray"
Tree = dict[str, Any]


def documents(name: str) -> list[Tree]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def clusters() -> Iterator[tuple[str, Tree]]:
    (cluster,) = documents("raycluster.yaml")
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    yield "raycluster", cluster["spec"]
    _, job = documents("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    yield "rayjob", job["spec"]["rayClusterSpec"]


def pods(spec: Tree) -> list[Tree]:
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


@pytest.mark.parametrize(("name", "spec"), [*clusters()], ids=["raycluster", "rayjob"])
def test_what_the_operator_requires_is_there(name: str, spec: Tree) -> None:
    assert set(spec) <= {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert spec["authOptions"] == {"mode": "token"}
    head, (workers,) = spec["headGroupSpec"], spec["workerGroupSpecs"]
    assert set(head) == {"rayStartParams", "template"}
    assert set(workers) == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (head, workers):  # a map of text to text: `num-cpus: 0` would be refused
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@pytest.mark.parametrize(("name", "spec"), [*clusters()], ids=["raycluster", "rayjob"])
def test_pods_hold_one_image_and_what_they_ask_for(name: str, spec: Tree) -> None:
    containers = [container for pod in pods(spec) for container in pod["containers"]]
    assert [c["name"] for c in containers] == ["ray-head", "ray-worker"]
    assert len({c["image"] for c in containers}) == 1
    for container in containers:
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert all(isinstance(variable["value"], str) for variable in container.get("env", ()))
    for pod in pods(spec):
        mounts = {m["name"] for c in pod["containers"] for m in c.get("volumeMounts", ())}
        assert mounts == {v["name"] for v in pod.get("volumes", ())}


def test_image_and_manifests_speak_of_the_same_versions() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    found = re.search(r"FROM rayproject/ray:([\d.]+)-", text)
    assert found is not None
    for _, spec in clusters():
        assert spec["rayVersion"] == found[1]
        assert f"-t {pods(spec)[0]['containers'][0]['image']} " in text


def test_the_job_runs_a_configuration_that_is_one(tmp_path: Path) -> None:
    config, job = documents("rayjob.yaml")
    (tmp_path / "run.yaml").write_text(config["data"]["run.yaml"])
    engine = read(tmp_path / "run.yaml").engine
    assert (engine.name, engine.address) == ("ray", "auto")
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    mounted = {m["name"]: m["mountPath"] for m in head["containers"][0]["volumeMounts"]}
    assert {v["name"]: v for v in head["volumes"]}["run"]["configMap"]["name"] == config["metadata"]["name"]
    assert job["spec"]["entrypoint"] == f"coterie run {mounted['run']}/run.yaml --out {mounted['results']}/run"
