"""What of a network is trained: the rest is frozen, shared and known by its hash; adapters by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import raises, vector
from coterie.client.training import train
from coterie.core.model import Model
from coterie.core.parts import AdaptedLinear, Adapters, Train, merge, prepare
from coterie.core.tasks import Local
from coterie.zoo import MLP

MLP_3_2_2 = partial(MLP(hidden=(2,)), (3,), 2)  # named 1 and 3: weight 6, bias 2, weight 4, bias 2


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normed() -> nn.Module:
    """0: 2*2 + 2, 1: 2 + 2 and two running means and variances, 2: 2*2 + 2."""
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("build", "part", "size", "frozen"),
    [
        (MLP_3_2_2, "all", 14, 0),
        (MLP_3_2_2, "head", 6, 8),
        (MLP_3_2_2, "classifier", 14, 0),
        (MLP_3_2_2, ("*.bias",), 4, 10),
        (MLP_3_2_2, ("1.weight", "3"), 12, 2),
        (MLP_3_2_2, "adapters", 6 + 3 * 8 + 8 * 2, 8),
        (normed, "head", 6, 10 + 4),  # what the frozen body has measured is frozen with it
        (normed, ("1",), 4 + 4, 12),
    ],
)
def test_only_what_is_trained_is_in_the_vector(
    build: Callable[[], nn.Module], part: Train, size: int, frozen: int
) -> None:
    model = Model(build, train=part)
    assert (model.size, model.frozen_size) == (size, frozen)
    assert len(model.init(rng())) == size
    assert bool(model.frozen) is bool(frozen)


def test_a_single_pattern_needs_no_list_and_one_that_fits_nothing_is_refused() -> None:
    assert Model(MLP_3_2_2, train="3.*").size == 6  # type: ignore[arg-type]
    with raises("model-part-unknown", match=r"train: '4' fits no parameter.*1\.weight"):
        _ = Model(MLP_3_2_2, train=("4",)).size
    with raises("model-part-unknown", match="adapters.layers: '7' fits no linear layer"):
        _ = Model(MLP_3_2_2, train="adapters", adapters=Adapters(layers=("7",))).size
    with raises("config-invalid-value", match="train: "):
        Model(MLP_3_2_2, train=())


def test_what_is_frozen_is_the_same_whenever_the_network_is_built() -> None:
    torch.manual_seed(1)
    one = Model(MLP_3_2_2, train="head")
    _ = one.blueprint
    torch.manual_seed(2)
    other = Model(MLP_3_2_2, train="head")
    assert one.frozen == other.frozen
    assert not torch.equal(one.init(rng(1)), one.init(rng(2)))
    with torch.no_grad():
        other.blueprint.get_parameter("1.bias")[0] += 1
    assert Model.frozen.func(other) != one.frozen  # type: ignore[attr-defined]


def test_the_hash_is_of_names_types_and_values() -> None:
    def named(name: str) -> Model:
        made = nn.Sequential()
        made.add_module(name, nn.Linear(1, 1))
        made.add_module("last", nn.Linear(1, 1))
        return Model(lambda: made, train="head")

    assert len({named("a").frozen, named("b").frozen}) == 2


def test_replicas_share_what_is_frozen_and_nothing_else() -> None:
    model = Model(MLP_3_2_2, train="head")
    one, other = model.replica(), model.replica()
    pairs = list(zip(one.network.parameters(), other.network.parameters(), strict=True))
    assert [a.data_ptr() == b.data_ptr() for a, b in pairs] == [True, True, False, False]


def test_training_leaves_frozen_parameters_and_statistics_alone() -> None:
    model = Model(normed, train="head")
    replica = model.replica().load(model.init(rng()))
    before, hash = replica.theta.clone(), model.frozen
    x, y = torch.randn(8, 2), torch.tensor([0, 1] * 4)
    train(replica, x, y, Local(epochs=3, batch=4, lr=0.5), rng())
    assert not torch.equal(replica.theta, before)
    assert model.layout.fingerprint(replica.network) == model.layout.fingerprint(model.blueprint) == hash


def test_statistics_of_a_layer_that_a_network_froze_itself_still_move() -> None:
    """As in 0.1: with `train: all` the network decides."""

    def build() -> nn.Module:
        made = normed()
        made.get_submodule("1").requires_grad_(False)
        return made

    model = Model(build)
    assert (model.parameters, model.size, model.frozen_size) == (12, 16, 4)
    replica = model.replica().load(model.init(rng()))
    train(replica, torch.randn(8, 2), torch.tensor([0, 1] * 4), Local(epochs=1, batch=4, lr=0.5), rng())
    assert replica.theta[12:].tolist() != [0, 0, 1, 1]


def test_an_instance_keeps_what_is_not_drawn_again() -> None:
    torch.manual_seed(5)
    instance = MLP_3_2_2()
    for part in ("head", "adapters"):
        model = Model.of(instance, train=part)
        assert torch.equal(model.blueprint.get_parameter("1.bias"), instance.get_parameter("1.bias"))
        assert not torch.equal(model.init(rng(1)), model.init(rng(2)))
    started = Model.of(instance, train=("1.bias",)).init(rng())
    assert torch.equal(started, instance.get_parameter("1.bias"))
    instance.get_submodule("1").requires_grad_(False)
    assert torch.equal(Model.of(instance).blueprint.get_parameter("1.bias"), instance.get_parameter("1.bias"))


# --------------------------------------------------------------------------------------------------- adapters by hand


def by_hand() -> AdaptedLinear:
    """W = [[1, 2], [3, 4]], b = (1, 1), down = (1, 1), up = (1, 2), scale 4/1.

    W + 4 [[1, 1], [2, 2]] is [[5, 6], [11, 12]].
    """
    layer = nn.Linear(2, 2)
    layer.weight.data, layer.bias.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2)
    made = AdaptedLinear(layer.requires_grad_(False), 1, 4.0)
    made.down.data, made.up.data = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0], [2.0]])
    return made


def test_an_adapter_by_hand() -> None:
    layer = by_hand()
    assert layer.weight.tolist() == [[5, 6], [11, 12]]
    assert layer(torch.tensor([[1.0, 1.0]])).tolist() == [[12, 24]]
    plain = merge(layer)
    assert type(plain) is nn.Linear
    assert plain(torch.tensor([[1.0, 1.0]])).tolist() == [[12, 24]]


def test_an_adapter_changes_nothing_before_it_is_trained() -> None:
    x, model = torch.randn(5, 3), Model(MLP_3_2_2, train="adapters")
    adapted = model.replica().load(model.init(rng(3)))
    head = adapted.network.get_submodule("3")
    hidden = torch.relu(nn.functional.linear(x, *(model.blueprint.get_parameter(f"1.{n}") for n in ("frozen", "bias"))))
    assert torch.equal(adapted.logits(x), head(hidden))


def test_one_step_on_an_adapter_by_hand() -> None:
    """f(x) = w x + up * down * x with w = 1 frozen, up = 0, down = 1, x = 1, target 3: d/d up = 2 (1 - 3) * 1 = -4."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    model = Model(lambda: nn.Sequential(layer), "mse", "adapters", Adapters(rank=1, alpha=1.0, head=False))
    replica = model.replica().load(vector(1, 0))  # down, up
    train(replica, torch.ones(1, 1), torch.full((1, 1), 3.0), Local(epochs=1, batch="full", lr=0.1), rng())
    assert replica.theta.tolist() == pytest.approx([1, 0.4])


class Twice(nn.Module):
    """One layer in two places, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b, self.head = self.a, nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.b(self.a(x)))
        return out


def test_a_layer_in_two_places_has_one_adapter() -> None:
    network = prepare(Twice(), "adapters", Adapters(rank=1))
    assert isinstance(network, Twice)
    assert isinstance(network.a, AdaptedLinear)
    assert network.a is network.b
    merged = merge(network)
    assert isinstance(merged, Twice)
    assert merged.a is merged.b
    assert type(merged.a) is nn.Linear


def test_attention_layers_that_read_a_weight_without_calling_its_layer_use_the_adapter() -> None:
    """torch's own encoder takes `linear1.weight` and `out_proj.weight` in evaluation; training calls the layers."""
    torch.manual_seed(0)
    body = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    network = prepare(nn.Sequential(body, nn.Linear(4, 2)), "adapters", Adapters(rank=2))
    for module in network.modules():
        if isinstance(module, AdaptedLinear):
            nn.init.normal_(module.up)
    x = torch.randn(3, 5, 4)
    trained = network.train()(x)
    with torch.inference_mode():
        evaluated = network.eval()(x)
    torch.testing.assert_close(evaluated, trained, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merge(network)(x), trained, atol=1e-5, rtol=1e-5)
