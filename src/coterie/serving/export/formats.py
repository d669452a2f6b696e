"""The three kinds of files: how each is written, and how somebody without this library reads it."""

from __future__ import annotations

import copy
import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.serving.export.description import INPUTS, Description, tensors_of
from coterie.serving.export.graph import Exported, as_graph
from coterie.serving.export.selection import Selected

Format: TypeAlias = Literal["onnx", "safetensors", "torch"]
ENDINGS: dict[str, str] = {"onnx": ".onnx", "safetensors": ".safetensors", "torch": ".pt2"}
OPSET = 18  # understood by onnxruntime 1.14 and later
LARGEST = 1_900_000_000  # bytes: a file of ONNX that holds its weights ends at 2 GB
KEYS = (
    "columns",
    "class_names",
    "cluster",
    "client",
    "run",
    "method",
    "task",
    "library_version",
)  # in ONNX, one by one
Outputs: TypeAlias = tuple[Tensor, ...]


class Reader(Protocol):
    """A written file, used as others will use it."""

    def __call__(self, inputs: Tensor) -> Outputs: ...


@dataclass(frozen=True)
class Written:
    """A file that was written, and how to read it; by what, in words. None: what reads it is not installed."""

    read: Reader | None
    by: str


def write(format: Format, graph: Exported, chosen: Selected, said: Description, file: Path) -> Written:
    """Write one file, and what belongs beside it."""
    if format == "safetensors":
        return _write_safetensors(chosen, said, file)
    program = _program(graph, chosen)
    return _write_onnx(program, said, file) if format == "onnx" else _write_torch(program, said, file)


def example(chosen: Selected) -> Tensor:
    """Two samples to trace with: of one, torch would conclude that there is always one."""
    return torch.zeros(2, *chosen.shape, dtype=chosen.dtype)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch says to those who work on its exporter."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")  # "torchvision is not installed"
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Torch's own use of what it deprecates; the views of its weights that an LSTM makes while it is traced.
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            warnings.filterwarnings("ignore", r"(?s)The tensor attributes .*_flat_weights", UserWarning)
            yield
    finally:
        log.setLevel(level)


def _program(graph: Exported, chosen: Selected) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    try:
        with _quietly(), torch.no_grad():
            return torch.export.export(graph, (example(chosen),), dynamic_shapes={INPUTS: {0: batch}})
    except Exception as error:  # a user's network may raise anything while it is traced
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise CoterieError(
            f"export: torch.export cannot trace this network ({type(error).__name__}: {first}); in its forward write "
            "x.shape[0] instead of len(x), and no branches on values; or write --format safetensors",
            code="export-failed",
        ) from error


# ---------------------------------------------------------------------------------------------------- ONNX


def need_onnx() -> None:
    """Refuse early where the packages that write ONNX are not installed."""
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise CoterieError(
                f"export: --format onnx needs {package}: pip install 'coterie[onnx]'; or write --format torch",
                code="extra-missing",
            ) from None


def _write_onnx(program: torch.export.ExportedProgram, said: Description, file: Path) -> Written:
    need_onnx()
    if sum(t.numel() * t.element_size() for t in program.state_dict.values()) > LARGEST:
        raise CoterieError(
            "export: a model of 2 GB or more does not fit into one file of ONNX; write --format safetensors or torch",
            code="export-unsupported",
        )
    made = _as_onnx(program, said)
    for node in made.model.graph:
        node.metadata_props.clear()  # stack traces with the paths of this machine
    tree = said.to_json()
    for key in KEYS:
        if tree[key] is not None:
            made.model.metadata_props[key] = tree[key] if isinstance(tree[key], str) else json.dumps(tree[key])
    made.model.metadata_props["description"] = json.dumps(tree)
    made.model.producer_name, made.model.producer_version = "coterie", said.library_version
    made.save(str(file), external_data=False)
    return Written(_onnx_reader(file, said.outputs), "onnxruntime")


def _as_onnx(program: torch.export.ExportedProgram, said: Description) -> Any:
    try:
        with _quietly():
            return torch.onnx.export(
                program,
                dynamo=True,
                input_names=[INPUTS],
                output_names=list(said.outputs),
                dynamic_shapes={INPUTS: {0: "batch"}},
                opset_version=OPSET,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise _not_as_onnx(error) from error


def _not_as_onnx(error: Exception) -> CoterieError:
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return CoterieError(
        f"export: this network cannot be written as ONNX ({type(error).__name__}: {first}); write --format torch or "
        "safetensors",
        code="export-failed",
    )


def _onnx_reader(file: Path, outputs: Sequence[str]) -> Reader | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own kinds, which have no public name
        raise _not_as_onnx(error) from error

    def read(inputs: Tensor) -> Outputs:
        found = session.run(list(outputs), {INPUTS: inputs.numpy()})
        return tuple(torch.from_numpy(one) for one in found)

    return read


# --------------------------------------------------------------------------------------------------- torch


def _write_torch(program: torch.export.ExportedProgram, said: Description, file: Path) -> Written:
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # with the paths of this machine
    torch.export.save(program, str(file), extra_files={"description.json": json.dumps(said.to_json())})
    again = torch.export.load(str(file)).module()

    def read(inputs: Tensor) -> Outputs:
        found = again(inputs)
        return found if isinstance(found, tuple) else (found,)

    return Written(read, "torch.export.load")


# --------------------------------------------------------------------------------------------- safetensors


def _write_safetensors(chosen: Selected, said: Description, file: Path) -> Written:
    # Not `save_file`, whose files only their owner can read.
    file.write_bytes(save(tensors_of(chosen.network), {"format": "pt", "description": file.stem + ".json"}))
    beside = file.with_suffix(".json")
    beside.write_text(json.dumps(said.to_json(), indent=1) + "\n", encoding="utf-8")
    tensors = load_file(str(file))
    again = as_graph(_filled(chosen.network, tensors), chosen.loss, chosen.scale, chosen.target, graph_dtype(chosen))

    def read(inputs: Tensor) -> Outputs:
        with torch.inference_mode():
            found = again(inputs)
        return found if isinstance(found, tuple) else (found,)

    return Written(read, "the tensors read back")


def _filled(network: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A copy of the network with these tensors, of which none may be missing or left over."""
    other = copy.deepcopy(network)
    mine = {name: t for name, t in other.state_dict().items() if name != "mixture"}
    if set(mine) != set(tensors):
        raise CoterieError("export: the file does not hold the network's tensors", code="export-failed")
    with torch.no_grad():
        for name, t in mine.items():
            t.copy_(tensors[name])
    return other


def graph_dtype(chosen: Selected) -> torch.dtype:
    """Of scaled inputs: that of the network's own numbers."""
    return next((p.dtype for p in chosen.network.parameters()), torch.get_default_dtype())
