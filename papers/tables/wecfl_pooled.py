"""WeCFL, Table 5: what its cells would be if they pooled client-wise and cluster-wise runs in equal parts."""

from __future__ import annotations

import numpy as np

from papers.cell import Outcomes, last
from papers.tables.wecfl_printed import CLIENTWISE, CLUSTERWISE, Printed
from papers.tables.wecfl_runs import run_of

OTHER = {"0.1": "(0.1, 10)", "2-class": "(3, 2)"}  # the cluster-wise setting whose files the same pattern matches
DEFECT = ("ifca", "ifca-cam", "fesem-cam")  # printed from other code than is run here


def without_clusterwise(line: Printed) -> dict[str, tuple[float, float]] | None:
    """A printed client-wise line, and twice it less the cluster-wise one: accuracy and macro-F1."""
    where = (line.data, OTHER[line.partition], line.k, line.method)
    for other in CLUSTERWISE:
        if (other.data, other.partition, other.k, other.method) == where:
            pairs = {"accuracy": (line.accuracy, other.accuracy), "macro_f1": (line.macro_f1, other.macro_f1)}
            return {column: (mine[0], 2 * mine[0] - theirs[0]) for column, (mine, theirs) in pairs.items()}
    return None


def unpooled(results: Outcomes, data: str) -> list[str]:
    """Both beside ours, for each cell that was run, and which of them is nearer to it on the whole."""
    rows, far = [], []
    for line in CLIENTWISE:
        if line.data != data:
            continue
        found = without_clusterwise(line)
        outcomes = results.of(run_of(line.data, line.partition, line.k, line.method))
        if line.method in DEFECT or found is None or not outcomes:
            continue
        for column, (printed, apart) in found.items():
            ours = float(np.mean([last(3, column)(outcome) for outcome in outcomes]))
            far.append((abs(printed - ours), abs(apart - ours)))
            name = f"{line.partition} {f'K={line.k} ' if line.k > 1 else ''}{line.method}/{column}"
            rows.append(f"| {name} | {printed:.1f} | {apart:.1f} | {ours:.1f} |")
    if not rows:
        return []
    before, after = np.mean(far, axis=0)
    nearer = sum(with_half > without for with_half, without in far)
    return [
        "Our guess is that printed cells pool as many cluster-wise as client-wise runs. Then twice a printed cell less "
        "the cluster-wise one (of Table 2) is the client-wise number:",
        "",
        "| cell | printed | without the cluster-wise half | ours |",
        "|---|---|---|---|",
        *rows,
        "",
        f"That is nearer to ours in {nearer} of {len(rows)} cells, and on average {after:.1f} points away from ours "
        f"where the printed cells are {before:.1f} away. It is evidence for the guess, not proof.",
    ]
