"""SplitMix64 and the sampler's streams in plain Python integers, written from the published algorithm.

Reference: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), and Vigna's public-domain
``splitmix64``. Two of its test vectors are checked in ``test_splitmix.py``.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(state: int) -> int:
    """The value that ``splitmix64`` returns from ``state``, all modulo 2**64."""
    z = (state + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def sequence(position: int, case: int) -> int:
    """Stream of one use: 0 a draw, 1 a residual draw, 2 an acceptance test."""
    return ((3 * position + case) * GOLDEN) & MASK


def draw_bits(seed: int, position: int, case: int) -> int:
    """The 53 bits of a draw's uniform number."""
    s = sequence(position, case)
    return splitmix64((seed + (s ^ (s << 13))) & MASK) >> 11


def acceptance_bits(seed: int, position: int) -> int:
    """The 53 bits of an acceptance test's uniform number."""
    return splitmix64((seed & MASK) ^ sequence(position, 2)) >> 11
