"""The frozen suite: federations of every kind, the same budget for all contenders, in two halves."""

from __future__ import annotations

from papers.cell import Cell, OwnPage, Run, Tree, final
from papers.declared import declared
from papers.suite.advice import which_method
from papers.suite.cases import CASES, LAST, Case, Half
from papers.suite.contenders import CONTENDERS, NEWER, Contender
from papers.suite.page import markdown, newer_summary, summary
from papers.suite.targets import targets

START = 5.0  # seconds until a run's first round


def run_of(half: Half, case: Case, contender: Contender) -> Run:
    """A contender on a federation."""
    config: Tree = {
        "data": case.data,
        "model": case.model,
        "local": case.local,
        "participation": case.participation,
        "evaluate_last": LAST,
        "weigh_clients": "equal",
        "engine": {"name": "batched", "workers": 1},
        "checkpoint_every": 1000,
    }
    config |= contender.config(case)
    config["evaluate_every"] = config["rounds"]
    name = f"suite/{half}/{case.name}/{contender.name}"
    return Run(
        name,
        config,
        wave=0 if half == "first" else 1,
        seconds=START + contender.cost * case.seconds,
    )


def _cell(half: Half, case: Case, contender: Contender) -> Cell:
    return Cell(f"{half}/{case.name}", contender.name, run_of(half, case, contender), final(LAST, case.score), None)


def _cells() -> tuple[Cell, ...]:
    return tuple(_cell(half, case, one) for one in CONTENDERS for half, case in CASES if one.applies(case))


def _newer_cells() -> tuple[Cell, ...]:
    """Federation by federation: one on which everyone was run counts in the second ranking."""
    return tuple(_cell(half, case, one) for half, case in CASES for one in NEWER if one.applies(case))


_CELLS, _NEWER = _cells(), _newer_cells()
RUNS = {cell.name: cell.run for cell in _CELLS}
ALL_RUNS = RUNS | {cell.name: cell.run for cell in _NEWER}
TABLES = (
    declared(
        "suite",
        cells=_CELLS,
        own_page=OwnPage(
            "suite.md",
            lambda results: targets(results, RUNS),
            lambda results: summary(results, RUNS),
            lambda results: markdown(results, ALL_RUNS),
            also=(("which-method.md", lambda results: which_method(results, RUNS)),),
        ),
    ),
    declared(
        "suite-newer",
        cells=_NEWER,
        own_page=OwnPage(
            "suite.md",
            lambda _: (),
            lambda results: newer_summary(results, ALL_RUNS),
            lambda results: markdown(results, ALL_RUNS),
        ),
    ),
)
