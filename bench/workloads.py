"""The papers' workloads W1-W4: real data, fixed clients and cohorts, written once as files that any contender can map.

A workload's directory holds x.npy (float32, normalised, client after client), y.npy, ends.npy (client c owns the rows
ends[c] to ends[c + 1]), cohorts.npy (who trains in round t; the rounds go round these few cohorts, so that every cohort
is timed several times), initial.npy (the first global model: parameters, then floating-point buffers) and work.json.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie import Federation, Local, federate
from coterie.core.compute import HOST, Compute
from coterie.core.model import Model
from coterie.core.registry import NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.data.partitions.by_client import IID, PowerLaw
from coterie.data.partitions.by_cluster import Rotated, Shifted
from coterie.engines.choose import Sizes, chosen, make_engine
from coterie.engines.contract import Engine
from coterie.training.build import named_model

SEED = 0
ROUNDS = 100  # of a run that `auto` chooses an engine for
FORMAT = 2  # of the files; another number, other directories


@dataclass(frozen=True)
class Workload:
    """Who trains what on which data, and for how long."""

    name: str
    title: str
    data: str
    partition: Any
    clustered: Any  # the same samples and sizes with hidden clusters, for methods that look for them; None: not used
    model: str
    per_round: int
    local: Local
    rounds: int  # measured by default
    cohorts: int = 5  # different ones; a run of any length goes round them
    params: dict[str, Any] = field(default_factory=dict)

    def federation(self, clustered: bool = False) -> Federation:
        """Its clients."""
        return federate(self.data, self.clustered if clustered else self.partition, seed=SEED)

    def network(self, federation: Federation) -> Model:
        """Its model."""
        return named_model(self.model, self.params, federation, NO_CODE)

    def drawn(self, clients: int) -> NDArray[np.int64]:
        """(cohorts, per_round) ids, ascending: who trains in round t, t + cohorts, ..."""
        rng = generator(SEED, Purpose.COHORT)
        return np.stack([np.sort(rng.choice(clients, self.per_round, replace=False)) for _ in range(self.cohorts)])

    def samples(self, n: int) -> int:
        """How many samples the local steps of a client with n samples push through the network."""
        size = n if self.local.batch == "full" else min(self.local.batch, n)
        per_epoch = math.ceil(n / size)
        if self.local.steps is None:
            return n * (self.local.epochs or 1)
        epochs, rest = divmod(self.local.steps, per_epoch)
        return epochs * n + min(rest * size, n)


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            *("W1", "MNIST, logistic regression, power-law sizes", "mnist", PowerLaw(clients=1000), None, "linear", 20),
            *(Local(epochs=20, batch=10, lr=0.03), 20, 10),
        ),
        Workload(
            *("W2", "Fashion-MNIST, BatchNorm CNN", "fashion-mnist", IID(clients=200), Shifted(clients=200), "cnn", 50),
            *(Local(steps=10, batch=32, lr=0.001, momentum=0.9), 5),
        ),
        Workload(
            *("W3", "CIFAR-10, LeNet", "cifar10", IID(clients=200), Shifted(clients=200), "lenet", 50),
            *(Local(steps=10, batch=32, lr=0.001, momentum=0.9), 5),
        ),
        Workload(
            *("W4", "rotated MNIST, MLP 784-2048-10", "mnist", Rotated(clients=1200, reuse=True), None, "mlp", 24),
            *(Local(steps=5, batch="full", lr=0.1), 5, 5, {"hidden": (2048,)}),
        ),
    )
}


class MadeUp(Workload):
    """Twelve clients with Gaussian samples, 16 x 16 images of four classes: to try a script, nothing is downloaded."""

    def federation(self, clustered: bool = False) -> Federation:
        """Its clients. clustered: half of them see images negated."""
        rng = np.random.default_rng(SEED)
        arrays = []
        for client in range(12):
            x, y = rng.normal(size=(40, 1, 16, 16)), rng.integers(4, size=40)
            x[:, 0, 0, 0] += 3 * y  # what there is to learn
            arrays.append(((-x if clustered and client % 2 else x).astype(np.float32), y))
        return Federation.from_arrays(arrays, outputs=4, seed=SEED, standardise=False, standardise_y=False)


QUICK = {
    work.name: work
    for work in (
        MadeUp(
            *("quick-dense", "made up, MLP", "", None, None, "mlp", 12, Local(steps=10, batch=8, lr=0.05), 2, 2),
            {"hidden": (32,)},
        ),
        MadeUp(
            *("quick-images", "made up, LeNet", "", None, None, "lenet", 6),
            *(Local(steps=10, batch=8, lr=0.05, momentum=0.9), 2, 2),
        ),
    )
}


def one_named(name: str) -> Workload:
    """A workload, or one that is made up."""
    return (WORKLOADS | QUICK)[name.strip()]


def named(names: str) -> list[Workload]:
    """From `W1,W3`."""
    return [one_named(name) for name in names.split(",")]


def cache() -> Path:
    """Where workloads are written."""
    return Path(platformdirs.user_cache_dir("coterie")) / "bench"


def exported(work: Workload) -> Path:
    """The directory of a workload, written if it is not there yet."""
    mark = hashlib.sha256(repr((work, SEED, FORMAT)).encode()).hexdigest()[:10]
    place = cache() / f"{work.name}-{mark}"
    if place.is_dir():
        return place
    cache().mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=cache()))
    try:
        _write(work, made)
        made.rename(place)
    except OSError:
        if not place.is_dir():  # another process may have been faster
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return place


def _write(work: Workload, to: Path) -> None:
    federation = work.federation()
    model = work.network(federation)
    sizes = federation.train.lengths.numpy()
    ends = np.concatenate([[0], np.cumsum(sizes)])
    shape = (int(ends[-1]), *federation.input_shape)
    x = np.lib.format.open_memmap(to / "x.npy", mode="w+", dtype=np.float32, shape=shape)
    y = np.empty(len(x), dtype=np.int64)
    for c in range(len(federation)):
        inputs, labels = federation.samples(c, "train")
        x[ends[c] : ends[c + 1]], y[ends[c] : ends[c + 1]] = inputs.numpy(), labels.numpy()
    x.flush()
    np.save(to / "y.npy", y)
    np.save(to / "ends.npy", ends)
    cohorts = work.drawn(len(federation))
    np.save(to / "cohorts.npy", cohorts)
    np.save(to / "initial.npy", _in_order(model.replica().load(initial(model)).network).numpy())
    flops = flops_per_sample(model.blueprint, federation.input_shape)
    about = {
        "name": work.name,
        "title": work.title,
        "data": federation.describe(),
        "model": work.model,
        "params": work.params,
        "shape": list(federation.input_shape),
        "outputs": federation.outputs,
        "parameters": model.parameters,
        "local": {key: getattr(work.local, key) for key in ("epochs", "steps", "batch", "lr", "momentum")},
        "samples": [sum(work.samples(int(sizes[c])) for c in cohort) for cohort in cohorts],
        "longest": [max(work.samples(int(sizes[c])) for c in cohort) for cohort in cohorts],
        "flops_per_sample": flops,
    }
    (to / "work.json").write_text(json.dumps(about, indent=1))


def engine_named(
    name: str,
    workers: int | None,
    model: Model,
    federation: Federation,
    local: Local,
    per_round: int,
    compute: Compute = HOST,
) -> tuple[AbstractContextManager[Engine], str]:
    """An engine as a run would make it, and what it is: `auto` says what it picked."""
    choice = chosen(name, workers, model, federation, local, Sizes(per_round, ROUNDS), compute=compute)
    if choice is not None:
        return make_engine(choice.name, model, federation, choice.workers, compute=compute), str(choice)
    return make_engine(name, model, federation, workers, compute=compute), name


def initial(model: Model) -> Tensor:
    """The first global model, the same for every contender."""
    return model.init(generator(SEED, Purpose.INIT))


def _in_order(network: nn.Module) -> Tensor:
    """All parameters, then all floating-point buffers, each with its axes in the order torch shows them."""
    buffers = [b for b in network.buffers() if b.is_floating_point()]
    return torch.cat([t.detach().reshape(-1) for t in (*network.parameters(), *buffers)])


def flops_per_sample(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiplications and additions of one sample's forward and backward pass through the matrix products.

    A layer with m multiply-adds per sample costs 2m forward, 2m for the gradient of its weights and 2m for the gradient
    of its inputs, which the first layer does not need. Normalisation, activations and pooling are not counted.
    """
    found = list(_multiply_adds(network, shape))
    return sum(6 * m for m in found) - 2 * found[0]


def _multiply_adds(network: nn.Module, shape: tuple[int, ...]) -> Iterator[int]:
    counts: list[int] = []

    def note(module: nn.Module, _inputs: Any, output: Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        places = output[0].numel() // weight.shape[0]  # 1, or the pixels that share the weights
        counts.append(weight.numel() * places)

    hooks = [m.register_forward_hook(note) for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    was = network.training
    network.eval()
    with torch.no_grad():
        network(torch.zeros(1, *shape))
    network.train(was)
    for hook in hooks:
        hook.remove()
    return iter(counts)
