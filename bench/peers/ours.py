"""This project, with the engine named on the command line: the public pieces the driver uses, without evaluation."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from common import DEVICE, Harness

sys.path.insert(0, str(Path(__file__).parents[1]))

from workloads import SEED, engine_named, initial, one_named

from coterie import CoterieError, FedAvg
from coterie.core.compute import Compute
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.training.ask import RoundAsk


def main(name: str, engine: str, workers: int | None) -> None:
    """Serve rounds."""
    harness, work = Harness(), one_named(name)
    federation = work.federation()
    model = work.network(federation)
    method = FedAvg(local=work.local)
    cohorts = torch.from_numpy(work.drawn(len(federation)))
    state = start = initial(model)
    with ExitStack() as stack:
        try:
            compute = Compute(str(DEVICE))
            making, what = engine_named(engine, workers, model, federation, work.local, work.per_round, compute)
            made = stack.enter_context(making)
        except CoterieError as error:
            harness.skip(str(error))

        def step(t: int) -> tuple[float, float]:
            nonlocal state
            cohort = Cohort(cohorts[t % work.cohorts], t, federation.roster, generator(SEED, Purpose.METHOD, t, 0))
            ask, losses = RoundAsk(made, cohort.ids, SEED, t), []

            def heard(task: Any) -> Any:
                reply = ask(task)
                losses.append(float(reply.loss.mean()))
                return reply

            made.memory.begin()
            state = method.round(state, cohort, heard)
            if ask.missing:
                raise RuntimeError(f"clients are missing: {list(ask.missing.values())[:3]}")
            return losses[0], float((state - start)[: model.parameters].double().norm())

        harness.serve(step, engine=what)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
