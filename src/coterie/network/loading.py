"""A run over a network, read back: the models are here, the data is with the clients."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie import checkpoint
from coterie.config import build_method
from coterie.errors import CoterieError
from coterie.memory import Memory
from coterie.network.members import Members
from coterie.network.settings import read
from coterie.result import Result
from coterie.seeds import Purpose, generator
from coterie.setup import named_model
from coterie.store import belongs, read_history
from coterie.tasks import Evaluated, Roster


def load(path: Path, tree: Mapping[str, Any], last: Path) -> Result[Any]:
    """The run as of its last checkpoint; clients' scores are those of its last evaluation."""
    config, members = read(None, base=tree), Members.read(path)
    if members.shape is None:
        raise CoterieError(f"{path}: has no members.json, so nobody knows what its clients' data looks like")
    method = build_method(config)
    model = named_model(config.model.name, config.model.params, members.shape)
    ids = torch.arange(len(members))
    template = method.init(model, Roster(ids, members.sizes(ids)), generator(config.seed, Purpose.INIT))
    saved = checkpoint.load(last, template, method, belongs(method, model, members, config.settings))
    history = read_history(path, saved.round)
    summary = next((event.summary for event in reversed(history) if event.summary is not None), None)
    scores = path / "clients.json"
    if summary is None or not scores.is_file():
        raise CoterieError(f"{path}: has not been evaluated yet; go on with it: coterie server --resume {path}")
    memory = Memory()
    memory.restore(saved.memory)
    return Result(
        *(method, model, saved.state, history, _evaluated(json.loads(scores.read_text(encoding="utf-8"))), summary),
        *(sum(event.seconds for event in history), members, config.settings, memory),
        placed=saved.state,
        run_dir=path,
    )


def _evaluated(rows: Sequence[Mapping[str, Any]]) -> Evaluated:
    def column(name: str) -> Tensor:
        return torch.tensor([math.nan if row[name] is None else float(row[name]) for row in rows])

    shares = [row["shares"] for row in rows if "shares" in row]
    return Evaluated(
        torch.tensor([row["client"] for row in rows], dtype=torch.int64),
        torch.tensor([row["samples"] for row in rows], dtype=torch.int64),
        *(column("loss"), column("accuracy"), column("macro_f1")),
        torch.tensor([row["cluster"] for row in rows], dtype=torch.int64),
        torch.tensor(shares) if len(shares) == len(rows) else None,
    )
