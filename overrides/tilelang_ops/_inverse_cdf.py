"""One token a row by inversion of the row's cumulative weights, in exact integer sums.

A weight is a fixed-point number of 50 fraction bits in two int32 words: 30 bits and below them 20. Sums of words are
exact and so the same in any order, batch or block size. Rows are searched in two levels: blocks, then one block.
Words come in pairs along the first axis, the higher one first.
"""

from __future__ import annotations

import torch

from ._constants import Scalars

_HIGH_BITS = 30
_LOW_BITS = 20
_LOW_MASK = (1 << _LOW_BITS) - 1
# Twice as many lower words add up to less than one in the highest place of an int32.
_MAX_TERMS = 510
_FAR = 1 << (30 - _LOW_BITS)
_SCALARS = Scalars(~0x7FF, 0xFFFF, 0xF, 4, 12, 16, _LOW_BITS, _LOW_MASK)


def _block_size(width: int) -> int:
    """Columns of a block: the widest divisor of ``width`` that leaves both levels short, else 510 (the row is padded)."""
    if width <= _MAX_TERMS:
        return width
    for size in range(_MAX_TERMS, 0, -1):
        if width % size == 0 and width // size <= _MAX_TERMS:
            return size
    return _MAX_TERMS


def _fixed_point(weights: torch.Tensor) -> torch.Tensor:
    """The words [2, ...] of ``weights`` [...]."""
    words = torch.empty((2, *weights.shape), dtype=torch.int32, device=weights.device)
    scaled = weights * float(1 << _HIGH_BITS)
    high, low = words.unbind(0)
    high.copy_(scaled)
    low.copy_(scaled.sub_(high).mul_(float(1 << _LOW_BITS)))
    return words


def _not_above(gap: torch.Tensor) -> torch.Tensor:
    """Whether the words ``gap`` [2, ...] of a difference, the lower one below 2**30, make a number of at most 0."""
    high, low = gap.unbind(0)
    return torch.add(low, high.clamp(-_FAR, _FAR), alpha=1 << _LOW_BITS) <= 0


def scaled_target(draw: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """``floor(u * total)`` for ``u`` the top 53 bits of ``draw`` as a fraction of 1: words [2, n] (30 and 20 bits).

    ``draw``: words [n, 2], the low one first. ``total``: words [2, n], less than 2**51, the lower one less than 2**30. The
    product is made of bytes.
    """
    is_ = _SCALARS.beside(total)
    high, low = total.unbind(0)
    draw_low, draw_high = draw.unbind(1)
    number_low = torch.add(low, high, alpha=1 << _LOW_BITS)
    number_high = (low >> is_[_LOW_BITS]).add_(high).bitwise_right_shift_(is_[32 - _LOW_BITS])
    words = torch.stack((draw_low & is_[~0x7FF], draw_high, number_low, number_high), 1)
    fraction, number = words.view(torch.uint8).int().view(-1, 2, 8).unbind(1)
    # A row of the table, one place longer than its neighbour, moves one place to the right: columns become diagonals.
    products = torch.constant_pad_nd(fraction.unsqueeze(2) * number.unsqueeze(1), (0, 9))
    diagonals = products.view(-1, 136)[:, :128].view(-1, 8, 8, 2).sum(1, dtype=torch.int32)
    even, odd = diagonals.unbind(2)
    w0, w1, w2, w3, w4, w5, w6, w7 = torch.add(even, odd, alpha=1 << 8).unbind(1)
    half = is_[16]
    carry = (w0 >> half).add_(w1).bitwise_right_shift_(half).add_(w2).bitwise_right_shift_(half).add_(w3)
    first = carry.bitwise_right_shift_(half).add_(w4)
    second = (first >> half).add_(w5)
    low = first.bitwise_and_(is_[0xFFFF]).add_(second & is_[0xF], alpha=1 << 16)
    high = second.bitwise_right_shift_(is_[4]).add_(w6, alpha=1 << 12).add_(w7, alpha=1 << 28)
    return torch.stack((high, low))


def sample(weights: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
    """The first column whose cumulative weight exceeds ``u`` times the row's total: [n] int32.

    ``weights``: [n, width] fp32 in [0, 1], rows adding up to less than 2; ``draw``: words [n, 2], the low one first, whose
    top 53 bits are ``u``. A row without weight gives column 0, and a column without weight is never chosen. Refuses
    widths above 260100.
    """
    rows, width = weights.shape
    size = _block_size(width)
    blocks = -(-width // size)
    assert blocks <= _MAX_TERMS, f"expected at most {_MAX_TERMS * _MAX_TERMS} columns, got {width}"
    if width < blocks * size:
        weights = torch.constant_pad_nd(weights, (0, blocks * size - width))

    cells = _fixed_point(weights)
    sums = cells.view(2, rows, blocks, size).sum(3, dtype=torch.int32)
    high, low = sums.unbind(0)
    is_ = _SCALARS.beside(weights)
    high.add_(low >> is_[_LOW_BITS])
    low.bitwise_and_(is_[_LOW_MASK])
    ends = sums.cumsum(2, dtype=torch.int32)
    gap = ends - scaled_target(draw, ends[:, :, -1]).unsqueeze(2)
    passed = _not_above(gap).sum(1, dtype=torch.int32)
    block = passed.clamp(max=blocks - 1)
    row = torch.arange(0, rows * blocks, blocks, dtype=torch.int32, device=weights.device).add_(block)
    before = (gap - sums).view(2, rows * blocks).index_select(1, row).unsqueeze(2)
    within = cells.view(2, rows * blocks, size).index_select(1, row).cumsum(2, dtype=torch.int32).add_(before)
    inside = _not_above(within).sum(1, dtype=torch.int32)
    # Without weight every column is passed: one past the last, or column 0.
    return inside.add_(block, alpha=size).remainder_(blocks * size)
