"""Cluster sizes over rounds (CAM, Figures 1 and 3, and collapse), FedGroup's Figures 3 and 4, and WeCFL's t-SNE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie.tools.report.figures_style import COLOURS, plotly
from papers.cell import Outcome
from papers.figure_parts import MARGIN, curve, first, grid
from papers.results import Results
from papers.tables.collapse import FEDERATIONS, METHODS
from papers.tables.wecfl_tsne import FIGURE5, FIGURE7, FIGURE8, run_after

FIGURE = tuple[str, str, str, Callable[[Results], Any | None]]


def _stacked(found: Mapping[str, Outcome | None]) -> Any | None:
    """Cluster sizes over rounds, the largest at the bottom, one panel per run; None where one is missing."""
    if None in found.values():
        return None
    figure = grid(1, len(found), list(found))
    for column, outcome in enumerate(found.values(), start=1):
        assert outcome is not None
        sizes = [sorted(s, reverse=True) for s in outcome.curve["sizes"]]
        for rank in range(max(map(len, sizes))):
            many = [s[rank] if rank < len(s) else 0 for s in sizes]
            area = curve(outcome.column("round"), many, f"size rank {rank + 1}", rank, stackgroup="one")
            figure.add_trace(area.update(showlegend=False), row=1, col=column)
    figure.update_xaxes(title="round")
    figure.update_yaxes(title="clients", row=1, col=1)
    return figure


def _sizes(setting: str, methods: Mapping[str, str]) -> Callable[[Results], Any | None]:
    def draw(results: Results) -> Any | None:
        return _stacked({shown: first(results, f"wecfl/cifar/{setting}/k10-{m}") for shown, m in methods.items()})

    return draw


def _collapsing(where: str) -> Callable[[Results], Any | None]:
    def draw(results: Results) -> Any | None:
        return _stacked({m.upper(): first(results, f"collapse/{where}/{m}") for m in METHODS})

    return draw


_IFCA = {"IFCA": "ifca", "IFCA-CAM": "ifca-cam"}
_FESEM = {"FeSEM": "fesem", "FeSEM-CAM (authors' order)": "fesem-cam"}
SIZES: tuple[FIGURE, ...] = (
    (
        *("cam-figure1", "CAM, Figure 1.", "Cluster sizes over rounds, largest at the bottom, CIFAR-10 (0.1, 10)."),
        _sizes("0.1-10", _IFCA),
    ),
    ("cam-figure1b", "CAM, Figure 1, client-wise.", "CIFAR-10, Dirichlet(0.1).", _sizes("0.1", _IFCA)),
    ("cam-figure3", "CAM, Figure 3.", "The same for FeSEM.", _sizes("0.1-10", _FESEM)),
    ("cam-figure3b", "CAM, Figure 3, client-wise.", "CIFAR-10, Dirichlet(0.1).", _sizes("0.1", _FESEM)),
    *(
        (
            *(
                f"collapse-{where}",
                f"Collapse, {where}.",
                "Cluster sizes over rounds, first of ten seeds, K=4, 10 rounds warm-up.",
            ),
            _collapsing(where),
        )
        for where in FEDERATIONS
    ),
)

# --------------------------------------------------------------------------------------------- FedGroup

_COMPARED = {"FedAvg": "fedavg", "FedProx": "fedprox", "IFCA": "ifca", "FeSEM": "fesem", "FedGroup": "fg-edc"}
_ALL = _COMPARED | {"FedGrouProx": "fgp-edc"}


def _fedgroup(columns: tuple[str, ...], settings: tuple[str, ...]) -> Callable[[Results], Any | None]:
    """A row of panels per column of the curve, a panel per setting."""

    def draw(results: Results) -> Any | None:
        from plotly.subplots import make_subplots

        titles = [*settings, *[""] * (len(settings) * (len(columns) - 1))]
        figure = make_subplots(
            len(columns), len(settings), subplot_titles=titles, horizontal_spacing=0.06, vertical_spacing=0.07
        )
        for c, setting in enumerate(settings, start=1):
            for i, (shown, method) in enumerate(_ALL.items()):
                outcome = first(results, f"fedgroup/{setting}/{method}")
                for r, column in enumerate(columns, start=1):
                    if outcome is not None and column in outcome.curve:
                        drawn = curve(outcome.column("round"), outcome.column(column), shown, i, legendgroup=shown)
                        figure.add_trace(drawn.update(showlegend=(r, c) == (1, 1)), row=r, col=c)
        if not figure.data:
            return None
        for r, column in enumerate(columns, start=1):
            figure.update_yaxes(title=column, row=r, col=1)
        figure.update_xaxes(title="round", row=len(columns))
        legend = {"orientation": "h", "y": -0.12}
        figure.update_layout(template="plotly_white", height=300 * len(columns), margin=MARGIN, legend=legend)
        return figure

    return draw


CURVES: tuple[FIGURE, ...] = (
    (
        *(
            "fedgroup-figure3",
            "FedGroup, Figure 3.",
            "MNIST (m = 3): accuracy, test loss (the paper: training loss), discrepancy.",
        ),
        _fedgroup(("accuracy", "loss", "discrepancy"), ("mnist-mclr", "mnist-mlp")),
    ),
    (
        *("fedgroup-figure4", "FedGroup, Figure 4.", "Synthetic(1,1) (m = 5): accuracy over rounds."),
        _fedgroup(("accuracy",), ("synthetic",)),
    ),
)

# ------------------------------------------------------------------------------------------------- t-SNE


def _scattered(panels: Mapping[str, tuple[str, int, int]]) -> Callable[[Results], Any | None]:
    """Clients' models in two dimensions, a colour and symbol per found cluster, a panel per run."""

    def draw(results: Results) -> Any | None:
        from plotly.subplots import make_subplots

        runs = {shown: first(results, run_after(*panel).name) for shown, panel in panels.items()}
        found = {shown: outcome for shown, outcome in runs.items() if outcome is not None}
        if not found:
            return None
        figure = make_subplots(1, len(found), subplot_titles=list(found), horizontal_spacing=0.02)
        for column, outcome in enumerate(found.values(), start=1):
            labels = outcome.probe["labels"]
            marker = {
                "color": [COLOURS[k % len(COLOURS)] for k in labels],
                "symbol": [k % 10 for k in labels],  # colours repeat: the symbol tells those clusters apart
                "size": 6,
            }
            points = plotly().Scatter(x=outcome.probe["x"], y=outcome.probe["y"], mode="markers", marker=marker)
            figure.add_trace(points, row=1, col=column)
        figure.update_xaxes(showticklabels=False)
        figure.update_yaxes(showticklabels=False)
        figure.update_layout(template="plotly_white", height=320, margin=MARGIN, showlegend=False)
        return figure

    return draw


_FIVE = {"Fashion-MNIST": FIGURE7[5], "CIFAR-10": FIGURE5}
SCATTERED: tuple[FIGURE, ...] = (
    (
        *(
            "wecfl-figure5",
            "WeCFL, Figure 5.",
            "Clients' models after five rounds by t-SNE, coloured by cluster, K=10.",
        ),
        _scattered(_FIVE),
    ),
    (
        *("wecfl-figure7", "WeCFL, Figure 7.", "The same in the first five rounds, Fashion-MNIST, K=10."),
        _scattered({f"round {t}": panel for t, panel in FIGURE7.items()}),
    ),
    (
        *("wecfl-figure8", "WeCFL, Figure 8.", "The same with K=3: fewer clusters than the ten generating ones."),
        _scattered({f"round {t}": panel for t, panel in FIGURE8.items()}),
    ),
)
