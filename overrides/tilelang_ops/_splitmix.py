"""SplitMix64 in pairs of 32-bit words: the sampler's hash, bit for bit, without 64-bit arithmetic.

A 64-bit number is a ``(high, low)`` pair of int32 tensors that hold its bits; sums and products wrap as int32 ones do.
"""

from __future__ import annotations

import torch

Words = tuple[torch.Tensor, torch.Tensor]

GOLDEN = 0x9E3779B97F4A7C15
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB
_SIGN = -(1 << 31)
_HALF = 0xFFFF


def split_constant(value: int) -> tuple[int, int]:
    """The (high, low) words of ``value`` modulo 2**64, each as the int32 with its bits."""
    value &= (1 << 64) - 1
    return _signed(value >> 32), _signed(value & 0xFFFFFFFF)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def split(value: torch.Tensor) -> Words:
    """The words of a contiguous [n] 64-bit integer tensor, as views."""
    words = value.view(torch.int32).view(-1, 2)
    return words[:, 1], words[:, 0]


def shift_right(word: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of a 32-bit word by 1 to 31 bits."""
    return (word >> bits) & ((1 << (32 - bits)) - 1)


def less_unsigned(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``left < right`` of 32-bit words taken as unsigned."""
    return (left ^ _SIGN) < (right ^ _SIGN)


def add(left: Words, right: Words) -> Words:
    """Sum modulo 2**64."""
    low = left[1] + right[1]
    return (left[0] + right[0]).add_(less_unsigned(low, left[1])), low


def add_constant(value: Words, constant: int) -> Words:
    """Sum with a constant modulo 2**64."""
    high, low = split_constant(constant)
    total = value[1] + low
    carry = (total ^ _SIGN) < (low ^ _SIGN)
    return (value[0] + high).add_(carry), total


def multiply_constant(value: Words, constant: int) -> Words:
    """Product with a constant modulo 2**64, by 16-bit halves of the low words."""
    factor_high, factor_low = split_constant(constant)
    first, second = factor_low & _HALF, (factor_low >> 16) & _HALF
    high, low = value
    low0, low1 = low & _HALF, shift_right(low, 16)
    middle = torch.add(shift_right(low0 * first, 16), low1, alpha=first)
    cross = torch.add(middle & _HALF, low0, alpha=second)
    top = torch.add(shift_right(middle, 16), low1, alpha=second).add_(shift_right(cross, 16))
    return top.add_(low, alpha=factor_high).add_(high, alpha=factor_low), low * factor_low


def xor_shift_right(value: Words, bits: int) -> Words:
    """``value ^ (value >> bits)`` for 1 to 31 bits, logical."""
    high, low = value
    moved = shift_right(low, bits).bitwise_or_(high << (32 - bits))
    return high ^ shift_right(high, bits), low ^ moved


def mix(value: Words) -> Words:
    """One SplitMix64 step from the state ``value``: the hash of it."""
    value = add_constant(value, GOLDEN)
    value = multiply_constant(xor_shift_right(value, 30), _FIRST_FACTOR)
    value = multiply_constant(xor_shift_right(value, 27), _SECOND_FACTOR)
    return xor_shift_right(value, 31)


def sequence(position: torch.Tensor, case: int) -> Words:
    """``(3 * position + case) * GOLDEN`` modulo 2**64 of int32 positions, sign-extended: the stream of one use of the generator."""
    scaled = multiply_constant((position >> 31, position), 3 * GOLDEN)
    return add_constant(scaled, case * GOLDEN) if case else scaled


def spread(sequences: Words) -> Words:
    """``s ^ (s << 13)`` of each sequence number ``s``, which keeps neighbouring seeds' streams apart."""
    high, low = sequences
    return high ^ ((high << 13) | shift_right(low, 19)), low ^ (low << 13)
