"""Plain expert gate of ``tile_kernels.torch.topk``."""

from __future__ import annotations

import torch

from neuron_numerics.activations import sqrt_softplus
from neuron_numerics.stable_topk import stable_topk as _stable_topk

from ..moe.moe_topk_gate_forward_kernel import moe_topk_gate_forward as _moe_topk_gate_forward


def sqrt_softplus_ref(x: torch.Tensor) -> torch.Tensor:
    """``sqrt(log(1 + exp(x)))`` of fp32 ``x``."""
    return sqrt_softplus(x)


def stable_topk(scores: torch.Tensor, num_topk: int) -> torch.Tensor:
    """Columns (int64 [tokens, k]) of the ``num_topk`` largest of each row, equal ones by smaller column."""
    # NEURON: 64-bit upstream's indices are int64
    return _stable_topk(scores, num_topk).to(torch.int64)


def moe_topk_gate_forward(
    logits: torch.Tensor,
    num_topk: int,
    use_shared_as_routed: bool,
    num_shared_experts: int,
    routed_scaling_factor: float,
    ep_rank: int,
    scoring_func: str,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    image_bias: torch.Tensor | None = None,
    image_token_mask: torch.Tensor | None = None,
    fix_routing_mask: torch.Tensor | None = None,
    to_physical_map: torch.Tensor | None = None,
    logical_count: torch.Tensor | None = None,
    unmapped_topk_idx: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``tile_kernels.moe.moe_topk_gate_forward``."""
    return _moe_topk_gate_forward(
        logits,
        num_topk,
        use_shared_as_routed,
        num_shared_experts,
        routed_scaling_factor,
        ep_rank,
        scoring_func,
        mask,
        bias,
        image_bias,
        image_token_mask,
        fix_routing_mask,
        to_physical_map,
        logical_count,
        unmapped_topk_idx,
        out=out,
    )
