"""Block casts of ``tile_kernels.quant.per_block_cast_kernel``: a scale for every rectangle."""

from __future__ import annotations

import torch

from neuron_numerics import stored_casts
from neuron_numerics.stored_casts import Target

from ..config import get_amax_clamp_for_quant
from .types import QuantTensor


def per_block_cast(
    x: torch.Tensor,
    fmt: str,
    block_size: tuple[int, int],
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    out: QuantTensor | None = None,
) -> QuantTensor:
    """Quantise contiguous ``x`` (bf16 or fp32 [m, k], both multiples of 128) in blocks of ``block_size``.

    Returns e4m3 [m, k] or e2m1 as int8 [m, k / 2], and the scales [ceil(m / bm), ceil(k / bk)]; options and ``out`` as in
    ``per_token_cast``.
    """
    to = _target(x, fmt, block_size, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
    out_x, out_sf = (None, None) if out is None else out
    _check_scales(out_sf, use_tma_aligned_col_major_sf)
    return stored_casts.cast(x, to, out_x, out_sf)


def per_block_cast_with_sf_only(
    x: torch.Tensor,
    fmt: str,
    block_size: tuple[int, int],
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    out_sf: torch.Tensor | None = None,
) -> torch.Tensor:
    """The scales of ``per_block_cast``, without the values."""
    to = _target(x, fmt, block_size, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
    _check_scales(out_sf, use_tma_aligned_col_major_sf)
    return stored_casts.scales_only(x, to, out_sf)


def per_block_cast_with_precomputed_sf(
    x: torch.Tensor,
    fmt: str,
    block_size: tuple[int, int],
    sf: torch.Tensor,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The values of ``per_block_cast`` by given scales (fp32 [ceil(m / bm), ceil(k / bk)])."""
    assert not use_tma_aligned_col_major_sf and not use_packed_ue8m0, "given scales are row-major and unpacked"
    return stored_casts.cast_by_scales(x, _target(x, fmt, block_size, False, round_sf, False), sf, out)


def _target(
    x: torch.Tensor, fmt: str, block: tuple[int, int], column_major: bool, round_sf: bool, packed: bool
) -> Target:
    assert x.ndim == 2 and x.is_contiguous(), "expected a contiguous matrix"
    assert x.shape[0] % 128 == 0 and x.shape[1] % 128 == 0, f"expected multiples of 128, got {tuple(x.shape)}"
    floor = get_amax_clamp_for_quant(fmt, False)
    return stored_casts.target(fmt, block, floor, column_major=column_major, round_sf=round_sf, packed=packed)


def _check_scales(out_sf: torch.Tensor | None, column_major: bool) -> None:
    assert out_sf is None or not column_major, "a given scale buffer is row-major"
