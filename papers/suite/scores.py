"""What contenders scored on the suite's federations, seed by seed, and how they rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from papers.cell import Outcome, Outcomes, Run
from papers.suite.cases import CASES, LAST, Case, Half
from papers.suite.contenders import BEST_TAU, CONTENDERS, NEWER, TAUS, Contender

STOCFL = tuple(f"stocfl-{tau:g}" for tau in TAUS)
NOT_TOLD = tuple(contender.name for contender in CONTENDERS if not contender.told)
TOLD = (*(contender.name for contender in CONTENDERS if contender.told and contender.name not in STOCFL), BEST_TAU)
LATE = tuple(contender.name for contender in NEWER)
EVERY = (*NOT_TOLD, *LATE, *TOLD)


@dataclass(frozen=True)
class Seen:
    """One run: its score in points, how many clusters it ended with, how well they agree with the true ones."""

    score: float
    clusters: int
    ari: float | None
    processor: float | None  # seconds; None where only the time that passed is known


def seen(outcome: Outcome, case: Case) -> Seen:
    """What counts of an outcome. A run that diverged scores 0, and so does a regression that explains nothing."""
    values = 100 * outcome.column(case.score)[-LAST:]
    score = float(np.mean(values)) if len(values) else 0.0
    ari = outcome.column("ari")
    return Seen(
        score=max(score, 0.0) if math.isfinite(score) else 0.0,
        clusters=int(outcome.column("clusters")[-1]),
        ari=float(ari[-1]) if len(ari) and math.isfinite(ari[-1]) else None,
        processor=outcome.processor,
    )


@dataclass(frozen=True)
class OnCase:
    """What was run on one federation, by contender and seed. Everyone in it has the same seeds."""

    half: Half
    case: Case
    runs: Mapping[str, Mapping[int, Seen]]
    expected: tuple[str, ...]  # contenders that are run here

    def seeds(self, *contenders: str) -> list[int]:
        """The seeds that all have; none if one of the named contenders was not run."""
        if not self.runs or not set(contenders) <= set(self.runs):
            return []
        return sorted(next(iter(self.runs.values())))

    def mean(self, contender: str) -> float:
        """The mean score over the seeds."""
        return float(np.mean([run.score for run in self.runs[contender].values()]))

    def best(self) -> str:
        """The contender with the highest mean score; the first of equals."""
        return max((name for name in EVERY if name in self.runs), key=self.mean)

    def below(self, contender: str, other: str) -> tuple[float, float]:
        """How far a contender is below another on average, and the standard error of it (0 for a single seed)."""
        mine, theirs = self.runs[contender], self.runs[other]
        apart = np.array([theirs[seed].score - mine[seed].score for seed in self.seeds()])
        error = float(apart.std(ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
        return float(apart.mean()), error


def read(results: Outcomes, runs: Mapping[str, Run], contenders: Sequence[Contender] = CONTENDERS) -> list[OnCase]:
    """What there is of these contenders, over the seeds that they share. runs: the table's, by the name of their cell.

    The best tau of StoCFL takes five runs. Where they have fewer seeds than the others share, it is left out.
    """
    return [_on_case(half, case, results, runs, contenders) for half, case in CASES]


def _on_case(
    half: Half, case: Case, results: Outcomes, runs: Mapping[str, Run], contenders: Sequence[Contender]
) -> OnCase:
    found: dict[str, dict[int, Seen]] = {}
    here = [c.name for c in contenders if f"{half}/{case.name}/{c.name}" in runs]
    for name in here:
        outcomes = results.of(runs[f"{half}/{case.name}/{name}"])
        if outcomes:
            found[name] = {outcome.seed: seen(outcome, case) for outcome in outcomes}
    expected = tuple(name for name in here if name not in STOCFL or name in NOT_TOLD)
    compared = [set(found[name]) for name in expected if name in found]
    shared = set.intersection(*compared) if compared else set()
    kept = {name: found[name] for name in expected if name in found}
    if shared and all(shared <= set(found.get(name, {})) for name in STOCFL):
        kept[BEST_TAU] = max((found[name] for name in STOCFL), key=lambda tau: np.mean([tau[s].score for s in shared]))
    same = {name: {seed: by_seed[seed] for seed in shared} for name, by_seed in kept.items()}
    return OnCase(half, case, same if shared else {}, expected)


def mean_ranks(cases: Sequence[OnCase]) -> dict[str, float]:
    """Of those that are told nothing: 1 is the best, equals share their places; the mean over federations.

    Who cannot be run on a federation has no place there; who was not run where it could be has none at all.
    """
    from scipy.stats import rankdata

    names = [name for name in (*NOT_TOLD, *LATE) if cases and complete(name, cases)]
    places: dict[str, list[float]] = {name: [] for name in names}
    for one in cases:
        here = [name for name in names if name in one.runs]
        for name, place in zip(here, rankdata([-round(one.mean(name), 6) for name in here]), strict=True):
            places[name].append(float(place))
    return {name: float(np.mean(found)) for name, found in places.items()}


def complete(name: str, cases: Sequence[OnCase]) -> bool:
    """Whether a contender was run on every one of these federations that it can be run on, and on some."""
    return any(name in one.runs for one in cases) and all(name in one.runs or name not in one.expected for one in cases)
