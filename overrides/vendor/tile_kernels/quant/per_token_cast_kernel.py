"""Per-token casts of ``tile_kernels.quant.per_token_cast_kernel``: a scale for every group of a row."""

from __future__ import annotations

import torch

from neuron_numerics import stored_casts
from neuron_numerics.stored_casts import Target

from ..config import get_amax_clamp_for_quant
from .types import QuantTensor


def per_token_cast(
    x: torch.Tensor | QuantTensor,
    fmt: str,
    num_per_channels: int,
    x_block_size: tuple[int, int] | None = None,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    stochastic_cast: bool = False,
    out: QuantTensor | None = None,
) -> QuantTensor:
    """Quantise each row of ``x`` in groups of ``num_per_channels`` (16, 32, 64, 128).

    ``x``: bf16 or fp32 [m, k], rows strided or not, k a multiple of 64; or a quantised pair whose scales cover
    ``x_block_size``, in any layout. Returns e4m3 [m, k] or e2m1 as int8 [m, k / 2], and the scales [m, k / group]: fp32,
    powers of two with ``round_sf``, exponent bytes two an int16 with ``use_packed_ue8m0``; transposed in memory with
    ``use_tma_aligned_col_major_sf``. ``out``: buffers to write and return, the scales row-major.
    """
    assert not stochastic_cast, "stochastic rounding of a per-token cast is not an Ascend feature"
    to = _target(fmt, num_per_channels, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0, use_e4m3_sf)
    values = _rows(x, x_block_size, num_per_channels)
    out_x, out_sf = (None, None) if out is None else out
    _check_scales(out_sf, use_tma_aligned_col_major_sf)
    return stored_casts.cast(values, to, out_x, out_sf)


def per_token_cast_with_sf_only(
    x: torch.Tensor,
    fmt: str,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    out_sf: torch.Tensor | None = None,
) -> torch.Tensor:
    """The scales of ``per_token_cast``, without the values."""
    to = _target(fmt, num_per_channels, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0, use_e4m3_sf)
    _check_scales(out_sf, use_tma_aligned_col_major_sf)
    return stored_casts.scales_only(_rows(x, None, num_per_channels), to, out_sf)


def per_token_cast_with_precomputed_sf(
    x: torch.Tensor,
    fmt: str,
    num_per_channels: int,
    sf: torch.Tensor,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The values of ``per_token_cast`` by given scales (fp32 [m, k / group], row-major)."""
    assert not use_tma_aligned_col_major_sf and not use_packed_ue8m0, "given scales are row-major and unpacked"
    to = _target(fmt, num_per_channels, False, round_sf, False, use_e4m3_sf)
    return stored_casts.cast_by_scales(_rows(x, None, num_per_channels), to, sf, out)


def _target(fmt: str, group: int, column_major: bool, round_sf: bool, packed: bool, e4m3_scale: bool) -> Target:
    assert fmt in ("e4m3", "e2m1"), f"expected 'e4m3' or 'e2m1', got {fmt!r}"
    assert not e4m3_scale, "e4m3 scales of a per-token cast are not an Ascend feature"
    floor = get_amax_clamp_for_quant(fmt, e4m3_scale)
    return stored_casts.target(fmt, (1, group), floor, column_major=column_major, round_sf=round_sf, packed=packed)


def _rows(x: torch.Tensor | QuantTensor, block: tuple[int, int] | None, group: int) -> torch.Tensor:
    values = stored_casts.read_values(x, block)
    assert group in (16, 32, 64, 128), f"expected a group of 16, 32, 64 or 128 values, got {group}"
    assert values.shape[1] % 64 == 0, f"expected rows of a multiple of 64 values, got {values.shape[1]}"
    return values


def _check_scales(out_sf: torch.Tensor | None, column_major: bool) -> None:
    assert out_sf is None or not column_major, "a given scale buffer is row-major"
