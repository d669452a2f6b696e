"""Exported files: by hand, of tables and regressions, read without this library, and nothing left of a failure."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from trained import LOCAL, MODELS, federation, inputs, method, run_onnx, table, trained, translations_read_once

import coterie
from conftest import few, raises
from coterie import Federation, Local
from coterie.core.errors import CoterieWarning
from coterie.data.scale import Scale
from coterie.network.registry import ClientRegistry, RegisteredClient, Shape
from coterie.serving.export import parity
from coterie.serving.export.export import export_clusters
from coterie.training.config import read
from coterie.training.execute import execute
from coterie.training.result import Result

__all__ = ["translations_read_once"]  # a fixture of every test here
FORMATS = ("onnx", "torch", "safetensors")


def by_hand() -> Result[Any]:
    """A linear model of two columns whose numbers are set: weights (2, 1) and (-1, 0), bias (0.5, 0)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)) * (10.0, 2.0) + (100.0, 4.0)
    y = np.where(x[:, 0] > 100, "long", "short")
    table = {"length": x[:, 0], "width": x[:, 1], "who": np.arange(40) % 4, "y": y}
    data = coterie.data.from_frame(table, y="y", client="who")
    result = coterie.run("fedavg", coterie.federate(data), "linear", rounds=1, seed=0)
    with torch.no_grad():
        result.state.copy_(torch.tensor([2.0, 1.0, -1.0, 0.0, 0.5, 0.0]))
    return result


def test_a_linear_model_by_hand(tmp_path: Path) -> None:
    """z = (x - mean) / std; logits = (2 z0 + z1 + 0.5, -z0)."""
    result = by_hand()
    scale = result.scale
    assert scale is not None
    mean, std = np.asarray(scale.mean, dtype=np.float64), np.asarray(scale.std, dtype=np.float64)
    made = result.export(tmp_path / "linear.onnx")
    x = np.array([[110.0, 4.0], [85.5, 1.25], [100.0, 9.0]], dtype=np.float32)
    z = (x.astype(np.float64) - mean) / std
    wanted = np.stack([2 * z[:, 0] + z[:, 1] + 0.5, -z[:, 0]], 1)
    odds = np.exp(wanted - wanted.max(1, keepdims=True))
    logits, probabilities, label = run_onnx(made.path, x)
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
    np.testing.assert_allclose(probabilities, odds / odds.sum(1, keepdims=True), atol=1e-6)
    np.testing.assert_array_equal(label, wanted.argmax(1))


def test_onnx_says_what_it_is(tmp_path: Path) -> None:
    import onnx

    result = by_hand()
    model = onnx.load(str(result.export(tmp_path / "linear.onnx").path))
    said = {prop.key: prop.value for prop in model.metadata_props}
    assert json.loads(said["columns"]) == ["length", "width"]
    assert json.loads(said["class_names"]) == ["long", "short"]
    assert (said["cluster"], said["method"], said["task"]) == ("0", "fedavg", "classification")
    assert said["library_version"] == coterie.__version__
    assert json.loads(said["description"])["scaling"]["mean"] == pytest.approx([100, 4], abs=3)
    assert [one.name for one in model.graph.input] == ["inputs"]
    assert [one.name for one in model.graph.output] == ["logits", "probabilities", "label"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    written = (tmp_path / "linear.onnx").read_bytes()
    assert b"site-packages" not in written, "paths of the machine that has written it"
    assert str(tmp_path).encode() not in written


# ------------------------------------------------------------------------------------------------------- regression


@pytest.mark.parametrize("format", FORMATS)
def test_a_regression_comes_in_the_units_of_its_targets(format: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = []
    for _ in range(4):
        x = rng.normal(50, 9, size=(20, 3)).astype(np.float32)
        arrays.append((x, (1e6 + 2000 * x[:, :1] - 700 * x[:, 1:2]).astype(np.float32)))
    data = Federation.from_arrays(arrays, task="regression", standardise=True).prepared(targets=True)
    result = coterie.run(method("wecfl", Local(steps=20, batch=8, lr=0.1)), data, "mlp", rounds=3, seed=0)
    assert result.target_scale is not None
    made = result.export(tmp_path, client=0, format=format)
    assert made.difference is not None
    x = rng.normal(50, 9, size=(5, 3)).astype(np.float32)
    wanted = result.predict(0, x)
    assert 1e5 < np.abs(wanted).mean() < 1e7
    if format == "onnx":
        (value,) = run_onnx(made.path, x)
    elif format == "torch":
        value = torch.export.load(made.path).module()(torch.from_numpy(x)).detach().numpy()
    else:
        value = rebuilt(made.path)(torch.from_numpy(x))[0].numpy()
    np.testing.assert_allclose(value, wanted, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------------ tables


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a csv with holes and categories, in its directory."""
    folder = tmp_path_factory.mktemp("shops")
    (folder / "shops.csv").write_text("\n".join(table()) + "\n")
    words = [f"data.path={folder / 'shops.csv'}", "data.name=csv", "data.y=rating", "data.client=shop"]
    words += ["data.leave_out=[sold]", "method.name=ifca", "method.k=2", "rounds=3", "engine.name=sequential"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)  # that values are missing
        execute(read(None, words), folder / "run")
    return folder / "run"


ROWS: dict[str, list[Any]] = {
    "price": [21.5, None, 3.0, 19.25],
    "size": ["L", "S", None, "huge"],  # the last is in no training row
    "area": [3100.0, 2500.5, 2999.0, 4000.0],
}
CODED = [[21.5, 0, 3100.0], [np.nan, 2, 2500.5], [3.0, np.nan, 2999.0], [19.25, -1, 4000.0]]  # L, M, S are 0, 1, 2


@pytest.mark.filterwarnings("ignore:.*is in no training row:coterie.core.errors.CoterieWarning")
@pytest.mark.parametrize("format", FORMATS)
def test_a_table_with_holes_and_categories(format: str, shops: Path, tmp_path: Path) -> None:
    """From a run directory, without its data: numbers with NaN for holes, categories as codes, -1 for others."""
    result = coterie.load(shops)
    made = result.export(tmp_path, client="shop-1", format=format)
    wanted = result.predict("shop-1", ROWS, proba=True)
    x = np.array(CODED, dtype=np.float32)
    if format == "onnx":
        _, said, _ = run_onnx(made.path, x)
    elif format == "torch":
        _, said, _ = (t.detach().numpy() for t in torch.export.load(made.path).module()(torch.from_numpy(x)))
    else:
        _, said, _ = (t.numpy() for t in rebuilt(made.path)(torch.from_numpy(x)))
    np.testing.assert_allclose(said, wanted, atol=1e-5)


def test_the_card_of_a_table_has_the_codes_of_its_categories(shops: Path, tmp_path: Path) -> None:
    card = coterie.load(shops).export(tmp_path / "shop.safetensors", client="shop-1").files[-1].read_text()
    assert "| columns | price, size, area |" in card
    assert "| codes of size | L = 0, M = 1, S = 2; -1 for any other value |" in card
    assert "| price missing | accepted: NaN |" in card
    assert "shop-1" not in card.partition("## Configuration")[0], "names of clients are not passed on"


def test_a_fresh_process_needs_numpy_and_onnxruntime_only(shops: Path, tmp_path: Path) -> None:
    result = coterie.load(shops)
    cluster = int(result.assignments[0])
    made = result.export(tmp_path, cluster=cluster)
    code = f"""
import sys, json, numpy, onnxruntime
session = onnxruntime.InferenceSession({str(made.path)!r})
said = session.get_modelmeta().custom_metadata_map
assert json.loads(said["columns"]) == ["price", "size", "area"]
x = numpy.array({CODED[:2]!r}, dtype=numpy.float32)
probabilities = session.run(["probabilities"], {{"inputs": x}})[0]
assert "torch" not in sys.modules and "coterie" not in sys.modules
print(json.dumps([json.loads(said["class_names"]), probabilities.tolist()]))
""".replace("nan", "float('nan')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    names, probabilities = json.loads(done.stdout)
    assert tuple(names) == result.class_names == ("bad", "good")
    rows = {name: values[:2] for name, values in ROWS.items()}
    np.testing.assert_allclose(probabilities, result.predict(0, rows, proba=True), atol=1e-5)


def test_rows_that_the_library_refuses_give_nan_and_label_minus_one(tmp_path: Path) -> None:
    result = by_hand()
    made = result.export(tmp_path / "linear.onnx")
    x = np.array([[110.0, np.nan], [90.0, 3.0], [np.inf, 1.0]], dtype=np.float32)
    with raises("data-not-finite"):
        result.predict(0, x)
    logits, _, label = run_onnx(made.path, x)
    assert np.isnan(logits).all(1).tolist() == [True, False, True]
    assert label.tolist() == [-1, 1, -1]


# ------------------------------------------------------------------------- safetensors, rebuilt without this library


def rebuilt(file: Path) -> Any:
    """The model of a safetensors file by torch and JSON alone, as docs/export.md says."""
    said, tensors = json.loads(file.with_suffix(".json").read_text()), load_file(file)
    layers = said["architecture"]["layers"]

    def one(prefix: str, x: Tensor) -> Tensor:
        if not said["architecture"]["in_order"]:
            return _lstm({layer["name"]: layer for layer in layers}, tensors, prefix, x)
        network = nn.Sequential(*(getattr(nn, layer["type"])(**layer["arguments"]) for layer in layers)).eval()
        network.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        out: Tensor = network(x)
        return out

    @torch.no_grad()
    def model(x: Tensor) -> tuple[Tensor, ...]:
        x, combine = _scaled(said["scaling"], x), said["combine"]
        outputs = torch.stack([one(prefix, x) for prefix in combine["prefixes"]])
        if combine["rule"] == "mixture":
            weights = torch.tensor(combine["weights"])[:, None, None]
            out = (outputs.softmax(-1) * weights).sum(0).log()
        else:
            out = outputs.mean(0) if combine["rule"] == "average" else outputs.sum(0)
        if said["task"] == "classification":
            return out, out.softmax(1), out.argmax(1)
        target = said["target_scaling"]
        return (out.double() * torch.tensor(target["std"]) + torch.tensor(target["mean"]),) if target else (out,)

    return model


def _scaled(scaling: dict[str, Any], x: Tensor) -> Tensor:
    if scaling["kind"] == "none":
        return x
    mean, std = torch.tensor(scaling["mean"]), torch.tensor(scaling["std"])
    if scaling["kind"] == "scale":
        scaled: Tensor = (x / scaling["divisor"] - mean) / std
        return scaled
    parts: list[Tensor] = []
    for place, column in enumerate(scaling["columns"]):
        values = x[:, place]
        if column["kind"] == "number":
            parts.append(torch.where(values.isnan(), column["fill"], values))
        else:
            parts += [(values == code).float() for code in range(len(column["values"]))]
        if column["indicator"]:
            parts.append(values.isnan().float())
    return (torch.stack(parts, 1) - mean) / std


def _lstm(layers: dict[str, Any], tensors: dict[str, Tensor], prefix: str, words: Tensor) -> Tensor:
    def layer(name: str) -> nn.Module:
        made: nn.Module = getattr(nn, layers[name]["type"])(**layers[name]["arguments"])
        start = f"{prefix}{name}."
        made.load_state_dict({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})
        return made

    states, _ = layer("lstm")(layer("embedding")(words))
    last = (words != 0).sum(1).clamp(min=1) - 1
    out: Tensor = layer("head")(layer("dense")(states[torch.arange(len(words)), last]))
    return out


@pytest.mark.parametrize("model", few(MODELS, "mlp", "cnn", "lstm"))
@pytest.mark.parametrize("name", ["wecfl", "ifca-cam", "fedavg+", "fedem", "fedsoft"])
def test_safetensors_and_json_suffice_to_rebuild_a_model(name: str, model: str, tmp_path: Path) -> None:
    result = trained(name, model)
    made = result.export(tmp_path / "model.safetensors", client=2)
    assert {file.name for file in made.files} == {"model.safetensors", "model.json", "model.md"}
    x = inputs(model, 6, seed=5)
    _, probabilities, label = rebuilt(made.path)(x if model == "lstm" else x.float())
    np.testing.assert_allclose(probabilities, result.predict(2, x, proba=True), atol=1e-5)
    np.testing.assert_array_equal(label, result.predict(2, x))


# ------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.parametrize(("name", "model"), [("wecfl", "cnn"), ("fedem", "mlp"), ("ifca-cam", "lstm")])
def test_torch_export_needs_torch_only(name: str, model: str, tmp_path: Path) -> None:
    result = trained(name, model)
    made = result.export(tmp_path / "model.pt2", client=1)
    for size in (1, 7):
        x = inputs(model, size, seed=4)
        extra = {"description.json": ""}
        module = torch.export.load(made.path, extra_files=extra).module()
        _, probabilities, label = module(x if model == "lstm" else x.float())
        np.testing.assert_allclose(probabilities.detach(), result.predict(1, x, proba=True), atol=1e-5)
        np.testing.assert_array_equal(label, result.predict(1, x))
        assert json.loads(extra["description.json"])["method"] == name


def test_torch_export_holds_no_code_of_this_library(tmp_path: Path) -> None:
    made = trained("wecfl", "mlp").export(tmp_path / "model.pt2", client=1)
    with zipfile.ZipFile(made.path) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            assert name.endswith("description.json") or b"ccoterie" not in content, name
            assert b"site-packages" not in content, name
            assert b"/src/coterie/" not in content, name


# --------------------------------------------------------------------------------------------- images, and the rest


def test_bytes_of_images_are_scaled_inside(tmp_path: Path) -> None:
    result = trained("wecfl", "cnn")
    made = result.export(tmp_path, cluster=int(result.assignments[0]))
    x = inputs("cnn", 3, seed=1)
    assert int(x.max()) > 200
    np.testing.assert_array_equal(run_onnx(made.path, x.float())[2], result.predict(0, x))


def test_all_clusters_at_once(tmp_path: Path) -> None:
    result = trained("given", "linear")
    made = export_clusters(result, tmp_path / "deep" / "models", format="safetensors")
    assert [one.cluster for one in made] == [0, 1]
    assert sorted(p.name for p in (tmp_path / "deep" / "models").iterdir()) == [
        *("cluster-0.json", "cluster-0.md", "cluster-0.safetensors"),
        *("cluster-1.json", "cluster-1.md", "cluster-1.safetensors"),
    ]
    assert all(file.is_file() for one in made for file in one.files)


def test_a_file_that_differs_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = parity.reference
    monkeypatch.setattr(parity, "reference", lambda *args: tuple(t + 1 for t in true(*args)))
    with raises("export-parity", match="model.safetensors differs"):
        trained("given", "linear").export(tmp_path / "new" / "place" / "model.safetensors", cluster=0)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_of_a_later_cluster_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").write_text("stays")
    seen: list[str] = []

    def fails_later(read: Any, chosen: Any, where: str) -> float:
        seen.append(where)
        return 0.0 if len(seen) == 1 else true(lambda x: (x,), chosen, where)

    true = parity.check
    monkeypatch.setattr("coterie.serving.export.export.check", fails_later)
    with pytest.raises((coterie.CoterieError, ValueError)):
        export_clusters(trained("given", "linear"), tmp_path, format="safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


class Branches(nn.Module):
    """A network that torch.export cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Depends on a value."""
        out: Tensor = self.layer(x if float(x.sum()) > 0 else -x)
        return out


def test_a_network_that_cannot_be_traced_is_told_with_a_way_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(8, 3)).astype(np.float32), rng.integers(0, 2, 8)) for _ in range(2)]
    result = coterie.run("fedavg", data, Branches, rounds=1)
    with raises("export-failed", match="cannot trace.*--format safetensors"):
        result.export(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    result.export(tmp_path / "model.safetensors")
    said = json.loads((tmp_path / "model.json").read_text())
    assert (said["architecture"]["name"], said["architecture"]["in_order"]) == ("Branches", False)


def test_statistics_of_the_batch_are_refused(tmp_path: Path) -> None:
    model = coterie.zoo.CNN(channels=(2, 3), batch_statistics=4)
    result = coterie.run(coterie.FedAvg(local=LOCAL), federation("cnn"), model, rounds=1)
    with raises("export-unsupported", match="depends on the other samples"):
        result.export(tmp_path / "model.onnx")


def test_what_is_asked_for_must_be_clear(tmp_path: Path) -> None:
    result = trained("given", "linear")
    with raises("argument-missing", match="--cluster 0, --all or --client"):
        result.export(tmp_path / "model.onnx")
    with raises("argument-conflict"):
        result.export(tmp_path / "model.onnx", cluster=0, client=0)
    with raises("cluster-unknown", match="export: cluster 7, but there are 2"):
        result.export(tmp_path / "model.onnx", cluster=7)
    with raises("argument-conflict", match=r"write \.onnx"):
        result.export(tmp_path / "model.pt2", cluster=0, format="onnx")
    with raises("argument-invalid", match="Did you mean 'onnx'"):
        result.export(tmp_path, cluster=0, format="onx")
    with raises("client-unknown"):
        result.export(tmp_path, client="nobody")
    assert list(tmp_path.iterdir()) == []


def test_clients_scaled_in_two_ways_have_no_file_in_common(tmp_path: Path) -> None:
    one, two = federation("linear"), federation("linear")
    domain = dataclasses.replace(two.domains[0], scale=Scale(1.0, 19.0, 4.0))
    two = dataclasses.replace(two, domains=(domain,))
    both = Federation.join([one, two], "both")
    result = coterie.run("fedavg", both, "linear", rounds=1)
    with raises("result-ambiguous", match="scaled in 2 ways.*--client"):
        result.export(tmp_path / "model.safetensors")
    for client in (0, 5):
        made = result.export(tmp_path, client=client, format="safetensors")
        x = inputs("linear", 3, seed=2)
        np.testing.assert_allclose(rebuilt(made.path)(x)[1], result.predict(client, x, proba=True), atol=1e-5)


def test_over_a_network_the_inputs_are_those_that_clients_have_scaled(tmp_path: Path) -> None:
    """The server has models and shapes, no data: as after `coterie server`."""
    here = trained("given", "linear")
    clients = [RegisteredClient(f"client-{i}", 7, 3) for i in range(4)]
    shape = Shape((3,), "classification", 2, "length, width, height", "no, yes")
    result = dataclasses.replace(here, known=ClientRegistry(known=clients, shape=shape))
    by_name = result.export(tmp_path, client="client-1", format="safetensors")
    assert (by_name.client, by_name.cluster, by_name.path.name) == ("client-1", 1, "client-client-1.safetensors")
    said = json.loads(by_name.path.with_suffix(".json").read_text())
    assert said["scaling"] == {"kind": "by-clients"}
    assert (said["columns"], said["class_names"]) == (["length", "width", "height"], ["no", "yes"])
    card = by_name.files[-1].read_text()
    assert "classification, 2 classes" in card
    assert "which is not here" in card
    made = result.export(tmp_path, cluster=1, format="torch")
    x = torch.randn(4, 3)
    logits, _, _ = torch.export.load(made.path).module()(x)
    torch.testing.assert_close(logits, here.network(1)(x).detach())
