"""Several runs in one figure: seeds of the same configuration are one curve with its spread."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.text import listing
from coterie.tools.report.figures_rounds import LOG, NAMES, Score, spans_decades
from coterie.tools.report.figures_style import (
    OTHERS,
    Theme,
    bar_marker,
    blank,
    colour,
    dash,
    percent,
    plain,
    see_through,
    symbol,
    thin,
)
from coterie.tools.report.ranking import Group, split_of, spread
from coterie.tools.report.reading import Floats, Ints

SIZES = 10  # clusters per run drawn one by one


@dataclass(frozen=True, eq=False)
class Pooled:
    """The mean over seeds by round, and its standard deviation: NaN where only one seed got that far."""

    round: Ints
    mean: Floats
    std: Floats


def pool(group: Group, what: Score) -> Pooled | None:
    """Over the rounds that any seed evaluated: on validation samples where the runs validate."""
    curves = [run.curve.by_round for run in group.counted]
    if not curves:
        return None
    rounds = np.unique(np.concatenate([c.round[~np.isnan(getattr(c, what))] for c in curves]))
    if not len(rounds):
        return None
    table = np.full((len(curves), len(rounds)), np.nan)
    for row, curve in zip(table, curves, strict=True):
        values = getattr(curve, what)
        there = ~np.isnan(values)
        row[np.searchsorted(rounds, curve.round[there])] = values[there]
    seeds = (~np.isnan(table)).sum(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one seed has no spread: NaN is what is wanted
        std = np.where(seeds > 1, np.nanstd(table, axis=0, ddof=1), np.nan)
    return Pooled(rounds, np.nanmean(table, axis=0), std)


def compare_curves(groups: Sequence[Group], what: Score = "accuracy", theme: Theme = "light") -> Any:
    """A score over rounds, a curve per configuration: the mean over seeds, and one standard deviation around it."""
    pooled = [(place, group, pool(group, what)) for place, group in enumerate(groups)]
    drawn = [(place, group, curve) for place, group, curve in pooled if curve is not None]
    if not drawn:
        return None
    name = NAMES[what]
    say = percent if what != "loss" else "{:.4g}".format
    ends = listing([f"{group.label} {say(float(curve.mean[-1]))}{_of(group)}" for _, group, curve in drawn])
    unit = "(%)" if what != "loss" else "(mean over clients)"
    title = f"{name} over rounds, mean ± std over seeds"
    figure = blank(
        title[0].upper() + title[1:], "round", f"{name} {unit}", f"In the last round: {ends}.", theme, height=460
    )
    log = what == "loss" and spans_decades(*(curve.mean for _, _, curve in drawn))
    for place, group, curve in drawn:
        some = thin(len(curve.round))
        x, mean, std = curve.round[some], curve.mean[some], curve.std[some]
        label = plain(group.label) + (f" ({len(group.counted)} seeds)" if len(group.counted) > 1 else "") + _of(group)
        both = ~np.isnan(std)
        low = np.maximum(mean - std, mean / 10) if log else mean - std  # below 0 there is nothing on such an axis
        if both.any():
            figure.add_scatter(
                x=np.concatenate([x[both], x[both][::-1]]),
                y=np.concatenate([(mean + std)[both], low[both][::-1]]),
                fill="toself",
                fillcolor=see_through(place),
                mode="none",
                hoverinfo="skip",
                showlegend=False,
                legendgroup=str(place),
            )
        figure.add_scatter(
            x=x,
            y=mean,
            mode="lines" if len(x) > 1 else "markers",
            name=label,
            legendgroup=str(place),
            line={"width": 2.5, "color": colour(place), "dash": dash(place)},
            marker={"symbol": symbol(place)},
        )
    figure.update_layout(hovermode="x unified", showlegend=True)
    figure.update_yaxes(tickformat=".0%" if what != "loss" else None, hoverformat=".1%" if what != "loss" else ".4g")
    if log:
        figure.update_yaxes(**LOG)
    return figure


def _of(group: Group) -> str:
    return " (validation)" if group.validates else ""


def final_scores(groups: Sequence[Group], what: Score = "accuracy", theme: Theme = "light") -> Any:
    """The last score of every seed as a point, and each configuration's mean as a line."""
    split = split_of(groups)
    found = [(place, group, group.values(what, split)) for place, group in enumerate(groups)]
    found = [(place, group, values) for place, group, values in found if values]
    if not found:
        return None
    name, say = NAMES[what], percent if what != "loss" else "{:.4g}".format
    means = [(group.label, spread(list(values.values()))) for _, group, values in found]
    ends = listing([f"{label} {say(s.mean)}" for label, s in means if s is not None])
    of = f"{split} " if any(group.validates for group in groups) else ""
    figure = blank(
        f"Last {of}{name} of every seed",
        f"{name} (%)" if what != "loss" else "loss (mean over clients)",
        "",
        f"Means over seeds: {ends}.",
        theme,
        height=160 + 44 * len(found),
    )
    for place, group, values in found:
        label = plain(group.label, 40)
        figure.add_scatter(
            x=list(values.values()),
            y=[label] * len(values),
            mode="markers",
            name=label,
            showlegend=False,
            marker={"color": colour(place), "symbol": symbol(place), "size": 10, "opacity": 0.8},
            customdata=[f"seed {seed}" if seed >= 0 else "another run" for seed in values],
            hovertemplate="%{y}, %{customdata}: %{x}<extra></extra>",
        )
    figure.add_scatter(
        x=[s.mean for _, s in means if s is not None],
        y=[plain(label, 40) for label, _ in means],
        mode="markers",
        name="mean over seeds",
        marker={"symbol": "line-ns-open", "size": 22, "color": "#8a8a8a", "line": {"width": 3}},
        hovertemplate="%{y}, mean: %{x}<extra></extra>",
    )
    figure.update_xaxes(tickformat=".0%" if what != "loss" else None, hoverformat=".1%" if what != "loss" else ".4g")
    if what == "loss" and spans_decades(np.array([v for _, _, values in found for v in values.values()])):
        figure.update_xaxes(**LOG)
    figure.update_yaxes(type="category", autorange="reversed")
    figure.update_layout(showlegend=True, legend={"y": -90 / (44 * len(found) + 60)})
    return figure


def compare_sizes(groups: Sequence[Group], theme: Theme = "light") -> Any:
    """Clusters of every run by size at its last evaluation, side by side. None where all runs have one cluster."""
    rows = [
        (f"{group.label}, seed {run.seed}" if run.seed is not None else group.label, run.curve.last_sizes)
        for group in groups
        for run in group.counted
    ]
    rows = [(label, tuple(sorted(sizes, reverse=True))) for label, sizes in rows if sizes]
    if not rows or max(len(sizes) for _, sizes in rows) < 2:
        return None
    counts = sorted({len(sizes) for _, sizes in rows})
    many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    figure = blank(
        "Cluster sizes at the last evaluation",
        "clients",
        "",
        f"{len(rows)} runs with {many} clusters; the parts of a bar are a run's clusters, the largest on the left"
        + (f" and all beyond the {_ordinal(SIZES)} in grey." if counts[-1] > SIZES else "."),
        theme,
        height=120 + 28 * len(rows),
    )
    labels = _distinct([plain(label, 50) for label, _ in rows])
    deepest = max(len(sizes) for _, sizes in rows)
    for place in range(min(deepest, SIZES)):
        figure.add_bar(
            orientation="h",
            y=labels,
            x=[sizes[place] if place < len(sizes) else 0 for _, sizes in rows],
            name=f"{_ordinal(place + 1)} largest" if place else "largest",
            marker=bar_marker(place),
        )
    if deepest > SIZES:
        left = [sum(sizes[SIZES:]) for _, sizes in rows]
        figure.add_bar(orientation="h", y=labels, x=left, name="all smaller", marker=bar_marker(OTHERS))
    # No legend: it would say no more than the order of the parts does, and take more room than the bars.
    figure.update_layout(barmode="stack", bargap=0.25, showlegend=False)
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def _distinct(labels: list[str]) -> list[str]:
    """Two runs of the same name would be one bar."""
    seen: dict[str, int] = {}
    out = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        out.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return out


def _ordinal(number: int) -> str:
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number, 'th')}"


def importance(shares: Mapping[str, float], metric: str, theme: Theme = "light") -> Any:
    """A bar per key, the most important on top."""
    told = listing([f"{key} {percent(share)}" for key, share in shares.items()])
    figure = blank(
        f"How much each key matters to {metric}",
        "importance (% of what the keys explain)",
        "",
        f"Of the differences in {metric} that the keys explain: {told}.",
        theme,
        height=140 + 40 * len(shares),
    )
    figure.add_bar(
        orientation="h",
        y=[plain(key, 40) for key in shares],
        x=list(shares.values()),
        marker=bar_marker(0),
        texttemplate="%{x:.0%}",
        textposition="auto",
        hovertemplate="%{y}: %{x:.1%}<extra></extra>",
    )
    figure.update_xaxes(tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed")
    figure.update_layout(bargap=0.3)
    return figure
