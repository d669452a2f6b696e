"""Clients that come after training: each is taken in by the method's own rule, and nobody is retrained."""

from __future__ import annotations

import coterie
from coterie.training.build import build
from coterie.training.config import read

trained = build(read(None, ["method.name=stocfl", "method.psi={epochs: 10, batch: full}", "data.partition.clients=16"]))
late = build(read(None, ["seed=9", "data.partition.clients=8"])).federation  # other digits, the same four rotations

result = coterie.run(trained.method, trained.federation, trained.model, rounds=20, participation=0.5)
print(result)
placed = result.admit(late)
print("newcomers' clusters:", placed.assignments, "true:", late.truth)
print(f"their accuracy: {float((placed.clients.accuracy * placed.clients.n).sum() / placed.clients.n.sum()):.1%}")
