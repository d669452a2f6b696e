"""The papers' figures drawn from the same outcomes as their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.tools.report.figures_style import COLOURS, DASHES, plotly
from papers.attacks import DEFENDED, KINDS, SHARES, UNDEFENDED, accuracy
from papers.attacks import METHODS as ATTACKED
from papers.cell import Outcome
from papers.results import Results
from papers.standing import Line, standing
from papers.tables import table
from papers.tables.collapse import FEDERATIONS, METHODS
from papers.tables.wecfl import FIGURE3_K
from papers.tables.wecfl_tsne import FIGURE5, FIGURE7, FIGURE8, run_after
from papers.work import find

MARGIN = {"l": 60, "r": 20, "t": 40, "b": 50}


def first(results: Results, run: str) -> Outcome | None:
    """The outcome of a run with its lowest seed, if there is one."""
    return next(iter(results.of(find(run))), None)


def blank(x: str, y: str, height: int = 420) -> Any:
    """A figure with one pair of axes."""
    figure = plotly().Figure()
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin=MARGIN,
        legend={"orientation": "h", "y": -0.2},
    )
    figure.update_xaxes(title=x)
    figure.update_yaxes(title=y)
    return figure


def curve(x: Any, y: Any, name: str, i: int, **more: Any) -> Any:
    """A line in the i-th colour and dash."""
    style = {"color": COLOURS[i % len(COLOURS)], "dash": DASHES[i % len(DASHES)], "width": 2}
    return plotly().Scatter(x=list(x), y=list(y), name=name, mode="lines", line=style, **more)


def grid(rows: int, columns: int, titles: list[str], height: int = 420) -> Any:
    """Several pairs of axes side by side, with a common y."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows, columns, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.04)
    figure.update_layout(template="plotly_white", height=height, margin=MARGIN)
    return figure


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


@dataclass(frozen=True)
class Drawn:
    """A figure of a paper, ours."""

    name: str
    title: str
    remark: str
    figure: Any  # a plotly Figure


def _measured(name: str, results: Results) -> list[Line]:
    """The cells of a table that were run."""
    return [line for line in standing(table(name), results).lines if line.found]


# ----------------------------------------------------------------------------------------------- one by one


def by_classes(results: Results) -> Any | None:
    """FedGroup, Figure 1: accuracy and discrepancy over rounds, by classes per client."""
    found = {c: first(results, f"fedgroup/mnist-mclr/fedavg-{c}-classes") for c in (1, 3, 5, 10)}
    if None in found.values():
        return None
    from plotly.subplots import make_subplots

    titles = [f"{c} class{'es' if c > 1 else ''} per client" for c in found]
    figure = make_subplots(
        1, 4, subplot_titles=titles, shared_yaxes=True, specs=[[{"secondary_y": True}] * 4], horizontal_spacing=0.05
    )
    for column, outcome in enumerate(found.values(), start=1):
        assert outcome is not None
        for i, (name, scale, second) in enumerate((("accuracy", 100.0, False), ("discrepancy", 1.0, True))):
            line = curve(
                outcome.column("round"), scale * outcome.column(name), name, i, showlegend=column == 1, legendgroup=name
            )
            figure.add_trace(line, row=1, col=column, secondary_y=second)
        figure.update_yaxes(range=[0, 100], row=1, col=column, secondary_y=False)
        figure.update_yaxes(range=[0, 3], row=1, col=column, secondary_y=True, showticklabels=column == 4)
    figure.update_yaxes(title="accuracy (%)", row=1, col=1, secondary_y=False)
    figure.update_yaxes(title="discrepancy", row=1, col=4, secondary_y=True)
    figure.update_xaxes(title="round")
    figure.update_layout(template="plotly_white", height=400, margin=MARGIN, legend={"orientation": "h", "y": -0.25})
    return figure


def _convergence(results: Results, runs: dict[str, str]) -> Any | None:
    found = {name: first(results, run) for name, run in runs.items()}
    figure = blank("round", "accuracy (%)")
    for i, (name, outcome) in enumerate(found.items()):
        if outcome is not None:
            figure.add_trace(curve(outcome.column("round"), 100 * outcome.column("accuracy"), name, i))
    return figure if len(figure.data) > 1 else None


def convergence(results: Results) -> Any | None:
    """WeCFL, Figure 2: accuracy over rounds, (3, 2)-class CIFAR-10."""
    place = "wecfl/cifar/3-2"
    runs = {name: f"{place}/k10-{name.lower()}" for name in ("IFCA", "FeSEM", "WeCFL", "IFCA-CAM", "FeSEM-CAM")}
    return _convergence(results, {"FedAvg": f"{place}/fedavg"} | runs)


def convergence_dirichlet(results: Results) -> Any | None:
    """The same with the other partition."""
    place = "wecfl/cifar/0.1-10"
    runs = {name: f"{place}/k10-{name.lower()}" for name in ("IFCA", "FeSEM", "WeCFL", "IFCA-CAM", "FeSEM-CAM")}
    return _convergence(results, {"FedAvg": f"{place}/fedavg"} | runs)


def convergence_fashion(results: Results) -> Any | None:
    """WeCFL, Figure 3: Fashion-MNIST, WeCFL with several K, and others beside it."""
    place = "wecfl/fmnist/0.1-10"
    runs = {f"WeCFL, K={k}": f"{place}/k{k}-wecfl" for k in FIGURE3_K}
    return _convergence(results, {"FedAvg": f"{place}/fedavg", "FeSEM, K=10": f"{place}/k10-fesem"} | runs)


def alike(results: Results) -> Any | None:
    """WeCFL, Figure 4: cosines of the clusters' models, and of clients' models, ordered by cluster."""
    outcome = first(results, "wecfl/cifar/0.1-10/k10-wecfl")
    if outcome is None:
        return None
    from plotly.subplots import make_subplots

    figure = make_subplots(1, 2, subplot_titles=["the clusters' models", "clients' models, by cluster"])
    for column, key in enumerate(("centers", "clients"), start=1):
        figure.add_trace(plotly().Heatmap(z=outcome.probe[key], coloraxis="coloraxis"), row=1, col=column)
        figure.update_yaxes(autorange="reversed", row=1, col=column)
    figure.update_layout(template="plotly_white", height=480, margin=MARGIN)
    figure.update_layout(coloraxis={"colorscale": "Cividis", "cmax": 1, "colorbar": {"title": "cosine"}})
    figure.update_xaxes(title="cluster", row=1, col=1)
    figure.update_xaxes(title="client, in order of its cluster", row=1, col=2)
    return figure


def mixtures(results: Results) -> Any | None:
    """FedSoft, Figures 1 and 2: found weights come near the true mixture, round by round and client by client."""
    outcome = first(results, "fedsoft/2-10-90")
    if outcome is None or "found" not in outcome.probe:
        return None
    go = plotly()
    figure = grid(1, 2, ["distance from the true mixture", "weight of the first component, after the last round"])
    figure.add_trace(
        curve(outcome.column("round"), outcome.column("mixture_error"), "mean total variation", 0), row=1, col=1
    )
    found, true = np.asarray(outcome.probe["found"]), np.asarray(outcome.probe["true"])
    matched = int(np.abs(found - true[:, :1]).mean(0).argmin())
    clients = list(range(len(found)))
    kinds = (("true", true[:, 0], "line-ew"), ("found", found[:, matched], "circle"))
    for i, (name, values, symbol) in enumerate(kinds):
        marker = {"color": COLOURS[1 - i], "symbol": symbol, "size": 6, "line": {"width": 1, "color": COLOURS[1 - i]}}
        figure.add_trace(go.Scatter(x=clients, y=values, name=name, mode="markers", marker=marker), row=1, col=2)
    figure.update_xaxes(title="round", row=1, col=1)
    figure.update_xaxes(title="client", row=1, col=2)
    figure.update_yaxes(title="share", row=1, col=1)
    return figure


def sample_rates(results: Results) -> Any | None:
    """StoCFL, Figure 3: accuracy by the share of clients that take part."""
    lines = [line for line in _measured("stocfl-figure3", results) if line.cell.column.endswith("%")]
    if not lines:
        return None
    figure = blank("clients per round (%)", "accuracy after 50 rounds (%)")
    for i, method in enumerate(dict.fromkeys(line.cell.row for line in lines)):
        mine = [line for line in lines if line.cell.row == method]
        x = [float(line.cell.column.rstrip("%")) for line in mine]
        y = [line.found.mean for line in mine if line.found]
        spread = {"type": "data", "array": [line.found.std for line in mine if line.found]}
        figure.add_trace(curve(x, y, method, i, error_y=spread).update(mode="lines+markers"))
    figure.update_xaxes(type="log", tickvals=[5, 10, 20, 50, 100])
    return figure


def thresholds(results: Results) -> Any | None:
    """StoCFL, Figure 7: clusters found by tau."""
    lines = _measured("stocfl-figure7", results)
    if not lines:
        return None
    figure = blank("tau", "clusters found")
    x = [float(line.cell.column.removeprefix("tau ")) for line in lines]
    figure.add_trace(curve(x, [x_.found.mean for x_ in lines if x_.found], "StoCFL", 0).update(mode="lines+markers"))
    figure.update_yaxes(type="log", tickvals=[1, 2, 4, 8, 16, 32, 64, 128, 256, 400])
    return figure


def proximity(results: Results) -> Any | None:
    """FedGroup, Figure 5: MADC against EDC, one point per pair of clients."""
    outcome = first(results, "fedgroup/mnist-mlp/fg-edc")
    if outcome is None or "edc" not in outcome.probe:
        return None
    figure = blank("EDC", "MADC")
    marker = {"color": COLOURS[0], "size": 4, "opacity": 0.5}
    name = f"pairs of clients, correlation {outcome.probe['correlation']:.2f}"
    points = plotly().Scatter(x=outcome.probe["edc"], y=outcome.probe["madc"], mode="markers", marker=marker, name=name)
    figure.add_trace(points)
    figure.update_layout(showlegend=True)
    return figure


def under_attack(results: Results) -> Any | None:
    """Accuracy of honest clients against the share of hostile ones, on the demo: dashed without a defence."""
    shares = (0, *SHARES)
    figure = grid(1, len(KINDS), list(KINDS))
    drawn: set[str] = set()  # methods, each once in the legend
    for column, kind in enumerate(KINDS, start=1):
        for i, method in enumerate(ATTACKED):
            for way in (DEFENDED, UNDEFENDED):
                found = [accuracy(results, "demo", method, kind, share, way) for share in shares]
                x = [share for share, value in zip(shares, found, strict=True) if value is not None]
                y = [value for value in found if value is not None]
                if not y:
                    continue
                line = curve(x, y, method, i, legendgroup=method, showlegend=method not in drawn)
                line.line.dash = "solid" if way == DEFENDED else "dot"
                figure.add_trace(line, row=1, col=column)
                drawn.add(method)
    figure.update_xaxes(title="hostile (%)")
    figure.update_yaxes(title="accuracy (%)", row=1, col=1)
    return figure if drawn else None


FIGURES: tuple[tuple[str, str, str, Callable[[Results], Any | None]], ...] = (
    ("fedgroup-figure1", "FedGroup, Figure 1.", "FedAvg on MNIST: heterogeneity costs accuracy and calm.", by_classes),
    ("fedgroup-figure5", "FedGroup, Figure 5.", "MADC against EDC for pairs of clients, MNIST-MLP.", proximity),
    ("fedsoft-figure1", "FedSoft, Figures 1 and 2.", "Importance weights and the true mixture, 10:90.", mixtures),
    ("stocfl-figure3", "StoCFL, Figure 3.", "Sample rates, on a small stand-in (rotated MNIST).", sample_rates),
    ("stocfl-figure7", "StoCFL, Figure 7.", "2 rotations x 4 groups of classes: what tau decides.", thresholds),
    ("wecfl-figure2", "WeCFL, Figure 2.", "CIFAR-10, (3, 2)-class, K=10.", convergence),
    ("wecfl-figure2b", "WeCFL, Figure 2, the other partition.", "CIFAR-10, (0.1, 10), K=10.", convergence_dirichlet),
    ("wecfl-figure3", "WeCFL, Figure 3.", "Fashion-MNIST, (0.1, 10): each K that was run.", convergence_fashion),
    ("wecfl-figure4", "WeCFL, Figure 4.", "Cosine similarity within and between clusters, CIFAR-10.", alike),
    *SCATTERED,
    *SIZES,
    *CURVES,
    ("attacks", "Hostile clients.", "The demo's honest clients; dotted without a defence.", under_attack),
)


def draw(results: Results) -> list[Drawn]:
    """Every figure whose runs are there."""
    made = ((name, title, remark, make(results)) for name, title, remark, make in FIGURES)
    return [Drawn(name, title, remark, figure) for name, title, remark, figure in made if figure is not None]
