"""The product of the gate's norm weights, from ``tile_kernels.engram.engram_fused_weight_kernel``."""

from __future__ import annotations

import torch


def fused_weight(weight_hidden: torch.Tensor, weight_embed: torch.Tensor) -> torch.Tensor:
    """``weight_hidden * weight_embed`` (bf16 [streams, hidden]) in fp32."""
    return weight_hidden.to(torch.float32) * weight_embed.to(torch.float32)
