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
    negative or not below the width; 0 counts as 1. Returns [n, width] fp32, 1 for what stays and 0 elsewhere (products
    need no branch); all 1 where both are off.
    """
    width = probs.shape[1]
    filtered_p = top_p < 1.0
    filtered_k = (top_k >= 0) & (top_k < width)
    # Goals that no selection reaches stand for a filter that is off.
    mass_goal = top_p.clamp(min=_LOWEST).masked_fill_(~filtered_p, 2.0)
    count_goal = top_k.clamp(min=1).masked_fill_(~filtered_k, width + 1)

    # Both sums of a round in one: the selected ones and their probabilities. Counts are exact in fp32.
    assert width < 1 << 24, f"expected fewer than 2**24 columns, got {width}"
    goals = torch.stack((count_goal.to(torch.float32), mass_goal))
    parts = torch.empty((2, *probs.shape), dtype=torch.float32, device=probs.device)
    selected, mass = parts.unbind(0)
    bits = torch.full_like(top_k, _LOWEST_BITS)
    for step in range(_ROUNDS - 1, -1, -1):
        bound = (bits + (1 << step)).view(torch.float32).unsqueeze(1)
        torch.ge(probs, bound, out=selected)
        torch.mul(probs, selected, out=mass)
        bits = torch.add(bits, (parts.sum(2) >= goals).any(0), alpha=1 << step)

    # Everything lies above the bound of a row whose filters are off.
    bound = bits.view(torch.float32).masked_fill(~(filtered_p | filtered_k), -1.0)
    torch.gt(probs, bound.unsqueeze(1), out=selected)
    torch.mul(probs, selected, out=mass)
    missing_count, missing_mass = (goals - parts.sum(2)).unbind(0)
    missing_mass = (missing_mass / bound).ceil_().clamp_(0, width)
    quota = torch.where(missing_mass < missing_count, missing_mass, missing_count).unsqueeze(1)
    equal = torch.eq(probs, bound.unsqueeze(1), out=mass)
    return selected.add_(equal.mul_(equal.cumsum(1, dtype=torch.float32).le_(quota)))
