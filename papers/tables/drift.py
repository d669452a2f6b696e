"""Clients that move between clusters while the methods are at work: who notices, how soon, and what it costs."""

from __future__ import annotations

import numpy as np

from coterie.core.registry import METHODS as CATALOGUE
from coterie.training.drift_scores import waits_after
from papers.cell import Cell, Claim, Found, Outcome, Outcomes, Reading, Run, Tree, pooled
from papers.declared import declared

ROUNDS, AT, EVERY, CHANGES = 30, 13, 5, 3
KINDS = {
    "sudden": (AT,),
    "staggered": tuple(AT + EVERY * change for change in range(CHANGES)),
    "recurrent": tuple(AT + EVERY * change for change in range(CHANGES)),
    "incremental": tuple(AT + EVERY * change for change in range(CHANGES)),
}
METHODS: dict[str, Tree] = {
    "fedavg": {"name": "fedavg"},
    "ifca": {"name": "ifca", "k": 4},
    "wecfl": {"name": "wecfl", "k": 4},
    "stocfl": {"name": "stocfl"},
    "feddrift": {"name": "feddrift"},
    "fielding": {"name": "fielding"},
    "halves": {"name": "halves"},
    "oracle": {"name": "oracle"},
}
_FOUR: Tree = {"name": "rotated", "clients": 40}
DATA: dict[str, Tree] = {
    "digits": {"name": "digits", "partition": _FOUR},
    "fashion": {
        "name": "fashion-mnist",
        "partition": {"name": "subsample", "partition": _FOUR, "samples": 4000, "test_samples": 2000},
    },
}


def _run(data: str, kind: str, method: str) -> Run:
    drift: Tree = {"kind": kind, "at": AT, "every": EVERY, "changes": CHANGES, "share": 0.5}
    config: Tree = {
        "data": DATA[data] | {"drift": drift},
        "model": {"name": "linear"},
        "method": METHODS[method],
        "local": {"epochs": 5, "batch": 8, "lr": 0.1},
        "rounds": ROUNDS,
        "evaluate_every": 1,
        "engine": {"name": "batched", "workers": 1},
    }
    return Run(f"drift/{data}/{kind}/{method}", config, seconds=10)


def after(outcome: Outcome) -> list[float]:
    """The mean accuracy from the first change on: the area under its curve."""
    since = outcome.column("round") >= AT
    return [100.0 * float(np.mean(outcome.column("accuracy")[since]))]


def rounds_to_find(kind: str) -> Reading:
    """How many rounds after a change the clusters are found again; all until the next change, where they are not."""

    def read(outcome: Outcome) -> list[float]:
        starts = KINDS[kind]
        waits = waits_after(starts, outcome.column("round"), outcome.column("ari"), ROUNDS)
        most = np.diff([*starts, ROUNDS + 1]).tolist()
        return [float(limit if wait is None else wait) for wait, limit in zip(waits, most, strict=True)]

    return read


def _cells() -> tuple[Cell, ...]:
    cells = []
    for data in DATA:
        for kind in KINDS:
            for method in METHODS:
                if method not in CATALOGUE.places:  # it is run once the library has it
                    continue
                run = _run(data, kind, method)
                cells.append(Cell(f"{data}, {kind}", method, run, after, None))
                if method != "fedavg":
                    read = rounds_to_find(kind)
                    cells.append(Cell(f"{data}, {kind}", f"{method} rounds", run, read, None))
    return tuple(cells)


def _gaps(results: Outcomes) -> list[str]:
    """A table of how far every method is below the oracle."""
    methods = [m for m in METHODS if m in CATALOGUE.places and m != "oracle"]
    lines = ["Points below the oracle, mean accuracy from the first change on:", ""]
    lines += ["| | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for data in DATA:
        for kind in KINDS:
            best = _mean(results, data, kind, "oracle")
            found = [_mean(results, data, kind, method) for method in methods]
            if best is not None and any(one is not None for one in found):
                shown = ["" if one is None else f"{best.mean - one.mean:.1f}" for one in found]
                lines.append(f"| {data}, {kind} | " + " | ".join(shown) + " |")
    return lines if len(lines) > 4 else []


def _mean(results: Outcomes, data: str, kind: str, method: str) -> Found | None:
    run = _run(data, kind, method)
    return pooled(Cell(kind, method, run, after, None), results.of(run))


TABLES = (
    declared(
        "drift",
        cells=_cells(),
        claims=(
            *(
                Claim(
                    f"{data}: halves finds the clusters again within 5 rounds of a staggered drift, on average",
                    lambda ours, data=data: ours(f"{data}, staggered/halves rounds") < EVERY,  # type: ignore[misc]
                    place="ours",
                )
                for data in DATA
            ),
            *(
                Claim(
                    f"{data}: through a staggered drift, halves is at most 2 points below the oracle",
                    lambda ours, data=data: ours(f"{data}, staggered/halves") >= ours(f"{data}, staggered/oracle") - 2,  # type: ignore[misc]
                    place="ours",
                )
                for data in DATA
            ),
        ),
        more=_gaps,
    ),
)
