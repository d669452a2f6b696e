"""What a method says about local training, made whole: what it leaves out is as the run's `local` says."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import TypeAdapter

from coterie.core.errors import CoterieError
from coterie.core.tasks import Local

Tree = dict[str, Any]
LENGTH = ("epochs", "steps")  # one replaces the other
# A Local that names all of these was written out whole, as run directories have it: nothing is missing from it.
WHOLE = {"batch", "lr", "lr_decay", "optimizer", "momentum", "weight_decay", "keep_optimizer", "shuffle"}


def merged(local: Local | Tree, own: Any) -> Any:
    """A method's own `local`: the run's, with what the method says differently."""
    if own is None or not isinstance(own, dict):
        return local if own is None else own
    kept = TypeAdapter(Local).dump_python(local) if isinstance(local, Local) else dict(local)
    if set(LENGTH) & set(own):
        kept = {k: v for k, v in kept.items() if k not in LENGTH}
    return kept | own


def completed(kind: Any, params: Tree, local: Local) -> Tree:
    """A method's parameters: its `local`, and any other Local given in part (psi, pretrain), goes by the run's."""
    if not dataclasses.is_dataclass(kind):
        return params
    types = {f.name: f.type if isinstance(f.type, str) else str(f.type) for f in dataclasses.fields(kind)}
    found = dict(params)
    own = params.get("local")
    if local.lr == "auto" and isinstance(own, dict) and own.get("lr", "auto") != "auto":
        raise CoterieError(
            f"method.local.lr: is {own['lr']}, but local.lr is auto, a search for a rate that this method would not "
            "use; leave one of them out",
            code="config-conflict",
        )
    usual: Local | Tree = local
    if "local" in types:
        usual = found["local"] = merged(local, params.get("local"))
    for name, kept in params.items():
        another = name != "local" and isinstance(kept, dict) and "Local" in types.get(name, "")
        if another and not set(kept) >= WHOLE and isinstance(usual, Local | dict):
            found[name] = merged(usual, kept)
    return found
