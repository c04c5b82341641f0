"""The largest values of each row with a fixed order of ties, without a sort.

A device's ``topk`` may return equal values in any order, and any of those that tie with the last one.
"""

from __future__ import annotations

import torch


def stable_topk(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Columns (int32 [rows, count]) of the ``count`` largest fp32 ``scores`` [rows, n] of each row, no NaN among them.

    In descending order; equal scores by smaller column, which also decides which of them are taken.
    """
    value = torch.topk(scores, count, dim=1).values
    # How many of the values so far are equal to this one, itself among them: its turn among the columns that hold it.
    turn = (value.unsqueeze(2) == value.unsqueeze(1)).cumsum(2, dtype=torch.int32).diagonal(dim1=1, dim2=2)
    reached = (scores.unsqueeze(1) == value.unsqueeze(2)).cumsum(2, dtype=torch.int32)
    return (reached < turn.unsqueeze(2)).sum(2, dtype=torch.int32)
