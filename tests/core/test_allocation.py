"""Memory that is lent: never to two at once, and again when the last tensor in it is gone."""

from __future__ import annotations

import gc

import torch

from coterie.core.allocation import ALIGNED, LARGE, MODEL, BufferPool

ROWS = LARGE // 4 // 1000 + 1  # of 1,000 numbers: just large enough to be lent


def test_a_block_is_lent_again_when_the_last_tensor_in_it_is_gone() -> None:
    blocks = BufferPool()
    models = blocks.empty((ROWS, 1000), torch.float32)
    place, one = models.data_ptr(), models[3]
    del models
    gc.collect()
    other = blocks.empty((ROWS, 1000), torch.float32)  # a row is still held: this must lie elsewhere
    assert other.data_ptr() != place
    one.fill_(7.0)
    other.fill_(1.0)
    assert bool((one == 7).all())
    del one
    gc.collect()
    assert blocks.empty((ROWS, 1000), torch.float32).data_ptr() == place


def test_shape_type_and_alignment_are_those_of_torch() -> None:
    lent = BufferPool().empty((ROWS, 500), torch.float64)
    assert lent.shape == (ROWS, 500)
    assert lent.dtype == torch.float64
    assert lent.is_contiguous()
    assert lent.data_ptr() % ALIGNED == 0
    lent.zero_()[-1, -1] = 3.0
    assert float(lent.sum()) == 3.0


def test_small_ones_are_torch_s_own() -> None:
    assert BufferPool().empty((2, 3), torch.float32).untyped_storage().nbytes() == 24
    assert BufferPool().empty((0, 3), torch.float32).shape == (0, 3)


def test_how_small_is_for_the_lender_to_say() -> None:
    blocks = BufferPool(MODEL)
    model = torch.arange(MODEL // 4, dtype=torch.float32)
    copied = blocks.copy(model)
    assert torch.equal(copied, model)
    place = copied.data_ptr()
    assert place != model.data_ptr()
    del copied
    gc.collect()
    assert blocks.copy(model + 1).data_ptr() == place
    assert blocks.empty((MODEL // 4 - 1,), torch.float32).data_ptr() != place  # a free block, but too small to be lent


def test_a_block_may_be_a_little_larger_but_not_twice() -> None:
    """Cohorts vary by a few clients; a large block lent for little would be missed by whoever needs all of it."""
    blocks = BufferPool()
    place = blocks.empty((2 * ROWS, 1000), torch.float32).data_ptr()
    assert blocks.empty((2 * ROWS - 5, 1000), torch.float32).data_ptr() == place
    small = blocks.empty((ROWS - 1, 1100), torch.float32)
    assert small.data_ptr() == place
    del small
    blocks.empty((ROWS, 900), torch.float32)
    far = blocks.empty((9 * ROWS, 1000), torch.float32)  # nothing fits: what is free is given back
    assert far.shape == (9 * ROWS, 1000)
    assert not blocks._free


def test_tensors_outlive_whoever_lent_them() -> None:
    blocks = BufferPool()
    lent = blocks.empty((ROWS, 1000), torch.float32).fill_(2.0)
    del blocks
    gc.collect()
    assert float(lent[-1].sum()) == 2000.0
