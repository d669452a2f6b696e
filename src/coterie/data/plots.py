"""Pictures of a federation: whose labels are which, and a few samples of a few clients."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.federation import Federation

BARS = 400  # clients in one picture; of more, so many are drawn, evenly
SHEET = 12  # clients on a contact sheet
NAME = 30  # characters of a class's name
SHORT = 12  # of the same above a sample
EACH = 10  # samples of a client on it
# Okabe and Ito's colours, which also colour-blind people can tell apart, and two greys.
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"),
    *("#56b4e9", "#f0e442", "#000000", "#999999", "#dddddd"),
)


def draw(federation: Federation, directory: Path, stem: str = "data") -> list[Path]:
    """Write the pictures of a federation as PNG and SVG, and say where."""
    try:
        import matplotlib

        matplotlib.use("agg", force=False)
        from matplotlib import rc_context
    except ImportError:
        raise CoterieError("pictures need matplotlib: pip install 'coterie[plot]'", code="extra-missing") from None
    written = []
    # A fixed salt and no date: the same federation gives the same file.
    with rc_context({"svg.hashsalt": "coterie", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        for name, figure in (("labels", _labels(federation)), ("samples", _sheet(federation))):
            if figure is None:
                continue
            directory.mkdir(parents=True, exist_ok=True)
            for kind in ("png", "svg"):
                path = directory / f"{stem}-{name}.{kind}"
                metadata = {"Date": None} if kind == "svg" else {}
                figure.savefig(path, dpi=150, bbox_inches="tight", metadata=metadata)
                figure.set_layout_engine("none")  # once laid out it stays so; doing it again takes seconds
                written.append(path)
    return written


@dataclass(frozen=True, eq=False)
class Drawn:
    """The clients that are drawn, and where one cluster ends and the next begins."""

    clients: NDArray[np.int64]
    cluster: NDArray[np.int64] | None

    @property
    def borders(self) -> list[int]:
        """Positions after which another cluster begins."""
        return [] if self.cluster is None else (np.flatnonzero(np.diff(self.cluster)) + 1).tolist()


def _row(federation: Federation, many: int) -> Drawn:
    """Clients cluster by cluster, or by mixture; of too many, every so many-th."""
    order = np.arange(len(federation))
    if federation.truth is not None:
        order = np.argsort(federation.truth, kind="stable")
    elif federation.mixture is not None:
        mixed = federation.mixture
        most = mixed.argmax(1) if mixed.shape[1] > 2 else np.zeros(len(mixed))
        order = np.lexsort((-mixed[np.arange(len(mixed)), most.astype(int)], most))
    chosen = order[np.linspace(0, len(order) - 1, min(many, len(order))).round().astype(int)]
    return Drawn(chosen, None if federation.truth is None else federation.truth[chosen])


def colours(many: int) -> list[Any]:
    """As many colours as there are classes."""
    if many <= len(COLOURS):
        return list(COLOURS[:many])
    from matplotlib import colormaps

    return [colormaps["viridis"](v) for v in np.linspace(0, 1, many)]


def counts(federation: Federation) -> NDArray[np.int64]:
    """(clients, classes) samples, training and test together; (clients, 1) for a regression."""
    kinds = federation.outputs if federation.kind == "classification" else 1
    table = np.zeros((len(federation), kinds), dtype=np.int64)
    for split in (federation.train, federation.test):
        label = federation.labels(split) if kinds > 1 else np.zeros(len(split.numbers), dtype=np.int64)
        np.add.at(table, (split.owners(), label), 1)
    return table


def _labels(federation: Federation) -> Any:
    """A stacked bar per client: how many samples of each label; below it the true mixture, where there is one."""
    from matplotlib.figure import Figure

    row, mixture = _row(federation, BARS), federation.mixture
    table = counts(federation)[row.clients]
    height = 4.8 if mixture is not None else 3.8
    figure = Figure(figsize=(min(14.0, 5.0 + 0.06 * len(table)), height), layout="constrained")
    if mixture is None:
        bars = figure.subplots()
        lowest = bars
    else:
        bars, lowest = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    labels = _classes(federation, table.shape[1]) if federation.kind == "classification" else ["samples"]
    _stack(bars, table, colours(table.shape[1]), labels, "samples")
    if mixture is not None:
        names = [f"distribution {s}" for s in range(mixture.shape[1])]
        _stack(lowest, mixture[row.clients], colours(mixture.shape[1]), names, "true mixture")
        lowest.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7)
    title = "label" if federation.kind == "classification" else None
    columns = 1 if table.shape[1] <= 12 else 2 + table.shape[1] // 32
    bars.legend(title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=columns, fontsize=7)
    shown = "" if len(row.clients) == len(federation) else f"; {len(row.clients)} of {len(federation):,} clients drawn"
    for border in row.borders:
        for axes in {bars, lowest}:
            axes.axvline(border - 0.5, color="black", linewidth=0.8, linestyle=":")
    if row.cluster is not None:
        starts = [0, *row.borders, len(row.cluster)]
        for start, end in pairwise(starts):
            where = (start + end - 1) / 2
            above = bars.get_xaxis_transform()  # x as the bars, y as a share of the height
            bars.text(where, 1.01, str(row.cluster[start]), transform=above, ha="center", va="bottom", fontsize=7)
        shown += "; true clusters above"
    lowest.set_xlabel(f"clients{shown}")
    figure.suptitle(_wrapped(federation.describe()), fontsize=8)
    return figure


def _classes(federation: Federation, many: int, longest: int = NAME) -> list[str]:
    """The names of the classes, where they have any. matplotlib reads $ as mathematics, and leaves out _names."""
    names = federation.class_names or ()
    shown = [" ".join(names[c].split()) if c < len(names) else "" for c in range(many)]
    shown = [name if len(name) <= longest else f"{name[: longest - 1]}…" for name in shown]
    safe = [(name or str(c)).replace("$", r"\$") for c, name in enumerate(shown)]
    return [f" {name}" if name.startswith("_") else name for name in safe]


def _stack(axes: Any, table: NDArray[Any], colour: list[Any], names: list[str], what: str) -> None:
    foot, width = np.zeros(len(table)), 0.92 if len(table) <= 120 else 1.0
    for column, name in enumerate(names):
        axes.bar(np.arange(len(table)), table[:, column], width, foot, color=colour[column], label=name)
        foot += table[:, column]
    axes.set_xlim(-0.5, len(table) - 0.5)
    axes.set_xticks([])
    axes.set_ylabel(what)


def _sheet(federation: Federation) -> Any:
    """A contact sheet: a row per client, samples with their labels. None where a sample is no picture and no curve."""
    from matplotlib.figure import Figure

    shape = federation.input_shape
    image = len(shape) == 3 and shape[0] in (1, 3)
    if not image and not (len(shape) == 2 and shape[1] > 1):
        return None
    row = _row(federation, SHEET)
    figure = Figure(
        figsize=(EACH * (0.75 if image else 1.3) + 1.2, 0.85 * len(row.clients) + 0.4), layout="constrained"
    )
    grid = figure.subplots(len(row.clients), EACH, squeeze=False)
    classes = _classes(federation, federation.outputs, SHORT)
    for i, (line, client) in enumerate(zip(grid, row.clients.tolist(), strict=True)):
        x, y = federation.samples(client, "train")
        # Every so many-th in order of the labels: all of a client's labels are seen.
        order = np.argsort(y[:, 0].numpy() if y.ndim == 2 else y.numpy(), kind="stable")
        chosen = order[np.linspace(0, len(order) - 1, min(EACH, len(order))).round().astype(int)]
        for axes in line:
            axes.axis("off")
        for axes, sample in zip(line, chosen, strict=False):
            _picture(axes, x[sample], image)
            label = classes[int(y[sample])] if y.ndim == 1 else f"{float(y[sample, 0]):.2g}"
            axes.set_title(label, fontsize=6, pad=1.5)
        name = federation.names[client] if federation.names else str(client)
        cluster = "" if row.cluster is None else f"\ncluster {row.cluster[i]}"
        line[0].text(-0.35, 0.5, f"client {name}{cluster}", transform=line[0].transAxes, ha="right", va="center")
    figure.suptitle(federation.name, fontsize=9)
    return figure


def _picture(axes: Any, x: Tensor, image: bool) -> None:
    if not image:
        axes.plot(x.numpy().T, linewidth=0.5)
        return
    low, high = float(x.min()), float(x.max())
    pixels = ((x - low) / max(high - low, 1e-9)).permute(1, 2, 0).numpy()
    axes.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", interpolation="nearest")


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, 110))
