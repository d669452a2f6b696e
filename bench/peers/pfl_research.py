# mypy: ignore-errors
"""pfl-research 0.6 (package `pfl`), its SimulatedBackend with one or two processes.

Two processes are pfl's own way to use more cores: `torch.distributed` with gloo, found through PFL_WORKER_ADDRESSES.
Rank 0 talks to the harness and tells rank 1 when a round begins. pfl trains a user's batches in their order (it does
not shuffle) and averages trainable parameters only, so BatchNorm's running statistics stay local: both as it ships.
`user_id_to_weight` lets it deal users to processes by size, which is its remedy for stragglers.
The loss it reports is the mean over the steps of rank 0, not over clients as elsewhere.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from itertools import count

import numpy as np
import torch
from common import DEVICE, Harness, Work, settle, travelled
from torch import nn
from torch.nn import functional


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return int(s.getsockname()[1])


def start_second(place: str) -> subprocess.Popen[bytes]:
    """Rank 1, and the environment that makes this process rank 0."""
    os.environ["PFL_WORKER_ADDRESSES"] = f"localhost:{free_port()},localhost:{free_port()}"
    os.environ["PFL_WORKER_RANK"] = "0"
    second = {**os.environ, "PFL_WORKER_RANK": "1"}
    return subprocess.Popen([sys.executable, __file__, place, "2"], env=second, stdin=subprocess.DEVNULL, stdout=2)


class Trained(nn.Module):
    """The network with the two methods pfl wants of it; remembers the losses for the harness."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.total, self.steps = torch.zeros((), device=DEVICE), 0

    def loss(self, x, y):
        """What is minimised."""
        self.train()
        found = functional.cross_entropy(self.network(x), y)
        self.total += found.detach()
        self.steps += 1
        return found

    def metrics(self, x, y):
        """Nothing: this is no evaluation."""
        return {}


def main(place: str, processes: int) -> None:
    """Serve rounds."""
    rank = int(os.environ.get("PFL_WORKER_RANK", "0"))
    os.environ["PFL_PYTORCH_DEVICE"] = str(DEVICE)
    harness, work = Harness(), Work.load(place)
    if processes > 1 and "PFL_WORKER_ADDRESSES" not in os.environ:
        start_second(place)
    np.random.seed(0)  # pfl wants the same central randomness in every process
    torch.manual_seed(rank)

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import federated_dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    # How far ahead its sampling process works; ten thousand users by default, which keeps both cores busy for seconds.
    federated_dataset._INITIAL_USER_SAMPLES_CACHE_SIZE = 5 * len(work.cohort(0))

    class Going(PyTorchTensorDataset):
        """Goes round its batches until the steps are done; pfl's own stops after one epoch."""

        def iter(self, batch_size):
            while True:
                yield from super().iter(batch_size)

    class Users:
        """The cohorts, one user after another."""

        def __init__(self) -> None:
            self.rounds, self.left = count(), []

        def __call__(self) -> int:
            if not self.left:
                self.left = list(work.cohort(next(self.rounds)))
            return self.left.pop(0)

    class Gate(TrainingProcessCallback):
        """Between rounds: answers the harness and waits for its word, in all processes."""

        def __init__(self, trained: Trained) -> None:
            self.trained, self.began = trained, 0.0

        def _next(self) -> bool:
            more = torch.tensor([1.0 if rank == 0 and harness.wait() else 0.0])
            if processes > 1:
                torch.distributed.broadcast(more, 0)
            self.began = time.perf_counter()
            self.trained.total.zero_()
            self.trained.steps = 0
            return bool(more)

        def on_train_begin(self, *, model):
            if rank == 0:
                harness.ready(processes=processes)
            if not self._next():
                sys.exit(0)
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            settle()
            if rank == 0:
                seconds = time.perf_counter() - self.began
                loss = float(self.trained.total) / max(self.trained.steps, 1)
                harness.done(seconds, loss, travelled(self.trained, work))
            return not self._next(), Metrics()

    trained = Trained(work.network())
    model = PyTorchModel(
        trained,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=work.momentum),
        torch.optim.SGD(trained.parameters(), lr=1.0),
    )
    batch = work.about["local"]["batch"]
    size = None if batch == "full" else int(batch)
    kind = PyTorchTensorDataset if work.steps is None else Going
    made = {c: kind(tensors=work.samples(c), user_id=str(c)) for c in {c for cohort in work.cohorts for c in cohort}}
    weights = {c: work.size(c) for c in range(len(work))} if processes > 1 else None
    users = FederatedDataset(made.__getitem__, Users(), weights)
    algorithm = FederatedAveraging()
    algorithm._current_central_iteration = 1  # iteration 0 would evaluate every user, whatever the frequency
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=len(work.cohort(0)),
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=work.epochs,
            local_learning_rate=work.lr,
            local_num_steps=work.steps,
            local_batch_size=size,
        ),
        callbacks=[Gate(trained)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
