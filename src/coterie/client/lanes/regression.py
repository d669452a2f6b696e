"""Plain gradient descent on a single linear layer, all steps of a client in one call of the compiled code.

Such steps are so short (batches of ten, a few thousand weights) that whatever goes on between them is most of the time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from coterie.client.batched.layers import Layer
from coterie.client.batched.low_rank import multiplications
from coterie.client.batched.plan import steps_of
from coterie.client.lanes.library import library
from coterie.client.lanes.network import labels_fit, pointer
from coterie.client.training import LocalTraining, TrainingResult, cuts, orders
from coterie.client.updates import initial_state, proximal_factors
from coterie.core.model import Model
from coterie.core.objective import AnyLoss

LARGEST = 1 << 18  # bytes of a layer beyond which torch's matrix products use the caches better
MANY, FEWER = 20_000_000, 12  # multiplications of a training; beyond, `low_rank` is faster with so many times fewer
Numbers: TypeAlias = NDArray[np.int64]


class _Layer(ctypes.Structure):
    """See native/regression.cpp, like the others."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "bias")),
        *((name, ctypes.c_int64) for name in ("outputs", "stride")),
    ]


class _Target(ctypes.Structure):
    """See native/target.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("classes", "values", "offset", "weights")]


class _Regression(ctypes.Structure):
    """See native/regression.cpp."""

    _fields_ = [
        *(("layer", _Layer), ("anchor", _Layer)),
        *((name, ctypes.c_double) for name in ("keep", "length")),
        *(("x", ctypes.c_void_p), ("target", _Target)),
        *((name, ctypes.c_void_p) for name in ("rows", "ends")),
        *((name, ctypes.c_int64) for name in ("steps", "largest")),
        *((name, ctypes.c_void_p) for name in ("room", "taken")),
    ]


class Regression:
    """The training of a single linear layer."""

    def __init__(self, layer: Layer, loss: AnyLoss, lanes: int, compiled: ctypes.CDLL) -> None:
        self.layer, self.loss, self.lanes, self.compiled = layer, loss, lanes, compiled
        self.stride = -(-layer.inputs // lanes) * lanes

    def reads(self, training: LocalTraining) -> bool:
        """Whether this is a training as the compiled code does it, and does it fastest."""
        x, y, layer = training.x, training.y, self.layer
        n, anchor = len(y), None if training.proximal is None else training.proximal.anchor
        if not n or training.only is not None or not training.rule.plain or self._is_long(training):
            return False
        shapes = [
            *((t, (layer.size,)) for t in (training.start, anchor)),
            *((training.offset, (n, layer.outputs)), (training.weights, (n,))),
            (x, (len(x), *x.shape[1:]) if x.numel() == n * layer.inputs else ()),
        ]
        given = [(t, shape) for t, shape in shapes if t is not None]
        if not all(t.dtype == torch.float32 and t.device.type == "cpu" and t.shape == shape for t, shape in given):
            return False
        if self.loss == "cross_entropy":
            return labels_fit(y, layer.outputs)
        return y.dtype == torch.float32 and y.numel() == n * layer.outputs

    def _is_long(self, training: LocalTraining) -> bool:
        """Whether far fewer multiplications do where many clients train together in the span of their samples."""
        n, layer = len(training.y), self.layer
        seen = steps_of(n, training.local) * n // len(cuts(n, training.local))
        direct = 2 * seen * layer.inputs * layer.outputs
        fewest = multiplications(n, seen, layer.inputs, layer.outputs, training.proximal is not None)
        return direct > MANY and direct > FEWER * fewest

    def train(self, training: LocalTraining, copy: Callable[[Tensor], Tensor] = torch.clone) -> TrainingResult:
        """One client's training, as `training.train` does it. copy: of the model that it starts from."""
        theta, y = copy(training.start), training.y.contiguous()
        state = initial_state(training.local, theta, training.state).clone()
        x, matrix = self._rows(training.x.reshape(len(y), -1)), self.matrix(theta)
        pull = _Pull(self, training)
        rows, ends = _plan(training)
        largest = int(np.diff(ends, prepend=0).max())
        room, taken = torch.empty(2 * largest * self.layer.outputs), np.empty(largest, dtype=np.uintp)
        classes, values = (y, None) if self.loss == "cross_entropy" else (None, y)
        offset, weights = (None if t is None else t.contiguous() for t in (training.offset, training.weights))
        target = _Target(*(pointer(t) for t in (classes, values, offset, weights)))
        work = _Regression(
            *(self.read(theta, matrix), pull.layer, pull.keep, pull.length, x.data_ptr(), target),
            *(rows.ctypes.data, ends.ctypes.data, len(ends), largest, room.data_ptr(), taken.ctypes.data),
        )
        loss: float = self.compiled.regression(ctypes.byref(work))
        if self.stride > self.layer.inputs:
            self.layer.matrix(theta[None])[0].copy_(matrix[:, : self.layer.inputs])
        return TrainingResult(theta, loss, state)

    def _rows(self, matrix: Tensor) -> Tensor:
        """Rows whose length is a multiple of the lanes, filled up with zeros."""
        more = self.stride - self.layer.inputs
        return functional.pad(matrix, (0, more)) if more else matrix.contiguous()

    def matrix(self, theta: Tensor) -> Tensor:
        """The weights as the compiled code reads them: those of the vector itself, or a copy."""
        return self._rows(self.layer.matrix(theta[None])[0])

    def read(self, theta: Tensor, matrix: Tensor) -> _Layer:
        """Where weights and bias are."""
        bias = None if self.layer.bias is None else theta[self.layer.bias :].data_ptr()
        return _Layer(matrix.data_ptr(), bias, self.layer.outputs, self.stride)


class _Pull:
    """A step goes to anchor + keep (theta - anchor) - length times the gradient."""

    def __init__(self, regression: Regression, training: LocalTraining) -> None:
        self.layer, self.keep, self.length = _Layer(), 1.0, training.lr
        if training.proximal is not None:
            anchor = training.proximal.anchor
            self.matrix = regression.matrix(anchor)  # it may be a copy, which is to live as long as this
            self.layer = regression.read(anchor, self.matrix)
            mu = torch.tensor(float(training.proximal.mu), dtype=torch.float64)
            distance, share = proximal_factors(training.lr, mu)
            self.keep, self.length = float(distance), training.lr * float(share)


def _plan(training: LocalTraining) -> tuple[Numbers, Numbers]:
    """The samples of all steps end to end, and where each step ends among them."""
    n, local = len(training.y), training.local
    parts, steps = cuts(n, local), steps_of(n, training.local)
    epochs = -(-steps // len(parts))
    drawn = islice(orders(n, local, training.rng), epochs)
    rows = np.concatenate([np.arange(n) if order is None else order for order in drawn])
    ends = (np.arange(epochs)[:, None] * n + np.array([end for _, end in parts])).reshape(-1)[:steps]
    return rows, ends


def regression_of(model: Model, layers: Sequence[Layer] | None) -> Regression | None:
    """For a model of one linear layer, where there is compiled code."""
    if layers is None or len(layers) != 1 or 4 * layers[0].size > LARGEST:
        return None
    compiled = library("regression")
    lanes = 0 if compiled is None else int(compiled.lanes())
    return Regression(layers[0], model.loss, lanes, compiled) if compiled is not None and lanes else None
