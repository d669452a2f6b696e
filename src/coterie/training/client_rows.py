"""clients.json: the scores and the cluster of each client, one row per client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from coterie.core.tables import Clients
from coterie.core.tasks import Evaluated
from coterie.training import round_history


def client_rows(clients: Clients, reply: Evaluated, scored_on: str = "test") -> list[dict[str, Any]]:
    """What is known of each client after the last round, as JSON objects."""
    ids = reply.ids.tolist()
    found = reply.choice.tolist() if reply.choice is not None else [0] * len(ids)
    columns: dict[str, Tensor] = {
        "samples": reply.n,
        "loss": reply.loss,
        "accuracy": reply.accuracy,
        "macro_f1": reply.macro_f1,
    }
    regression = {name: getattr(reply, name) for name in ("rmse", "mae", "r2", "constant", "variance")}
    columns |= {name: column for name, column in regression.items() if column is not None}
    columns |= dict(reply.scores or {})
    names, truth, mixture = clients.names, clients.truth, clients.mixture
    return [
        {"client": c}
        | ({} if names is None else {"name": names[c]})
        | {"cluster": k}
        | ({} if truth is None else {"hidden": int(truth[c])})
        | {"scored_on": scored_on}
        | {name: round_history.number(column[i].item()) for name, column in columns.items()}
        | ({} if reply.shares is None else {"shares": [round(s, 5) for s in reply.shares[i].tolist()]})
        | ({} if mixture is None else {"mixture": [round(float(s), 5) for s in mixture[c]]})
        for i, (c, k) in enumerate(zip(ids, found, strict=True))
    ]


def assignment(row: Mapping[str, Any]) -> Any:
    """The cluster of a client, with its name if it has one."""
    return {"name": row["name"], "cluster": row["cluster"]} if "name" in row else row["cluster"]
