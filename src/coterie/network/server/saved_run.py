"""A run over a network, read back: the models are here, the data is with the clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.client.memory import Memory
from coterie.core.cohort import Roster
from coterie.core.decoder import parse_json
from coterie.core.errors import CoterieError
from coterie.core.registry import Consent
from coterie.core.replies import Evaluated
from coterie.core.seeds import Purpose, generator
from coterie.engines.contract import ERRORS
from coterie.network.server.client_registry import ClientRegistry
from coterie.network.server.config import read
from coterie.training import checkpoint
from coterie.training.build import build_method, build_model
from coterie.training.learning_rate import recorded, with_rates
from coterie.training.result import Result
from coterie.training.run_directory import belongs, read_history


def load_network_run(path: Path, tree: Mapping[str, Any], saves: Sequence[Path], consent: Consent) -> Result[Any]:
    """The run as of its last checkpoint; clients' scores are those of its last evaluation."""
    config, registry = read(None, base=tree, consent=consent), ClientRegistry.read(path)
    if registry.shape is None:
        raise CoterieError(
            f"{path}: has no members.json, so nobody knows what its clients' data looks like", code="run-damaged"
        )
    method = with_rates(build_method(config), recorded(path))
    model = build_model(config, registry.shape)
    ids = torch.arange(len(registry))
    template = method.init(model, Roster(ids, registry.sizes(ids)), generator(config.seed, Purpose.INIT))
    mine = belongs(method, model, registry, config.settings)
    saved = checkpoint.newest(saves, template, method, mine, model=model)
    history = read_history(path, saved.round)
    summary = next((event.summary for event in reversed(history) if event.summary is not None), None)
    scores = path / "clients.json"
    if summary is None or not scores.is_file():
        raise CoterieError(
            f"{path}: has not been evaluated yet; go on with it: coterie server --resume {path}",
            code="run-not-evaluated",
        )
    memory = Memory()
    memory.restore(saved.memory)
    return Result(
        *(method, model, saved.state, history, _evaluated(parse_json(scores.read_bytes())), summary),
        *(sum(event.seconds for event in history), registry, config.settings, memory),
        placed=saved.state,
        run_dir=path,
    )


def _evaluated(rows: Sequence[Mapping[str, Any]]) -> Evaluated:
    def column(name: str) -> Tensor:
        return torch.tensor([math.nan if row[name] is None else float(row[name]) for row in rows], dtype=torch.float64)

    errors = [column(name) if rows and name in rows[0] else None for name in ERRORS]
    shares = [row["shares"] for row in rows if "shares" in row]
    return Evaluated(
        torch.tensor([row["client"] for row in rows], dtype=torch.int64),
        torch.tensor([row["samples"] for row in rows], dtype=torch.int64),
        *(column("loss"), column("accuracy"), column("macro_f1")),
        torch.tensor([row["cluster"] for row in rows], dtype=torch.int64),
        torch.tensor(shares) if len(shares) == len(rows) else None,
        mae=errors[0],
        constant=errors[1],
        variance=errors[2],
    )
