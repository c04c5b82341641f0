"""Weight normalisation of ``tile_kernels.moe.normalize_weight_kernel``."""

from __future__ import annotations

import torch


def normalize_weight(topk_weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of contiguous fp32 rows [tokens, k], k at most 32, plus 1e-20 (fp32 [tokens]), and the rows divided by them."""
    assert topk_weights.ndim == 2 and topk_weights.is_contiguous(), "expected a contiguous matrix"
    assert topk_weights.dtype == torch.float32, f"expected fp32, got {topk_weights.dtype}"
    assert topk_weights.shape[1] <= 32, f"at most 32 weights a token, got {topk_weights.shape[1]}"
    denominator = topk_weights.sum(1).add_(1e-20)
    return denominator, topk_weights / denominator.unsqueeze(1)
