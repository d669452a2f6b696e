"""The pretend accelerator refuses what CUDA refuses, and computes what the CPU computes. Other tests rely on it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sham

if not sham.register():
    pytest.skip(f"this PyTorch has no {sham.SET_UP}, which was private to it", allow_module_level=True)


def on(*numbers: float, device: str = "sham") -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32).to(device)


REFUSED: dict[str, Callable[[], object]] = {
    "mixed devices": lambda: on(1, 2) + torch.ones(2),
    "a device's number with the host's tensor": lambda: torch.ones(2) + on(1)[0],
    "a host's number in a product": lambda: torch.dot(on(1), torch.ones(1)),
    "stacking": lambda: torch.stack([on(1), torch.ones(1)]),
    "index_select by the host's indices": lambda: on(1, 2).index_select(0, torch.tensor([1])),
    "index_add_ by the host's indices": lambda: on(1, 2).index_add_(0, torch.tensor([1]), on(1)),
    "index_add_ of the device's to the host's": lambda: torch.ones(2).index_add_(0, torch.tensor([1]), on(1)),
    "gather by the host's indices": lambda: on(1, 2).gather(0, torch.tensor([1])),
    "the host's tensor indexed by the device's": lambda: torch.ones(2)[torch.tensor([1]).to("sham")],
    "the host's tensor masked by the device's": lambda: torch.ones(2)[on(1, 0) > 0],
    "another device": lambda: on(1) + on(1, device="sham:1"),
    "a generator of the host": lambda: torch.rand(2, device="sham", generator=torch.Generator()),
    "in place with a generator of the host": lambda: on(1).bernoulli_(0.5, generator=torch.Generator()),
    "a list of tensors": lambda: torch._foreach_add_([on(1)], [torch.ones(1)]),
    "labels of the host": lambda: functional.cross_entropy(on(1, 2)[None], torch.tensor([0])),
    "out=": lambda: torch.add(on(1), on(1), out=torch.empty(1)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cuda_refuses_is_refused(what: str) -> None:
    with pytest.raises(RuntimeError, match=r"same device|device type for generator"):
        REFUSED[what]()


@pytest.mark.parametrize("convert", [lambda t: t.numpy(), np.asarray, lambda t: t.detach().numpy(), torch.from_numpy])
def test_numpy_does_not_read_a_device(convert: Callable[[Tensor], object]) -> None:
    with pytest.raises(TypeError):
        convert(on(1, 2))


def test_what_cuda_allows_is_allowed() -> None:
    a = on(1, 2, 3)
    assert (a + torch.tensor(1.0)).tolist() == [2, 3, 4]  # a number without dimensions may lie on the host
    assert a[torch.tensor([2, 0])].tolist() == [3, 1]  # indices too, which are then copied
    a[torch.tensor([1])] = 7.0
    host = torch.zeros(3)
    host[1:] = a[1:]
    assert (host.tolist(), a.max().item(), float(a.sum()), bool((a > 0).all())) == ([0, 7, 3], 7, 11, True)
    assert a.to("sham:1").device == torch.device("sham:1")
    assert torch.zeros(1, device="sham").device == torch.device("sham:0")


def test_data_can_be_set_to_a_view() -> None:
    """A replica's parameters are views of one vector: what is written there must arrive in the network."""
    layer, theta = nn.Linear(2, 1).to("sham"), on(1, 2, 3)
    layer.weight.data, layer.bias.data = theta[:2].view(1, 2), theta[2:]
    assert layer(on(10, 100)).tolist() == [213]
    theta.mul_(2)
    assert layer(on(10, 100)).tolist() == [426]
    assert isinstance(layer.weight, nn.Parameter)
    assert torch.autograd.grad(layer(on(10, 100)).sum(), [layer.weight])[0].tolist() == [[10, 100]]
    with pytest.raises(RuntimeError):
        layer.weight.data = torch.ones(1, 2)


def test_a_shape_changed_in_place_is_seen() -> None:
    assert (on(1, 2) @ on(1, 2)[:, None]).tolist() == [5]  # PyTorch squeezes such a product in place
    assert on(1, 2)[None].squeeze_(0).t().shape == (2,)
    assert on(1, 2).unsqueeze_(0).shape == (1, 2)


def test_inference_mode_sees_ordinary_tensors() -> None:
    """As where many clients train together: views of tensors from outside, changed in place."""
    theta, layer = on(1, 2, 3, 4), nn.Linear(2, 2).to("sham")
    with torch.inference_mode():
        theta[None].view(1, 2, 2).unbind(1)[0].mul_(10)
        fresh = layer(on(1, 1)).relu_()
        assert (theta.cpu().device.type, theta.tolist()) == ("cpu", [10, 20, 3, 4])
    theta.add_(1)
    assert theta.tolist() == [11, 21, 4, 5]
    assert fresh.is_inference()
    assert not theta.is_inference()


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    convolutions = nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)), *(nn.Flatten(), nn.Linear(12, 4))
    )
    return {"convolutions": (convolutions, torch.randn(6, 1, 6, 6)), "lstm": (_Last(), torch.randn(6, 5, 3))}


class _Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.lstm(x)[0][:, -1]
        return found


@pytest.mark.parametrize(("name", "within"), [("convolutions", 0.0), ("lstm", 1e-6)])
def test_training_gives_what_the_cpu_gives(name: str, within: float) -> None:
    """To the bit, but for LSTM, whose cells PyTorch computes otherwise on accelerators."""
    network, x = networks()[name]
    twin, y = copy.deepcopy(network).to("sham"), torch.tensor([0, 1, 2, 3, 0, 1])
    for one, device in ((network, "cpu"), (twin, "sham")):
        steps = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            steps.zero_grad()
            functional.cross_entropy(one(x.to(device)), y.to(device)).backward()
            steps.step()
    for ours, its in zip(network.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(its.cpu(), ours, rtol=within, atol=within)


def test_random_numbers_are_the_devices_own() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with torch.random.fork_rng(devices=[0, 1], device_type="sham"):
        torch.get_device_module("sham").manual_seed(3)
        first = functional.dropout(torch.ones(20, device="sham")).tolist()
        torch.get_device_module("sham").manual_seed(3)
        assert functional.dropout(torch.ones(20, device="sham")).tolist() == first
        assert functional.dropout(torch.ones(20, device="sham")).tolist() != first
    assert torch.equal(torch.get_rng_state(), before)


def test_a_device_generator_cannot_be_made_in_python() -> None:
    """PyTorch asks the driver for it. So the library seeds a device, and does not pass generators to it."""
    with pytest.raises(NotImplementedError):
        torch.Generator(device="sham")


def test_transfers_are_counted() -> None:
    host = torch.ones(4).pin_memory()
    assert (host.is_pinned(), torch.ones(4).is_pinned()) == (True, False)
    sham.COUNTS.reset()
    there = host.to("sham", non_blocking=True)
    torch.zeros(2).to("sham")[torch.tensor([0])].cpu()
    assert (there * 2).sum().item() == 8
    assert sham.Counts(up=3, up_bytes=16 + 8 + 8, pinned=1, down=1, down_bytes=4, reads=1) == sham.COUNTS
    there.to("sham:0").clone()
    assert sham.COUNTS.up == 3


def test_autocast_computes_products_in_low_precision() -> None:
    layer = nn.Linear(3, 2).to("sham")
    with torch.autocast("sham", dtype=torch.bfloat16):
        out = layer(torch.randn(4, 3).to("sham"))
        loss = functional.cross_entropy(out, torch.zeros(4, dtype=torch.int64).to("sham"))
    assert (out.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    assert torch.autograd.grad(loss, [layer.weight])[0].dtype == torch.float32
    assert layer(torch.randn(4, 3).to("sham")).dtype == torch.float32


def test_a_device_without_doubles() -> None:
    with sham.without_doubles():
        with pytest.raises(TypeError, match="float64"):
            on(1).double()
        with pytest.raises(TypeError, match="float64"):
            torch.ones(1, dtype=torch.float64).to("sham")
    assert on(1).double().dtype == torch.float64
