"""The in-place rounding of ``tile_kernels.quant.per_token_cast_and_cast_back_kernel``."""

from __future__ import annotations

import torch

from neuron_numerics import stored_casts

from ..config import get_amax_clamp_for_quant


def per_token_cast_and_cast_back(
    x: torch.Tensor,
    fmt: str,
    num_per_channels: int,
    round_sf: bool = False,
    use_e4m3_sf: bool = False,
):
    """Replace ``x`` (bf16 or fp32 [m, k], rows strided or not, written in place) by what its quantised values stand for.

    Groups of ``num_per_channels`` (16, 32, 64, 128) share a scale: fp32, a power of two with ``round_sf``, e4m3 with
    ``use_e4m3_sf``. Returns None.
    """
    assert x.ndim == 2 and x.stride(1) == 1, "expected a matrix of contiguous rows"
    assert fmt in ("e4m3", "e2m1"), f"expected 'e4m3' or 'e2m1', got {fmt!r}"
    assert num_per_channels in (
        16,
        32,
        64,
        128,
    ), f"expected a group of 16, 32, 64 or 128 values, got {num_per_channels}"
    assert (
        x.shape[1] % num_per_channels == 0 and x.shape[1] % 64 == 0
    ), f"rows of {x.shape[1]} values are no whole groups"
    floor = get_amax_clamp_for_quant(fmt, use_e4m3_sf)
    to = stored_casts.target(fmt, (1, num_per_channels), floor, round_sf=round_sf, e4m3_scale=use_e4m3_sf)
    if x.shape[0]:
        x.copy_(stored_casts.cast_there_and_back(x, to))
