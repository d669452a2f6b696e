"""Shared by the tests: which of them are for every day, and which need an extra; a tiny model and federation."""

from __future__ import annotations

import importlib.util
import re
import signal
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.objective import Loss
from coterie.core.registry import METHODS
from coterie.data.federation import Federation, Samples
from coterie.data.scale import TargetScale

ROOT = Path(__file__).parent.parent  # of the repository
PAPERS = list(METHODS.places)
TOLD = ("given", "oracle")  # which are told the clusters: they need data that has them, and a simulation
UNTOLD = [name for name in PAPERS if name not in TOLD]


def pytest_configure() -> None:
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: Ctrl-C means nothing there
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # No deadline: the machine may be busy. Derandomised: a red test is red again.
    settings.register_profile("coterie", deadline=None, max_examples=50, derandomize=True)
    settings.load_profile("coterie")


# They compute on the pretend device (tests/sham.py), which changes PyTorch for the rest of its process.
APART = ("devices", "conformance/test_on_devices.py", "network/test_client_device.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests that need processes of their own are collected only where they are named: see the Makefile."""
    here = Path(__file__).parent
    apart = next((here / name for name in APART if collection_path.is_relative_to(here / name)), None)
    named = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    return True if apart is not None and not any(one.is_relative_to(apart) for one in named) else None


@contextmanager
def raises(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[CoterieError]]:
    """`pytest.raises` for the library's own error with this code. match: what of the message matters besides."""
    with pytest.raises(CoterieError, match=match) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"


# ----------------------------------------------------------------------- what `make test` leaves to `make test-all`


def few(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Values of a parameter, of which `make test` takes these only; with the others a test is `exhaustive`."""
    values = list(values)
    assert all(value in values for value in kept), f"{kept} are not all among {values}"
    return [value if value in kept else pytest.param(value, marks=pytest.mark.exhaustive) for value in values]


def examples(few: int, many: int, *strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """As `given`: a property, of which `make test` tries a few examples and `make test-all` many."""

    def decorate(check: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.exhaustive)])
        def test(count: int) -> None:
            settings(max_examples=count)(given(*strategies)(check))()

        return test

    return decorate


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="I/N", help="of the exhaustive tests, only the I-th of N parts, from 0")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the combinations of a test marked `covering`, all are `exhaustive` but a few with every value of every
    parameter among them; of the exhaustive ones `--part` takes those of one part."""
    grids: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and "covering" in marks and "exhaustive" not in marks:
            grids[item.nodeid.partition("[")[0]].append(item)
    for grid in grids.values():
        for item in uncovering(grid):
            item.add_marker("exhaustive")
    if (part := config.getoption("--part")) is not None:
        number, parts = map(int, part.split("/"))
        mine = [item for item in items if _part(item, parts) in (None, number)]
        config.hook.pytest_deselected(items=[item for item in items if _part(item, parts) not in (None, number)])
        items[:] = mine


def _part(item: pytest.Item, parts: int) -> int | None:
    """The part that an exhaustive test belongs to, the same in every process; None for any other test."""
    if item.get_closest_marker("exhaustive") is None:
        return None
    return zlib.crc32(item.nodeid.encode()) % parts


def uncovering(grid: list[pytest.Function]) -> list[pytest.Function]:
    """The combinations without which every value still occurs."""
    values = {item: {(name, id(value)) for name, value in item.callspec.params.items()} for item in grid}
    used = Counter(dict.fromkeys(set.union(*values.values()), 0))
    rest = list(grid)
    while not all(used.values()):
        # As many new values as can be, and of the others those that were used least.
        best = min(rest, key=lambda item: sorted(used[value] for value in values[item]))
        used.update(values[best])
        rest.remove(best)
    return rest


# ---------------------------------------------------------------------------------------- extras that are not installed

EXTRAS = {
    "plot": ("matplotlib",),
    "parquet": ("pyarrow",),
    "huggingface": ("datasets",),
    "transformers": ("transformers", "tokenizers", "peft"),
    "torchvision": ("torchvision",),
    "ray": ("ray",),
    "flower-datasets": ("flwr_datasets",),
    "flower": ("flwr", "cryptography"),
    "sweep": ("optuna",),
    "report": ("plotly", "jinja2", "kaleido", "choreographer"),
    "dashboard": ("starlette", "uvicorn"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy"),
    "wandb": ("wandb",),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
}


def missing_extra(error: BaseException) -> str | None:
    """The extra without which a test could not but fail: named by the error, or by the module that was not found."""
    named = re.search(r"coterie\[([\w-]+)\]", str(error))
    module = (error.name or "") if isinstance(error, ImportError) else ""
    for extra, modules in EXTRAS.items():
        asked = (named is not None and named[1] == extra) or module.startswith(modules)
        if asked and any(importlib.util.find_spec(one) is None for one in modules):
            return extra
    return None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """A test that fails because an extra is not installed is skipped, with the extra's name."""
    try:
        return (yield)
    except Exception as error:
        extra = missing_extra(error)
        if extra is None:
            raise
        pytest.skip(f"the extra `{extra}` is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
    """Likewise where a fixture needs the extra."""
    try:
        return (yield)
    except Exception as error:
        extra = missing_extra(error)
        if extra is None:
            raise
        pytest.skip(f"the extra `{extra}` is not installed")


# ------------------------------------------------------------------------------------------------- models and clients


def linear(inputs: int = 2, outputs: int = 2, *, bias: bool = False, loss: Loss = "cross_entropy") -> Model:
    """One linear layer: its vector is the weight matrix row by row, then the bias."""
    return Model(partial(nn.Linear, inputs, outputs, bias=bias), loss)


def vector(*numbers: float) -> Tensor:
    """A float tensor (n,)."""
    return torch.tensor(numbers, dtype=torch.float32)


@dataclass(frozen=True, eq=False)
class Data:
    """What lies at one client, without a federation around it."""

    train: Samples
    test: Samples
    target: TargetScale | None = None

    @property
    def target_mean(self) -> Tensor:
        """The mean of the training targets."""
        return self.train[1].double().reshape(len(self.train[1]), -1).mean(0)


def column(inputs: list[float], labels: list[int] | list[float]) -> Data:
    """Samples of one feature; the same to train and to test on."""
    samples = vector(*inputs)[:, None], torch.tensor(labels)
    return Data(samples, samples)


def make_federation(clients: int = 4, samples: int = 10, seed: int = 0) -> Federation:
    """Two features; the label is whether the first is positive or, for the second half of the clients, negative."""
    rng = np.random.default_rng(seed)
    truth = [client * 2 // clients for client in range(clients)]
    arrays = []
    for cluster in truth:
        x = rng.normal(size=(samples, 2))
        arrays.append((x, ((x[:, 0] > 0) != bool(cluster)).astype(np.int64)))
    return Federation.from_arrays(arrays, truth=truth, outputs=2, seed=seed, standardise=False)


@pytest.fixture
def tiny_federation() -> Callable[..., Federation]:
    """The factory `make_federation(clients, samples, seed)`."""
    return make_federation


@pytest.fixture
def tiny_model() -> Model:
    """Two inputs, two classes, no bias: four numbers."""
    return linear()
