"""Which of several consecutive segments each row belongs to, without a data-dependent shape."""

from __future__ import annotations

import torch

_DENSE_LIMIT = 1 << 12


def count_at_or_before(bounds: torch.Tensor, total: int) -> torch.Tensor:
    """For each row in ``[0, total)`` the number of ``bounds`` [n] int32, ascending, that are not above it: [total] int32.

    With the inclusive ends of segments this is a row's segment; with their starts, one more than that. Segments of
    zero rows own no row.
    """
    row = torch.arange(total, dtype=torch.int32, device=bounds.device)
    if total * bounds.shape[0] <= _DENSE_LIMIT:
        return (bounds <= row.unsqueeze(1)).sum(1, dtype=torch.int32)
    # Counted in floats: they are exact below 2**24 bounds, and the device adds no integers by index.
    marks = torch.zeros(total + 1, dtype=torch.float32, device=bounds.device)
    marks.index_add_(0, bounds.clamp(0, total), torch.ones(bounds.shape[0], dtype=torch.float32, device=bounds.device))
    return marks[:total].cumsum(0).to(torch.int32)
