"""A network of common layers in a row as a list of operations for the compiled code, with the room that they need."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from coterie.core.model import Model, layers_in_order

CONVOLUTION, ACTIVATION, DENSE = range(3)
LARGEST_KERNEL = 15
WIDEST = 32 * 64  # channels x filters of a convolution; beyond, torch has full vectors too, and is as fast
POINTS, SLOPES = 8, 4  # of native/winograd.h: multiplications of a tile, and filters at once (at most)
FEWEST = 4  # numbers that a tile sums up at a point: with fewer, the sums around them are most of the work
GAIN = 0.75  # share of the plain way's multiplications above which they are not worth it, either
Numbers = dict[str, int]


class Place(ctypes.Structure):
    """Where a tensor is in a block of samples: see native/vectors.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("at", "channel", "row")]


_PLACES = ("input", "output", "slope_in", "slope_out")
_NUMBERS = (
    *("channels", "height", "width", "filters", "rows", "columns", "kernel_h", "kernel_w", "pad_h", "pad_w"),
    *("weight", "by_filter", "by_channel", "by_row", "by_column", "bias", "norm", "scale", "shift", "mean", "variance"),
    *("relu", "pool_h", "pool_w", "need_slope", "packed", "packed_back", "side"),
    *("tiles", "points", "slopes", "back_tiles", "back_points"),
)


class Op(ctypes.Structure):
    """One operation: see native/vectors.h."""

    _fields_ = [
        ("kind", ctypes.c_int64),
        *((name, Place) for name in _PLACES),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        *((name, ctypes.c_double) for name in ("epsilon", "momentum")),
    ]


@dataclass(frozen=True)
class Program:
    """Operations, and how much memory they use."""

    ops: ctypes.Array[Op]
    input_shape: tuple[int, ...]
    outputs: int
    stride: int  # floats of a block of samples
    common: int  # floats of a model
    scratch: int  # floats of one block after another
    normalises: bool  # whether a BatchNorm looks at the whole batch


@dataclass
class _Tensor:
    """What an operation gives to the next one: its shape, and the zeros around its values and slopes."""

    shape: tuple[int, int, int]
    border: int = 0
    slope_border: int = 0


@dataclass
class _Writer:
    """Reads layers, and writes operations."""

    lanes: int
    position: dict[int, int]  # of parameters and statistics in the model's vector, by identity
    tensors: list[_Tensor]
    ops: list[Op] = field(default_factory=list)
    flat: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        shape = self.tensors[-1].shape
        return (math.prod(shape), 1, 1) if self.flat else shape

    def add(self, kind: int, shape: tuple[int, int, int], weight: int = 0, bias: int = -1, *more: Numbers) -> None:
        (c, h, w), (f, r, k) = self.shape, shape
        sizes = {"channels": c, "height": h, "width": w, "filters": f, "rows": r, "columns": k}
        common = {"weight": weight, "bias": bias, "pool_h": 1, "pool_w": 1, "need_slope": int(bool(self.ops))}
        op = Op(kind=kind, **sizes, **common)
        for name, value in (pair for numbers in more for pair in numbers.items()):
            setattr(op, name, value)
        self.ops.append(op)
        self.tensors.append(_Tensor(shape))

    def at(self, tensor: torch.Tensor | None) -> int:
        return -1 if tensor is None else self.position[id(tensor)]

    # -------------------------------------------------------------------------------------------------------- layers

    def convolution(self, module: nn.Conv1d | nn.Conv2d) -> bool:
        plane = module.weight.ndim == 4
        if self.flat or plane != (len(module.kernel_size) == 2) or module.groups != 1 or module.padding_mode != "zeros":
            return False
        kernel, pad = _plane(module.kernel_size), _padding(module)
        simple = {*module.stride, *module.dilation} == {1} and pad is not None and max(kernel) <= LARGEST_KERNEL
        if not simple or module.in_channels != self.shape[0] or module.in_channels * module.out_channels > WIDEST:
            return False
        assert pad is not None
        (kh, kw), (ph, pw) = kernel, pad
        rows, columns = self.shape[1] + 2 * ph - kh + 1, self.shape[2] + 2 * pw - kw + 1
        if ph >= kh or pw >= kw or min(rows, columns) < 1:
            return False
        c = module.in_channels
        # As in the model's vector: the weights of images have their channels last.
        apart = (kh * kw * c, 1, kw * c, c) if plane else (c * kw, kw, kw, 1)
        self.tensors[-1].border = pw
        self.add(
            *(CONVOLUTION, (module.out_channels, rows, columns)),
            *(self.at(module.weight), self.at(module.bias)),
            Numbers(zip(("kernel_h", "kernel_w", "pad_h", "pad_w"), (kh, kw, ph, pw), strict=True)),
            Numbers(zip(("by_filter", "by_channel", "by_row", "by_column"), apart, strict=True)),
        )
        self.tensors[-1].slope_border = kw - 1 - pw
        return True

    def norm(self, module: nn.BatchNorm1d | nn.BatchNorm2d) -> bool:
        known = module.affine and module.track_running_stats and module.momentum is not None
        if not known or self.flat or module.num_features != self.shape[0] or not self.ops:
            return False
        own = (module.weight, module.bias, module.running_mean, module.running_var)
        places = Numbers(zip(("scale", "shift", "mean", "variance"), map(self.at, own), strict=True))
        self.add(ACTIVATION, self.shape, 0, -1, places)
        last = self.ops[-1]
        last.norm, last.epsilon, last.momentum = 1, module.eps, module.momentum
        return True

    def pool(self, module: nn.MaxPool1d | nn.MaxPool2d) -> bool:
        size, stride = _plane(module.kernel_size), _plane(module.stride)
        plain = _all(module.padding, 0) and _all(module.dilation, 1) and not module.ceil_mode
        if self.flat or not self.ops or size != stride or not plain or module.return_indices:
            return False
        if type(module) is nn.MaxPool1d:
            size = (1, size[1])
        c, h, w = self.shape
        shape = (c, h // size[0], w // size[1])
        if min(shape) < 1:
            return False
        if not self._joins("pool"):
            self.add(ACTIVATION, shape)
        last = self.ops[-1]
        last.pool_h, last.pool_w, last.rows, last.columns = *size, *shape[1:]
        self.tensors[-1].shape = shape
        return True

    def relu(self, _: nn.ReLU) -> bool:
        if not self.ops:
            return False
        if not self._joins("relu"):
            self.add(ACTIVATION, self.shape)
        self.ops[-1].relu = 1
        return True

    def _joins(self, what: str) -> bool:
        """Whether the last operation computes this too: norm, then pooling and ReLU, whose order does not matter."""
        last = self.ops[-1]
        return last.kind == ACTIVATION and (not last.relu if what == "relu" else last.pool_h * last.pool_w == 1)

    def flatten(self, module: nn.Flatten) -> bool:
        if self.flat or (module.start_dim, module.end_dim) != (1, -1) or not self.ops:
            return False
        if self.ops[-1].kind == CONVOLUTION:  # whose slopes have zeros around them
            self.add(ACTIVATION, self.shape)
        self.flat = True
        return True

    def dense(self, module: nn.Linear) -> bool:
        if not self.flat or self.shape[0] != module.in_features:
            return False
        weight, bias = self.at(module.weight), self.at(module.bias)
        self.add(DENSE, (module.out_features, 1, 1), weight, bias)
        return True

    def identity(self, _: nn.Identity) -> bool:
        return True

    # ---------------------------------------------------------------------------------------------------------- room

    def program(self) -> Program:
        """Give every tensor its room."""
        at = common = 0
        values: list[Place] = []
        slopes: list[Place] = []
        for tensor in self.tensors:
            for border, places in ((tensor.border, values), (tensor.slope_border, slopes)):
                c, h, w = tensor.shape
                row = w + 2 * border
                places.append(Place(at + border, h * row, row))
                at += c * h * row + 2 * border  # what is read before the first and behind the last row is there
        scratch = 0
        for i, op in enumerate(self.ops):
            op.input, op.slope_in, op.output, op.slope_out = values[i], slopes[i], values[i + 1], slopes[i + 1]
            op.packed = common
            if op.kind == CONVOLUTION:
                op.tiles, op.back_tiles = _tiles(op, op.columns, op.channels), _tiles(op, op.width, op.filters)
                op.points, op.slopes = at, at + POINTS * op.height * op.channels * op.tiles
                at = op.slopes + POINTS * op.rows * SLOPES * op.tiles
                scratch = max(scratch, POINTS * op.rows * op.filters * op.back_tiles)
                each = op.filters * op.channels * op.kernel_h * max(op.kernel_w, POINTS)
                op.packed_back, common = common + each, common + 2 * each
            elif op.kind == ACTIVATION:
                common += 4 * op.channels if op.norm else 0
            else:
                op.side, at = at, at + op.channels
        normalises = any(op.norm for op in self.ops)
        many = (Op * len(self.ops))(*self.ops)
        room = at * self.lanes, max(common, 1), max(scratch, 1) * self.lanes
        return Program(many, self.tensors[0].shape, self.shape[0], *room, normalises)


# Exactly these types: a subclass may compute something else.
_KNOWN: dict[type[nn.Module], Callable[..., bool]] = {
    nn.Conv1d: _Writer.convolution,
    nn.Conv2d: _Writer.convolution,
    nn.BatchNorm1d: _Writer.norm,
    nn.BatchNorm2d: _Writer.norm,
    nn.MaxPool1d: _Writer.pool,
    nn.MaxPool2d: _Writer.pool,
    nn.ReLU: _Writer.relu,
    nn.Flatten: _Writer.flatten,
    nn.Linear: _Writer.dense,
    nn.Identity: _Writer.identity,
}


def program_of(model: Model, shape: tuple[int, ...], lanes: int) -> Program | None:
    """The program for samples of this shape; None for a network with a layer that the compiled code does not know."""
    layers, layout = layers_in_order(model.blueprint) or [], model.layout
    known = isinstance(model.loss, str) and model.dtype == torch.float32 and not layout.frozen and not layout.still
    convolutions = {2: nn.Conv1d, 3: nn.Conv2d}
    if not known or len(shape) not in convolutions or not layers or type(layers[0]) is not convolutions[len(shape)]:
        return None
    position, start = {}, 0
    for tensor in layout.vector(model.blueprint):
        position[id(tensor)] = start
        start += tensor.numel()
    first = (shape[0], 1, shape[1]) if len(shape) == 2 else (shape[0], shape[1], shape[2])
    writer = _Writer(lanes, position, [_Tensor(first)])
    for module in layers:
        add = _KNOWN.get(type(module))
        if add is None or not add(writer, module):
            return None
    return writer.program() if writer.ops[-1].kind == DENSE else None


def _tiles(op: Op, columns: int, channels: int) -> int:
    """In how many tiles native/winograd.h computes a row; 0 where the multiplications saved are not worth the sums."""
    if not 3 <= op.kernel_w <= 7 or columns < (m := POINTS + 1 - op.kernel_w) or channels * op.kernel_h < FEWEST:
        return 0
    tiles = -(-columns // m)
    return tiles if POINTS * tiles <= GAIN * columns * op.kernel_w else 0


def _plane(size: int | tuple[int, ...]) -> tuple[int, int]:
    """A size for height and width; of a signal's only one, the width."""
    many = (size, size) if isinstance(size, int) else tuple(size)
    return (1, many[0]) if len(many) == 1 else (many[0], many[1])


def _all(size: int | tuple[int, ...], value: int) -> bool:
    return set(size if isinstance(size, tuple) else (size,)) == {value}


def _padding(module: nn.Conv1d | nn.Conv2d) -> tuple[int, int] | None:
    """The zeros on each side; None where the sides differ."""
    if module.padding == "valid":
        return 0, 0
    if module.padding == "same":
        kernel = _plane(module.kernel_size)
        return (kernel[0] // 2, kernel[1] // 2) if all(side % 2 for side in kernel) else None
    assert not isinstance(module.padding, str)
    return (0, module.padding[0]) if len(module.padding) == 1 else (module.padding[0], module.padding[1])
