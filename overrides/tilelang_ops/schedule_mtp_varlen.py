"""Query lengths by draft confidence, after ``tilelang_ops.asc.schedule_mtp_varlen``."""

from __future__ import annotations

from typing import Any

import torch

from ._constants import Scalars

_SCALARS = Scalars(-1, 1)


def compute_seqlens_q_by_confidence_rates_tl(nextn: int) -> Any:
    """Factory of the split of a token budget: one token a sequence, the rest to the likeliest drafts, equals in order."""
    assert nextn > 0, f"expected nextn of at least 1, got {nextn}"

    def compute_seqlens_q_by_confidence_rates(
        remap: torch.Tensor,
        prev_confidence_rates: torch.Tensor,
        cum_rates: torch.Tensor,
        seqlens_q: torch.Tensor,
        total_q: int,
    ) -> None:
        """``remap``: [n] int32 (-1: new, rates 0); ``prev_confidence_rates``: [prev, nextn] fp32, in [0, 1].

        Written: ``cum_rates`` [n, nextn] fp32, each draft's chance that it and all before it hold; ``seqlens_q`` [n] int32.
        """
        n = remap.shape[0]
        assert cum_rates.shape == (n, nextn) and prev_confidence_rates.shape[1] == nextn, f"{cum_rates.shape=} {nextn=}"
        is_ = _SCALARS.beside(remap)
        if prev_confidence_rates.shape[0]:
            # A row for each draft: each is multiplied by the one before, as the rounding of the products decides equals.
            chances = prev_confidence_rates.t().index_select(1, remap.clamp(min=0)).masked_fill_(remap == is_[-1], 0.0)
            rows = chances.unbind(0)
            for step in range(1, nextn):
                rows[step].mul_(rows[step - 1])
            cum_rates.copy_(chances.t())
        else:
            cum_rates.zero_()
        extra = min(max(total_q - n, 0), n * nextn)
        if extra == 0:
            seqlens_q.fill_(1)
            return
        flat = cum_rates.reshape(-1)
        likeliest = torch.topk(flat, extra).values
        last = likeliest[-1:]
        above = flat > last
        equal = flat == last
        # Of all equals to the last that the budget reaches, as many as it does, in order.
        rest = (likeliest == last).sum(dtype=torch.int32)
        chosen = torch.where(equal, equal.cumsum(0, dtype=torch.int32) <= rest, above)
        torch.sum(chosen.view(n, nextn), 1, dtype=torch.int32, out=seqlens_q).add_(is_[1])

    return compute_seqlens_q_by_confidence_rates
