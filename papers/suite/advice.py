"""docs/which-method.md: which method serves which kind of clients. Every number and every order is of the suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from papers.cell import Outcomes, Run
from papers.suite.cases import CASES
from papers.suite.contenders import K_METHODS
from papers.suite.scores import NOT_TOLD, TOLD, OnCase, read
from papers.suite.targets import OURS

CLEAR = 1.0  # points; a smaller difference is called the same
INTRODUCTION = """\
# Which method for my data?

Written by `python -m papers --report` from [the suite](suite.md): every number and every order below is computed from
its runs on {federations} of {all} federations, on which every contender was run, with {seeds}. Scores are accuracies in
percent (100 R² for the regression), and all methods had the same budget of local steps. The first half of the
federations was used to develop Halves; *second half* counts the others alone, which [were seen too](suite.md).

If you do not know what kind of clients you have, you need not choose: [`coterie inspect`](inspect.md) says whether they
form groups before anything is trained, and [`halves`](halves.md), the default of `coterie run`, measures it as it goes.
"""


@dataclass(frozen=True)
class Kind:
    """A kind of federation, as a user would know it."""

    title: str
    text: str
    holds: Callable[[OnCase], bool]


def _mild(one: OnCase) -> bool:
    return one.case.name.endswith("dirichlet-1")


KINDS = (
    Kind(
        "Clients form groups",
        "A few kinds of clients, and clients of a kind are alike: sensors turned differently, forms filled in by other "
        "rules, regions with their own classes.",
        lambda one: (one.case.clusters or 1) > 1 and one.case.crisp,
    ),
    Kind(
        "Groups overlap",
        "Clients are mixtures of two kinds, or have some of the classes of their group.",
        lambda one: (one.case.clusters or 1) > 1 and not one.case.crisp,
    ),
    Kind(
        "Every client differs",
        "Strong label skew of each client's own, people with habits of their own, other inputs at every client.",
        lambda one: one.case.clusters is None and not _mild(one),
    ),
    Kind("Clients differ a little", "Mild label skew (Dirichlet 1): all have all classes, in other shares.", _mild),
    Kind(
        "Clients are alike",
        "Samples are dealt at random, or clients differ only in how many they have.",
        lambda one: one.case.clusters == 1,
    ),
)


def which_method(results: Outcomes, runs: Mapping[str, Run]) -> str:
    """The page."""
    cases = [one for one in read(results, runs) if one.seeds(*one.expected)]  # on which everyone was run
    seeds = sorted({len(one.seeds(*one.expected)) for one in cases})
    many = "no seed" if not seeds else f"{'/'.join(map(str, seeds))} seed{'s' if seeds != [1] else ''}"
    lines = [INTRODUCTION.format(federations=len(cases), all=len(CASES), seeds=many)]
    for kind in KINDS:
        lines += _section(kind, [one for one in cases if kind.holds(one)])
    return "\n".join([*lines, *_worth(cases), "`python -m papers suite`"]) + "\n"


def _section(kind: Kind, cases: Sequence[OnCase]) -> list[str]:
    lines = [f"## {kind.title}", "", kind.text, ""]
    if not cases:
        return [*lines, "Nothing was run yet.", ""]
    scores = _means(cases)
    second = _means([one for one in cases if one.half == "second"])
    first, *_ = blind = [name for name in _by_score(scores) if name in NOT_TOLD]
    lines += [_sentence(scores, blind, first), "", f"{', '.join(one.case.name for one in cases)}:", ""]
    lines += ["| method | told | mean score | second half |", "|---|---|---|---|"]
    for name in _by_score(scores):
        told = "" if name in NOT_TOLD else "the truth"
        lines.append(f"| {name} | {told} | {scores[name]:.1f} | {f'{second[name]:.1f}' if name in second else ''} |")
    return [*lines, ""]


def _means(cases: Sequence[OnCase]) -> dict[str, float]:
    """The mean score of the contenders that were run on all of these federations."""
    names = [name for name in (*NOT_TOLD, *TOLD) if cases and all(name in one.runs for one in cases)]
    return {name: float(np.mean([one.mean(name) for one in cases])) for name in names}


def _by_score(scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda name: -scores[name])


def _sentence(scores: Mapping[str, float], blind: Sequence[str], first: str) -> str:
    """What the numbers say of methods that are told nothing."""
    near = [name for name in blind if scores[first] - scores[name] <= CLEAR]
    text = f"Of the methods that are told nothing, **{first}** has the highest mean, {scores[first]:.1f}"
    others = [f"{name} ({scores[name]:.1f})" for name in near if name != first]
    text += f"; within a point: {', '.join(others)}." if others else "; no other is within a point."
    rest = [f"{name} {scores[name]:.1f}" for name in (OURS, "fedavg", "ditto", "local") if name in set(blind) - {*near}]
    return text + (f" For comparison: {', '.join(rest)}." if rest else "")


def _worth(cases: Sequence[OnCase]) -> list[str]:
    """What it is worth to know the number of clusters: the same methods, told and not told."""
    grouped = [one for one in cases if KINDS[0].holds(one) or KINDS[1].holds(one)]
    scores = _means(grouped)
    names = [name for name in (*K_METHODS, "fesem-cam") if {f"{name}-true", f"{name}-auto"} <= set(scores)]
    if not names:
        return []
    rows = [
        f"| {name} | {scores[f'{name}-true']:.1f} | {scores[f'{name}-auto']:.1f} |"
        for name in sorted(names, key=lambda name: -scores[f"{name}-true"])
    ]
    return [
        *("## What is it worth to know the number of groups?", ""),
        f"On the {len(grouped)} federations with several kinds of clients, `halves` is told nothing and scores "
        f"{scores[OURS]:.1f} on average. Others, with the true number of clusters and with `k: auto`:",
        *("", "| method | true k | `k: auto` |", "|---|---|---|", *rows, ""),
    ]
