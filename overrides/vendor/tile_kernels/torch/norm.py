"""Plain RMSNorm of ``tile_kernels.torch.norm``."""

from __future__ import annotations

import torch


def norm_forward_ref(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None = None,
    out_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The normalised sum of ``x`` and ``residual`` [.., hidden] in ``x``'s dtype, 1 / rms (fp32 [..]) and the sum."""
    total = x if residual is None else (x + residual).to(x.dtype)
    wide = total.to(torch.float32)
    rstd = (wide.square().sum(-1) / x.shape[-1] + eps).rsqrt_()
    factor = out_scale if weight is None else weight.to(torch.float32) * out_scale
    return (wide * rstd.unsqueeze(-1)).mul_(factor).to(x.dtype), rstd, total
