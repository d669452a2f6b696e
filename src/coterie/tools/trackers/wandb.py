"""A run in Weights & Biases, online or (mode="offline") in files that `wandb sync` sends later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from coterie.tools.trackers import Config, Tracker, needs
from coterie.training.events import RunStarted


class WandB(Tracker):
    """Configuration, scalars and a histogram of cluster sizes per evaluated round, and the final summary."""

    def __init__(
        self,
        project: str | None = None,  # WANDB_PROJECT, or "coterie"
        mode: Literal["online", "offline", "disabled"] | None = None,  # WANDB_MODE, or W&B's own default
        *,
        name: str | None = None,
        directory: str | Path | None = None,
        config: Config | None = None,
    ) -> None:
        super().__init__(config)
        self._library = needs("wandb", "wandb")
        self.project, self.mode, self.name, self.directory = project, mode, name, directory
        self._run: Any = None

    def begin(self, start: RunStarted) -> None:
        """A run of the project; W&B's own output stays off the terminal, where Coterie's is."""
        import os

        self._run = self._library.init(
            project=self.project or os.environ.get("WANDB_PROJECT", "coterie"),
            mode=self.mode,
            name=self.name,
            dir=None if self.directory is None else str(self.directory),
            config=self.parameters(start),
            settings=self._library.Settings(silent=True, console="off"),
        )

    def log(self, round_: int, scalars: Mapping[str, float], sizes: tuple[int, ...]) -> None:
        """An evaluated round."""
        self._run.log(dict(scalars) | {"sizes": self._library.Histogram(list(sizes))}, step=round_)

    def end(self, summary: Mapping[str, float]) -> None:
        """How the run ended."""
        for key, value in summary.items():
            self._run.summary[f"final/{key}"] = value

    def close(self, failed: bool = False) -> None:
        """Write what is left."""
        if self._run is not None:
            self._run.finish(exit_code=1 if failed else 0)
            self._run = None
