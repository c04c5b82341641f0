"""64-bit integers as pairs of 32-bit words: exact products and remainders without 64-bit arithmetic.

A number is a ``(high, low)`` pair of int32 tensors that hold its bits; sums and products of words wrap.
"""

from __future__ import annotations

import torch

Words = tuple[torch.Tensor, torch.Tensor]

_HALF = 0xFFFF
_BASE = 65536.0
# Estimated quotients are below 2**16 and off by far less than this, see ``remainder``.
_BIAS = 0.25


def multiply(word: torch.Tensor, factor: Words) -> Words:
    """The low 64 bits of a signed 32-bit ``word`` times a 64-bit ``factor``; shapes broadcast."""
    high, low = factor
    word0, word1 = word & _HALF, (word >> 16) & _HALF
    low0, low1 = low & _HALF, (low >> 16) & _HALF
    # Products of 16-bit halves fill 32 bits; their upper halves are taken as unsigned.
    first, second, third = word0 * low0, word1 * low0, word0 * low1
    middle = _upper(first) + (second & _HALF) + (third & _HALF)
    carried = word1 * low1 + _upper(second) + _upper(third) + (middle >> 16)
    # As a signed word, ``word`` is less by 2**32 when its top bit is set.
    carried = carried + word * high - (word >> 31 & low)
    return carried, (first & _HALF) | (middle << 16)


def remainder(value: Words, divisor: torch.Tensor) -> torch.Tensor:
    """``value`` modulo ``divisor`` (positive int32), not negative, int32; shapes broadcast."""
    high, low = value
    wide = divisor.to(torch.float32)
    left = high % divisor
    for piece in ((low >> 16) & _HALF, low & _HALF):
        # ``left`` is below the divisor, so the quotient is below 2**16 and fp32 knows it to 2**-6. Estimated from above, it is
        # right or one too large, and the wrapped difference lies between plus and minus the divisor.
        quotient = torch.add(piece, left.to(torch.float32), alpha=_BASE).div_(wide).add_(_BIAS).to(torch.int32)
        left = (left << 16).add_(piece).sub_(quotient.mul_(divisor))
        left = torch.where(left < 0, left + divisor, left)
    return left


def _upper(word: torch.Tensor) -> torch.Tensor:
    return (word >> 16) & _HALF
