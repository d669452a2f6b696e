"""How much each key of a search mattered, as a page in the style of reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core.text import listing
from coterie.tools.report.figures import Picture
from coterie.tools.report.figures_style import Theme, bar_marker, blank, percent, plain
from coterie.tools.report.page import single


def importance_figure(shares: Mapping[str, float], metric: str, theme: Theme = "light") -> Any:
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


def importance_page(shares: Mapping[str, float], metric: str, trials: int) -> str:
    """One HTML file that asks nothing of a network."""
    about = (
        f"Found by Optuna (fANOVA) from {trials} trials. With few trials, or where keys hardly vary, read it as a "
        "hint: it tells what the search saw, not what would happen elsewhere."
    )
    picture = Picture("importance", "Importance", importance_figure(shares, metric))
    return single(f"What matters to {metric}", about, picture)
