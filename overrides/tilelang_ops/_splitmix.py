"""SplitMix64 in 32-bit words: the sampler's hash, bit for bit, without 64-bit arithmetic.

64-bit numbers are int32 tensors [..., 2] of their words, the low one first, as they lie in memory. Sums of words wrap.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._constants import Constant, Scalars

GOLDEN = 0x9E3779B97F4A7C15
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB
_SIGN = -(1 << 31)
# Columns of a product, by the place of their byte: even and odd ones apart, and so the even and odd ones of these.
_PLACES = (0, 4, 2, 6, 1, 5, 3, 7)
_SHIFTS = (30, 27, 31)
_SCALARS = Scalars(_SIGN, 16, *_SHIFTS, *((1 << (32 - bits)) - 1 for bits in _SHIFTS))


def signed(word: int) -> int:
    """The int32 with the lowest 32 bits of ``word``."""
    word &= (1 << 32) - 1
    return word - (1 << 32) if word >> 31 else word


def words_of(value: torch.Tensor) -> torch.Tensor:
    """The words [n, 2] of a contiguous [n] 64-bit integer tensor, a view."""
    return value.view(torch.int32).view(-1, 2)


def shift_right(word: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of 32-bit words by 1 to 31 bits."""
    return (word >> bits).bitwise_and_((1 << (32 - bits)) - 1)


class Products:
    """``factor * value + offset`` modulo 2**64 for several pairs of constants, by bytes.

    One matrix product makes the products of bytes and their sums: below 2**20, they are exact in fp32.
    """

    def __init__(self, terms: Sequence[tuple[int, int]], width: int) -> None:
        """``terms``: (factor, offset) pairs. ``width``: bytes of a value, taken as unsigned: 4 (one word) or 8."""
        self._count = len(terms)
        self._factors = Constant(
            [
                [factor >> 8 * (place - row) & 255 if place >= row else 0 for factor, _ in terms for place in _PLACES]
                for row in range(width)
            ],
            torch.float32,
        )
        self._offsets = Constant([offset >> 8 * place & 255 for _, offset in terms for place in _PLACES], torch.float32)
        self._shifted = any(offset for _, offset in terms)

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """``value``: int32 [n, width / 4], contiguous. Returns words [n * terms, 2], a value's terms one after another."""
        factors, data = self._factors.beside(value), value.view(torch.uint8).float()
        sums = torch.addmm(self._offsets.beside(value), data, factors) if self._shifted else torch.mm(data, factors)
        even, odd = sums.int().view(-1, 2, 4).unbind(1)
        halves = torch.add(even, odd, alpha=1 << 8)
        low, high = torch.add(halves[:, :2], halves[:, 2:], alpha=1 << 16).chunk(2, 1)
        half = _SCALARS.beside(value)[16]
        carry = (halves[:, :1] >> half).add_(halves[:, 2:3]).bitwise_right_shift_(half)
        return torch.cat((low, carry.add_(high)), 1)


def streams(*cases: tuple[int, int]) -> Products:
    """``(3 * position + case) * GOLDEN << shift`` for each ``(case, shift)``, of positions as ``flipped`` gives them."""
    factors = [(3 * GOLDEN << shift, case * GOLDEN << shift) for case, shift in cases]
    return Products([(factor, offset - (factor << 31)) for factor, offset in factors], 4)


def flipped(position: torch.Tensor) -> torch.Tensor:
    """int32 positions [n] plus 2**31, as unsigned numbers: [n, 1] int32."""
    return (position ^ _SCALARS.beside(position)[_SIGN]).unsqueeze(1)


def add_constant(value: torch.Tensor, constant: int) -> torch.Tensor:
    """``value + constant`` modulo 2**64; words [n, 2]."""
    low, high = value.chunk(2, 1)
    return _plus(low ^ _SIGN, high + signed(constant >> 32), constant)


def add(left: torch.Tensor, right: torch.Tensor, constant: int) -> torch.Tensor:
    """``left + right + constant`` modulo 2**64; words [n, 2]."""
    low, high = left.chunk(2, 1)
    right_low, right_high = right.chunk(2, 1)
    # Words with their sign flipped compare as unsigned ones do.
    start = low ^ _SCALARS.beside(left)[_SIGN]
    total = start + right_low
    return _plus(total, (high + right_high).add_(total < start).add_(signed(constant >> 32)), constant)


def _plus(low: torch.Tensor, high: torch.Tensor, constant: int) -> torch.Tensor:
    """The words of ``low``, its sign flipped, and ``high`` (clobbered), plus the lower word of ``constant``."""
    limit = signed(~constant ^ _SIGN)
    return torch.cat((low + signed(constant ^ _SIGN), high.add_(low > limit)), 1)


def xor_shift_right(value: torch.Tensor, bits: int) -> torch.Tensor:
    """``value ^ (value >> bits)``, logical, for the three numbers of bits that the hash shifts by; words [n, 2]."""
    scalars = _SCALARS.beside(value)
    shifted = (value >> scalars[bits]).bitwise_and_(scalars[(1 << (32 - bits)) - 1])
    low, high = shifted.chunk(2, 1)
    return torch.cat((torch.add(low, value[:, 1:], alpha=signed(1 << (32 - bits))), high), 1).bitwise_xor_(value)


_FIRST = Products([(_FIRST_FACTOR, 0)], 8)
_SECOND = Products([(_SECOND_FACTOR, 0)], 8)


def mix(state: torch.Tensor) -> torch.Tensor:
    """The hash of a state that was moved by ``GOLDEN`` already; words [n, 2]."""
    first, second, third = _SHIFTS
    value = _FIRST.of(xor_shift_right(state, first))
    value = _SECOND.of(xor_shift_right(value, second))
    return xor_shift_right(value, third)
