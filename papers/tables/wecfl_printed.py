"""The numbers of WeCFL's Tables 2 and 5 and of Fed-CAM's Tables 1 and 2, which share their baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Printed:
    """A line of the papers: accuracy and macro-F1 with their deviations, in one setting."""

    data: str
    partition: str
    k: int
    method: str
    accuracy: tuple[float, float | None]
    macro_f1: tuple[float, float | None]


def _line(data: str, partition: str, k: int, method: str, numbers: tuple[float, ...]) -> Printed:
    if len(numbers) == 2:  # ensembles are printed without a deviation
        return Printed(data, partition, k, method, (numbers[0], None), (numbers[1], None))
    accuracy, spread, macro_f1, f1_spread = numbers
    return Printed(data, partition, k, method, (accuracy, spread), (macro_f1, f1_spread))


_CLUSTERWISE: Mapping[tuple[str, str, int], Mapping[str, tuple[float, ...]]] = {
    ("cifar", "(0.1, 10)", 1): {"fedavg": (24.38, 3.30, 11.69, 3.15), "fedprox": (24.73, 3.68, 11.28, 2.35)},
    ("cifar", "(0.1, 10)", 10): {
        "fedavg+": (28.45, 13.79),
        "fedprox+": (28.33, 13.64),
        "ifca": (34.84, 5.82, 22.76, 3.99),
        "fesem": (66.89, 2.18, 38.35, 4.24),
        "wecfl": (70.95, 3.57, 40.19, 2.88),
        "ifca-cam": (70.90, 1.18, 40.03, 1.28),
        "fesem-cam": (78.45, 1.71, 49.50, 1.13),
    },
    ("cifar", "(3, 2)", 1): {"fedavg": (21.33, 3.83, 9.0, 0.58), "fedprox": (22.66, 1.13, 9.23, 0.78)},
    ("cifar", "(3, 2)", 10): {
        "fedavg+": (27.28, 9.81),
        "fedprox+": (26.94, 9.64),
        "ifca": (34.06, 2.60, 18.70, 1.31),
        "fesem": (71.76, 2.23, 49.72, 3.84),
        "wecfl": (72.13, 1.88, 50.65, 2.15),
        "ifca-cam": (68.46, 4.08, 41.45, 4.00),
        "fesem-cam": (75.04, 1.97, 55.90, 2.07),
    },
    ("cifar", "(0.1, 10)", 5): {
        "fedavg+": (25.97, 12.16),
        "fedprox+": (26.05, 12.53),
        "ifca": (34.10, 4.79, 22.12, 2.21),
        "fesem": (59.06, 3.24, 32.33, 7.25),
        "wecfl": (59.26, 3.32, 32.26, 3.46),
        "ifca-cam": (58.13, 3.82, 28.09, 3.68),
        "fesem-cam": (64.35, 2.33, 38.33, 1.77),
    },
    ("cifar", "(3, 2)", 5): {
        "fedavg+": (24.35, 9.06),
        "fedprox+": (24.83, 9.31),
        "ifca": (29.80, 4.49, 17.90, 2.08),
        "fesem": (58.76, 3.35, 35.75, 2.54),
        "wecfl": (62.44, 2.53, 38.55, 1.76),
        "ifca-cam": (54.56, 3.58, 27.27, 1.06),
        "fesem-cam": (65.58, 1.21, 38.63, 1.17),
    },
    ("fmnist", "(0.1, 10)", 1): {"fedavg": (86.08, 0.70, 57.24, 2.26), "fedprox": (86.32, 0.78, 58.03, 3.19)},
    ("fmnist", "(0.1, 10)", 10): {
        "fedavg+": (89.42, 67.83),
        "fedprox+": (89.55, 68.02),
        "ifca": (82.10, 5.40, 62.62, 8.22),
        "fesem": (95.73, 1.28, 89.34, 1.57),
        "wecfl": (95.88, 0.85, 89.81, 1.59),
        "ifca-cam": (95.42, 2.54, 88.45, 5.46),
        "fesem-cam": (96.19, 1.20, 92.37, 1.85),
    },
    ("fmnist", "(3, 2)", 1): {"fedavg": (86.33, 0.44, 46.09, 1.08), "fedprox": (86.42, 0.63, 45.86, 1.42)},
    ("fmnist", "(3, 2)", 10): {
        "fedavg+": (86.91, 63.01),
        "fedprox+": (86.73, 63.42),
        "ifca": (86.58, 4.97, 66.22, 5.69),
        "fesem": (95.54, 0.74, 84.43, 2.38),
        "wecfl": (97.10, 0.51, 88.96, 1.36),
        "ifca-cam": (95.09, 0.87, 82.98, 1.16),
        "fesem-cam": (98.07, 1.46, 92.43, 2.70),
    },
    ("fmnist", "(0.1, 10)", 5): {
        "fedavg+": (87.61, 59.48),
        "fedprox+": (87.94, 59.83),
        "ifca": (84.60, 2.22, 62.03, 3.01),
        "fesem": (94.64, 1.54, 82.90, 2.38),
        "wecfl": (94.64, 1.02, 84.40, 1.31),
        "ifca-cam": (93.33, 0.95, 79.64, 4.09),
        "fesem-cam": (95.13, 1.78, 85.10, 3.17),
    },
    ("fmnist", "(3, 2)", 5): {
        "fedavg+": (86.95, 65.61),
        "fedprox+": (86.52, 65.73),
        "ifca": (84.94, 2.54, 66.50, 4.43),
        "fesem": (94.20, 1.96, 77.07, 6.05),
        "wecfl": (94.97, 1.43, 77.36, 3.94),
        "ifca-cam": (95.38, 0.49, 77.56, 1.14),
        "fesem-cam": (95.69, 1.05, 78.82, 1.17),
    },
}
_CLIENTWISE: Mapping[tuple[str, str, int], Mapping[str, tuple[float, ...]]] = {
    ("cifar", "0.1", 1): {"fedavg": (25.62, 3.47, 11.38, 2.02), "fedprox": (25.72, 3.29, 11.14, 1.49)},
    ("cifar", "0.1", 10): {
        "fedavg+": (27.83, 13.65),
        "fedprox+": (25.86, 12.84),
        "ifca": (47.62, 10.15, 23.36, 2.48),
        "fesem": (67.0, 1.57, 31.69, 8.52),
        "wecfl": (69.47, 4.16, 34.10, 7.79),
        "ifca-cam": (72.54, 2.70, 42.86, 4.36),
        "fesem-cam": (80.11, 1.82, 59.19, 4.67),
    },
    ("cifar", "2-class", 1): {"fedavg": (24.30, 3.53, 8.56, 0.64), "fedprox": (24.19, 2.45, 8.69, 0.74)},
    ("cifar", "2-class", 10): {
        "fedavg+": (27.71, 9.65),
        "fedprox+": (26.16, 9.94),
        "ifca": (47.96, 10.59, 17.88, 1.04),
        "fesem": (63.64, 6.51, 42.97, 6.08),
        "wecfl": (66.80, 6.39, 45.61, 5.90),
        "ifca-cam": (61.01, 2.41, 31.63, 2.17),
        "fesem-cam": (69.88, 1.70, 49.50, 1.42),
    },
    ("cifar", "0.1", 5): {
        "fedavg+": (25.71, 12.45),
        "fedprox+": (25.58, 12.43),
        "ifca": (47.21, 10.28, 22.67, 1.48),
        "fesem": (54.30, 4.58, 24.78, 6.01),
        "wecfl": (55.09, 5.10, 27.29, 8.37),
        "ifca-cam": (54.32, 1.25, 23.48, 1.18),
        "fesem-cam": (59.71, 2.80, 40.45, 3.53),
    },
    ("cifar", "2-class", 5): {
        "fedavg+": (24.83, 8.74),
        "fedprox+": (25.88, 8.55),
        "ifca": (46.54, 12.80, 17.78, 1.29),
        "fesem": (55.55, 4.83, 32.80, 4.18),
        "wecfl": (55.89, 5.92, 33.12, 5.00),
        "ifca-cam": (54.92, 1.51, 25.20, 1.05),
        "fesem-cam": (56.70, 1.68, 34.52, 1.64),
    },
    ("fmnist", "0.1", 1): {"fedavg": (85.90, 0.46, 54.52, 2.66), "fedprox": (86.03, 0.58, 54.69, 3.32)},
    ("fmnist", "0.1", 10): {
        "fedavg+": (86.81, 60.43),
        "fedprox+": (86.24, 56.2),
        "ifca": (91.04, 4.33, 68.6, 6.77),
        "fesem": (93.3, 2.0, 80.47, 11.05),
        "wecfl": (94.21, 1.67, 79.31, 11.02),
        "ifca-cam": (95.70, 1.19, 79.17, 1.91),
        "fesem-cam": (95.25, 1.93, 81.5, 2.24),
    },
    ("fmnist", "2-class", 1): {"fedavg": (86.17, 0.25, 44.88, 1.24), "fedprox": (86.47, 0.23, 44.89, 1.38)},
    ("fmnist", "2-class", 10): {
        "fedavg+": (86.91, 47.12),
        "fedprox+": (86.78, 42.83),
        "ifca": (91.42, 5.16, 72.29, 5.80),
        "fesem": (93.75, 1.53, 79.39, 6.57),
        "wecfl": (94.05, 1.67, 81.41, 5.7),
        "ifca-cam": (92.57, 2.63, 76.31, 4.39),
        "fesem-cam": (95.15, 1.48, 86.16, 3.19),
    },
    ("fmnist", "0.1", 5): {
        "fedavg+": (86.12, 61.07),
        "fedprox+": (86.39, 56.56),
        "ifca": (90.13, 6.81, 68.47, 5.23),
        "fesem": (91.51, 2.90, 73.78, 9.88),
        "wecfl": (91.59, 0.82, 74.45, 10.53),
        "ifca-cam": (93.72, 1.34, 70.67, 1.75),
        "fesem-cam": (94.74, 1.04, 75.12, 5.82),
    },
    ("fmnist", "2-class", 5): {
        "fedavg+": (86.5, 45.39),
        "fedprox+": (86.15, 45.43),
        "ifca": (91.54, 5.04, 72.30, 5.32),
        "fesem": (91.83, 1.24, 71.05, 8.63),
        "wecfl": (91.76, 1.53, 69.47, 5.04),
        "ifca-cam": (92.24, 1.22, 70.24, 4.33),
        "fesem-cam": (93.14, 2.03, 76.98, 2.17),
    },
}
CLUSTERWISE = [_line(*where, name, numbers) for where, m in _CLUSTERWISE.items() for name, numbers in m.items()]
CLIENTWISE = [_line(*where, name, numbers) for where, m in _CLIENTWISE.items() for name, numbers in m.items()]
