"""Texts as numbers without a vocabulary: words are hashed, so that every text becomes a vector of one length."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

WORD = re.compile(r"\w+")


def hashed(texts: Sequence[str], size: int = 512) -> Tensor:
    """Texts as vectors (n, size): a word adds 1 + log(count), or subtracts it, at a place that follows from the word.

    Upper case is lower case; each vector has length 1, that of a text without words is zeros. Half precision.
    """
    table = np.zeros((len(texts), size), np.float16)
    places: dict[str, tuple[int, float]] = {}
    for row, text in enumerate(texts):
        vector = np.zeros(size)
        for word, count in Counter(WORD.findall(text.lower())).items():
            if word not in places:
                code = zlib.crc32(word.encode())  # the same on every machine and in every process
                places[word] = (code >> 1) % size, 1.0 if code & 1 else -1.0
            place, sign = places[word]
            vector[place] += sign * (1 + np.log(count))
        table[row] = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return torch.from_numpy(table)
