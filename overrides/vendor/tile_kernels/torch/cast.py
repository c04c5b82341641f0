"""The plain casts of ``tile_kernels.torch.cast``: any block, any rows, one option for each of the stored forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_numerics import e2m1, stored_casts
from neuron_numerics.layouts import ASCEND_PACK, ScaleLayout, read_scales

from ..config import get_amax_clamp_for_quant
from ..quant.batched_transpose_weight_sf_kernel import batched_transpose_weight_sf as _transpose_all
from ..quant.common import BaseCastConfig
from ..quant.types import QuantTensor

_MAXIMA = {torch.int8: 6.0, torch.float8_e4m3fn: 448.0}


def get_max_quant_val(dtype: torch.dtype):
    """Largest magnitude of a quantised dtype: 6 for int8 (e2m1), 448 for e4m3."""
    assert dtype in _MAXIMA, f"expected one of {list(_MAXIMA)}, got {dtype}"
    return _MAXIMA[dtype]


def transform_sf(sf: torch.Tensor, input_config: BaseCastConfig | None = None) -> torch.Tensor:
    """Stored scales (fp32, e4m3 or packed ue8m0) as fp32, one a block.

    Packed ones give all their bytes, along the rows when ``input_config`` says that they are packed so, else along the columns.
    """
    packed = sf.dtype == ASCEND_PACK
    assert packed or sf.dtype in (torch.float32, torch.float8_e4m3fn), f"no scales are {sf.dtype}"
    if sf.dtype == torch.float32:
        return sf
    by_rows = input_config is not None and input_config.sf_col_pack
    return read_scales(sf, ScaleLayout(packed=packed, pack_rows=packed and by_rows))


def cast_back(x: QuantTensor, fmt: str, block_size: tuple[int, int] = (32, 32)) -> torch.Tensor:
    """Values (e4m3 [m, k] or e2m1 as int8 [m, k / 2]) times their scales, one a block, as ``fp32`` or else bf16 [m, k]."""
    values, _ = x
    assert values.dtype in (torch.float8_e4m3fn, torch.int8), f"expected e4m3 or e2m1, got {values.dtype}"
    dtype = torch.float32 if fmt == "fp32" else torch.bfloat16
    if values.shape[0] == 0:
        return torch.empty(
            (0, values.shape[1] * (2 if values.dtype == torch.int8 else 1)), dtype=dtype, device=values.device
        )
    return stored_casts.read_values(x, block_size, dtype)


def transpose_weight_sf(sf: torch.Tensor, block_size: int, transpose_sf1: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """``batched_transpose_weight_sf`` of one weight."""
    return _transpose_all([sf], block_size, [transpose_sf1], [None])[0]


def batched_transpose_weight_sf(
    sf: Sequence[torch.Tensor], block_size: int, transpose_sf1s: Sequence[bool]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """``tile_kernels.quant.batched_transpose_weight_sf`` into new tensors."""
    return _transpose_all(sf, block_size, transpose_sf1s, [None] * len(sf))


def cast(
    x: torch.Tensor | QuantTensor,
    fmt: str,
    block_size: tuple[int, int] = (32, 32),
    sf: torch.Tensor | None = None,
    x_block_size: tuple[int, int] | None = None,
    round_sf: bool = False,
    use_tma_aligned_col_major_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
) -> torch.Tensor | QuantTensor:
    """Quantise ``x`` (bf16 or fp32 [m, k], or a quantised pair whose scales cover ``x_block_size``) in blocks of ``block_size``.

    Returns e4m3 [m, k] or e2m1 as int8 [m, k / 2], and scales [ceil(m / bm), ceil(k / bk)] stored as the options say: see
    ``tile_kernels.quant.per_token_cast``, and ``use_e4m3_sf`` for e4m3 scales. With given ``sf`` (fp32) the values alone.
    """
    if isinstance(x, tuple):
        assert x[0].dtype in (torch.float8_e4m3fn, torch.int8) and x_block_size is not None, "scales need their block"
        values = cast_back(x, "fp32", x_block_size)
    else:
        assert x.dtype in (torch.bfloat16, torch.float32), f"expected bf16 or fp32, got {x.dtype}"
        values = x
    assert values.ndim == 2, f"expected a matrix, got {values.ndim} axes"
    assert fmt != "e2m1" or values.shape[1] % 2 == 0, "two FP4 codes share a byte"
    to = stored_casts.target(
        fmt,
        block_size,
        get_amax_clamp_for_quant(fmt, use_e4m3_sf),
        column_major=use_tma_aligned_col_major_sf,
        round_sf=round_sf,
        packed=use_packed_ue8m0,
        e4m3_scale=use_e4m3_sf,
    )
    if sf is None:
        return stored_casts.cast(values, to)
    assert not use_packed_ue8m0 and not use_tma_aligned_col_major_sf, "given scales are row-major and unpacked"
    rows, columns = values.shape
    shape = (-(-rows // block_size[0]), -(-columns // block_size[1]))
    assert sf.shape == shape, f"expected scales of {shape}, got {tuple(sf.shape)}"
    return stored_casts.cast_by_scales(values, to, sf)


def convert_to_e2m1_bits(quant_tensor):
    """FP4 codes (uint8, one a value) of fp32 values: to nearest even, saturating at 6, the sign in bit 3."""
    wide = quant_tensor.to(torch.float32)
    # Not a number counts as the largest magnitude.
    wide = torch.where(wide != wide, torch.where(wide.view(torch.int32) < 0, -6.0, 6.0), wide)
    padded = torch.nn.functional.pad(wide.reshape(-1, 1), (0, 1))
    return e2m1.encode_bytes(padded).reshape(quant_tensor.shape).to(torch.uint8)
