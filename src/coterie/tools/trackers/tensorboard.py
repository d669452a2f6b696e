"""A run in TensorBoard: `tensorboard --logdir DIR`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.tools.trackers import Config, Tracker, needs
from coterie.training.events import RunStarted


class TensorBoard(Tracker):
    """Scalars and a histogram of cluster sizes per evaluated round, in event files in a directory."""

    def __init__(self, directory: str | Path, *, config: Config | None = None) -> None:
        super().__init__(config)
        needs("tensorboard", "tensorboard")
        self.directory = Path(directory)
        self._writer: Any = None

    def begin(self, start: RunStarted) -> None:
        """The parameters as a table; a resumed run hides what it will do again."""
        from torch.utils.tensorboard import SummaryWriter

        again = start.done + 1 if start.done else None
        self._writer = SummaryWriter(str(self.directory), purge_step=again)
        rows = "".join(f"| {key} | {value} |\n" for key, value in self.parameters(start).items())
        self._writer.add_text("parameters", f"| key | value |\n|---|---|\n{rows}", start.done)

    def log(self, round_: int, scalars: Mapping[str, float], sizes: tuple[int, ...]) -> None:
        """An evaluated round."""
        import numpy as np

        for key, value in scalars.items():
            self._writer.add_scalar(f"round/{key}", value, round_)
        self._writer.add_histogram("round/sizes", np.asarray(sizes), round_)
        self._writer.flush()

    def end(self, summary: Mapping[str, float]) -> None:
        """How the run ended."""
        for key, value in summary.items():
            self._writer.add_scalar(f"final/{key}", value, 0)

    def close(self, failed: bool = False) -> None:
        """Write what is left and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
