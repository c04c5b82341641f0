"""The expanded layout: rows sorted by expert, each expert starting at a multiple of an alignment."""

from __future__ import annotations

import torch


def valid_rows(rows: int, ends: torch.Tensor, alignment: int) -> torch.Tensor:
    """Which of ``rows`` belong to an expert (bool [rows]), by the end of each expert's rows (int32 [experts], ascending)."""
    starts = torch.nn.functional.pad((ends[:-1] + (alignment - 1)) // alignment * alignment, (1, 0))
    row = torch.arange(rows, dtype=torch.int32, device=ends.device).unsqueeze(1)
    return ((row >= starts) & (row < ends)).any(1)
