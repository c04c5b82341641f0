"""RMS normalisation of rows in fp32, shared by the norm and the fused transform kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def normalise(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out_scale: float = 1.0, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``x / sqrt(mean(x**2) + eps) * (weight * out_scale)`` over the last axis, before the rounding to the output dtype.

    ``x``: [..., d] bf16 or fp32. ``weight``: [d], same dtype. Returns a new fp32 tensor [..., d], or ``out``, into which
    the result is rounded.
    The product is rounded to bf16 once, by the caller, as on Ascend; upstream's reference also rounds before the weight.
    """
    # fp32 rows keep an fp32 result to its last bits, which sums and products in fp32 lose.
    # porter: ignore[PT110] only rows given in fp32; bf16 rows, all that basic mode norms per step, stay in fp32
    wide = torch.float64 if x.dtype == torch.float32 else torch.float32
    rows = x.to(wide)
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    rstd = torch.addcmul(length.new_full((1,), eps), length, length, value=1.0 / x.shape[-1]).rsqrt_()
    factor = weight if out_scale == 1.0 else weight.to(wide).mul_(out_scale)
    rows.mul_(rstd)
    if out is None:
        return rows.mul_(factor).to(torch.float32)
    # Compiled graphs take no strided ``out=``.
    return torch.mul(rows, factor, out=out) if out.is_contiguous() else out.copy_(rows.mul_(factor))


def normalise_bf16(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``normalise`` of bf16 rows, rounded to bf16 once: torch's own norm, which is one op on the device."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
