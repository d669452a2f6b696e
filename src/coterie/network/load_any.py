"""`coterie.load`: a run read back from its directory, whether its clients were simulated or real."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from coterie.core.constructors import explained_call
from coterie.core.errors import CoterieError
from coterie.core.files import check_run_files
from coterie.data.federation import Federation
from coterie.methods.contract import Method
from coterie.network.server.saved_run import load_network_run
from coterie.training.build import AnyModel
from coterie.training.config import read_file
from coterie.training.loading import load_run
from coterie.training.result import Result
from coterie.training.trust import consent_of


@explained_call
def load(
    run_dir: str | Path,
    *,
    method: Method[Any] | None = None,
    federation: Federation | Sequence[tuple[ArrayLike, ...]] | None = None,
    model: AnyModel | None = None,
    trust: Sequence[str] = (),
) -> Result[Any]:
    """A run read back from its directory: state, history, clients' scores. It may have been moved.

    The training data is not needed to predict, to admit newcomers or to export networks; result.federation reads it
    where it is still there. trust: code of your own that the run names and that may be imported, ("module:Name",).
    A method or a model of your own, given to `coterie.run` as an object, is given here again.
    """
    path = Path(run_dir)
    check_run_files(path)
    if not (path / "config.yaml").is_file():
        raise CoterieError(f"{path}: not a run (it has no config.yaml)", code="run-not-found")
    tree = read_file(path / "config.yaml")
    saves = sorted((path / "checkpoints").glob("round-*.safetensors"))
    if not saves:
        raise CoterieError(f"{path}: has no checkpoint to load", code="checkpoint-missing")
    if "network" in tree:
        return load_network_run(path, tree, saves, consent_of(path, trust))
    return load_run(path, tree, saves, method=method, federation=federation, model=model, trust=trust)
