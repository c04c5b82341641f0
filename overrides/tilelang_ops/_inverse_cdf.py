"""One token a row by inversion of the row's cumulative weights, in exact integer sums.

A weight is a fixed-point number of 52 fraction bits in two int32 words: 30 bits and below them 22. Sums of words are
exact and so the same in any order, batch or block size. Rows are searched in two levels: blocks, then one block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ._splitmix import Words

_HIGH_BITS = 30
_LOW_BITS = 22
_LOW_MASK = (1 << _LOW_BITS) - 1
# Words of so many weights, and one carry, add up inside int32.
_MAX_TERMS = 510


def _block_size(width: int) -> int:
    """Columns of a block: the widest divisor of ``width`` that leaves both levels short, else 510 (the row is padded)."""
    if width <= _MAX_TERMS:
        return width
    for size in range(_MAX_TERMS, 0, -1):
        if width % size == 0 and width // size <= _MAX_TERMS:
            return size
    return _MAX_TERMS


def _fixed_point(weights: torch.Tensor) -> Words:
    scaled = weights * float(1 << _HIGH_BITS)
    high = scaled.to(torch.int32)
    return high, scaled.sub_(high.to(torch.float32)).mul_(float(1 << _LOW_BITS)).to(torch.int32)


def _carried(high: torch.Tensor, low: torch.Tensor) -> Words:
    return high.add_(low >> _LOW_BITS), low & _LOW_MASK


def _not_above(value: Words, bound: Words) -> torch.Tensor:
    return (value[0] < bound[0]) | ((value[0] == bound[0]) & (value[1] <= bound[1]))


def _bytes(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """The eight bytes of each number, lowest first: [n, 8] int32."""
    return torch.stack([low, high], 1).view(torch.uint8).to(torch.int32)


def scaled_target(draw: Words, total: Words) -> Words:
    """``floor(u * total)`` for ``u`` the top 53 bits of ``draw`` as a fraction of 1; all words [n] int32.

    The product is made of bytes: 15 sums of at most eight 16-bit products each, of which the upper seven remain.
    """
    fraction = _bytes(draw[0], draw[1] & ~0x7FF)
    number = _bytes(total[0] >> (32 - _LOW_BITS), total[1] | (total[0] << _LOW_BITS))
    products = fraction.unsqueeze(2) * number.unsqueeze(1)
    # A row of the table, one place longer than its neighbour, moves one place to the right: columns become diagonals.
    diagonals = F.pad(F.pad(products, (0, 8)).view(-1, 128)[:, :120].view(-1, 8, 15).sum(1, dtype=torch.int32), (0, 1))
    words = diagonals[:, ::2] + (diagonals[:, 1::2] << 8)
    w0, w1, w2, w3, w4, w5, w6, w7 = words.unbind(1)
    carry = (((((w0 >> 16) + w1) >> 16) + w2) >> 16).add_(w3) >> 16
    first = carry.add_(w4)
    second = (first >> 16).add_(w5)
    low = (first & 0xFFFF) | ((second & 0x3F) << 16)
    return (second >> 6).add_(w6, alpha=1 << 10).add_(w7, alpha=1 << 26), low


def sample(weights: torch.Tensor, draw: Words) -> torch.Tensor:
    """The first column whose cumulative weight exceeds ``u`` times the row's total: [n] int32.

    ``weights``: [n, width] fp32 in [0, 1], rows adding up to less than 2; ``draw``: words [n] whose top 53 bits are ``u``.
    A row without weight gives column 0, and a column without weight is never chosen. Refuses widths above 260100.
    """
    width = weights.shape[1]
    size = _block_size(width)
    blocks = -(-width // size)
    assert blocks <= _MAX_TERMS, f"expected at most {_MAX_TERMS * _MAX_TERMS} columns, got {width}"
    if width < blocks * size:
        weights = F.pad(weights, (0, blocks * size - width))
    weights = weights.view(-1, blocks, size)

    cells_high, cells_low = _fixed_point(weights)
    high, low = _carried(cells_high.sum(2, dtype=torch.int32), cells_low.sum(2, dtype=torch.int32))
    end_high, end_low = _carried(high.cumsum(1, dtype=torch.int32), low.cumsum(1, dtype=torch.int32))
    target_high, target_low = scaled_target(draw, (end_high[:, -1], end_low[:, -1]))
    target = (target_high.unsqueeze(1), target_low.unsqueeze(1))
    passed = _not_above((end_high, end_low), target).sum(1, dtype=torch.int32)
    block = passed.clamp(max=blocks - 1)

    row = torch.arange(0, weights.shape[0] * blocks, blocks, dtype=torch.int32, device=weights.device).add_(block)
    before_high = (end_high - high).view(-1, 1).index_select(0, row)
    before_low = (end_low - low).view(-1, 1).index_select(0, row)
    high = cells_high.view(-1, size).index_select(0, row).cumsum(1, dtype=torch.int32).add_(before_high)
    low = cells_low.view(-1, size).index_select(0, row).cumsum(1, dtype=torch.int32).add_(before_low)
    inside = _not_above(_carried(high, low), target).sum(1, dtype=torch.int32)
    return (block * size).add_(inside).masked_fill_(passed == blocks, 0)
