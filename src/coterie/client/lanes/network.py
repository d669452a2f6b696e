"""Small networks trained by compiled code: convolutional ones, and a single linear layer.

The compiled part is built by the machine's own C++ compiler when it is first needed, then kept.

The wheel stays pure Python and fits every platform; what is built fits the processor it runs on (AVX-512, AVX2, NEON),
which a wheel for many could not. Without a compiler there is no library, and networks are computed by torch.

The steps of a linear layer are so short (batches of ten, a few thousand weights) that whatever goes on between them is
most of the time."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from coterie.client.batched.dense import Layer, multiplications
from coterie.client.lanes.program import Program, program_of
from coterie.client.training import (
    LocalTraining,
    Proximal,
    TrainingResult,
    batches,
    cuts,
    initial_state,
    orders,
    proximal_factors,
    steps_of,
)
from coterie.core.model import Model
from coterie.core.objective import AnyLoss

NATIVE = Path(__file__).parent / "native"
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-strict-aliasing", "-shared", "-fPIC")
SWITCH = "COTERIE_LANES"  # "off": always torch
PATIENCE = 120  # seconds that the compiler may take

Pointer, Int = ctypes.c_void_p, ctypes.c_int64


@functools.cache
def library(name: str = "lanes") -> ctypes.CDLL | None:
    """The compiled functions of native/name.cpp; None where they are switched off or cannot be built."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) if os.environ.get(SWITCH) != "off" else None
    if compiler is None or os.name != "posix":
        return None
    try:
        found = ctypes.CDLL(str(_built(compiler, name)))
    except (OSError, subprocess.SubprocessError):  # no place to write to, or a compiler that does not know the language
        return None
    found.lanes.restype, found.lanes.argtypes = Int, []
    (_declare_lanes if name == "lanes" else _declare_regression)(found)
    return found


def _declare_lanes(found: ctypes.CDLL) -> None:
    found.gradient.restype = ctypes.c_double
    found.gradient.argtypes = [
        *(Pointer, Int, Pointer, Pointer, Int, Pointer, Int, Pointer),
        *(Pointer, Pointer, Int, Int, Pointer, Pointer, Pointer, Pointer),
    ]
    found.outputs.restype = None
    found.outputs.argtypes = [
        *(Pointer, Int, Pointer, Int, Int, Pointer, Int, Pointer),
        *(Int, Pointer, Int, Int, Pointer),
    ]


def _declare_regression(found: ctypes.CDLL) -> None:
    found.regression.restype, found.regression.argtypes = ctypes.c_double, [Pointer]


def _built(compiler: str, name: str = "lanes") -> Path:
    """The library of this source, for this compiler and processor."""
    machine = platform.machine()
    native = "-mcpu=native" if machine in ("arm64", "aarch64") else "-march=native"
    command = [compiler, *FLAGS, native]
    found = hashlib.sha256("\n".join([*command, name, machine, _processor(), _version(compiler)]).encode())
    for file in sorted(NATIVE.iterdir()):
        found.update(file.read_bytes())
    place = Path(platformdirs.user_cache_dir("coterie")).absolute() / "lanes" / f"{found.hexdigest()[:24]}.so"
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_private(place.parent)
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            made = Path(folder) / "lanes.so"
            words = [*command, "-o", str(made), str(NATIVE / f"{name}.cpp")]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
            made.chmod(0o700)
            made.replace(place)  # at once, whatever other processes do at the same time
    _check_private(place)
    return place


def _check_private(place: Path) -> None:
    """Code is loaded from nowhere that anyone else could write to."""
    found = place.lstat()
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or writable:
        raise PermissionError(f"{place}: others may write to it")


def _version(compiler: str) -> str:
    """A compiler's file, as it is now."""
    file = Path(compiler).resolve()
    return f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"


def _processor() -> str:
    """What the processor can do: a home directory may be shared by different machines."""
    own = f"{platform.processor()} {platform.node()}"  # where this is not known, the machine itself
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return own
    return next((line for line in lines if line.startswith(("flags", "Features"))), own)


CACHE = 1 << 20  # bytes of the samples computed at a time, where no BatchNorm looks at the whole batch
ROOM = 1 << 27  # bytes of a batch beyond which it is not computed here


class Images(ctypes.Structure):
    """Samples as they lie in memory, and which of them: see native/take.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "rows")),
        *((name, ctypes.c_int64) for name in ("sample", "channel", "row", "column")),
    ]

    @classmethod
    def of(cls, x: Tensor, rows: Tensor | None = None) -> Images:
        """These rows of images (n, channels, height, width) or signals (n, channels, length)."""
        stride = x.stride() if x.ndim == 4 else (*x.stride()[:2], 0, x.stride(2))
        return cls(x.data_ptr(), pointer(rows), *stride)


class LanesNetwork:
    """A network for samples of one shape, with the memory that it computes in."""

    def __init__(self, model: Model, program: Program, lanes: int) -> None:
        self.program, self.lanes, self.loss = program, lanes, model.loss
        self.parameters, self.size = model.parameters, model.size
        self.room = torch.zeros(0)
        self.common, self.scratch = torch.zeros(program.common), torch.zeros(program.scratch)
        compiled = library()
        assert compiled is not None
        self.compiled = compiled

    def fits(self, samples: int) -> bool:
        """Whether a batch of so many samples is computed here."""
        return not self.program.normalises or 4 * self.program.stride * -(-samples // self.lanes) <= ROOM

    def reads(self, theta: Tensor) -> bool:
        """Whether this is a model as the compiled code reads it."""
        return theta.dtype == torch.float32 and theta.shape == (self.size,) and theta.device.type == "cpu"

    def train(self, training: LocalTraining, least: int) -> TrainingResult:
        """One client's training, as `training.train` does it. least: the fewest samples of a batch."""
        theta = training.start.clone()
        weights, grad = theta[: self.parameters], theta.new_empty(self.parameters)
        rule, proximal = training.rule, training.proximal
        state = initial_state(training.local, weights, training.state).clone()
        if proximal is not None:
            proximal = Proximal(proximal.anchor[: self.parameters], proximal.mu)
        samples = _Samples(training, self.loss)
        losses = []
        everything = torch.arange(samples.n)
        with torch.no_grad():
            for take in batches(samples.n, training.local, training.rng, least):
                losses.append(self._gradient(theta, grad, samples, everything if take is None else take))
                if rule.plain and proximal is None:
                    weights.add_(grad, alpha=-rule.lr)
                else:
                    rule.step(weights, grad, state, proximal)
        return TrainingResult(theta, sum(losses) / len(losses), state)

    def _gradient(self, theta: Tensor, grad: Tensor, samples: _Samples, take: Tensor) -> float:
        program, n, images = self.program, len(take), Images.of(samples.x, take)
        part = -(-n // self.lanes) * self.lanes if program.normalises else self._part()
        self._make_room(min(part, n))
        found: float = self.compiled.gradient(
            *(program.ops, len(program.ops), theta.data_ptr(), grad.data_ptr(), self.parameters),
            *(self.room.data_ptr(), program.stride, self.common.data_ptr(), self.scratch.data_ptr()),
            *(ctypes.byref(images), n, part),
            *(pointer(t) for t in (samples.classes, samples.values, samples.offset, samples.weights)),
        )
        return found

    def outputs(self, thetas: Tensor, x: Tensor) -> Tensor:
        """The outputs (G, n, outputs) of all models (G, P) for all samples, in evaluation."""
        program, part = self.program, self._part()
        if thetas.shape[1:] != (self.size,):
            raise ValueError(f"models of {tuple(thetas.shape[1:])} numbers for a network of {self.size}")
        thetas, images = thetas.contiguous(), Images.of(x)
        found = torch.empty(len(thetas), len(x), program.outputs)
        self._make_room(min(part, len(x)))
        common = torch.empty(len(thetas), program.common)
        self.compiled.outputs(
            *(program.ops, len(program.ops), thetas.data_ptr(), len(thetas), self.size),
            *(self.room.data_ptr(), program.stride, common.data_ptr(), program.common),
            *(ctypes.byref(images), len(x), part, found.data_ptr()),
        )
        return found

    def _part(self) -> int:
        """Samples computed at a time."""
        return self.lanes * max(1, CACHE // (4 * self.program.stride))

    def _make_room(self, samples: int) -> None:
        wanted = -(-samples // self.lanes) * self.program.stride
        if len(self.room) < wanted:
            self.room = torch.zeros(wanted)


class _Samples:
    """What a client trains on, as the compiled code reads it: in single precision, labels in range."""

    def __init__(self, training: LocalTraining, loss: AnyLoss) -> None:
        self.n = len(training.y)
        self.x = training.x
        self.offset = None if training.offset is None else training.offset.contiguous()
        self.weights = None if training.weights is None else training.weights.contiguous()
        y = training.y.contiguous()
        self.classes = y if loss == "cross_entropy" else None
        self.values = None if loss == "cross_entropy" else y


def pointer(tensor: Tensor | None) -> int | None:
    """Where its numbers are; null for none."""
    return None if tensor is None else tensor.data_ptr()


class LanesNetworks:
    """The networks of one model, by the shape of their samples; there may be none."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._known: dict[tuple[int, ...], LanesNetwork | None] = {}

    def of(self, shape: tuple[int, ...]) -> LanesNetwork | None:
        """For samples of this shape; None where it is computed by torch."""
        if shape not in self._known:
            self._known[shape] = self._made(shape)
        return self._known[shape]

    def _made(self, shape: tuple[int, ...]) -> LanesNetwork | None:
        if program_of(self.model, shape, 1) is None:  # before anything is compiled
            return None
        compiled = library()
        lanes = 0 if compiled is None else int(compiled.lanes())
        program = program_of(self.model, shape, lanes) if lanes else None
        return None if program is None else LanesNetwork(self.model, program, lanes)

    def for_training(self, training: LocalTraining) -> LanesNetwork | None:
        """For one client's training; None where its numbers are none that the compiled code reads."""
        x, y, local = training.x, training.y, training.local
        network = self.of(tuple(x.shape[1:]))
        if network is None or not len(y):
            return None
        largest = 2 * (len(y) if local.batch == "full" else min(local.batch, len(y)))  # a remainder may join it
        outputs, classes = network.program.outputs, network.loss == "cross_entropy"
        labels = labels_fit(y, outputs) if classes else y.dtype == torch.float32 and y.numel() == len(y) * outputs
        numbers = [x, training.start, *(t for t in (training.offset, training.weights) if t is not None)]
        plain = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in numbers)
        shaped = training.offset is None or training.offset.shape == (len(y), outputs)
        weighted = training.weights is None or training.weights.shape == (len(y),)
        whole = training.start.shape == (network.size,) and len(x) == len(y)
        return network if labels and plain and shaped and weighted and whole and network.fits(largest) else None


def labels_fit(y: Tensor, outputs: int) -> bool:
    """Whether all labels are classes; torch names the others."""
    return y.dtype == torch.int64 and y.ndim == 1 and int(y.min()) >= 0 and int(y.max()) < outputs


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
