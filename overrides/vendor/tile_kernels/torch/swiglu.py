"""Plain SwiGLU of ``tile_kernels.torch.swiglu``."""

from __future__ import annotations

import torch

from neuron_numerics.expanded_rows import valid_rows

from ..config import get_token_alignment
from ..quant.swiglu_forward_kernel import swiglu_forward as _swiglu_forward


def get_mapping_from_psum(x: torch.Tensor, psum_num_tokens_per_expert: torch.Tensor) -> torch.Tensor:
    """Which rows of ``x`` belong to an expert (bool [rows]), by the ends of the experts' rows (int32 [experts])."""
    return valid_rows(x.shape[0], psum_num_tokens_per_expert, get_token_alignment())


def elementwise_fma(a: torch.Tensor, b: float | torch.Tensor, c: float | torch.Tensor) -> torch.Tensor:
    """``a * b + c``."""
    return a * b + c


def swiglu_forward(
    x: torch.Tensor,
    psum_num_tokens_per_expert: torch.Tensor | None = None,
    topk_weights: torch.Tensor | None = None,
    routed_scaling_factor: float | None = None,
    clamp_value: float | None = None,
    clamped_count: torch.Tensor | None = None,
) -> torch.Tensor:
    """``tile_kernels.quant.swiglu_forward`` in fp32."""
    scaling = routed_scaling_factor if topk_weights is not None else None
    count = clamped_count if clamp_value is not None else None
    return _swiglu_forward(x, "fp32", psum_num_tokens_per_expert, topk_weights, scaling, clamp_value, count)
