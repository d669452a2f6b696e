"""Draws the README's picture from a run of the demo: `python docs/draw.py` (needs `pip install coterie[plot]`)."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
import torch
from matplotlib import pyplot as plt

import coterie
from coterie.client.contract import Moment
from coterie.core.tasks import All, Fit, Fitted
from coterie.engines.contract import Visit
from coterie.engines.sequential import Sequential
from coterie.training.build import build
from coterie.training.config import read

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")  # Okabe and Ito: told apart by colour-blind readers too


def main() -> None:
    """Two panels: accuracy over rounds, and the clients as the server sees them."""
    curves = {}
    for name in ("fedavg", "wecfl"):
        config = read(None, [f"method.name={name}"])
        job = build(config)
        result = coterie.run(job.method, job.federation, job.model, rounds=config.rounds, seed=config.seed)
        curves[name] = [100 * (event.summary.accuracy or 0) for event in result.history if event.summary]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    rounds = range(1, len(curves["fedavg"]) + 1)
    left.plot(rounds, curves["fedavg"], color="#777777", linewidth=2.5, label="FedAvg: one model for all")
    left.plot(rounds, curves["wecfl"], color=COLOURS[0], linewidth=2.5, label="WeCFL: a model per group")
    left.set(xlabel="round", ylabel="accuracy over 40 clients (%)", ylim=(0, 100), title="The same budget of training")
    left.legend(loc="lower right", frameon=False)
    left.grid(alpha=0.25)

    # The clients as the server sees them: what each learns from one common start, in the plane where they differ most.
    engine = Sequential(job.model, job.federation)
    start = job.model.init(np.random.default_rng(0))
    fit = Fit(All(start), local=config.local)
    (reply,) = engine.visit(Visit((fit,), job.federation.roster.ids, Moment(0, 0, 0))).replies
    assert isinstance(reply, Fitted)
    updates = reply.models - start
    plane = torch.linalg.svd(updates - updates.mean(0), full_matrices=False)
    spots = (plane.U * plane.S)[:, :2].numpy()
    truth = job.federation.truth
    assert truth is not None
    for cluster in range(4):
        mine = result.assignments == cluster
        angles = sorted({(0, 90, 180, 270)[t] for t in truth[mine]})
        right.scatter(
            *spots[mine].T, s=70, color=COLOURS[cluster], label=f"cluster {cluster + 1}: digits turned by {angles[0]}°"
        )
    right.set(xticks=[], yticks=[], title="Groups found among the clients, data unseen")
    right.set(xlabel="first principal direction of the updates", ylabel="second")
    right.legend(fontsize=8, loc="best", framealpha=0.8)
    figure.savefig(Path(__file__).parent / "pictures" / "demo.png", dpi=110)


if __name__ == "__main__":
    main()
