"""The per-channel cast of ``tile_kernels.quant.per_channel_cast_kernel``: a scale for every group of a column."""

from __future__ import annotations

import torch

from neuron_numerics import stored_casts

from ..config import get_amax_clamp_for_quant
from .types import QuantTensor


def per_channel_cast(
    x: torch.Tensor | QuantTensor,
    fmt: str,
    num_per_tokens: int,
    round_sf: bool = False,
    num_per_channels: int | None = None,
    use_packed_ue8m0: bool = False,
) -> QuantTensor:
    """Quantise each column of ``x`` in groups of ``num_per_tokens`` (32, 128) rows, to e4m3.

    ``x``: contiguous bf16 or fp32 [m, k], both multiples of 128; or an e4m3 pair with a scale for every ``num_per_channels``
    (32, 128) of a row, in any layout. Returns e4m3 [m, k] and row-major scales [m / group, k]: fp32, or with
    ``use_packed_ue8m0`` the exponent bytes of two consecutive groups an int16 [ceil(m / group / 2), k].
    """
    assert fmt == "e4m3", f"expected 'e4m3', got {fmt!r}"
    assert num_per_tokens in (32, 128), f"expected groups of 32 or 128 rows, got {num_per_tokens}"
    data = x[0] if isinstance(x, tuple) else x
    assert data.ndim == 2 and data.is_contiguous(), "expected a contiguous matrix"
    assert data.shape[0] % 128 == 0 and data.shape[1] % 128 == 0, f"expected multiples of 128, got {tuple(data.shape)}"
    if isinstance(x, tuple):
        assert (
            num_per_channels in (32, 128) and data.dtype == torch.float8_e4m3fn
        ), "a quantised input is e4m3 in groups of 32 or 128"
    floor = get_amax_clamp_for_quant(fmt, False)
    to = stored_casts.target(fmt, (num_per_tokens, 1), floor, round_sf=round_sf, packed=use_packed_ue8m0)
    block = None if num_per_channels is None else (1, num_per_channels)
    return stored_casts.cast(stored_casts.read_values(x, block), to)
