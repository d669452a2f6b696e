"""Forecasts of electricity meters: from one day the first six hours of the next, a model per kind of household."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import coterie

AHEAD, DAYS = 6, 150  # hours predicted, days of each meter
Floats = NDArray[np.float32]


def meter(rng: np.random.Generator, memory: float) -> Floats:
    """Days x hours of consumption (generated): heaters charge at night, by the night before and a household's habit."""
    level = np.zeros(DAYS)
    for day in range(1, DAYS):
        level[day] = memory * level[day - 1] + 0.4 * rng.normal()
    night = (np.arange(24) < AHEAD)[None] * (1.5 + level[:, None])
    use = 0.3 + night + 0.1 * rng.normal(size=(DAYS, 24))
    use[rng.integers(0, DAYS, 5), rng.integers(0, 24, 5)] += 5  # a meter's faults
    return use.astype(np.float32)


def windows(use: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Pairs of a day and the next night; what is tested comes after what is trained on."""
    day, night, cut = use[:-1], use[1:, :AHEAD], DAYS * 4 // 5
    return day[:cut], night[:cut], day[cut + 1 :], night[cut + 1 :]


rng = np.random.default_rng(0)
clients = [windows(meter(rng, memory)) for memory in (0.9, -0.9) * 6]  # nights alike, or every other night
model = coterie.Tuned("linear", loss="mae")  # faults pull less than with squared errors
local = coterie.Local(epochs=5, batch=16, lr=0.05)
for method in (coterie.FedAvg(local=local), coterie.WeCFL(k=2, local=local)):
    result = coterie.run(method, clients, model, rounds=20)
    mae, mse = (result.summary.scores or {}).values()
    print(f"{type(method).__name__}: MAE {mae:.3f}, RMSE {(mse or 0) ** 0.5:.3f}, clusters {result.assignments}")
