"""Sums of the experts' rows, from ``tile_kernels.torch.reduce_fused``."""

from __future__ import annotations

import torch

from ..quant.types import QuantTensor


def elementwise_fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """``a * b + c``."""
    return a * b + c


def reduce_fused(
    x: torch.Tensor | QuantTensor,
    topk_weights: torch.Tensor | None,
    token_topk_to_pos: torch.Tensor,
    fp8_format: str = "",
    sf: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum for each token the rows of ``x`` (or of a pair with a factor a row) that ``token_topk_to_pos`` names, -1 for none.

    ``token_topk_to_pos``: [tokens, k]. ``topk_weights``: fp32 [tokens, k]. In fp32 and in the order of k, times ``sf`` (fp32 [1]),
    as e4m3 when ``fp8_format`` says so, else in ``x``'s dtype [tokens, hidden].
    """
    values, factors = x if isinstance(x, tuple) else (x, None)
    tokens, count = token_topk_to_pos.shape
    dtype = torch.float8_e4m3fn if fp8_format == "e4m3" else values.dtype
    total = torch.zeros((tokens, values.shape[1]), dtype=torch.float32, device=values.device)
    if tokens == 0 or values.shape[0] == 0:
        return total.to(dtype)
    for column in range(count):
        place = token_topk_to_pos[:, column]
        row = place.clamp_min(0)
        factor = (
            torch.ones((tokens,), dtype=torch.float32, device=values.device)
            if topk_weights is None
            else topk_weights[:, column]
        )
        if factors is not None:
            factor = factor * factors[row]
        added = elementwise_fma(values[row].to(torch.float32), factor.unsqueeze(1), total)
        total = torch.where((place >= 0).unsqueeze(1), added, total)
    return (total if sf is None else total * sf[0]).to(dtype)
