"""What Halves is meant to reach on the suite, checked on the numbers: each half of the federations by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from papers.cell import Checked, Outcomes, Run
from papers.suite.cases import HALVES, SEEDS, SHOWN, Half
from papers.suite.scores import OnCase, mean_ranks, read

OURS = "halves"
POINTS, MEAN, EXACT, CLOSE = 1.0, 0.5, 0.9, 0.3


def targets(results: Outcomes, runs: Mapping[str, Run]) -> list[Checked]:
    """All of them; None where a number is missing."""
    cases = read(results, runs)
    return [one for half in HALVES for one in of_half(half, [case for case in cases if case.half == half])]


def of_half(half: Half, cases: Sequence[OnCase]) -> list[Checked]:
    """The targets on one half of the federations."""
    return [
        _checked(half, "first in mean rank of all that are told nothing", cases, _complete, _first),
        _checked(
            *(half, f"never more than {POINTS:g} point or two standard errors below the best of all", cases),
            *(_complete, _never_far),
        ),
        _checked(half, f"at most {MEAN:g} points below the best of all on average", cases, _complete, _near),
        _checked(
            half, f"the number of clusters exact in {EXACT:.0%} of the crisp cases", _crisp(cases), _with(), _exact
        ),
        _checked(half, "one cluster on IID data and quantity skew", _alike(cases), _with(), _one),
        _checked(
            half,
            f"Dirichlet 1: not below FedAvg - {CLOSE:g}",
            _dirichlet_1(cases),
            _with("fedavg"),
            _not_below("fedavg"),
        ),
        _checked(
            *(half, f"Dirichlet 0.1 and natural clients: not below Ditto - {CLOSE:g}", _all_differ(cases)),
            *(_with("ditto"), _not_below("ditto")),
        ),
    ]


def _crisp(cases: Sequence[OnCase]) -> list[OnCase]:
    return [one for one in cases if one.case.crisp and (one.case.clusters or 1) > 1]


def _alike(cases: Sequence[OnCase]) -> list[OnCase]:
    return [one for one in cases if one.case.clusters == 1]


def _dirichlet_1(cases: Sequence[OnCase]) -> list[OnCase]:
    return [one for one in cases if one.case.name.endswith("dirichlet-1")]


def _all_differ(cases: Sequence[OnCase]) -> list[OnCase]:
    return [one for one in cases if one.case.clusters is None and not one.case.name.endswith("dirichlet-1")]


# ---------------------------------------------------------------------------------------- what must have been run


def _complete(one: OnCase) -> int:
    """How many seeds there are of every contender."""
    return len(one.seeds(*one.expected))


def _with(*others: str) -> Callable[[OnCase], int]:
    return lambda one: len(one.seeds(OURS, *others))


def _checked(
    half: Half,
    text: str,
    cases: Sequence[OnCase],
    ready: Callable[[OnCase], int],
    judge: Callable[[Sequence[OnCase]], tuple[bool, str]],
) -> Checked:
    """Judged when everything it needs was run; before that, what is known so far is said. ready: how many seeds."""
    done = [one for one in cases if ready(one)]
    if not done:
        return Checked(f"{SHOWN[half]}: {text}", None, "")
    holds, note = judge(done)
    if sum(map(ready, done)) < SEEDS * len(cases):
        runs = f"{len(done)} of {len(cases)} federations, {min(map(ready, done))} of {SEEDS} seeds"
        return Checked(f"{SHOWN[half]}: {text}", None, f"so far, on {runs}: {note}")
    return Checked(f"{SHOWN[half]}: {text}", holds, note)


# ------------------------------------------------------------------------------------------------ what is judged


def _first(cases: Sequence[OnCase]) -> tuple[bool, str]:
    ranks = mean_ranks(cases)
    others = {name: rank for name, rank in ranks.items() if name != OURS}
    if not others:
        return True, "nobody else was run"
    next_best = min(others, key=lambda name: others[name])
    return ranks[OURS] < others[next_best], f"{OURS} {ranks[OURS]:.2f}, {next_best} {others[next_best]:.2f}"


def _never_far(cases: Sequence[OnCase]) -> tuple[bool, str]:
    far = []
    for one in cases:
        best = one.best()
        by, error = one.below(OURS, best)
        if by > max(POINTS, 2 * error):
            far.append(f"{one.case.name} {by:.1f} below {best}")
    return not far, ", ".join(far) if far else f"on none of {len(cases)}"


def _near(cases: Sequence[OnCase]) -> tuple[bool, str]:
    by = float(np.mean([one.below(OURS, one.best())[0] for one in cases]))
    return by <= MEAN, f"{by:.2f}"


def _exact(cases: Sequence[OnCase]) -> tuple[bool, str]:
    right = [run.clusters == one.case.clusters for one in cases for run in one.runs[OURS].values()]
    wrong = [one.case.name for one in cases if any(r.clusters != one.case.clusters for r in one.runs[OURS].values())]
    note = f"{sum(right)} of {len(right)} runs" + (f"; not always on {', '.join(wrong)}" if wrong else "")
    return sum(right) >= EXACT * len(right), note


def _one(cases: Sequence[OnCase]) -> tuple[bool, str]:
    found = [run.clusters for one in cases for run in one.runs[OURS].values()]
    return all(k == 1 for k in found), f"{found.count(1)} of {len(found)} runs"


def _not_below(other: str) -> Callable[[Sequence[OnCase]], tuple[bool, str]]:
    def judge(cases: Sequence[OnCase]) -> tuple[bool, str]:
        by = {one.case.name: one.below(OURS, other)[0] for one in cases}
        note = ", ".join(f"{name} {-value:+.1f}" for name, value in by.items())
        return all(value <= CLOSE for value in by.values()), note

    return judge
