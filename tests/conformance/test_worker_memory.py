"""A worker holds the models of one chunk of clients at a time."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
import toys

from coterie.client.contract import Moment
from coterie.core.compute import one_thread
from coterie.core.local import Local
from coterie.core.model import Model, loss_of
from coterie.core.references import All
from coterie.core.tasks import Fit
from coterie.data.federation import Samples
from coterie.engines.contract import Visit
from coterie.engines.workers import Workers

MODEL = 10  # numbers of the toys' linear model


def test_the_models_of_a_chunk_are_gone_before_the_next(tmp_path: Path) -> None:
    def counts(client: int, split: str, taken: Samples) -> Samples:
        """In the worker, whenever it reads a client's samples: how many models there are."""
        gc.disable()  # a model that only the collector of circles would find counts, too
        models = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and o.shape == (MODEL,)]
        with (tmp_path / "models").open("a") as file:
            file.write(f"{len(models)}\n")
        return taken

    federation = toys.faulty(counts)
    model = Model(toys.linear, loss_of(federation))
    visit = Visit((Fit(All(torch.zeros(MODEL)), Local(steps=1)),), federation.roster.ids, Moment(0, 0, 0))
    with one_thread():
        engine = Workers(model, federation, 1, batched=True)
        try:
            for _ in range(2):
                assert not engine.visit(visit).missing
        finally:
            engine.close()
    found = [int(line) for line in (tmp_path / "models").read_text().splitlines()]
    assert len(found) >= 10
    assert set(found) == {found[0]}, found
