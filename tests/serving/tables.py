"""A table of sites whose rule is hidden: even sites say high where a > 0, odd ones where a < 0; and runs on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.core.registry import METHODS, NO_CODE
from coterie.training.config import read
from coterie.training.execute import execute

METHODS_TRIED = (
    *("wecfl", "ifca", "fedavg", "fedsoft", "fedem", "ditto", "wecfl-cam", "stocfl", "cfl", "halves", "fedgroup"),
    "local",
)
Row = tuple[str, ...]


def rows_of(sites: Sequence[int], many: int, seed: int = 0, *, rule: int | None = None) -> list[Row]:
    """Rows (site, a, b, colour, level); rule 2: b decides, which is no site's rule."""
    rng = np.random.default_rng(seed)
    out: list[Row] = []
    for site in sites:
        for a, b, c in rng.normal(size=(many, 3)):
            kind = site % 2 if rule is None else rule
            high = (a, -a, b)[kind] > 0
            out.append((f"site-{site}", f"{a:.3f}", f"{b:.3f}", "red" if c > 0 else "blue", "high" if high else "low"))
    return out


def write(path: Path, rows: Sequence[Row], header: str = "site,a,b,colour,level") -> Path:
    """A csv file."""
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    return path


def shuffled(rows: Sequence[Row], seed: int = 0) -> list[Row]:
    """The same rows in another order."""
    return [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]


def trained(folder: Path, name: str, *words: str, rounds: int = 4) -> Path:
    """A run of a method on ten sites of 30 rows."""
    table, run = folder / "train.csv", folder / f"run-{name}"
    if not table.exists():
        write(table, rows_of(range(10), 30))
    known = {f.name for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    more = [f"method.k={2}"] if "k" in known else []
    config = read(
        None,
        [
            *("data.name=csv", f"data.path={table}", "data.client=site", "data.y=level", f"method.name={name}", *more),
            *(f"rounds={rounds}", "local.epochs=2", "engine.name=sequential", *words),
        ],
    )
    execute(config, run)
    return run
