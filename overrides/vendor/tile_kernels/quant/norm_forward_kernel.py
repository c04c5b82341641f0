"""RMSNorm of ``tile_kernels.quant.norm_forward_kernel``, with and without the cast of its result."""

from __future__ import annotations

import torch

from neuron_numerics import casts, stored_casts
from neuron_numerics.formats import QuantFormat, quant_format
from neuron_numerics.layouts import ASCEND_PACK

from ..config import get_amax_clamp_for_quant
from .types import QuantTensor

_GROUP = 32


def norm_forward(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None = None,
    out_scale: float = 1.0,
    out: torch.Tensor | None = None,
    residual_out: torch.Tensor | None = None,
    with_rstd: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """RMSNorm over the last axis of ``x + residual``, in fp32.

    ``x``: bf16 or fp32 [.., tokens, hidden], two or three axes, rows strided or not; ``weight`` [hidden] and ``residual`` of its
    dtype. The sum is rounded to that dtype first. Returns the result (times ``out_scale``), 1 / rms as fp32 [.., tokens] when
    asked for (else None), and the sum (``x`` itself without ``residual``). ``out``, ``residual_out``: buffers to write.
    """
    normed, rstd, total = _norm(x, weight, eps, residual, out_scale, residual_out)
    return (normed if out is None else out.copy_(normed)), (rstd if with_rstd else None), total


def norm_forward_and_per_token_cast(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    fmt: str,
    num_per_channels: int,
    residual: torch.Tensor | None = None,
    out_scale: float = 1.0,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    with_out_bf16: bool = False,
    out: QuantTensor | None = None,
    out_bf16: torch.Tensor | None = None,
    residual_out: torch.Tensor | None = None,
    mega_moe_sf: torch.Tensor | None = None,
    mega_moe_block_m: int = 0,
    with_rstd: bool = False,
) -> tuple[QuantTensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    """``per_token_cast`` of ``norm_forward``: e4m3 in groups of 32; ``hidden`` is a multiple of 32.

    Returns the pair of e4m3 values [.., tokens, hidden] and scales [.., tokens, groups] (options as in ``per_token_cast``, each
    matrix of a batch laid out by itself), the unquantised result as bf16 when ``with_out_bf16`` (else None), and the last two of
    ``norm_forward``. ``out`` (either may be None,
    the scales row-major), ``out_bf16``, ``residual_out``: buffers to write. ``mega_moe_sf`` and
    ``mega_moe_block_m`` belong to another device and are left alone, as on Ascend.
    """
    assert (fmt, num_per_channels) == (
        "e4m3",
        _GROUP,
    ), f"expected e4m3 in groups of {_GROUP}, got {fmt} in {num_per_channels}"
    assert x.shape[-1] % _GROUP == 0, f"expected rows of a multiple of {_GROUP} values, got {x.shape[-1]}"
    assert not use_packed_ue8m0 or round_sf, "packed scales are powers of two: round_sf"
    assert with_out_bf16 or out_bf16 is None, "out_bf16 needs with_out_bf16"
    out_x, out_sf = (None, None) if out is None else out
    assert out_sf is None or not use_tma_aligned_col_major_sf, "a given scale buffer is row-major"
    normed, rstd, total = _norm(x, weight, eps, residual, out_scale, residual_out)
    form = quant_format(fmt, "ue8m0" if use_packed_ue8m0 else "fp32", round_sf, get_amax_clamp_for_quant(fmt, False))
    values, scales = _cast(normed, form)
    if out_sf is not None:
        scales = out_sf.copy_(scales)
    elif use_tma_aligned_col_major_sf:
        # Transposing a contiguous copy gives each matrix of the batch its own column-major scales.
        scales = scales.mT.clone(memory_format=torch.contiguous_format).mT
    quantised = (values if out_x is None else out_x.copy_(values)), scales
    wide = None
    if with_out_bf16:
        wide = normed.to(torch.bfloat16) if out_bf16 is None else out_bf16.copy_(normed)
    return quantised, wide, (rstd if with_rstd else None), total


def _norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
    out_scale: float,
    residual_out: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalised rows in ``x``'s dtype, 1 / rms [..] and the sum."""
    assert x.ndim in (2, 3) and x.dtype in (torch.bfloat16, torch.float32), "expected two or three axes of bf16 or fp32"
    total = x
    if residual is not None:
        total = x + residual if residual_out is None else torch.add(x, residual, out=residual_out)
    wide = total.to(torch.float32)
    rstd = (wide.square().sum(-1) / x.shape[-1] + eps).rsqrt_()
    normed = wide * rstd.unsqueeze(-1)
    if weight is not None:
        normed.mul_(weight.to(torch.float32) * out_scale)
    elif out_scale != 1.0:
        normed.mul_(out_scale)
    return normed.to(x.dtype), rstd, total


def _cast(x: torch.Tensor, form: QuantFormat) -> QuantTensor:
    """e4m3 values and row-major stored scales of ``x`` [.., hidden]."""
    if x.numel() == 0:
        groups = x.shape[-1] // _GROUP
        width, dtype = (
            (-(-groups // ASCEND_PACK.itemsize), ASCEND_PACK) if form.scale.name == "ue8m0" else (groups, torch.float32)
        )
        return x.to(torch.float8_e4m3fn), torch.empty((*x.shape[:-1], width), dtype=dtype, device=x.device)
    values, encoded = casts.cast_per_token(x, form, _GROUP)
    return values, stored_casts.pack_columns(encoded, ASCEND_PACK) if form.scale.name == "ue8m0" else encoded
