"""Randomness is a plan: every random choice is drawn from a generator keyed by what it is for.

Nothing here depends on the order in which work is done or on who does it, so any engine, any number
of workers, a rerun and a resumed run all draw the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import Any

import numpy as np
import torch


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


def seed_device(device: torch.device, seed: int) -> None:
    """Seed what networks draw from (dropout): the CPU's generator and, on an accelerator, that one's."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cpu":
        return
    module: Any = torch.get_device_module(device.type)
    on_it: AbstractContextManager[Any] = module.device(device) if device.index else contextlib.nullcontext()
    with on_it:
        module.manual_seed(seed)


@contextmanager
def own_random_numbers(device: torch.device) -> Iterator[None]:
    """Afterwards the generators of the CPU and of this device are what they were."""
    if device.type == "mps":  # PyTorch's fork_rng does not know its one generator
        state = torch.mps.get_rng_state()
        try:
            with torch.random.fork_rng(devices=[]):
                yield
        finally:
            torch.mps.set_rng_state(state)
        return
    numbers = [] if device.type == "cpu" else [device.index or 0]
    with torch.random.fork_rng(devices=numbers, device_type="cuda" if not numbers else device.type):
        yield
