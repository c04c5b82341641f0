"""SwiGLU of ``tile_kernels.quant.swiglu_forward_kernel``, with and without the cast of its result."""

from __future__ import annotations

import torch

from neuron_numerics import stored_casts
from neuron_numerics.expanded_rows import valid_rows

from ..config import get_amax_clamp_for_quant, get_token_alignment
from .types import QuantTensor


def swiglu_forward_and_per_token_cast(
    x: torch.Tensor,
    fmt: str,
    num_per_channels: int,
    psum_num_tokens_per_expert: torch.Tensor | None = None,
    topk_weights: torch.Tensor | None = None,
    routed_scaling_factor: float | None = None,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    clamp_value: float | None = None,
    clamped_count: torch.Tensor | None = None,
) -> QuantTensor:
    """``per_token_cast`` of ``swiglu_forward`` to e4m3 in groups of 32 or 128; ``bf16`` and ``fp32`` with None give no pair.

    Returns e4m3 [tokens, hidden] and scales [tokens, hidden / group], options as in ``per_token_cast``. Rows between the experts
    of the expanded layout hold whatever their input gives.
    """
    assert (fmt, num_per_channels) in (
        ("e4m3", 128),
        ("e4m3", 32),
        ("bf16", None),
        ("fp32", None),
    ), f"no such cast: {fmt}, {num_per_channels}"
    y = _swiglu(x, psum_num_tokens_per_expert, topk_weights, routed_scaling_factor, clamp_value, clamped_count)
    if fmt != "e4m3":
        return y.to(torch.bfloat16 if fmt == "bf16" else torch.float32)
    floor = get_amax_clamp_for_quant(fmt, False)
    to = stored_casts.target(
        fmt,
        (1, num_per_channels),
        floor,
        column_major=use_tma_aligned_col_major_sf,
        round_sf=round_sf,
        packed=use_packed_ue8m0,
    )
    return stored_casts.cast(y, to)


def swiglu_forward(
    x: torch.Tensor,
    fmt: str,
    psum_num_tokens_per_expert: torch.Tensor | None = None,
    topk_weights: torch.Tensor | None = None,
    routed_scaling_factor: float | None = None,
    clamp_value: float | None = None,
    clamped_count: torch.Tensor | None = None,
) -> torch.Tensor:
    """``silu(left) * right`` of the halves of ``x`` (contiguous bf16 or fp32 [tokens, 2 hidden]), as ``bf16`` or ``fp32``.

    ``clamp_value`` bounds ``left`` from above and ``right`` on both sides first. ``topk_weights`` (fp32 [tokens]), times
    ``routed_scaling_factor``, multiplies each row. ``clamped_count`` (int64 [4]) is added to in place: values of ``left`` above,
    of ``right`` above and below the bound, and values in all, over the rows that ``psum_num_tokens_per_expert`` (int32
    [experts], ends of the experts' rows, each expert starting at a multiple of ``get_token_alignment()``) names, or all rows.
    """
    assert fmt in ("fp32", "bf16"), f"expected 'fp32' or 'bf16', got {fmt!r}"
    y = _swiglu(x, psum_num_tokens_per_expert, topk_weights, routed_scaling_factor, clamp_value, clamped_count)
    return y.to(torch.bfloat16 if fmt == "bf16" else torch.float32)


def _swiglu(
    x: torch.Tensor,
    psum: torch.Tensor | None,
    weights: torch.Tensor | None,
    factor: float | None,
    clamp_value: float | None,
    count: torch.Tensor | None,
) -> torch.Tensor:
    assert x.ndim == 2 and x.is_contiguous() and x.shape[1] % 2 == 0, "expected a contiguous matrix with two halves"
    assert factor is None or weights is not None, "routed_scaling_factor needs topk_weights"
    assert count is None or clamp_value is not None, "clamped_count needs clamp_value"
    left, right = x.to(torch.float32).chunk(2, 1)
    if clamp_value is not None:
        if count is not None:
            _count_clamped(count, left, right, clamp_value, psum)
        left, right = left.clamp(max=clamp_value), right.clamp(-clamp_value, clamp_value)
    y = left.neg().exp_().add_(1.0)
    y = torch.div(left, y, out=y).mul_(right)
    if weights is not None:
        y.mul_((weights if factor is None else weights * factor).unsqueeze(1))
    return y


def _count_clamped(
    count: torch.Tensor, left: torch.Tensor, right: torch.Tensor, bound: float, psum: torch.Tensor | None
) -> None:
    rows, columns = left.shape
    seen = torch.stack([(side).sum(1, dtype=torch.int32) for side in (left > bound, right > bound, right < -bound)], 1)
    ones = torch.full((rows, 1), columns, dtype=torch.int32, device=left.device)
    figures = torch.cat((seen, ones), 1)
    if psum is not None:
        figures = figures * valid_rows(rows, psum, get_token_alignment()).unsqueeze(1)
    # NEURON: 64-bit the counters are int64 by contract
    count.add_(figures.sum(0, dtype=torch.int64))
