"""What `coterie demo` shows: curves and clusters drawn with characters, what was found in words, and where to go on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from coterie.training.result import Result
from coterie.training.score_text import percent

TOLD = {
    "fedavg": "one model for everyone",
    "wecfl": "told that there are four clusters",
    "halves": "told nothing",
}
LEVELS = "▁▂▃▄▅▆▇█"
BLOCK, WIDTH = "█", 8  # of a cell of the table, where everyone is one cluster's
Results = Mapping[str, Result[Any]]


def shown(results: Results, console: Console) -> None:
    """Pictures where there is a terminal for them, numbers elsewhere; then the same in words."""
    drawn = console.is_terminal and "utf" in console.encoding.lower()
    if drawn:
        console.print(Padding(curves(results), (0, 0, 1, 0)))
    halves = results["halves"]
    truth = halves.federation.truth
    if truth is not None:
        console.print(clusters(halves.assignments, truth, drawn))
    console.print(Text("\n".join(words(results))), soft_wrap=True)


def curves(results: Results) -> RenderableType:
    """Accuracy by round, a character per round and a line per method, all on one scale."""
    scores = {name: _accuracies(result) for name, result in results.items()}
    everything = [score for line in scores.values() for score in line]
    low, high = min(everything), max(everything)
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, line in scores.items():
        table.add_row(
            Text(f" {name}", "bold"), Text(sparkline(line, low, high), "cyan"), percent(line[-1]), f"[dim]{TOLD[name]}"
        )
    title = f"accuracy by round, from {low:.0%} ({LEVELS[0]}) to {high:.0%} ({LEVELS[-1]})"
    return Group(Text(title, "bold"), table)


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """A character per value, the higher the fuller."""
    span = (high - low) or 1.0
    return "".join(LEVELS[min(len(LEVELS) - 1, int((value - low) / span * len(LEVELS)))] for value in values)


def clusters(found: NDArray[np.int64], truth: NDArray[np.int64], drawn: bool) -> RenderableType:
    """How many clients of each hidden group are in each cluster: as bars, or as numbers where bars cannot be drawn."""
    groups, labels = np.unique(truth), np.unique(found)
    count = [[int(((truth == group) & (found == label)).sum()) for label in labels] for group in groups]
    most = max(map(max, count))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="clients that halves put together", title_justify="left")
    table.add_column("digits turned by")
    for label in labels:
        table.add_column(f"cluster {label}", style="cyan", no_wrap=True)
    for group, row in zip(groups, count, strict=True):
        bars = [BLOCK * max(1, round(WIDTH * n / most)) + f" {n}" if n and drawn else str(n or ".") for n in row]
        table.add_row(f"{90 * int(group)}°" if drawn else f"{90 * int(group)} degrees", *bars)
    return table


def words(results: Results) -> list[str]:
    """What was found, a sentence per method."""
    halves = results["halves"].summary
    match = "exactly the hidden ones" if halves.ari == 1.0 else f"not quite the hidden ones (ARI {halves.ari:.2f})"
    score = {name: percent(result.accuracy) for name, result in results.items()}
    return [
        "Each of 40 clients holds handwritten digits, upright or turned: four hidden groups, which no method sees.",
        f"- FedAvg trains one model for everyone: {score['fedavg']} of the test digits are recognised.",
        f"- WeCFL was told that there are four clusters: {score['wecfl']}.",
        f"- Halves was told nothing and found {halves.clusters} clusters, {match}: {score['halves']}.",
    ]


def further(base: Path, names: Sequence[str]) -> list[str]:
    """The commands that come next."""
    install = [] if find_spec("plotly") else ["  pip install 'coterie[report]'"]
    runs = " ".join(shlex.quote(str(base / name)) for name in names)
    return [
        "all figures of these runs, as one HTML page:",
        *install,
        f"  coterie report {runs} --out demo.html",
        "your own table (csv, parquet or npz):",
        "  coterie init my.csv",
    ]


def _accuracies(result: Result[Any]) -> list[float]:
    return [e.summary.accuracy or 0.0 for e in result.history if e.summary is not None]
