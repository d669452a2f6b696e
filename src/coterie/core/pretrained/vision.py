"""Networks of torchvision (extra) by name, with a head for the data's classes."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from coterie.core.constructors import dataclass
from coterie.core.errors import CoterieError, suggest
from coterie.core.types import STRICT

Shape = tuple[int, ...]


class _Coloured(nn.Module):
    """Gray images as images of three channels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, h, w) -> (n, outputs)."""
        out: Tensor = self.network(x.expand(-1, 3, -1, -1))
        return out


@dataclass(frozen=True, config=STRICT)
class TorchVision:
    """A network of torchvision by its name, such as resnet18, with a new last layer; for images."""

    paper: ClassVar[str] = ""

    network: str = "resnet18"
    weights: Literal["none", "default"] = "none"  # default: the published ones, which torchvision downloads once

    def __call__(self, shape: Shape, outputs: int) -> nn.Module:
        """Build it."""
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise CoterieError(
                f"model: torchvision wants images of one or three channels, the data has samples of shape {shape}",
                code="model-shape",
            )
        models = _models()
        known = models.list_models(module=models)
        if self.network not in known:
            raise CoterieError(
                f"model.network: torchvision has no '{self.network}'.{suggest(self.network, known)}",
                code="config-unknown-name",
            )
        made: nn.Module = models.get_model(self.network, weights=None if self.weights == "none" else "DEFAULT")
        with_head(made, outputs)
        return made if shape[0] == 3 else _Coloured(made)


def with_head(network: nn.Module, outputs: int) -> None:
    """Replace the last linear layer by a new one with as many outputs."""
    linear = [name for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise CoterieError("model: this network of torchvision has no linear layer at its end", code="model-invalid")
    old = network.get_submodule(linear[-1])
    assert isinstance(old, nn.Linear)
    owner, _, last = linear[-1].rpartition(".")
    setattr(network.get_submodule(owner), last, nn.Linear(old.in_features, outputs, bias=old.bias is not None))


def _models() -> Any:
    try:
        from torchvision import models
    except ImportError:
        raise CoterieError(
            "model: torchvision is not installed; pip install 'coterie[torchvision]'", code="extra-missing"
        ) from None
    except RuntimeError as error:  # built for another torch: one with CUDA, for example
        raise CoterieError(
            f"model: the torchvision that is installed does not fit this torch ({error}); install both from one source",
            code="extra-missing",
        ) from None
    return models
