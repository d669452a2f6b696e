"""Randomness is a plan: every random choice is drawn from a generator keyed by what it is for.

Nothing here depends on the order in which work is done or on who does it, so any engine, any number
of workers, a rerun and a resumed run all draw the same numbers.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The first word of every key: streams of different purposes never meet."""

    PARTITION = 1
    INIT = 2
    COHORT = 3
    METHOD = 4
    BATCHES = 5
    DROPOUT = 6
    EVALUATION = 7
    NEWCOMERS = 8
    VALIDATION = 9
    HALVES = 10
    LEARNING_RATE = 11
    ATTACK = 12
    PRIVACY = 13
    DRIFT = 14


def generator(seed: int, purpose: Purpose, *words: int) -> np.random.Generator:
    """The generator of (seed, purpose, words), the same everywhere and always."""
    # The number of words is part of the key: SeedSequence alone does not distinguish [1] from [1, 0].
    return np.random.default_rng(np.random.SeedSequence([seed, int(purpose), len(words), *words]))


def draw_seed(rng: np.random.Generator) -> int:
    """A fresh seed for a library that wants an integer."""
    return int(rng.integers(2**63 - 1))
