"""Networks of linear layers with ReLUs in between, as positions in the model's vector."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from coterie.core.model import Model, layers_in_order


@dataclass(frozen=True)
class Layer:
    """A linear layer: the position of its parameters in the model's vector, and whether a ReLU follows."""

    inputs: int
    outputs: int
    weight: int
    bias: int | None
    relu: bool

    @property
    def size(self) -> int:
        """The number of its parameters."""
        return self.outputs * (self.inputs + (self.bias is not None))

    def matrix(self, thetas: Tensor) -> Tensor:
        """(G, outputs, inputs)."""
        part = thetas[:, self.weight : self.weight + self.inputs * self.outputs]
        return part.view(len(thetas), self.outputs, self.inputs)

    def bias_of(self, thetas: Tensor) -> Tensor | None:
        """(G, 1, outputs), if it has a bias."""
        return None if self.bias is None else thetas[:, None, self.bias : self.bias + self.outputs]


def layers_of(model: Model) -> tuple[Layer, ...] | None:
    """The layers of a network that is nothing but linear layers, ReLUs and a flattening; None for any other."""
    if not isinstance(model.loss, str):  # whose gradient is not known here
        return None
    found: list[Layer] = []
    start = 0
    for module in layers_in_order(model.blueprint) or ():
        if type(module) is nn.Linear:
            if not all(p.requires_grad for p in module.parameters()):
                return None
            size = module.in_features * module.out_features
            bias = None if module.bias is None else start + size
            if found and found[-1].outputs != module.in_features:
                return None
            found.append(Layer(module.in_features, module.out_features, start, bias, relu=False))
            start += size + (0 if module.bias is None else module.out_features)
        elif type(module) is nn.ReLU and found:
            last = found.pop()
            found.append(Layer(last.inputs, last.outputs, last.weight, last.bias, relu=True))
        elif not (type(module) is nn.Identity or (type(module) is nn.Flatten and not found and module.start_dim == 1)):
            return None
    whole = start == model.size == model.parameters
    return tuple(found) if found and whole and not found[-1].relu else None
