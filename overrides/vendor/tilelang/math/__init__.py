"""Integer arithmetic of ``tilelang.math``."""

from __future__ import annotations


def next_power_of_2(x: int) -> int:
    """The least power of two that is not below ``x``, for positive ``x``."""
    return 1 << (x - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up, for positive ``b``."""
    return (a + b - 1) // b
