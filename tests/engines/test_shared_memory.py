"""Trees of tensors through a pipe and shared memory, both ends in one process."""

from __future__ import annotations

import mmap
import multiprocessing
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import raises, vector
from coterie.core.codec import TYPES
from coterie.core.tasks import All
from coterie.engines.workers import ALIGN, Channel

PAGE = mmap.PAGESIZE // 4  # float32 numbers that fill the smallest block

Ends = tuple[Channel, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    here, there = multiprocessing.Pipe()
    channels = Channel(here, [All]), Channel(there, [All])
    yield channels
    for channel in channels:
        channel.close()


def passed(ends: Ends, tree: object, lane: int = 0) -> Any:
    """What arrives at the other end."""
    ends[0].send(tree, lane)
    return ends[1].receive()


def test_a_tree_arrives_as_it_was_sent(ends: Ends) -> None:
    matrix = torch.randn(3, 4)
    back = passed(ends, (All(vector(1, 2)), {"m": matrix, "n": None}, 0.5, "text"))
    assert back[0].theta.tolist() == [1, 2]
    assert torch.equal(back[1]["m"], matrix)
    assert (back[1]["n"], back[2], back[3]) == (None, 0.5, "text")


def test_both_directions_work(ends: Ends) -> None:
    passed(ends, vector(1))
    ends[1].send(vector(2, 3))
    assert ends[0].receive().tolist() == [2, 3]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_of_tensor_arrives(ends: Ends, name: str) -> None:
    tensor = torch.tensor([0, 1, 1]).to(TYPES[name])
    back = passed(ends, tensor)
    assert back.dtype == TYPES[name]
    assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(2.5),
        torch.tensor(7),
        torch.empty(0),
        torch.empty(3, 0, 2, dtype=torch.int64),
        torch.arange(6.0).view(2, 3).T,
        torch.arange(10.0)[::3],
        torch.ones(1).expand(4),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["0-d float", "0-d int", "empty", "empty of a shape", "transposed", "strided", "expanded", "parameter"],
)
def test_tensors_of_any_shape_arrive(ends: Ends, tensor: Tensor) -> None:
    before, back, after = passed(ends, (vector(1, 2, 3), tensor, vector(4, 5)))
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)
    assert (before.tolist(), after.tolist()) == ([1, 2, 3], [4, 5])


def test_tensors_of_one_message_lie_apart_and_aligned(ends: Ends) -> None:
    back = passed(ends, tuple(torch.full((n,), n, dtype=torch.uint8) for n in (1, 63, 64, 65)))
    assert [t.unique().tolist() for t in back] == [[1], [63], [64], [65]]
    starts = [t.data_ptr() for t in back]
    assert [b - a for a, b in pairwise(starts)] == [ALIGN, ALIGN, ALIGN]


def test_a_block_grows_with_what_is_sent(ends: Ends) -> None:
    for size in (1, 2 * PAGE, 3, 5 * PAGE, 50 * PAGE, PAGE):
        sent = torch.arange(size, dtype=torch.float32)
        assert torch.equal(passed(ends, sent), sent)


def test_what_was_received_outlives_the_growth_of_its_block(ends: Ends) -> None:
    small = passed(ends, vector(1, 2))
    passed(ends, torch.zeros(4 * PAGE))
    assert small.tolist() == [1, 2]


def test_a_lane_is_used_again(ends: Ends) -> None:
    """What is received is a view: the next message on its lane is written over it, and no memory is asked for."""
    first = passed(ends, vector(1, 2))
    passed(ends, vector(3, 4))
    assert first.tolist() == [3, 4]


def test_lanes_do_not_overwrite_each_other(ends: Ends) -> None:
    received = [passed(ends, vector(lane), lane) for lane in range(4)]
    passed(ends, torch.zeros(4 * PAGE), lane=2)
    passed(ends, vector(9), lane=1)
    assert [float(received[lane]) for lane in (0, 2, 3)] == [0, 2, 3]


def test_the_senders_tensor_is_copied(ends: Ends) -> None:
    sent = vector(1, 2)
    back = passed(ends, sent)
    sent.zero_()
    assert back.tolist() == [1, 2]


def test_a_type_that_is_not_expected_is_refused() -> None:
    here, there = multiprocessing.Pipe()
    sender, receiver = Channel(here, []), Channel(there, [])
    sender.send(All(vector(1)))
    with raises("content-type-unknown", match="'All' is not one of the types expected here"):
        receiver.receive()
    sender.close()
    receiver.close()


def test_the_other_end_learns_of_a_close() -> None:
    here, there = multiprocessing.Pipe()
    gone, left = Channel(here, []), Channel(there, [])
    gone.send(vector(1))
    left.receive()
    gone.close()
    with pytest.raises(EOFError):
        left.receive()
    left.close()
