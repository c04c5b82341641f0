"""Top-p and top-k selection of a row's probabilities by search for the lowest one kept, without a sort."""

from __future__ import annotations

import torch

# Probabilities below 2**-32 are never kept by a filter. The search walks the bit patterns between there and 1.0, which
# order as positive floats do, one bit a round.
_LOWEST_BITS = 0x2F800000
_ROUNDS = 28
_LOWEST = 2.0**-32


def keep_mask(probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Which columns stay: the fewest, most likely first and equals by column, that reach ``top_p`` or number ``top_k``.

    ``probs``: [n, width] fp32 rows that add up to 1. ``top_p``: [n] fp32, off from 1 on. ``top_k``: [n] int32, off when
    negative or not below the width; 0 counts as 1. Returns [n, width] bool, all True where both are off.
    """
    width = probs.shape[1]
    filtered_p = top_p < 1.0
    filtered_k = (top_k >= 0) & (top_k < width)
    # Goals that no selection reaches stand for a filter that is off.
    mass_goal = top_p.clamp(min=_LOWEST).masked_fill_(~filtered_p, 2.0)
    count_goal = top_k.clamp(min=1).masked_fill_(~filtered_k, width + 1)

    selected = torch.empty(probs.shape, dtype=torch.bool, device=probs.device)
    part = torch.empty_like(probs)
    bits = torch.full_like(top_k, _LOWEST_BITS)
    for step in range(_ROUNDS - 1, -1, -1):
        bound = (bits + (1 << step)).view(torch.float32).unsqueeze(1)
        torch.ge(probs, bound, out=selected)
        torch.mul(probs, selected, out=part)
        enough = (part.sum(1) >= mass_goal) | (selected.sum(1, dtype=torch.int32) >= count_goal)
        bits = torch.add(bits, enough, alpha=1 << step)

    bound = bits.view(torch.float32)
    torch.gt(probs, bound.unsqueeze(1), out=selected)
    torch.mul(probs, selected, out=part)
    missing_mass = ((mass_goal - part.sum(1)) / bound).ceil_().clamp_(0, width).to(torch.int32)
    missing_count = count_goal - selected.sum(1, dtype=torch.int32)
    quota = torch.where(missing_mass < missing_count, missing_mass, missing_count).unsqueeze(1)
    equal = probs == bound.unsqueeze(1)
    selected.logical_or_(equal.logical_and_(equal.cumsum(1, dtype=torch.int32) <= quota))
    return selected.logical_or_(~(filtered_p | filtered_k).unsqueeze(1))
