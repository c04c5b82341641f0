"""The largest values of each row with a fixed order of ties, without a sort.

A device's ``topk`` may return equal values in any order, and any of those that tie with the last one.
"""

from __future__ import annotations

import torch


def stable_topk(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Columns (int32 [rows, count]) of the ``count`` largest fp32 ``scores`` [rows, n] of each row, no NaN among them.

    In descending order; equal scores by smaller column, which also decides which of them are taken.
    """
    rows, width = scores.shape
    if rows == 0:
        return torch.empty((0, count), dtype=torch.int32, device=scores.device)
    last = torch.topk(scores, count, dim=1).values[:, -1:]
    above, level = scores > last, scores == last
    free = count - above.sum(1, keepdim=True, dtype=torch.int32)
    taken = above | (level & (level.cumsum(1, dtype=torch.int32) <= free))
    # Distinct keys: the columns taken come out in ascending order.
    key = torch.arange(width, 0, -1, dtype=torch.float32, device=scores.device)
    columns = torch.topk(torch.where(taken, key, 0.0), count, dim=1).indices
    value = scores.gather(1, columns)
    place = torch.arange(count, dtype=torch.int32, device=scores.device)
    first, second = value.unsqueeze(1), value.unsqueeze(2)
    before = (first > second) | ((first == second) & (place < place.unsqueeze(1)))
    rank = before.sum(2, dtype=torch.int32)
    chosen = rank.unsqueeze(1) == place.unsqueeze(1)
    return (chosen * columns.to(torch.int32).unsqueeze(1)).sum(2, dtype=torch.int32)
