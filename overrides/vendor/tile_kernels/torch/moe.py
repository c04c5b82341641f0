"""Expert indices and weights of ``tile_kernels.torch.moe``."""

from __future__ import annotations

import torch


def mask_indices_by_tp(
    indices: torch.Tensor, n: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int
) -> torch.Tensor:
    """Expert ``indices`` (of ``n``, over ``num_ep_ranks`` ranks) in the numbering of one tensor-parallel rank.

    Ranks stand in rows of ``num_tp_ranks``; experts of other columns than ``tp_rank`` become -1, as negative ones do.
    """
    per_rank = n // num_ep_ranks
    rank = indices.clamp_min(0) // per_rank
    mine = (indices >= 0) & (rank % num_tp_ranks == tp_rank)
    return torch.where(mine, indices - (rank - rank // num_tp_ranks) * per_rank, -1)


def normalize_weight(topk_weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of fp32 rows [tokens, k], and the rows divided by them."""
    total = topk_weights.sum(1)
    return total, topk_weights / total.unsqueeze(1)
