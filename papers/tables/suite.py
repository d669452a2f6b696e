"""The frozen suite: federations of every kind, the same budget for all contenders, in two halves."""

from __future__ import annotations

from papers.cell import Cell, OwnPage, Run, Table, Tree, final
from papers.suite.advice import which_method
from papers.suite.cases import CASES, LAST, SEEDS, Case, Half
from papers.suite.contenders import CONTENDERS, NEWER, Contender
from papers.suite.page import markdown, newer_summary, summary
from papers.suite.targets import targets

START = 5.0  # seconds until a run's first round
# Seconds of FedAvg's rounds, measured once on a busy two-core machine: for the estimate of `--plan` alone.
SECONDS = {
    "digits-rotated-4": 3,
    "fmnist-shifted-4": 5,
    "fmnist-swapped-4": 5,
    "mnist-groups-4": 4,
    "cifar-cluster-dirichlet-5": 11,
    "mnist-mixture-10-90": 6,
    "fmnist-dirichlet-0.1": 5,
    "fmnist-dirichlet-1": 6,
    "mnist-iid": 4,
    "fmnist-quantity": 5,
    "har-people": 6,
    "regression-4": 3,
    "mnist-rotated-4": 7,
    "mnist-rotated-6": 7,
    "digits-rotated-2": 2,
    "cifar-classes-3-2": 12,
    "mnist-fmnist-hybrid": 14,
    "mnist-rotated-classes-8": 7,
    "fmnist-mixture-30-70": 6,
    "mnist-dirichlet-0.1": 6,
    "mnist-dirichlet-1": 5,
    "fmnist-iid": 7,
    "mnist-quantity": 6,
    "synthetic-1-1": 5,
}


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
        seconds=START + contender.cost * SECONDS[case.name],
    )


def _cell(half: Half, case: Case, contender: Contender) -> Cell:
    return Cell(f"{half}/{case.name}", contender.name, run_of(half, case, contender), final(LAST, case.score), None)


def _cells() -> tuple[Cell, ...]:
    return tuple(_cell(half, case, one) for one in CONTENDERS for half, case in CASES if one.applies(case))


def _newer_cells() -> tuple[Cell, ...]:
    """Federation by federation: one on which everyone was run counts in the second ranking."""
    return tuple(_cell(half, case, one) for half, case in CASES for one in NEWER if one.applies(case))


PROTOCOL = (
    "24 federations, 12 of them to develop on and 12 that were held out until Halves was first run on them; list, "
    "budgets and seeds were fixed before that. Per federation every contender has the same model, rounds, clients per "
    "round and local steps per visit and trained model. Score: accuracy in percent, for regression 100 R2 (at least "
    "0), each client counting the same, mean over the last three rounds."
)
_CELLS, _NEWER = _cells(), _newer_cells()
RUNS = {cell.name: cell.run for cell in _CELLS}
ALL_RUNS = RUNS | {cell.name: cell.run for cell in _NEWER}
TABLES = (
    Table(
        name="suite",
        title="The frozen suite: methods that are told nothing, and methods that are told the truth",
        paper="no paper: this library's own",
        protocol=PROTOCOL,
        cells=_CELLS,
        tolerance=0.0,
        seeds=SEEDS,
        own_page=OwnPage(
            "suite.md",
            lambda results: targets(results, RUNS),
            lambda results: summary(results, RUNS),
            lambda results: markdown(results, ALL_RUNS),
            also=(("which-method.md", lambda results: which_method(results, RUNS)),),
        ),
    ),
    Table(
        name="suite-newer",
        title="The newer methods on the frozen suite",
        paper="no paper: this library's own",
        protocol=f"{PROTOCOL} The newer methods came after the list was fixed; they are told nothing and ranked apart.",
        cells=_NEWER,
        tolerance=0.0,
        seeds=SEEDS,
        own_page=OwnPage(
            "suite.md",
            lambda _: (),
            lambda results: newer_summary(results, ALL_RUNS),
            lambda results: markdown(results, ALL_RUNS),
        ),
    ),
)
