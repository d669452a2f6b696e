"""Networks by name, as the papers use them; each knows its input shape and number of outputs only when built.

ReLU comes behind pooling here: the largest of what is positive is what is positive of the largest, in value and in
slope, and there is a quarter of it. To the bit the same as the other way about, and up to 8 % faster.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar, Literal, TypeAlias

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from coterie.core.errors import CoterieError
from coterie.core.pretrained import TorchVision, Transformer
from coterie.core.settings import STRICT, dataclass

__all__ = ["CNN", "CNN1D", "LSTM", "MLP", "Architecture", "LeNet", "LinearModel", "TorchVision", "Transformer"]

Shape = tuple[int, ...]
# torch: as PyTorch draws weights. glorot: weights uniform by Glorot, biases zero, as TensorFlow draws them (FedGroup's
# authors). xavier-normal: of linear layers normal by Glorot, the rest as PyTorch draws it (FedSoft's authors).
Init: TypeAlias = Literal["torch", "glorot", "xavier-normal"]


def _drawn(network: nn.Module, init: Init) -> nn.Module:
    """The network with its weights drawn so, from torch's generator."""
    for layer in network.modules():
        if init == "glorot" and isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif init == "xavier-normal" and isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
    return network


def _image(name: str, shape: Shape, smallest: int) -> Shape:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise CoterieError(
            f"model: {name} wants images of at least {smallest}x{smallest}, the data has samples of shape {shape}; "
            "try model.name=mlp",
            code="model-shape",
        )
    return shape


@dataclass(frozen=True, config=STRICT)
class LinearModel:
    """One linear layer: multinomial logistic regression, or linear regression."""

    paper: ClassVar[str] = "MCLR of Li et al. 2020, arXiv:1812.06127"

    bias: bool = True
    init: Init = "torch"  # how weights are drawn; glorot: as TensorFlow does; xavier-normal: linear layers' so

    def __call__(self, shape: Shape, outputs: int) -> nn.Module:
        """Build it."""
        return _drawn(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs, bias=self.bias)), self.init)


@dataclass(frozen=True, config=STRICT)
class MLP:
    """Fully connected layers with ReLU between."""

    paper: ClassVar[str] = "Ghosh et al. 2020, arXiv:2006.04088 (200 hidden units)"

    hidden: tuple[PositiveInt, ...] = (200,)
    init: Init = "torch"  # how weights are drawn; glorot: as TensorFlow does; xavier-normal: linear layers' so

    def __call__(self, shape: Shape, outputs: int) -> nn.Module:
        """Build it."""
        widths = (math.prod(shape), *self.hidden)
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        return _drawn(nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], outputs)), self.init)


class _BatchNormOfTheBatch(nn.BatchNorm2d):
    """BatchNorm that normalises by the batch at hand in evaluation too, so many samples at a time."""

    def __init__(self, features: int, batch: int) -> None:
        super().__init__(features)
        # What it says of a sample depends on so many others: samples of several clients must not meet.
        self.batch = self.mixes_samples = batch

    def forward(self, x: Tensor) -> Tensor:
        """As usual in training."""
        if self.training:
            return super().forward(x)
        parts = [
            functional.batch_norm(part, None, None, self.weight, self.bias, training=True)
            for part in x.split(self.batch)
        ]
        return torch.cat(parts)


@dataclass(frozen=True, config=STRICT)
class CNN:
    """Two 5x5 convolutions with BatchNorm and pooling, one linear layer (WeCFL's for Fashion-MNIST)."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187 (Table 3)"

    channels: tuple[PositiveInt, PositiveInt] = (16, 32)
    batch_statistics: PositiveInt | None = None  # evaluate by test batches of this size, not by running statistics

    def norm(self, features: int) -> nn.Module:
        """BatchNorm; the authors of WeCFL never switch it to evaluation, which `batch_statistics: 32` does too."""
        if self.batch_statistics is None:
            return nn.BatchNorm2d(features)
        return _BatchNormOfTheBatch(features, self.batch_statistics)

    def __call__(self, shape: Shape, outputs: int) -> nn.Module:
        """Build it."""
        inputs, height, width = _image("cnn", shape, 4)
        a, b = self.channels
        return nn.Sequential(
            *(nn.Conv2d(inputs, a, 5, padding=2), self.norm(a), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(a, b, 5, padding=2), self.norm(b), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(b * (height // 4) * (width // 4), outputs)),
        )


@dataclass(frozen=True, config=STRICT)
class LeNet:
    """LeNet 6-16-120-84, as the papers train on CIFAR-10."""

    paper: ClassVar[str] = "LeCun et al. 1998; Ma et al. 2022, arXiv:2202.06187 (Table 4)"

    init: Init = "torch"  # how weights are drawn; glorot: as TensorFlow does; xavier-normal: linear layers' so

    def __call__(self, shape: Shape, outputs: int) -> nn.Module:
        """Build it."""
        inputs, height, width = _image("lenet", shape, 16)
        h, w = ((side - 4) // 2 for side in (height, width))
        h, w = ((side - 4) // 2 for side in (h, w))
        network = nn.Sequential(
            *(nn.Conv2d(inputs, 6, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16 * h * w, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, outputs),
        )
        return _drawn(network, self.init)


@dataclass(frozen=True, config=STRICT)
class CNN1D:
    """Two convolutions over time with pooling, two linear layers: for signals (channels x length), such as uci-har."""

    paper: ClassVar[str] = ""

    channels: tuple[PositiveInt, PositiveInt] = (32, 64)
    kernel: PositiveInt = 9
    hidden: PositiveInt = 64

    def __call__(self, shape: Shape, outputs: int) -> nn.Module:
        """Build it."""
        if len(shape) != 2 or shape[1] < 4:
            raise CoterieError(
                f"model: cnn1d wants signals (channels x length), the data has samples of shape {shape}; "
                "try model.name=mlp",
                code="model-shape",
            )
        inputs, length = shape
        a, b = self.channels
        return nn.Sequential(
            *(nn.Conv1d(inputs, a, self.kernel, padding="same"), nn.MaxPool1d(2), nn.ReLU()),
            *(nn.Conv1d(a, b, self.kernel, padding="same"), nn.MaxPool1d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(b * (length // 4), self.hidden), nn.ReLU()),
            nn.Linear(self.hidden, outputs),
        )


class _Reader(nn.Module):
    """Word numbers through an embedding, an LSTM and two linear layers."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, dense: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.dense = nn.Linear(hidden, dense)
        self.head = nn.Linear(dense, outputs)

    def forward(self, words: Tensor) -> Tensor:
        """(n, words) -> (n, outputs), from the state after the last word."""
        states, _ = self.lstm(self.embedding(words))
        # Behind the last word comes padding (0), which an LSTM would go on reading.
        last = (words != 0).sum(1).clamp(min=1) - 1
        found: Tensor = self.head(self.dense(states[torch.arange(words.shape[0]), last]))
        return found


@dataclass(frozen=True, config=STRICT)
class LSTM:
    """Two LSTM layers over words, for sent140: FedGroup's, with a small embedding of its own instead of GloVe's."""

    paper: ClassVar[str] = "Li et al. 2020, arXiv:1812.06127 (Sent140); Duan et al. 2021, arXiv:2010.06870 (Table II)"

    vocabulary: PositiveInt = 10_000  # as many as the data's
    embedding: PositiveInt = 25
    hidden: PositiveInt = 100
    layers: PositiveInt = 2
    dense: PositiveInt = 30

    def __call__(self, shape: Shape, outputs: int) -> nn.Module:
        """Build it."""
        if len(shape) != 1:
            raise CoterieError(
                f"model: lstm wants lists of word numbers, the data has samples of shape {shape}", code="model-shape"
            )
        return _Reader(self.vocabulary, self.embedding, self.hidden, self.layers, self.dense, outputs)


Architecture = LinearModel | MLP | CNN | LeNet | CNN1D | LSTM | Transformer | TorchVision
