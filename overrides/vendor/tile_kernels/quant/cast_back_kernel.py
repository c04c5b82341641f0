"""Dequantisation of ``tile_kernels.quant.cast_back_kernel``."""

from __future__ import annotations

import torch

from neuron_numerics import stored_casts

from .types import QuantTensor


def cast_back(
    x: QuantTensor, fmt: str, x_block_size: tuple[int, int], x_special_fmt: str | None = None
) -> torch.Tensor:
    """Values times their scales, as ``bf16`` or ``fp32`` [m, k].

    ``x``: e4m3 [m, k] or e2m1 as int8 [m, k / 2], k a multiple of 64, with fp32 or packed ue8m0 scales, one for every
    ``x_block_size``, row-major or column-major (per-channel ones row-major). ``x_special_fmt``: None.
    """
    assert fmt in ("bf16", "fp32"), f"expected 'bf16' or 'fp32', got {fmt!r}"
    assert x_special_fmt is None, f"{x_special_fmt!r} is no format of this release"
    values, sf = x
    columns = values.shape[1] * (2 if values.dtype in (torch.int8, torch.uint8) else 1)
    assert columns % 64 == 0, f"expected rows of a multiple of 64 values, got {columns}"
    assert sf.ndim == 2 and sf.dtype in (
        torch.float32,
        torch.int16,
    ), f"scales are fp32 or packed ue8m0 in int16, got {sf.dtype}"
    assert x_block_size[1] != 1 or sf.stride(1) == 1, "per-channel scales are row-major"
    dtype = torch.bfloat16 if fmt == "bf16" else torch.float32
    if values.shape[0] == 0:
        return torch.empty((0, columns), dtype=dtype, device=values.device)
    return stored_casts.read_values(x, x_block_size, dtype)


def per_token_cast_back(
    x: QuantTensor, fmt: str, num_per_channels: int, x_special_fmt: str | None = None
) -> torch.Tensor:
    """``cast_back`` of scales that cover ``num_per_channels`` values of a row."""
    return cast_back(x, fmt, (1, num_per_channels), x_special_fmt=x_special_fmt)
