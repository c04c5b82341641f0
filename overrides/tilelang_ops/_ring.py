"""Division and remainder of non-negative int32 positions by a block size known when the kernel is built."""

from __future__ import annotations

import torch

from ._constants import Scalars

_SCALARS = Scalars(*range(31), *((1 << bits) - 1 for bits in range(1, 31)))


def block_of(position: torch.Tensor, block_size: int) -> torch.Tensor:
    """``position // block_size`` (a shift where ``block_size`` is a power of two)."""
    assert block_size > 0, f"expected a positive block size, got {block_size}"
    if block_size & (block_size - 1):
        return torch.div(position, block_size, rounding_mode="floor")
    return position >> _SCALARS.beside(position)[block_size.bit_length() - 1]


def offset_in_block(position: torch.Tensor, block_size: int) -> torch.Tensor:
    """``position % block_size`` (a mask where ``block_size`` is a power of two)."""
    assert block_size > 0, f"expected a positive block size, got {block_size}"
    if block_size & (block_size - 1):
        return position % block_size
    return position & _SCALARS.beside(position)[block_size - 1]
