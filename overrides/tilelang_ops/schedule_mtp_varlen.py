"""Query lengths by draft confidence, after ``tilelang_ops.asc.schedule_mtp_varlen``."""

from __future__ import annotations

from typing import Any

import torch


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
        if prev_confidence_rates.shape[0]:
            rates = prev_confidence_rates.index_select(0, remap.clamp(min=0))
            chances = [*rates.masked_fill_((remap == -1).unsqueeze(1), 0.0).unbind(1)]
            # One column after the other: the rounding of the products decides equals.
            for step in range(1, nextn):
                chances[step] = chances[step] * chances[step - 1]
            torch.stack(chances, 1, out=cum_rates)
        else:
            cum_rates.zero_()
        extra = min(max(total_q - n, 0), n * nextn)
        if extra == 0:
            seqlens_q.fill_(1)
            return
        flat = cum_rates.reshape(-1)
        last = torch.topk(flat, extra).values[-1:]
        above = flat > last
        equal = flat == last
        # The budget left for equals goes to the first of them.
        rest = extra - above.sum(0, dtype=torch.int32, keepdim=True)
        chosen = torch.where(equal, equal.cumsum(0, dtype=torch.int32) <= rest, above)
        torch.add(chosen.view(n, nextn).sum(1, dtype=torch.int32), 1, out=seqlens_q)

    return compute_seqlens_q_by_confidence_rates
