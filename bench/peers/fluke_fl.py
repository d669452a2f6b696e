# mypy: ignore-errors
"""fluke 0.8 (package `fluke-fl`): FedAVG with its own loop, client and FastDataLoader, one thread.

Held between rounds by an observer. Its client trains in epochs; where the work counts steps, the loader is one whose
epoch has that many batches. fluke has no parallel clients on a CPU.
"""

from __future__ import annotations

import sys
import time

import torch
from common import Harness, Work, declare_vision_ops, travelled


def main(place: str) -> None:
    """Serve rounds."""
    harness, work = Harness(), Work.load(place)
    torch.manual_seed(0)
    _ops = declare_vision_ops()  # before fluke, which imports torchvision

    from fluke import FlukeENV
    from fluke.algorithms import CentralizedFL
    from fluke.client import Client
    from fluke.config import OptimizerConfigurator
    from fluke.data import FastDataLoader
    from fluke.server import EarlyStopping, Server

    def loader(client) -> FastDataLoader:
        """A client's data, an epoch of it being as many batches as the work wants (where it counts steps)."""
        x, y = work.samples(client)

        class Steps(FastDataLoader):
            """Goes round the batches of the loader it is."""

            def __iter__(self):
                left = work.steps
                while True:
                    epoch = FastDataLoader(x, y, **about)
                    for batch in epoch:
                        yield batch
                        left -= 1
                        if not left:
                            return

            def __len__(self):
                return work.steps

        about = {
            "num_labels": work.about["outputs"],
            "batch_size": work.batch(client),
            "shuffle": True,
            "skip_singleton": False,
        }
        return (FastDataLoader if work.steps is None else Steps)(x, y, **about)

    env = FlukeENV()
    env.set_seed(0)
    env.set_device("cpu")
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    how = OptimizerConfigurator({"name": "SGD", "lr": work.lr, "momentum": work.momentum})
    clients = [
        Client(
            index=c,
            train_set=loader(c),
            test_set=None,
            optimizer_cfg=how,
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=work.epochs or 1,
            persistency=False,
        )
        for c in range(len(work))
    ]

    class Chosen(Server):
        """Who trains is the work's choice."""

        round = 0

        def get_eligible_clients(self, eligible_perc):
            self.round += 1
            return [clients[c] for c in work.cohort(self.round - 1)]

    server = Chosen(work.network(), None, clients, weighted=True)

    class Gate:
        """The observer that holds the loop between rounds."""

        def __init__(self) -> None:
            self.began, self.losses = 0.0, []

        def start_round(self, round, global_model):
            self.losses.clear()
            if not harness.wait():
                raise EarlyStopping(round)
            self.began = time.perf_counter()

        def end_fit(self, round, client_id, model, loss):
            self.losses.append(loss)

        def end_round(self, round):
            seconds = time.perf_counter() - self.began
            harness.done(seconds, sum(self.losses) / len(self.losses), travelled(server.model, work))

        def __getattr__(self, name):
            return lambda *_args, **_kwargs: None

    gate = Gate()
    federation = CentralizedFL(len(clients), None, {}, clients=clients, server=server)
    for subject in (federation, server, *clients):
        subject.attach(gate)
    harness.ready()
    federation.finalize = lambda: None  # would evaluate every client
    federation.run(10**6, len(work.cohort(0)) / len(clients))


if __name__ == "__main__":
    main(sys.argv[1])
