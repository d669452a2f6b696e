"""Four hidden groups among twenty clients: one model for all against a model per group."""

from __future__ import annotations

import numpy as np

import coterie

rng = np.random.default_rng(0)
rules = rng.normal(size=(4, 8))  # each hidden group labels the same kind of input by a rule of its own


def client(group: int) -> tuple[np.ndarray, np.ndarray]:
    """Sixty samples of one client."""
    x = rng.normal(size=(60, 8))
    return x, (x @ rules[group] > 0).astype(np.int64)


federation = coterie.Federation.from_arrays([client(i % 4) for i in range(20)], truth=[i % 4 for i in range(20)])
local = coterie.Local(epochs=5, batch=16, lr=0.2)
for method in (coterie.FedAvg(local=local), coterie.WeCFL(k=4, local=local)):
    result = coterie.run(method, federation, "linear", rounds=15)
    found = result.summary
    print(f"{type(method).__name__:7} accuracy {result.accuracy:.1%}, ARI {found.ari:.2f}, cluster sizes {found.sizes}")
