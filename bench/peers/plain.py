"""FedAvg as one writes it in an afternoon: a DataLoader and an optimizer per client, deep copies, state dictionaries.

`--no-loader` shuffles with randperm and slices tensors instead.
"""

from __future__ import annotations

import copy
import sys

import torch
from common import Harness, Work, endless, train, travelled
from torch import Tensor


def main(place: str, loader: bool) -> None:
    """Serve rounds."""
    harness, work = Harness(), Work.load(place)
    torch.manual_seed(0)
    shared = work.network()

    def step(t: int) -> tuple[float, float]:
        cohort, losses = work.cohort(t), []
        total = sum(work.size(c) for c in cohort)
        average: dict[str, Tensor] = {}
        for c in cohort:
            local = copy.deepcopy(shared)
            batches = endless(work.loader(c)) if loader else work.stream(c)
            losses.append(train(local, batches, work.steps_of(c), work.optimizer(local.parameters())))
            for name, value in local.state_dict().items():
                if value.is_floating_point():
                    share = value * (work.size(c) / total)
                    average[name] = average[name] + share if name in average else share
        shared.load_state_dict(average, strict=False)
        return sum(losses) / len(losses), travelled(shared, work)

    harness.serve(step)


if __name__ == "__main__":
    main(sys.argv[1], "--no-loader" not in sys.argv)
