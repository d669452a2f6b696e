# mypy: ignore-errors
"""FedLab 1.3: FedAvg in its standalone pipeline (serial trainer), one thread.

Its SGD trainer knows neither momentum nor a number of steps, and its server does not weigh by size: both are overridden
at the places meant for it (`train`, `global_update`). Batches are sliced, not loaded by a DataLoader. It passes flat
parameters only, so BatchNorm's running statistics stay in the one network.
"""

from __future__ import annotations

import logging
import sys
import time

import torch
from common import Harness, Work, declare_vision_ops, train, travelled


def main(place: str) -> None:
    """Serve rounds."""
    harness, work = Harness(), Work.load(place)
    torch.manual_seed(0)
    _ops = declare_vision_ops()  # before FedLab, which imports torchvision

    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.core.standalone import StandalonePipeline
    from fedlab.utils import Aggregators, SerializationTool

    logging.getLogger().setLevel(logging.WARNING)

    class Clients:
        """FedLab's data set, by client."""

        def get_dataloader(self, client, batch_size):
            return client

    class Trainer(SGDSerialClientTrainer):
        """Its serial trainer, with momentum and steps."""

        losses: list[float] = []  # noqa: RUF012

        def train(self, model_parameters, train_loader):
            client = train_loader
            self.set_model(model_parameters)
            optimizer = work.optimizer(self._model.parameters())
            self.losses.append(train(self._model, work.stream(client), work.steps_of(client), optimizer))
            return [self.model_parameters, torch.tensor(float(work.size(client)))]

    class Handler(SyncServerHandler):
        """Its server, with the work's cohorts and weights by size."""

        def sample_clients(self):
            return work.cohort(self.round)

        def global_update(self, buffer):
            models, sizes = zip(*buffer, strict=True)
            SerializationTool.deserialize_model(
                self._model, Aggregators.fedavg_aggregate(list(models), torch.stack(sizes))
            )

    class Pipeline(StandalonePipeline):
        """Its loop; `evaluate` comes after every round."""

        began = 0.0

        def evaluate(self):
            seconds = time.perf_counter() - self.began
            harness.done(seconds, sum(trainer.losses) / len(trainer.losses), travelled(handler.model, work))
            self.next()

        def next(self):
            if not harness.wait():
                sys.exit(0)
            trainer.losses.clear()
            self.began = time.perf_counter()

    network = work.network()
    trainer = Trainer(network, len(work))
    trainer.setup_dataset(Clients())
    trainer.setup_optim(work.epochs or 1, 0, work.lr)
    handler = Handler(network, 10**9, len(work.cohort(0)) / len(work) + 1e-9)
    pipeline = Pipeline(handler, trainer)
    harness.ready()
    pipeline.next()
    pipeline.main()


if __name__ == "__main__":
    main(sys.argv[1])
