"""The numbers of WeCFL's Tables 2 and 5 and of Fed-CAM's Tables 1 and 2, which share their baselines."""

from __future__ import annotations

from dataclasses import dataclass

from papers.declared import printed


@dataclass(frozen=True)
class Printed:
    """A line of the papers: accuracy and macro-F1 with their deviations, in one setting."""

    data: str
    partition: str
    k: int
    method: str
    accuracy: tuple[float, float | None]
    macro_f1: tuple[float, float | None]


def _lines(kind: str) -> list[Printed]:
    """In the order of the papers' tables: the lines with K = 5 come last."""
    lines = [
        _line(data, partition, k, method, numbers)
        for data, partitions in printed("wecfl")[kind].items()
        for partition, by_k in partitions.items()
        for k, methods in by_k.items()
        for method, numbers in methods.items()
    ]
    return sorted(lines, key=lambda line: (line.data, line.k == 5))


def _line(data: str, partition: str, k: int, method: str, numbers: list[float]) -> Printed:
    if len(numbers) == 2:  # ensembles are printed without a deviation
        return Printed(data, partition, k, method, (numbers[0], None), (numbers[1], None))
    accuracy, spread, macro_f1, f1_spread = numbers
    return Printed(data, partition, k, method, (accuracy, spread), (macro_f1, f1_spread))


CLUSTERWISE, CLIENTWISE = _lines("cluster-wise"), _lines("client-wise")
