"""Operands of the FP8 and FP4 GEMMs, expanded.

A value (e4m3, e2m1) times a power of two is a bf16 number, so operands whose scales are exponents become bf16 without loss and the
products are the tensor engine's own. Operands with other scales become fp32.
"""

from __future__ import annotations

import torch

from neuron_numerics import e2m1
from neuron_numerics.gemm_scales import ceil_div, repeat_columns, repeat_rows, unpack_scales


def is_packed_fp4(values: torch.Tensor) -> bool:
    """Whether ``values`` holds two e2m1 codes an element."""
    return values.dtype in (torch.int8, torch.uint8)


def logical_shape(values: torch.Tensor) -> tuple[int, ...]:
    """Shape [..., mn, k] of an operand in values: e2m1 is packed along its contiguous axis, the last one if both could be."""
    shape = list(values.shape)
    if is_packed_fp4(values):
        shape[-1 if values.stride(-1) == 1 else -2] *= 2
    return tuple(shape)


def _e2m1_fp16(packed: torch.Tensor) -> torch.Tensor:
    """``e2m1.unpack_fp16`` of a last axis that is contiguous, in place where it can be: a weight's worth of memory once, not five
    times. The product is exact in an fp32 unit too: it has 20 bits between its first and its last."""
    # One nibble in each half of the word, at bits 9 to 12 of it.
    spread = packed.view(torch.uint8).to(torch.int32).mul_((1 << 9) + (1 << 21))
    sign = spread & 0x10001000
    sign <<= 3
    return spread.bitwise_and_(0x0E000E00).bitwise_or_(sign).view(torch.float16)


def expand_values(values: torch.Tensor) -> tuple[torch.Tensor, float]:
    """``values`` as fp32 [..., mn, k], short of the returned factor; exact."""
    if not is_packed_fp4(values):
        assert values.dtype == torch.float8_e4m3fn, f"expected e4m3 or packed e2m1 values, got {values.dtype}"
        return values.to(torch.float32), 1.0
    if values.stride(-1) == 1:
        return _e2m1_fp16(values).to(torch.float32), e2m1.FP16_FACTOR
    return _e2m1_fp16(values.mT).to(torch.float32).mT, e2m1.FP16_FACTOR


def dequantise(
    values: torch.Tensor, sf: torch.Tensor, granularity: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """Values times scales, as ``dtype``: bf16 (exact for powers of two) or fp32.

    ``values``: e4m3 [..., mn, k], or e2m1 packed along its contiguous axis. ``sf``: fp32 or packed, [..., ceil(mn / gran_mn),
    ceil(k / gran_k)] in scales. ``granularity``: (gran_mn, gran_k). Returns a new tensor [..., mn, k].
    """
    gran_mn, gran_k = granularity
    *_, rows, columns = logical_shape(values)
    scale = unpack_scales(sf, ceil_div(columns, gran_k))
    assert scale.shape[-2] == ceil_div(
        rows, gran_mn
    ), f"expected {ceil_div(rows, gran_mn)} rows of scales, got {scale.shape[-2]}"
    if dtype == torch.bfloat16 and not is_packed_fp4(values):
        # Exact in bf16 from the start, scales too: a power of two is the upper half of its fp32.
        expanded, factor = values.to(dtype), 1.0
        scale = scale.contiguous().view(dtype)[..., 1::2]
    else:
        expanded, factor = expand_values(values)
    scale = repeat_rows(scale if factor == 1.0 else scale * factor, gran_mn, rows)
    if columns % gran_k:
        expanded.mul_(repeat_columns(scale, gran_k, columns))
    else:
        expanded.unflatten(-1, (-1, gran_k)).mul_(scale.unsqueeze(-1))
    return expanded.to(dtype)


def dequantise_mx(values: torch.Tensor, sf: torch.Tensor | None) -> torch.Tensor:
    """fp32 values of query or key rows, one scale for 32 values.

    ``values``: e4m3 [..., d] or e2m1 as int8 or uint8 [..., d / 2]. ``sf``: exponent bytes packed in int32 [...] or
    [..., ceil(d / 128)], or in int16 [..., ceil(d / 64)]; fp32 [...] for one scale a row; None for none.
    """
    x, factor = expand_values(values)
    if sf is None:
        return x if factor == 1.0 else x.mul_(factor)
    wide = sf if sf.ndim == values.ndim else sf.unsqueeze(-1)
    groups = 1 if sf.dtype == torch.float32 else ceil_div(x.shape[-1], 32)
    scale = unpack_scales(wide, groups)
    x.unflatten(-1, (groups, -1)).mul_((scale if factor == 1.0 else scale * factor).unsqueeze(-1))
    return x
