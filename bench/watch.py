"""How often `coterie.watch` calls drift: without any, and with some. Prints the table of docs/going-on.md.

Usage: python bench/watch.py [REPETITIONS]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import coterie
from coterie import Federation, Halves, Local, WeCFL

ALPHA = 0.05
LOCAL = Local(epochs=5, batch=8, lr=0.1)


def synthetic(rng: np.random.Generator, groups: list[int], n: int, noise: float = 0.1) -> list[tuple[Any, Any]]:
    """Two-dimensional points, labelled by one of three directions; a tenth of the labels is wrong."""
    turns = np.array([0.0, 2.1, 4.2])
    out = []
    for group in groups:
        x = rng.normal(size=(n, 2)).astype(np.float32)
        y = x @ np.array([np.cos(turns[group]), np.sin(turns[group])]) > 0
        out.append((x, (y ^ (rng.random(n) < noise)).astype(np.int64)))
    return out


def on_synthetic(repetitions: int, method: Any) -> None:
    """30 clients of 60 samples in 3 groups; a number of them moves to the next group."""
    cases = ((0, 20), (0, 60), (1, 60), (3, 60))
    called = np.zeros(len(cases))
    for seed in range(repetitions):
        rng = np.random.default_rng([seed, 1])
        groups = [i % 3 for i in range(30)]
        run = coterie.run(
            method, Federation.from_arrays(synthetic(rng, groups, 60), standardise=False), "linear", rounds=8, seed=seed
        )
        for i, (moved, new) in enumerate(cases):
            now = [(group + (client < moved)) % 3 for client, group in enumerate(groups)]
            data = Federation.from_arrays(synthetic(rng, now, new), standardise=False)
            called[i] += coterie.watch(run, data, alpha=ALPHA).drifts
    for (moved, new), count in zip(cases, called, strict=True):
        name = type(method).__name__
        print(f"synthetic, {name}, {new} new samples, {moved} of 30 moved: {count:.0f} of {repetitions}", flush=True)


def on_digits(repetitions: int) -> None:
    """Rotated digits: 20 clients of 53 samples, 36 new ones; a number of them is turned by 90 degrees more."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.float32) / 16
    cases = (0, 1, 3)
    called = np.zeros(len(cases))
    for seed in range(repetitions):
        order = np.random.default_rng([seed, 2]).permutation(len(labels))[: 20 * 89].reshape(20, 89)

        def clients(part: slice, turned: int, order: Any = order) -> Federation:
            arrays = []
            for i, rows in enumerate(order[:, part]):
                x = np.rot90(images[rows], i % 4 + (i < turned), (1, 2))
                arrays.append((x.reshape(len(rows), -1).copy(), labels[rows]))
            return Federation.from_arrays(arrays, outputs=10, standardise=False)

        run = coterie.run(WeCFL(k=4, local=LOCAL), clients(slice(53), 0), "linear", rounds=10, seed=seed)
        for i, turned in enumerate(cases):
            called[i] += coterie.watch(run, clients(slice(53, 89), turned), alpha=ALPHA).drifts
    for turned, count in zip(cases, called, strict=True):
        print(f"digits, WeCFL, {turned} of 20 turned: {count:.0f} of {repetitions}", flush=True)


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    local = Local(steps=10, batch=16, lr=0.3)
    on_synthetic(repetitions, WeCFL(k=3, local=local))
    on_digits(repetitions)
    on_synthetic(repetitions, Halves(local=local))


if __name__ == "__main__":
    main()
