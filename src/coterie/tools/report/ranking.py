"""Which configuration is better, over seeds: means and spreads, mean ranks, and whether a difference is more than luck.

The test is a t-test: paired where both configurations ran under the same seeds (a seed fixes the data and the first
model, so pairing takes out what both share), Welch's otherwise. Wilcoxon's signed ranks would assume less, but with
five seeds its smallest two-sided p is 2/32 = 0.06: it could never speak. Below three seeds nothing is tested. Every
configuration is compared with the best, and the p values are corrected by Holm's method.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.core.metrics import AgainstLocal, against_local
from coterie.tools.report import reading
from coterie.tools.report.record import Clients, RunRecord, Split, as_clients

LOCAL = "local"  # the method
NEEDS_LOCAL = "Gain over local and worse than local need runs of the method local with the same settings."
FREE = ("method", "engine", "checkpoint_every")  # in which a run and its `local` may differ


def circumstances(config: Mapping[str, Any], also: Iterable[str] = ()) -> str:
    """Seed, data, model and budget of a run as one text: everything but the method. also: what config does not say."""
    told = {key: value for key, value in config.items() if key not in FREE}
    return json.dumps([told, *also], sort_keys=True, default=str)


def of_record(record: RunRecord) -> str:
    """A run's circumstances; a run made in Python does not have its data and model in its configuration."""
    return circumstances(record.config, () if "data" in record.config else (record.data, record.model))


def alone(records: Iterable[RunRecord]) -> dict[str, RunRecord]:
    """The finished runs of the method `local`, by their circumstances."""
    return {of_record(r): r for r in records if r.method.lower() == LOCAL and r.clients is not None}


def beside(record: RunRecord, alone: Mapping[str, RunRecord]) -> AgainstLocal | None:
    """A run against its clients alone; None where there is no such run, and for `local` itself."""
    other = alone.get(of_record(record))
    if other is None or other is record:
        return None
    return compared(record.clients, other.clients)


def beside_directory(run: Path, other: Path) -> AgainstLocal | None:
    """The same for two run directories."""
    return compared(*(as_clients(reading.read_json(path / "clients.json").value) for path in (run, other)))


def compared(mine: Clients | None, other: Clients | None) -> AgainstLocal | None:
    """Client by client, by accuracy or, for regression, by loss."""
    if mine is None or other is None or mine.scored_on != other.scored_on:
        return None
    regression = bool(np.isnan(mine.accuracy).all())
    mine_, theirs = (
        dict(zip(table.ids.tolist(), (table.loss if regression else table.accuracy).tolist(), strict=True))
        for table in (mine, other)
    )
    return against_local(mine_, theirs, higher_is_better=not regression)


Measure = Literal["accuracy", "macro_f1", "ari", "loss"]
VALIDATED: tuple[Measure, ...] = ("accuracy", "loss")  # what is told of validation samples
ENOUGH = 3  # seeds, for a test
LEVEL = 0.05
TOLD = 3  # settings named in a label
IDLE = ("seed", "engine.workers")  # settings in which runs of one configuration differ; processes change no bits


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (None of one value) of as many values."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """Those that means and curves are made of: the last score before a failure is no result."""
        return tuple(run for run in self.runs if run.status != "failed" and run.rounds_done)

    @property
    def failures(self) -> tuple[str, ...]:
        """Why runs failed, each reason once."""
        return tuple(dict.fromkeys(run.problem or "unknown" for run in self.runs if run.status == "failed"))

    @property
    def validates(self) -> bool:
        """Whether its rounds were scored on validation samples."""
        return any(run.curve.validation is not None for run in self.counted)

    def values(self, measure: Measure, split: Split = "test") -> dict[int, float]:
        """The last value by seed; a run without a seed, or with another's, counts under a number of its own."""
        found: dict[int, float] = {}
        free = count(-1, -1)
        for run in self.counted:
            curve = run.curve if split == "test" else run.curve.validation
            value = None if curve is None else curve.last(measure)
            if value is not None:
                seed = run.seed if run.seed is not None and run.seed not in found else next(free)
                found[seed] = value
        return found


@dataclass(frozen=True)
class Standing:
    """A line of the ranking."""

    label: str
    runs: int
    failed: int  # of these
    accuracy: Spread | None
    macro_f1: Spread | None
    ari: Spread | None
    loss: Spread | None
    rank: float | None  # the mean over seeds that all configurations have; 1 is best
    p: float | None  # against the best, corrected; None for the best and where nothing was tested
    verdict: str
    data: str = ""  # on which data, where there are several
    validation_accuracy: Spread | None = None
    validation_loss: Spread | None = None
    worst_decile: Spread | None = None  # accuracy (loss, for regression) of the worst tenth of clients
    gain: Spread | None = None  # over clients alone, where there are runs of the method `local`
    worse: Spread | None = None  # the share of clients that fare worse than alone
    regression: bool = False  # these are losses

    @property
    def counted(self) -> str:
        """3, or 2 of 3 where one failed."""
        return f"{self.runs - self.failed} of {self.runs}" if self.failed else str(self.runs)


def group(records: Sequence[RunRecord]) -> list[Group]:
    """Runs by configuration without the seed, in the order they first appear.

    Runs without rounds are left out, but not those that failed: they are part of what was asked for.
    """
    by_key: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.rounds_done or record.status == "failed":
            by_key.setdefault(configuration(record), []).append(record)
    groups = list(by_key.values())
    return [Group(label, tuple(runs)) for label, runs in zip(labels([g[0] for g in groups]), groups, strict=True)]


def configuration(record: RunRecord) -> str:
    """All that must agree for two runs to be seeds of the same thing, as one text."""
    settings = dict(flat(record.config))
    for key in IDLE:
        settings.pop(key, None)
    if "data.name" not in settings:  # a run made in Python: its configuration does not tell data and model
        settings |= {"data": record.data.split(": ")[0], "model": record.model}
    if not record.config:
        settings["path"] = str(record.path)
    return repr(sorted(settings.items()))


def flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Settings by their key path, values as text."""
    found = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", str(value)))
    return found


def labels(records: Sequence[RunRecord]) -> list[str]:
    """A name for each: its method, and as few settings as tell those of the same method apart."""
    settings = [{k: v for k, v in flat(r.config) if k not in IDLE} for r in records]
    names = []
    for mine, record in zip(settings, records, strict=True):
        rivals = [s for s, r in zip(settings, records, strict=True) if r.method == record.method]
        keys = dict.fromkeys(key for rival in rivals for key in _apart(mine, rival))
        told = [f"{_word(key)}={mine.get(key, 'unset')}" for key in list(keys)[:TOLD]]
        names.append(" ".join([record.method, *told]))
    return [
        name if names.count(name) == 1 else f"{name} ({record.name})"
        for name, record in zip(names, records, strict=True)
    ]


def _apart(mine: Mapping[str, str], rival: Mapping[str, str]) -> list[str]:
    """The keys in which two runs differ; of two partitions with other names the names alone."""
    keys = [key for key in (*mine, *rival) if rival.get(key) != mine.get(key)]
    named = tuple(key.removesuffix("name") for key in keys if key.endswith(".name"))
    return [key for key in keys if key.endswith(".name") or not key.startswith(named)]


def _word(key: str) -> str:
    """The last part of a key that says something: partition for data.partition.name."""
    return key.removesuffix(".name").rsplit(".", 1)[-1]


def spread(values: Sequence[float]) -> Spread | None:
    """None of no values."""
    if not values:
        return None
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None, len(values))


def mean_ranks(scores: Sequence[Mapping[int, float]], higher_is_better: bool = True) -> list[float | None]:
    """The mean rank of each over the seeds that all have; equal values share their rank. None without such seeds."""
    from scipy.stats import rankdata

    shared = sorted(set.intersection(*(set(s) for s in scores))) if scores else []
    shared = [seed for seed in shared if seed >= 0]
    if not shared:
        return [None] * len(scores)
    table = np.array([[s[seed] for seed in shared] for s in scores])
    ranks = rankdata(-table if higher_is_better else table, axis=0)
    return [float(rank) for rank in ranks.mean(1)]


def p_value(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[float | None, str]:
    """Two-sided, and how it came about: in words where there is none."""
    from scipy import stats

    seeds = sorted(seed for seed in set(one) & set(other) if seed >= 0)
    if len(seeds) >= ENOUGH:
        apart = np.array([one[seed] - other[seed] for seed in seeds])
        if np.ptp(apart) <= 1e-12:
            return (1.0, "equal on every seed") if abs(apart[0]) <= 1e-12 else (None, "no spread over seeds")
        return float(stats.ttest_1samp(apart, 0.0).pvalue), f"paired t-test, {len(seeds)} seeds"
    if min(len(one), len(other)) < ENOUGH:
        return None, "too few seeds"
    a, b = list(one.values()), list(other.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of values that do not vary: their p is NaN
        p = float(stats.ttest_ind(a, b, equal_var=False).pvalue)
    return (None, "no spread over seeds") if math.isnan(p) else (p, f"Welch's t-test, {len(a)} and {len(b)} seeds")


def holm(ps: Sequence[float]) -> list[float]:
    """p values corrected for their number: the i-th smallest of m times (m - i + 1), never below a smaller one."""
    corrected, worst = [0.0] * len(ps), 0.0
    for place, index in enumerate(np.argsort(ps, kind="stable").tolist()):
        worst = max(worst, min(1.0, ps[index] * (len(ps) - place)))
        corrected[index] = worst
    return corrected


def split_of(groups: Sequence[Group]) -> Split:
    """Test samples; where none of these runs was tested (trials of a sweep), validation samples."""
    tested = any(g.values("loss") for g in groups)
    return "validation" if not tested and any(g.validates for g in groups) else "test"


def measure_of(groups: Sequence[Group]) -> Measure:
    """Accuracy where every configuration has one, loss otherwise; those that failed altogether are not asked."""
    return "accuracy" if all(g.values("accuracy", split_of([g])) for g in groups if g.counted) else "loss"


def rank(groups: Sequence[Group]) -> list[Standing]:
    """The configurations, best first, each against the best on the same data; data set by data set."""
    by_data: dict[str, list[Group]] = {}
    for one in groups:
        by_data.setdefault(_data(one.runs[0]), []).append(one)
    if len(by_data) == 1:
        return _rank(groups)
    names = [some[0].runs[0].data.split(": ")[0] for some in by_data.values()]
    titles = [name if name and names.count(name) == 1 else f"data {i}" for i, name in enumerate(names, 1)]
    pairs = zip(titles, by_data.values(), strict=True)
    return [replace(standing, data=title) for title, some in pairs for standing in _rank(some)]


def _data(record: RunRecord) -> str:
    """What data a run was on, as one text; scores on other data say nothing about these."""
    told = [(key, value) for key, value in flat(record.config) if key.startswith("data.")]
    return repr(sorted(told)) if told else record.data.split(": ")[0]


@dataclass(frozen=True)
class Comparison:
    """How several things stand to the best of them."""

    order: list[int]  # those that have scores, the best first
    tests: Mapping[int, tuple[float | None, str]]  # of all but the best: p against it, and how it came about
    corrected: Mapping[int, float]  # those p that there are, corrected for their number

    def as_good(self, i: int) -> bool | None:
        """Whether the difference to the best is within noise; None where nothing was tested."""
        if i not in self.corrected:
            return None
        return self.corrected[i] >= LEVEL


def against_best(scores: Sequence[Mapping[int, float]], higher_is_better: bool = True) -> Comparison:
    """Scores by seed, each against those of the best mean."""
    known = [i for i, s in enumerate(scores) if s]
    sign = -1 if higher_is_better else 1
    order = sorted(known, key=lambda i: sign * float(np.mean(list(scores[i].values()))))
    tests = {i: p_value(scores[order[0]], scores[i]) for i in order[1:]}
    tested = [(i, p) for i, (p, _) in tests.items() if p is not None]
    corrected = dict(zip([i for i, _ in tested], holm([p for _, p in tested]), strict=True))
    return Comparison(order, tests, corrected)


def _rank(groups: Sequence[Group]) -> list[Standing]:
    measure = measure_of(groups)
    higher = measure != "loss"
    split = split_of(groups)
    scores = [g.values(measure, split) for g in groups]
    found = against_best(scores, higher)
    known = sorted(found.order)
    ranks = dict(zip(known, mean_ranks([scores[i] for i in known], higher), strict=True))
    rest = [i for i in range(len(groups)) if i not in known]
    lonely = alone(run for g in groups for run in g.counted)
    return [
        _fair(
            _standing(groups[i], ranks.get(i), found.corrected.get(i), _verdict(groups[i], i, found, split)),
            *(groups[i], lonely),
        )
        for i in (*found.order, *rest)
    ]


def _fair(standing: Standing, of: Group, lonely: Mapping[str, RunRecord]) -> Standing:
    """With how the worst clients fare, and clients beside themselves alone."""
    worst = [value for run in of.counted if (value := run.worst_decile) is not None]
    against = [found for run in of.counted if (found := beside(run, lonely)) is not None]
    return replace(
        standing,
        worst_decile=spread(worst),
        gain=spread([one.gain for one in against]),
        worse=spread([one.worse for one in against]),
        regression=any(run.regression for run in of.counted),
    )


def _verdict(of: Group, i: int, found: Comparison, split: Split) -> str:
    failed = f"failed: {'; '.join(of.failures)}" if of.failures else ""
    if i not in found.order:
        return failed or ("not tested yet" if of.validates else "not evaluated")
    if i == found.order[0]:
        said = "best" if split == "test" else "best on validation samples"
    else:
        said = found.tests[i][1]
        if (as_good := found.as_good(i)) is not None:
            said = f"{'may be as good' if as_good else 'worse than the best'} ({said})"
    return f"{said}; {failed}" if failed else said


def _standing(of: Group, mean_rank: float | None, p: float | None, verdict: str) -> Standing:
    accuracy, macro_f1, ari, loss = (
        spread(list(of.values(measure).values())) for measure in ("accuracy", "macro_f1", "ari", "loss")
    )
    failed = sum(run.status == "failed" for run in of.runs)
    held, held_loss = (spread(list(of.values(measure, "validation").values())) for measure in VALIDATED)
    scores = accuracy, macro_f1, ari, loss
    return Standing(of.label, len(of.runs), failed, *scores, mean_rank, p, verdict, "", held, held_loss)
