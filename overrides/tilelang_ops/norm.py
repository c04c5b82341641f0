"""RMSNorm with optional residual and FP8 cast, after ``tilelang_ops.asc.norm``.

Ascend's rounding order holds: the residual sum is rounded to the input dtype, statistics and both products are fp32, and the
result is rounded once. ``norm_ref`` rounds before the weight as well, so bf16 results may differ from it by one step.
"""

from __future__ import annotations

from typing import Any

import torch

from neuron_numerics.casts import quantise_groups
from neuron_numerics.formats import quant_format

from ._rms import normalise, normalise_bf16

_FP32_MIN_NORMAL = 2.0**-126


def norm_tl(
    hidden_size: int,
    dtype: str,
    return_dtype: str,
    reduce_dtype: str,
    has_residual: bool,
    eps: float,
    out_scale: float,
    do_fp8_cast: bool,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    return_origin_out: bool,
    xdim: int,
    shared_sf_block_m: int,
    x_stride_s: int,
    y_stride_s: int,
    residual_stride_s: int,
    residual_out_stride_s: int,
    y_origin_stride_s: int,
    sf_stride_s: int,
) -> Any:
    """Factory of RMSNorm over rows of ``hidden_size`` (a multiple of 128), ``dtype`` ``bfloat16`` or ``float``.

    ``num_per_channels``: 32 with ``do_fp8_cast``, else 0. ``round_sf``: scales are powers of two. The shared scale layout of
    the mega kernel (``shared_sf_block_m``) does not exist on Ascend. Strides are read from the tensors.
    """
    assert hidden_size % 128 == 0, f"expected a hidden size of whole 128s, got {hidden_size}"
    assert dtype in ("bfloat16", "float") and reduce_dtype == "float", f"{dtype=} {reduce_dtype=}"
    assert xdim in (2, 3), f"expected xdim 2 or 3, got {xdim}"
    assert shared_sf_block_m == 0, "the shared scale layout is not supported"
    assert num_per_channels == (32 if do_fp8_cast else 0), f"{do_fp8_cast=} {num_per_channels=}"
    assert eps >= _FP32_MIN_NORMAL, f"expected eps of a normal fp32 size, got {eps}"
    fmt = quant_format("e4m3", "ue8m0" if use_packed_ue8m0 else "fp32", round_sf) if do_fp8_cast else None

    def norm(
        x: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor,
        residual: torch.Tensor,
        residual_out: torch.Tensor,
        sf: torch.Tensor,
        extra_sf: torch.Tensor,
        y_origin: torch.Tensor,
    ) -> None:
        """All of x's shape [batch, seqlen, hidden_size] and dtype, rows strided, unless said otherwise.

        ``weight``: [hidden_size]. ``residual``: read with ``has_residual``. ``extra_sf``: unused. Written: ``y``, e4m3 with
        ``do_fp8_cast``; ``residual_out`` = x + residual with ``has_residual``; ``y_origin``, the unquantised result, with
        ``return_origin_out``; ``sf`` with ``do_fp8_cast``: fp32 [batch, seqlen, groups], or ue8m0 bytes, uint8 of that shape
        or, column-major, [batch, seqlen, groups / 2, 2].
        """
        assert x.shape[-1] == hidden_size and x.shape == y.shape, f"{x.shape=} {y.shape=}"
        if has_residual:
            x = (
                torch.add(x, residual, out=residual_out)
                if residual_out.is_contiguous()
                else residual_out.copy_(x + residual)
            )
        if fmt is None:
            if dtype == "bfloat16" and out_scale == 1.0:
                y.copy_(normalise_bf16(x, weight, eps))
            else:
                normalise(x, weight, eps, out_scale, out=y)
            return
        out = normalise(x, weight, eps, out_scale)
        if dtype == "bfloat16":
            rounded = out.to(torch.bfloat16)
            out = rounded.to(torch.float32)
        else:
            rounded = out
        if return_origin_out:
            y_origin.copy_(rounded)
        scaled, scale = quantise_groups(out, fmt, num_per_channels)
        y.copy_(scaled)
        sf.copy_(scale.encoded.view(sf.shape))

    return norm
