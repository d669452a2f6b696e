"""Newcomers without labels: FLUX places them by the moments of their inputs, and how much that loses against labels.

python bench/newcomers_without_labels.py [seed]: MNIST, rotated and in class groups; half a minute on one core.
"""

from __future__ import annotations

import sys

import coterie
from coterie import Best, Evaluate, Local
from coterie.data import Pathological, Rotated
from coterie.engines.sequential import Sequential
from coterie.training.ask import RoundAsk

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
method = coterie.FLUX(local=Local(epochs=1, batch=32, lr=0.1))
for partition in (Rotated(clients=60), Pathological(clients=60)):
    federation = coterie.federate("mnist", partition, seed=seed)
    result = coterie.run(method, federation, "mlp", rounds=10, newcomers=1 / 3, seed=seed)
    joined = result.newcomers  # each has said its moments, 2 * `size` numbers, and nothing of its labels
    assert joined is not None
    # With labels: each takes the model with the least loss on its labelled training samples.
    ask = RoundAsk(Sequential(result.model, federation), joined.clients.ids, seed, 10, kind="probe")
    labelled = ask(Evaluate((Best(result.state.centers),)))
    accuracy, best = (float((r.accuracy * r.n).sum() / r.n.sum()) for r in (joined.clients, labelled))
    share = 2 * method.size / result.model.size
    print(
        f"{federation.name}: {len(joined.clients.ids)} newcomers, ARI {joined.summary.ari:.2f}, "
        f"accuracy {accuracy:.1%} (placed by labels {best:.1%}), {share:.3%} of a model's bytes"
    )
