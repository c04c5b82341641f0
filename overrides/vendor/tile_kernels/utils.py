"""Integer arithmetic and dtype names of ``tile_kernels.utils``."""

from __future__ import annotations

import torch

_DTYPE_TO_STR = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.int8: "e2m1",
}
_STR_TO_DTYPE = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e2m1": torch.int8,
}


def ceil_div(x: int, y: int) -> int:
    """``x / y`` rounded up, for positive ``y``."""
    return (x + y - 1) // y


def align(x: int, y: int) -> int:
    """The least multiple of ``y`` that is not below ``x``."""
    return ceil_div(x, y) * y


def is_power_of_two(x: int) -> bool:
    """Is ``x`` 1, 2, 4, 8, ...?"""
    return x > 0 and x & (x - 1) == 0


def next_power_of_two(x: int) -> int:
    """The least power of two that is not below ``x``, for positive ``x``."""
    return 1 << (x - 1).bit_length()


def dtype_to_str(dtype: torch.dtype) -> str:
    """Upstream's name of a stored dtype: ``fp32``, ``bf16``, ``e4m3``, or ``e2m1`` for int8, which holds two FP4 codes.

    Raises:
        ValueError: any other dtype.
    """
    if dtype not in _DTYPE_TO_STR:
        raise ValueError(f"{dtype} has no name here: expected one of {list(_DTYPE_TO_STR)}")
    return _DTYPE_TO_STR[dtype]


def str_to_dtype(fmt: str) -> torch.dtype:
    """The stored dtype of one of upstream's names; the inverse of ``dtype_to_str``.

    Raises:
        ValueError: any other name.
    """
    if fmt not in _STR_TO_DTYPE:
        raise ValueError(f"{fmt!r} names no dtype: expected one of {list(_STR_TO_DTYPE)}")
    return _STR_TO_DTYPE[fmt]
