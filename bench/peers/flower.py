# mypy: ignore-errors
"""Flower 1.42 (package `flwr`): its simulation runtime with FedAvg on Ray, two actors of one core each, which share the
GPU where there is one to compute on.

Held between rounds in the strategy: `configure_train` waits for the harness, `aggregate_train` answers it. Every
message names the client it is for. Batches are sliced, not loaded by a DataLoader; an actor keeps the data and one
network. Ray's processes do a little work of their own between rounds too, while others are measured.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

from common import DEVICE, Harness, Work, settle, travelled


def main(place: str, actors: int) -> None:
    """Serve rounds."""
    os.environ["BENCH_WORK"] = place
    harness, work = Harness(), Work.load(place)

    import logging

    from flower_client import app as client_app
    from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.WARNING)
    network = work.network()

    class Quit(Exception):  # noqa: N818
        """The harness wants no more rounds."""

    class Gated(FedAvg):
        """Its FedAvg, with the work's cohorts."""

        began = 0.0

        def configure_train(self, server_round, arrays, config, grid):
            if not harness.wait():
                raise Quit
            self.began = time.perf_counter()
            nodes = sorted(grid.get_node_ids())
            return [
                Message(
                    content=RecordDict({"arrays": arrays, "config": ConfigRecord({"client": c})}),
                    message_type=MessageType.TRAIN,
                    dst_node_id=nodes[c],
                )
                for c in work.cohort(server_round - 1)
            ]

        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            arrays, metrics = super().aggregate_train(server_round, replies)
            settle()
            seconds = time.perf_counter() - self.began
            failed = [r for r in replies if r.has_error()]
            if failed or len(replies) != len(work.cohort(server_round - 1)):
                raise RuntimeError(f"{len(failed)} clients failed: {failed[0].error.reason if failed else 'missing'}")
            network.load_state_dict(arrays.to_torch_state_dict(), strict=False)
            loss = sum(float(r.content["metrics"]["loss"]) for r in replies) / len(replies)
            harness.done(seconds, loss, travelled(network, work))
            return arrays, metrics

    server_app = ServerApp()

    @server_app.main()
    def serve(grid, _context) -> None:
        state = {name: value for name, value in network.state_dict().items() if value.is_floating_point()}
        strategy = Gated(fraction_evaluate=0.0)
        while len(list(grid.get_node_ids())) < len(work):
            time.sleep(0.1)
        harness.ready(actors=actors)
        try:
            strategy.start(grid=grid, initial_arrays=ArrayRecord(state), num_rounds=10**6, timeout=3600)
        except Quit:
            return

    gpus = 1 if DEVICE.type == "cuda" else 0  # Ray shows its actors no more than they are given
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(work),
        backend_config={
            "init_args": {"num_cpus": actors, "num_gpus": gpus, "log_to_driver": False, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": gpus / actors},
        },
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
