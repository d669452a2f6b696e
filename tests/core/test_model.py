"""nn.Module <-> one vector: trainable parameters, then floating-point buffers; frozen parameters are not in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import linear, raises, vector
from coterie.core.model import Model, flatten
from coterie.core.objective import sample_losses
from coterie.core.parts import Part
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.tables import Roster
from coterie.zoo import CNN, CNN1D, MLP, LeNet, LinearModel, Shape


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def with_batchnorm() -> nn.Module:
    """Images (1, 3, 3): 2 + 2 + 2 + 2 + 18*2 + 2 = 46 parameters, and 2 + 2 running statistics."""
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 2))


class Frozen(nn.Module):
    """A frozen layer (6 numbers) before a trainable one (3 numbers)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2).requires_grad_(False)
        self.last = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x))
        return out


class Tied(nn.Module):
    """One 2x2 matrix, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x))
        return out


class Bare(nn.Module):
    """Parameters of its own, and no way to draw them anew."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


# ------------------------------------------------------------------------------------------ the vector


@pytest.mark.parametrize(
    ("build", "parameters", "size"),
    [(partial(nn.Linear, 2, 2), 6, 6), (with_batchnorm, 46, 50), (Frozen, 3, 3), (Tied, 4, 4)],
)
def test_a_vector_goes_into_a_network_and_out_again(build: Callable[[], nn.Module], parameters: int, size: int) -> None:
    model = Model(build)
    assert (model.parameters, model.size) == (parameters, size)
    theta = torch.randn(size)
    replica = model.replica().load(theta)
    assert torch.equal(flatten(replica.network), theta)
    assert len(replica.weights) == parameters


def test_a_replica_computes_what_the_network_computes() -> None:
    network = with_batchnorm()
    network(torch.randn(8, 1, 3, 3))  # running statistics that are not the initial ones
    x = torch.randn(5, 1, 3, 3)
    replica = Model(with_batchnorm).replica().load(flatten(network))
    assert torch.equal(replica.logits(x), network.eval()(x))


def test_many_samples_are_answered_in_parts_with_the_same_result() -> None:
    replica = linear().replica().load(vector(1, 2, 3, 4))
    x = torch.randn(7, 2)
    torch.testing.assert_close(replica.logits(x, batch=3), x @ torch.tensor([[1.0, 3.0], [2.0, 4.0]]))


def test_running_statistics_live_at_the_end_of_the_vector() -> None:
    """One batch of ones: mean 0.1 * 1 (momentum 0.1), variance 0.9 * 1 + 0.1 * 0."""
    replica = Model(partial(nn.BatchNorm1d, 1)).replica().load(vector(1, 0, 0, 1))
    replica.network.train()(torch.ones(4, 1))
    assert replica.theta.tolist() == pytest.approx([1, 0, 0.1, 0.9])


def test_frozen_parameters_are_not_in_the_vector() -> None:
    """`first` is registered before `last`, but frozen: the vector is `last`."""
    model = Model(Frozen)
    network = model.replica().load(torch.arange(3.0)).network
    assert isinstance(network, Frozen)
    assert network.last.weight.tolist() == [[0, 1]]
    assert network.last.bias.tolist() == [2]
    assert model.frozen_size == 6


def test_the_gradient_has_room_in_one_vector_of_the_trainable_part() -> None:
    """last(first(x)) with first = identity, x = (2, 3): the gradient of the sum is x for the weight, 1 for the bias."""
    replica = Model(Frozen).replica().load(vector(1, 1, 0))
    assert isinstance(replica.network, Frozen)
    replica.network.first.weight.data, replica.network.first.bias.data = torch.eye(2), torch.zeros(2)
    for room, slope in zip(
        replica.slopes, replica.gradient(replica.network(torch.tensor([[2.0, 3.0]])).sum()), strict=True
    ):
        room.copy_(slope)
    assert replica.grad.tolist() == [2, 3, 1]


def test_a_parameter_that_plays_no_part_has_a_gradient_of_zeros() -> None:
    replica = Model(Frozen).replica().load(torch.arange(3.0))
    network = replica.network
    assert isinstance(network, Frozen)
    assert [g.tolist() for g in replica.gradient(network.last.bias.sum())] == [[[0, 0]], [1]]


def test_convolutions_lie_with_their_channels_last() -> None:
    """A 1x1 convolution of two channels and one of 1x2 pixels: (out, height, width, in) end to end."""
    network = nn.Conv2d(2, 1, (1, 2), bias=False)
    network.weight.data = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]])  # (1, 2, 1, 2)
    theta = flatten(network)
    assert theta.tolist() == [1, 3, 2, 4]
    again = Model(partial(nn.Conv2d, 2, 1, (1, 2), bias=False)).replica().load(theta).network
    assert isinstance(again, nn.Conv2d)
    assert torch.equal(again.weight, network.weight)
    assert again.weight.is_contiguous(memory_format=torch.channels_last)


def test_tied_weights_stay_tied() -> None:
    """Twice the matrix diag(2, 3) is diag(4, 9); d(4 + ...)/dw of w^2 x is 2 w x."""
    replica = Model(Tied).replica().load(vector(2, 0, 0, 3))
    assert replica.logits(torch.ones(1, 2)).tolist() == [[4, 9]]
    assert replica.gradient(replica.network(torch.tensor([[1.0, 0.0]]))[0, 0])[0][0, 0].item() == 4


def test_the_batch_counter_is_not_part_of_a_model() -> None:
    replica = Model(with_batchnorm).replica()
    theta = Model(with_batchnorm).init(rng())
    norm = replica.load(theta).network.get_submodule("1")
    replica.network.train()(torch.randn(4, 1, 3, 3))
    assert int(norm.get_buffer("num_batches_tracked")) == 1
    replica.load(theta)
    assert int(norm.get_buffer("num_batches_tracked")) == 0


def test_replicas_share_nothing() -> None:
    model = linear()
    one, other = model.replica().load(vector(1, 1, 1, 1)), model.replica().load(vector(2, 2, 2, 2))
    one.theta.zero_()
    assert other.theta.tolist() == [2, 2, 2, 2]
    assert bool(flatten(model.blueprint).any())


def test_loading_copies() -> None:
    theta = vector(1, 2, 3, 4)
    linear().replica().load(theta).theta.zero_()
    assert theta.tolist() == [1, 2, 3, 4]


def test_a_vector_of_another_length_is_refused() -> None:
    with raises("model-size"):
        linear().replica().load(torch.zeros(3))


def test_parameters_of_several_types_are_refused() -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    with raises("model-invalid"):
        model.replica()


# -------------------------------------------------------------------------------------- initialisation


@pytest.mark.parametrize("model", [Model(with_batchnorm), Model.of(with_batchnorm())], ids=["function", "instance"])
def test_the_seed_decides_the_weights(model: Model) -> None:
    assert torch.equal(model.init(rng(1)), model.init(rng(1)))
    assert not torch.equal(model.init(rng(1)), model.init(rng(2)))


def test_one_generator_gives_one_model_after_another() -> None:
    stream = rng()
    assert not torch.equal(linear().init(stream), linear().init(stream))


def test_torchs_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    model = Model.of(with_batchnorm)
    _ = model.blueprint
    model.init(rng())
    model.replica()
    assert torch.equal(torch.get_rng_state(), before)


def test_torchs_global_generator_does_not_matter() -> None:
    torch.manual_seed(1)
    one = linear().init(rng())
    torch.manual_seed(2)
    assert torch.equal(linear().init(rng()), one)


def test_an_instance_is_drawn_anew_and_itself_untouched() -> None:
    instance = with_batchnorm()
    instance(torch.randn(8, 1, 3, 3))
    before = flatten(instance).clone()
    drawn = Model.of(instance).init(rng())
    assert not torch.equal(drawn[:46], before[:46])
    assert drawn[46:].tolist() == [0, 0, 1, 1]  # running means and variances as new
    assert torch.equal(flatten(instance), before)


@pytest.mark.parametrize(("instance", "name"), [(Bare(), "Bare"), (nn.Sequential(nn.ReLU(), Bare()), "1")])
def test_a_layer_that_cannot_be_drawn_anew_is_named(instance: nn.Module, name: str) -> None:
    with raises("model-invalid", match=f"layer '{name}' has parameters but no reset_parameters"):
        Model.of(instance).init(rng())


def test_a_function_may_build_such_a_layer() -> None:
    assert Model.of(Bare).init(rng()).tolist() == [1, 1]


def test_a_model_of_a_model_is_itself() -> None:
    model = linear(loss="mse")
    assert Model.of(model) is model


def test_what_is_not_a_network_is_refused() -> None:
    with raises("model-invalid"):
        Model.of("mlp")  # type: ignore[arg-type]
    with raises("model-invalid"):
        _ = Model(dict).blueprint  # type: ignore[arg-type]
    with raises("model-invalid"):
        _ = Model(nn.ReLU).blueprint


# ------------------------------------------------------------------------------------------------ parts

MLP_3_2_2 = partial(MLP(hidden=(2,)), (3,), 2)  # weight 6, bias 2, weight 4, bias 2
NAMED = partial(nn.Sequential, OrderedDict(first=nn.Linear(2, 2), out=nn.Linear(1, 2)))  # 4 + 2, 2 + 2
TWO_CONVS = partial(nn.Sequential, nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Conv1d(2, 1, 2))  # 4 + 2, 4 + 1
CONV_ONLY = partial(nn.Conv2d, 1, 2, 3)  # 18 + 2
SMALL_CNN = partial(CNN(channels=(1, 2)), (1, 4, 4), 3)  # 25+1 +1+1 +50+2 +2+2 = 84, then linear 2 -> 3: 6+3; BN 6


@pytest.mark.parametrize(
    ("build", "part", "expected"),
    [
        (MLP_3_2_2, "all", range(14)),
        (MLP_3_2_2, "classifier", range(14)),
        (MLP_3_2_2, "last_weight", range(8, 12)),
        (MLP_3_2_2, "head", range(8, 14)),
        (MLP_3_2_2, ("1.bias",), range(6, 8)),
        (NAMED, ("out",), range(6, 10)),
        (NAMED, ("out.bias", "first.weight"), [0, 1, 2, 3, 8, 9]),  # in the order of the vector
        (SMALL_CNN, "head", range(84, 93)),
        (CONV_ONLY, "head", range(20)),
        (TWO_CONVS, "head", range(6, 11)),  # no linear layer: the last one with parameters
        (SMALL_CNN, "all", range(93)),
        (SMALL_CNN, "classifier", range(84, 93)),
        (SMALL_CNN, "last_weight", range(84, 90)),
        (CONV_ONLY, "all", range(20)),
        (CONV_ONLY, "classifier", range(20)),
        (CONV_ONLY, "last_weight", range(20)),
        (Frozen, "classifier", range(3)),
        (Frozen, "last_weight", range(2)),
    ],
)
def test_the_part_that_represents_a_client(build: Callable[[], nn.Module], part: Part, expected: range) -> None:
    assert Model(build).part(part).tolist() == list(expected)


def test_a_name_that_is_none_of_the_models() -> None:
    with raises("model-part-unknown", match=r"'fist\.weight' is not a parameter .* Did you mean 'first\.weight'"):
        Model(NAMED).part(("fist.weight",))
    with raises("model-part-unknown", match="part: 'first' is frozen"):
        Model(Frozen).part(("first",))
    with raises("model-part-unknown"):
        Model(NAMED).part(())


@pytest.mark.parametrize("name", ["fesem", "wecfl", "composed"])
def test_methods_take_a_part_by_word_or_by_names(name: str) -> None:
    key = "representation" if name == "composed" else "features"
    for part, many in (("head", 6), (["3.weight"], 4), ("classifier", 14)):
        made = METHODS.build(name, {key: part, "k": 2}, NO_CODE)
        state = made.init(Model(MLP_3_2_2), Roster(torch.arange(3), torch.ones(3)), np.random.default_rng(0))
        assert len(state.features) == many
    with raises("config-invalid-value", match=rf"method\.{key}.*head"):
        METHODS.build(name, {key: "heed", "k": 2}, NO_CODE)


# --------------------------------------------------------------------------------------------- the zoo


@pytest.mark.parametrize(
    ("network", "shape", "parameters"),
    [
        (CNN(), (1, 28, 28), 29_034),  # 416 + 32 + 12,832 + 64 + 1,568*10 + 10
        (LeNet(), (3, 32, 32), 62_006),  # 456 + 2,416 + 48,120 + 10,164 + 850
        (MLP(hidden=(2048,)), (1, 28, 28), 1_628_170),  # 784*2,048 + 2,048 + 2,048*10 + 10
        (LinearModel(), (784,), 7_850),
        (LinearModel(bias=False), (1, 28, 28), 7_840),
    ],
)
def test_the_zoo_has_the_papers_sizes(
    network: Callable[[Shape, int], nn.Module], shape: Shape, parameters: int
) -> None:
    model = Model(partial(network, shape, 10))
    assert model.parameters == parameters
    assert model.replica().load(model.init(rng())).logits(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(("network", "shape"), [(CNN(), (784,)), (CNN(), (1, 3, 8)), (LeNet(), (3, 15, 32))])
def test_samples_that_do_not_fit_a_network_are_told(network: CNN | LeNet, shape: Shape) -> None:
    with raises("model-shape"):
        network(shape, 10)


# ---------------------------------------------------------------------------------------------- losses


def test_squared_error_by_hand() -> None:
    """((1-0)^2 + (3-0)^2) / 2 = 5; a target column is not spread over the batch."""
    assert sample_losses(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 2), "mse").tolist() == [5]
    assert sample_losses(torch.tensor([[1.0], [3.0]]), vector(1, 1), "mse").tolist() == [0, 4]


def test_cross_entropy_by_hand() -> None:
    """Odds 3 to 1: -ln(3/4) and -ln(1/4)."""
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    losses = sample_losses(logits, torch.tensor([0, 1]), "cross_entropy")
    torch.testing.assert_close(losses, -vector(0.75, 0.25).log())


@pytest.mark.parametrize(("network", "shape"), [(CNN(), (1, 28, 28)), (LeNet(), (3, 32, 32)), (CNN1D(), (9, 128))])
def test_relu_behind_pooling_is_relu_before_it_to_the_bit(network: CNN | LeNet | CNN1D, shape: Shape) -> None:
    """What the papers write is convolution, ReLU, pooling."""
    torch.manual_seed(0)
    ours = network(shape, 10)
    assert isinstance(ours, nn.Sequential)
    layers: list[nn.Module] = []
    for layer in ours:
        behind = isinstance(layer, nn.ReLU) and layers and isinstance(layers[-1], nn.MaxPool1d | nn.MaxPool2d)
        layers.insert(len(layers) - bool(behind), layer)
    assert layers != list(ours)
    x, y = torch.randn(8, *shape), torch.randint(0, 10, (8,))
    found = [
        torch.autograd.grad(nn.functional.cross_entropy(net(x), y), list(ours.parameters()))
        for net in (ours, nn.Sequential(*layers))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
