"""The suite as a page of the documentation, and in a few lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from papers.cell import Checked, Outcomes, Run
from papers.suite.cases import CASES, HALVES, SHOWN, Case, Half
from papers.suite.contenders import BEST_TAU, CONTENDERS, NEWER
from papers.suite.scores import LATE, NOT_TOLD, TOLD, OnCase, mean_ranks, read
from papers.suite.targets import OURS, of_half

FINDERS = ("halves", "wecfl-auto", "ifca-auto", "fesem-auto", "fedgroup-auto", "fesem-cam-auto", "stocfl-0.5", "cfl")
LATE_FINDERS = ("halves", "clove-auto", "pacfl", "flux-elbow", "fedclust-auto", "fielding-silhouette", "feddrift")
HAR_PEOPLE = 30  # where the data says whose its samples are
MARKS = {True: "holds", False: "does NOT hold", None: "not known yet"}
INTRODUCTION = """\
# The suite: methods that are told nothing

Written by `python -m papers --report` from `results/suite/`. 24 federations of every kind, three seeds; the same
model, rounds, clients per round and local steps per visit for all contenders. The list, the budgets and the seeds were
fixed before [Halves](halves.md) was run on any of them. It had been developed on small federations of digits, some of
which are like those of the list. The first half of the federations was then used to develop it.

**The second half is no longer held out.** It was first run, with seed 0 of Halves, on 18 November 2026 at 12:15, and
its scores were printed on this page. Halves changed after that: trials that end early, the mean of a cluster's and a
personal model (17:23), draws that are tried on where personal models are ahead (20:04, its revision 3, with which this
half was run again), and the drift alarm (from 20:05 until the next morning). The first three were judged on the first
half, by the figures on Halves' page, but by someone who could see this half's scores. Of the drift alarm, one rule was
changed so that the outcome of `mnist-dirichlet-0.1` stayed the same to the last bit, and stored outcomes of 13
federations were compared before and after. The outcomes below are of revision 3 throughout; other seeds were run after
all of this.

- **Seeds:** a row compares the seeds that all its contenders have, and no others.
- **Not told:** the method gets the clients and nothing else, as a user has it. `-auto` is `k: auto`, `stocfl-0.5` is
  StoCFL with tau 0.5, the middle of the five values below and not its default (which is `auto`, newer than this list),
  FedEM has its three components. The others have their defaults; nothing was tuned.
- **Told:** `-true` is given the true number of clusters, `oracle` the clusters themselves, and `stocfl-best` is the
  best of five tau by test score, which cannot be had in practice. The first two are run where there are several kinds
  of clients. The five tau were run with fewer seeds than the others, so `stocfl-best` is compared only where the newer
  methods are, with the seeds that it has.
- **Score:** accuracy in percent, and for the regression 100 R² (at least 0). Each client counts the same. Mean over
  the last three rounds, then over seeds. A run that diverges scores 0.
- **Budget:** local steps of each model that is trained. Ditto, StoCFL and CAM train two models per visit, FedEM three;
  Halves, StoCFL, FedGroup and `k: auto` train beside it to find clusters. The column *cost* has the processor time of
  a contender's runs in that of FedAvg's, over the runs for which both were measured; it is left out where none were.
  FeSEM-CAM's warm-up is taken from its rounds. StoCFL represents clients by ten steps of full batches, as its authors'
  code does.
- **Newer:** methods that came to the library after this list was fixed. They are told nothing either: each finds its
  number of clusters by `k: auto` or by its own rule (`-elbow`, `-silhouette`), but for PACFL, which has its default of
  4 (the truth on six of the federations), and FedRC, which has its default of three components and is not run on the
  regression. FedRep trains the head and then the body for as many steps each as others train both; FedRC trains three
  models per visit. FedBN is not among them: no model here has a normalisation layer, and without one it is FedAvg with
  equal weights. They are ranked together with the others in a table of their own, over federations on which everyone
  was run; targets and the ranking above it are as they were declared, without them.
- **Test samples:** at least 2,000, but for the two federations of `digits`, which has 1,797 samples in all (720 of
  them for tests).
"""


def markdown(results: Outcomes, runs: Mapping[str, Run]) -> str:
    """docs/suite.md."""
    cases, everyone = read(results, runs), read(results, runs, (*CONTENDERS, *NEWER))
    lines = [INTRODUCTION, "## Federations", "", *_federations(), ""]
    for half in ("second", "first"):
        mine = [one for one in cases if one.half == half]
        lines += [f"## {SHOWN[half].capitalize()}", ""]
        lines += ["Targets of Halves:", "", *map(_target, of_half(half, mine)), ""]
        lines += _ranking(mine)
        for title, names in (("Not told", NOT_TOLD), ("Told", TOLD)):
            lines += [f"**{title}.** Scores; the best of all contenders is bold.", "", *_scores(mine, names), ""]
        lines += [
            "**Clusters found**, seed by seed, and the mean adjusted Rand index where there is a truth.",
            *("", *_found(mine, FINDERS), ""),
        ]
        lines += _with_newer(half, [one for one in everyone if one.half == half])
    return "\n".join([*lines, "`python -m papers suite`, `python -m papers suite-newer`"]) + "\n"


def _with_newer(half: Half, cases: Sequence[OnCase]) -> list[str]:
    """The ranking with the newer methods, over federations on which everyone was run."""
    run = [one for one in cases if one.seeds(*one.expected)]
    lines = [f"### {SHOWN[half].capitalize()}, with the newer methods", ""]
    if not run:
        return [*lines, "Nothing was run yet.", ""]
    lines += _ranking(run, len(cases))
    lines += ["**The newer methods.** Scores; the best of all contenders is bold.", "", *_scores(run, LATE), ""]
    return [*lines, "**Clusters found**, as above.", "", *_found(run, LATE_FINDERS), ""]


def newer_summary(results: Outcomes, runs: Mapping[str, Run]) -> str:
    """For a terminal: the ranking with the newer methods so far."""
    lines = []
    everyone = read(results, runs, (*CONTENDERS, *NEWER))
    for half in HALVES:
        run = [one for one in everyone if one.half == half and one.seeds(*one.expected)]
        lines.append(f"{SHOWN[half]}: everyone was run on {len(run)} federations")
        lines += [f"  {name:20s} rank {rank:5.2f}" for name, rank in _ranked(run)]
    return "\n".join(lines)


def summary(results: Outcomes, runs: Mapping[str, Run]) -> str:
    """For a terminal: per half the targets, and the ranking so far."""
    cases = read(results, runs)
    lines = []
    for half in HALVES:
        mine = [one for one in cases if one.half == half]
        started = _started(mine)
        lines += [f"{SHOWN[half]}: {len(started)} of {len(mine)} federations begun"]
        for name, rank in _ranked(started):
            lines.append(f"  {name:16s} rank {rank:5.2f}  score {np.mean([one.mean(name) for one in started]):5.1f}")
        lines += [f"  {MARKS[c.holds]}: {c.text}" + (f" ({c.note})" if c.note else "") for c in of_half(half, mine)]
    return "\n".join(lines)


def _started(cases: Sequence[OnCase]) -> list[OnCase]:
    """Federations that Halves and at least one other contender were run on, with a seed in common."""
    return [one for one in cases if OURS in one.runs and len(one.runs) > 1 and one.seeds()]


def _ranked(started: Sequence[OnCase]) -> list[tuple[str, float]]:
    return sorted(mean_ranks(started).items(), key=lambda pair: pair[1])


def _target(checked: Checked) -> str:
    text = checked.text.partition(": ")[2]
    return f"- {text}: **{MARKS[checked.holds]}**" + (f" ({checked.note})" if checked.note else "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), "|" + "---|" * len(cells)]


def _federations() -> list[str]:
    head = _head(("federation", "half", "clients", "per round", "kinds of clients", "model", "rounds", "local steps"))
    return [*head, *(_row(_about(half, case)) for half, case in CASES)]


def _about(half: Half, case: Case) -> tuple[str, ...]:
    kinds = "all differ" if case.clusters is None else str(case.clusters) + ("" if case.crisp else " (not crisp)")
    steps = f"{case.local['steps']} of batch {case.local['batch']}, lr {case.local['lr']:g}"
    share = f"{case.participation:.0%}"
    return (
        case.name,
        SHOWN[half].removesuffix(", seen"),
        str(case.partition.get("clients", HAR_PEOPLE)),
        share,
        kinds,
        str(case.model["name"]),
        str(case.rounds),
        steps,
    )


def _ranking(cases: Sequence[OnCase], of: int | None = None) -> list[str]:
    started = _started(cases)
    if not started:
        return ["Nothing was run yet.", ""]
    many = len(cases) if of is None else of
    over = f"{len(started)} of {many} federations, {_seeds(started)}"
    text = f"Means over {over}; ranks are among those that are told nothing."
    rows = [("contender", "mean rank", "mean score", "mean distance to the best of all", "cost")]
    ranked = _ranked(started)
    told = [name for name in TOLD if all(name in one.runs for one in started)]
    for name, rank in (*((name, f"{rank:.2f}") for name, rank in ranked), *((name, "told") for name in told)):
        here = [one for one in started if name in one.runs]
        score = np.mean([one.mean(name) for one in here])
        below = np.mean([one.below(name, one.best())[0] for one in here])
        on = "" if len(here) == len(started) else f" (on {len(here)} of them)"
        rows.append((name + on, rank, f"{score:.1f}", f"{below:.1f}", _cost(name, here)))
    columns = 5 if any(row[-1] for row in rows[1:]) else 4
    head, *body = (row[:columns] for row in rows)
    return [text, "", *_head(head), *map(_row, body), ""]


def _seeds(cases: Sequence[OnCase]) -> str:
    """Which seeds these numbers are of."""
    found = sorted({tuple(one.seeds()) for one in cases})
    return " or ".join(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}" for seeds in found)


def _cost(name: str, started: Sequence[OnCase]) -> str:
    """Processor time in that of FedAvg, over the runs for which both are known."""
    if name == BEST_TAU or not all("fedavg" in one.runs for one in started):
        return ""
    pairs = [
        (run.processor, one.runs["fedavg"][seed].processor) for one in started for seed, run in one.runs[name].items()
    ]
    known = [(mine, fedavg) for mine, fedavg in pairs if mine is not None and fedavg is not None]
    return f"{sum(mine for mine, _ in known) / sum(fedavg for _, fedavg in known):.1f}" if known else ""


def _scores(cases: Sequence[OnCase], names: Sequence[str]) -> list[str]:
    run = [name for name in names if any(name in one.runs for one in cases)]
    rows = [
        _row((one.case.name, *(_score(one, name) for name in run)))
        for one in cases
        if any(name in one.runs for name in run)
    ]
    return [*_head(("federation", *run)), *rows] if rows else ["Nothing was run yet."]


def _score(one: OnCase, name: str) -> str:
    if name not in one.runs:
        return ""
    values = [run.score for run in one.runs[name].values()]
    text = f"{np.mean(values):.1f}" + (f" ± {np.std(values):.1f}" if len(values) > 1 else "")
    return f"**{text}**" if one.seeds() and one.best() == name else text


def _found(cases: Sequence[OnCase], finders: Sequence[str]) -> list[str]:
    rows = []
    for one in cases:
        if not one.runs:
            continue
        kinds = "all differ" if one.case.clusters is None else str(one.case.clusters)
        rows.append(_row((one.case.name, kinds, *(_clusters(one, name) for name in finders))))
    return [*_head(("federation", "kinds", *finders)), *rows] if rows else ["Nothing was run yet."]


def _clusters(one: OnCase, name: str) -> str:
    runs = one.runs.get(name, {})
    agreed = [run.ari for _, run in sorted(runs.items()) if run.ari is not None]
    counted = " ".join(str(run.clusters) for _, run in sorted(runs.items()))
    several = (one.case.clusters or 1) > 1  # with one kind of clients the index says no more than the number
    return counted + (f" ({np.mean(agreed):.2f})" if agreed and several else "")
