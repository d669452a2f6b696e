# mypy: ignore-errors
"""What a Flower client does: a module of its own, so that Ray's actors import it instead of unpickling it each time."""

from __future__ import annotations

import os
from functools import cache

import torch
from common import Work, train
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


@cache
def work() -> tuple[Work, nn.Module]:
    """The data and one network per actor, loaded once."""
    torch.set_num_threads(1)
    found = Work.load(os.environ["BENCH_WORK"])
    return found, found.network()


@app.train()
def fit(message: Message, _context: Context) -> Message:
    """Train the client that the message names."""
    here, network = work()
    client = int(message.content["config"]["client"])
    network.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    loss = train(network, here.stream(client), here.steps_of(client), here.optimizer(network.parameters()))
    state = {name: value for name, value in network.state_dict().items() if value.is_floating_point()}
    content = RecordDict(
        {
            "arrays": ArrayRecord(state),
            "metrics": MetricRecord({"num-examples": here.size(client), "loss": loss}),
        }
    )
    return Message(content=content, reply_to=message)
