"""A trained network with what surrounds it: raw inputs in, probabilities and labels or original units out.

These modules are only traced, into ONNX or an ExportedProgram. They say in tensors what `data.scale`, `data.encoding`
and `data.targets` do, and `parity` compares the two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.objective import AnyLoss
from coterie.data.columns import INDICATOR, NUMBER, TableScale
from coterie.data.scale import Scale, TargetScale

CLASSIFICATION = ("logits", "probabilities", "label")
REGRESSION = ("value",)


class ScaledInputs(nn.Module):
    """(x / divisor - mean) / std."""

    mean: Tensor
    std: Tensor

    def __init__(self, scale: Scale, dtype: torch.dtype) -> None:
        super().__init__()
        self.divisor = scale.divisor
        self.register_buffer("mean", torch.as_tensor(scale.mean, dtype=dtype).clone())
        self.register_buffer("std", torch.as_tensor(scale.std, dtype=dtype).clone())

    def forward(self, x: Tensor) -> Tensor:
        """Stored numbers (n, ...) as the network takes them."""
        return (x / self.divisor - self.mean) / self.std


class TableInputs(nn.Module):
    """Columns of a table: numbers, NaN where one is missing, and codes of categories (-1: a value never seen)."""

    source: Tensor
    code: Tensor
    fill: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, scale: TableScale, dtype: torch.dtype) -> None:
        super().__init__()
        source, code, fill = scale._layout
        parts = {"source": source, "code": code.to(dtype), "fill": fill.to(dtype)}
        parts |= {"mean": torch.as_tensor(scale.mean, dtype=dtype), "std": torch.as_tensor(scale.std, dtype=dtype)}
        for name, part in parts.items():
            self.register_buffer(name, part.clone())

    def forward(self, x: Tensor) -> Tensor:
        """(n, columns) -> (n, inputs of the network)."""
        wide = x.index_select(1, self.source)
        hole = wide.isnan()
        number = torch.where(hole, self.fill, wide)
        # As numbers: onnxruntime has no `where` of truth values.
        flag = torch.where(self.code == INDICATOR, hole.to(wide.dtype), (wide == self.code).to(wide.dtype))
        return (torch.where(self.code == NUMBER, number, flag) - self.mean) / self.std


class Exported(nn.Module):
    """Raw inputs -> what the network says of them. A sample that the library refuses (NaN, Inf) gives NaN."""

    def __init__(self, network: nn.Module, scale: Scale | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network
        self.prepare: nn.Module = nn.Identity()
        if isinstance(scale, TableScale):
            self.prepare = TableInputs(scale, dtype)
        elif scale is not None and not scale.plain:
            self.prepare = ScaledInputs(scale, dtype)

    def said(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the network says, and which samples are refused (n,); None for whole numbers, which are all finite."""
        x = self.prepare(inputs)
        said = self.network(x)
        if not x.is_floating_point():
            return said, None
        refused = ~x.isfinite().flatten(1).all(1)
        return torch.where(refused.reshape(-1, *[1] * (said.ndim - 1)), torch.nan, said), refused


class ExportedClassifier(Exported):
    """Logits (n, classes), probabilities (n, classes) and labels (n,)."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of a mixture of models are log-probabilities. The label of a refused sample is -1."""
        logits, refused = self.said(inputs)
        label = logits.argmax(1)
        label = label if refused is None else torch.where(refused, -1, label)
        return logits, torch.softmax(logits, 1), label


class ExportedRegressor(Exported):
    """Values in the units of the targets."""

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, network: nn.Module, scale: Scale | None, dtype: torch.dtype, target: TargetScale | None) -> None:
        super().__init__(network, scale, dtype)
        self.register_buffer("mean", None if target is None else target.mean.double().clone())
        self.register_buffer("std", None if target is None else target.std.double().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        """In double until the end, which large targets need."""
        said, _ = self.said(inputs)
        if self.mean is None or self.std is None:
            return said
        return (said.double() * self.std + self.mean).to(said.dtype)


def as_graph(
    network: nn.Module, loss: AnyLoss, scale: Scale | None, target: TargetScale | None, dtype: torch.dtype
) -> ExportedClassifier | ExportedRegressor:
    """The module to trace, in evaluation mode and without gradients."""
    made = (
        ExportedClassifier(network, scale, dtype)
        if loss == "cross_entropy"
        else ExportedRegressor(network, scale, dtype, target)
    )
    return made.eval().requires_grad_(False)
