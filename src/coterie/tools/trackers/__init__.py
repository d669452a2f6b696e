"""Listeners that pass a run on to experiment trackers: TensorBoard, MLflow, Weights & Biases.

    from coterie.tools.trackers import TensorBoard
    with TensorBoard("tb") as board:
        coterie.run(method, clients, model, listeners=[board])

A tracker closes itself when the run ends; as a context it is closed, and marked as failed, when the run does not.
"""

from __future__ import annotations

import importlib
import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from coterie.core.errors import CoterieError, suggest
from coterie.core.metrics import Summary
from coterie.training.events import Event, RoundDone, RunEnded, RunStarted

if TYPE_CHECKING:
    from coterie.tools.trackers.mlflow import MLflow as MLflow
    from coterie.tools.trackers.tensorboard import TensorBoard as TensorBoard
    from coterie.tools.trackers.wandb import WandB as WandB

Value = str | int | float | bool
Config = Mapping[str, Any]  # a configuration as a tree, as in config.yaml
OF_SUMMARY = ("loss", "accuracy", "macro_f1", "worst_decile", "clusters", "ari", "nmi", "mixture_error")
OF_ROUND = ("discrepancy", "clusterability", "seconds", "client_seconds")
TRACKERS = ("tensorboard", "mlflow", "wandb")


class Tracker(ABC):
    """A listener; what differs from one library to the next is how it begins, logs and ends."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = dict(config or {})

    def __call__(self, event: Event) -> None:
        """Pass on what happened."""
        if isinstance(event, RunStarted):
            self.begin(event)
        elif isinstance(event, RoundDone):
            if event.validation is not None:
                found = numbers(event, event.validation)
                scalars = {f"validation/{key}": value for key, value in found.items() if key in OF_SUMMARY}
                self.log(event.round, scalars, event.validation.sizes)
            if event.summary is not None:
                self.log(event.round, numbers(event, event.summary), event.summary.sizes)
        elif isinstance(event, RunEnded):
            self.end(finite({key: getattr(event.summary, key) for key in OF_SUMMARY} | {"seconds": event.seconds}))
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(failed=kind is not None)

    @abstractmethod
    def begin(self, start: RunStarted) -> None:
        """The run's parameters."""

    @abstractmethod
    def log(self, round_: int, scalars: Mapping[str, float], sizes: tuple[int, ...]) -> None:
        """An evaluated round; sizes are the clients per cluster."""

    @abstractmethod
    def end(self, summary: Mapping[str, float]) -> None:
        """How the run ended."""

    @abstractmethod
    def close(self, failed: bool = False) -> None:
        """Let go of files and connections; a second time does nothing."""

    def parameters(self, start: RunStarted) -> dict[str, Value]:
        """What the run says of itself, and the configuration under its dotted keys."""
        said: dict[str, Value] = {"run.method": start.method, "run.data": start.data, "run.clients": start.clients}
        said |= {"run.per_round": start.per_round, "run.rounds": start.rounds}
        return said | dict(_leaves(self.config))


def numbers(event: RoundDone, summary: Summary) -> dict[str, float]:
    """What is known of an evaluated round."""
    of_round: dict[str, Any] = {key: getattr(event, key) for key in OF_ROUND}
    for layer, said in event.layers.items():
        of_round |= {f"{layer}/{name}": value for name, value in said.items() if isinstance(value, int | float)}
    return finite({key: getattr(summary, key) for key in OF_SUMMARY} | of_round | {"missing": len(event.missing)})


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Only what is there and a number: some trackers refuse NaN, some draw it as zero."""
    return {key: float(value) for key, value in values.items() if value is not None and math.isfinite(value)}


def _leaves(tree: Config, prefix: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, Value) else str(value)


def tracker(name: str, run_dir: Path, config: Config | None = None) -> Tracker:
    """The tracker of this name for a run in a directory: what `coterie run --track NAME` listens with.

    TensorBoard writes below the run's directory; MLflow and W&B go where their own environment variables say
    (MLFLOW_TRACKING_URI, WANDB_MODE, WANDB_PROJECT).
    """
    if name == "tensorboard":
        from coterie.tools.trackers.tensorboard import TensorBoard

        return TensorBoard(run_dir / "tensorboard", config=config)
    if name == "mlflow":
        from coterie.tools.trackers.mlflow import MLflow

        return MLflow(name=run_dir.name, config=config)
    if name == "wandb":
        from coterie.tools.trackers.wandb import WandB

        return WandB(name=run_dir.name, directory=run_dir, config=config)
    raise CoterieError(f"--track: unknown tracker '{name}'.{suggest(name, TRACKERS)}", code="config-unknown-name")


def needs(module: str, extra: str) -> Any:
    """A library that an extra brings."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise CoterieError(
            f"tracking with {extra} needs {extra}: pip install 'coterie[{extra}]'", code="extra-missing"
        ) from None


@contextmanager
def hushed(*loggers: str) -> Iterator[None]:
    """A library's warnings and news of itself stay off the terminal, where a run's progress is."""
    before = {name: logging.getLogger(name).level for name in loggers}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in loggers:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)


_HOME = {
    "TensorBoard": "coterie.tools.trackers.tensorboard",
    "MLflow": "coterie.tools.trackers.mlflow",
    "WandB": "coterie.tools.trackers.wandb",
}
__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB", "tracker"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'coterie.tools.trackers' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
