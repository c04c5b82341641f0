"""Sliding-window KV indices, after ``tilelang_ops.asc.swa_index``."""

from __future__ import annotations

from typing import Any

import torch

from ._masks import negative


def expand_swa_index_tl(width: int) -> Any:
    """Factory of the expansion of two KV segments a token into ``width`` index columns, -1 where none."""
    assert width > 0, f"expected a positive width, got {width}"

    def expand_swa_index(pivots: torch.Tensor, output: torch.Tensor) -> None:
        """``pivots``: [n, 4] int32 (offset, length) twice. ``output``: [n, width] int32, written; sums wrap as int32 do."""
        assert (
            pivots.shape == (output.shape[0], 4) and output.shape[1] == width
        ), f"{pivots.shape=} {output.shape=} {width=}"
        offset1, length1, offset2, length2 = pivots.unsqueeze(2).unbind(1)
        column = torch.arange(width, dtype=torch.int32, device=pivots.device)
        before = negative(column - length1)
        second = offset2 - length1
        # The first segment's base where it still runs, the second's behind it; -1 behind both.
        torch.add(second, (offset1 - second) & before, out=output)
        output.add_(column).bitwise_or_(((length1 + length2 - 1) - column).bitwise_right_shift_(31))

    return expand_swa_index
