"""Training and outputs of a small convolutional network through the compiled code."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from coterie.client.lanes.library import library
from coterie.client.lanes.program import Program, program_of
from coterie.client.training import LocalTraining, TrainingResult, batches
from coterie.client.updates import Proximal, initial_state
from coterie.core.model import Model
from coterie.core.objective import AnyLoss

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
