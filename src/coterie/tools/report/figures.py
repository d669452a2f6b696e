"""Every figure there is, by name: for one run, and for several together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from coterie.tools.report.figures_clusters import (
    center_similarity,
    client_similarity,
    confusion,
    mixtures,
    model_map,
    moves,
    sizes,
)
from coterie.tools.report.figures_rounds import (
    Reason,
    agreement,
    epsilon,
    epsilon_of_clients,
    heterogeneity,
    missing,
    missing_reasons,
    score,
    seconds,
    traffic,
)
from coterie.tools.report.figures_runs import compare_curves, compare_sizes, final_scores
from coterie.tools.report.figures_style import Theme, template, words
from coterie.tools.report.ranking import Group, group
from coterie.tools.report.record import RunRecord

Section = Literal["Scores", "Clusters", "Models", "Rounds", "Privacy"]


@dataclass(frozen=True)
class Kind:
    """A figure of one run: its name in files and links, where on a page it belongs, and how it is drawn."""

    name: str
    section: Section
    draw: Callable[..., Any]  # (record, theme=...) -> a plotly Figure, or None where the run has nothing to show


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure that was drawn."""

    name: str
    section: str
    figure: Any

    @property
    def words(self) -> str:
        """What it shows, in a sentence."""
        return words(self.figure)


KINDS = (
    Kind("accuracy", "Scores", partial(score, what="accuracy")),
    Kind("macro-f1", "Scores", partial(score, what="macro_f1")),
    Kind("loss", "Scores", partial(score, what="loss")),
    Kind("agreement", "Scores", agreement),
    Kind("sizes", "Clusters", sizes),
    Kind("moves", "Clusters", moves),
    Kind("confusion", "Clusters", confusion),
    Kind("mixtures", "Clusters", mixtures),
    Kind("map", "Models", model_map),
    Kind("clients-similarity", "Models", client_similarity),
    Kind("clusters-similarity", "Models", center_similarity),
    Kind("heterogeneity", "Models", heterogeneity),
    Kind("traffic", "Rounds", traffic),
    Kind("seconds", "Rounds", seconds),
    Kind("missing", "Rounds", missing),
    Kind("epsilon", "Privacy", epsilon),
    Kind("epsilon-clients", "Privacy", epsilon_of_clients),
)


def of_run(record: RunRecord, theme: Theme = "light", kinds: Sequence[Kind] = KINDS) -> list[Picture]:
    """Every figure that this run has something to show in."""
    drawn = ((kind, kind.draw(record, theme=theme)) for kind in kinds)
    return [Picture(kind.name, kind.section, figure) for kind, figure in drawn if figure is not None]


def of_runs(records: Sequence[RunRecord], theme: Theme = "light") -> list[Picture]:
    """Every figure of these runs together."""
    groups = group(records)
    drawn = {
        "compare-accuracy": compare_curves(groups, "accuracy", theme),
        "compare-macro-f1": compare_curves(groups, "macro_f1", theme),
        "compare-loss": compare_curves(groups, "loss", theme) if _losses_only(records) else None,
        "final-accuracy": final_scores(groups, "accuracy", theme),
        "final-loss": final_scores(groups, "loss", theme) if _losses_only(records) else None,
        "compare-sizes": compare_sizes(groups, theme),
    }
    return [Picture(name, "Comparison", figure) for name, figure in drawn.items() if figure is not None]


def _losses_only(records: Sequence[RunRecord]) -> bool:
    return any(record.regression for record in records)


__all__ = [
    "KINDS",
    "Group",
    "Kind",
    "Picture",
    "Reason",
    "Theme",
    "agreement",
    "center_similarity",
    "client_similarity",
    "compare_curves",
    "compare_sizes",
    "confusion",
    "epsilon",
    "epsilon_of_clients",
    "final_scores",
    "group",
    "heterogeneity",
    "missing",
    "missing_reasons",
    "mixtures",
    "model_map",
    "moves",
    "of_run",
    "of_runs",
    "score",
    "seconds",
    "sizes",
    "template",
    "traffic",
    "words",
]
